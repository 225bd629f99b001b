"""`diffucoder data`: prepare data sets for training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_lm import terminal


@dataclass(frozen=True, kw_only=True)
class PrepareData:
    """Prepare a data set: prepare-acecode chooses problems of AceCode-89K by difficulty, as prompts for coupled-GRPO.

    Example:
        diffucoder data prepare-acecode --data acecode.jsonl --out hard.jsonl --difficulty hard

    Attributes:
        task: what to do.
        data: JSONL file with AceCode's rows: id, source, question, test_cases, inferences.
        out: JSONL file to write: prompt (chat messages), test_cases, id, source.
        difficulty: hard is what DiffuCoder was trained on; medium and easy lie above.
    """

    task: tyro.conf.Positional[Literal["prepare-acecode"]]
    data: Path
    out: Path
    difficulty: Literal["hard", "medium", "easy"] = "hard"

    def run(self) -> int:
        terminal.show_log()
        from jax_lm.data.acecode import prepare

        print(prepare(self.data, self.out, self.difficulty))
        return 0

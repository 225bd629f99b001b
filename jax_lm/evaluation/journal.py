"""Journal of an evaluation: its settings, and a record per attempt, in a resumable run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jax_lm.checkpoints import huggingface
from jax_lm.evaluation.attempts import SANDBOX_ERROR, Attempt, Evaluator, Key
from jax_lm.evaluation.problems import Problem
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.run_folder import Record, RunLog, file_digest, weights_digest


class Journal(RunLog):
    """Attempts so far, by problem and sample."""

    name, kind = "attempts.jsonl", "attempt"

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.records: dict[Key, Record] = {}
        super().__init__(folder, settings)

    @property
    def done(self) -> set[Key]:
        """Attempts that need not be made again; a failure of the sandbox said nothing."""
        return {key for key, record in self.records.items() if record["outcome"] != SANDBOX_ERROR}

    def take(self, record: Record) -> None:
        self.records[record["name"], record["sample"]] = record

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt, on disk before this returns."""
        self.append(attempt.record())


def journal_settings(
    evaluator: Evaluator, problems: Sequence[Problem], *, data: Path | None, model: str | None, **others: Any
) -> Record:
    """Collect all that the results depend on, the bytes of data and weights included; `others` as they are.

    Raises:
        ValueError: the data cannot be read.
        CheckpointError: there is no such model.
    """
    return {
        **others,
        "data": None if data is None else f"{data.name} sha256:{file_digest(data)}",
        "problems": len(problems),
        "model": model or "built-in model",
        "weights": f"sampled sha256:{weights_digest(huggingface.resolve(model or BUILTIN_MODEL))}",
        "dtype": evaluator.engine.dtype,
        "prompts": evaluator.prompting.name,
        "batch_size": evaluator.batch_size,
        "seed": evaluator.seed,
        "generation": asdict(evaluator.options),
    }

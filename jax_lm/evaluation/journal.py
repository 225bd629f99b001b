"""Journal of an evaluation: its settings, and a record per attempt, in a resumable run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_lm.checkpoints import huggingface
from jax_lm.evaluation.attempts import SANDBOX_ERROR, Attempt, Evaluator, Key
from jax_lm.evaluation.problems import Problem
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.run_folder import Lines, Record, file_digest, weights_digest

ATTEMPTS = "attempts.jsonl"


class Journal:
    """Attempts so far, kept in a folder if there is one.

    Args:
        folder: made if it does not exist; None keeps everything in memory.
        settings: what the results depend on.

    Raises:
        ValueError: the folder belongs to a run with other settings, is in use, or is damaged.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.records: dict[Key, Record] = {}
        self.lines = None if folder is None else Lines(folder, ATTEMPTS, settings)
        for number, record in enumerate(self.lines.found if self.lines else (), 1):
            try:
                self.records[record["name"], record["sample"]] = record
            except (TypeError, KeyError) as error:
                self.close()
                raise ValueError(f"{folder}/{ATTEMPTS}: line {number} is no attempt ({error})") from error

    @property
    def done(self) -> set[Key]:
        """Attempts that need not be made again; a failure of the sandbox said nothing."""
        return {key for key, record in self.records.items() if record["outcome"] != SANDBOX_ERROR}

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt, on disk before this returns."""
        self.records[attempt.key] = attempt.record()
        if self.lines is not None:
            self.lines.add(self.records[attempt.key])

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def journal_settings(
    evaluator: Evaluator,
    problems: Sequence[Problem],
    *,
    suite: str,
    data: Path | None,
    model: str | None,
    n: int,
    timeout: float | None,
) -> Record:
    """Collect all that the results depend on, the bytes of data and weights included.

    Raises:
        ValueError: the data cannot be read.
        CheckpointError: there is no such model.
    """
    return {
        "suite": suite,
        "data": None if data is None else f"{data.name} sha256:{file_digest(data)}",
        "problems": len(problems),
        "n": n,
        "model": model or "built-in model",
        "weights": f"sampled sha256:{weights_digest(huggingface.resolve(model or BUILTIN_MODEL))}",
        "timeout": timeout,
        **evaluator.settings,
    }

"""Journal of an evaluation: one record per attempt, in a resumable run folder (`jax_lm.reports.run_folder`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_lm.evaluation.pass_rate import SANDBOX_ERROR, Attempt, Key
from jax_lm.reports.run_folder import Lines, Record

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
        record = record_of(attempt)
        if self.lines is not None:
            self.lines.add(record)
        self.records[attempt.key] = record

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record_of(attempt: Attempt) -> Record:
    """An attempt as plain data."""
    return {
        "name": attempt.problem.name,
        "sample": attempt.sample,
        "group": attempt.problem.group,
        "prompt": attempt.prompt,
        "suffix": attempt.problem.suffix,
        "completion": attempt.completion,
        "program": attempt.program,
        "outcome": attempt.outcome,
        "detail": attempt.detail,
        "tier": attempt.tier,
        "forwards": attempt.forwards,
        "seconds": round(attempt.seconds, 4),
    }

"""Problems whose answers can be executed: held-out tasks of the built-in corpus, HumanEval-infilling files.

Reads and prepares; knows neither models nor how programs are run.
"""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jax_lm.data.corpus import Task, draw_task

HELD_OUT_SEED = 20_000_000
"""Far from the seeds of training; the split itself does not depend on seeds."""

INFILLING_FIELDS = ("task_id", "entry_point", "prompt", "suffix", "canonical_solution", "test")
SINGLE_LINE = "SingleLineInfilling"


@dataclass(frozen=True)
class Problem:
    """Text with one gap, and statements that hold when the gap is filled right.

    Attributes:
        name: unique within its suite.
        group: what its result is counted under.
        prefix, suffix: text before the gap and after it.
        tests: statements to execute after the program.
        canonical: a right filling.
        is_line: the gap is one line, so that what comes after its end is cut off.
    """

    name: str
    group: str
    prefix: str
    suffix: str
    tests: tuple[str, ...]
    canonical: str
    is_line: bool = False

    def program(self, middle: str) -> str:
        """The whole text with its gap filled."""
        if self.is_line:
            middle = "".join(middle.splitlines(keepends=True)[:1])
        return self.prefix + middle + self.suffix


def held_out_problems(count: int) -> list[Problem]:
    """The first `count` distinct held-out tasks of the corpus; ValueError for fewer than one."""
    if count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    rng = random.Random(HELD_OUT_SEED)
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        task = draw_task(rng, held_out=True)
        tasks.setdefault(task.key, task)
    return [
        Problem(
            name=f"{task.family}/{number}",
            group="compositions" if task.family == "composition" else "families",
            prefix=task.prompt,
            suffix="",
            tests=tuple(task.tests),
            canonical=task.completion,
        )
        for number, task in enumerate(tasks.values())
    ]


def infilling_problems(path: Path, count: int | None = None) -> list[Problem]:
    """Problems of a HumanEval-infilling file (.jsonl or .jsonl.gz), evenly spread over it if `count` is given.

    Raises:
        ValueError: the file is missing or no such file, or `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    records = list(infilling_records(path))
    if not records:
        raise ValueError(f"{path}: holds no problem")
    count = min(count or len(records), len(records))
    chosen = [records[place * len(records) // count] for place in range(count)]
    return [
        Problem(
            name=record["task_id"],
            group=record["task_id"].split("/")[0],
            prefix=record["prompt"],
            suffix=record["suffix"],
            tests=(record["test"], f"check({record['entry_point']})"),
            canonical=record["canonical_solution"],
            is_line=record["task_id"].startswith(SINGLE_LINE),
        )
        for record in chosen
    ]


def infilling_records(path: Path) -> Iterator[dict[str, str]]:
    """Lines of the file that have every field, as text; ValueError names the first line that has not."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                absent = [name for name in INFILLING_FIELDS if not isinstance(record.get(name), str)]
                if absent:
                    raise ValueError(f"{path}: line {number} has no text {absent[0]!r}: no HumanEval-infilling file")
                yield record
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be read as HumanEval-infilling data ({error})") from error

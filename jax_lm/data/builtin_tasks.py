"""Tasks of the built-in model, as they ship: headers of small Python programs, their bodies, and their tests.

Their generator, `recipes/builtin` in the repository, is not part of the package. Both sides of its split are here, in
the order in which they were drawn: held-out tasks, on which the built-in model is measured, and training tasks, from
which reinforcement learning takes its prompts. Knows a file; standard library only.
"""

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

TASKS_FILE = Path(__file__).parents[1] / "assets" / "builtin" / "tasks.jsonl.gz"
"""One JSON object a line: the fields of a task, and "split"."""

Split = Literal["held-out", "training"]


@dataclass(frozen=True, kw_only=True)
class BuiltinTask:
    """One small programming problem: `prompt + completion` is a program that passes `tests`.

    Attributes:
        family: what kind of problem it is; "composition" for pipelines of list steps.
        key: what the train / held-out split hashes; tasks with one key differ only in phrasing.
        entry_point: name of the function or class.
        prompt: the header, with or without a docstring.
        completion: the body.
        description: the problem in a sentence.
        tests: statements that hold after the program; assertions, or the lines of one script.
    """

    family: str
    key: str
    entry_point: str
    prompt: str
    completion: str
    description: str
    tests: tuple[str, ...]


def held_out_tasks(count: int) -> list[BuiltinTask]:
    """Return the first `count` held-out tasks, distinct by key.

    Raises:
        ValueError: fewer than one, or more than there are.
    """
    return _first(count, shipped_tasks("held-out"), option="limit")


def training_tasks(count: int, seed: int = 0) -> list[BuiltinTask]:
    """Return `count` training tasks, distinct by key: the first of the file for seed 0, of a shuffled file for others.

    Raises:
        ValueError: fewer than one, or more than there are.
    """
    tasks = list(shipped_tasks("training"))
    if seed:
        random.Random(seed).shuffle(tasks)
    return _first(count, tasks, option="prompts")


@cache
def shipped_tasks(split: Split) -> tuple[BuiltinTask, ...]:
    """Read all tasks of one side of the split, in the order of the file."""
    with gzip.open(TASKS_FILE, "rt", encoding="utf-8") as lines:
        records = [record for record in map(json.loads, lines) if record.pop("split") == split]
    return tuple(BuiltinTask(**record | {"tests": tuple(record["tests"])}) for record in records)


def _first(count: int, tasks: Sequence[BuiltinTask], *, option: str) -> list[BuiltinTask]:
    """Take the first tasks, or raise a ValueError that names the option of the commands."""
    if count < 1:
        raise ValueError(f"{option}={count}: must be at least 1")
    if count > len(tasks):
        raise ValueError(f"{option}={count}: must be at most {len(tasks)}, the tasks that ship with the built-in model")
    return list(tasks[:count])

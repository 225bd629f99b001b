"""Prompts for reinforcement learning, with the columns that rewards read.

They come from JSON files, from the library `datasets`, or from the built-in tasks.
"""

import gzip
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jax_lm.config import Fields, Texts
from jax_lm.data.columns import (
    BadRowError,
    Columns,
    mapped_columns,
    parse_turn,
    require_encodable,
    row_fields,
)
from jax_lm.data.sources import WHOLE, open_source

# One JSON object per line: the fields of `BuiltinTask`, and "split".
TASKS_FILE = Path(__file__).parents[1] / "assets" / "builtin" / "tasks.jsonl.gz"

# The beginning of a statement that asserts: "assert f(1)", "assert(f(1))", "assert[1] == f()", but not
# "assert_equal(...)" or "asserted = 1". Comments may come first.
ASSERTION = re.compile(r"(?:\s|#.*\n)*assert\b")

Split = Literal["held-out", "training"]


@dataclass(frozen=True, kw_only=True)
class BuiltinTask:
    """One small programming problem: `prompt + completion` is a program that passes `tests`.

    Attributes:
        family: kind of problem; "composition" for pipelines of list steps.
        key: hashed for the split into training and held-out tasks; tasks with the same key differ
            only in their phrasing.
        entry_point: name of the function or class.
        prompt: header of the function or class, with or without a docstring.
        completion: body of the function or class.
        description: the problem in one sentence.
        tests: statements to run after the program: assertions, or the lines of one script.
    """

    family: str
    key: str
    entry_point: str
    prompt: str
    completion: str
    description: str
    tests: Texts


def load_tasks(count: int, split: Split = "held-out", seed: int = 0) -> list[BuiltinTask]:
    """Return `count` tasks of one split, distinct by key.

    Args:
        count: number of tasks.
        split: held-out or training.
        seed: 0 takes the first tasks of the file; other seeds shuffle the file first.

    Raises:
        ValueError: the split does not have as many. The message names the option `limit`.
    """
    tasks = list(read_shipped_tasks(split))
    if seed:
        random.Random(seed).shuffle(tasks)
    if not 1 <= count <= len(tasks):
        raise ValueError(
            f"limit={count}: must lie in [1, {len(tasks)}], the tasks that ship with the built-in model"
        )
    return tasks[:count]


@cache
def read_shipped_tasks(split: Split) -> tuple[BuiltinTask, ...]:
    """Read all tasks of one split, in the order of the file."""
    with gzip.open(TASKS_FILE, "rt", encoding="utf-8") as lines:
        # `pop`: "split" is no field of `BuiltinTask`.
        records = [record for record in map(json.loads, lines) if record.pop("split") == split]
    return tuple(BuiltinTask(**record | {"tests": tuple(record["tests"])}) for record in records)


def open_prompts(
    data: str | Path,
    columns: Columns = (),
    *,
    split: str = WHOLE,
    subset: str | None = None,
    plain: bool = False,
) -> dict[str, Fields]:
    """Read prompt rows, by their location: "prompt" (text, or chat messages) and further columns.

    Args:
        data: file, folder, or Hugging Face Hub id, as in `open_source`.
        columns: columns to rename to our names.
        split: split to read.
        subset: configuration of the data set, `name` in `datasets`.
        plain: accept a line that is a JSON string as a prompt.

    Raises:
        ValueError: the data cannot be read, have no such split or column, no row, or a row without
            a prompt.
    """
    rows = {}
    for where, line in open_source(str(data), 1, split=split, subset=subset).read(0):
        try:
            rows[where] = prompt_row(line, columns, plain=plain)
        except BadRowError as error:
            raise ValueError(f"{data}: {where}: {error}") from error
    if not rows:
        raise ValueError(f"{data}: holds no prompt")
    return rows


def prompt_row(line, columns: Columns, *, plain: bool) -> Fields:
    """Return the fields of a line with its prompt. Raises BadRowError if it has none."""
    row = row_fields(line, plain="prompt" if plain else None)
    row = row | mapped_columns(row, columns)
    prompt = row.get("prompt")
    if not prompt or not isinstance(prompt, str | list):
        raise BadRowError("has no 'prompt' that is text or chat messages")
    if isinstance(prompt, list):
        # what else a message has is for the chat template
        row["prompt"] = [turn | parse_turn(turn, "prompt") for turn in prompt]
    # The columns that an answer repeats.
    for name in ("prompt", "id", "task_id"):
        require_encodable(row.get(name), f"{name}: ")
    return row


def builtin_prompts(count: int, seed: int = 0) -> list[Fields]:
    """Return prompt rows of distinct built-in training tasks, to be completed.

    "prefix" repeats the prompt for the reward `completed_code`.

    Raises:
        ValueError: `count` is less than 1 or more than the number of tasks.
    """
    return [task_prompt(task) for task in load_tasks(count, "training", seed)]


def task_prompt(task: BuiltinTask) -> Fields:
    """Return the prompt row of a task; its completion is the body."""
    return {
        "prompt": task.prompt,
        "prefix": task.prompt,
        "test_cases": list(group_tests(task.tests)),
        "key": task.key,
    }


def group_tests(tests: Sequence[Any]) -> tuple[Any, ...]:
    """Group statements into tests; cases of input and output stay as they are.

    If all statements are assertions, each is one test. Otherwise they depend on each other and
    form a single test.
    """
    # ("assert f(1) == 2", "assert f(2) == 3") -> two tests
    # ("x = f(1)", "assert x == 2")            -> ("x = f(1)\nassert x == 2",)
    statements = [test for test in tests if isinstance(test, str)]
    if all(map(ASSERTION.match, statements)):
        return tuple(tests)
    return ("\n".join(statements), *(test for test in tests if not isinstance(test, str)))

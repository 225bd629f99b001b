"""Prompts for reinforcement learning, with what rewards read: from files, `datasets`, or the
built-in tasks.
"""

import gzip
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jax_lm.data.columns import BadRowError, Columns, require_columns
from jax_lm.data.sources import open_source, require_whole

# One JSON object a line: the fields of a task, and "split".
TASKS_FILE = Path(__file__).parents[1] / "assets" / "builtin" / "tasks.jsonl.gz"

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
    """Return the first `count` held-out tasks, distinct by key; ValueError: fewer than 1, or more
    than there are.
    """
    return _first(count, shipped_tasks("held-out"))


def training_tasks(count: int, seed: int = 0) -> list[BuiltinTask]:
    """Return `count` training tasks, distinct by key: the first of the file for seed 0, of a
    shuffled file for others.

    Raises:
        ValueError: fewer than one, or more than there are.
    """
    tasks = list(shipped_tasks("training"))
    if seed:
        random.Random(seed).shuffle(tasks)
    return _first(count, tasks)


@cache
def shipped_tasks(split: Split) -> tuple[BuiltinTask, ...]:
    """Read all tasks of one side of the split, in the order of the file."""
    with gzip.open(TASKS_FILE, "rt", encoding="utf-8") as lines:
        records = [record for record in map(json.loads, lines) if record.pop("split") == split]
    return tuple(BuiltinTask(**record | {"tests": tuple(record["tests"])}) for record in records)


def _first(count: int, tasks: Sequence[BuiltinTask]) -> list[BuiltinTask]:
    """Take the first tasks, or raise a ValueError that names the option of the commands."""
    if count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    if count > len(tasks):
        raise ValueError(
            f"limit={count}: must be at most {len(tasks)}, the tasks that ship with the built-in model"
        )
    return list(tasks[:count])


def open_prompts(
    data: str, columns: Columns = (), *, split: str, subset: str | None
) -> list[dict[str, Any]]:
    """Read the rows of JSON files, or of what the library `datasets` loads, with our names for
    these columns.

    Raises:
        ValueError: they cannot be read, have no such split or column, or one is no row with a
            prompt.
    """
    path = Path(data)
    if path.suffix == ".jsonl" or (path.is_file() and path.suffix not in (".json", ".parquet")):
        require_whole(data, split, subset)
        return read_prompts(path, columns=columns)
    source = open_source(data, None, split=split, subset=subset, streaming=False)
    lines = (line for part in range(source.parts) for line in source.read(part))
    return prompt_rows(lines, path, columns=columns)


def read_prompts(
    path: Path, *, option: str = "data", plain: bool = False, columns: Columns = ()
) -> list[dict[str, Any]]:
    """Read the rows of a JSONL file: "prompt" (text, or chat messages) and columns such as
    "test_cases".

    `option` is what an error calls the file; `plain` takes a line that is a string for its prompt.

    Raises:
        ValueError: the file cannot be read, is empty, or has a line that is no such row.
    """
    try:
        # By bytes: a text may hold line ends of Unicode's, which do not end a row.
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{option}={str(path)!r}: cannot be read ({error})") from error
    numbered = ((f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return prompt_rows(numbered, path, option=option, plain=plain, columns=columns)


def is_message(value: Any) -> bool:
    """Tell whether something is a chat message."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) for name in ("role", "content")
    )


def prompt_rows(
    lines: Iterable[tuple[str, Any]],
    path: Path,
    *,
    option: str = "data",
    plain: bool = False,
    columns: Columns = (),
) -> list[dict[str, Any]]:
    """Read rows with a prompt from lines of JSON, or what such lines say, each with where it
    stands; else ValueError.

    An element of an array, and a row of a data set, is what a line says.
    """
    rows = []
    for where, line in lines:
        try:
            row = json.loads(line.decode("utf-8-sig")) if isinstance(line, bytes) else line
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {where} is not JSON ({error})") from error
        if plain and isinstance(row, str):
            row = {"prompt": row}
        if isinstance(row, dict) and columns:
            try:
                require_columns(row, columns)
            except BadRowError as error:
                raise ValueError(f"{path}: {where} {error}") from error
            row = row | {name: row[column] for name, column in columns}
        if (
            not isinstance(row, dict)
            or not row.get("prompt")
            or not isinstance(row["prompt"], str | list)
        ):
            raise ValueError(f"{path}: {where} has no 'prompt' (text or chat messages)")
        if isinstance(row["prompt"], list) and not all(map(is_message, row["prompt"])):
            raise ValueError(
                f"{path}: {where} prompt: all messages must be objects with role and content that are text"
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"{option}={str(path)!r}: holds no prompt")
    return rows


def builtin_prompts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Read distinct training tasks of the built-in model, to be completed: "prefix" repeats the
    prompt for the reward `completed_code`.

    Raises:
        ValueError: fewer than one, or more than ship.
    """
    return [
        {
            "prompt": task.prompt,
            "prefix": task.prompt,
            "test_cases": tests_of(task.tests),
            "key": task.key,
        }
        for task in training_tasks(count, seed)
    ]


def tests_of(tests: tuple[str, ...]) -> list[str]:
    """Group statements into tests: assertions are tests of their own, statements that build on each
    other are one.
    """
    return list(tests) if all(test.startswith("assert ") for test in tests) else ["\n".join(tests)]

"""Prompts for reinforcement learning, with the columns that rewards read.

They come from JSON files, from the library `datasets`, or from the built-in tasks.
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

# One JSON object per line: the fields of `BuiltinTask`, and "split".
TASKS_FILE = Path(__file__).parents[1] / "assets" / "builtin" / "tasks.jsonl.gz"

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
    tests: tuple[str, ...]


def load_held_out_tasks(count: int) -> list[BuiltinTask]:
    """Return the first `count` held-out tasks, distinct by key.

    Raises:
        ValueError: `count` is less than 1 or more than the number of tasks.
    """
    return _first(count, read_shipped_tasks("held-out"))


def load_training_tasks(count: int, seed: int = 0) -> list[BuiltinTask]:
    """Return `count` training tasks, distinct by key.

    Args:
        count: number of tasks.
        seed: 0 takes the first tasks of the file; other seeds shuffle the file first.

    Raises:
        ValueError: `count` is less than 1 or more than the number of tasks.
    """
    tasks = list(read_shipped_tasks("training"))
    if seed:
        random.Random(seed).shuffle(tasks)
    return _first(count, tasks)


@cache
def read_shipped_tasks(split: Split) -> tuple[BuiltinTask, ...]:
    """Read all tasks of one split, in the order of the file."""
    with gzip.open(TASKS_FILE, "rt", encoding="utf-8") as lines:
        # `pop`: "split" is no field of `BuiltinTask`.
        records = [record for record in map(json.loads, lines) if record.pop("split") == split]
    return tuple(BuiltinTask(**record | {"tests": tuple(record["tests"])}) for record in records)


def _first(count: int, tasks: Sequence[BuiltinTask]) -> list[BuiltinTask]:
    """Return the first tasks. The ValueError names the command-line option `limit`."""
    if count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    if count > len(tasks):
        raise ValueError(
            f"limit={count}: must be at most {len(tasks)}, "
            "the tasks that ship with the built-in model"
        )
    return list(tasks[:count])


def open_prompts(
    data: str, columns: Columns = (), *, split: str, subset: str | None
) -> list[dict[str, Any]]:
    """Read prompt rows from JSON files or through the library `datasets`.

    Args:
        data: file, folder, or Hugging Face Hub id.
        columns: columns to rename to our names.
        split: split to read.
        subset: configuration of the data set, `name` in `datasets`.

    Raises:
        ValueError: the data cannot be read, has no such split or column, or contains a row without
            a prompt.
    """
    # JSON lines are read here, so that messages name the line; all else is opened as a source
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
    """Read the rows of a JSONL file: "prompt" (text, or chat messages) and further columns.

    Args:
        path: the file.
        option: name of the file in error messages.
        plain: accept a line that is a JSON string as a prompt.
        columns: columns to rename to our names.

    Raises:
        ValueError: the file cannot be read, is empty, or has a line without a prompt.
    """
    try:
        # Split as bytes: Unicode line separators inside a text do not end a row.
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{option}={str(path)!r}: cannot be read ({error})") from error
    numbered = ((f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    return prompt_rows(numbered, path, option=option, plain=plain, columns=columns)


def is_message(value: Any) -> bool:
    """Return whether a value is a chat message."""
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
    """Convert located lines to rows with a prompt.

    Args:
        lines: location (for error messages) and content of each line: UTF-8 JSON, or an already
            parsed value such as an element of a JSON array or a row of a data set.
        path: file in error messages.
        option: name of the file in error messages.
        plain: accept a string as a prompt.
        columns: columns to rename to our names.

    Raises:
        ValueError: a line has no prompt, or there is no line.
    """
    rows = []
    for where, line in lines:
        try:
            # utf-8-sig: Windows editors put a byte order mark in front.
            row = json.loads(line.decode("utf-8-sig")) if isinstance(line, bytes) else line
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {where} is not JSON ({error})") from error
        if plain and isinstance(row, str):
            row = {"prompt": row}
        # columns (("prompt", "question"),): {"question": q} -> {"question": q, "prompt": q}
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
                f"{path}: {where} prompt: "
                "all messages must be objects with role and content that are text"
            )
        # The columns that an answer repeats.
        repeated = [row["prompt"], row.get("id"), row.get("task_id")]
        try:
            json.dumps(repeated, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{path}: {where} prompt: not Unicode text: it holds half of a surrogate pair, or a "
                "byte that is not UTF-8"
            ) from None
        rows.append(row)
    if not rows:
        raise ValueError(f"{option}={str(path)!r}: holds no prompt")
    return rows


def builtin_prompts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return prompt rows of distinct built-in training tasks, to be completed.

    "prefix" repeats the prompt for the reward `completed_code`.

    Raises:
        ValueError: `count` is less than 1 or more than the number of tasks.
    """
    return [
        {
            "prompt": task.prompt,
            "prefix": task.prompt,
            "test_cases": group_tests(task.tests),
            "key": task.key,
        }
        for task in load_training_tasks(count, seed)
    ]


def group_tests(tests: tuple[str, ...]) -> list[str]:
    """Group statements into tests.

    If all statements are assertions, each is one test. Otherwise they depend on each other and
    form a single test.
    """
    # ("assert f(1) == 2", "assert f(2) == 3") -> two tests
    # ("x = f(1)", "assert x == 2")            -> ["x = f(1)\nassert x == 2"]
    return list(tests) if all(test.startswith("assert ") for test in tests) else ["\n".join(tests)]

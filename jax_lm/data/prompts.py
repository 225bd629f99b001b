"""Prompts for reinforcement learning, with the columns that rewards read: from a JSONL file or the built-in tasks."""

import json
from pathlib import Path
from typing import Any

from jax_lm.data.builtin_tasks import training_tasks


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a JSONL file: "prompt" (text, or chat messages) and columns such as "test_cases".

    Raises:
        ValueError: the file cannot be read, is empty, or has a line that is no such row.
    """
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data={str(path)!r}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict) or not row.get("prompt"):
            raise ValueError(f"{path}: line {number} has no 'prompt' (text or chat messages)")
        rows.append(row)
    if not rows:
        raise ValueError(f"data={str(path)!r}: holds no prompt")
    return rows


def builtin_prompts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Read distinct training tasks of the built-in model, to be completed: "prefix" repeats the prompt for the reward
    `completed_code`.

    Raises:
        ValueError: fewer than one, or more than ship.
    """
    return [
        {"prompt": task.prompt, "prefix": task.prompt, "test_cases": tests_of(task.tests), "key": task.key}
        for task in training_tasks(count, seed)
    ]


def tests_of(tests: tuple[str, ...]) -> list[str]:
    """Group statements into tests: assertions are tests of their own, statements that build on each other are one."""
    return list(tests) if all(test.startswith("assert ") for test in tests) else ["\n".join(tests)]

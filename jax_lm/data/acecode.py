"""Select AceCode-89K problems of one difficulty as prompts for coupled-GRPO.

Difficulty is measured by the pass rates of all answers by the two models in `JUDGES`. Hard problems
have a mean pass rate at or below the 20th percentile, medium ones lie between the 25th and the
75th, and easy ones at or above the 75th. Within a difficulty, a problem is selected only if its
standard deviation reaches the 40th percentile of all problems: if every answer gets the same
reward, there is nothing to learn from. DiffuCoder trains on the hard problems (section 4 of its
paper).
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_lm.data.columns import BadRowError
from jax_lm.data.conversations import convert_lines, read_file
from jax_lm.host.files import atomic_write

logger = logging.getLogger(__name__)

# Values of `model_name` in AceCode's `inferences` whose pass rates measure the difficulty.
JUDGES = ("qwen_coder_2.5", "llama3_instruct")
# Percentile that the standard deviation of a selected problem reaches.
LEAST_DEVIATION = 40
INDENT = "    "
Difficulty = Literal["hard", "medium", "easy"]


@dataclass(frozen=True)
class AceCodeProblem:
    """A row of AceCode, with the pass rates of the judges."""

    id: str
    source: str
    question: str
    test_cases: tuple[str, ...]
    rates: tuple[float, ...]
    best: str

    @classmethod
    def read(cls, fields: dict[str, Any]) -> "AceCodeProblem":
        """Parse a row. Raises BadRowError with the missing or malformed field."""
        # Checked field by field, so that the message names the one that is wrong.
        for name in ("id", "source", "question"):
            if not isinstance(fields.get(name), str):
                raise BadRowError(f"has no {name} that is text")
        tests = fields.get("test_cases")
        if (
            not isinstance(tests, list)
            or not tests
            or not all(isinstance(test, str) for test in tests)
        ):
            raise BadRowError("has no test_cases that are a list of texts")
        answers = fields.get("inferences")
        if not isinstance(answers, list) or not all(map(is_answer, answers)):
            raise BadRowError(
                "has no inferences with completion, model_name and a pass_rate in [0, 1]"
            )
        judged = [answer for answer in answers if answer["model_name"] in JUDGES]
        if not judged:
            raise BadRowError(f"has no inferences of {' or '.join(JUDGES)}")
        # The first of the best answers, whose header `rewrite_as_header` takes.
        best = max(answers, key=lambda answer: answer["pass_rate"])
        rates = tuple(float(answer["pass_rate"]) for answer in judged)
        return cls(
            fields["id"],
            fields["source"],
            fields["question"],
            tuple(tests),
            rates,
            best["completion"],
        )


def is_answer(answer: Any) -> bool:
    """Return whether a value is a valid element of `inferences`."""
    if not isinstance(answer, dict):
        return False
    rate = answer.get("pass_rate")
    # bool is a subclass of int: `true` in the JSON is not a rate of 1.
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
    return is_rate and all(
        isinstance(answer.get(name), str) for name in ("completion", "model_name")
    )


def select_difficulty(
    problems: Sequence[AceCodeProblem], difficulty: Difficulty
) -> list[AceCodeProblem]:
    """Return the problems of one difficulty, in their original order."""
    means = np.array([np.mean(problem.rates) for problem in problems])
    deviations = np.array([np.std(problem.rates) for problem in problems])
    # hard up to the 20th percentile, medium from the 25th to the 75th, easy from there on
    lowest, low, high = np.percentile(means, (20, 25, 75))
    belongs = {
        "hard": means <= lowest,
        "medium": (means > low) & (means < high),
        "easy": means >= high,
    }[difficulty]
    chosen = belongs & (deviations >= np.percentile(deviations, LEAST_DEVIATION))
    return [problems[index] for index in np.flatnonzero(chosen).tolist()]


def rewrite_as_header(problem: AceCodeProblem) -> str | None:
    """Rewrite the question as a function header to complete.

    Returns None if the question addresses the reader ("you"), or if the best answer does not begin
    with a function header.
    """
    if "you" in problem.question.lower() or not problem.best.startswith("def "):
        return None
    header = problem.best.splitlines()[0].rstrip()
    if not header.endswith(":"):
        return None
    # The question becomes a docstring: backslashes and triple quotes must not end or change it.
    text = problem.question.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    docstring = "\n".join(
        INDENT + line if line.strip() else "" for line in f'"""\n{text}\n"""'.splitlines()
    )
    return f"Please complete the following problem:\n```python\n{header}\n{docstring}\n```\n"


def problem_prompts(problem: AceCodeProblem) -> list[dict[str, Any]]:
    """Return the prompts of a problem: the question, and its rewritten form where there is one."""
    # One or two prompts with the same tests.
    texts = [problem.question, *filter(None, [rewrite_as_header(problem)])]
    columns = {"test_cases": list(problem.test_cases), "id": problem.id, "source": problem.source}
    return [{"prompt": [{"role": "user", "content": text}], **columns} for text in texts]


def prepare_acecode(data: Path, out: Path, difficulty: Difficulty) -> str:
    """Write the prompts of one difficulty as JSONL.

    Returns:
        A summary for the user: the numbers of prompts, problems and refused lines.

    Raises:
        ValueError: the file cannot be read, or contains no problem.
    """
    problems, refused = convert_lines(read_file(data), AceCodeProblem.read)
    for number, reason in refused:
        logger.warning("%s, line %d: %s", data, number, reason)
    if not problems:
        raise ValueError(
            f"data={str(data)!r}: holds no problem of AceCode ({len(refused)} lines refused)"
        )
    chosen = select_difficulty(problems, difficulty)
    rows = [row for problem in chosen for row in problem_prompts(problem)]
    with atomic_write(out) as path:
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
    written = f"{len(rows)} prompts of {len(chosen)} {difficulty} problems"
    return f"{out}: {written}, from {len(problems)} in {data} ({len(refused)} lines refused)"

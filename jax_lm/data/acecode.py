"""AceCode-89K as prompts for coupled-GRPO: problems of one difficulty, judged by how often two
models solved them.

A problem's pass rates are those of all answers by `JUDGES`. Hard problems have a mean of at most
the 20th percentile, medium ones between the 25th and the 75th, easy ones from the 75th on; of
these, those stay whose standard deviation reaches the 40th percentile of all problems, so that
there is something to learn from. DiffuCoder's data (section 4 of its paper) are the hard ones.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_lm.data.columns import BadRowError
from jax_lm.data.conversations import read_lines
from jax_lm.host.files import atomic_write

logger = logging.getLogger(__name__)

JUDGES = ("qwen_coder_2.5", "llama3_instruct")
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
        """Read a row; BadRowError says what it lacks."""
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
    if not isinstance(answer, dict):
        return False
    rate = answer.get("pass_rate")
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1
    return is_rate and all(
        isinstance(answer.get(name), str) for name in ("completion", "model_name")
    )


def of_difficulty(
    problems: Sequence[AceCodeProblem], difficulty: Difficulty
) -> list[AceCodeProblem]:
    """Choose the problems of a difficulty, in their order."""
    means = np.array([np.mean(problem.rates) for problem in problems])
    deviations = np.array([np.std(problem.rates) for problem in problems])
    lowest, low, high = np.percentile(means, (20, 25, 75))
    belongs = {
        "hard": means <= lowest,
        "medium": (means > low) & (means < high),
        "easy": means >= high,
    }[difficulty]
    chosen = belongs & (deviations >= np.percentile(deviations, LEAST_DEVIATION))
    return [problems[index] for index in np.flatnonzero(chosen).tolist()]


def rewritten(problem: AceCodeProblem) -> str | None:
    """Rewrite the question as a header to complete, if it addresses nobody and the best answer
    begins with one.
    """
    if "you" in problem.question.lower() or not problem.best.startswith("def "):
        return None
    header = problem.best.splitlines()[0].rstrip()
    if not header.endswith(":"):
        return None
    text = problem.question.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    docstring = "\n".join(
        INDENT + line if line.strip() else "" for line in f'"""\n{text}\n"""'.splitlines()
    )
    return f"Please complete the following problem:\n```python\n{header}\n{docstring}\n```\n"


def problem_prompts(problem: AceCodeProblem) -> list[dict[str, Any]]:
    """Make prompts of a problem: as it is, and rewritten where that can be done."""
    texts = [problem.question, *filter(None, [rewritten(problem)])]
    columns = {"test_cases": list(problem.test_cases), "id": problem.id, "source": problem.source}
    return [{"prompt": [{"role": "user", "content": text}], **columns} for text in texts]


def prepare_acecode(data: Path, out: Path, difficulty: Difficulty) -> str:
    """Write the prompts of a difficulty, and say how many there are.

    Raises:
        ValueError: the file cannot be read, or holds no problem.
    """
    problems, refused = read_lines(data, AceCodeProblem.read)
    for number, reason in refused:
        logger.warning("%s, line %d: %s", data, number, reason)
    if not problems:
        raise ValueError(
            f"data={str(data)!r}: holds no problem of AceCode ({len(refused)} lines refused)"
        )
    chosen = of_difficulty(problems, difficulty)
    rows = [row for problem in chosen for row in problem_prompts(problem)]
    with atomic_write(out) as path:
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
    written = f"{len(rows)} prompts of {len(chosen)} {difficulty} problems"
    return f"{out}: {written}, from {len(problems)} in {data} ({len(refused)} lines refused)"

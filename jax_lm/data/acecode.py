"""Select AceCode-89K problems of one difficulty as prompts for coupled-GRPO.

Difficulty is measured by the pass rates of all answers by the two models in `JUDGES`. Hard problems
have a mean pass rate at or below the 20th percentile, medium ones lie between the 25th and the
75th, and easy ones at or above the 75th. Within a difficulty, a problem is selected only if its
standard deviation reaches the 40th percentile of all problems: if every answer gets the same
reward, there is nothing to learn from. DiffuCoder trains on the hard problems (section 4 of its
paper).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np

from jax_lm.config import Fields, Floats, counted
from jax_lm.data.columns import BadRowError, has_form
from jax_lm.data.conversations import convert_lines
from jax_lm.data.sources import open_source
from jax_lm.host.files import write_rows_whole

logger = logging.getLogger(__name__)

# Values of `model_name` in AceCode's `inferences` whose pass rates measure the difficulty.
JUDGES = ("qwen_coder_2.5", "llama3_instruct")
# Percentile that the standard deviation of a selected problem reaches.
LEAST_DEVIATION = 40
INDENT = "    "
Difficulty = Literal["hard", "medium", "easy"]


# The columns of a row, and their forms.
ANSWER = {"completion": str, "model_name": str, "pass_rate": int | float}
FORMS = {"id": str, "source": str, "question": str, "test_cases": [str], "inferences": [ANSWER]}


@dataclass(frozen=True)
class AceCodeProblem:
    """A row of AceCode.

    Attributes:
        fields: the row.
        rates: pass rates of the judges' answers.
        best: the first of the best answers, whose header `rewrite_as_header` takes.
    """

    fields: Fields
    rates: Floats
    best: str

    @classmethod
    def read(cls, fields: Fields) -> "AceCodeProblem":
        """Parse a row. Raises BadRowError with the missing or malformed field."""
        for name, form in FORMS.items():
            if not fields.get(name) or not has_form(fields[name], form):
                raise BadRowError(f"has no {name} as in AceCode")
        answers = fields["inferences"]
        rates = tuple(answer["pass_rate"] for answer in answers if answer["model_name"] in JUDGES)
        if not rates or not all(0 <= answer["pass_rate"] <= 1 for answer in answers):
            raise BadRowError(
                f"has no inferences of {' or '.join(JUDGES)} with a pass_rate in [0, 1]"
            )
        return cls(fields, rates, max(answers, key=itemgetter("pass_rate"))["completion"])


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
    question = problem.fields["question"]
    if "you" in question.lower() or not problem.best.startswith("def "):
        return None
    header = problem.best.splitlines()[0].rstrip()
    if not header.endswith(":"):
        return None
    # The question becomes a docstring: backslashes and triple quotes must not end or change it.
    text = question.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    docstring = "\n".join(
        INDENT + line if line.strip() else "" for line in f'"""\n{text}\n"""'.splitlines()
    )
    return f"Please complete the following problem:\n```python\n{header}\n{docstring}\n```\n"


def problem_prompts(problem: AceCodeProblem) -> list[Fields]:
    """Return the prompts of a problem: the question, and its rewritten form where there is one."""
    # One or two prompts with the same tests.
    texts = [problem.fields["question"], *filter(None, [rewrite_as_header(problem)])]
    columns = {name: problem.fields[name] for name in ("test_cases", "id", "source")}
    return [{"prompt": [{"role": "user", "content": text}], **columns} for text in texts]


def prepare_acecode(data: Path, out: Path, difficulty: Difficulty) -> str:
    """Write the prompts of one difficulty as JSONL.

    Returns:
        A summary for the user: the numbers of prompts, problems and refused lines.

    Raises:
        ValueError: the file cannot be read, or contains no problem.
    """
    problems = []
    refused = 0
    for where, problem in convert_lines(open_source(str(data), 1).read(0), AceCodeProblem.read):
        if isinstance(problem, ValueError):
            refused += 1
            logger.warning("%s, %s: %s", data, where, problem)
        else:
            problems.append(problem)
    if not problems:
        raise ValueError(
            f"data={str(data)!r}: holds no problem of AceCode ({counted(refused, 'line')} refused)"
        )
    chosen = select_difficulty(problems, difficulty)
    rows = [row for problem in chosen for row in problem_prompts(problem)]
    write_rows_whole(out, rows)
    return (
        f"{out}: {len(rows)} prompts of {len(chosen)} {difficulty} problems, "
        f"from {len(problems)} in {data} ({counted(refused, 'line')} refused)"
    )

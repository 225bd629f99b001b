"""Problems whose answers can be executed: held-out tasks of the built-in model, and published
benchmark files.

Reads and prepares; knows neither models nor how programs are run. The files are those of
openai/human-eval, openai/human-eval-infilling, google-research MBPP, evalplus (OriginFmt) and
LiveCodeBench, as published.
"""

import ast
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from jax_lm.data.prompts import load_held_out_tasks
from jax_lm.rewards.cases import row_tests
from untrusted.cases import PRELUDE, Test

Suite = Literal["humaneval", "humaneval+", "mbpp", "mbpp+", "infilling", "livecodebench"]
SINGLE_LINE = "SingleLineInfilling"
# Texts at which the completion of a function's body has left the function.
FUNCTION_STOPS = (
    "\nclass ", "\ndef ", "\nif ", "\nfor ", "\nprint(", "\nassert ", "\nimport ", "\nfrom ", "\n#", "\n@", "\n```",
)  # fmt: skip

# Texts at which a completed program has begun to test itself, or the next problem.
SCRIPT_STOPS = ('\n"""', "\nassert ", "\nprint(", "\nif __name__", "\n```")

READ_AND_WRITE = (
    "Write a Python program that reads standard input and prints the answer to standard output.\n"
)

# EvalPlus calls a function up to a thousand times, with inputs that are meant to take long: the
# canonical solution of
# MBPP/599 alone adds numbers for some 40 seconds.
PLUS_SECONDS = 60.0

# In EvalPlus's HumanEval tests, and not in the original ones.
GENERATED_INPUTS = "\n    inputs = ["

UNCHECKED = "exact_match = exp == (out is not None)\n"
CHECKED = (UNCHECKED, f"{UNCHECKED}    assert exact_match\n")
# Errors of the tests as generated upstream, and what stands here instead.
MENDED = {
    # Unpacks the answer where the coefficients belong; EvalPlus itself checks what stands here
    # instead.
    "HumanEval/32": (
        "assert _poly(*candidate(*inp), inp) <= 0.0001",
        "assert abs(_poly(*inp, candidate(*inp))) <= 0.0001",
    ),
    # Five inputs have answers of 6 to 128 million strings, which no sandbox carries; the other 107
    # stay.
    "MBPP/255": ("in enumerate(inputs):", "in enumerate(inp for inp in inputs if inp[1] < 70):"),
    # Compare the answer, and then say nothing of it: whatever is returned passes.
    "MBPP/737": CHECKED,
    "MBPP/787": CHECKED,
    "MBPP/794": CHECKED,
}


@dataclass(frozen=True)
class Problem:
    """Text with one gap, and statements that hold when the gap is filled right.

    Attributes:
        name: unique within its suite.
        group: what its result is counted under.
        prefix, suffix: text before the gap and after it.
        tests: statements to execute after the program, or cases of input and output.
        canonical: a right filling; empty where none is published.
        empty: a filling of the right form that solves nothing; None where there is none.
        is_line: the gap is one line, so that what comes after its end is cut off.
        stops: texts that are outside of the gap, so that a completion ends before the first of
            them.
        question: what a chat model is asked; empty for problems that are no question.
        preamble: what its program needs before it: imports and functions of the problem.
        seconds: wall clock that its tests may take.
    """

    name: str
    group: str
    prefix: str
    suffix: str
    tests: tuple[Test, ...]
    canonical: str
    empty: str | None = None
    is_line: bool = False
    stops: tuple[str, ...] = ()
    question: str = ""
    preamble: str = ""
    seconds: float = 5.0

    def filling(self, completion: str) -> str:
        """Cut a completion to what belongs into the gap."""
        if self.is_line:
            completion = "".join(completion.splitlines(keepends=True)[:1])
        # A completion may begin outside, after a line break that is the prefix's.
        lead = "\n" if self.prefix.endswith("\n") else ""
        ends = [end for stop in self.stops if (end := f"{lead}{completion}".find(stop)) >= 0]
        return f"{lead}{completion}"[len(lead) : min(ends)] if ends else completion

    def program(self, middle: str) -> str:
        """Fill the gap of the whole text."""
        return self.prefix + middle + self.suffix


def load_held_out_problems(count: int) -> list[Problem]:
    """Read the first `count` held-out tasks of the built-in model; ValueError for fewer than one,
    or more than ship.
    """
    return [
        Problem(
            name=f"{task.family}/{number}",
            group="compositions" if task.family == "composition" else "families",
            prefix=task.prompt,
            suffix="",
            tests=task.tests,
            canonical=task.completion,
            empty="\n    pass\n",
        )
        for number, task in enumerate(load_held_out_tasks(count))
    ]


HELD_OUT_COUNT = 300


def suite_problems(
    suite: Suite | Literal["builtin"], data: Path | None, count: int | None = None
) -> tuple[list[Problem], int]:
    """Choose `count` problems of a suite, evenly spread over its file, or all; also say how many
    the suite has.

    ValueError: the file is missing or none of this benchmark's, given for builtin, or `count` is
    below 1.
    """
    if (suite == "builtin") != (data is None):
        need = f"needs a file: {SUITES[suite][1]}" if suite in SUITES else "takes none"
        raise ValueError(f"data={data}: {suite} {need}")
    if suite == "builtin" or data is None:
        problems = load_held_out_problems(HELD_OUT_COUNT if count is None else count)
        return problems, max(HELD_OUT_COUNT, len(problems))
    return file_problems(suite, data, count), len(file_problems(suite, data))


def file_problems(suite: Suite, path: Path, count: int | None = None) -> list[Problem]:
    """Read a benchmark's file (.jsonl or .jsonl.gz); `count` problems are evenly spread over it.

    ValueError: the file is missing or none of this benchmark's, or `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    problems: list[Problem] = []
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise LookupError("is no object")
                problems.append(SUITES[suite][0](record))
    except LookupError as error:
        raise ValueError(
            f"{path}: line {len(problems) + 1} {error.args[0]}: no {suite} data"
        ) from error
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as {suite} data ({error})") from error
    if not problems:
        raise ValueError(f"{path}: holds no problem")
    count = min(count or len(problems), len(problems))
    return [problems[index * len(problems) // count] for index in range(count)]


def text(record: dict[str, Any], *names: str) -> str:
    """Take the first of these fields that is there; LookupError if it is no text."""
    value = next((record[name] for name in names if record.get(name) is not None), None)
    if not isinstance(value, str):
        raise LookupError(f"has no text {names[0]!r}")
    return value


def texts(record: dict[str, Any], name: str, *, default: list[str] | None = None) -> list[str]:
    """Take a field; LookupError if it is no list of texts."""
    value = record.get(name, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise LookupError(f"has no list of texts {name!r}")
    return value


def infilling(record: dict[str, Any]) -> Problem:
    """Read a line of a HumanEval-infilling file."""
    name, entry_point = text(record, "task_id"), text(record, "entry_point")
    return Problem(
        name=name,
        group=name.split("/")[0],
        prefix=text(record, "prompt"),
        suffix=text(record, "suffix"),
        tests=(text(record, "test"), f"check({entry_point})"),
        canonical=text(record, "canonical_solution"),
        is_line=name.startswith(SINGLE_LINE),
        seconds=20.0,
    )


def humaneval(record: dict[str, Any], *, plus: bool = False) -> Problem:
    """Read a line of HumanEval, or of HumanEval+ in its OriginFmt: a gap at the end."""
    problem = infilling(record | {"suffix": ""})
    test, call = text(record, "test"), problem.tests[-1]
    if plus != (GENERATED_INPUTS in test):
        raise LookupError(f"has {'only the original' if plus else 'generated'} tests")
    return replace(
        problem,
        group="HumanEval+" if plus else "HumanEval",
        tests=(mended(problem.name, test), call),
        empty="    pass\n",
        stops=FUNCTION_STOPS,
        question=f"Please complete the following problem:\n```\n{problem.prefix.strip()}\n```\n",
        preamble=before_function(problem.prefix, record["entry_point"]),
        seconds=PLUS_SECONDS if plus else problem.seconds,
    )


def mbpp(record: dict[str, Any], *, plus: bool = False) -> Problem:
    """Read a line of MBPP, of its sanitized part, or of MBPP+ in its OriginFmt.

    The code stands before `test_setup_code`: the set-up of tasks 367 and 927 uses the classes of
    the solution.
    """
    name, code, asserts = (
        f"MBPP/{record.get('task_id')}",
        text(record, "code"),
        texts(record, "test_list"),
    )
    if not asserts:
        raise LookupError("has no test in 'test_list'")
    prompt = f'"""\n{text(record, "text", "prompt").strip()}\n{asserts[0]}\n"""\n'
    # As one script: Python's own comparisons, as in the published harness.
    checks = (
        [mended(name, text(record, "test"))]
        if plus
        else [record.get("test_setup_code") or "", *asserts]
    )
    named = [
        node.name
        for node in parsed(code, "code")
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return Problem(
        name=name,
        group="MBPP+" if plus else "MBPP",
        prefix=prompt,
        suffix="",
        tests=("\n".join([*texts(record, "test_imports", default=[]), *checks]).strip(),),
        canonical=code,
        empty="".join(f"def {each}(*_, **__):\n    pass\n" for each in named),
        stops=SCRIPT_STOPS,
        question=f"```\n{prompt.strip()}\n```\n",
        seconds=PLUS_SECONDS if plus else 20.0,
    )


def livecodebench(record: dict[str, Any]) -> Problem:
    """Read a line of LiveCodeBench's code generation. The words of the question are ours, the
    limits the benchmark's: six seconds for a case, and a program may take for granted what the
    published harness imports.
    """
    content, starter = text(record, "question_content"), text(record, "starter_code").rstrip()
    try:
        tests = tuple(row_tests(record))
    except ValueError as error:
        raise LookupError(f"cannot be judged ({error})") from error
    if not tests:
        raise LookupError("has no test")
    task = f"Complete this class:\n```python\n{starter}\n```\n" if starter else READ_AND_WRITE
    docstring = f"{content}\n\n{task}".replace('"""', "'''")
    return Problem(
        name=text(record, "question_id"),
        group=f"LiveCodeBench {text(record, 'difficulty')}",
        prefix=f'{PRELUDE}\nr"""\n{docstring}"""\n' + (f"{starter}\n        " if starter else ""),
        suffix="",
        tests=tests,
        canonical="",
        empty="pass\n",
        stops=("\n```",),
        question=f"{content}\n\n{task}",
        preamble=PRELUDE,
        seconds=6.0,
    )


def mended(name: str, test: str) -> str:
    """Mend the flaw that is known of a test."""
    return test.replace(*MENDED[name]) if name in MENDED else test


def before_function(prompt: str, name: str) -> str:
    """Cut from a prompt what stands before the function that it asks for: imports, functions to be
    used.
    """
    body = parsed(f"{prompt}\n    pass\n", "a prompt")
    starts = [
        node.lineno for node in body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if not starts:
        raise LookupError(f"has a prompt without the function {name!r}")
    return "".join(prompt.splitlines(keepends=True)[: starts[-1] - 1])


def parsed(program: str, kind: str) -> list[ast.stmt]:
    """Parse a program; LookupError if it is none."""
    try:
        return ast.parse(program).body
    except SyntaxError as error:
        raise LookupError(f"has {kind} that is no Python ({error.msg})") from error


# How a line of each suite's file is read, and the file, for who has given none.
SUITES: dict[str, tuple[Callable[[dict[str, Any]], Problem], str]] = {
    "humaneval": (humaneval, "HumanEval.jsonl.gz of github.com/openai/human-eval"),
    "humaneval+": (
        partial(humaneval, plus=True),
        "HumanEvalPlus-OriginFmt.jsonl.gz of github.com/evalplus/humanevalplus_release",
    ),
    "mbpp": (
        mbpp,
        "mbpp.jsonl of github.com/google-research/google-research, or MbppPlus-OriginFmt.jsonl.gz",
    ),
    "mbpp+": (
        partial(mbpp, plus=True),
        "MbppPlus-OriginFmt.jsonl.gz of github.com/evalplus/mbppplus_release",
    ),
    "infilling": (infilling, "a file of github.com/openai/human-eval-infilling"),
    "livecodebench": (
        livecodebench,
        "test.jsonl of huggingface.co/datasets/livecodebench/code_generation_lite",
    ),
}

"""Problems with executable tests: the built-in model's held-out tasks, and published benchmarks.

The files are those of openai/human-eval, openai/human-eval-infilling, google-research MBPP,
evalplus (OriginFmt) and LiveCodeBench, as published. Knows neither models nor how programs are
run.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from jax_lm.config import Fields, Texts
from jax_lm.data.columns import BadRowError, has_form, require_encodable, row_fields
from jax_lm.data.prompts import load_tasks
from jax_lm.data.sources import JsonFiles
from jax_lm.rewards.cases import row_tests
from untrusted.cases import PRELUDE, Test

Suite = Literal["humaneval", "humaneval+", "mbpp", "mbpp+", "infilling", "livecodebench"]
# Prefix of the names of infilling problems whose gap is one line.
SINGLE_LINE = "SingleLineInfilling"
# The completion of a function's body ends before the first of these texts.
FUNCTION_STOPS = (
    "\nclass ", "\ndef ", "\nif ", "\nfor ", "\nprint(", "\nassert ", "\nimport ", "\nfrom ",
    "\n#", "\n@", "\n```",
)  # fmt: skip

# A completed program ends before these texts, with which it would test itself or begin the next
# problem.
SCRIPT_STOPS = ('\n"""', "\nassert ", "\nprint(", "\nif __name__", "\n```")

READ_AND_WRITE = (
    "Write a Python program that reads standard input and prints the answer to standard output.\n"
)

# EvalPlus calls a function up to a thousand times, with inputs that are meant to take long: even
# the canonical solution of MBPP/599 runs for some 40 seconds.
PLUS_SECONDS = 60.0

# Occurs in EvalPlus's HumanEval tests but not in the original ones.
GENERATED_INPUTS = "\n    inputs = ["

# Some generated tests compute this value but never assert it.
UNCHECKED = "exact_match = exp == (out is not None)\n"
CHECKED = (UNCHECKED, f"{UNCHECKED}    assert exact_match\n")
# Replacements for errors in the tests as generated upstream.
REPAIRS = {
    # The test unpacks the answer in place of the coefficients. The replacement is the check of
    # EvalPlus itself.
    "HumanEval/32": (
        "assert _poly(*candidate(*inp), inp) <= 0.0001",
        "assert abs(_poly(*inp, candidate(*inp))) <= 0.0001",
    ),
    # Five inputs have answers of 6 to 128 million strings, too many for any sandbox. The other 107
    # inputs remain.
    "MBPP/255": ("in enumerate(inputs):", "in enumerate(inp for inp in inputs if inp[1] < 70):"),
    # These tests compare the answer but ignore the result: any return value passes.
    "MBPP/737": CHECKED,
    "MBPP/787": CHECKED,
    "MBPP/794": CHECKED,
}


@dataclass(frozen=True)
class Problem:
    """A text with one gap, and tests of the program with the gap filled.

    Attributes:
        name: name, unique within the suite.
        group: group under which results are reported.
        prefix: text before the gap.
        suffix: text after the gap.
        tests: statements to execute after the program, or cases of input and output.
        canonical: a correct filling; empty if none is published.
        empty: a well-formed filling that solves nothing; None if there is none.
        is_line: the gap is one line: a completion is truncated at its first line break.
        stops: a completion is truncated before the first of these texts.
        question: message to a chat model; empty for problems that are not questions.
        preamble: code that must precede a chat model's program: imports and functions of the
            problem.
        seconds: wall-clock limit of each test.
        canary: as in `untrusted.Limits`.
    """

    name: str
    group: str
    prefix: str
    suffix: str
    tests: tuple[Test, ...]
    canonical: str
    empty: str | None = None
    is_line: bool = False
    stops: Texts = ()
    question: str = ""
    preamble: str = ""
    seconds: float = 5.0
    canary: bool = True

    def filling(self, completion: str) -> str:
        """Return the part of a completion that fills the gap."""
        if self.is_line:
            # the line and its break
            completion = "".join(completion.partition("\n")[:2])
        # Stops begin with a line break, which may be the last character of the prefix: prefix
        # "...\n", completion "def g(): ..." -> the stop "\ndef " is at 0, and the filling is empty.
        lead = "\n" if self.prefix.endswith("\n") else ""
        whole = lead + completion
        ends = [whole.find(stop) for stop in self.stops if stop in whole]
        return whole[len(lead) : min(ends, default=None)]

    def program(self, middle: str) -> str:
        """Return the text with the gap filled."""
        return self.prefix + middle + self.suffix


Problems = Sequence[Problem]


def load_held_out_problems(count: int) -> list[Problem]:
    """Return the first `count` held-out tasks of the built-in model as problems.

    Raises:
        ValueError: `count` is less than 1 or more than the number of tasks.
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
        for number, task in enumerate(load_tasks(count))
    ]


# Held-out tasks in an evaluation, if no count is set.
HELD_OUT_COUNT = 300


def suite_problems(
    suite: Suite | Literal["builtin"], data: Path | None, count: int | None = None
) -> tuple[list[Problem], int]:
    """Read the problems of a suite.

    Args:
        suite: name of the suite.
        data: file of the suite; None for builtin.
        count: number of problems: evenly spread over the file (None for all), or the first ones of
            builtin (None for HELD_OUT_COUNT).

    Returns:
        The problems, and the size of the suite; of builtin, at least HELD_OUT_COUNT.

    Raises:
        ValueError: the file is missing or is not of this benchmark, a file is set for builtin, or
            `count` is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    if (suite == "builtin") != (data is None):
        need = f"needs a file: {SUITES[suite][1]}" if suite in SUITES else "takes none"
        raise ValueError(f"data={data}: {suite} {need}")
    if data is None:
        problems = load_held_out_problems(count or HELD_OUT_COUNT)
        return problems, max(HELD_OUT_COUNT, len(problems))
    problems = file_problems(suite, data)
    total = len(problems)
    # 3 of 10 problems: indices 0, 3, 6
    count = min(count or total, total)
    return [problems[index * total // count] for index in range(count)], total


def file_problems(suite: str, path: Path) -> list[Problem]:
    """Read a benchmark's file (.jsonl or .jsonl.gz).

    Raises:
        ValueError: the file is missing or is not of this benchmark.
    """
    problems: dict[str, Problem] = {}
    if not path.is_file():
        raise ValueError(f"{path}: cannot be read, as it is no file")
    for where, line in JsonFiles.of([path], 1).read(0):
        try:
            record = row_fields(line)
            require_encodable(record)
            problem = SUITES[suite][0](record)
            if problem.name in problems:
                raise BadRowError(f"repeats {problem.name!r}")
            problems[problem.name] = problem
        except BadRowError as error:
            raise ValueError(f"{path}: {where}: {error}: not {suite} data") from error
    if not problems:
        raise ValueError(f"{path}: contains no problems")
    return list(problems.values())


def text(record: Fields, *names: str) -> str:
    """Return the first of these fields that is present. Raises BadRowError if it is not a text."""
    value = next((record[name] for name in names if record.get(name) is not None), None)
    if not isinstance(value, str):
        raise BadRowError(f"has no text {names[0]!r}")
    return value


def texts(record: Fields, name: str, *, default: list[str] | None = None) -> list[str]:
    """Return a field. Raises BadRowError if it is not a list of texts."""
    value = record.get(name, default)
    if not has_form(value, [str]):
        raise BadRowError(f"has no list of texts {name!r}")
    return value


def infilling(record: Fields) -> Problem:
    """Convert a record of HumanEval-infilling."""
    name = text(record, "task_id")
    entry_point = text(record, "entry_point")
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


def humaneval(record: Fields, *, plus: bool = False) -> Problem:
    """Convert a record of HumanEval, or of HumanEval+ in its OriginFmt: the gap is at the end."""
    # the same fields as of infilling, but for the suffix
    problem = infilling(record | {"suffix": ""})
    test = text(record, "test")
    if plus != (GENERATED_INPUTS in test):
        raise BadRowError(f"has {'only the original' if plus else 'generated'} tests")
    return replace(
        problem,
        group="HumanEval+" if plus else "HumanEval",
        tests=(repair_test(problem.name, test), problem.tests[-1]),
        empty="    pass\n",
        stops=FUNCTION_STOPS,
        question=f"Please complete the following problem:\n```\n{problem.prefix.strip()}\n```\n",
        preamble=before_function(problem.prefix, record["entry_point"]),
        seconds=PLUS_SECONDS if plus else problem.seconds,
    )


def mbpp(record: Fields, *, plus: bool = False) -> Problem:
    """Convert a record of MBPP, of its sanitized part, or of MBPP+ in its OriginFmt.

    `test_setup_code` runs after the program, not before: in tasks 367 and 927 it uses classes of
    the solution.
    """
    name = f"MBPP/{record.get('task_id')}"
    code = text(record, "code")
    asserts = texts(record, "test_list")
    if not asserts:
        raise BadRowError("has no test in 'test_list'")
    prompt = f'"""\n{text(record, "text", "prompt").strip()}\n{asserts[0]}\n"""\n'
    # The tests run as one script and not as separate assertions, as in the published harness.
    checks = (
        [repair_test(name, text(record, "test"))]
        if plus
        else [record.get("test_setup_code") or "", *asserts]
    )
    names = [
        node.name
        for node in parse_program(code, "code")
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    return Problem(
        name=name,
        group="MBPP+" if plus else "MBPP",
        prefix=prompt,
        suffix="",
        tests=("\n".join([*texts(record, "test_imports", default=[]), *checks]).strip(),),
        canonical=code,
        empty="".join(f"def {defined}(*_, **__):\n    pass\n" for defined in names),
        stops=SCRIPT_STOPS,
        question=f"```\n{prompt.strip()}\n```\n",
        seconds=PLUS_SECONDS if plus else 20.0,
    )


def livecodebench(record: Fields) -> Problem:
    """Convert a record of LiveCodeBench's code generation.

    The wording of the question is ours. The limits are those of the benchmark: six seconds for a
    case, and a program may use the imports of the published harness.
    """
    content = text(record, "question_content")
    starter = text(record, "starter_code").rstrip()
    try:
        tests = tuple(row_tests(record))
    except ValueError as error:
        raise BadRowError(f"cannot be judged ({error})") from error
    if not tests:
        raise BadRowError("has no test")
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


def repair_test(name: str, test: str) -> str:
    """Return the test of a problem with its known error corrected; others stay as they are."""
    return test.replace(*REPAIRS[name]) if name in REPAIRS else test


def before_function(prompt: str, name: str) -> str:
    """Return the part of a prompt before the requested function: imports and helper functions.

    Raises:
        BadRowError: the prompt is not Python, or does not contain the function.
    """
    # A prompt ends with the docstring of the function: `pass` completes it, so that it parses.
    body = parse_program(f"{prompt}\n    pass\n", "a prompt")
    starts = [
        node.lineno for node in body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if not starts:
        raise BadRowError(f"has a prompt without the function {name!r}")
    return "".join(prompt.splitlines(keepends=True)[: starts[-1] - 1])


def parse_program(program: str, kind: str) -> list[ast.stmt]:
    """Parse a program. Raises BadRowError if it is not Python."""
    try:
        return ast.parse(program).body
    except SyntaxError as error:
        raise BadRowError(f"has {kind} that is not Python ({error.msg})") from error


# Converter of a record of each suite, and the name of its file for the error if it is missing.
SUITES: dict[str, tuple[Callable[[Fields], Problem], str]] = {
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

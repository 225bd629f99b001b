"""Cases: the input of a program and its expected output, compared in the parent process.

    Case("1 2\\n", "3\\n")                              a run: standard input, expected standard output
    Case("[1, 2]\\n3", "6", function="total")           a call: arguments and result as JSON

Knows texts, but not how a program is run (`runner`). Imports the standard library only.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from os.path import commonprefix
from typing import Any, Literal

Comparison = Literal["exact", "tolerant"]

# Number of bytes that a program may write to standard output; a case with more output fails.
MAX_OUTPUT = 16 * 2**20

# Largest difference of a number from the expected one. It is relative if the expected one has a
# fraction and exceeds 1, as most contests state, and absolute otherwise: relative to a whole
# number, it would let 50000000000000001 pass for 50000000000000000. LiveCodeBench's checker demands
# equal decimals; those of APPS and TACO (numpy's allclose) and of CodeContests allow 1e-5.
TOLERANCE = Decimal("1e-6")

# Tokens that are compared as numbers; all others are compared as text. Longer numbers are not among
# them, so that a program cannot make the comparison slow. Nor are tokens with a plus sign or a
# leading zero, such as telephone numbers, dates and bits: 007 is not 7.
NUMBER = re.compile(
    r"-?(?:(?:0|[1-9][0-9]{0,399})(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?"
)

MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools"
    " operator io sys json typing"
)
# The imports that LiveCodeBench's harness puts before a program, as LeetCode does: its starter code
# uses List and imports nothing. They are for functions to call. A program to run has its own.
PRELUDE = "\n".join(
    [f"from {name} import *" for name in f"{MODULES} builtins".split()]
    + [f"import {name}" for name in MODULES.split()]
)

# Number of characters of a line that are quoted.
QUOTED_LENGTH = 60


@dataclass(frozen=True)
class Case:
    """The input of a program and its expected output.

    Attributes:
        input: for a run of the program as `__main__`, its standard input; for a call, its arguments
            as one JSON value per line.
        output: for a run, its standard output; for a call, its result as JSON.
        comparison: for a run, `exact` means equal except for one newline at the end. `tolerant`
            means equal tokens in each line, with numbers equal within `TOLERANCE`; white space and
            blank lines around the whole output do not count. For the result of a call, `exact` is
            ==. `tolerant` also accepts a value in place of a list of that value alone, since APPS
            and TACO wrap some of their results. A tuple equals the list of its values, as in the
            harnesses of both and of LiveCodeBench.
        function: function to call, or method of the program's class Solution; empty for a run.
    """

    input: str
    output: str
    comparison: Comparison = "tolerant"
    function: str = ""

    def __post_init__(self):
        for name, value in vars(self).items():
            check_text(name, value)
        if self.comparison not in COMPARISONS:
            allowed = ", ".join(COMPARISONS)
            raise ValueError(f"comparison={self.comparison!r}: must be one of {allowed}")
        if (size := len(self.output.encode())) > MAX_OUTPUT:
            raise ValueError(f"output: has {size} bytes, a program may write {MAX_OUTPUT}")
        if self.function:
            if not self.function.isidentifier():
                raise ValueError(f"function={self.function!r:.80}: must be a name")
            parse_json("output", self.output)
            _ = self.arguments

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of a call, parsed."""
        return tuple(parse_json("input", line) for line in self.input.split("\n") if line.strip())

    @property
    def results(self) -> tuple[Any, ...]:
        """All results that a call may return."""
        # For the output [[1, 2]], `tolerant` accepts [[1, 2]], [1, 2], ([1, 2],) and (1, 2).
        accepted = [parse_json("output", self.output)]
        if (
            self.comparison == "tolerant"
            and isinstance(accepted[0], list)
            and len(accepted[0]) == 1
        ):
            accepted += accepted[0]
        return (*accepted, *(tuple(value) for value in accepted if isinstance(value, list)))


# A test of a program: statements to run after it, or a case.
Test = str | Case


def check_text(name: str, value):
    """Raise ValueError unless the value of a field is text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.80}: must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: is not text that UTF-8 can encode ({error.reason})") from error


def parse_json(name: str, text: str) -> Any:
    """Parse a JSON value. Raises ValueError, naming the field, if it is not one."""
    try:
        # Python's parser accepts NaN and Infinity, unlike JSON.
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {text!r:.80} is not a JSON value ({error})") from error


def refuse_constant(name: str):
    raise ValueError(f"{name} is not a JSON number")


def same_token(expected: str, found: str) -> bool:
    """Whether two tokens are equal, or numbers that are equal within `TOLERANCE`."""
    if expected == found or not (NUMBER.fullmatch(expected) and NUMBER.fullmatch(found)):
        return expected == found
    want = Decimal(expected)
    got = Decimal(found)
    has_fraction = any(sign in expected for sign in ".eE")
    scale = max(1, abs(want)) if has_fraction else 1
    return want == got or abs(want - got) <= TOLERANCE * scale


def same_tokens(expected: str, found: str) -> bool:
    """Whether two lines have the same tokens."""
    want = expected.split()
    got = found.split()
    # The cheap comparison comes first, as most lines are equal.
    return want == got or (len(want) == len(got) and all(map(same_token, want, got)))


# How each comparison splits a text into lines, and when it takes two lines for the same.
COMPARISONS = {
    "exact": (lambda text: text.removesuffix("\n").split("\n"), str.__eq__),
    "tolerant": (lambda text: text.strip().split("\n"), same_tokens),
}


def difference(expected: str, found: str, comparison: Comparison) -> str:
    """Describe the first line in which an output differs. Returns an empty text if none does."""
    if expected == found:
        return ""
    split_lines, is_same = COMPARISONS[comparison]
    for number, (want, got) in enumerate(zip_longest(split_lines(expected), split_lines(found)), 1):
        if want is None or got is None or not is_same(want, got):
            return f"line {number}: got {quote_line(got, want)}, expected {quote_line(want, got)}"
    return ""


def quote_line(line: str | None, other: str | None) -> str:
    """Quote the part of a line around its first difference from another; None is a missing line."""
    if line is None:
        return "no such line"
    common = len(commonprefix([line, other or ""]))  # noqa: RUF071 texts, no paths
    # The first difference is in the middle of the quoted part.
    start = max(0, common - QUOTED_LENGTH // 2) if len(line) > QUOTED_LENGTH else 0
    part = line[start : start + QUOTED_LENGTH]
    return f"{'…' if start else ''}{part!r}{'…' if start + QUOTED_LENGTH < len(line) else ''}"

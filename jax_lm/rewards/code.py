"""Rewards for code: its format, and the share of tests that it passes.

Names and values follow Apple's DiffuCoder (`code`, `binary_code`, `code_format`); docs/rewards.md
lists the defaults that differ, and why. Programs run in `untrusted` or in a custom `executor`;
this module never executes them.
"""

import ast
import logging
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.rewards.cases import METADATA, TEST_COLUMNS, row_tests
from jax_lm.rewards.reward import Columns, Reward, Scores
from untrusted.results import UNJUDGED

logger = logging.getLogger(__name__)

FENCE = "```"
PYTHON = "python"
# Share of passed tests from which `binary_code` is 1.0.
BINARY_THRESHOLD = 0.99


CodeAndTests = tuple[str, Sequence[Any]]
# The tests are assert statements and `untrusted.Case`s. Results are in the order of the programs,
# and have the attributes `outcome` and `share`, the share of tests that a program passed.
RunPrograms = Callable[[Sequence[CodeAndTests]], Sequence[Any]]


def run_locally(programs: Sequence[CodeAndTests], *, canary: bool = True) -> Sequence[Any]:
    """Run programs in the sandbox of this machine.

    Args:
        canary: as in `untrusted.Limits`: False saves the second run of each script that passes.
    """
    # Imported here: the sandbox needs Linux, and rewards that only read text do not.
    from untrusted import Limits, Local, Program

    limits = Limits(canary=canary)
    return Local().run_many([Program(code, tuple(tests), limits) for code, tests in programs])


def extract_code(text: str, language: str = PYTHON) -> str:
    """Return the content of the first fenced block of a language; empty if there is none."""
    # "Sure:\n```python\nx = 1\n```\n" -> "x = 1\n"
    block = re.search(rf"{FENCE}{re.escape(language)}\n(.*?){FENCE}", text, re.DOTALL)
    return block[1] if block else ""


def is_well_formed(text: str, language: str, *, strict_reference: bool) -> bool:
    """Return whether text has a single block fenced with the language, followed by whitespace only.

    Any text may precede the block. The reference requires exactly one newline after the closing
    fence (`strict_reference`), so that an answer that ends with the fence, as most do, scores 0.
    """
    # "Sure:\n```python\nx = 1\n```\n" -> ["Sure:\n", "python\nx = 1\n", "\n"]
    sections = text.split(FENCE)
    if len(sections) != 3 or not sections[1].startswith(f"{language}\n"):
        return False
    return sections[2] == "\n" if strict_reference else not sections[2].strip()


def parses(code: str) -> bool:
    """Return whether Python's parser accepts the code. Nothing is executed."""
    try:
        with warnings.catch_warnings():
            # An invalid escape is a warning. It stays one if the user's filters raise warnings.
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        # ValueError: null bytes or lone surrogates. MemoryError and RecursionError: very deeply
        # nested brackets or operators.
        return False
    return True


def format_score(text: str, language: str, *, strict_reference: bool) -> float:
    """Return 1.0 for one well-formed block, 0.5 if it is Python that does not parse, else 0.0."""
    if not is_well_formed(text, language, strict_reference=strict_reference):
        return 0.0
    return 1.0 if language != PYTHON or parses(extract_code(text).strip()) else 0.5


def tests_at(columns: Columns, row: int) -> list[Any]:
    """Read the tests of a row. Raises ValueError with the row and the column at fault."""
    try:
        return row_tests(
            {name: columns[name][row] for name in (*TEST_COLUMNS, METADATA) if name in columns}
        )
    except ValueError as error:
        raise ValueError(f"row {row}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class CodeFormat(Reward):
    """1.0 for text followed by one fenced block, 0.5 if the code does not parse, else 0.0.

    Args:
        language: word after the opening fence. Only Python is parsed.
        strict_reference: require exactly one newline after the closing fence, as the reference
            does.
    """

    name = "code_format"
    language: str = PYTHON
    strict_reference: bool = False

    def __post_init__(self):
        if not isinstance(self.language, str) or not self.language.strip() or "`" in self.language:
            raise ValueError(f"language must be a word such as 'python', not {self.language!r}")

    def score(self, texts, columns) -> Scores:
        return [
            format_score(text, self.language, strict_reference=self.strict_reference)
            for text in texts
        ]


@dataclass(frozen=True, kw_only=True)
class Code(Reward):
    """The share of tests that the code passes; 0 unless its format scores 1.0.

    The tests of a row are those of all its `TEST_COLUMNS`. The reward does not apply to rows
    without tests. It is None if the sandbox could not run the program (`sandbox_error`), or its
    tests need what the border cannot carry (`cannot_judge`): this is logged, and never counts as a
    wrong answer.

    Args:
        executor: runs all programs of a call; the local sandbox by default.
        strict_reference: see `CodeFormat`.
    """

    name = "code"
    reads = (*TEST_COLUMNS, METADATA)
    executor: RunPrograms = run_locally
    strict_reference: bool = False

    def require_columns(self, names):
        if not any(name in names for name in TEST_COLUMNS):
            known = ", ".join(map(repr, TEST_COLUMNS))
            raise ValueError(
                f"reward {self.name!r} needs one of the columns {known}; given: {sorted(names)}"
            )
        super().require_columns(names)

    def applies(self, columns, row) -> bool:
        return super().applies(columns, row) and bool(tests_at(columns, row))

    def program(self, text: str) -> str:
        """Return the program of an answer; empty if the answer is not well formed."""
        if format_score(text, PYTHON, strict_reference=self.strict_reference) == 1.0:
            return extract_code(text)
        return ""

    def score(self, texts, columns) -> Scores:
        scores: Scores = [0.0] * len(texts)
        programs = list(map(self.program, texts))
        rows = [row for row, program in enumerate(programs) if program]
        if not rows:
            return scores
        # run them, all in one call
        results = self.executor([(programs[row], tests_at(columns, row)) for row in rows])
        if len(results) != len(rows):
            raise ValueError(
                f"the executor returned {len(results)} results for {len(rows)} programs"
            )
        for row, result in zip(rows, results, strict=True):
            scores[row] = None if result.outcome in UNJUDGED else float(result.share)
        for outcome in UNJUDGED:
            if unjudged := [result for result in results if result.outcome == outcome]:
                reason = getattr(unjudged[0], "detail", "")
                logger.warning(
                    "reward %r: %d of %d programs not judged (%s%s)",
                    self.name,
                    len(unjudged),
                    len(rows),
                    outcome,
                    f": {reason}" if reason else "",
                )
        return scores


class BinaryCode(Code):
    """1.0 if `Code` is at least 0.99 (strict reference: more than 0.99), else 0.0."""

    name = "binary_code"

    def score(self, texts, columns) -> Scores:
        passes = operator.gt if self.strict_reference else operator.ge
        shares = super().score(texts, columns)
        return [
            None if share is None else float(passes(share, BINARY_THRESHOLD)) for share in shares
        ]


class CompletedCode(Code):
    """The share of tests that `prefix` and the completion, as one program, pass.

    For models that complete code instead of answering in chat: no fence is expected. 0 unless the
    program parses.
    """

    name = "completed_code"
    needs = ("prefix",)

    def score(self, texts, columns) -> Scores:
        programs = [prefix + text for prefix, text in zip(columns["prefix"], texts, strict=True)]
        return super().score(programs, columns)

    def program(self, text: str) -> str:
        # Not fenced: a docstring may contain fences.
        return text if parses(text.strip()) else ""

"""Rewards for code: its format, and the share of the tests that it passes.

Names and values follow Apple's DiffuCoder (`code`, `binary_code`, `code_format`); docs/rewards.md
lists where the defaults differ and why. Programs run in `untrusted`, or wherever `executor` sends
them; nothing here executes one.
"""

import ast
import logging
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from jax_lm.rewards.cases import METADATA, TEST_COLUMNS, row_tests
from jax_lm.rewards.reward import Chat, Columns, Reward, Scores

logger = logging.getLogger(__name__)

FENCE = "```"
PYTHON = "python"
SANDBOX_ERROR = "sandbox_error"
BINARY_THRESHOLD = 0.99


@runtime_checkable
class Judgement(Protocol):
    """What an executor says of a program: how it ended, and the share of its tests that passed."""

    @property
    def outcome(self) -> str: ...

    @property
    def share(self) -> float: ...


CodeAndTests = tuple[str, Sequence[Any]]
# Runs programs, each given by its code and what judges it: assert statements, and
# `untrusted.Case`s.
RunPrograms = Callable[[Sequence[CodeAndTests]], Sequence[Judgement]]


def run_locally(programs: Sequence[CodeAndTests]) -> Sequence[Judgement]:
    """Run programs in the sandbox of this machine."""
    # Here, not at the top: the sandbox needs Linux, and the rewards that only read text do not.
    from untrusted import Local, Program

    return Local(objects="strict").run_many(
        [Program(code, tuple(tests)) for code, tests in programs]
    )


def extract_code(text: str, language: str = PYTHON) -> str:
    """Take the content of the first fenced block of that language; empty if there is none."""
    block = re.search(rf"{FENCE}{re.escape(language)}\n(.*?){FENCE}", text, re.DOTALL)
    return block[1] if block else ""


def is_well_formed(text: str, language: str, *, strict_reference: bool) -> bool:
    """Tell whether text is anything, one block fenced with the language's name, and nothing but
    whitespace.

    The reference wants exactly one newline after the closing fence, so that an answer which ends on
    the fence, as most do, scores nothing.
    """
    parts = text.split(FENCE)
    if len(parts) != 3 or not parts[1].startswith(f"{language}\n"):
        return False
    return parts[2] == "\n" if strict_reference else not parts[2].strip()


def parses(code: str) -> bool:
    """Tell whether Python's parser accepts the code; nothing is executed."""
    try:
        with warnings.catch_warnings():
            # A doubtful escape is no error, wherever the user's filters turn warnings into errors.
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        # ValueError: null bytes, lone surrogates; the last two: brackets or operators nested
        # without end.
        return False
    return True


def format_score(text: str, language: str, *, strict_reference: bool) -> float:
    """Give 1.0 for one well-formed block, 0.5 if it is Python that does not parse, else 0.0."""
    if not is_well_formed(text, language, strict_reference=strict_reference):
        return 0.0
    return 1.0 if language != PYTHON or parses(extract_code(text).strip()) else 0.5


def tests_at(columns: Columns, row: int) -> list[Any]:
    """Read the tests of a row; raises ValueError naming the row and the column that cannot be read."""
    try:
        return row_tests(
            {name: columns[name][row] for name in (*TEST_COLUMNS, METADATA) if name in columns}
        )
    except ValueError as error:
        raise ValueError(f"row {row}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class CodeFormat(Reward):
    """Text without a fence, then one fenced block, then nothing: 1.0; 0.5 if it does not parse;
    else 0.0.

    Args:
        language: the word after the opening fence. Only Python is parsed.
        strict_reference: exactly one newline after the closing fence, as in the reference.
    """

    name: ClassVar[str] = "code_format"
    language: str = PYTHON
    strict_reference: bool = False

    def __post_init__(self):
        if not isinstance(self.language, str) or not self.language.strip() or "`" in self.language:
            raise ValueError(f"language must be a word such as 'python', not {self.language!r}")

    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        return [
            format_score(text, self.language, strict_reference=self.strict_reference)
            for text in texts
        ]


@dataclass(frozen=True, kw_only=True)
class Code(Reward):
    """The share of its tests that the code passes; 0 unless its format is right.

    The tests of a row are all that its `TEST_COLUMNS` hold. It does not apply to rows without
    tests. None also where the sandbox could not run the program (`sandbox_error`): that is logged,
    and never a wrong answer.

    Args:
        executor: runs all programs of a call; the local sandbox by default.
        strict_reference: see `CodeFormat`.
    """

    name: ClassVar[str] = "code"
    reads: ClassVar[tuple[str, ...]] = (*TEST_COLUMNS, METADATA)
    executor: RunPrograms = run_locally
    strict_reference: bool = False

    def judge(
        self, prompts: Sequence[Chat], completions: Sequence[Chat], columns: Columns
    ) -> Scores:
        if not any(name in columns for name in TEST_COLUMNS):
            known = ", ".join(map(repr, TEST_COLUMNS))
            raise ValueError(
                f"reward {self.name!r} needs one of the columns {known}; given: {sorted(columns)}"
            )
        return super().judge(prompts, completions, columns)

    def applies(self, columns: Columns, row: int) -> bool:
        return super().applies(columns, row) and bool(tests_at(columns, row))

    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        scores: Scores = [0.0] * len(texts)
        strict = self.strict_reference
        rows = [
            row
            for row, text in enumerate(texts)
            if format_score(text, PYTHON, strict_reference=strict) == 1.0
        ]
        if not rows:
            return scores
        results = self.executor(
            [(extract_code(texts[row]), tests_at(columns, row)) for row in rows]
        )
        if len(results) != len(rows):
            raise ValueError(
                f"the executor returned {len(results)} results for {len(rows)} programs"
            )
        for row, result in zip(rows, results, strict=True):
            scores[row] = None if result.outcome == SANDBOX_ERROR else float(result.share)
        if errors := scores.count(None):
            logger.warning(
                "reward %r: %d of %d programs not judged (%s)",
                self.name,
                errors,
                len(rows),
                SANDBOX_ERROR,
            )
        return scores


@dataclass(frozen=True, kw_only=True)
class BinaryCode(Code):
    """1.0 where `Code` gives at least 0.99 (the reference: more than 0.99), else 0.0."""

    name: ClassVar[str] = "binary_code"

    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        passes = operator.gt if self.strict_reference else operator.ge
        shares = super().score(texts, columns)
        return [
            None if share is None else float(passes(share, BINARY_THRESHOLD)) for share in shares
        ]


@dataclass(frozen=True, kw_only=True)
class CompletedCode(Code):
    """The share of its tests that `prefix` and the completion pass as one program; no fence is
    expected.

    For models that go on with code instead of answering in chat. 0 unless the whole parses.
    """

    name: ClassVar[str] = "completed_code"
    needs: ClassVar[tuple[str, ...]] = ("prefix",)

    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        programs = [prefix + text for prefix, text in zip(columns["prefix"], texts, strict=True)]
        return super().score(
            [f"{FENCE}{PYTHON}\n{program}\n{FENCE}\n" for program in programs], columns
        )

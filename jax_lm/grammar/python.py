"""Python as a grammar: what the parser of the Python that runs this accepts.

The parser alone decides what is right. How a beginning might go on is only guessed: pieces of code are tried one after
another, inner brackets first, and a guess counts when the parser accepts all of it. So an end that is returned is an
end, on any version of Python; a beginning for which no end is found may have one all the same.
"""

import ast
import itertools
import keyword
import re
import warnings
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache

INCOMPLETE_INPUT = 0x4000
"""`PyCF_ALLOW_INCOMPLETE_INPUT` of CPython, by which `codeop` tells a beginning from an error."""

FILE = "<grammar>"
warnings.filterwarnings("ignore", module=FILE)

MAX_PARSES = 300
"""Parses that one search may take."""
MAX_DEPTH = 40
"""Pieces that an end may have."""

CLOSERS = {"(": ")", "[": "]", "{": "}"}
MARKS = re.compile(
    r"""#[^\n]*|(?P<quote>'''|\"\"\"|'|")(?:\\.|(?!(?P=quote)).)*(?P<end>(?P=quote))?|[()\[\]{}]""", re.DOTALL
)
"""Comments, strings that may lack their end, and brackets."""
OPERANDS = ("x", " x", " else x", " in x")
HEADERS = (": pass", ":", "(): pass", " x: pass", " f(): pass", " in x: pass", " import x", ": x", "=x", "=0", "0")
CUT_OPERATORS = {"!": ("=",), ".": (".",), "-": (">",)}
"""What an operator may lack that was cut."""
SUITES = ("pass", "finally: pass", "except: pass", "def f(): pass", "case _: pass")


class ParserVerdict(Enum):
    """What the parser says of a text."""

    WHOLE = auto()
    OPEN = auto()
    WRONG = auto()


class PythonGrammar:
    """Programs that this Python's parser accepts; prompt, answer and what stands after it are one program."""

    reads_prompt = True

    def completion(self, text: str, after: str = "") -> str | None:
        """Find a short text for between `text` and `after` with which they parse; None if none is known."""
        return completion(text, after)


@lru_cache(maxsize=4096)
def completion(text: str, after: str) -> str | None:
    """Search for an end, depth first, by pieces that leave a beginning of a program."""
    if verdict(text + after) is ParserVerdict.WHOLE:
        return ""
    budget, tried = itertools.count(1), set()
    waiting = [(text + piece, 1) for piece in reversed(list(first_pieces(text)))]
    while waiting:
        candidate, depth = waiting.pop()
        if candidate in tried:
            continue
        if next(budget) > MAX_PARSES:
            return None
        tried.add(candidate)
        found = verdict(candidate + after)
        if found is ParserVerdict.WHOLE:
            return candidate.removeprefix(text)
        if after:
            found = verdict(candidate)
        # A string that stays open would go on for ever.
        if scan(candidate)[0] or (found is ParserVerdict.WRONG and not is_beginning(candidate)):
            continue
        if depth < MAX_DEPTH:
            waiting += [(candidate + piece, depth + 1) for piece in reversed(list(pieces(candidate)))]
    return None


def verdict(text: str) -> ParserVerdict:
    """Ask the parser; OPEN if it read all of the text and wanted more."""
    try:
        compile(text, FILE, "exec", flags=ast.PyCF_ONLY_AST | INCOMPLETE_INPUT, dont_inherit=True)
    except SyntaxError as error:
        return ParserVerdict.OPEN if error.msg == "incomplete input" else ParserVerdict.WRONG
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return ParserVerdict.WRONG
    return ParserVerdict.WHOLE


def is_beginning(text: str) -> bool:
    """Tell whether the parser wants more where the line ends too early: it is told that the line goes on."""
    return verdict(text + " \\\n") is ParserVerdict.OPEN


def first_pieces(text: str) -> Iterator[str]:
    """Pieces by which a text may go on that was cut anywhere, also within a string, a word or a number."""
    quote, brackets, in_comment = scan(text)
    if quote:
        # What a backslash, an escape or a replacement field still lacks.
        for filling in ("", "n", "0", "00", "0000", "}", "x}", "0}", "x]}"):
            for length in range(len(quote), 0, -1):
                yield filling + quote[:length]
        return
    if in_comment:
        yield from line_pieces(text)
        yield from (["\n" + brackets[-1]] if brackets else [])
        yield "\n"
        return
    word = "".join(reversed(list(itertools.takewhile(lambda char: char.isalnum() or char == "_", reversed(text)))))
    yield from pieces(text)
    if word:
        for other in (*keyword.kwlist, *keyword.softkwlist):
            if other.startswith(word) and other != word:
                yield other[len(word) :]
    yield from CUT_OPERATORS.get(text[-1:], ())


def pieces(text: str) -> Iterator[str]:
    """Pieces of code that may follow whole tokens, those that end something first."""
    _, brackets, _ = scan(text)
    if brackets:
        yield brackets[-1]
    is_word = text[-1:].isalnum() or text[-1:] == "_"
    if not brackets:
        yield from HEADERS[:1]
        yield from line_pieces(text)
    yield from (piece for piece in OPERANDS if is_word <= piece.startswith(" "))
    yield from HEADERS[1:]
    if text.endswith("\\"):
        yield "\n"


def line_pieces(text: str) -> Iterator[str]:
    """New lines, at the indentation of any line before and one deeper; and what is missing of one."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = text[text.rfind("\n") + 1 :]
    levels = dict.fromkeys(line[: len(line) - len(line.lstrip())] for line in reversed(lines))
    for level in levels:
        for indent in (level, level + " "):
            # An indentation that was begun goes on; else a new line begins.
            starts = indent[len(last) :] if not last.strip() and indent.startswith(last) else f"\n{indent}"
            yield from (starts + suite for suite in SUITES)


def scan(text: str) -> tuple[str, list[str], bool]:
    """Find what is open at the end: the quotes of a string, the closing brackets that lack, a comment."""
    brackets: list[str] = []
    for match in MARKS.finditer(text):
        mark = match[0]
        if match["quote"] and match["end"] is None:
            return match["quote"], brackets, False
        if mark in CLOSERS:
            brackets.append(CLOSERS[mark])
        elif mark in (")", "]", "}") and brackets:
            brackets.pop()
        elif mark[0] == "#" and match.end() == len(text):
            return "", brackets, True
    return "", brackets, False

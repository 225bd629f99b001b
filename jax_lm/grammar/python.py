"""The grammar of Python: what the parser of the running Python accepts.

The parser alone decides what is valid. The end of a program, a text that completes it, is searched
for by trial: pieces of code are tried one after another, inner brackets first, until the parser
accepts the whole text. So an end is valid for the Python that runs, whichever version that is. If
no end is found, there may still be one.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from keyword import kwlist, softkwlist
from typing import Literal

# CPython's `PyCF_ALLOW_INCOMPLETE_INPUT`, with which `codeop` distinguishes incomplete code from
# wrong code.
INCOMPLETE_INPUT = 0x4000

FILE = "<grammar>"
# Warnings about the texts that are tried, such as invalid escapes, are of no interest.
warnings.filterwarnings("ignore", module=FILE)

# Maximum number of texts that one search parses.
MAX_PARSES = 300
# Pieces of an end, beside those that close brackets: short ends are searched for first.
DEPTHS = (2, 4, 40)

# The closing bracket of each opening one.
CLOSERS = {"(": ")", "[": "]", "{": "}"}
# Comments, strings with or without their end, and brackets.
MARKS = re.compile(
    r"""#[^\n]*|(?P<quote>'''|\"\"\"|'|")(?:\\.|(?!(?P=quote)).)*(?P<end>(?P=quote))?|[()\[\]{}]""",
    re.DOTALL,
)
# Pieces that complete an expression.
OPERANDS = ("x", " x", " else x", " in x")
# Pieces that complete a statement, mostly the header of a block; "0" completes 0x and 1e.
HEADERS = (
    ": pass",
    ":",
    "(): pass",
    " x: pass",
    " f(): pass",
    " in x: pass",
    " import x",
    ": x",
    "=x",
    "=0",
    "0",
)
# Remainder of an operator that was cut.
CUT_OPERATORS = {"!": "=", ".": ".", "-": ">"}
KEYWORDS = (*kwlist, *softkwlist)
LAST_WORD = re.compile(r"\w+\Z")
# Lines that may follow: a statement, or a clause that a `try` or `match` still lacks.
LINES = ("pass", "finally: pass", "except: pass", "def f(): pass", "case _: pass")


@lru_cache(maxsize=4096)
def find_end(text: str, after: str = "") -> str | None:
    """Search for text that makes `text`, it and `after` a program; None if none is found."""
    if verdict(text + after) == "whole":
        return ""
    # Without a limit, "try:" would go on with 39 lines of `pass` before it ends.
    brackets = len(scan(text)[1])
    ends = (search_end(text, after, depth + brackets) for depth in DEPTHS)
    return next((end for end in ends if end is not None), None)


def search_end(text: str, after: str, most: int) -> str | None:
    """Search for an end of at most `most` pieces.

    Depth first: a candidate is extended by a further piece as long as it can still be continued.
    """
    # a stack: the piece that was yielded first is tried first
    tried = set()
    waiting = [(text + piece, 1) for piece in reversed(list(first_pieces(text)))]
    while waiting:
        candidate, depth = waiting.pop()
        if candidate in tried:
            continue
        # give up: a valid end may exist all the same
        if len(tried) == MAX_PARSES:
            return None
        tried.add(candidate)
        result = verdict(candidate + after)
        if result == "whole":
            return candidate.removeprefix(text)
        # with a suffix, the candidate alone decides whether it can be continued
        if after:
            result = verdict(candidate)
        # No piece ends a string that is still open.
        if depth == most or scan(candidate)[0]:
            continue
        # Extend only what is the beginning of some program: the parser expects more, here or at
        # least if a backslash continues the last line.
        if result != "wrong" or verdict(candidate + " \\\n") == "open":
            waiting += [
                (candidate + piece, depth + 1) for piece in reversed(list(pieces(candidate)))
            ]
    return None


def verdict(text: str) -> Literal["whole", "open", "wrong"]:
    """Parse a text. The verdict is open if the parser reached the end and expected more."""
    try:
        compile(text, FILE, "exec", flags=ast.PyCF_ONLY_AST | INCOMPLETE_INPUT, dont_inherit=True)
    except SyntaxError as error:
        return "open" if error.msg == "incomplete input" else "wrong"
    # such as null bytes, or code that is nested too deeply
    except (ValueError, OverflowError, MemoryError, RecursionError):
        return "wrong"
    return "whole"


def first_pieces(text: str) -> Iterator[str]:
    """Yield continuations of a text that may end anywhere, even inside a string or a word."""
    quote, brackets, in_comment = scan(text)
    if quote:
        # First complete a backslash, an escape or a replacement field.
        for filling in ("", "n", "0", "00", "0000", "}", "x}", "0}", "x]}"):
            # ''' is open: try ''', then '' and ', as one or two of them may be there already
            for length in range(len(quote), 0, -1):
                yield filling + quote[:length]
        return
    # a comment reaches to the end of its line, so code goes on in a new one
    if in_comment:
        yield from line_pieces(text)
        if brackets:
            yield "\n" + brackets[-1]
        yield "\n"
        return
    yield from pieces(text)
    # the last word may be a keyword that was cut: "retur" -> "n"
    if word := LAST_WORD.search(text):
        for keyword in KEYWORDS:
            if keyword.startswith(word[0]) and keyword != word[0]:
                yield keyword.removeprefix(word[0])
    # "a !" -> "="
    yield from CUT_OPERATORS.get(text[-1:], "")


def pieces(text: str) -> Iterator[str]:
    """Yield code that may follow a complete token. Pieces that close a bracket come first."""
    _, brackets, _ = scan(text)
    if brackets:
        yield brackets[-1]
    is_word = text[-1:].isalnum() or text[-1:] == "_"
    if not brackets:
        yield from HEADERS[:1]
        yield from line_pieces(text)
    # after a word, a piece must begin with a blank to be a token of its own (False <= True)
    yield from (piece for piece in OPERANDS if is_word <= piece.startswith(" "))
    yield from HEADERS[1:]
    if text.endswith("\\"):
        yield "\n"


def line_pieces(text: str) -> Iterator[str]:
    """Yield lines at the indentation of any earlier line or one deeper, or the rest of a line."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = text[text.rfind("\n") + 1 :]
    # indentations of earlier lines, the latest first, each once
    levels = dict.fromkeys(line[: len(line) - len(line.lstrip())] for line in reversed(lines))
    for level in levels:
        for indent in (level, level + " "):
            # Continue the indentation if the last line has nothing else, or else begin a new line.
            # last line "  ", indentation "    " -> two more blanks
            is_begun = not last.strip() and indent.startswith(last)
            start = indent[len(last) :] if is_begun else f"\n{indent}"
            yield from (start + line for line in LINES)


def scan(text: str) -> tuple[str, list[str], bool]:
    """Return what is open at the end of a text.

    Returns:
        The quotes of an open string, the missing closing brackets, and whether the text ends in a
        comment.
    """
    brackets = []
    # comments and strings are matched whole, so that brackets inside them do not count
    for match in MARKS.finditer(text):
        mark = match[0]
        # a string without its end reaches to the end of the text
        if match["quote"] and match["end"] is None:
            return match["quote"], brackets, False
        if mark in CLOSERS:
            brackets.append(CLOSERS[mark])
        elif mark in (")", "]", "}") and brackets:
            brackets.pop()
        elif mark[0] == "#" and match.end() == len(text):
            return "", brackets, True
    return "", brackets, False


class PythonGrammar:
    """Programs that the parser accepts. Prompt, answer and suffix are parsed as one program."""

    reads_prompt = True
    completion = staticmethod(find_end)

    def forced(self, text: str) -> tuple[str, bool]:
        return "", False

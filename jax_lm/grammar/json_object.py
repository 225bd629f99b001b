"""Any JSON object as a grammar: the answer alone, its shortest ends exact. Needs no package.

An object may be nested as deep as it likes up to `MAX_DEPTH`, which no expression could say; hence this reader.
"""

import re

MAX_DEPTH = 64
"""Objects and arrays that lie in each other; what reads JSON bounds that too."""

ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})'
)
"""Half of a character beyond the 65,536 first is none."""
CHARACTERS = rf'"(?:[^"\\\x00-\x1f]|{ESCAPE.pattern})*'
STRING = re.compile(f'{CHARACTERS}"')
OPEN_STRING = re.compile(rf'{CHARACTERS}(\\[^"]{{0,11}})?')
"""A string without its end, perhaps cut within an escape."""
ESCAPE_ENDS = (r"\n", r"\u0000", r"\ud800\udc00")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?(?![0-9.eE+-])")
"""Of a length that Python reads."""
LITERALS = ("true", "false", "null")
SPACE = re.compile(r"[ \t\n\r]{0,64}")
"""Enough to indent by, and no canvas full of it."""

SHORTEST = {"object": "{}", "value": "0", "item": "", "first key": "", "key": '"":0', "colon": ":0", "next": "", "": ""}
"""What may come next in a text, and the least of it before all that is open is closed."""


class JsonObjectGrammar:
    """The texts of JSON objects, from the first brace on, with some white space wherever JSON has it."""

    reads_prompt = False

    def completion(self, text: str, after: str = "") -> str | None:
        """The shortest end; None if no JSON object begins so. What stands after does not matter."""
        expects, closers, place = "object", "", 0
        while place < len(text):
            if (read := token_length(text, place, expects, closers[:1])) == 0:
                end = missing_end(text[place:], expects)
                return None if end is None else end + SHORTEST[after_scalar(expects)] + closers
            char, place = text[place], place + read
            if char in "{[":
                expects, closers = ("first key", "}" + closers) if char == "{" else ("item", "]" + closers)
                if len(closers) > MAX_DEPTH:
                    return None
            elif char in "}]":
                closers = closers[1:]
                expects = "next" if closers else ""
            elif char in ",:":
                expects = "key" if char == "," and closers[0] == "}" else "value"
            else:
                expects = after_scalar(expects)
            space = SPACE.match(text, place)
            place = space.end() if space else place
        return SHORTEST[expects] + closers


def after_scalar(expects: str) -> str:
    """What may come after a string, a number or a literal."""
    return "colon" if "key" in expects else "next"


def token_length(text: str, place: int, expects: str, closer: str) -> int:
    """Characters of the token at a place; 0 if it is none that is expected, or lacks its end."""
    char = text[place]
    marks = {"object": "{", "value": "{[", "item": "{[]", "first key": "}", "colon": ":", "next": f",{closer}"}
    if char in marks.get(expects, ""):
        return 1
    if char == '"' and expects in ("value", "item", "key", "first key"):
        found = STRING.match(text, place)
        return len(found[0]) if found else 0
    if expects in ("value", "item"):
        if literal := next((each for each in LITERALS if text.startswith(each, place)), None):
            return len(literal)
        found = NUMBER.match(text, place)
        return len(found[0]) if found else 0
    return 0


def missing_end(token: str, expects: str) -> str | None:
    """What a string, a number or a literal lacks that was cut; None if it is none, or not expected."""
    if token[0] == '"' and expects in ("value", "item", "key", "first key"):
        found = OPEN_STRING.fullmatch(token)
        if found is None:
            return None
        cut = found[1] or ""
        ends = [end[len(cut) :] for end in ESCAPE_ENDS if ESCAPE.fullmatch(cut + end[len(cut) :])]
        return '"' if not cut else f'{ends[0]}"' if ends else None
    if expects not in ("value", "item"):
        return None
    if literal := next((each for each in LITERALS if each.startswith(token)), None):
        return literal[len(token) :]
    return "0" if NUMBER.fullmatch(token + "0") else None

"""The grammar of JSON objects: the answer is one object, whatever the prompt is.

Ends are the shortest possible. Needs no package. Objects may be nested up to `MAX_DEPTH`; a regular
expression for that depth would be far too large.
"""

import re

# Limit of nested objects and arrays; readers of JSON have one too.
MAX_DEPTH = 64

# An escape. Half of a surrogate pair alone is not a character.
ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
CHARACTERS = rf'"(?:[^"\\\x00-\x1f]|{ESCAPE.pattern})*'
STRING = re.compile(f'{CHARACTERS}"')
# A string without its end, which may be cut inside an escape: \ud800\udc00 is the longest, and its
# cut beginnings have at most 11 characters after the backslash.
OPEN_STRING = re.compile(rf'{CHARACTERS}(\\[^"]{{0,11}})?')
ESCAPE_ENDS = (r"\n", r"\u0000", r"\ud800\udc00")
# Numbers of a length that Python can read, with nothing after them that would go on with them.
NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?(?![0-9.eE+-])"
)
LITERALS = ("true", "false", "null")
LITERAL = re.compile("|".join(LITERALS))
# White space between tokens: enough for indentation, but not a whole canvas of it.
SPACE = re.compile(r"[ \t\n\r]{0,64}")

# What may come next in a text, and the shortest text that must still come before the open brackets
# can be closed: nothing for "item" and "first key", as [] and {} may be empty.
SHORTEST = {
    "object": "{}",
    "value": "0",
    "item": "",
    "first key": "",
    "key": '"":0',
    "colon": ":0",
    "next": "",
    "": "",
}
KEYS = ("key", "first key")
VALUES = ("value", "item")


class JsonObjectGrammar:
    """Texts of JSON objects, from the first brace on, with limited white space."""

    reads_prompt = False

    def completion(self, text: str, after: str = "") -> str | None:
        """Return the shortest end; None if no object begins with `text`. Ignores `after`."""
        # `closers` is what closes everything open, innermost first: after '{"a": [' it is "]}".
        expects = "object"
        closers = ""
        place = 0
        while place < len(text):
            # the text ends inside this token, or the token is wrong
            if (read := token_length(text, place, expects, closers[:1])) == 0:
                end = missing_end(text[place:], expects)
                return None if end is None else end + SHORTEST[after_scalar(expects)] + closers
            char = text[place]
            place = place + read
            # open a level
            if char in "{[":
                expects, closers = (
                    ("first key", "}" + closers) if char == "{" else ("item", "]" + closers)
                )
                if len(closers) > MAX_DEPTH:
                    return None
            # close the innermost level
            elif char in "}]":
                closers = closers[1:]
                expects = "next" if closers else ""
            # in an object a comma is followed by a key, in an array by a value
            elif char in ",:":
                expects = "key" if char == "," and closers[0] == "}" else "value"
            # a string, a number or a literal
            else:
                expects = after_scalar(expects)
            # white space after the token
            space = SPACE.match(text, place)
            place = space.end() if space else place
        return SHORTEST[expects] + closers

    def forced(self, text: str) -> tuple[str, bool]:
        return "" if text else "{", self.completion(text) == ""


def after_scalar(expects: str) -> str:
    """Return what may come after a string, a number or a literal."""
    return "colon" if expects in KEYS else "next"


def token_length(text: str, place: int, expects: str, closer: str) -> int:
    """Return the length of the token at `place`; 0 if it is unexpected or incomplete."""
    char = text[place]
    # punctuation that each state accepts
    marks = {
        "object": "{",
        "value": "{[",
        "item": "{[]",
        "first key": "}",
        "colon": ":",
        "next": f",{closer}",
    }
    if char in marks.get(expects, ""):
        return 1
    if char == '"' and expects in (*VALUES, *KEYS):
        match = STRING.match(text, place)
    elif expects in VALUES:
        match = LITERAL.match(text, place) or NUMBER.match(text, place)
    else:
        match = None
    return len(match[0]) if match else 0


def missing_end(token: str, expects: str) -> str | None:
    """Return the rest of a string, number or literal; None if it is unexpected or invalid."""
    if token[0] == '"' and expects in (*VALUES, *KEYS):
        match = OPEN_STRING.fullmatch(token)
        if match is None:
            return None
        # the escape that is cut off at the end: "ab\u00 -> \u00
        cut = match[1] or ""
        # An escape cut at \ud8 ends with 00\udc00, the rest of the last of ESCAPE_ENDS.
        ends = [end[len(cut) :] for end in ESCAPE_ENDS if ESCAPE.fullmatch(cut + end[len(cut) :])]
        return '"' if not cut else f'{ends[0]}"' if ends else None
    if expects not in VALUES:
        return None
    # "tr" -> "ue"
    if literal := next((each for each in LITERALS if each.startswith(token)), None):
        return literal[len(token) :]
    # "-" or "1." need one more digit
    return "0" if NUMBER.fullmatch(token + "0") else None

"""The grammar of JSON objects: the answer is one object, whatever the prompt is.

An object that has begun is completed with as few characters as possible. Needs no package. Objects
may be nested up to `MAX_DEPTH`; a regular expression for that depth would be far too large.
"""

import re

# Largest depth of nested objects and arrays. Parsers of JSON have such a limit too.
MAX_DEPTH = 64

# An escape sequence. One half of a surrogate pair is not a character, so both must be there.
ESCAPE = re.compile(
    r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
CHARACTERS = rf'"(?:[^"\\\x00-\x1f]|{ESCAPE.pattern})*'
STRING = re.compile(f'{CHARACTERS}"')
# A string that is cut off, perhaps inside an escape. The longest escape is \ud800\udc00, which
# leaves at most 11 characters after the backslash if it is cut.
OPEN_STRING = re.compile(rf'{CHARACTERS}(\\[^"]{{0,11}})?')
# Escapes whose ends complete any escape that is cut off.
ESCAPE_EXAMPLES = (r"\n", r"\u0000", r"\ud800\udc00")
# A number that is not too long for Python to read, and that does not continue after the match.
NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?(?![0-9.eE+-])"
)
LITERALS = ("true", "false", "null")
LITERAL = re.compile("|".join(LITERALS))
# White space between tokens: enough for indentation, but too little to fill a whole canvas.
SPACE = re.compile(r"[ \t\n\r]{0,64}")

# The states of the parser: what it expects next, and the shortest text that is still needed before
# the open brackets can be closed. That is nothing for "item" and "first key", as [] and {} may be
# empty, for "next" (a comma or a bracket), and for "" (the end of the text).
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
STRINGS = KEYS + VALUES


class JsonObjectGrammar:
    """Texts of JSON objects, from the first brace on, with limited white space."""

    reads_prompt = False

    def completion(self, text: str, after: str = "") -> str | None:
        """Return the shortest completion of `text`; None if no object begins with it.

        `after` is ignored.
        """
        # `closers` closes all open brackets, innermost first: after '{"a": [' it is "]}".
        expects = "object"
        closers = ""
        position = 0
        while position < len(text):
            # The text ends inside this token, or the token is wrong.
            if (length := token_length(text, position, expects, closers[:1])) == 0:
                end = missing_end(text[position:], expects)
                return None if end is None else end + SHORTEST[after_scalar(expects)] + closers
            char = text[position]
            position = position + length
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
            # A comma is followed by a key in an object, and by a value in an array.
            elif char in ",:":
                expects = "key" if char == "," and closers[0] == "}" else "value"
            # a string, a number or a literal
            else:
                expects = after_scalar(expects)
            # skip white space after the token
            space = SPACE.match(text, position)
            position = space.end() if space else position
        return SHORTEST[expects] + closers

    def forced(self, text: str) -> tuple[str, bool]:
        return "" if text else "{", self.completion(text) == ""


def after_scalar(expects: str) -> str:
    """Return the state after a string, a number or a literal that was read in state `expects`."""
    return "colon" if expects in KEYS else "next"


def token_length(text: str, position: int, expects: str, closer: str) -> int:
    """Return the length of the token at `position`; 0 if it is unexpected or incomplete.

    `closer` is the bracket that closes the innermost level.
    """
    char = text[position]
    # punctuation that each state accepts
    punctuation = {
        "object": "{",
        "value": "{[",
        "item": "{[]",
        "first key": "}",
        "colon": ":",
        "next": f",{closer}",
    }
    if char in punctuation.get(expects, ""):
        return 1
    if char == '"' and expects in STRINGS:
        match = STRING.match(text, position)
    elif expects in VALUES:
        match = LITERAL.match(text, position) or NUMBER.match(text, position)
    else:
        match = None
    return len(match[0]) if match else 0


def missing_end(token: str, expects: str) -> str | None:
    """Return what completes a token that is cut off; None if it is unexpected or invalid.

    The token is a string, a number or a literal.
    """
    if token[0] == '"' and expects in STRINGS:
        match = OPEN_STRING.fullmatch(token)
        if match is None:
            return None
        # The last escape if it is cut off: \u00 of "ab\u00.
        escape = match[1] or ""
        # The rest of an example completes it: \ud8 ends with 00\udc00, from the last example.
        ends = [
            example[len(escape) :]
            for example in ESCAPE_EXAMPLES
            if ESCAPE.fullmatch(escape + example[len(escape) :])
        ]
        return '"' if not escape else f'{ends[0]}"' if ends else None
    if expects not in VALUES:
        return None
    # "tr" -> "ue"
    if literal := next((each for each in LITERALS if each.startswith(token)), None):
        return literal[len(token) :]
    # "-" and "1." need one more digit.
    return "0" if NUMBER.fullmatch(token + "0") else None

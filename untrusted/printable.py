"""Make text from programs and models safe to show in a terminal.

Imports the standard library only, as machines that run a sandbox have nothing else.
"""

import json


def printable(text: str) -> str:
    """Escape the characters of a text that a terminal obeys or cannot show, in Python's notation.

    These are control characters, which begin escape sequences, and lone surrogates.
    """
    return "".join(
        # Newlines and tabs are kept, as the text may have several lines.
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in text
    )


def printable_json(value) -> str:
    """Return data as one line of JSON that a person can read and a terminal can show."""
    return "".join(
        # Only unprintable characters are escaped, so that text in any language is readable.
        c if c.isprintable() else json.dumps(c)[1:-1]
        for c in json.dumps(value, ensure_ascii=False)
    )

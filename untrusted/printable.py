"""Make text that programs and models have written safe to show in a terminal.

Imports the standard library only, as the sandbox's machines get nothing else.
"""

import json


def printable(text: str) -> str:
    """Escape what a terminal would act on or could not show, in Python's notation.

    These are escape sequences and other control characters, and lone surrogates.
    """
    return "".join(
        # Newlines and tabs stay, as the text may have several lines.
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in text
    )


def printable_json(value) -> str:
    """Return data as one line of JSON that a person can read and a terminal can show."""
    return "".join(
        # Only unprintable characters are escaped, so that other languages stay readable.
        c if c.isprintable() else json.dumps(c)[1:-1]
        for c in json.dumps(value, ensure_ascii=False)
    )

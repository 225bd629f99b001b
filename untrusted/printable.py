"""Text that programs and models have written, made fit for a terminal.

Standard library only, as the sandbox's machines get nothing else.
"""

import json
from typing import Any


def printable(text: str) -> str:
    """Write what a terminal would act on, or could not show, as Python would: escape sequences,
    lone surrogates.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def printable_json(value: Any) -> str:
    """Write data as one line of JSON that a person can read and a terminal can show."""
    return "".join(
        c if c.isprintable() else json.dumps(c)[1:-1] for c in json.dumps(value, ensure_ascii=False)
    )

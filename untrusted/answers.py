"""Compare the answer of a program, as its process has sent it, with an expected literal."""

import math
from typing import Any

from untrusted.inside.wire import encode_literal

LITERALS = {"complex", "set", "frozenset", "dict", "bytes", "bytearray", "tuple"}


class OtherFormError(Exception):
    """Raised for a message with forms that are none of literals: `matches` cannot judge it."""


def may_equal(expected: Any, wire: Any) -> bool:
    """Whether an answer can equal an expected form, by its lengths alone.

    That takes no longer than the expected form is long, however wide or deep the answer is:
    [[]] * 10**6 is not [[]].
    """
    if isinstance(expected, list) and isinstance(wire, list):
        return len(expected) == len(wire) and all(map(may_equal, expected, wire))
    # A plain list equals no other form.
    if not (isinstance(expected, dict) and isinstance(wire, dict)):
        return not isinstance(wire, list)
    parts, others = expected["v"], wire.get("v")
    if expected["t"] != wire.get("t") or not isinstance(others, list):
        return True
    # The items of sets and dictionaries may come in any order.
    same = expected["t"] != "tuple" or all(map(may_equal, parts, others))
    return len(parts) == len(others) and same


def canonical(wire: Any) -> Any:
    """Return a form that is the same for all values that Python's == calls equal.

    1, 1.0 and True -> 1; {2, 1} and frozenset({1, 2}) -> ("set", [1, 2])

    Raises OtherFormError if a part is no form of a literal. Sets and dictionaries become sorted
    lists and are never built: no chosen hash can slow this process down.
    """
    if isinstance(wire, bool | int):
        return int(wire)
    if isinstance(wire, float):
        return int(wire) if math.isfinite(wire) and wire == int(wire) else wire
    if isinstance(wire, list):
        return ("list", [canonical(item) for item in wire])
    if not isinstance(wire, dict):
        return wire
    tag = wire.get("t")
    content = wire.get("v")
    if tag == "int" and isinstance(content, str):
        return int(content, 16)
    if not (isinstance(tag, str) and tag in LITERALS and isinstance(content, list)):
        raise OtherFormError
    parts = [canonical(part) for part in content]
    if tag == "complex" and parts[1] == 0:
        # A complex number without an imaginary part equals its real part.
        return parts[0]
    # Sorted by text, as the items may be of types that have no order.
    if tag in ("set", "frozenset"):
        return ("set", sorted(parts, key=repr))
    if tag == "dict":
        return (tag, sorted(zip(parts[::2], parts[1::2], strict=True), key=repr))
    if tag in ("bytes", "bytearray"):
        return ("bytes", bytes.fromhex(content[0]) if tag == "bytes" else bytes(content))
    return (tag, parts)


def matches(expected: Any, wire: Any) -> bool:
    """Compare a message with the expected literal as Python's == compares the values."""
    return canonical(encode_literal(expected)) == canonical(wire)

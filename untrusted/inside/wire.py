"""Values as JSON, and the comparison of such a value with a literal.

None, booleans, text, floats and integers of ordinary size are themselves, and lists are arrays.
Everything else is an object `{"t": tag, "v": content}`. So a tuple is no list, and an object that
claims to equal everything is only an object. Imports the standard library only: both sides of the
sandbox use it.
"""

import argparse
import collections
import datetime
import gc
import importlib
import math
import operator
import re
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

# From here on, integers cross in hexadecimal: Python limits the digits of decimal conversions.
LARGEST_NUMBER = 10**1000
# Bytes of one message; a program that answers with more has failed.
MAX_MESSAGE = 4 * 2**20
PLAIN = frozenset({type(None), bool, str, float})

Convert = Callable[[Any], Any]


class UnknownValueError(ValueError):
    """Raised for a value or a message that this module has no form for."""


def delta_parts(delta: datetime.timedelta) -> list[int]:
    return [delta.days, delta.seconds, delta.microseconds]


def zone_parts(zone: datetime.timezone) -> list[Any]:
    return [delta_parts(zone.utcoffset(None)), zone.tzname(None)]


def restore_zone(parts: list[Any]) -> datetime.timezone:
    offset = datetime.timedelta(*parts[0])
    plain = datetime.timezone(offset)
    # The name is kept only if it is not the default one, so that the text of the zone stays the
    # same.
    return plain if plain.tzname(None) == parts[1] else datetime.timezone(offset, parts[1])


def rebuild_match(
    pattern: re.Pattern, text: Any, start: int, end: int, span: tuple[int, int]
) -> re.Match | None:
    """Find the match with this span again; None if it cannot be found."""
    # A match does not say which method found it, so try them: the first with the same span is it.
    tries = (
        *(find(text, start, end) for find in (pattern.match, pattern.search, pattern.fullmatch)),
        *(pattern.match(text, span[0], stop) for stop in (end, span[1])),
    )
    return next((match for match in tries if match and match.span() == span), None)


def user_container(kind: type) -> Callable[[Any], Any]:
    """Return a function that builds a container of `collections` around a list or dictionary.

    It keeps the very object that it is given, which both ends share.
    """

    def build(content: Any) -> Any:
        made = kind()
        if type(content) is not type(made.data):
            raise UnknownValueError(f"a {kind.__name__} of {type(content).__name__}")
        made.data = content
        return made

    return build


# Types whose values contain no others: (write, read). Nothing is read as a type outside the tables
# of this module.
SCALARS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    complex: (lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    Decimal: (str, Decimal),
    Fraction: (str, Fraction),
    datetime.timedelta: (delta_parts, lambda parts: datetime.timedelta(*parts)),
    datetime.timezone: (zone_parts, restore_zone),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    type(Ellipsis): (lambda _: None, lambda _: Ellipsis),
    type(NotImplemented): (lambda _: None, lambda _: NotImplemented),
}

# Types whose values are made of others: (take apart, put together).
# range(3) -> [0, 3, 1] -> range(3)
PARTS: dict[Any, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    tuple: (list, lambda *items: items),
    frozenset: (list, lambda *items: frozenset(items)),
    range: (lambda r: [r.start, r.stop, r.step], range),
    slice: (lambda s: [s.start, s.stop, s.step], slice),
    datetime.datetime: (
        lambda d: [
            d.year,
            d.month,
            d.day,
            d.hour,
            d.minute,
            d.second,
            d.microsecond,
            d.tzinfo,
            d.fold,
        ],
        lambda *parts: datetime.datetime(*parts[:-1], fold=parts[-1]),
    ),
    datetime.time: (
        lambda d: [d.hour, d.minute, d.second, d.microsecond, d.tzinfo, d.fold],
        lambda *parts: datetime.time(*parts[:-1], fold=parts[-1]),
    ),
    property: (lambda p: [p.fget, p.fset, p.fdel, p.__doc__], property),
    re.Pattern: (
        lambda p: [p.pattern, p.flags],
        # UNICODE is implied by a pattern of text.
        lambda pattern, flags: re.compile(pattern, flags & ~re.UNICODE),
    ),
    re.Match: (lambda m: [m.re, m.string, m.pos, m.endpos, m.span()], rebuild_match),
    # Views hold their dictionary itself, as they show its later changes.
    type({}.keys()): (gc.get_referents, dict.keys),
    type({}.items()): (gc.get_referents, dict.items),
    type({}.values()): (gc.get_referents, dict.values),
    types.MappingProxyType: (gc.get_referents, types.MappingProxyType),
    types.SimpleNamespace: (
        lambda space: [vars(space)],
        lambda content: types.SimpleNamespace(**content),
    ),
    argparse.Namespace: (
        lambda space: [vars(space)],
        lambda content: argparse.Namespace(**content),
    ),
    collections.ChainMap: (lambda chain: list(chain.maps), collections.ChainMap),
    collections.UserDict: (lambda user: [user.data], user_container(collections.UserDict)),
    collections.UserList: (lambda user: [user.data], user_container(collections.UserList)),
    collections.UserString: (lambda user: [user.data], collections.UserString),
}

TAGS: dict[str, type] = {kind.__name__: kind for kind in (*SCALARS, *PARTS)}

# Types of modules that few programs import, written as text: module, its function that reads the
# text, function that writes it.
RARE: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "UUID": ("uuid", "UUID", str),
    "ZoneInfo": ("zoneinfo", "ZoneInfo", str),
    "PosixPath": ("pathlib", "PosixPath", str),
    "PurePosixPath": ("pathlib", "PurePosixPath", str),
    "Logger": ("logging", "getLogger", operator.attrgetter("name")),
    "RootLogger": ("logging", "getLogger", operator.attrgetter("name")),
}


def is_rare(kind: type) -> bool:
    """Whether a type is one of those in RARE, by identity and not only by name."""
    if kind.__name__ not in RARE:
        return False
    # Not imported here: if the module is absent, no value of its type can exist.
    module = sys.modules.get(RARE[kind.__name__][0])
    return module is not None and kind is getattr(module, kind.__name__, None)


def is_plain(items: Any) -> bool:
    """Whether JSON holds these items unchanged."""
    # `bool` is a type of its own here: True is no int.
    kinds = set(map(type, items))
    if kinds <= PLAIN:
        return True
    return kinds == {int} and min(items) > -LARGEST_NUMBER and max(items) < LARGEST_NUMBER


class ArrayParts(NamedTuple):
    """Content of a numpy array: dtype, shape and bytes in hexadecimal."""

    form: Any
    shape: list[int]
    data: str


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array of plain data, not of Python objects."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def is_number(value: Any) -> bool:
    """Whether a value is a scalar of numpy."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None and isinstance(value, numpy.generic) and type(value) is value.dtype.type
    )


def array_parts(array: Any) -> ArrayParts:
    # A record dtype is a list of its fields, any other one a string: "<f8".
    form = array.dtype.str if array.dtype.names is None else array.dtype.descr
    return ArrayParts(form, list(array.shape), array.tobytes().hex())


def build_array(form: Any, shape: list[int], data: str) -> Any:
    import numpy as np  # only where one of the two has sent one: its import is slow

    kind = np.dtype([tuple(field) for field in form] if isinstance(form, list) else form)
    # Bytes read as objects would be pointers of the sender's choice.
    if kind.hasobject:
        raise UnknownValueError(f"an array of {kind}")
    return np.frombuffer(bytes.fromhex(data), kind).reshape(shape).copy()


def encode(value: Any, convert: Convert) -> Any:
    """Encode a value; `convert` encodes everything that is not plain data."""
    # Exact types throughout: a subclass may override anything, so it is not plain data.
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is int:
        return value if -LARGEST_NUMBER < value < LARGEST_NUMBER else {"t": "int", "v": hex(value)}
    if kind in SCALARS:
        return {"t": kind.__name__, "v": SCALARS[kind][0](value)}
    if kind in PARTS:
        parts = PARTS[kind][0](value)
        return {
            "t": kind.__name__,
            "v": parts if is_plain(parts) else [encode(part, convert) for part in parts],
        }
    if is_rare(kind):
        return {"t": kind.__name__, "v": RARE[kind.__name__][2](value)}
    if kind is ArrayParts or is_number(value):
        parts = value if kind is ArrayParts else array_parts(value)
        return {"t": "array parts" if kind is ArrayParts else "number", "v": list(parts)}
    return convert(value)


def decode(wire: Any, convert: Convert) -> Any:
    """Decode a message; `convert` decodes lists, and tags that are not plain data."""
    if not isinstance(wire, dict):
        return convert(wire) if isinstance(wire, list) else wire
    tag, content = wire.get("t"), wire.get("v")
    if tag == "int" and isinstance(content, str):
        return int(content, 16)
    if tag in ("array parts", "number") and isinstance(content, list):
        return ArrayParts(*content) if tag == "array parts" else build_array(*content)[()]
    if isinstance(tag, str) and tag in RARE and isinstance(content, str):
        # A number of numpy is an array without axes: [()] takes it out.
        module, reader, _ = RARE[tag]
        return getattr(importlib.import_module(module), reader)(content)
    kind = TAGS.get(tag) if isinstance(tag, str) else None
    if kind is None:
        return convert(wire)
    if kind in SCALARS:
        return SCALARS[kind][1](content)
    if not isinstance(content, list):
        raise UnknownValueError(f"a {tag} of {content!r:.40}")
    return PARTS[kind][1](
        *(content if is_plain(content) else [decode(part, convert) for part in content])
    )


def encode_literal(value: Any) -> Any:
    """Encode data without identity: all that a literal can be, as `matches` reads it."""
    kind = type(value)
    if kind is list:
        return value if is_plain(value) else [encode_literal(item) for item in value]
    if kind is dict:
        return {
            "t": "dict",
            "v": [[encode_literal(k), encode_literal(v)] for k, v in value.items()],
        }
    # In `encode` these have identity and go through `convert`.
    if kind is bytearray:
        return {"t": "bytearray", "v": value.hex()}
    if kind is set:
        return {"t": "set", "v": [encode_literal(item) for item in value]}
    if (
        kind in SCALARS
        or kind in PARTS
        or kind is int
        or kind in PLAIN
        or is_rare(kind)
        or is_number(value)
    ):
        return encode(value, encode_literal)
    # Not a literal: its class name is enough for a message, and equals nothing.
    return {"t": "object", "v": type(value).__name__}


def decode_literal(wire: Any) -> Any:
    """Decode what `encode_literal` has written; raises UnknownValueError for anything else."""
    if isinstance(wire, list):
        return [decode_literal(item) for item in wire]
    tag = wire.get("t") if isinstance(wire, dict) else None
    if tag == "dict":
        return {decode_literal(key): decode_literal(value) for key, value in wire["v"]}
    if tag == "bytearray":
        return bytearray.fromhex(wire["v"])
    if tag == "set":
        return {decode_literal(item) for item in wire["v"]}
    if isinstance(wire, dict) and tag not in (*TAGS, *RARE, "int"):
        raise UnknownValueError(f"a value of unknown type {tag!r}")
    return decode(wire, decode_literal)


def canonical(wire: Any) -> Any:
    """Return a form that is the same for all values that Python's == calls equal.

    1, 1.0 and True -> 1; {2, 1} and frozenset({1, 2}) -> ("set", [1, 2])

    Sets and dictionaries become sorted lists and are never built: no chosen hash can slow this
    process down.
    """
    if isinstance(wire, bool | int):
        return int(wire)
    if isinstance(wire, float):
        return int(wire) if math.isfinite(wire) and wire == int(wire) else wire
    if isinstance(wire, list):
        return ("list", [canonical(item) for item in wire])
    if not isinstance(wire, dict):
        return wire
    tag, content = wire.get("t"), wire["v"]
    if tag == "int":
        return int(content, 16)
    if tag == "complex":
        # A complex number without an imaginary part equals its real part.
        return (
            canonical(content[0])
            if content[1] == 0
            else (tag, canonical(content[0]), canonical(content[1]))
        )
    if tag in ("set", "frozenset"):
        # Sorted by text, as the items may be of types that have no order.
        return ("set", sorted((canonical(item) for item in content), key=repr))
    if tag == "dict":
        return (
            tag,
            sorted(([canonical(key), canonical(value)] for key, value in content), key=repr),
        )
    if tag in ("bytes", "bytearray"):
        return ("bytes", content)
    if tag == "tuple":
        return (tag, [canonical(item) for item in content])
    # A tag without rules of its own: only the same tag with the same content is equal.
    return (tag, content)


LITERALS = {"int", "complex", "set", "frozenset", "dict", "bytes", "bytearray", "tuple"}


def is_literal(wire: Any) -> bool:
    """Whether a message consists only of the forms of literals, which `matches` can judge."""
    if isinstance(wire, list):
        return all(is_literal(item) for item in wire)
    if not isinstance(wire, dict):
        return True
    tag, content = wire.get("t"), wire.get("v")
    return (
        isinstance(tag, str)
        and tag in LITERALS
        and (is_literal(content) if isinstance(content, list) else isinstance(content, str))
    )


def matches(expected: Any, wire: Any) -> bool:
    """Compare a message with the expected literal as Python's == compares the values."""
    return canonical(encode_literal(expected)) == canonical(wire)

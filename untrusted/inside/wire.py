"""Values as JSON.

None, booleans, text, floats and integers of ordinary size are themselves. Every other value is an
object `{"t": type, "v": parts}`, by exact type. So a tuple is no list, and an object that claims to
equal everything is only an object. Imports the standard library only: both ends use it.
"""

import collections
import datetime
import gc
import importlib
import json
import operator
import re
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

# From here on, integers cross in hexadecimal: Python limits the digits of decimal conversions.
LARGEST_NUMBER = 10**1000
# Bytes of one message; a program that answers with more has failed.
MAX_MESSAGE = 4 * 2**20
PLAIN = frozenset({type(None), bool, str, float})

Convert = Callable[[Any], Any]
# How values of a type are taken apart into a list of parts, and put together again.
Form = tuple[Callable[[Any], list], Callable[..., Any]]


class UnknownValueError(ValueError):
    """Raised for a value or a message that this module has no form for."""


def by(*attributes: str) -> Callable[[Any], list]:
    """Return a function that lists these attributes of a value."""
    return lambda value: [getattr(value, name) for name in attributes]


def dictionary_of(view: Any) -> list:
    """Return the dictionary that a view shows, itself: it may change later.

    Of a class of the program, a copy: it is no dictionary for the other end.
    """
    (shown,) = gc.get_referents(view)
    is_plain = type(shown).__module__ in ("builtins", "collections")
    return [shown if is_plain else dict(dict.items(shown))]


TEXT: Callable[[Any], list] = lambda value: [str(value)]  # noqa: E731
FORMS: dict[type, Form] = {
    tuple: (list, lambda *items: items),
    frozenset: (list, lambda *items: frozenset(items)),
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (by("real", "imag"), complex),
    Decimal: (TEXT, Decimal),
    Fraction: (by("numerator", "denominator"), Fraction),
    range: (by("start", "stop", "step"), range),
    slice: (by("start", "stop", "step"), slice),
    type(Ellipsis): (by(), lambda: Ellipsis),
    type(NotImplemented): (by(), lambda: NotImplemented),
    datetime.timedelta: (by("days", "seconds", "microseconds"), datetime.timedelta),
    datetime.timezone: (lambda zone: list(zone.__getinitargs__()), datetime.timezone),
    datetime.date: (by("year", "month", "day"), datetime.date),
    datetime.datetime: (
        lambda value: [value.replace(tzinfo=None).isoformat(), value.tzinfo, value.fold],
        lambda text, zone, fold: datetime.datetime.fromisoformat(text).replace(
            tzinfo=zone, fold=fold
        ),
    ),
    datetime.time: (
        lambda value: [value.replace(tzinfo=None).isoformat(), value.tzinfo, value.fold],
        lambda text, zone, fold: datetime.time.fromisoformat(text).replace(tzinfo=zone, fold=fold),
    ),
    # UNICODE is implied by a pattern of text.
    re.Pattern: (by("pattern", "flags"), lambda text, flags: re.compile(text, flags & ~re.UNICODE)),
    type({}.keys()): (dictionary_of, dict.keys),
    type({}.items()): (dictionary_of, dict.items),
    type({}.values()): (dictionary_of, dict.values),
    types.MappingProxyType: (dictionary_of, types.MappingProxyType),
    collections.ChainMap: (lambda chain: list(chain.maps), collections.ChainMap),
    collections.UserString: (by("data"), collections.UserString),
}  # fmt: skip
TAGS = {kind.__name__: kind for kind in FORMS}

# Types of modules that few programs import: module, its function that reads the text, the text.
RARE: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    **{name: ("pathlib", name, str) for name in ("PosixPath", "PurePosixPath")},
    **{name: ("logging", "getLogger", operator.attrgetter("name")) for name in ("Logger", "RootLogger")},
    "UUID": ("uuid", "UUID", str),
    "ZoneInfo": ("zoneinfo", "ZoneInfo", str),
}  # fmt: skip


def is_rare(kind: type) -> bool:
    """Whether a type is one of those in RARE, by identity and not only by name."""
    # Not imported here: if the module is absent, no value of its type can exist.
    module = sys.modules.get(RARE[kind.__name__][0]) if kind.__name__ in RARE else None
    return module is not None and kind is getattr(module, kind.__name__, None)


def is_plain(items: Any) -> bool:
    """Whether JSON holds these items unchanged."""
    # `bool` is a type of its own here: True is no int.
    kinds = set(map(type, items))
    if kinds <= PLAIN:
        return True
    return kinds == {int} and min(items) > -LARGEST_NUMBER and max(items) < LARGEST_NUMBER


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


def is_dtype(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.dtype)


def dtype_text(kind: Any) -> str:
    # A record dtype is a list of its fields.
    return json.dumps(kind.str if kind.names is None else kind.descr)


def build_dtype(text: str) -> Any:
    import numpy as np  # only where one of the two has sent one: its import is slow

    form = json.loads(text)
    return np.dtype([tuple(field) for field in form] if isinstance(form, list) else form)


def array_parts(array: Any) -> list[str]:
    """Take a numpy array apart: its dtype, its shape, its bytes.

    np.array([[1], [2]], np.int8) -> ['"|i1"', "[2, 1]", "0102"]
    """
    return [dtype_text(array.dtype), json.dumps(array.shape), array.tobytes().hex()]


def build_array(form: str, shape: str, data: str) -> Any:
    import numpy as np  # as above

    kind = build_dtype(form)
    # Bytes read as objects would be pointers of the sender's choice.
    if kind.hasobject:
        raise UnknownValueError(f"an array of {kind}")
    return np.frombuffer(bytes.fromhex(data), kind).reshape(json.loads(shape)).copy()


def encode(value: Any, convert: Convert) -> Any:
    """Encode a value; `convert` encodes everything that is not plain data."""
    # Exact types throughout: a subclass may override anything, so it is not plain data.
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is int:
        return value if -LARGEST_NUMBER < value < LARGEST_NUMBER else {"t": "int", "v": hex(value)}
    if kind in FORMS:
        parts = FORMS[kind][0](value)
        plain = is_plain(parts)
        return {"t": kind.__name__, "v": parts if plain else [encode(p, convert) for p in parts]}
    if is_rare(kind):
        return {"t": kind.__name__, "v": RARE[kind.__name__][2](value)}
    if is_number(value):
        return {"t": "number", "v": array_parts(value)}
    if is_dtype(value):
        return {"t": "dtype", "v": dtype_text(value)}
    return convert(value)


def decode(wire: Any, convert: Convert) -> Any:
    """Decode a message; `convert` decodes lists, and tags that are not plain data."""
    if not isinstance(wire, dict):
        return convert(wire) if isinstance(wire, list) else wire
    tag, content = wire.get("t"), wire.get("v")
    if not isinstance(tag, str):
        raise UnknownValueError(f"a value of type {tag!r:.40}")
    if tag in TAGS and isinstance(content, list):
        parts = content if is_plain(content) else [decode(part, convert) for part in content]
        return FORMS[TAGS[tag]][1](*parts)
    if tag == "number" and isinstance(content, list):
        # A number is an array without axes: [()] takes it out.
        return build_array(*content)[()]
    if tag in ("int", "dtype") and isinstance(content, str):
        return int(content, 16) if tag == "int" else build_dtype(content)
    if tag in RARE and isinstance(content, str):
        module, reader, _ = RARE[tag]
        return getattr(importlib.import_module(module), reader)(content)
    return convert(wire)


# Literals: the data of a test that is one call, whose result the parent compares.


def encode_literal(value: Any) -> Any:
    """Encode data without identity: all that a literal can be."""
    return encode(value, literal_form)


def literal_form(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return value if is_plain(value) else [encode_literal(item) for item in value]
    if kind is dict:
        parts = [part for pair in value.items() for part in pair]
    elif kind in (set, bytearray):
        parts = list(value)
    else:
        # Its class name is enough for a message, and equals nothing.
        return {"t": "object", "v": kind.__name__}
    return {"t": kind.__name__, "v": parts if is_plain(parts) else list(map(encode_literal, parts))}


def decode_literal(wire: Any) -> Any:
    """Decode what `encode_literal` has written; raises UnknownValueError for anything else."""
    return decode(wire, literal_value)


def literal_value(wire: Any) -> Any:
    if isinstance(wire, list):
        return [decode_literal(item) for item in wire]
    if wire["t"] not in ("dict", "set", "bytearray"):
        raise UnknownValueError(f"a value of unknown type {wire['t']!r}")
    parts = [decode_literal(part) for part in wire["v"]]
    if wire["t"] == "dict":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return set(parts) if wire["t"] == "set" else bytearray(parts)

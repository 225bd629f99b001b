"""Values as JSON.

None, booleans, text, floats and integers of ordinary size are themselves. Every other value is an
object `{"t": type, "v": parts}`, by exact type. So a tuple is no list, and an object that claims to
equal everything is only an object. Imports the standard library only: both ends use it.
"""

import collections
import datetime
import gc
import importlib
import io
import operator
import re
import sys
import types
from collections.abc import Callable, Sequence
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


def pickled_arguments(value: Any) -> list:
    """List what a value's type is called with to make an equal one, as pickle would call it."""
    return list(value.__reduce_ex__(2)[1])


def dictionary_of(view: Any) -> list:
    """Return the dictionary that a view shows, itself: it may change later."""
    # Of a class of the program, a copy: it is no dictionary for the other end.
    return [d if type(d) is dict else dict(view.mapping) for d in gc.get_referents(view)]


FORMS: dict[type, Form] = {
    tuple: (list, lambda *items: items),
    frozenset: (list, lambda *items: frozenset(items)),
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (by("real", "imag"), complex),
    # UNICODE is implied by a pattern of text.
    re.Pattern: (by("pattern", "flags"), lambda text, flags: re.compile(text, flags & ~re.UNICODE)),
    type(Ellipsis): (by(), lambda: Ellipsis),
    type(NotImplemented): (by(), lambda: NotImplemented),
    type({}.keys()): (dictionary_of, dict.keys),
    type({}.items()): (dictionary_of, dict.items),
    type({}.values()): (dictionary_of, dict.values),
    types.MappingProxyType: (lambda view: [dict(view)], types.MappingProxyType),
    collections.ChainMap: (lambda chain: list(chain.maps), collections.ChainMap),
    collections.UserString: (by("data"), collections.UserString),
}
for _kind in (Decimal, Fraction, range, slice, *(getattr(datetime, name) for name in
              ("timedelta", "timezone", "date", "datetime", "time"))):  # fmt: skip
    FORMS[_kind] = pickled_arguments, _kind
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


def convert_all(items: Sequence[Any], convert: Convert) -> list:
    """Convert each item; plain ones, which are themselves, all at once."""
    return list(items) if is_plain(items) else [convert(item) for item in items]


def is_array(value: Any) -> bool:
    """Whether a value is a numpy array of plain data, not of Python objects."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def numpy_kind(value: Any) -> str:
    """Return "number" for a scalar of numpy, "dtype" for a type of numbers, else an empty text."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.dtype):
        return ""
    if isinstance(value, numpy.dtype):
        return "dtype"
    return "number" if type(value) is value.dtype.type else ""


def array_text(array: Any) -> str:
    """Write a numpy array of plain data as numpy's files have it, in hexadecimal."""
    import numpy as np  # only where one of the two has sent one: its import is slow

    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return file.getvalue().hex()


def read_array(text: str) -> Any:
    import numpy as np  # as above

    # Bytes read as objects would be pointers of the sender's choice: refused like pickles.
    return np.lib.format.read_array(io.BytesIO(bytes.fromhex(text)), allow_pickle=False)


def array_of(value: Any) -> Any:
    """Return an array that tells a scalar or a dtype of numpy."""
    return value if numpy_kind(value) == "number" else sys.modules["numpy"].empty(0, value)


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
        return {"t": kind.__name__, "v": convert_all(parts, lambda part: encode(part, convert))}
    if is_rare(kind):
        return {"t": kind.__name__, "v": RARE[kind.__name__][2](value)}
    if tag := numpy_kind(value):
        return {"t": tag, "v": array_text(array_of(value))}
    return convert(value)


def decode(wire: Any, convert: Convert) -> Any:
    """Decode a message; `convert` decodes lists, and tags that are not plain data."""
    if not isinstance(wire, dict):
        return convert(wire) if isinstance(wire, list) else wire
    tag, content = wire.get("t"), wire.get("v")
    if not isinstance(tag, str):
        raise UnknownValueError(f"a value of type {tag!r:.40}")
    if tag in TAGS and isinstance(content, list):
        return FORMS[TAGS[tag]][1](*convert_all(content, lambda part: decode(part, convert)))
    if not isinstance(content, str):
        return convert(wire)
    if tag == "int":
        return int(content, 16)
    if tag in ("number", "dtype"):
        array = read_array(content)
        # A number is an array without axes: [()] takes it out.
        return array[()] if tag == "number" else array.dtype
    if tag in RARE:
        module, reader, _ = RARE[tag]
        return getattr(importlib.import_module(module), reader)(content)
    return convert(wire)


# Literals: the data of a test that is one call, whose result the parent compares.


def encode_literal(value: Any) -> Any:
    """Encode data without identity: all that a literal can be."""
    return encode(value, literal_form)


def literal_form(value: Any) -> Any:
    kind = type(value)
    if kind not in (list, dict, set, bytearray):
        # Its class name is enough for a message, and equals nothing.
        return {"t": "object", "v": kind.__name__}
    items = [part for pair in value.items() for part in pair] if kind is dict else list(value)
    parts = convert_all(items, encode_literal)
    return parts if kind is list else {"t": kind.__name__, "v": parts}


def decode_literal(wire: Any) -> Any:
    """Decode what `encode_literal` has written; raises UnknownValueError for anything else."""
    return decode(wire, literal_value)


def literal_value(wire: Any) -> Any:
    if isinstance(wire, list):
        return convert_all(wire, decode_literal)
    tag, parts = wire["t"], convert_all(wire["v"], decode_literal)
    if tag == "dict":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if tag not in ("set", "bytearray"):
        raise UnknownValueError(f"a value of unknown type {tag!r}")
    return set(parts) if tag == "set" else bytearray(parts)

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
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
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
    """Raised for a value that is no literal."""


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
    int: (lambda value: [hex(value)], lambda text: int(text, 16)),
    tuple: (list, lambda *items: items),
    frozenset: (list, lambda *items: frozenset(items)),
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (by("real", "imag"), complex),
    re.Pattern: (by("pattern", "flags"), re.compile),
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


def importing(name: str) -> Callable[[Any], Any]:
    """Return a function of a text whose module is imported when it is called: "uuid.UUID"."""
    module, _, member = name.partition(".")
    # An object of the program could give another text each time that it is read.
    return lambda text: getattr(importlib.import_module(module), member)(str(text))


def as_text(value: Any) -> list:
    return [str(value)]


# Types of modules that few programs import.
RARE: dict[str, Form] = {
    **{name: (as_text, importing(name)) for name in
       ("pathlib.PosixPath", "pathlib.PurePosixPath", "uuid.UUID", "zoneinfo.ZoneInfo")},
    **dict.fromkeys(("logging.Logger", "logging.RootLogger"), (by("name"), importing("logging.getLogger"))),
    # A number is an array without axes: [()] takes it out.
    "number": (lambda number: [array_text(number)], lambda text: read_array(text)[()]),
    "dtype": (lambda kind: [array_text(sys.modules["numpy"].empty(0, kind))], lambda text: read_array(text).dtype),
}  # fmt: skip
TAGS = {kind.__name__: form for kind, form in FORMS.items()} | RARE


def are_plain(items: Iterable[Any]) -> bool:
    """Whether JSON holds these items unchanged."""
    # `bool` is a type of its own here: True is no int.
    kinds = set(map(type, items))
    if kinds <= PLAIN:
        return True
    return kinds == {int} and min(items) > -LARGEST_NUMBER and max(items) < LARGEST_NUMBER


def convert_all(items: Sequence[Any], convert: Convert) -> list:
    """Convert each item; plain ones, which are themselves, all at once."""
    return list(items) if are_plain(items) else [convert(item) for item in items]


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


def tag_of(value: Any) -> str:
    """Return the tag under which FORMS or RARE take a value apart; empty if they do not."""
    # Exact types: a subclass may override anything, so it is not plain data.
    kind = type(value)
    if kind in FORMS:
        return kind.__name__
    # Python 3.13 has its paths in pathlib._local.
    tag = numpy_kind(value) or f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}"
    return tag if tag in RARE else ""


# Literals: what a test that is one call expects, and what the program answers

BRACKETS = {
    list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("set(", ")"), frozenset: ("set(", ")"),
}  # fmt: skip


def canonical(value: Any) -> str:
    """Return a literal as a text that is the same for all values that Python's == calls equal.

    1, 1.0 and True -> "1"; (1, "a") -> "(1, 'a')"; {2, 1} and frozenset({1, 2}) -> "set(1, 2)"

    Each end writes its own value, so that two of them are compared without being rebuilt: no chosen
    hash, length or depth can slow the parent down. Raises UnknownValueError for any other value.
    """
    kind = type(value)
    if kind is complex:
        # A complex number without an imaginary part equals its real part.
        real, imaginary = canonical(value.real), canonical(value.imag)
        return real if imaginary == "0" else f"({real}, {imaginary}j)"
    if kind is bool or (kind is float and value.is_integer()):
        value, kind = int(value), int
    if kind is int and abs(value) >= LARGEST_NUMBER:
        return hex(value)
    if value is None or kind in (int, float, str):
        return repr(value)
    if kind in (bytes, bytearray):
        return repr(bytes(value))
    if kind not in BRACKETS:
        raise UnknownValueError(f"an object of type {kind.__name__}")
    if kind is dict:
        items = [f"{canonical(key)}: {canonical(item)}" for key, item in value.items()]
    else:
        items = list(map(canonical, value))
    # What has no order gets one.
    items = items if kind in (list, tuple) else sorted(items)
    first, last = BRACKETS[kind]
    return f"{first}{', '.join(items)}{last}"

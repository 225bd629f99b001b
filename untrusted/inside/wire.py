"""Write plain values as JSON.

None, booleans, text, floats and integers of ordinary size are written as they are. Every other
value is an object with its exact type and its parts, so that a tuple is not a list, and an object
that claims to equal everything is not plain data:

    (1, 2) -> {"t": "tuple", "v": [1, 2]}
    date(2024, 5, 17) -> {"t": "date", "v": [{"t": "bytes", "v": ["07e80511"]}]}

Imports the standard library only: both ends use it.
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
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Union

# Integers from here on are written in hexadecimal: Python limits decimal conversions.
LARGEST_NUMBER = 10**1000
# Largest answer to the parent in bytes; a program that sends more has failed.
MAX_MESSAGE = 4 * 2**20
PLAIN = frozenset({type(None), bool, str, float})

# Encodes or decodes a part of a value.
Convert = Callable[[Any], Any]
# Two functions for the values of a type: one lists the parts of a value, the other rebuilds it.
Form = tuple[Callable[[Any], list], Callable[..., Any]]


class UnknownValueError(ValueError):
    """Raised for a value that is not a literal."""


def by(*attributes: str) -> Callable[[Any], list]:
    """Return a function that lists these attributes of a value."""
    return lambda value: [getattr(value, name) for name in attributes]


def pickled_arguments(value) -> list:
    """List the arguments with which pickle would call a value's type to make an equal value."""
    return list(value.__reduce_ex__(2)[1])


def dictionary_of(view) -> list:
    """List the dictionary of a view; of a subclass, which cannot cross, a plain copy."""
    return [d if type(d) is dict else dict(view.mapping) for d in gc.get_referents(view)]


def from_text(kind: Callable[[str], Any]) -> Convert:
    """Return a function that calls `kind` with a text of exactly this type.

    An object of the program whose class derives from `str` would answer what is asked of the value.
    """
    return lambda text: kind(str.__str__(text))


def as_text(value) -> list:
    return [str(value)]


UNION: Any = Union
FORMS: dict[type, Form] = {
    int: (lambda value: [hex(value)], lambda text: int(text, 16)),
    tuple: (list, lambda *items: items),
    frozenset: (list, lambda *items: frozenset(items)),
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (by("real", "imag"), complex),
    re.Pattern: (by("pattern", "flags"), re.compile),
    types.EllipsisType: (by(), types.EllipsisType),
    types.NotImplementedType: (by(), types.NotImplementedType),
    types.MappingProxyType: (lambda view: [dict(view)], types.MappingProxyType),
    collections.ChainMap: (lambda chain: list(chain.maps), collections.ChainMap),
    collections.UserString: (as_text, from_text(collections.UserString)),
    Fraction: (as_text, from_text(Fraction)),
    types.GenericAlias: (by("__origin__", "__args__"), types.GenericAlias),
    types.UnionType: (by("__args__"), UNION.__getitem__),
    type(UNION[int, str]): (by("__args__"), UNION.__getitem__),
}
for _view in (dict.keys, dict.items, dict.values):
    FORMS[type(_view({}))] = dictionary_of, _view
for _kind in (Decimal, range, slice, *(getattr(datetime, name) for name in
              ("timedelta", "timezone", "date", "datetime", "time"))):  # fmt: skip
    FORMS[_kind] = pickled_arguments, _kind


def importing(name: str) -> Convert:
    """Return a function, such as "uuid.UUID", that imports its module when it is called."""
    module, _, member = name.partition(".")
    return from_text(lambda text: getattr(importlib.import_module(module), member)(text))


def cells_of(column) -> list:
    """List the values of a series or an index of pandas, and the text of its dtype.

    Raises UnknownValueError for periods, intervals and the like, whose objects do not cross.
    """
    cells = tuple(column)
    if column.dtype != object and not all(map(is_written, cells)):
        raise UnknownValueError(f"values of type {column.dtype}")
    return [cells, str(column.dtype)]


def parts_of_frame(frame) -> list:
    columns = (frame.iloc[:, number] for number in range(frame.shape[1]))
    return [frame.index, frame.columns, *(tuple(cells_of(column)) for column in columns)]


def build_frame(index, labels, *columns):
    import pandas as pd  # slow to import, so only if a frame crosses

    # By number, as labels may occur twice
    series = {n: pd.Series(cells, dtype=dtype) for n, (cells, dtype) in enumerate(columns)}
    frame = pd.DataFrame(series, index=range(len(index)))
    frame.index = index
    frame.columns = labels
    return frame


def build_series(cells, dtype: str, index, name):
    import pandas as pd  # as above

    return pd.Series(list(cells), index, dtype, name)


def build_index(cells, dtype: str, names: Any, frequency: str | None):
    import pandas as pd  # as above

    if len(names) > 1:
        return pd.MultiIndex.from_tuples(cells, names=names)
    [name] = names
    index = pd.Index(list(cells), dtype, name=name, tupleize_cols=False)
    if frequency:
        index.freq = frequency  # pyright: ignore[reportAttributeAccessIssue]
    return index


def of_pandas(name: str):
    """Return a class or value of pandas, such as `pandas.NaT`."""
    return getattr(importlib.import_module("pandas"), name)


# Types of pandas that hold many values.
INDEXES = ("Index", "RangeIndex", "DatetimeIndex", "TimedeltaIndex", "MultiIndex")
FRAMES: dict[str, Form] = {
    "pandas.DataFrame": (parts_of_frame, build_frame),
    "pandas.Series": (lambda series: [*cells_of(series), series.index, series.name], build_series),
    **{
        f"pandas.{name}": (
            lambda index: [*cells_of(index), tuple(index.names), getattr(index, "freqstr", None)],
            build_index,
        )
        for name in INDEXES
    },
}
# Those that can change: both ends share them as they share a list.
CHANGING = ("DataFrame", "Series")
# Larger ones stay at their end.
LARGEST_FRAME = 100_000
# Types from modules that few programs import.
RARE: dict[str, Form] = {
    **FRAMES,
    "pandas.Timestamp": (lambda time: [time.isoformat()], importing("pandas.Timestamp")),
    "pandas.Timedelta": (lambda time: [time.isoformat()], importing("pandas.Timedelta")),
    "pandas.NaTType": (by(), partial(of_pandas, "NaT")),
    "pandas.NAType": (by(), partial(of_pandas, "NA")),
    **{name: (lambda value: [str(value)], importing(name)) for name in
       ("pathlib.PosixPath", "pathlib.PurePosixPath", "uuid.UUID", "zoneinfo.ZoneInfo")},
    # A number of numpy is an array without axes; [()] returns the number.
    "number": (lambda number: [array_text(number)], lambda text: read_array(text)[()]),
    "dtype": (lambda kind: [array_text(sys.modules["numpy"].empty(0, kind))], lambda text: read_array(text).dtype),
}  # fmt: skip
TAGS = {kind.__name__: form for kind, form in FORMS.items()} | RARE


def are_plain(items: Iterable[Any]) -> bool:
    """Whether JSON holds these items unchanged."""
    # Exact types: True is a bool here, not an int.
    kinds = set(map(type, items))
    if kinds <= PLAIN:
        return True
    return kinds == {int} and min(items) > -LARGEST_NUMBER and max(items) < LARGEST_NUMBER


def convert_all(items: Sequence[Any], convert: Convert) -> list:
    """Convert each item; if all are plain, return them unchanged without a call per item."""
    return list(items) if are_plain(items) else [convert(item) for item in items]


def is_array(value) -> bool:
    """Whether a value is a numpy array of plain data, not of Python objects."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def numpy_kind(value) -> str:
    """Return "number" for a numpy scalar, "dtype" for a numpy dtype, else an empty string."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.dtype):
        return ""
    if isinstance(value, numpy.dtype):
        return "dtype"
    return "number" if type(value) is value.dtype.type else ""


def array_text(array) -> str:
    """Write a numpy array of plain data in the format of .npy files, in hexadecimal."""
    import numpy as np  # slow to import, so only if an array crosses

    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return file.getvalue().hex()


def read_array(text: str):
    import numpy as np  # as above

    # Never arrays of objects, which numpy would unpickle.
    return np.lib.format.read_array(io.BytesIO(bytes.fromhex(text)), allow_pickle=False)


def rare_name(kind: type) -> str:
    """Return the key that a type has in RARE, if it is there: "pandas.Series"."""
    # Python 3.13 has its paths in pathlib._local.
    return f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}"


def is_frame(value) -> bool:
    """Whether a value is a data frame, a series or an index of pandas."""
    return rare_name(type(value)) in FRAMES


def is_carried(frame) -> bool:
    """Whether the other end can build an equal frame, series or index from its parts."""
    if frame.size > LARGEST_FRAME:
        return False
    list_parts, build = FRAMES[rare_name(type(frame))]
    # Whatever pandas raises: a frequency of its own, say, fits no text.
    with suppress(Exception):
        parts = list_parts(frame)
        return all(map(is_written, parts)) and build(*parts).equals(frame)
    return False


def can_change(value) -> bool:
    """Whether a value is a data frame or a series."""
    # By the name first, as every container is asked with every message.
    return type(value).__name__ in CHANGING and is_frame(value)


def is_written(value) -> bool:
    """Whether a value, or a tuple of any values, is written as plain data."""
    return are_plain([value]) or bool(tag_of(value))


def tag_of(value) -> str:
    """Return the key of TAGS for the type of a value; empty if there is none."""
    # Exact types: a subclass may override anything, so it is not plain data.
    kind = type(value)
    if kind in FORMS:
        return kind.__name__
    tag = numpy_kind(value) or rare_name(kind)
    if tag in FRAMES and not is_carried(value):
        return ""
    return tag if tag in RARE else ""


# Literals: the expected and the actual result of a test that is a single call

BRACKETS = {list: "[%s]", tuple: "(%s)", dict: "{%s}", set: "set(%s)", frozenset: "set(%s)"}


def canonical(value: Any) -> str:
    """Return a canonical text of a literal: two texts are equal if and only if the literals are.

    1, 1.0 and True -> "1"; (1, "a") -> "(1, 'a')"; {2, 1} and frozenset({1, 2}) -> "set(1, 2)"

    The parent compares its own text with the program's and never rebuilds the program's value, whose
    hashes, length or depth could slow it down. Raises UnknownValueError for any other value.
    """
    kind = type(value)
    if kind is bool or (kind is float and value.is_integer()):
        value = int(value)
        kind = int
    if kind is int and abs(value) >= LARGEST_NUMBER:
        return hex(value)
    if value is None or kind in (int, float, str):
        return repr(value)
    if kind not in BRACKETS:
        raise UnknownValueError(f"an object of type {kind.__name__}")
    if kind is dict:
        items = [f"{canonical(key)}: {canonical(item)}" for key, item in value.items()]
    else:
        items = list(map(canonical, value))
    # Sets and dictionaries are sorted by text.
    items = items if kind in (list, tuple) else sorted(items)
    return BRACKETS[kind] % ", ".join(items)

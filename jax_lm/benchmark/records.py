"""Measurements as plain data, and back: frozen dataclasses in JSON. Knows no measurement."""

from dataclasses import asdict, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def plain_data(record: Any) -> dict[str, Any]:
    """Turn a dataclass, and those within it, into dicts; fields that are None are left out."""
    return asdict(record, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None})


def read_record(kind: type[Kind], data: Any) -> Kind:
    """Build a dataclass, and those within it, from what JSON made of it.

    Raises:
        ValueError: the data has other fields.
    """
    try:
        return _value(kind, data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from error


def _value(kind: Any, data: Any) -> Any:
    arguments = get_args(kind)
    if NoneType in arguments:
        return None if data is None else _value(next(each for each in arguments if each is not NoneType), data)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _value(hints[name], value) for name, value in data.items()})
    # Tuples here hold one type, whatever their length.
    return tuple(_value(arguments[0], each) for each in data) if get_origin(kind) is tuple else data

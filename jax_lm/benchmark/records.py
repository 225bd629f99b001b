"""Measurements, which are frozen dataclasses, as plain data and back, and as tables. Knows no measurement."""

from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from jax_lm.planning.roofline import GIB
from jax_lm.reports.charts import Series, line_chart, rounded_up
from jax_lm.reports.document import Section

SHARES = ("roofline", "overhead")

Kind = TypeVar("Kind")


def plain_data(record: Any) -> dict[str, Any]:
    """Turn a dataclass, and those within it, into dicts; fields that are None are left out."""
    return asdict(record, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None})


def read_record(kind: type[Kind], data: Any) -> Kind:
    """Build a dataclass, and those within it, from what JSON made of it; ValueError if the data has other fields."""
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


def table_section(title: str, records: Sequence[Any], leave_out: Sequence[str] = (), **others: Any) -> Section:
    """Lay out records of one kind as a table: a row for each, a column for each field that is one value."""
    names = [each.name for each in fields(records[0]) if each.name not in leave_out]
    names = [name for name in names if not isinstance(getattr(records[0], name), tuple | dict)]
    columns = [name.replace("_", " ").replace("bytes", "GiB") for name in names]
    rows = [[cell_text(name, getattr(record, name)) for name in names] for record in records]
    return Section(title=title, columns=columns, rows=rows, **others)


def cell_text(name: str, value: Any) -> str:
    """Write a value in the unit that the name of its field asks for."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("bytes"):
        return f"{value / GIB:.2f}"
    if name in SHARES:
        return f"{value:.0%}"
    if name.endswith("per_second"):
        return f"{value:,.1f}"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


def scaled_chart(title: str, x_label: str, y_label: str, series: Series) -> str:
    """Draw lines over an axis that ends above the largest value."""
    largest = max((value or 0.0 for points in series.values() for _, value in points), default=1.0)
    return line_chart(title, x_label, y_label, series, top=rounded_up(largest))

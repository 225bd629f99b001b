"""Build dataclasses from plain data, such as parsed JSON, checked by the types of their fields.

Imports the standard library only.
"""

import dataclasses
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

# Names of the types of plain data in error messages.
TITLES = {
    str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object",
    NoneType: "null",
}  # fmt: skip


def from_plain(kind, data, name: str) -> Any:
    """Build a value of a type from plain data. Raises ValueError that names the field and the rule.

    Args:
        kind: a dataclass, `tuple[kind, ...]`, a plain type, or a union of these.
        data: plain data.
        name: name of the field, for error messages.
    """
    # str | Case -> {str: str, dict: Case}: the type of the data selects one member of a union.
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    shapes = {shape_of(part): part for part in kinds}
    part = shapes.get(type(data))
    if part is None:
        allowed = " or ".join(dict.fromkeys(TITLES[shape] for shape in shapes))
        raise ValueError(f"{name}={data!r:.80}: must be {allowed}")
    if isinstance(data, list):
        return tuple(from_plain(get_args(part)[0], item, name) for item in data)
    if not isinstance(data, dict):
        return data
    hints = get_type_hints(part)
    if set(data) <= set(hints):
        fields = {field: from_plain(hints[field], value, field) for field, value in data.items()}
        # A required field may be missing.
        with suppress(TypeError):
            return part(**fields)
    raise ValueError(f"{name}: must be an object with {', '.join(hints)}, not {sorted(data)!r:.80}")


def shape_of(kind) -> type:
    """Return the type of plain data that represents a type, such as dict for a dataclass."""
    if dataclasses.is_dataclass(kind):
        return dict
    return {tuple: list, Literal: str}.get(get_origin(kind), kind)

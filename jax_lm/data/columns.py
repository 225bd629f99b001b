"""Columns of data that are called otherwise than we call them. Standard library only."""

from collections.abc import Mapping
from typing import Any

# Our name of a column (text, prompt, response, messages), and its name in the data.
Columns = tuple[tuple[str, str], ...]


class BadRowError(ValueError):
    """A line that cannot be used; the message says why."""


def require_columns(fields: Mapping[str, Any], columns: Columns) -> None:
    """BadRowError names a column that the fields lack."""
    for _, column in columns:
        if column not in fields:
            raise BadRowError(
                f"has no column {column!r}, only {', '.join(map(str, fields)) or 'none'}"
            )

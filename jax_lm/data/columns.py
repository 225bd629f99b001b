"""Mapping of column names in the data to ours. Standard library only."""

from collections.abc import Mapping
from typing import Any

# Pairs of our name of a column (text, prompt, response, messages) and its name in the data.
Columns = tuple[tuple[str, str], ...]


class BadRowError(ValueError):
    """Raised for a line that cannot be used; the message states the reason."""


def require_columns(fields: Mapping[str, Any], columns: Columns) -> None:
    """Raise BadRowError for a column that is missing in the fields."""
    for _, column in columns:
        if column not in fields:
            raise BadRowError(
                f"has no column {column!r}, only {', '.join(map(str, fields)) or 'none'}"
            )

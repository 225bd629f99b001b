"""Mapping of column names in the data to ours. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Pairs of our name of a column (text, prompt, response, messages) and its name in the data.
Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ConversationForm:
    """What a model sees and learns of a row of prompt and response, or of a conversation.

    Attributes:
        template: auto applies the chat template to conversations alone, and a prompt with its
            response is plain text; chat applies it to both.
        turns: learn the last answer of a conversation, or all of them; with all, each answer is a
            sample of its own, after what was said before it.
    """

    template: Literal["auto", "chat"] = "auto"
    turns: Literal["last", "all"] = "last"


PLAIN_FORM = ConversationForm()


class BadRowError(ValueError):
    """Raised for a line that cannot be used; the message states the reason."""


def require_columns(fields: Mapping[str, Any], columns: Columns) -> None:
    """Raise BadRowError for a column that is missing in the fields."""
    for _, column in columns:
        if column not in fields:
            raise BadRowError(
                f"has no column {column!r}, only {', '.join(map(str, fields)) or 'none'}"
            )

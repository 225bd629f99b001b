"""Fields of a line of data, and the mapping of their names to ours. Standard library only."""

import json
from dataclasses import dataclass
from typing import Literal

from jax_lm.config import Fields, pairs

# The file that makes a folder a tokenised data set.
DATASET = "dataset.json"
# Kinds of rows: plain text, or conversations.
Kind = Literal["text", "conversations"]
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


# Roles of messages as they are named, and speakers of ShareGPT with their roles.
ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
SPEAKERS = pairs("system system  human user  user user  gpt assistant  assistant assistant")


class BadRowError(ValueError):
    """Raised for a line that cannot be used; the message states the reason."""


def row_fields(line, plain: str | None = None) -> Fields:
    """Return the fields of a source's line, which is UTF-8 JSON or an already parsed value.

    Args:
        line: the line.
        plain: name of the only field of a line that is a JSON string.

    Raises:
        BadRowError: the line is not a JSON object.
    """
    if isinstance(line, bytes):
        try:
            # utf-8-sig: Windows editors put a byte order mark in front of the first line.
            line = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            form = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
            raise BadRowError(f"not {form}: {error}") from error
    if plain is not None and isinstance(line, str):
        line = {plain: line}
    if not isinstance(line, dict):
        raise BadRowError(f"expected a JSON object, not {type(line).__name__}")
    return line


def require_encodable(value, name: str = ""):
    """Raise BadRowError if texts in a JSON value cannot be written as UTF-8.

    Args:
        value: the value.
        name: beginning of the message.
    """
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise BadRowError(
            f"{name}not Unicode text: it holds half of a surrogate pair, or a byte that is not UTF-8"
        ) from None


def has_form(value, form) -> bool:
    """Whether a JSON value has a form: a type, [form] for a list, or {name: form} for an object."""
    # has_form({"role": "user", "content": "hi"}, {"role": str, "content": str}) is True
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(item, form[0]) for item in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(
            has_form(value.get(name), form[name]) for name in form
        )
    return isinstance(value, form)


def mapped_columns(fields: Fields, columns: Columns) -> Fields:
    """Return the columns under our names. Raises BadRowError if one is missing."""
    # columns (("prompt", "question"),): {"question": q, "id": 1} -> {"prompt": q}
    for _, column in columns:
        if column not in fields:
            raise BadRowError(
                f"has no column {column!r}, only {', '.join(map(str, fields)) or 'none'}"
            )
    return {name: fields[column] for name, column in columns}


def parse_turn(turn, name: str) -> Fields:
    """Convert one turn. Raises BadRowError for another form, or an unknown role or speaker."""
    for speaker, content, roles in (("role", "content", ROLES), ("from", "value", SPEAKERS)):
        if has_form(turn, {speaker: str, content: str}):
            given = turn[speaker]
            if given not in roles:
                raise BadRowError(f"{name}: {speaker}={given!r} must be one of {', '.join(roles)}")
            return {"role": roles[given], "content": turn[content]}
    raise BadRowError(
        f"{name}: all messages must be objects with role and content, or with from and value, that "
        "are text"
    )

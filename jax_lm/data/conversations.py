"""Training samples from JSON lines: a conversation whose last turn is to be learnt, a prompt and a
response, or a text.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"prompt": "…", "response": "…"}
    {"prompt": "…", "completion": "…"}
    {"text": "…"}

Rows that cannot be used are counted and named, never dropped in silence. Knows text and tokens,
nothing of training.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jax_lm.data.batches import Row
from jax_lm.data.columns import BadRowError, Columns, require_columns
from jax_lm.data.sources import JsonArray, Source, holds_array
from jax_lm.data.token_shards import Kind
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, DiffuCoderTokenizer, Message, TokenizerError

logger = logging.getLogger(__name__)

# So many refused lines are named in a message; all are in the list.
NAMED = 3

CONVERSATIONS = ("messages", "conversations")
HIDDEN = {*CONVERSATIONS, "response", "completion"}
# Of ShareGPT, and their roles.
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}

NOTHING_TO_LEARN = "neither messages nor prompt, nor conversations"

Read = TypeVar("Read")


@dataclass(frozen=True)
class Samples:
    """Samples of a file, and the lines (or rows, as `unit` has it) that gave none, with the reason."""

    rows: list[Row]
    refused: list[tuple[int, str]]
    unit: str = "line"

    @property
    def digest(self) -> str:
        """A digest of all tokens: tells whether a run goes on with the samples it began with."""
        # Piece by piece: as one text, tens of gigabytes are not there twice.
        digest = hashlib.sha256(b"[")
        for number, row in enumerate(self.rows):
            digest.update((", " * (number > 0) + json.dumps((row.ids, row.canvas))).encode())
        digest.update(b"]")
        return digest.hexdigest()[:16]

    def describe(self, path: Path) -> str:
        """Say how many lines were used and refused, and name the first of these."""
        named = "; ".join(f"{self.unit} {line}: {reason}" for line, reason in self.refused[:NAMED])
        more = f"; and {len(self.refused) - NAMED} more" if len(self.refused) > NAMED else ""
        return f"{path}: {len(self.rows)} samples, {len(self.refused)} refused" + (
            f" ({named}{more})" if named else ""
        )


def read_samples(path: Path, to_rows: Callable[[dict[str, Any]], Sequence[Row]]) -> Samples:
    """Read the samples that each line, or element of an array, gives; ValueError: no file, or no
    line can be used.
    """
    if holds_array(path):
        return read_source(JsonArray.of(path), path, to_rows)
    read, refused = read_lines(path, to_rows)
    return usable(Samples([row for rows in read for row in rows], refused), path)


def usable(samples: Samples, name: Path) -> Samples:
    """Return samples and log how many there are; ValueError if there is none."""
    if not samples.rows:
        raise ValueError(f"data={samples.describe(name)}: nothing to learn from")
    logger.log(logging.WARNING if samples.refused else logging.INFO, samples.describe(name))
    return samples


def read_source(
    source: Source, name: Path, to_rows: Callable[[dict[str, Any]], Sequence[Row]]
) -> Samples:
    """Read the samples of a data set in memory; ValueError: it cannot be loaded, or no row of it
    can be used.
    """
    samples = Samples([], [], "row")
    lines = (line for part in range(source.parts) for _, line in source.read(part))
    for number, line in enumerate(lines, 1):
        try:
            samples.rows.extend(to_rows(row_fields(line)))
        except (BadRowError, TokenizerError) as error:
            samples.refused.append((number, str(error)))
    return usable(samples, name)


def read_lines(
    path: Path, read: Callable[[dict[str, Any]], Read]
) -> tuple[list[Read], list[tuple[int, str]]]:
    """Read each line that is not blank; returns what they gave, and number (from 1) and reason of
    those refused.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data={str(path)!r} cannot be read: {error}") from error
    found, refused = [], []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(read(json_object(line)))
        except (BadRowError, TokenizerError) as error:
            refused.append((number, str(error)))
    return found, refused


def row_fields(line: Any) -> dict[str, Any]:
    """Read what a source gives for a line: UTF-8 text of JSON, or what that says; BadRowError if it
    is no object.
    """
    if not isinstance(line, bytes):
        return dict(require_object(line))
    try:
        return json_object(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRowError(f"not UTF-8: {error}") from error


def json_object(line: str) -> dict[str, Any]:
    """Parse a line; BadRowError if it is no JSON object."""
    try:
        return require_object(json.loads(line))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRowError(f"not JSON: {error}") from error


def require_object(fields: Any) -> dict[str, Any]:
    """Return the same fields; BadRowError if they are no JSON object."""
    if not isinstance(fields, dict):
        raise BadRowError(f"expected a JSON object, not {type(fields).__name__}")
    return fields


def rows_reader(
    kind: Kind, tokenizer: DiffuCoderTokenizer, max_length: int, columns: Columns = ()
) -> Callable[[dict[str, Any]], list[Row]]:
    """Make what turns a line's fields into samples, with the names that its columns have in place
    of ours.
    """
    to_rows = {"text": text_rows, "conversations": conversation_rows}[kind](tokenizer, max_length)
    return lambda fields: to_rows(in_our_names(fields, columns))


def in_our_names(fields: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """Give columns our names; what is named hides all other messages.

    BadRowError names a column that is not there.
    """
    if not columns:
        return fields
    require_columns(fields, columns)
    others = {name: value for name, value in fields.items() if name not in HIDDEN}
    return others | {name: fields[column] for name, column in columns}


def conversation_rows(
    tokenizer: DiffuCoderTokenizer, max_length: int
) -> Callable[[dict[str, Any]], list[Row]]:
    """Make a line a sample: everything before the response stays visible, the response is the
    canvas.

    The canvas is open: the pads after the end of the response are targets too, so that the model
    learns to end.
    """

    def to_rows(fields: dict[str, Any]) -> list[Row]:
        prompt, response, end = parts(fields, tokenizer)
        visible = tokenizer.encode(prompt)
        written = [*without_mask(tokenizer.encode(response), tokenizer), tokenizer.token_id(end)]
        size = len(visible) + len(written)
        if size > max_length:
            raise BadRowError(f"{size} tokens, longer than max_length={max_length}")
        return [Row((*visible, *written), (False,) * len(visible) + (True,) * len(written))]

    return to_rows


def text_rows(
    tokenizer: DiffuCoderTokenizer, max_length: int
) -> Callable[[dict[str, Any]], list[Row]]:
    """Make a line of text samples of at most `max_length` tokens, all of which may be masked."""

    def to_rows(fields: dict[str, Any]) -> list[Row]:
        text = fields.get("text")
        if not isinstance(text, str) or not text.strip():
            raise BadRowError("has no text")
        ids = [*without_mask(tokenizer.encode(text), tokenizer), tokenizer.token_id(END_OF_TEXT)]
        parts = (tuple(ids[start : start + max_length]) for start in range(0, len(ids), max_length))
        return [Row(part, (True,) * len(part), open=False) for part in parts]

    return to_rows


def without_mask(ids: list[int], tokenizer: DiffuCoderTokenizer) -> list[int]:
    """Return the same ids; BadRowError if the mask token, which is never a target, is among them."""
    if tokenizer.mask_id in ids:
        raise BadRowError("holds the mask token where the model is to write")
    return ids


def parts(fields: Mapping[str, Any], tokenizer: DiffuCoderTokenizer) -> tuple[str, str, str]:
    """Find prompt, response and the token that ends it; BadRowError if the fields give none."""
    for name in CONVERSATIONS:
        if name in fields:
            messages = messages_of(fields[name], name)
            return (
                tokenizer.apply_chat_template(messages[:-1]),
                messages[-1]["content"],
                END_OF_TURN,
            )
    if "response" in fields and "completion" in fields:
        raise BadRowError("has both a response and a completion, which mean the same")
    answer = "completion" if "completion" in fields else "response"
    for name in ("prompt", answer):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            lacking = f"no {name} that is text" if "prompt" in fields else NOTHING_TO_LEARN
            raise BadRowError(f"has {lacking}")
    if tokenizer.chat_template is None:
        return fields["prompt"], fields[answer], END_OF_TEXT
    user = {"role": "user", "content": fields["prompt"]}
    return tokenizer.apply_chat_template([user]), fields[answer], END_OF_TURN


def messages_of(turns: Any, name: str) -> list[Message]:
    """Read turns in the form of OpenAI (role, content) or ShareGPT (from, value); BadRowError if
    they are neither.
    """
    # Parquet gives a column of lists as arrays.
    if isinstance(turns, str) or not isinstance(turns, Sequence) or len(turns) < 2:
        raise BadRowError(
            f"{name}: must be at least two objects with role and content, or with from and value"
        )
    messages = [read_turn(turn, name) for turn in turns]
    if messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
        raise BadRowError(f"{name}: must end with what the assistant says")
    return messages


def read_turn(turn: Any, name: str) -> Message:
    """Read one turn; BadRowError if it is of neither form, or of a speaker that ShareGPT does not
    know.
    """
    for role, content in (("role", "content"), ("from", "value")):
        if (
            isinstance(turn, dict)
            and isinstance(turn.get(role), str)
            and isinstance(turn.get(content), str)
        ):
            if role == "from" and turn[role] not in SPEAKERS:
                raise BadRowError(
                    f"{name}: from={turn[role]!r} must be one of {', '.join(SPEAKERS)}"
                )
            return {
                "role": SPEAKERS[turn[role]] if role == "from" else turn[role],
                "content": turn[content],
            }
    raise BadRowError(
        f"{name}: all must be objects with role and content, or with from and value, that are text"
    )

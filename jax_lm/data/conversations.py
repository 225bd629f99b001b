"""Training samples from JSON lines: a conversation whose last turn is to be learnt, a prompt and a response, or a text.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "response": "…"}
    {"text": "…"}

Rows that cannot be used are counted and named, never dropped in silence. Knows text and tokens, nothing of training.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jax_lm.data.batches import Row
from jax_lm.data.sources import Source
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, DiffuCoderTokenizer, TokenizerError

logger = logging.getLogger(__name__)

NAMED = 3
"""So many refused lines are named in a message; all are in the list."""

Read = TypeVar("Read")


class BadRowError(ValueError):
    """A line that cannot be used; the message says why."""


@dataclass(frozen=True)
class Samples:
    """Samples of a file, and the lines that gave none, with the reason."""

    rows: list[Row]
    refused: list[tuple[int, str]]

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
        named = "; ".join(f"line {line}: {reason}" for line, reason in self.refused[:NAMED])
        more = f"; and {len(self.refused) - NAMED} more" if len(self.refused) > NAMED else ""
        return f"{path}: {len(self.rows)} samples, {len(self.refused)} refused" + (f" ({named}{more})" if named else "")


def read_samples(path: Path, to_rows: Callable[[dict[str, Any]], Sequence[Row]]) -> Samples:
    """Read the samples that each line gives; ValueError: no file, or no line of it can be used."""
    read, refused = read_lines(path, to_rows)
    return usable(Samples([row for rows in read for row in rows], refused), path)


def usable(samples: Samples, name: Path) -> Samples:
    """Return samples and log how many there are; ValueError if there is none."""
    if not samples.rows:
        raise ValueError(f"data={samples.describe(name)}: nothing to learn from")
    logger.log(logging.WARNING if samples.refused else logging.INFO, samples.describe(name))
    return samples


def read_source(source: Source, name: Path, to_rows: Callable[[dict[str, Any]], Sequence[Row]]) -> Samples:
    """Read the samples of a data set in memory; ValueError: it cannot be loaded, or no row of it can be used."""
    samples = Samples([], [])
    lines = (line for part in range(source.parts) for _, line in source.read(part))
    for number, line in enumerate(lines, 1):
        try:
            samples.rows.extend(to_rows(row_fields(line)))
        except (BadRowError, TokenizerError) as error:
            samples.refused.append((number, str(error)))
    return usable(samples, name)


def read_lines(path: Path, read: Callable[[dict[str, Any]], Read]) -> tuple[list[Read], list[tuple[int, str]]]:
    """Read each line that is not blank; returns what they gave, and number (from 1) and reason of those refused."""
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


def row_fields(line: bytes | dict[str, Any]) -> dict[str, Any]:
    """Read what a source gives for a line; BadRowError if it is no JSON object."""
    if isinstance(line, dict):
        return dict(line)
    try:
        return json_object(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRowError(f"not UTF-8: {error}") from error


def json_object(line: str) -> dict[str, Any]:
    """Parse a line; BadRowError if it is no JSON object."""
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRowError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRowError(f"expected a JSON object, not {type(fields).__name__}")
    return fields


def conversation_rows(tokenizer: DiffuCoderTokenizer, max_length: int) -> Callable[[dict[str, Any]], list[Row]]:
    """Make a line a sample: everything before the response stays visible, the response is the canvas.

    The canvas is open: the pads after the end of the response are targets too, so that the model learns to end.
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


def text_rows(tokenizer: DiffuCoderTokenizer, max_length: int) -> Callable[[dict[str, Any]], list[Row]]:
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
    if "messages" in fields:
        messages = fields["messages"]
        if not isinstance(messages, list) or len(messages) < 2 or not all(map(is_message, messages)):
            raise BadRowError("messages: must be at least two objects with role and content")
        if messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
            raise BadRowError("messages: must end with what the assistant says")
        return tokenizer.apply_chat_template(messages[:-1]), messages[-1]["content"], END_OF_TURN
    for name in ("prompt", "response"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            lacking = f"no {name} that is text" if "prompt" in fields else "neither messages nor prompt"
            raise BadRowError(f"has {lacking}")
    if tokenizer.chat_template is None:
        return fields["prompt"], fields["response"], END_OF_TEXT
    user = {"role": "user", "content": fields["prompt"]}
    return tokenizer.apply_chat_template([user]), fields["response"], END_OF_TURN


def is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))

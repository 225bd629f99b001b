"""Fine-tuning examples from JSON lines: a conversation whose last turn is to be learnt, or a prompt and a response.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"prompt": "…", "response": "…"}

Rows that cannot be used are counted and named, never dropped in silence. Knows text and tokens, nothing of training.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_lm.data.batches import Row
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, DiffuCoderTokenizer, TokenizerError

logger = logging.getLogger(__name__)

NAMED = 3
"""So many refused lines are named in a message; all are in the list."""


class BadRowError(ValueError):
    """A line that cannot be used; the message says why."""


@dataclass
class Samples:
    """What a file gave: samples, and the lines that gave none, with the reason."""

    rows: list[Row] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def describe(self, path: Path) -> str:
        """How many lines were used and refused, and the first of these."""
        named = "; ".join(f"line {line}: {reason}" for line, reason in self.refused[:NAMED])
        more = f"; and {len(self.refused) - NAMED} more" if len(self.refused) > NAMED else ""
        return f"{path}: {len(self.rows)} samples, {len(self.refused)} refused" + (f" ({named}{more})" if named else "")


def read_samples(path: Path, to_row: Callable[[dict[str, Any]], Row], length: int) -> Samples:
    """Samples of at most `length` tokens, one per line.

    Raises:
        ValueError: the file cannot be read, or no line of it can be used.
    """
    samples = Samples()
    for number, line in numbered_lines(path):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise BadRowError(f"expected a JSON object, not {type(fields).__name__}")
            row = to_row(fields)
            if len(row.ids) > length:
                raise BadRowError(f"{len(row.ids)} tokens, longer than length={length}")
            samples.rows.append(row)
        except (BadRowError, TokenizerError) as error:
            samples.refused.append((number, str(error)))
        except (json.JSONDecodeError, RecursionError) as error:
            samples.refused.append((number, f"not JSON: {error}"))
    if not samples.rows:
        raise ValueError(f"data={samples.describe(path)}: nothing to learn from")
    logger.log(logging.WARNING if samples.refused else logging.INFO, samples.describe(path))
    return samples


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"data={str(path)!r} cannot be read: {error}") from error
    yield from ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def conversation_row(tokenizer: DiffuCoderTokenizer) -> Callable[[dict[str, Any]], Row]:
    """How a line becomes a sample: everything before the response stays visible, the response is the canvas.

    The canvas is open: the pads after the end of the response are targets too, so that the model learns to end.
    """

    def to_row(fields: dict[str, Any]) -> Row:
        prompt, response, end = parts(fields, tokenizer)
        visible = tokenizer.encode(prompt)
        written = [*tokenizer.encode(response), tokenizer.token_id(end)]
        if tokenizer.mask_id in visible or tokenizer.mask_id in written:
            raise BadRowError("holds the mask token")
        return Row((*visible, *written), (False,) * len(visible) + (True,) * len(written))

    return to_row


def parts(fields: Mapping[str, Any], tokenizer: DiffuCoderTokenizer) -> tuple[str, str, str]:
    """Prompt, response and the token that ends it; BadRowError if the fields give none."""
    if "messages" in fields:
        messages = fields["messages"]
        if not isinstance(messages, list) or len(messages) < 2 or not all(map(is_message, messages)):
            raise BadRowError("messages: must be at least two objects with role and content")
        if messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
            raise BadRowError("messages: must end with what the assistant says")
        return tokenizer.apply_chat_template(messages[:-1]), messages[-1]["content"], END_OF_TURN
    for name in ("prompt", "response"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise BadRowError(
                f"has no {name} that is text" if "prompt" in fields else "has neither messages nor prompt"
            )
    if tokenizer.chat_template is None:
        return fields["prompt"], fields["response"], END_OF_TEXT
    user = {"role": "user", "content": fields["prompt"]}
    return tokenizer.apply_chat_template([user]), fields["response"], END_OF_TURN


def is_message(message: Any) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )


def closed(row: Row, pads: int, pad_id: int) -> Row:
    """A sample that others can stand behind: with `pads` pads of its own as targets, and no more."""
    return Row((*row.ids, *[pad_id] * pads), (*row.canvas, *[True] * pads), open=False)

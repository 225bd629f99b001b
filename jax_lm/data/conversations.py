"""Training samples from JSON lines: conversations, prompts with a response, or texts.

The last turn of a conversation (or each of the assistant's), and a response, are learnt; a text is
learnt as a whole.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
    {"prompt": "…", "response": "…"}
    {"prompt": "…", "completion": "…"}
    {"text": "…"}

Lines that cannot be used are counted and reported, never dropped silently. Knows text and tokens,
nothing of training.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from jax_lm.config import Fields, counted
from jax_lm.data.batches import Row
from jax_lm.data.columns import (
    PLAIN_FORM,
    BadRowError,
    Columns,
    ConversationForm,
    Kind,
    mapped_columns,
    parse_turn,
    row_fields,
)
from jax_lm.data.sources import WHOLE, Lines, open_source
from jax_lm.tokenizer import DiffuCoderTokenizer, Message, TokenIds, TokenizerError

logger = logging.getLogger(__name__)

# Refused lines that a message quotes; `Samples.refused` has all of them.
NAMED = 3

# Columns that hold the turns of a conversation.
CONVERSATIONS = ("messages", "conversations")
# Columns that are ignored once the user maps columns explicitly.
HIDDEN = {*CONVERSATIONS, "response", "completion"}
NOTHING_TO_LEARN = "neither messages nor prompt, nor conversations"

Read = TypeVar("Read")
# Converts the fields of a line to samples.
ToRows = Callable[[Fields], list[Row]]


@dataclass(frozen=True)
class Samples:
    """Samples of a data source, and its refused lines.

    Attributes:
        rows: the samples.
        refused: location and reason of each refused line.
    """

    rows: list[Row]
    refused: list[tuple[str, str]]

    @property
    def digest(self) -> str:
        """Digest of all tokens. A resumed run compares it to detect changed samples."""
        # Hashed row by row: the JSON of all rows together may take tens of gigabytes.
        digest = hashlib.sha256(b"[")
        for number, row in enumerate(self.rows):
            digest.update((", " * (number > 0) + json.dumps((row.ids, row.canvas))).encode())
        digest.update(b"]")
        return digest.hexdigest()[:16]

    def describe(self, data: str | Path) -> str:
        """Return a summary: numbers of samples and refused lines, and the first refused ones."""
        named = "; ".join(f"{where}: {reason}" for where, reason in self.refused[:NAMED])
        more = f"; and {len(self.refused) - NAMED} more" if len(self.refused) > NAMED else ""
        return f"{data}: {counted(len(self.rows), 'sample')}, {len(self.refused)} refused" + (
            f" ({named}{more})" if named else ""
        )


def read_samples(
    data: str | Path, to_rows: ToRows, *, split: str = WHOLE, subset: str | None = None
) -> Samples:
    """Read all samples of a file or data set (`open_source`), and log how many there are.

    Raises:
        ValueError: it cannot be read, or no line of it can be used.
    """
    source = open_source(str(data), 1, split=split, subset=subset)
    samples = Samples([], [])
    for where, rows in convert_lines(source.read(0), to_rows):
        if isinstance(rows, ValueError):
            samples.refused.append((where, str(rows)))
        else:
            # One line may become several samples: texts are cut.
            samples.rows.extend(rows)
    if not samples.rows:
        raise ValueError(f"data={samples.describe(data)}: nothing to learn from")
    logger.log(logging.WARNING if samples.refused else logging.INFO, samples.describe(data))
    return samples


def convert_lines(
    lines: Lines, convert: Callable[[Fields], Read]
) -> Iterator[tuple[str, Read | ValueError]]:
    """Yield the location of each line with its converted fields, or the reason of its refusal."""
    for where, line in lines:
        try:
            value = convert(row_fields(line))
        except (BadRowError, TokenizerError) as error:
            value = error
        yield where, value


def rows_reader(
    kind: Kind,
    tokenizer: DiffuCoderTokenizer,
    max_length: int,
    columns: Columns = (),
    form: ConversationForm = PLAIN_FORM,
) -> ToRows:
    """Return the function that converts a line's fields to samples; `columns` maps their names."""
    readers = {"text": text_rows, "conversations": partial(conversation_rows, form=form)}
    to_rows = readers[kind](tokenizer, max_length)
    return lambda fields: to_rows(rename_columns(fields, columns))


def rename_columns(fields: Fields, columns: Columns) -> Fields:
    """Rename columns to our names. Mapped columns replace all others that could hold the sample.

    Raises:
        BadRowError: a column is missing.
    """
    # columns (("response", "solution"),):
    # {"solution": s, "messages": m} -> {"solution": s, "response": s}
    if not columns:
        return fields
    others = {name: value for name, value in fields.items() if name not in HIDDEN}
    return others | mapped_columns(fields, columns)


def conversation_rows(
    tokenizer: DiffuCoderTokenizer, max_length: int, form: ConversationForm = PLAIN_FORM
) -> ToRows:
    """Return the function that converts a conversation to a sample per response that is learnt.

    Everything before the response stays visible, and the response is the canvas. The canvas is
    open: the pad tokens after the response are targets too, so that the model learns to stop.
    """

    def to_row(prompt, response, end):
        # prompt [1, 2], response [3], end [4]: ids [1, 2, 3, 4], canvas [0, 0, 1, 1]
        visible = tokenizer.encode(prompt)
        target = [*reject_mask(tokenizer.encode(response), tokenizer), tokenizer.token_id(end)]
        size = len(visible) + len(target)
        if size > max_length:
            raise BadRowError(f"{size} tokens, longer than max_length={max_length}")
        return Row.masked_after(len(visible), visible + target)

    return lambda fields: [to_row(*each) for each in prompts_and_responses(fields, tokenizer, form)]


def text_rows(tokenizer: DiffuCoderTokenizer, max_length: int) -> ToRows:
    """Return the function that cuts a text into samples of at most `max_length` tokens.

    Every token may be masked, except for the first one of a sample: the row of a position predicts
    the next token, so nothing before the first one can predict it.
    """

    def to_rows(fields):
        text = fields.get("text")
        if not isinstance(text, str) or not text.strip():
            raise BadRowError("has no text")
        ids = [*reject_mask(tokenizer.encode(text), tokenizer), tokenizer.end_id]
        # max_length=3: [1, 2, 3, 4, end] -> [1, 2, 3], [4, end]
        return [
            Row.masked_after(1, ids[start : start + max_length], open=False)
            for start in range(0, len(ids), max_length)
        ]

    return to_rows


def reject_mask(ids: TokenIds, tokenizer: DiffuCoderTokenizer) -> TokenIds:
    """Return `ids` unchanged. Raises BadRowError if the mask token, never a target, is in them."""
    if tokenizer.mask_id in ids:
        raise BadRowError("holds the mask token where the model is to write")
    return ids


def prompts_and_responses(
    fields: Fields, tokenizer: DiffuCoderTokenizer, form: ConversationForm
) -> list[tuple[str, str, str]]:
    """Return each prompt with its response and the token that ends the response.

    Raises:
        BadRowError: the fields contain no prompt and response, or contain two responses.
    """
    # messages: the last one is the response; with `turns="all"`, all of the assistant's are
    for name in CONVERSATIONS:
        if name in fields:
            messages = parse_turns(fields[name], name)
            last = len(messages) - 1
            return [
                (
                    tokenizer.apply_chat_template(messages[:turn]),
                    message["content"],
                    tokenizer.turn_end,
                )
                for turn, message in enumerate(messages)
                if turn == last or (form.turns == "all" and turn and is_response(message))
            ]
    # prompt and response
    if "response" in fields and "completion" in fields:
        raise BadRowError("has both a response and a completion, which mean the same")
    answer = "completion" if "completion" in fields else "response"
    for name in ("prompt", answer):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            lacking = f"no {name} that is text" if "prompt" in fields else NOTHING_TO_LEARN
            raise BadRowError(f"has {lacking}")
    if form.template == "auto":
        return [(fields["prompt"], fields[answer], tokenizer.special.end)]
    user = {"role": "user", "content": fields["prompt"]}
    return [(tokenizer.apply_chat_template([user]), fields[answer], tokenizer.turn_end)]


def is_response(message: Message) -> bool:
    """Whether a message is something that the assistant says."""
    return message["role"] == "assistant" and bool(message["content"].strip())


def parse_turns(turns, name: str) -> Sequence[Message]:
    """Return the turns as chat messages.

    Turns are objects in the form of OpenAI (role, content) or of ShareGPT (from, value).

    Raises:
        BadRowError: the turns have another form, or the last one is not the assistant's.
    """
    # pandas returns a Parquet column of lists as arrays.
    if not isinstance(turns, list | tuple | np.ndarray) or len(turns) < 2:
        raise BadRowError(
            f"{name}: must be at least two objects with role and content, or with from and value"
        )
    messages = [parse_turn(turn, name) for turn in turns]
    if not is_response(messages[-1]):
        raise BadRowError(f"{name}: must end with what the assistant says")
    return messages

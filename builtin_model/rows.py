"""Turn tasks into token rows for masked-diffusion training: which tokens there are, and which may
be masked.

A row is a context that stays visible and a canvas that may be masked. Four kinds teach four uses:
complete a header, continue from anywhere, fill a hole, answer in chat. Spare canvas after the end
of the text is a target too: so the model learns to end. Knows tokens, not models.
"""

import random
from collections.abc import Callable, Iterator, Mapping

from builtin_model.layouts import (
    comment_prompt,
    draw_hole,
    header_prompt,
    named_answer,
    signed_answer,
    signed_comment_prompt,
    unsigned_answer,
)
from builtin_model.spelling import draw_spelled
from jax_lm.data.batches import Batch, Row, closed, collate
from jax_lm.templates import AUTO_LENGTHS
from jax_lm.tokenizer import END_OF_TEXT, END_OF_TURN, DiffuCoderTokenizer

HEADER_SHARE, UNSIGNED_SHARE = 0.88, 0.45
"""Of the completions that have a header, not a comment alone, and of the questions that leave parameters to us."""

NAMED_SHARE = 0.4
"""Of these, questions that name a function as nobody would guess."""

EXACT_SHARE, SPARE_SHARE = 0.4, 0.45
"""Of holes as long as their text, and of those that end with a little spare canvas; the rest have a usual length."""


def completion_row(tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show a header, or a comment that asks for a program, and mask the rest."""
    return split_row(*draw_prompt(rng), tokenizer)


def draw_prompt(rng: random.Random) -> tuple[str, str]:
    """Draw a prompt and what completes it."""
    if rng.random() < HEADER_SHARE:
        return header_prompt(draw_spelled(rng), rng)
    if rng.random() < UNSIGNED_SHARE:
        return comment_prompt(draw_spelled(rng, plain=True), rng)
    return signed_comment_prompt(draw_spelled(rng), rng)


def continuation_row(tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show the text up to any character, and mask the rest."""
    text = "".join(header_prompt(draw_spelled(rng), rng))
    cut = rng.randrange(1, len(text))
    return split_row(text[:cut], text[cut:], tokenizer)


def infilling_row(tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Cut a hole between two visible parts: of the length of what was there, or longer, and then it
    ends itself.
    """
    prompt, completion = header_prompt(draw_spelled(rng), rng)
    text = prompt + completion
    start, end = draw_hole(text, len(prompt), rng)
    before, hole, after = (
        tokenizer.encode(part) for part in (text[:start], text[start:end], text[end:])
    )
    length = draw_hole_length(len(hole), rng)
    hole = [*hole, tokenizer.token_id(END_OF_TEXT), *[tokenizer.pad_id] * length][:length]
    canvas = [False] * len(before) + [True] * len(hole) + [False] * len(after)
    return Row((*before, *hole, *after), tuple(canvas), open=False)


def draw_hole_length(needed: int, rng: random.Random) -> int:
    """Draw the length of a hole that holds so many tokens: these, some more, or one of those that
    are tried.
    """
    way = rng.random()
    if way < EXACT_SHARE:
        return needed
    if way < EXACT_SHARE + SPARE_SHARE:
        return needed + rng.randint(1, MAX_SPARE)
    return rng.choice([length for length in AUTO_LENGTHS if length >= needed] or [needed])


def chat_row(tokenizer: DiffuCoderTokenizer, rng: random.Random) -> Row:
    """Show a request in words, and mask its answer, a fenced block of code."""
    if rng.random() >= UNSIGNED_SHARE:
        request, reply = signed_answer(draw_spelled(rng), rng)
    elif rng.random() < NAMED_SHARE:
        request, reply = named_answer(draw_spelled(rng, usual_parameters=True), rng)
    else:
        request, reply = unsigned_answer(draw_spelled(rng, plain=True), rng)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": request}])
    return split_row(prompt, reply, tokenizer, end=END_OF_TURN)


def draw_text(rng: random.Random) -> str:
    """Draw what a prompt or a question and its completion hold, in the shares of a tokenizer's
    corpus.
    """
    if rng.random() < 0.75:
        return "".join(draw_prompt(rng))
    return "\n".join(unsigned_answer(draw_spelled(rng, plain=True), rng))


def split_row(
    prompt: str, completion: str, tokenizer: DiffuCoderTokenizer, end: str = END_OF_TEXT
) -> Row:
    """Encode prompt and completion apart, as they are when a user's prompt comes alone."""
    fixed = tokenizer.encode(prompt)
    written = [*tokenizer.encode(completion), tokenizer.token_id(end)]
    return Row((*fixed, *written), (False,) * len(fixed) + (True,) * len(written))


MAX_SPARE = 32
"""Tokens of a little spare canvas."""

RowKind = Callable[[DiffuCoderTokenizer, random.Random], Row]


def stream_batches(
    tokenizer: DiffuCoderTokenizer,
    *,
    seed: int | str,
    tokens_per_batch: int,
    length: int,
    shares: Mapping[RowKind, float],
    longer_share: float,
) -> Iterator[Batch]:
    """Draw batches over the training side of the corpus, endlessly, from a seed.

    Several samples share a row of `length` tokens, as many as fit. `shares` weighs their kinds. An
    open one has a little spare canvas, or with `longer_share` up to a whole row of it (so that the
    model has seen canvases far longer than its answers). The few samples that are longer than a row
    are drawn anew.

    Raises:
        ValueError: a batch holds no row.
    """
    count = tokens_per_batch // length
    if count < 1:
        raise ValueError(f"tokens_per_batch={tokens_per_batch}: must hold a row of {length} tokens")
    rng = random.Random(seed)
    rows: list[list[Row]] = [[] for _ in range(count)]
    room = [length] * count
    while True:
        draw_row = rng.choices(list(shares), list(shares.values()))[0]
        row = draw_row(tokenizer, rng)
        free = length - len(row.ids)
        if free < 0:
            continue
        if row.open:
            spare = free if rng.random() < longer_share else min(MAX_SPARE, free)
            row = closed(row, rng.randint(0, spare), tokenizer.pad_id)
        place = next((number for number, left in enumerate(room) if left >= len(row.ids)), None)
        if place is None:
            yield collate(rows, length, tokenizer.pad_id)
            rows, room, place = [[] for _ in range(count)], [length] * count, 0
        rows[place].append(row)
        room[place] -= len(row.ids)

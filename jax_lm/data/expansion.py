"""Answers with a hole between their lines, as a model that expands and deletes masks is to see
them.

A hole is shown with the wrong number of masks: with more, which are to be deleted, and with fewer,
of which one is to become two (DreamOn, arXiv 2602.01326; DreamLM/DreamOn,
src/trainer/sft_expand_dataset.py). What an expansion covers is left out of the row: in decoding it
is not there either. Knows text and tokens, nothing of the loss.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jax_lm.data.batches import Drawn, Row
from jax_lm.tokenizer import DiffuCoderTokenizer

# Masks beyond its length that a hole is shown with, at most.
MOST_DELETED = 63
# How often two neighbouring masks become one, where that does not fall with the share of masks.
EXPANDED_SHARE = 0.5
LEAST_WORDS = 3
TRIES = 5
# How often a hole begins and ends anywhere in its lines: ours, as one types in the middle of a
# line.
PART_SHARE = 0.5
# How often an answer stands without its prompt: ours, as code does whose holes are filled.
ALONE_SHARE = 0.5
# A code block of an answer: what is between its fences.
FENCED = re.compile(r"```[^\n]*\n(.*?)\n?```", re.DOTALL)


class Cut(NamedTuple):
    """A text in three parts."""

    prefix: str
    middle: str
    suffix: str


@dataclass(frozen=True)
class Expansion:
    """Shows a sample with a hole in its answer; a step's variation of samples
    (`jax_lm.data.batches.Vary`).

    Attributes:
        tokenizer: with the token for expanding.
        delete_id: the token of a mask that is to be deleted, which also ends a text.
        max_length: tokens of a row.
        high_levels: t = 1 - u^2 instead of t = u: more holes are nearly or wholly masked.
        excess_masks: how many masks too many a hole is shown with, up to `MOST_DELETED`: `uniform`,
            as published, or `log`, even in the logarithm: few are as likely as many.
    """

    tokenizer: DiffuCoderTokenizer
    delete_id: int
    max_length: int
    high_levels: bool = False
    excess_masks: str = "uniform"

    def __call__(self, sample: Row, step: int, rng: np.random.Generator) -> Row:
        """Cut, lengthen, mask and merge: the canvas of the row is what is masked.

        The step decides nothing.
        """
        prompt = [
            token for token, learnt in zip(sample.ids, sample.canvas, strict=True) if not learnt
        ]
        answer = [token for token, learnt in zip(sample.ids, sample.canvas, strict=True) if learnt]
        prefix, middle, suffix = map(
            self.tokenizer.encode, cut(self.tokenizer.decode_until_stop(answer), rng)
        )
        before = [*(self.tokenizer.begin_ids if rng.random() < ALONE_SHARE else prompt), *prefix]
        after = [*suffix, self.delete_id]
        room = self.max_length - len(middle) - len(after)
        # Parts that are encoded apart may be a token or two longer than the answer as a whole was.
        before = before[max(len(before) - room, 0) :]
        deletes = min(self.draw_excess(rng), room - len(before))
        level = float(rng.random())
        if self.high_levels:
            level = 1 - level**2
        masked = rng.random(len(middle)) < level
        if not deletes and not masked.any():
            # A row without a mask would teach nothing.
            masked[rng.integers(len(middle))] = True
        share = EXPANDED_SHARE * (1.0 if rng.random() < 0.5 else 1 - masked.mean())
        labels, shown, masked = merge_masks(np.array(middle), masked, share, self.expand_id, rng)
        ids = [*before, *labels[shown].tolist(), *[self.delete_id] * deletes, *after]
        in_hole = [*masked[shown].tolist(), *[True] * deletes]
        # What is to be deleted weighs as one token, however much it is.
        shares = [
            *masked[shown].astype(float).tolist(),
            *[1 / deletes if deletes else 0.0] * deletes,
        ]
        return Row(
            tuple(ids),
            (*[False] * len(before), *in_hole, *[False] * len(after)),
            open=False,
            drawn=Drawn(level, (*[0.0] * len(before), *shares, *[0.0] * len(after))),
        )

    def draw_excess(self, rng: np.random.Generator) -> int:
        """Draw how many masks a hole is shown with beyond its length."""
        if self.excess_masks == "log":
            return int((MOST_DELETED + 2) ** rng.random()) - 1
        return int(rng.integers(MOST_DELETED + 1))

    @property
    def expand_id(self) -> int:
        """The token by which a mask becomes two."""
        expand_id = self.tokenizer.expand_id
        assert expand_id is not None
        return expand_id


def cut(text: str, rng: np.random.Generator) -> Cut:
    """Cut lines, or a part of them, out of a text or of its first code block: three words or more,
    and no definition, if there are such lines.

    Raises:
        ValueError: there is nothing to cut out.
    """
    block = FENCED.search(text)
    start, end = block.span(1) if block and block[1].strip() else (0, len(text.rstrip("\n")))
    lines = text[start:end].splitlines(keepends=True)
    if not "".join(lines).strip():
        raise ValueError("answer: has no line to cut out")
    first = last = 0
    for _ in range(TRIES):
        first, last = sorted(rng.integers(len(lines), size=2).tolist())
        if is_worth_learning("".join(lines[first : last + 1])):
            break
    else:
        first, last = 0, len(lines) - 1
    begin = start + sum(map(len, lines[:first]))
    stop = begin + len("".join(lines[first : last + 1]).rstrip("\n"))
    if rng.random() < PART_SHARE:
        begin, stop = sorted(rng.choice(np.arange(begin, stop + 1), size=2, replace=False).tolist())
    return Cut(text[:begin], text[begin:stop], text[stop:])


def is_worth_learning(lines: str) -> bool:
    """Tell whether lines say something, and define nothing whose name only they know."""
    return len(lines.split()) >= LEAST_WORDS and not re.search(r"\bdef\b", lines)


def merge_masks(
    middle: Int[np.ndarray, "n"],
    masked: Bool[np.ndarray, "n"],
    share: float,
    expand_id: int,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "n"], Bool[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Merge neighbouring masks, each pair with a probability: the first is to expand, the second is
    not shown.

    Returns:
        What each token is to become, which tokens are shown, and which are masked.
    """
    labels, shown, drawn = middle.copy(), np.ones(len(middle), bool), rng.random(len(middle))
    for place in range(len(middle) - 1):
        if masked[place] and masked[place + 1] and drawn[place] < share:
            labels[place], shown[place + 1] = expand_id, False
    return labels, shown, masked

"""Training samples with a hole, for a model that expands and deletes masks.

The hole has the wrong number of masks: too many, of which the excess is to be deleted, or too few,
of which one is to become two (DreamOn, arXiv 2602.01326; DreamLM/DreamOn,
src/trainer/sft_expand_dataset.py). A token covered by an expansion is left out of the row, since
decoding does not see it either. Knows text and tokens, nothing of the loss.
"""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jax_lm.data.batches import Drawn, Row
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer

# Largest number of excess masks of a hole.
MOST_DELETED = 63
# Probability that two neighbouring masks are merged. Half of the samples scale it by the share of
# tokens that are not masked.
EXPANDED_SHARE = 0.5
# Words of the lines that are cut out, at least.
LEAST_WORDS = 3
# Random draws of lines before the whole text is cut out.
TRIES = 5
# Probability that a hole begins and ends inside its lines. Not in DreamOn: users also edit in the
# middle of a line.
PART_SHARE = 0.5
# Probability that an answer appears without its prompt. Not in DreamOn: code that is infilled has
# no prompt.
ALONE_SHARE = 0.5
# Code block of an answer; the group is the text between the fences.
FENCED = re.compile(r"```[^\n]*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True)
class Expansion:
    """A `jax_lm.data.batches.Vary` that cuts a hole into a sample's answer.

    Attributes:
        tokenizer: tokenizer with an expand token.
        delete_id: target of a mask that is to be deleted; this token also ends a text.
        max_length: tokens of a row.
        high_levels: draw t = 1 - u^2 instead of t = u, so that more holes are almost or fully
            masked.
        excess_masks: distribution of the number of excess masks, up to `MOST_DELETED`: `uniform`,
            as published, or `log`, uniform in the logarithm, which makes few as likely as many.
    """

    tokenizer: DiffuCoderTokenizer
    delete_id: int
    max_length: int
    high_levels: bool = False
    excess_masks: str = "uniform"

    def __call__(self, sample: Row, step: int, rng: np.random.Generator) -> Row:
        """Return the sample with a hole. The canvas of the row marks the masked positions.

        The step has no influence.
        """
        # cut
        ids = np.array(sample.ids)
        learnt = np.array(sample.canvas)
        prompt = ids[~learnt].tolist()
        answer = ids[learnt].tolist()
        prefix, middle, suffix = map(
            self.tokenizer.encode, cut(self.tokenizer.decode_until_stop(answer), rng)
        )
        before = [*(self.tokenizer.begin_ids if rng.random() < ALONE_SHARE else prompt), *prefix]
        after = [*suffix, self.delete_id]
        room = self.max_length - len(middle) - len(after)
        # Encoded separately, the three parts may be a token or two longer than the whole answer.
        before = before[max(len(before) - room, 0) :]
        # mask
        deletes = min(self.draw_excess(rng), room - len(before))
        level = float(rng.random())
        if self.high_levels:
            level = 1 - level**2
        masked = rng.random(len(middle)) < level
        if not deletes and not masked.any():
            # A row without a mask has no target.
            masked[rng.integers(len(middle))] = True
        # merge, then append the masks that are to be deleted
        expand_id = self.tokenizer.token_id(EXPAND)
        share = EXPANDED_SHARE * (1.0 if rng.random() < 0.5 else 1 - masked.mean())
        labels, shown, masked = merge_masks(np.array(middle), masked, share, expand_id, rng)
        tokens = [*before, *labels[shown].tolist(), *[self.delete_id] * deletes, *after]
        in_hole = [*masked[shown].tolist(), *[True] * deletes]
        # All masks that are to be deleted weigh as much as one token, however many there are.
        shares = [*masked[shown].astype(float).tolist(), *[1 / max(deletes, 1)] * deletes]
        return Row(
            tuple(tokens),
            (*[False] * len(before), *in_hole, *[False] * len(after)),
            open=False,
            drawn=Drawn(level, (*[0.0] * len(before), *shares, *[0.0] * len(after))),
        )

    def draw_excess(self, rng: np.random.Generator) -> int:
        """Draw the number of excess masks of a hole."""
        if self.excess_masks == "log":
            # u = 0 -> 0, u = 0.5 -> 7, u -> 1: 63
            return int((MOST_DELETED + 2) ** rng.random()) - 1
        return int(rng.integers(MOST_DELETED + 1))


def cut(text: str, rng: np.random.Generator) -> tuple[str, str, str]:
    """Cut random lines, or a part of them, out of a text or of its first code block.

    Returns what is before them, the lines and what follows.

    The lines have at least `LEAST_WORDS` words and no definition, unless `TRIES` draws find none.

    Raises:
        ValueError: the text, or its first code block, is blank.
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
        first = 0
        last = len(lines) - 1
    begin = start + sum(map(len, lines[:first]))
    stop = begin + len("".join(lines[first : last + 1]).rstrip("\n"))
    if rng.random() < PART_SHARE:
        begin, stop = sorted(rng.choice(np.arange(begin, stop + 1), size=2, replace=False).tolist())
    return text[:begin], text[begin:stop], text[stop:]


def is_worth_learning(lines: str) -> bool:
    """Return whether lines have enough words and no `def`, whose name could not be predicted."""
    return len(lines.split()) >= LEAST_WORDS and not re.search(r"\bdef\b", lines)


def merge_masks(
    middle: Int[np.ndarray, "n"],
    masked: Bool[np.ndarray, "n"],
    share: float,
    expand_id: int,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "n"], Bool[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Merge each pair of neighbouring masks with probability `share`.

    The target of the first mask becomes `expand_id`, and the second is not shown.

    Returns:
        The target of each token, which tokens are shown, and which are masked.
    """
    # [a, b, c, d] with b, c, d masked and the first pair drawn:
    # labels [a, expand, c, d], shown [True, True, False, True]
    labels = middle.copy()
    shown = np.ones(len(middle), bool)
    drawn = rng.random(len(middle))
    for place in range(len(middle) - 1):
        if masked[place] and masked[place + 1] and drawn[place] < share:
            labels[place], shown[place + 1] = expand_id, False
    return labels, shown, masked

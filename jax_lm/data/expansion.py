"""Training samples with a hole, for a model that expands and deletes masks.

The hole has the wrong number of masks (DreamOn, arXiv 2602.01326; DreamLM/DreamOn,
src/trainer/sft_expand_dataset.py). If it has too many, the excess is to be deleted. If it has too
few, some of them stand for two tokens each and are to expand. The second of the two is left out of
the row, as decoding does not see it either. Knows text and tokens, but not the loss.
"""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jax_lm.data.batches import Drawn, Row
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer

# Largest number of excess masks of a hole.
MAX_EXCESS = 63
# Probability that two neighbouring masks are merged. In half of the samples, it is multiplied by
# the share of tokens that are not masked.
MERGE_SHARE = 0.5
# Least number of words in the lines that are cut out.
MIN_WORDS = 3
# Number of random draws of lines before the whole text is cut out.
TRIES = 5
# Probability that a hole begins and ends inside its lines. Not in DreamOn: users also edit in the
# middle of a line.
PART_SHARE = 0.5
# Probability that an answer appears without its prompt. Not in DreamOn: code to infill has no
# prompt.
ALONE_SHARE = 0.5
# A code block in an answer. The group is the text between the fences.
FENCED = re.compile(r"```[^\n]*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True)
class Expansion:
    """Cuts a hole into the answer of a sample (a `jax_lm.data.batches.Vary`).

    Attributes:
        tokenizer: tokenizer with an expand token.
        delete_id: target of a mask that is to be deleted; this token also ends a text.
        max_length: largest number of tokens of a row.
        high_levels: draw t = 1 - u^2 instead of t = u, so that more holes are almost or fully
            masked.
        excess_masks: distribution of the number of excess masks, up to `MAX_EXCESS`: `uniform`, as
            published, or `log`, uniform in the logarithm, which makes few as likely as many.
    """

    tokenizer: DiffuCoderTokenizer
    delete_id: int
    max_length: int
    high_levels: bool = False
    excess_masks: str = "uniform"

    def __call__(self, sample: Row, step: int, rng: np.random.Generator) -> Row:
        """Return the sample with a hole. The canvas of the row marks the masked positions.

        The step is ignored.
        """
        # cut
        ids = np.array(sample.ids)
        in_answer = np.array(sample.canvas)
        prompt = ids[~in_answer].tolist()
        answer = self.tokenizer.decode_until_stop(ids[in_answer].tolist())
        prefix, middle, suffix = map(self.tokenizer.encode, cut(answer, rng))
        before = [*(self.tokenizer.begin_ids if rng.random() < ALONE_SHARE else prompt), *prefix]
        after = [*suffix, self.delete_id]
        room = self.max_length - len(middle) - len(after)
        # Encoded separately, the three parts may be a token or two longer than the whole answer.
        # The first tokens of the row are dropped then.
        before = before[max(len(before) - room, 0) :]
        # mask
        excess = min(self.draw_excess(rng), room - len(before))
        level = float(rng.random())
        if self.high_levels:
            level = 1 - level**2
        masked = rng.random(len(middle)) < level
        if not excess and not masked.any():
            # A row without a mask would have no target.
            masked[rng.integers(len(middle))] = True
        # merge, then append the excess masks
        expand_id = self.tokenizer.token_id(EXPAND)
        share = MERGE_SHARE * (1.0 if rng.random() < 0.5 else 1 - masked.mean())
        targets, shown = merge_masks(np.array(middle), masked, share, expand_id, rng)
        tokens = (*before, *targets[shown].tolist(), *[self.delete_id] * excess, *after)
        canvas = np.append(masked[shown], np.ones(excess, bool))
        # All excess masks together weigh as much as one token, however many there are.
        shares = np.append(masked[shown], [1 / max(excess, 1)] * excess)
        # What stands before and after the hole is not on the canvas.
        canvas, shares = (
            tuple(np.pad(values, (len(before), len(after))).tolist()) for values in (canvas, shares)
        )
        return Row(tokens, canvas, open=False, drawn=Drawn(level, shares))

    def draw_excess(self, rng: np.random.Generator) -> int:
        """Draw the number of excess masks of a hole."""
        if self.excess_masks == "log":
            # u = 0 -> 0, u = 0.5 -> 7, u -> 1: 63
            return int((MAX_EXCESS + 2) ** rng.random()) - 1
        return int(rng.integers(MAX_EXCESS + 1))


def cut(text: str, rng: np.random.Generator) -> tuple[str, str, str]:
    """Cut random lines, or a part of them, out of a text or of its first code block.

    The lines have at least `MIN_WORDS` words and no definition. If `TRIES` draws find no such
    lines, all lines are taken.

    Returns:
        The text before the cut, the part that was cut out, and the text after it.

    Raises:
        ValueError: the text, or its first code block, is blank.
    """
    block = FENCED.search(text)
    start, end = block.span(1) if block and block[1].strip() else (0, len(text.rstrip("\n")))
    begin = start
    chosen = text[start:end]
    if not chosen.strip():
        raise ValueError("answer: has no line to cut out")
    lines = chosen.splitlines(keepends=True)
    for _ in range(TRIES):
        first, last = sorted(rng.integers(len(lines), size=2).tolist())
        drawn = "".join(lines[first : last + 1])
        if is_worth_learning(drawn):
            begin = start + sum(map(len, lines[:first]))
            chosen = drawn
            break
    # The cut leaves the last line's end: "a\nb\nc", lines 0 and 1 -> [0, 3), then perhaps [1, 3).
    stop = begin + len(chosen.rstrip("\n"))
    if rng.random() < PART_SHARE:
        begin, stop = sorted(rng.choice(np.arange(begin, stop + 1), size=2, replace=False).tolist())
    return text[:begin], text[begin:stop], text[stop:]


def is_worth_learning(lines: str) -> bool:
    """Return whether lines have enough words and no `def`, whose name could not be predicted."""
    return len(lines.split()) >= MIN_WORDS and not re.search(r"\bdef\b", lines)


def merge_masks(
    middle: Int[np.ndarray, "n"],
    masked: Bool[np.ndarray, "n"],
    share: float,
    expand_id: int,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Merge each pair of neighbouring masks with probability `share`.

    The target of the first mask becomes `expand_id`, and the second is not shown.

    Returns:
        The target of each token, and which tokens are shown.
    """
    # [a, b, c, d] with b, c, d masked and the first pair drawn:
    # targets [a, expand, c, d], shown [True, True, False, True]
    targets = middle.copy()
    shown = np.ones(len(middle), bool)
    draws = rng.random(len(middle))
    for index in range(len(middle) - 1):
        if masked[index] and masked[index + 1] and draws[index] < share:
            targets[index], shown[index + 1] = expand_id, False
    return targets, shown

"""Sequences whose hole finds its own length, and their slots.

The columns of such a canvas move, so sequences share only the compiled program. Each has its own
sampler loop, and they take turns. Knows neither text nor queues.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.state import SamplerState
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots


@dataclass(kw_only=True, eq=False)
class GrowingSequence(Sequence):
    """A text with one hole, which begins with a few masks and grows to `options.max_new_tokens`.

    Attributes:
        delete_id: the token that ends the text, and by which masks are deleted.

    Raises:
        ValueError: settings with which a hole cannot grow.
    """

    delete_id: int
    is_growing = True

    def __post_init__(self):
        super().__post_init__()
        # where decoding begins again after a call of the device that failed
        self.given = self.tokens, self.masked

    def require_batchable(self):
        """Raise ValueError for options with which a hole cannot grow."""
        self.options.require_growable()

    @property
    def most(self) -> int:
        """Tokens that the hole may have."""
        return max(self.options.max_new_tokens, self.hole.length)

    @property
    def columns(self) -> int:
        """Columns that a canvas must have for it, with the token that ends the text."""
        # given tokens, the longest hole, and the token that ends the text
        return len(self.tokens) - self.hole.length + self.most + 1

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        """Whether each position of the hole is decided and will not move."""
        # 3 settled tokens of at most 5: [1, 1, 1, 0, 0]; later ones may still move
        return np.arange(self.most) < self.first_open - self.hole.start

    @property
    def is_stopped(self) -> bool:
        """Whether the hole ended before its maximum length."""
        return not self.masked.any() and self.hole.length < self.most

    def canvas(self, columns: int) -> Canvas:
        """Return a canvas of `columns` columns with the text on the left."""
        # the text with the token that ends it, and which of the columns are masks
        tokens, masked = self.given
        row = [*tokens.tolist(), self.delete_id], [*masked.tolist(), False]
        return Canvas.with_room([row], [self.columns], columns, self.delete_id)

    def take(self, state: SamplerState):
        """Take the text and its hole from the state after a step."""
        # The token that ends the text is left out.
        length = int(state.extra.length[0]) - 1
        self.tokens, self.masked, self.commit_step, self.confidence = (
            np.asarray(part)[0, :length]
            for part in (state.tokens, state.masked, state.commit_step, state.confidence)
        )
        # tokens of the hole are those with a hole number; others have -1
        grown = int(np.sum(np.asarray(state.extra.hole[0]) >= 0))
        self.hole = Block(self.hole.start, self.hole.start + grown)
        self.step = int(state.step)
        self.forwards = int(state.forwards)


class GrowingSlots(Slots):
    """Slots of growing sequences, on canvases of one width."""

    is_growing = True

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loops = dict[Sequence, Iterator[SamplerState]]()

    def missing(self, *, is_ahead: bool = False) -> list[tuple[int, int]]:
        """List the program for one sequence if it is needed and not compiled."""
        return [(0, 1)] if self.peak and not self.is_compiled else []

    def leave(self, sequence: Sequence):
        super().leave(sequence)
        self.loops.pop(sequence, None)

    def compile(self, number: int, size: int, sequence: Any):
        # One state is enough to compile the loop. NaN logits are reported by requests, not here.
        with suppress(FloatingPointError):
            list(islice(self.loop(sequence, 1), 1))
        self.sizes[number].append(size)

    def advance(self, steps: int, first: Sequence | None = None) -> list[Sequence]:
        """Take steps with `first`, or the sequence that has waited longest, and return it."""
        begun = monotonic()
        sequence: Any = first or min(self.sequences, key=lambda each: each.served_at)
        if sequence not in self.loops:
            self.loops[sequence] = self.loop(sequence, steps)
        if (state := next(self.loops[sequence], None)) is not None:
            sequence.take(state)
        sequence.served_at = monotonic()
        sequence.seconds += sequence.served_at - begun
        return [sequence]

    def loop(self, sequence: GrowingSequence, steps: int) -> Iterator[SamplerState]:
        """Return an iterator over the states of a sequence after every `steps` steps."""
        key = jax.random.wrap_key_data(jnp.asarray(sequence.key))[None]
        return self.sampler.stream(
            sequence.canvas(self.columns), sequence.options, seed=key, every=steps
        )

"""Sequences whose hole finds its own length, and their slots.

The columns of such a canvas move, so that sequences share nothing but the compiled loop. Each has a
loop of its own, and they take turns. Knows neither text nor queues.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import NEVER, SamplerState
from jax_lm.options import GenerationOptions
from jax_lm.serving.pace import Pace
from jax_lm.serving.sequence import Sequence


@dataclass(kw_only=True, eq=False)
class GrowingSequence:
    """A text with one hole, which begins with a few masks and grows to `options.max_new_tokens`.

    It has the same interface for jobs and the engine as `jax_lm.serving.sequence.Sequence`.

    Attributes:
        tokens: ids of the current text; MASK where nothing is decided yet.
        hole: current columns of the hole.
        delete_id: the token that ends the text, and by which masks are deleted.
        key: data of a random key.

    Raises:
        ValueError: settings with which a hole cannot grow.
    """

    tokens: Int[np.ndarray, "t"]
    hole: Block
    options: GenerationOptions
    delete_id: int
    key: np.ndarray
    masked: Bool[np.ndarray, "t"] = field(init=False)
    commit_step: Int[np.ndarray, "t"] = field(init=False)
    confidence: Float[np.ndarray, "t"] = field(init=False)
    step: int = 0
    forwards: int = 0
    seconds: float = 0.0
    served_at: float = 0.0
    is_done: bool = False
    is_cached = is_held = False
    keeps_logprobs = False
    logprobs = None
    stop_ids = ()

    def __post_init__(self) -> None:
        self.options.require_growable()
        columns = np.arange(len(self.tokens))
        self.masked = (columns >= self.hole.start) & (columns < self.hole.end)
        self.commit_step = np.where(self.masked, np.int32(NEVER), np.int32(-1))
        self.confidence = np.zeros(len(self.tokens), np.float32)

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
    def settled(self) -> int:
        """Return the column before which the hole is final."""
        masks = np.flatnonzero(self.masked)
        return int(masks[0]) if len(masks) else self.hole.end

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        """Return which positions of the hole are decided and will not move."""
        # 3 settled tokens of at most 5: [1, 1, 1, 0, 0]; later ones may still move
        return np.arange(self.most) < self.settled - self.hole.start

    @property
    def is_stopped(self) -> bool:
        """Whether the hole ended before it had to."""
        return self.is_done and self.hole.length < self.most

    def canvas(self, columns: int) -> Canvas:
        """Return a canvas of `columns` columns with the text on the left."""
        # the text with the token that ends it, and which of the columns are masks
        row = [*self.tokens.tolist(), self.delete_id], [*self.masked.tolist(), False]
        return Canvas.with_room([row], [self.columns], columns, self.delete_id)

    def take(self, state: SamplerState) -> None:
        """Take the text and its hole from the state after a step."""
        # The token that ends the text is left out.
        length = int(state.extra.length[0]) - 1
        own = [
            np.asarray(part)[0, :length]
            for part in (state.tokens, state.masked, state.commit_step, state.confidence)
        ]
        self.tokens, self.masked, self.commit_step, self.confidence = own
        # tokens of the hole are those with a hole number; others have -1
        self.hole = Block(
            self.hole.start, self.hole.start + int(np.sum(np.asarray(state.extra.hole[0]) >= 0))
        )
        self.step, self.forwards = int(state.step), int(state.forwards)
        self.is_done = not self.masked.any()


class GrowingSlots:
    """Places for growing sequences on canvases of one width.

    Args:
        columns: width of the canvases.
        count: number of slots.
        every: steps between two states of a sequence.
        pace: predicts the time of calls; shared by all slots of a device.

    Attributes:
        is_compiled: whether the loop is compiled; each sequence has a loop of its own.
        peak: the most sequences that wanted these slots at a time.
    """

    is_cached = False

    def __init__(
        self, sampler: Sampler, columns: int, *, count: int, every: int, pace: Pace
    ) -> None:
        self.sampler, self.columns, self.count, self.every = sampler, columns, count, every
        self.loops: dict[GrowingSequence, Iterator[SamplerState]] = {}
        self.is_compiled, self.peak, self.pace = False, 0, pace

    @property
    def sequences(self) -> list[GrowingSequence]:
        return list(self.loops)

    @property
    def has_room(self) -> bool:
        return self.is_compiled and len(self.loops) < self.count

    def seconds(self, sequence: GrowingSequence) -> float:
        """Predict the seconds until a sequence is done."""
        return sequence.most * self.pace.seconds(self.columns)

    def missing(self) -> list[tuple[int, int]]:
        """List what is not compiled: the loop of one sequence, or nothing."""
        return [(0, 1)] if self.peak and not self.is_compiled else []

    def holds(self, sequence: Sequence | GrowingSequence) -> bool:
        """Return whether these slots can hold a sequence."""
        return isinstance(sequence, GrowingSequence) and sequence.columns <= self.columns

    def join(self, sequence: GrowingSequence) -> None:
        """Take a slot, at any time; ValueError if there is none."""
        if not self.holds(sequence) or not self.has_room:
            raise ValueError(
                f"a row of {sequence.columns} columns cannot join {len(self.loops)} of {self.columns}"
            )
        self.loops[sequence] = self.loop(sequence)

    def leave(self, sequence: GrowingSequence) -> None:
        """Release the slot of a sequence, at any time."""
        del self.loops[sequence]

    def compile(self, number: int, size: int, sequence: GrowingSequence) -> None:
        """Compile the loop; `sequence` is any that fits."""
        # one state is enough to compile the loop
        list(islice(self.loop(sequence), 1))
        self.is_compiled = True

    def advance(self, steps: int) -> list[GrowingSequence]:
        """Take `self.every` steps with the sequence whose last are longest ago, and return it."""
        begun, sequence = time.monotonic(), min(self.loops, key=lambda each: each.served_at)
        if (state := next(self.loops[sequence], None)) is not None:
            sequence.take(state)
        sequence.served_at = time.monotonic()
        sequence.seconds += sequence.served_at - begun
        return [sequence]

    def loop(self, sequence: GrowingSequence) -> Iterator[SamplerState]:
        """Return an iterator over the states of a sequence, from the start."""
        key: Key[Array, 1] = jax.random.wrap_key_data(jnp.asarray(sequence.key))[None]
        return self.sampler.stream(
            sequence.canvas(self.columns), sequence.options, seed=key, every=self.every
        )

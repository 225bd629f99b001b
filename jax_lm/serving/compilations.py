"""Decide which batch shapes are compiled, and when.

A shape is a group of slots (one width, with or without a KV cache) and a number of sequences. The
widest slots can hold every sequence, so their shape for one sequence is compiled before anything is
served. All other shapes only make answers faster. They are compiled on another thread.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.admission import sequence_of
from jax_lm.serving.growing import GrowingSlots
from jax_lm.serving.jobs import Request
from jax_lm.serving.metrics import return_freed_memory
from jax_lm.serving.slots import Slots

logger = logging.getLogger(__name__)

# Numbers of sequences that programs are compiled for, up to the number of slots.
BATCH_SIZES = (1, 4, 8, 12, 16)
# Seconds without a request before another shape is compiled.
IDLE_SECONDS = 1.0
# Limit of that time in seconds; it doubles whenever a compilation fails, for example because no
# file descriptor is left.
MAX_PAUSE = 300.0

# Slots, and the number of sequences that they decode together.
Shape = tuple[Slots | GrowingSlots, int]


class CompileScheduler:
    """Compiles the shapes of an engine: the necessary ones first, others when they are useful.

    Args:
        inference: model and tokenizer.
        groups: all slots, narrow ones first.
        context: tokens that the widest slots hold.
        count: number of sequences that slots hold.

    Attributes:
        urgent: shapes without which nothing can be decoded.
        soon: shapes for as many requests as possible, compiled as soon as the engine is ready.
        pending: all other shapes that are not compiled, in the order in which they will be.
        requested: slots that a request fitted best. Shapes of other slots are never compiled, as
            every program keeps tens of megabytes.
        pause: seconds without a request after which the next shape is compiled.
    """

    def __init__(
        self,
        inference: DiffuCoderInference,
        groups: Sequence[Slots | GrowingSlots],
        context: int,
        count: int,
    ) -> None:
        self.inference, self.context = inference, context
        widest = [slots for slots in groups if slots.columns >= context]
        # without these nothing can be decoded
        self.urgent: list[Shape] = [(slots, 1) for slots in widest]
        self.soon: list[Shape] = [(slots, count) for slots in widest if count > 1]
        # Small batches and narrow slots first, because a single sequence in a batch of sixteen
        # costs as much as sixteen sequences.
        # count 6: sizes 1, 4 and 6
        sizes = [*(size for size in BATCH_SIZES if size < count), count]
        shapes = [(slots, size) for size in sizes for slots in groups]
        self.pending = [shape for shape in shapes if shape not in self.urgent + self.soon]
        self.requested: set[Slots | GrowingSlots] = set()
        self.pause = IDLE_SECONDS
        self.is_cancelled = False
        # never started: `is_alive` is False until the first compilation
        self.thread = threading.Thread()

    def warm_up(self) -> bool:
        """Compile the urgent shapes, and start to compile those needed soon.

        Returns:
            False if it was cancelled before the urgent shapes were compiled.
        """
        for shape in self.urgent:
            self.compile(*shape)
        # cancelled during warm-up
        if not all(slots.sizes for slots, _ in self.urgent):
            return False
        # At once, not only when idle: otherwise a burst of requests at start-up would be served one
        # at a time without end.
        self.start(self.soon)
        return True

    @property
    def wanted(self) -> list[Shape]:
        """Pending shapes that would have served requests faster."""
        return [shape for shape in self.pending if shape[0] in self.requested]

    @property
    def idle_seconds(self) -> float | None:
        """Seconds without a request after which to call `start_next`; None if nothing is left."""
        # While a compilation runs, time out too: if it fails, its shape is pending again.
        return self.pause if self.wanted or self.thread.is_alive() else None

    def start_next(self) -> None:
        """Start to compile the next wanted shape, unless another one is being compiled.

        Requests that arrive meanwhile share the processor with the compilation, but do not wait for
        it.
        """
        wanted = self.wanted[:1]
        if wanted and not self.thread.is_alive():
            # one shape at a time, so that requests in between find the processor free
            self.pending.remove(wanted[0])
            self.start(wanted)

    def start(self, shapes: Sequence[Shape]) -> None:
        """Compile shapes on a thread."""
        self.thread = threading.Thread(
            target=self.compile_all, args=(shapes,), name="compilation", daemon=True
        )
        try:
            self.thread.start()
        # no thread could be started
        except RuntimeError:
            self.postpone(shapes)

    def compile_all(self, shapes: Sequence[Shape]) -> None:
        for shape in shapes:
            try:
                self.compile(*shape)
                self.pause = IDLE_SECONDS
            except Exception:  # the border: the compiled shapes can serve everything
                self.postpone([shape])

    def postpone(self, shapes: Sequence[Shape]) -> None:
        """Put shapes back after an error and wait longer before the next attempt."""
        # 1, 2, 4, ... up to 300 s
        self.pause = min(2 * self.pause, MAX_PAUSE)
        self.pending += shapes
        logger.exception("a compilation failed; the next attempt is in %.0f s", self.pause)

    def compile(self, slots: Slots | GrowingSlots, size: int) -> None:
        """Compile a shape by decoding a short sequence of its kind."""
        if self.is_cancelled:
            return
        decoding = Decoding(preset="fast" if slots.is_cached else "exact")
        # one given token and a hole of two: content and length do not matter for the shape
        request = Request(
            before=(self.inference.tokenizer.pad_id,),
            options=GenerationOptions(max_new_tokens=2, decoding=decoding),
            is_gap=isinstance(slots, GrowingSlots),
        )
        trial: Any = sequence_of(request, self.inference, context=self.context, max_tokens=2)
        slots.compile(size, trial)
        return_freed_memory()

    def cancel(self) -> None:
        """Compile nothing more."""
        self.is_cancelled = True

    def join(self) -> None:
        """Wait for a running compilation, during which an interpreter exit would crash."""
        if self.thread.is_alive():
            self.thread.join()

"""Decide which programs are compiled, and when.

A program belongs to slots (one width, with or without a KV cache), one of their passes and a number
of sequences. The shapes of `warm_up` are compiled before anything is served. All other programs are
compiled when requests need them (`Slots.missing`), on another thread while the slots decode.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from threading import Thread
from time import monotonic
from typing import Any

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.memory import SERVE, explain_out_of_memory
from jax_lm.serving.admission import sequence_of
from jax_lm.serving.jobs import Request
from jax_lm.serving.metrics import return_freed_memory
from jax_lm.serving.slots import Slots

logger = logging.getLogger(__name__)

# Seconds until the next attempt after a failed compilation, for example because no file descriptor
# was left. They double with each failure, up to the limit.
FIRST_PAUSE = 1.0
MAX_PAUSE = 300.0


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """A shape to compile before the server is ready.

    Attributes:
        preset: preset of the requests; presets with a cache share their programs.
        tokens: tokens of prompt and answer.
        sequences: sequences decoded together.
    """

    preset: str
    tokens: int
    sequences: int = 1

    @classmethod
    def parse(cls, text: str, preset: str) -> "WarmUp":
        """Parse `96`, `384x4` or `exact:96x4`.

        Raises:
            ValueError: the text is not such a shape.
        """
        match = re.fullmatch(r"(?:([^:]*):)?([0-9]+)(?:x([0-9]+))?", text)
        if match is None:
            raise ValueError(
                f"warm_up={text!r}: must be like 96, 384x4 or exact:96x4 (tokens, sequences, preset)"
            )
        decoding = Decoding(preset=match[1] or preset)
        return cls(preset=decoding.preset, tokens=int(match[2]), sequences=int(match[3] or 1))


class CompileScheduler:
    """Compiles the programs of some slots.

    Args:
        inference: model and tokenizer.
        groups: all slots, narrow ones first.
        context: tokens that the widest slots hold.

    Attributes:
        seconds: how long the last compilation took.
        failed: slots for which a compilation has failed.
        pause: seconds between a failure and the next attempt.
        is_cancelled: whether to compile nothing more.
    """

    def __init__(self, inference: DiffuCoderInference, groups: Sequence[Slots], context: int):
        self.inference = inference
        self.groups = groups
        self.context = context
        self.seconds = 0.0
        self.failed = set[Slots]()
        self.pause = FIRST_PAUSE
        self.retry_at = 0.0
        self.is_cancelled = False
        # never started: `is_alive` is False until the first compilation
        self.thread = Thread()

    def warm_up(self, shapes: Iterable[WarmUp]) -> bool:
        """Compile a list of shapes, and measure a step of the first.

        Returns:
            False if it was cancelled before the end.

        Raises:
            OutOfMemoryError: a shape does not fit; the message says what would.
        """
        inference = self.inference
        for shape, adapter in product(shapes, ("", *inference.adapters)):
            # left-to-right decoding always has a cache
            decoding = Decoding(
                preset="fast" if inference.config.is_unidirectional else shape.preset
            )
            kind = decoding.settings.cache != "none", False, adapter
            slots = next(
                slots
                for slots in self.groups
                if (slots.is_cached, slots.is_growing, slots.sampler.adapter) == kind
                and slots.columns >= min(shape.tokens, self.context)
            )
            planned = replace(
                inference.planned,
                batch=shape.sequences,
                canvas=slots.columns,
                new_tokens=1,
                decoding=decoding,
                kind=SERVE,
            )
            with explain_out_of_memory(planned):
                for number, sizes in enumerate(slots.sizes):
                    if shape.sequences not in sizes:
                        self.compile(slots, number, shape.sequences)
                if not (self.is_cancelled or slots.pace.seconds_per_row):
                    self.try_step(slots)
        return not self.is_cancelled

    def try_step(self, slots: Slots):
        """Take a step with a dummy sequence, to measure its time."""
        sequence = self.sequence(slots)
        slots.join(sequence)
        try:
            slots.advance(1)
        finally:
            slots.leave(sequence)

    def start_next(self, *, is_ahead: bool):
        """Start compiling the next missing program, unless another one is being compiled.

        Requests share the processor with the compilation, but do not wait for it.

        Args:
            is_ahead: also compile what only more requests at a time would need.
        """
        if self.is_cancelled or self.thread.is_alive() or monotonic() < self.retry_at:
            return
        # one at a time, smallest batch first: a lone request must not wait for a large program
        missing = [
            (size, slots.columns, number, slots)
            for slots in self.groups
            for number, size in slots.missing(is_ahead=is_ahead)
        ]
        if not missing:
            return
        size, _, number, slots = min(missing, key=lambda each: each[:3])
        self.thread = Thread(
            target=self.try_to_compile, args=(slots, number, size), name="compilation", daemon=True
        )
        try:
            self.thread.start()
        # no thread could be started
        except RuntimeError:
            self.postpone(slots)

    def try_to_compile(self, slots: Slots, number: int, size: int):
        """Compile a program; after an error, postpone it."""
        try:
            self.compile(slots, number, size)
            self.pause = FIRST_PAUSE
            self.failed.discard(slots)
        except Exception:  # not fatal: wider slots may still serve everything
            self.postpone(slots)

    def postpone(self, slots: Slots):
        """Wait after an error, each time for longer."""
        logger.exception("a compilation failed; the next attempt is in %.0f s", self.pause)
        self.failed.add(slots)
        self.retry_at = monotonic() + self.pause
        self.pause = min(2 * self.pause, MAX_PAUSE)

    def compile(self, slots: Slots, number: int, size: int):
        """Compile a pass of some slots for `size` sequences."""
        if self.is_cancelled:
            return
        begun = monotonic()
        slots.compile(number, size, self.sequence(slots))
        self.seconds = monotonic() - begun
        return_freed_memory()

    def sequence(self, slots: Slots) -> Any:
        """Create a short dummy sequence that fits these slots."""
        is_windowed = slots.is_cached and not self.inference.config.is_unidirectional
        decoding = Decoding(preset="fast" if is_windowed else "exact")
        # one given token and a hole of two: content and length do not matter for the shape
        request = Request(
            before=(self.inference.tokenizer.pad_id,),
            options=GenerationOptions(max_new_tokens=2, decoding=decoding),
            is_gap=slots.is_growing,
            adapter=slots.sampler.adapter,
        )
        return sequence_of(request, self.inference, context=self.context, max_tokens=2)

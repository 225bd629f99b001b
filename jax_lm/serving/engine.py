"""The engine: a bounded queue before the slots of one device, stepped by one thread. Knows tokens and text, no HTTP.

    engine = Engine(DiffuCoderInference(), EngineOptions())
    engine.start()
    jobs = engine.submit([request], listen)   # listen(event) is called on the engine's thread
    engine.close(grace=30)

A job's answer depends on its request alone. What goes wrong with one job ends that job.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from jax_lm.host.compile_clock import COMPILE_EVENT
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import BLOCK_LENGTH, Decoding, GenerationOptions
from jax_lm.serving.admission import sequence_of
from jax_lm.serving.constrained import Repairs
from jax_lm.serving.growing import GrowingSequence, GrowingSlots
from jax_lm.serving.jobs import Event, Job, Listener, Request
from jax_lm.serving.metrics import Metrics, bytes_in_use, return_freed_memory
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots

logger = logging.getLogger(__name__)

WIDTHS = (96, 192, 384, 768, 1536, 2048)
"""Tokens that a sequence may hold: it takes the narrowest that holds it. Wider ones only if the options say so.

An answer of 64 or 256 tokens comes with a prompt, of about half as many: powers of two would hold it just not.
"""
BATCH_SIZES = (1, 4, 8, 12, 16)
"""Numbers of sequences that there are compilations for, up to what the options say."""
IDLE_SECONDS = 1.0
"""How long nobody must have asked before another shape is compiled."""
LONGEST_PAUSE = 300.0
"""Seconds to which that time doubles with every compilation that fails, say for want of descriptors."""
STEPS_PER_CALL = 4
"""Steps between two looks at the queue; also how often progress is told."""


Shape = tuple[Slots | GrowingSlots, int]
"""Slots, and how many sequences they decode together."""


class QueueFullError(Exception):
    """No place is left; `retry_after` seconds is when one should be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("the queue is full")
        self.retry_after = retry_after


class ClosingError(Exception):
    """The engine takes nothing any more."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Bounds of an engine.

    Attributes:
        slots: sequences decoded together, per width and with or without a cache.
        queue: sequences that may wait for a slot.
        context: tokens that prompt and answer may take together; None is 2048, or less if the model holds less.
        max_tokens: longest hole.
        draft: steps that are guessed ahead, of every sequence (`jax_lm.options.GenerationOptions`); 0 is off.
        timeout: seconds that a request may take from its arrival.
    """

    slots: int = 16
    queue: int = 128
    context: int | None = None
    max_tokens: int = 1024
    draft: int = 0
    timeout: float = 120.0

    def __post_init__(self) -> None:
        for name in ("slots", "queue", "context", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        GenerationOptions(draft=self.draft)
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout}: must be positive")


class Engine:
    """Decodes requests together.

    Args:
        inference: model and tokenizer.
        options: bounds.
        metrics: where to count.
        slots_type: what runs the batches.
    """

    def __init__(
        self,
        inference: DiffuCoderInference,
        options: EngineOptions = EngineOptions(),
        metrics: Metrics | None = None,
        *,
        slots_type: type[Slots] = Slots,
    ) -> None:
        self.inference, self.options = inference, options
        self.tokenizer = inference.tokenizer
        self.metrics = metrics or Metrics(options.slots)
        holds = inference.config.max_position_embeddings
        if options.context is not None and options.context > holds:
            raise ValueError(f"context={options.context}: the model holds {holds} tokens")
        self.context = min(holds, options.context or WIDTHS[-1])
        sizes = {1, options.slots, *(size for size in BATCH_SIZES if size < options.slots)}
        widths = [*(width for width in WIDTHS if width < self.context), self.context]
        self.groups: list[Slots | GrowingSlots] = [
            slots_type(
                inference.sampler,
                # A window may reach over the end of the longest sequence.
                width + BLOCK_LENGTH * (is_cached and width == self.context),
                is_cached=is_cached,
                count=options.slots,
                sizes=(),
                stop_ids=self.tokenizer.stop_ids,
                draft=options.draft,
            )
            for width in widths
            for is_cached in (False, True)
        ]
        widest = self.groups[-2:]
        if inference.sampler.growth:
            growing = [
                GrowingSlots(inference.sampler, width, count=options.slots, every=STEPS_PER_CALL) for width in widths
            ]
            self.groups += growing
            widest.append(growing[-1])
        # The widest slots can hold every sequence: one at a time, then as many as there may be.
        self.urgent = [(slots, 1) for slots in widest]
        # Few sequences and narrow ones first: in a batch made for sixteen, a lone one costs as much as sixteen.
        rest = [(slots, size) for size in sorted(sizes) for slots in self.groups]
        self.soon = [(slots, options.slots) for slots in widest if options.slots > 1]
        self.shapes = [shape for shape in rest if shape not in (*self.urgent, *self.soon)]
        self.repairs = Repairs(inference.sampler, widths)
        self.asked: set[Slots | GrowingSlots] = set()
        self.waiting: list[Job] = []
        self.running: dict[Sequence | GrowingSequence, Job] = {}
        self.condition = threading.Condition()
        self.ready, self.stopped = threading.Event(), threading.Event()
        self.is_closing, self.shutdown_at = False, 0.0
        self.seconds_per_job, self.pause = 1.0, IDLE_SECONDS
        self.thread = threading.Thread(target=self.work, name="engine", daemon=True)
        self.compiling = threading.Thread()

    # What other threads call.

    def start(self) -> None:
        """Warm up and begin to work, on a thread of its own; `ready` is set when that is done."""
        jax.monitoring.register_event_duration_secs_listener(self.count_compilation)
        self.metrics.device_memory.set_function(bytes_in_use)
        self.thread.start()

    def submit(self, requests: Collection[Request], listen: Listener, seconds: float | None = None) -> list[Job]:
        """Queue requests, all or none; `listen` hears of each what happens, last of all how it ended.

        Args:
            seconds: time that they may take, at most what the engine's options say.

        Raises:
            ValueError: a request that the engine cannot decode.
            QueueFullError: there is no place.
            ClosingError: the engine is shutting down.
        """
        deadline = time.monotonic() + min(seconds or self.options.timeout, self.options.timeout)
        jobs = [Job(request=one, sequence=self.sequence(one), listen=listen, deadline=deadline) for one in requests]
        if len(jobs) > self.options.queue:
            raise ValueError(f"{len(jobs)} completions at once: at most {self.options.queue}")
        with self.condition:
            if self.is_closing or self.stopped.is_set():
                raise ClosingError
            if len(self.waiting) + len(jobs) > self.options.queue:
                self.metrics.refused.inc(len(jobs))
                raise QueueFullError(self.retry_after())
            self.waiting += jobs
            self.asked |= {next(self.fitting(job.sequence)) for job in jobs}
            self.condition.notify()
        self.metrics.prompt_tokens.inc(sum(len(one.before) + len(one.after) for one in requests))
        return jobs

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Give them up; each ends with the reason `cancelled` unless it has ended already."""
        for job in jobs:
            job.is_cancelled = True
        with self.condition:
            self.condition.notify()

    def refuse_new(self, grace: float) -> None:
        """Take nothing new; what is there and does not end within `grace` seconds ends with the reason `shutdown`."""
        self.metrics.ready.set(0)
        with self.condition:
            self.is_closing, self.shutdown_at = True, time.monotonic() + grace
            self.condition.notify()

    def give_up(self) -> None:
        """End what is left with the reason `shutdown`, also while a call of the device goes on."""
        with self.condition:
            left = [*self.waiting, *self.running.values()]
        for job in left:
            self.tell(job, Event(job=job, reason="shutdown", text=job.text))

    def close(self, grace: float, wait: float | None = None) -> bool:
        """Take nothing new, and wait until what is there has ended or `grace` seconds are over.

        Args:
            wait: seconds for the engine's thread to end, which a call of the device or of the compiler may hold; None
                is as long as that takes.

        Returns:
            Whether it has ended.
        """
        self.refuse_new(grace)
        if self.thread.is_alive():
            self.thread.join(wait)
        return not self.thread.is_alive()

    def retry_after(self) -> int:
        """Seconds until a place should be free."""
        ahead = len(self.waiting) + len(self.running)
        return max(1, min(60, round(ahead * self.seconds_per_job / self.options.slots)))

    def sequence(self, request: Request) -> Sequence | GrowingSequence:
        """Make a sequence of a request; ValueError names what does not fit."""
        return sequence_of(request, self.inference, context=self.context, max_tokens=self.options.max_tokens)

    # What the engine's thread does.

    def work(self) -> None:
        """Until closed: let sequences join and leave, and take some steps with all of them."""
        try:
            for shape in self.urgent:
                self.compile(*shape)
            if not all(slots.sizes for slots, _ in self.urgent):
                # Told to shut down before there was anything to decode with.
                return
            # Without being idle: a crowd that is there from the first moment would else be served one by one for ever.
            self.begin_compiling(self.soon)
            self.ready.set()
            self.metrics.ready.set(1)
            while self.wait():
                self.sweep()
                self.admit()
                for slots in self.groups:
                    if slots.sequences:
                        self.advance(slots)
                self.repairs.rest(self.running)
        finally:
            # Also when a defect of the loop itself ends it: nobody may wait for ever.
            self.stopped.set()
            self.metrics.ready.set(0)
            with self.condition:
                left = [*self.waiting, *self.running.values()]
                self.waiting, self.running = [], {}
            for job in left:
                self.repairs.forget(job.sequence)
                self.tell(job, Event(job=job, reason="shutdown"))
            self.repairs.close()
            # An interpreter that ends below a running compilation crashes.
            if self.compiling.is_alive():
                self.compiling.join()

    def compile(self, slots: Slots | GrowingSlots, size: int) -> None:
        """Compile a shape before it is asked for; only those that are compiled are used."""
        if not self.is_closing:
            decoding = Decoding(preset="fast" if slots.is_cached else "exact")
            options = GenerationOptions(max_new_tokens=2, decoding=decoding)
            is_gap = isinstance(slots, GrowingSlots)
            trial: Any = self.sequence(Request(before=(self.tokenizer.pad_id,), options=options, is_gap=is_gap))
            slots.compile(size, trial)
            return_freed_memory()

    def wait(self) -> bool:
        """Until there is something to do; False when all is done and nothing new is taken.

        While nobody asks, the shapes that would have served what was asked faster are compiled, one after another on a
        thread beside: who asks meanwhile shares the processor with a compilation, but does not wait for its end. What
        nobody asks for is never compiled: a program keeps tens of megabytes.
        """
        while True:
            is_compiling = self.compiling.is_alive()
            shapes = [shape for shape in self.shapes if shape[0] in self.asked]
            with self.condition:
                # A compilation that fails gives its shape back.
                if self.condition.wait_for(self.is_called, self.pause if shapes or is_compiling else None):
                    return bool(self.waiting or self.running)
            if shapes and not self.compiling.is_alive():
                self.shapes.remove(shapes[0])
                self.begin_compiling(shapes[:1])

    def begin_compiling(self, shapes: list[Shape]) -> None:
        """Compile shapes on a thread beside."""
        self.compiling = threading.Thread(target=self.compile_each, args=(shapes,), name="compilation", daemon=True)
        try:
            self.compiling.start()
        except RuntimeError:
            self.shapes += shapes
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
            logger.exception("no thread for a compilation; the next attempt is in %.0f s", self.pause)

    def compile_each(self, shapes: list[Shape]) -> None:
        """Compile shapes; one that cannot be compiled now is tried again later."""
        for slots, size in shapes:
            try:
                self.compile(slots, size)
                self.pause = IDLE_SECONDS
            except Exception:  # the border: what is compiled already serves everything
                self.pause = min(2 * self.pause, LONGEST_PAUSE)
                self.shapes.append((slots, size))
                logger.exception("%d sequences cannot be compiled; the next attempt is in %.0f s", size, self.pause)

    def is_called(self) -> bool:
        return bool(self.waiting or self.running or self.is_closing)

    def sweep(self) -> None:
        """End the jobs that were cancelled, whose time is over, or that the shutdown does not wait for."""
        now = time.monotonic()
        is_over = self.is_closing and now > self.shutdown_at
        for job in [*self.waiting, *self.running.values()]:
            if job.is_cancelled or now > job.deadline or is_over:
                reason = "cancelled" if job.is_cancelled else "timeout" if now > job.deadline else "shutdown"
                self.end(job, Event(job=job, reason=reason, text=job.text, forwards=job.sequence.forwards))

    def admit(self) -> None:
        """Let waiting sequences join, in the order of their arrival, where there is room of their width and kind."""
        with self.condition:
            for job in list(self.waiting):
                slots = self.narrowest(job.sequence)
                if slots is not None:
                    self.waiting.remove(job)
                    slots.join(job.sequence)
                    self.running[job.sequence] = job
                    self.metrics.queue_seconds.observe(time.monotonic() - job.arrived)
            self.metrics.waiting.set(len(self.waiting))
            self.metrics.running.set(len(self.running))

    def narrowest(self, sequence: Sequence | GrowingSequence) -> Any:
        """Find the narrowest slots that hold it and have room; the widest hold every sequence."""
        return next((slots for slots in self.fitting(sequence) if slots.has_room), None)

    def fitting(self, sequence: Sequence | GrowingSequence) -> Iterator[Slots | GrowingSlots]:
        """Go through the slots of its kind that are wide enough, the narrowest first."""
        return (slots for slots in self.groups if slots.holds(sequence))

    def advance(self, slots: Any) -> None:
        """Take some steps with the sequences of one width, and tell what became of each."""
        sequences = slots.sequences
        self.metrics.batch_rows.observe(len(sequences))
        try:
            slots.advance(STEPS_PER_CALL)
        except Exception as error:  # the border: whichever sequence it was, the others must not suffer
            logger.exception("a batch of %d failed", len(sequences))
            self.isolate(slots, sequences, error)
        for sequence in sequences:
            if sequence in self.running:
                self.report(self.running[sequence])

    def isolate(self, slots: Any, sequences: list, error: Exception) -> None:
        """After a failure: take each sequence's steps alone, and end the job of any that fails again."""
        for sequence in sequences:
            slots.leave(sequence)
            if sequence.is_cached:
                sequence.reopen()
        for sequence in sequences:
            slots.join(sequence)
            try:
                slots.advance(STEPS_PER_CALL)
                while sequence.is_cached and not sequence.is_between_blocks:
                    slots.advance(STEPS_PER_CALL)
            except Exception as again:  # the border: this is the sequence that failed
                logger.error("a row failed alone too: %s", again)
                job = self.running[sequence]
                self.end(job, Event(job=job, reason="error", error=again))
            else:
                slots.leave(sequence)
        for sequence in sequences:
            if sequence in self.running:
                slots.join(sequence)

    def report(self, job: Job) -> None:
        """Tell what was decided, and end the job if it is done; a failure here is the job's own."""
        try:
            self.repairs.look(job.sequence)
            event = job.look(self.tokenizer)
        except Exception as error:  # the border: one job's answer must not end the others'
            logger.exception("a job failed")
            event = Event(job=job, reason="error", error=error)
        if job.text and job.first_text is None:
            job.first_text = time.monotonic()
            self.metrics.first_text_seconds.observe(job.first_text - job.arrived)
        if event.reason:
            self.end(job, event)
        elif event.commits:
            self.tell(job, event)

    def end(self, job: Job, event: Event) -> None:
        """Take the job out of the engine, count it, and tell."""
        with self.condition:
            if job in self.waiting:
                self.waiting.remove(job)
            self.running.pop(job.sequence, None)
        self.repairs.forget(job.sequence)
        for slots in self.groups:
            if job.sequence in slots.sequences:
                sequence: Any = job.sequence
                slots.leave(sequence)
        seconds = time.monotonic() - job.arrived
        self.metrics.rows.labels(event.reason).inc()
        self.metrics.forwards.inc(event.forwards)
        if event.is_answer:
            self.metrics.tokens.inc(len(event.tokens))
            self.metrics.total_seconds.observe(seconds)
            self.metrics.tokens_per_forward.observe(len(event.tokens) / max(event.forwards, 1))
            self.seconds_per_job += 0.1 * (seconds - self.seconds_per_job)
        self.tell(job, event)

    def tell(self, job: Job, event: Event) -> None:
        """Let the listener know, of the end once; what it raises is logged: nobody here could do anything about it."""
        with self.condition:
            if job.is_ended:
                return
            job.is_ended = event.reason is not None
        try:
            job.listen(event)
        except Exception:  # the border: a listener that has gone must not end the engine
            logger.exception("a listener failed")

    def count_compilation(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Count a compilation, of all the durations that JAX reports."""
        if event == COMPILE_EVENT:
            self.metrics.compilations.inc()
            self.metrics.compile_seconds.inc(duration_secs)

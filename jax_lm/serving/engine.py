"""The engine: one thread that decodes requests together, in the slots of one device.

    engine = Engine(DiffuCoderInference(), EngineOptions())
    engine.start()
    jobs = engine.submit([request], listen)   # listen(event) is called on the engine's thread
    engine.close(grace=30)

An answer depends only on its request, and an error ends only the job that it belongs to. Knows
tokens and text, no HTTP. `queue` holds the waiting jobs, and `compilations` decides which batch
shapes are compiled.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax_lm.inference import DiffuCoderInference
from jax_lm.options import BLOCK_LENGTH, GenerationOptions
from jax_lm.serving.admission import sequence_of
from jax_lm.serving.compilations import CompileScheduler
from jax_lm.serving.constrained import Repairs
from jax_lm.serving.growing import GrowingSlots
from jax_lm.serving.jobs import AnySequence, Event, Job, Listener, Request
from jax_lm.serving.metrics import Metrics
from jax_lm.serving.queue import JobQueue, RejectedError
from jax_lm.serving.slots import Slots

logger = logging.getLogger(__name__)

# Widths of slots in tokens; a sequence takes the narrowest slots that can hold it.
#
# An answer of 64 or 256 tokens often has a prompt of about half that length, so that powers of two
# would be slightly too narrow. Wider slots are made only if the options ask for a longer context.
WIDTHS = (96, 192, 384, 768, 1536, 2048)
# Steps between two checks of the queue, and between two progress events of a job.
STEPS_PER_CALL = 4


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Limits of an engine.

    Attributes:
        slots: sequences decoded together, per width and with or without a KV cache.
        queue: sequences that may wait for a slot.
        context: tokens that prompt and answer may take together; None is 2048, or less if the
            model holds less.
        max_tokens: length of the longest hole.
        draft: steps drafted ahead for every sequence (`jax_lm.options.GenerationOptions`); 0 is
            off.
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
                raise ValueError(f"{name}={value}: must be at least 1")
        GenerationOptions(draft=self.draft)
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout}: must be positive")


class Engine:
    """Decodes requests together, in the slots of one device.

    Args:
        inference: model and tokenizer.
        options: limits.
        metrics: counters to update.
        slots_type: class that runs the batches.
    """

    def __init__(
        self,
        inference: DiffuCoderInference,
        options: EngineOptions = EngineOptions(),
        metrics: Metrics | None = None,
        *,
        slots_type: type[Slots] = Slots,
    ) -> None:
        if inference.is_autoregressive:
            raise ValueError(
                f"model {inference.found.name}: autoregressive, and the server does not decode left "
                "to right; adapt the model, or generate with it"
            )
        self.inference, self.options = inference, options
        self.tokenizer = inference.tokenizer
        self.metrics = metrics or Metrics(options.slots)
        # the model's own limit bounds the context
        limit = inference.config.max_position_embeddings
        if options.context is not None and options.context > limit:
            raise ValueError(f"context={options.context}: the model holds {limit} tokens")
        self.context = min(limit, options.context or WIDTHS[-1])
        # context 1000: widths 96, 192, 384, 768 and 1000
        widths = [*(width for width in WIDTHS if width < self.context), self.context]
        make_slots = partial(
            slots_type,
            inference.sampler,
            count=options.slots,
            sizes=(),
            stop_ids=self.tokenizer.stop_ids,
            draft=options.draft,
        )
        self.groups: list[Slots | GrowingSlots] = [
            # The last window of a cached sequence may reach past the end of the context.
            make_slots(
                width + BLOCK_LENGTH * (is_cached and width == self.context), is_cached=is_cached
            )
            for width in widths
            for is_cached in (False, True)
        ]
        # only models that were trained for it have holes that find their length
        if inference.sampler.growth:
            self.groups += [
                GrowingSlots(inference.sampler, width, count=options.slots, every=STEPS_PER_CALL)
                for width in widths
            ]
        self.queue = JobQueue(options.queue, options.slots)
        self.compilations = CompileScheduler(inference, self.groups, self.context, options.slots)
        self.repairs = Repairs(inference.sampler, widths)
        self.ready, self.stopped = threading.Event(), threading.Event()
        # what ended the engine, if it was not closed
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # Called by other threads.

    def start(self) -> None:
        """Start the engine's thread, which sets `ready` after warm-up."""
        self.metrics.observe_jax()
        self.thread.start()

    def submit(
        self, requests: Collection[Request], listen: Listener, seconds: float | None = None
    ) -> list[Job]:
        """Queue all of the requests, or none.

        Args:
            listen: called with each event; the last event of a job has a reason.
            seconds: time that the requests may take, at most the engine's own timeout.

        Raises:
            ValueError: a request that the engine cannot decode.
            RejectedError: the queue is full, or the engine is shutting down.
        """
        # one deadline for all answers of a request
        timeout = self.options.timeout
        deadline = time.monotonic() + min(seconds or timeout, timeout)
        jobs = [
            Job(
                request=each,
                sequence=self.sequence(each),
                tokenizer=self.tokenizer,
                listen=listen,
                deadline=deadline,
            )
            for each in requests
        ]
        if len(jobs) > self.options.queue:
            raise ValueError(f"{len(jobs)} completions at once: at most {self.options.queue}")
        try:
            self.queue.put(jobs)
        except RejectedError as rejected:
            self.metrics.refused.inc(len(jobs) * (rejected.code == "queue_full"))
            raise
        self.metrics.prompt_tokens.inc(sum(each.prompt_tokens for each in requests))
        return jobs

    def cancel(self, jobs: Iterable[Job]) -> None:
        """End jobs with the reason `cancelled`, unless they have ended already."""
        for job in jobs:
            job.is_cancelled = True

    def refuse_new(self, grace: float) -> None:
        """Accept no more jobs; those left after `grace` seconds end with the reason `shutdown`."""
        self.metrics.ready.set(0)
        self.compilations.cancel()
        self.queue.close(grace)

    def give_up(self) -> None:
        """End all jobs, even while the device is still busy."""
        # the engine's thread may hang in a call of the device: deliver from this thread
        for job in self.queue.jobs:
            job.deliver(job.ending(self.queue.refusal))

    def close(self, grace: float, wait: float | None = None) -> bool:
        """Accept no more jobs and wait until all have ended, for at most `grace` seconds.

        Args:
            wait: seconds to wait for the engine's thread, which may be inside a call of the device
                or the compiler; None waits as long as that takes.

        Returns:
            Whether the thread has ended.
        """
        self.refuse_new(grace)
        if self.thread.is_alive():
            self.thread.join(wait)
        return not self.thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted: after warm-up and until shutdown."""
        return self.ready.is_set() and self.queue.closes_at is None

    def sequence(self, request: Request) -> AnySequence:
        """Create the sequence of a request. Raises ValueError if it does not fit."""
        return sequence_of(
            request, self.inference, context=self.context, max_tokens=self.options.max_tokens
        )

    # Called by the engine's thread.

    def run(self) -> None:
        """Decode until closed: take jobs from the queue, step, deliver events, end jobs."""
        try:
            if not self.compilations.warm_up():
                return
            self.ready.set()
            self.metrics.ready.set(1)
            # one round: at most STEPS_PER_CALL steps for every group
            while self.wait():
                self.end_overdue()
                self.admit()
                for slots in self.groups:
                    if slots.sequences:
                        self.step(slots)
                self.repairs.wait_if_idle(self.queue.running)
        except BaseException as error:  # the border: the server ends with it
            self.failure, self.queue.refusal = error, "engine_failed"
            logger.critical("the engine failed: %s", error, exc_info=error)
        finally:
            # Also after an error in the loop itself: otherwise clients would wait forever.
            self.stopped.set()
            self.metrics.ready.set(0)
            for job in self.queue.clear():
                self.repairs.forget(job.sequence)
                job.deliver(job.ending(self.queue.refusal))
            self.metrics.running.set(0)
            self.metrics.waiting.set(0)
            self.repairs.close()
            self.compilations.join()

    def wait(self) -> bool:
        """Wait for jobs, and compile meanwhile. Returns False once closed and without jobs."""
        while not self.queue.wait(self.compilations.idle_seconds):
            self.compilations.start_next()
        return bool(self.queue.jobs)

    def end_overdue(self) -> None:
        """End jobs that are cancelled or past their deadline, and all jobs after the shutdown."""
        now, closes_at = time.monotonic(), self.queue.closes_at
        for job in self.queue.jobs:
            if job.is_cancelled:
                self.end(job.ending("cancelled"))
            elif now > job.deadline:
                self.end(job.ending("timeout"))
            elif closes_at is not None and now > closes_at:
                self.end(job.ending("shutdown"))

    def admit(self) -> None:
        """Move waiting sequences to slots of their kind, in order of arrival."""
        # a copy, as `start` removes jobs from it
        for job in list(self.queue.waiting):
            slots = self.narrowest(job.sequence)
            if slots is not None:
                slots.join(job.sequence)
                self.queue.start(job)
                # the group that fits best, even if the sequence had to take wider slots
                self.compilations.requested.add(next(self.fitting(job.sequence)))
                self.metrics.queue_seconds.observe(job.age)
        self.metrics.waiting.set(len(self.queue.waiting))
        self.metrics.running.set(len(self.queue.running))

    def narrowest(self, sequence: AnySequence) -> Any:
        """Return the narrowest slots that can hold a sequence and have room; None without any."""
        return next((slots for slots in self.fitting(sequence) if slots.has_room), None)

    def fitting(self, sequence: AnySequence) -> Iterator[Slots | GrowingSlots]:
        """Return the slots that can hold a sequence, narrowest first. The widest hold any."""
        return (slots for slots in self.groups if slots.holds(sequence))

    def step(self, slots: Any) -> None:
        """Advance the sequences of one group by a few steps, and deliver their events."""
        sequences = slots.sequences
        self.metrics.batch_rows.observe(len(sequences))
        try:
            # decode
            slots.advance(STEPS_PER_CALL)
        except Exception:  # the border: only the sequence that caused it may suffer
            logger.exception("a batch of %d sequences failed", len(sequences))
            self.isolate(slots, sequences)
        # deliver what was decided; a sequence that failed has no running job any more
        for sequence in sequences:
            if sequence in self.queue.running:
                self.deliver(self.queue.running[sequence])

    def isolate(self, slots: Any, sequences: list) -> None:
        """Advance each sequence alone, and end the jobs of those that fail again."""
        # empty the slots; a failed call has lost the cache, so that open blocks begin anew
        for sequence in sequences:
            slots.leave(sequence)
            if sequence.is_cached:
                sequence.reopen()
        # each sequence alone, to the end of its block: only then does its cache not matter
        for sequence in sequences:
            slots.join(sequence)
            try:
                slots.advance(STEPS_PER_CALL)
                while sequence.is_cached and not sequence.is_between_blocks:
                    slots.advance(STEPS_PER_CALL)
            except Exception as error:  # the border: this is the sequence that failed
                logger.error("a sequence failed alone too: %s", error)
                self.end(self.queue.running[sequence].ending("error", error))
            else:
                slots.leave(sequence)
        # put the others back together
        for sequence in sequences:
            if sequence in self.queue.running:
                slots.join(sequence)

    def deliver(self, job: Job) -> None:
        """Deliver new tokens of an answer, and end its job once the answer is complete."""
        # for the time to the first text
        had_text = bool(job.text)
        try:
            self.repairs.advance(job.sequence)
            event = job.next_event()
        except Exception as error:  # the border: one job's answer must not end the others
            logger.exception("a job failed")
            event = job.ending("error", error)
        if job.text and not had_text:
            self.metrics.first_text_seconds.observe(job.age)
        if event.reason:
            self.end(event)
        elif event.commits:
            job.deliver(event)

    def end(self, event: Event) -> None:
        """Free the slot of a job, count the job, and deliver its last event."""
        job: Any = event.job
        # free the slot and everything that belongs to the sequence
        self.queue.remove(job)
        self.repairs.forget(job.sequence)
        for slots in self.groups:
            if job.sequence in slots.sequences:
                slots.leave(job.sequence)
        # count and estimate waiting times: moving average with weight 0.1
        self.metrics.count_end(event, job.age)
        if event.is_answer:
            self.queue.seconds_per_job += 0.1 * (job.age - self.queue.seconds_per_job)
        job.deliver(event)

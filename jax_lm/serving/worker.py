"""A worker: one thread that decodes jobs of the queue together, in the slots of one device or mesh.

Several workers may share a queue, each with its own copy of the weights (`serve --replicas`). An
answer depends only on its request, and an error ends only the job that caused it. Knows tokens and
text, no HTTP. `compilations` decides which programs are compiled.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock, Thread
from time import monotonic
from typing import Any

import jax
import numpy as np

from jax_lm.diffusion.state import NOT_FINITE
from jax_lm.inference import DiffuCoderInference
from jax_lm.planning.serving import canvas_widths, columns_of
from jax_lm.serving.compilations import CompileScheduler, WarmUp
from jax_lm.serving.constrained import Repairs
from jax_lm.serving.growing import GrowingSlots
from jax_lm.serving.jobs import Event, Job
from jax_lm.serving.metrics import Metrics
from jax_lm.serving.pace import Pace
from jax_lm.serving.queue import JobQueue
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots

logger = logging.getLogger(__name__)

# Maximum number of steps per call. Between calls, the queue is checked and progress is reported.
STEPS_PER_CALL = 4
# A sequence is young until the device has spent YOUNG_SECONDS on it. Young sequences go first,
# except in one of OLD_TURN calls.
YOUNG_SECONDS = 1.0
OLD_TURN = 2
# Seconds without a call after which programs are compiled that only more requests would need.
IDLE_SECONDS = 1.0
# Seconds between checks while jobs wait for a program, or something is being compiled.
POLL_SECONDS = 0.02


class DeviceError(RuntimeError):
    """Raised when the device fails for every sequence."""


class EngineWorker:
    """Decodes jobs of a queue in the slots of one device or mesh.

    Args:
        inference: model and tokenizer, on the devices of this worker.
        queue: jobs to decode.
        metrics: counters to update.
        context: tokens that prompt and answer may take together.
        slots: number of slots, per width and with or without a KV cache.
        draft: steps drafted ahead for every sequence.

    Attributes:
        running: this worker's jobs, by the sequence that occupies a slot.
        device: held during each call of the device; two at a time might block each other on a mesh.
        siblings: all workers of the queue, including this one.
    """

    def __init__(
        self,
        inference: DiffuCoderInference,
        queue: JobQueue,
        metrics: Metrics,
        *,
        context: int,
        slots: int,
        draft: int,
    ):
        self.inference = inference
        self.queue = queue
        self.metrics = metrics
        self.running: dict[Sequence, Job] = {}
        self.device = Lock()
        self.siblings = [self]
        self.pace = Pace()
        self.calls = 0
        self.active_at = monotonic()
        make_slots = partial(
            Slots, draft=draft, pace=self.pace, stop_ids=inference.tokenizer.stop_ids
        )
        # Growing sequences run other programs, so their time is predicted apart.
        make_growing = partial(GrowingSlots, pace=Pace(), stop_ids=())
        # how slots are made, and whether they have a cache
        kinds: list[Any] = [(make_slots, True)]
        # From left to right, all sequences are cached.
        if not inference.config.is_unidirectional:
            kinds.insert(0, (make_slots, False))
        # Only models that were trained for it have holes that find their length.
        if inference.sampler.growth:
            kinds.append((make_growing, False))
        samplers = {"": inference.sampler, **inference.adapters}
        self.groups: list[Slots] = [
            make(
                sampler,
                columns_of(width, context, is_cached=is_cached),
                is_cached=is_cached,
                count=slots,
                sizes=(),
            )
            for width in canvas_widths(context)
            for make, is_cached in kinds
            for sampler in samplers.values()
        ]
        # Adapters of the same layers, rank and scale share programs, and so one list of the sizes
        # that are compiled.
        programs = {}
        for each in self.groups:
            shapes = tuple(part.shape for part in jax.tree.leaves(each.sampler.params))
            program = each.sampler.graph, shapes, each.columns, each.is_cached, each.is_growing
            each.sizes = programs.setdefault(program, each.sizes)
        self.compilations = CompileScheduler(inference, self.groups, context)
        self.repairs = Repairs(samplers, canvas_widths(context), self.device)
        self.is_ready = False

    def run(self, warm_up: list[WarmUp], on_ready: Callable[[], None]):
        """Decode until the queue is closed: take jobs, step, deliver events, end jobs.

        Raises:
            OutOfMemoryError: a program of the warm-up does not fit.
            DeviceError: the device fails for every sequence.
        """
        try:
            if not self.compilations.warm_up(warm_up):
                return
            self.is_ready = True
            on_ready()
            # one device call per round
            while self.running or self.queue.is_open:
                arrivals = self.queue.arrivals
                self.end_overdue()
                self.admit()
                # during shutdown, compile only if jobs still wait for a program
                if self.queue.closes_at is None or self.queue.waiting:
                    # a request that ends a pause is not idle any more, although no call was made
                    is_idle = not self.running and monotonic() - self.active_at > IDLE_SECONDS
                    self.compilations.start_next(is_ahead=is_idle)
                if self.running:
                    self.step()
                    self.active_at = monotonic()
                # check again: after `close`, nothing would end the wait
                elif self.queue.is_open:
                    self.queue.wait(arrivals, self.idle_seconds)
        finally:
            self.is_ready = False
            self.repairs.close()

    @property
    def idle_seconds(self) -> float | None:
        """Seconds to wait for a job if none is running; None waits without a limit."""
        if self.compilations.thread.is_alive() or self.queue.waiting:
            return POLL_SECONDS
        return POLL_SECONDS if any(each.missing(is_ahead=True) for each in self.groups) else None

    def end_overdue(self):
        """End jobs that are cancelled or past their deadline, and all jobs after the shutdown."""
        now = monotonic()
        closes_at = self.queue.closes_at
        for job in [*self.queue.waiting, *self.running.values()]:
            if job.is_cancelled:
                self.end(job.ending("cancelled"))
            elif now > job.deadline:
                self.end(job.ending("compiling" if self.is_compiling_for(job) else "timeout"))
            elif closes_at is not None and now > closes_at:
                self.end(job.ending(self.queue.refusal))

    def is_compiling_for(self, job: Job) -> bool:
        """Whether a job waits for its own program while one is being compiled."""
        return (
            job.started is None
            and self.compilations.thread.is_alive()
            and not next(self.fitting(job.sequence)).is_compiled
        )

    def admit(self):
        """Move waiting sequences to slots, in order of arrival."""
        for job in list(self.queue.waiting):
            sequence = job.sequence
            # count demand for the best fit, even if the sequence has to take wider slots
            best = next(self.fitting(sequence))
            best.peak = max(best.peak, len(best.sequences) + 1)
            slots = self.place(sequence)
            if slots is None or self.is_busier(sequence) or not self.queue.start(job):
                continue
            slots.join(sequence)
            self.running[sequence] = job
            job.started = monotonic()
            self.metrics.queue_seconds.observe(job.age)

    def is_busier(self, sequence: Sequence) -> bool:
        """Whether another worker has room for a sequence and runs fewer jobs than this one."""
        return any(
            len(each.running) < len(self.running) and each.place(sequence)
            for each in self.siblings
            if each.is_ready
        )

    def fitting(self, sequence: Sequence) -> Iterator[Any]:
        """Return the slots that can hold a sequence, narrowest first. The widest hold any."""
        return (slots for slots in self.groups if slots.holds(sequence))

    def place(self, sequence: Sequence) -> Any:
        """Return the narrowest slots that can hold a sequence and have room, or None.

        Also None if waiting for a better-fitting program would finish the sequence earlier.
        """
        best, *wider = self.fitting(sequence)
        free = next((slots for slots in (best, *wider) if slots.has_room), None)
        if free is None or best.is_compiled or best in self.compilations.failed:
            return free
        # 32 steps in 2,048 columns of a large model on a CPU: 640 s, in 96 columns 40 s, which is
        # worth a compilation of 10 s
        saved = free.seconds(sequence) - best.seconds(sequence)
        return free if saved < self.compilations.seconds else None

    def step(self):
        """Make one call, and deliver the events of its sequences.

        Young sequences go first, so that a short answer does not wait for a round of long ones;
        every few calls, old ones have their turn.
        """
        waiting = [each for each in self.running if not each.is_held]
        if waiting:
            self.calls += 1
            is_young_first = self.calls % OLD_TURN != 0
            # Of the young, the one on which the device has spent least. In the other calls, the one
            # that was not served for longest: where new ones keep coming, none waits for ever.
            first = min(
                waiting,
                key=lambda each: (
                    min(each.seconds, YOUNG_SECONDS) * is_young_first,
                    each.served_at,
                ),
            )
            slots: Any = next(each for each in self.groups if first in each.sequences)
            self.advance(slots, first)
        # sequences whose text a thread has checked meanwhile
        for sequence in [each for each in self.running if each.is_held]:
            self.deliver(self.running[sequence])
        self.repairs.wait_if_idle(self.running)

    def advance(self, slots, first: Sequence):
        """Advance a sequence and others of its group by one call, and deliver their events."""
        with self.device:
            try:
                sequences = slots.advance(STEPS_PER_CALL, first)
                self.metrics.batch_rows.observe(len(sequences))
            except Exception:  # only the job that caused it may fail
                sequences = slots.sequences
                logger.exception("a batch failed; its slots hold %d sequences", len(sequences))
                self.isolate(slots, sequences)
        # deliver what was decided; a sequence that failed has no running job any more
        for sequence in sequences:
            if sequence in self.running:
                self.deliver(self.running[sequence])

    def isolate(self, slots, sequences: list):
        """Advance each sequence alone, and end the jobs of those that fail again.

        Raises:
            DeviceError: a dummy sequence fails too.
        """
        # empty the slots; a failed call has lost the cache, so open blocks start again
        for sequence in sequences:
            slots.leave(sequence)
            if sequence.is_windowed:
                sequence.reopen()
        # each sequence alone, to the end of its block: at a new block it needs no cache
        failed = []
        for sequence in sequences:
            slots.join(sequence)
            try:
                slots.advance(STEPS_PER_CALL)
                while sequence.is_windowed and not sequence.is_between_blocks:
                    slots.advance(STEPS_PER_CALL)
            except Exception as error:  # whatever it is, this sequence caused it
                logger.error("a sequence failed alone too: %s", error)
                failed.append((sequence, error))
            slots.leave(sequence)
        # a device that is lost fails for anything
        if failed and len(failed) == len(sequences):
            self.require_device(slots)
        for sequence, error in failed:
            self.end(self.running[sequence].ending("error", error))
        # put the others back together
        for sequence in sequences:
            if sequence in self.running:
                slots.join(sequence)

    def require_device(self, slots):
        """Raise DeviceError if slots cannot decode even a dummy sequence."""
        try:
            self.compilations.try_step(slots)
        except FloatingPointError:
            pass  # the weights are broken, not the device
        except Exception as error:  # whatever it is, nothing can be decoded any more
            raise DeviceError(f"the device fails for every request: {error}") from error

    def deliver(self, job: Job):
        """Deliver new tokens of an answer, and end its job once the answer is complete."""
        # for the time to the first text
        had_text = bool(job.text)
        try:
            if np.isnan(job.sequence.confidence).any():
                raise FloatingPointError(NOT_FINITE)
            self.repairs.advance(job.sequence)
            # while a thread repairs the sequence, its tokens may change
            if job.sequence in self.repairs.pending:
                return
            event = job.next_event()
        except Exception as error:  # one job's answer must not end the others
            logger.exception("a job failed")
            event = job.ending("error", error)
        if job.text and not had_text:
            self.metrics.first_text_seconds.observe(job.age)
        if event.reason:
            self.end(event)
        elif event.commits:
            job.deliver(event)

    def end(self, event: Event):
        """Free the slot of a job, count the job, and deliver its last event."""
        job: Any = event.job
        # free the slot and everything that belongs to the sequence
        self.running.pop(job.sequence, None)
        self.repairs.forget(job.sequence)
        for slots in self.groups:
            if job.sequence in slots.sequences:
                slots.leave(job.sequence)
        # several workers may try to end a waiting job; the first one does
        if not self.queue.remove(job):
            return
        # count it, and update the average behind `retry_after` (weight 0.1)
        self.metrics.count_end(event, job.age)
        if event.is_answer:
            self.queue.seconds_per_job += 0.1 * (job.age - self.queue.seconds_per_job)
        job.deliver(event)

    def start(self, warm_up: list[WarmUp], on_ready: Callable, on_end: Callable):
        """Run on a new thread; at the end, `on_end` is called with the exception, or None."""

        def run():
            failure = None
            try:
                self.run(warm_up, on_ready)
            except BaseException as error:  # reported to `on_end`, which ends the server
                failure = error
            on_end(failure)
            # an interpreter exit during a compilation would crash
            if self.compilations.thread.is_alive():
                self.compilations.thread.join()

        self.thread = Thread(target=run, name="engine", daemon=True)
        self.thread.start()

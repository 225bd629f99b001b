"""The engine: accepts requests, which its workers decode together.

    engine = Engine(DiffuCoderInference(), EngineOptions())
    engine.start()
    jobs = engine.submit([request], listen)   # listen(event) is called on a worker's thread
    engine.close(grace=30)

The jobs wait in `jax_lm.serving.queue`, and each worker (`jax_lm.serving.worker`) decodes some of
them on its own device or mesh. Knows no HTTP.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from threading import Event

from jax_lm.config import Texts
from jax_lm.diffusion.left_to_right import require_drafts
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import (
    Decoding,
    GenerationOptions,
    require_above_zero,
    require_counts,
    require_sizes,
)
from jax_lm.planning.memory import OutOfMemoryError
from jax_lm.planning.serving import CONTEXTS, SLOTS
from jax_lm.serving.admission import sequence_of, served_options
from jax_lm.serving.compilations import WarmUp
from jax_lm.serving.jobs import Job, Listener, Request
from jax_lm.serving.metrics import Metrics
from jax_lm.serving.queue import JobQueue, RejectedError
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.worker import EngineWorker

logger = logging.getLogger(__name__)

# Seconds beyond the deadline of a request after which the device counts as hanging. Deadlines are
# checked between calls, and a call of a large model on a CPU may take a minute.
HANGS_AFTER = 300.0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Limits of an engine.

    Attributes:
        slots: most sequences that one program decodes together. Each width has its own slots, with
            a KV cache and without.
        queue: sequences that may wait for a slot.
        context: tokens that prompt and answer may take together; None is the first of
            `jax_lm.planning.serving.CONTEXTS`, or the model's context if that is shorter.
        max_tokens: length of the longest hole.
        default_tokens: length of a hole that a request gives no length for, at most `max_tokens`.
        draft: steps drafted ahead for every sequence (`jax_lm.options.GenerationOptions`); 0 is
            off.
        timeout: seconds that a request may take from its arrival.
        preset: preset of requests that name none; `warm_up` compiles for it by default.
        warm_up: shapes to compile before the engine is ready (`WarmUp`); by default the narrowest
            and the widest for one sequence. A shape is at most as wide as the context.
    """

    slots: int = SLOTS[0]
    queue: int = 128
    context: int | None = None
    max_tokens: int = 1024
    default_tokens: int = 128
    draft: int = 0
    timeout: float = 120.0
    preset: str = "exact"
    warm_up: Texts = ("1", str(CONTEXTS[0]))

    def __post_init__(self):
        require_sizes(self, "slots", "queue", "context", "max_tokens", "default_tokens")
        require_above_zero(self, "timeout")
        require_counts(self, "draft")
        for shape in self.shapes:
            if not 1 <= shape.sequences <= self.slots:
                raise ValueError(
                    f"warm_up: {shape.sequences} sequences must lie in [1, slots={self.slots}]"
                )

    @property
    def shapes(self) -> list[WarmUp]:
        """The shapes of `warm_up`."""
        return [WarmUp.parse(text, self.preset) for text in self.warm_up]

    def require_fitting(self, inference: DiffuCoderInference):
        """Raise ValueError for options that the model does not support, with or without weights."""
        options = GenerationOptions(draft=self.draft, decoding=Decoding(preset=self.preset))
        if inference.config.is_causal:
            # Its drafts come from masks (`LeftToRight`), which `served_options` would refuse.
            require_drafts(self.draft, inference.config)
            options = replace(options, draft=0)
        served_options(inference, options)
        inference.config.require_context("context", self.context or 0)


class Engine:
    """Decodes requests together, on one device or several.

    Args:
        inference: model and tokenizer.
        options: limits.

    Attributes:
        workers: one for each replica of the model.
        ready: set once every worker has finished its warm-up.
        stopped: set once every worker has ended, or one has failed.
        preparing: requests whose texts are being encoded, scored or compiled to a grammar.
        failure: the exception that ended the engine; None after `close`.
    """

    def __init__(self, inference: DiffuCoderInference, options: EngineOptions = EngineOptions()):
        options.require_fitting(inference)
        self.inference = inference
        self.options = options
        self.tokenizer = inference.tokenizer
        self.context = min(inference.config.max_position_embeddings, options.context or CONTEXTS[0])
        replicas = inference.split()
        self.queue = JobQueue(options.queue, options.slots * len(replicas))
        self.metrics = Metrics(options.slots)
        self.workers = [
            EngineWorker(
                each,
                self.queue,
                self.metrics,
                context=self.context,
                slots=options.slots,
                draft=options.draft,
            )
            for each in replicas
        ]
        for worker in self.workers:
            worker.siblings = self.workers
        self.ready = Event()
        self.stopped = Event()
        self.preparing = 0
        self.failure: BaseException | None = None

    def start(self):
        """Start the workers, which set `ready` after warm-up."""
        self.metrics.observe_jax()
        self.metrics.waiting.set_function(lambda: len(self.queue.waiting))
        self.metrics.running.set_function(lambda: len(self.queue.running))
        for worker in self.workers:
            worker.start(self.options.shapes, self.on_ready, self.on_end)

    def submit(
        self,
        requests: Collection[Request],
        listen: Listener,
        seconds: float = math.inf,
        *,
        with_progress: bool = True,
    ) -> list[Job]:
        """Queue all of the requests, or none.

        Args:
            listen: called with each event; the last event of a job has a reason.
            seconds: time that the requests may take, at most the engine's own timeout.
            with_progress: whether `listen` receives all events, not only the last one of each job.

        Raises:
            ValueError: a request that the engine cannot decode.
            RejectedError: the queue is full, or the engine is shutting down.
        """
        self.require_few(len(requests))
        # one deadline for all answers of a request
        deadline = time.monotonic() + min(seconds, self.options.timeout)
        jobs = [
            Job(
                request=each,
                sequence=self.sequence(each),
                tokenizer=self.tokenizer,
                listen=listen,
                deadline=deadline,
                with_progress=with_progress,
            )
            for each in requests
        ]
        try:
            self.queue.put(jobs)
        except RejectedError as rejected:
            if rejected.code == "queue_full":
                self.metrics.refused.inc(len(jobs))
            raise
        self.metrics.prompt_tokens.inc(sum(each.prompt_tokens for each in requests))
        return jobs

    def require_few(self, count: int):
        """Raise ValueError if a request asks for more completions than the queue can hold."""
        if count > self.options.queue:
            raise ValueError(f"{count} completions at once: at most {self.options.queue}")

    def cancel(self, jobs: Iterable[Job]):
        """End jobs with the reason `cancelled`, unless they have ended already."""
        for job in jobs:
            job.is_cancelled = True

    def refuse_new(self, grace: float):
        """Accept no more jobs; those left after `grace` seconds end with the reason `shutdown`."""
        self.metrics.ready.set(0)
        for worker in self.workers:
            # cancel the warm-up; later compilations go on, because queued jobs may need them
            if not worker.is_ready:
                worker.compilations.is_cancelled = True
        self.queue.close(grace)

    def give_up(self):
        """End all jobs, even while the device is still busy."""
        # a worker's thread may hang in a device call, so deliver from this thread
        for job in self.queue.jobs:
            job.deliver(job.ending(self.queue.refusal))

    def close(self, grace: float, wait: float | None = None) -> bool:
        """Accept no more jobs and wait until all have ended, for at most `grace` seconds.

        Args:
            wait: seconds to wait for each worker's thread, which may be inside a call of the device
                or the compiler; None waits until it ends.

        Returns:
            Whether the threads have ended.
        """
        self.refuse_new(grace)
        for worker in self.workers:
            worker.thread.join(wait)
        return not any(worker.thread.is_alive() for worker in self.workers)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted: after warm-up and until shutdown."""
        return self.ready.is_set() and self.queue.closes_at is None

    @property
    def is_alive(self) -> bool:
        """Whether the engine runs, and no request is so far beyond its deadline that a call must hang."""
        hangs = any(time.monotonic() > job.deadline + HANGS_AFTER for job in self.queue.jobs)
        return not (hangs or self.stopped.is_set())

    @property
    def waits_for(self) -> str | None:
        """What waiting requests wait for: the compiler or the queue; None if none waits."""
        if not self.queue.waiting:
            return None
        # during the warm-up, workers compile on their own threads
        is_compiling = any(
            not each.is_ready or each.compilations.thread.is_alive() for each in self.workers
        )
        # if there is room, a sequence can only be waiting for a program of its width
        has_room = len(self.queue.running) < self.queue.slots
        return "compiler" if is_compiling and has_room else "queue"

    def sequence(self, request: Request) -> Sequence:
        """Create the sequence of a request. Raises ValueError if it does not fit."""
        return sequence_of(
            request, self.inference, context=self.context, max_tokens=self.options.max_tokens
        )

    # Called by the workers' threads.

    def on_ready(self):
        """Accept requests once every worker has finished its warm-up."""
        if all(worker.is_ready for worker in self.workers):
            self.ready.set()
            # not ready if the engine was closed during the last step of the warm-up
            self.metrics.ready.set(self.is_ready)
            logger.info("ready")

    def on_end(self, failure: BaseException | None):
        """End all jobs, unless a worker ends without a failure before the others."""
        if failure and self.failure is None:
            self.failure = failure
            self.queue.refusal = "engine_failed"
            # the operator can fix a lack of memory; everything else is a defect, with its traceback
            defect = None if isinstance(failure, OutOfMemoryError) else failure
            logger.critical("the engine failed: %s", failure, exc_info=defect)
        if failure is None and any(worker.is_ready for worker in self.workers):
            return
        self.stopped.set()
        self.metrics.ready.set(0)
        # no worker will deliver these, and their clients would wait forever
        self.queue.close(0.0)
        self.give_up()

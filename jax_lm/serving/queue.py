"""The queue of the engine: a limited number of waiting jobs, and the jobs that occupy slots.

Threads that serve clients add jobs, and the engine's thread removes them. Every method is thread
safe. Knows neither sequences nor HTTP.
"""

import threading
import time
from collections.abc import Collection

from jax_lm.serving.jobs import Job
from jax_lm.serving.sequence import Sequence


class RejectedError(Exception):
    """Raised when requests are not accepted.

    Attributes:
        code: queue_full, cancelled, shutdown or engine_failed.
        retry_after: seconds after which the queue should have space; None if a retry is useless.
    """

    def __init__(self, code: str, retry_after: int | None = None):
        super().__init__(code)
        self.code = code
        self.retry_after = retry_after


class JobQueue:
    """Jobs that have not ended.

    Args:
        capacity: number of jobs that may wait.
        slots: number of jobs that are decoded together, to estimate waiting times.

    Attributes:
        waiting: jobs without a slot, in order of arrival.
        running: jobs by the sequence that occupies a slot.
        arrivals: number that changes whenever jobs arrive or the queue closes.
        closes_at: when jobs that still run are ended; None while new jobs are accepted.
        refusal: why a closed queue accepts no jobs.
        seconds_per_job: moving average of the seconds from arrival to end.
    """

    def __init__(self, capacity: int, slots: int):
        self.capacity = capacity
        self.slots = slots
        self.waiting: list[Job] = []
        self.running: dict[Sequence, Job] = {}
        self.closes_at: float | None = None
        self.arrivals = 0
        self.refusal = "shutdown"
        self.seconds_per_job = 1.0
        # guards everything above; notified when a job arrives or the queue closes
        self.changed = threading.Condition()

    @property
    def jobs(self) -> list[Job]:
        with self.changed:
            return [*self.waiting, *self.running.values()]

    @property
    def is_open(self) -> bool:
        """Whether jobs wait, or may still arrive."""
        return self.closes_at is None or bool(self.waiting)

    @property
    def retry_after(self) -> int:
        """Seconds after which the queue should have space."""
        # 32 jobs of 2 s in 16 slots: 4 s
        return max(1, min(60, round(len(self.jobs) * self.seconds_per_job / self.slots)))

    def put(self, jobs: Collection[Job]):
        """Add all of the jobs, or none.

        Raises:
            RejectedError: the queue is too full for them, or closed.
        """
        with self.changed:
            if self.closes_at is not None:
                raise RejectedError(self.refusal)
            # running jobs do not count: they have left the queue
            if len(self.waiting) + len(jobs) > self.capacity:
                raise RejectedError("queue_full", self.retry_after)
            self.waiting += jobs
            self.arrivals += 1
            self.changed.notify_all()

    def start(self, job: Job) -> bool:
        """Move a job from `waiting` to `running`; returns False if it does not wait any more."""
        with self.changed:
            if is_waiting := job in self.waiting:
                self.waiting.remove(job)
                self.running[job.sequence] = job
            return is_waiting

    def remove(self, job: Job) -> bool:
        """Remove a job; returns False if it was removed before."""
        with self.changed:
            # a job may end before it gets a slot
            if job in self.waiting:
                self.waiting.remove(job)
                return True
            return self.running.pop(job.sequence, None) is not None

    def wait(self, arrivals: int, seconds: float | None):
        """Wait until `arrivals` has changed, for at most `seconds`."""
        with self.changed:
            # the condition is checked first, so that a notification before the call is not lost
            self.changed.wait_for(lambda: self.arrivals != arrivals, seconds)

    def close(self, grace: float):
        """Accept no more jobs; those left after `grace` seconds are ended."""
        with self.changed:
            self.closes_at = time.monotonic() + grace
            self.arrivals += 1
            self.changed.notify_all()

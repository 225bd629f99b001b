"""Run programs on every host of a Ray cluster. Needs the extra: pip install 'jax-diffucoder[ray]'.

Each task is a batch of programs, run by the local sandbox of the host that takes it. Programs and
results travel as JSON text. A task that Ray loses is run again, then reported as a sandbox error.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from untrusted.results import (
    BatchExecutor,
    Cancel,
    Program,
    Result,
    import_client,
    read_results,
    sandbox_errors,
)
from untrusted.runner import answer_request
from untrusted.tiers import ExecutorName

# Seconds between two looks at `cancel`.
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RayCluster(BatchExecutor):
    """Runs programs on a Ray cluster, a batch per task.

    Attributes:
        address: of the cluster; None joins the one of this process or starts a local one.
        executor, allow_unsafe: as in `Local`, on each host.
    """

    address: str | None = None
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False

    def run_batches(
        self, batches: Sequence[Sequence[Program]], cancel: Cancel
    ) -> Iterator[tuple[int, list[Result]]]:
        """Run each batch as a task that takes one core of a host."""
        ray = import_client("ray", "Ray")
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        task = ray.remote(num_cpus=1, max_retries=self.attempts - 1)(answer_request)
        settings = {"executor": self.executor, "allow_unsafe": self.allow_unsafe, "workers": 1}
        # Batch number by the reference of its task
        pending = {
            task.remote(self.request_text(batch, **settings)): number
            for number, batch in enumerate(batches)
        }
        while pending and not cancel.is_set():
            ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            for reference in ready:
                number = pending.pop(reference)
                yield number, task_results(ray, reference, batches[number])
        # Cancelled: these batches keep their "cancelled" results (`run_many`).
        for reference in pending:
            ray.cancel(reference)


def task_results(ray: Any, reference: Any, batch: Sequence[Program]) -> list[Result]:
    """Fetch the results of a task that has ended.

    Ray has already retried what ran on a lost host.
    """
    try:
        return read_results(ray.get(reference), batch)
    except ray.exceptions.RayError as error:
        return sandbox_errors(batch, f"Ray: {str(error).strip().splitlines()[-1]}")

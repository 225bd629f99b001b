"""Run programs on every host of a Ray cluster. Needs the extra: pip install 'jax-diffucoder[ray]'.

Each task is a batch of programs, run by the local sandbox of the host that takes it. Programs and
results travel as JSON text. A task that Ray loses is run again, then reported as a sandbox error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from untrusted.results import Connection, Executor, Results, import_client, read_results
from untrusted.runner import answer_request
from untrusted.tiers import ExecutorName

# Seconds between two looks at whether the results are still wanted.
POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RayCluster(Executor):
    """Runs programs on a Ray cluster, a batch per task.

    Attributes:
        address: of the cluster; None joins the one of this process or starts a local one.
        executor, allow_unsafe: as in `Local`, on each host.
        workers: cores that a task takes, and programs of a batch that run in parallel there.
    """

    address: str | None = None
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False
    workers: int = 1

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        ray = import_client("ray", "Ray")
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        # Twice what the cluster can run: a task ends, and the next one waits there.
        yield ray, 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def send(self, client, programs, turn, cancel) -> Results:
        # Lost tasks are sent again by `run_batch`.
        task = client.remote(num_cpus=self.workers, max_retries=0)(answer_request)
        try:
            reference = task.remote(self.request_text(programs))
            while not client.wait([reference], timeout=POLL_SECONDS)[0]:
                if cancel.is_set():
                    client.cancel(reference)
            return read_results(client.get(reference), programs)
        except client.exceptions.RayError as error:
            raise OSError(f"Ray: {str(error).strip().splitlines()[-1]}") from error

"""Run programs on every host of a Ray cluster. Needs the extra: pip install 'jax-diffucoder[ray]'.

Each task is a batch of programs, run by the local sandbox of the host that takes it; jobs and results travel as
JSON text. What Ray loses is run again, then reported as a sandbox error.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.sandbox.results import (
    Cancel,
    Job,
    Progress,
    Result,
    errors,
    job_from_json,
    job_to_json,
    require_positive,
    result_from_json,
    result_to_json,
)
from jax_lm.sandbox.runner import Local
from jax_lm.sandbox.tiers import ExecutorName

POLL_SECONDS = 0.2


def run_text(jobs: str, executor: ExecutorName, allow_unsafe: bool) -> str:
    """A batch, on the host that this is called on."""
    local = Local(executor, allow_unsafe=allow_unsafe, workers=1)
    results = local.run_many([job_from_json(job) for job in json.loads(jobs)])
    return json.dumps([result_to_json(result) for result in results])


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster as a place where programs run.

    Attributes:
        address: of the cluster; None joins the one of this process or starts a local one.
        batch: programs per task.
        attempts: tries of a task before its programs become sandbox errors.
        executor, allow_unsafe: as in `Local`, on each host.
    """

    address: str | None = None
    batch: int = 8
    attempts: int = 3
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        require_positive(batch=self.batch, attempts=self.attempts)

    def run_many(
        self, jobs: Sequence[Job], *, on_progress: Progress | None = None, cancel: Cancel | None = None
    ) -> list[Result]:
        """One result per job, in order; a batch takes one core of a host."""
        ray = import_ray()
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False)
        task = ray.remote(num_cpus=1, max_retries=self.attempts - 1)(run_text)
        batches = [jobs[start : start + self.batch] for start in range(0, len(jobs), self.batch)]
        texts = [json.dumps([job_to_json(job) for job in batch]) for batch in batches]
        pending = {task.remote(text, self.executor, self.allow_unsafe): place for place, text in enumerate(texts)}
        done: dict[int, list[Result]] = {}
        while pending:
            if cancel is not None and cancel.is_set():
                for reference in pending:
                    ray.cancel(reference)
                lost = {place: errors(batches[place], "cancelled") for place in pending.values()}
                done |= lost
                break
            ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
            for reference in ready:
                place = pending.pop(reference)
                done[place] = fetch(ray, reference, batches[place])
                if on_progress:
                    on_progress(sum(map(len, done.values())), len(jobs))
        return [result for place in sorted(done) for result in done[place]]


def fetch(ray: Any, reference: Any, batch: Sequence[Job]) -> list[Result]:
    """The results of a task that has ended; Ray has already tried again what a lost host was running."""
    try:
        return [result_from_json(result) for result in json.loads(ray.get(reference))]
    except ray.exceptions.RayError as error:
        return errors(batch, f"Ray: {str(error).strip().splitlines()[-1]}")


def import_ray() -> Any:
    """The package, or how to get it."""
    try:
        import ray
        import ray.exceptions  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ValueError(f"Ray is not installed ({error.name}): pip install 'jax-diffucoder[ray]'") from error
    return ray

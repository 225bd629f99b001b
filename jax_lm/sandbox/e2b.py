"""Run programs in E2B's virtual machines, without internet. Needs the extra: pip install 'jax-diffucoder[e2b]'.

A machine gets this package's sandbox folder and the jobs, and runs `python -m jax_lm.sandbox` there: the same
processes, the same comparison outside the program, the same results. The key is read from E2B_API_KEY by E2B's own
client. Tested against a recording of its calls, not against the service.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_lm.sandbox.results import (
    Cancel,
    Job,
    Progress,
    Result,
    errors,
    job_to_json,
    require_positive,
    result_from_json,
)
from jax_lm.sandbox.tiers import ExecutorName

PACKAGE = Path(__file__).parent.parent
KEY_VARIABLE = "E2B_API_KEY"
HOME = "/home/user/sandbox"
COMMAND = f"cd {HOME} && python3 -m jax_lm.sandbox < jobs.json"
MARGIN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class E2B:
    """E2B as a place where programs run: a machine per batch, one after another.

    Attributes:
        template: of the machines; None is E2B's own. It needs Python 3.11 or newer.
        batch: programs per machine.
        attempts: machines tried for a batch before its programs become sandbox errors.
        executor, allow_unsafe: as in `Local`, inside the machine. Without containment there, a program could read
            the tests that its machine holds.
    """

    template: str | None = None
    batch: int = 32
    attempts: int = 3
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        require_positive(batch=self.batch, attempts=self.attempts)

    def run_many(
        self, jobs: Sequence[Job], *, on_progress: Progress | None = None, cancel: Cancel | None = None
    ) -> list[Result]:
        """One result per job; what E2B could not run is a sandbox error."""
        e2b = import_e2b()
        if not os.environ.get(KEY_VARIABLE):
            raise ValueError(f"{KEY_VARIABLE}: set it to the key of your E2B account")
        results: list[Result] = []
        for start in range(0, len(jobs), self.batch):
            batch = jobs[start : start + self.batch]
            if cancel is not None and cancel.is_set():
                results += errors(batch, "cancelled")
            else:
                results += self.run_batch(e2b, batch)
            if on_progress:
                on_progress(len(results), len(jobs))
        return results

    def run_batch(self, e2b: Any, jobs: Sequence[Job]) -> list[Result]:
        reason = ""
        for _ in range(self.attempts):
            try:
                return self.run_in_machine(e2b, jobs)
            except Exception as error:  # the border to a service: its client has many ways to fail
                reason = f"E2B: {' '.join(str(error).split())[:400]}"
        return errors(jobs, reason)

    def run_in_machine(self, e2b: Any, jobs: Sequence[Job]) -> list[Result]:
        seconds = int(sum(job.limits.total_seconds for job in jobs)) + MARGIN_SECONDS
        request = {
            "executor": self.executor,
            "allow_unsafe": self.allow_unsafe,
            "jobs": [job_to_json(job) for job in jobs],
        }
        machine = e2b.Sandbox.create(template=self.template, timeout=seconds, allow_internet_access=False)
        try:
            for path in sources():
                machine.files.write(f"{HOME}/{path.relative_to(PACKAGE.parent)}", path.read_text(encoding="utf-8"))
            machine.files.write(f"{HOME}/jobs.json", json.dumps(request))
            answer = machine.commands.run(COMMAND, timeout=seconds)
            results = json.loads(answer.stdout)["results"]
        finally:
            machine.kill()
        if len(results) != len(jobs):
            raise ValueError(f"{len(results)} results for {len(jobs)} jobs")
        return [result_from_json(result) for result in results]


def sources() -> list[Path]:
    """The files that `python -m jax_lm.sandbox` needs: the standard library does the rest."""
    return [PACKAGE / "__init__.py", *sorted((PACKAGE / "sandbox").rglob("*.py"))]


def import_e2b() -> Any:
    """The package, or how to get it."""
    try:
        import e2b
    except ModuleNotFoundError as error:
        raise ValueError(f"E2B's client is not installed ({error.name}): pip install 'jax-diffucoder[e2b]'") from error
    return e2b

"""Run programs in E2B's virtual machines, without internet access.

Needs the extra: pip install 'jax-diffucoder[e2b]'. A machine gets this package and the programs,
and runs `python -m untrusted` there: the same processes, the same comparison outside the program,
the same results. E2B's own client reads the key from E2B_API_KEY. Tested against a recording of its
calls, not against the service.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from untrusted.tiers import ExecutorName

PACKAGE = Path(__file__).parent
HOME = "/home/user/sandbox"
# Time for the machine itself: uploads and starting the sandbox.
MARGIN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class E2B(BatchExecutor):
    """Runs programs in machines of E2B, a machine per batch and attempt, one after another.

    Attributes:
        template: of the machines; None is E2B's own. It needs Python 3.11 or newer.
        executor, allow_unsafe: as in `Local`, inside the machine. Without containment there, a
            program could read the tests that its machine holds.
    """

    batch: int = 32
    template: str | None = None
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False

    def run_batches(
        self, batches: Sequence[Sequence[Program]], cancel: Cancel
    ) -> Iterator[tuple[int, list[Result]]]:
        e2b = import_client("e2b", "E2B's client")
        if not os.environ.get("E2B_API_KEY"):
            raise ValueError("E2B_API_KEY: set it to the key of your E2B account")
        for number, batch in enumerate(batches):
            yield (
                number,
                sandbox_errors(batch, "cancelled")
                if cancel.is_set()
                else self.run_batch(e2b, batch),
            )

    def run_batch(self, e2b: Any, programs: Sequence[Program]) -> list[Result]:
        reason = ""
        for _ in range(self.attempts):
            try:
                return self.run_in_machine(e2b, programs)
            except Exception as error:  # the border to a service: its client has many ways to fail
                reason = f"E2B: {' '.join(str(error).split())[:400]}"
        return sandbox_errors(programs, reason)

    def run_in_machine(self, e2b: Any, programs: Sequence[Program]) -> list[Result]:
        # The worst case: every program of the batch takes all its time.
        seconds = int(sum(program.limits.total_seconds for program in programs)) + MARGIN_SECONDS
        request = self.request_text(
            programs, executor=self.executor, allow_unsafe=self.allow_unsafe
        )
        # `python -m untrusted` needs only these files and the standard library.
        sources = sorted(PACKAGE.rglob("*.py"))
        machine = e2b.Sandbox.create(
            template=self.template, timeout=seconds, allow_internet_access=False
        )
        try:
            for path in sources:
                machine.files.write(
                    f"{HOME}/{path.relative_to(PACKAGE.parent)}", path.read_text(encoding="utf-8")
                )
            machine.files.write(f"{HOME}/jobs.json", request)
            command = f"cd {HOME} && python3 -m untrusted < jobs.json"
            return read_results(machine.commands.run(command, timeout=seconds).stdout, programs)
        finally:
            machine.kill()

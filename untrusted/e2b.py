"""Run programs in E2B's virtual machines, without internet access.

Needs the extra: pip install 'jax-diffucoder[e2b]'. A machine gets this package and the programs,
and runs `python -m untrusted` there: the same processes, the same comparison outside the program,
the same results. E2B's own client reads the key from E2B_API_KEY. Tested against a recording of its
calls, not against the service.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from untrusted.results import Connection, Executor, Programs, Results, import_client, read_results
from untrusted.tiers import ExecutorName

PACKAGE = Path(__file__).parent
HOME = "/home/user/sandbox"
# Additional seconds for uploads and for starting the sandbox in the machine.
MARGIN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class E2B(Executor):
    """Runs programs in machines of E2B, a machine per batch and attempt, one after another.

    Untested against the service itself.

    Attributes:
        template: template of the machines, with Python 3.11 or newer; None is E2B's default.
        executor, allow_unsafe: as in `Local`, inside the machine. Without containment there, a
            program could read the tests that its machine holds.
    """

    batch: int = 32
    template: str | None = None
    executor: ExecutorName = "auto"
    allow_unsafe: bool = False

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        client = import_client("e2b", "E2B's client")
        if not os.environ.get("E2B_API_KEY"):
            raise ValueError("E2B_API_KEY: set it to the key of your E2B account")
        yield client, 1

    def send(self, client, programs, turn, cancel) -> Results:
        try:
            return read_results(self.run_in_machine(client, programs), programs)
        except Exception as error:  # the client of the service raises many types of errors
            raise OSError(f"E2B: {error}") from error

    def run_in_machine(self, client, programs: Programs) -> str:
        # The worst case: every program of the batch takes all its time.
        seconds = int(sum(program.limits.total_seconds for program in programs)) + MARGIN_SECONDS
        machine = client.Sandbox.create(
            template=self.template, timeout=seconds, allow_internet_access=False
        )
        try:
            # `python -m untrusted` needs only these files and the standard library.
            for path in sorted(PACKAGE.rglob("*.py")):
                machine.files.write(
                    f"{HOME}/{path.relative_to(PACKAGE.parent)}", path.read_text(encoding="utf-8")
                )
            machine.files.write(f"{HOME}/jobs.json", self.request_text(programs))
            command = f"cd {HOME} && python3 -m untrusted < jobs.json"
            return machine.commands.run(command, timeout=seconds).stdout
        finally:
            machine.kill()

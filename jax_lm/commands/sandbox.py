"""`diffucoder sandbox`: what is contained here, run a program, serve as a worker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_lm import terminal

ExecutorName = Literal["auto", "bubblewrap", "landlock", "unsafe"]


@dataclass(frozen=True, kw_only=True)
class SandboxCheck:
    """Attack this host's sandbox in each tier and print what was stopped; exit status 1 if anything was not.

    The attacks are harmless to you: they go for a folder, sockets and a process made for the purpose.

    Examples:
        diffucoder sandbox check
        diffucoder sandbox check --executor landlock

    Attributes:
        executor: one tier; auto checks all that work here, and fails if none does.
    """

    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"

    def run(self) -> int:
        from rich.console import Console
        from rich.table import Table

        from jax_lm.sandbox.battery import attacks, run_battery
        from jax_lm.sandbox.runner import choose, why_not
        from jax_lm.sandbox.session import Session
        from jax_lm.sandbox.tiers import SAFE

        console = Console(highlight=False)
        tiers = SAFE if self.executor == "auto" else (self.executor,)
        available = []
        for tier in tiers:
            reason = why_not(tier)
            console.print(f"{tier}: {reason or 'works'}", markup=False)
            available += [] if reason else [tier]
        chosen = choose(self.executor)
        table = Table("attack", *available, title="attacks on the sandbox of this host")
        columns = []
        for tier in available:
            with Session(tier) as session:
                columns.append(list(run_battery(session)))
        failures = 0
        for name, *findings in zip(attacks(), *columns, strict=True):
            failures += sum(not finding.stopped for finding in findings)
            table.add_row(name, *("stopped" if f.stopped else f"[red]NOT STOPPED[/red] {f.detail}" for f in findings))
        console.print(table)
        total = len(attacks()) * len(available)
        console.print(f"{total - failures} of {total} stopped; --executor {self.executor} runs programs in {chosen}")
        return 1 if failures else 0


@dataclass(frozen=True, kw_only=True)
class SandboxRun:
    """Run a Python file in the sandbox, against tests if there are any; exit status 1 unless all pass.

    The tests file is Python. Each statement that asserts is a test of its own; it is preceded by the definitions,
    imports and assignments above it.

    Examples:
        diffucoder sandbox run solution.py --tests tests.py
        diffucoder sandbox run solution.py --seconds 2

    Attributes:
        file: the program.
        tests: the tests; without them the program passes by running to its end.
        seconds: wall clock per test.
        memory_mib: address space.
        executor: how to contain it; auto takes bubblewrap, then Landlock, and refuses where neither works.
        allow_unsafe_exec: run without containment where there is none.
    """

    file: tyro.conf.Positional[Path]
    tests: Path | None = None
    seconds: float = 5.0
    memory_mib: int = 512
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

    def run(self) -> int:
        from jax_lm.sandbox import Limits, run
        from jax_lm.sandbox.assertions import split_tests

        limits = Limits(seconds=self.seconds, memory_bytes=self.memory_mib * 2**20)
        tests = split_tests(terminal.read_text(self.tests), str(self.tests)) if self.tests else []
        code = terminal.read_text(self.file)
        result = run(code, tests, limits, executor=self.executor, allow_unsafe=self.allow_unsafe_exec)
        for number, test in enumerate(result.tests, 1):
            line = tests[number - 1].splitlines()[-1] if tests else "the program"
            print(f"{number:3d}  {test.outcome:13s}  {line}{f'  # {test.detail}' if test.detail else ''}")
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            if text.strip():
                print(f"--- {name}\n{text.rstrip()}")
        contained = "NOT CONTAINED" if result.unsafe else f"contained by {result.tier}"
        print(f"{result.outcome}: {result.share:.0%} of {len(result.tests)}, {contained}")
        return 0 if result.passed else 1


@dataclass(frozen=True, kw_only=True)
class SandboxServe:
    """Run programs for others, by HTTP: a worker with a bounded queue.

    The token that clients must show is read from DIFFUCODER_SANDBOX_TOKEN. There is no encryption: keep to the
    loopback address, or put a proxy or tunnel in front.

    Examples:
        DIFFUCODER_SANDBOX_TOKEN=$(openssl rand -hex 16) diffucoder sandbox serve --port 8700

    Attributes:
        host: address to listen on.
        port: 0 takes a free one.
        workers: programs at once; the number of cores if not given.
        queue_size: programs accepted and not finished; more are refused with 503.
        executor: how to contain programs.
        allow_unsafe_exec: run without containment where there is none.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    workers: int | None = None
    queue_size: int = 256
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

    def run(self) -> int:
        from jax_lm.sandbox.http import Worker

        worker = Worker(
            (self.host, self.port),
            workers=self.workers,
            queue_size=self.queue_size,
            executor=self.executor,
            allow_unsafe=self.allow_unsafe_exec,
        )
        host, port = worker.server_address[:2]
        print(f"running programs in {worker.pool.tier} for http://{host}:{port}; Ctrl-C ends it", flush=True)
        try:
            worker.serve_forever()
        finally:
            worker.server_close()
        return 0

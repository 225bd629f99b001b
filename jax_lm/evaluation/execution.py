"""Run a generated program against its tests in a child process with limits.

This is no sandbox: limits on time, memory and files, an empty environment and an empty folder keep
accidents in, not attacks. It is meant for the built-in model's own small functions, nothing else.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MEMORY_BYTES = 512 * 2**20
CPU_SECONDS = 10
DETAIL_LENGTH = 400

# The child limits itself before it reads the program: a function that runs between fork and exec in this
# process could deadlock with the threads of JAX.
BOOTSTRAP = f"""
import resource, sys
for limit, value in (
    (resource.RLIMIT_CPU, {CPU_SECONDS}),
    (resource.RLIMIT_AS, {MEMORY_BYTES}),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 16),
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
exec(compile(sys.stdin.read(), "<program>", "exec"), sys.modules["__main__"].__dict__)
"""

Outcome = Literal["passed", "failed", "timeout"]


@dataclass(frozen=True)
class Result:
    """What became of a program: its outcome, and the last line that it wrote to standard error."""

    outcome: Outcome
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def run_tests(program: str, tests: Sequence[str], *, seconds: float = 5.0) -> Result:
    """Execute `program` followed by assert statements; passed means that all of them held."""
    # The last statement proves that the end was reached: a program that exits early has passed nothing.
    sentinel = secrets.token_hex(16)
    source = "\n".join([program, *tests, f"print({sentinel!r})"])
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={},
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            output, errors = child.communicate(source, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Result("timeout", f"no end after {seconds:g} s")
        finally:
            stop(child)
    if child.returncode == 0 and output.endswith(f"{sentinel}\n"):
        return Result("passed")
    lines = errors.strip().splitlines()
    return Result("failed", lines[-1][:DETAIL_LENGTH] if lines else f"exit status {child.returncode}")


def stop(child: subprocess.Popen) -> None:
    """End the child and what it started, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()

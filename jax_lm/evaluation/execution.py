"""Run a generated program against its tests in a child process with limits.

This is no sandbox: limits on time, memory, files and processes, an empty environment and an empty folder
keep accidents in, not attacks. It is meant for the built-in model's own small functions, nothing else.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MEMORY_BYTES = 512 * 2**20
OUTPUT_HEAD = 400
SENTINEL = "tests-reached-their-end"

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
    source = "\n".join([program, *tests, f"print({SENTINEL!r})"])
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={},
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=set_limits,
        )
        try:
            output, errors = child.communicate(source, timeout=seconds)
        except subprocess.TimeoutExpired:
            return Result("timeout", f"no end after {seconds:g} s")
        finally:
            stop(child)
    if child.returncode == 0 and output.endswith(f"{SENTINEL}\n"):
        return Result("passed")
    lines = errors.strip().splitlines()
    return Result("failed", lines[-1][:OUTPUT_HEAD] if lines else f"exit status {child.returncode}")


def set_limits() -> None:
    """Called in the child before it runs: CPU seconds, memory, file size, open files, no core dump."""
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def stop(child: subprocess.Popen) -> None:
    """End the child and what it started, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()

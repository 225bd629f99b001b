"""Arguments of `diffucoder sandbox`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.config import Texts
from jax_lm.host.declared import Positional
from jax_lm.options import require_at_most_one

# Isolation tiers; auto takes the first of bubblewrap and Landlock that works on this host.
ExecutorName = Literal["auto", "bubblewrap", "landlock", "unsafe"]


@dataclass(frozen=True, kw_only=True)
class SandboxCheck:
    """Attack the sandbox of this host in each tier, and print which attacks it stops.

    The exit status is 1 if an attack succeeds. Attacks only target a folder, sockets and a process
    made for this purpose.

    Examples:
        diffucoder sandbox check
        diffucoder sandbox check --executor landlock

    Attributes:
        executor: the tier to check; auto checks every tier that works here, and fails if none does.
    """

    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"


@dataclass(frozen=True, kw_only=True)
class SandboxRun:
    """Run a Python file in the sandbox, with tests if there are any; exit status 1 unless all pass.

    Tests are files for pytest or unittest, or plain Python, where each statement with an assertion
    is a test, and runs after the statements above it. They may import the program by any name. Or
    they are contest cases: the program runs once per case, with the input on standard input, and
    must print the expected output.

    Examples:
        diffucoder sandbox run solution.py --tests tests.py
        diffucoder sandbox run solution.py --tests tests/
        diffucoder sandbox run solution.py --tests cases/ --comparison exact
        diffucoder sandbox run solution.py --input 1.in --expected 1.out
        diffucoder sandbox run solution.py --timeout 2

    Attributes:
        file: the program.
        tests: test file, or folder with test_*.py or *_test.py files or with cases (1.in and 1.out
            or 1.ans, or input1.txt and output1.txt). Without tests the program only runs.
        input: file of the standard input of a single case; needs `expected`.
        expected: file of the output that the case expects.
        comparison: tolerant compares tokens line by line, and numbers within 1e-6; exact compares
            the text, except for one newline at its end.
        packages: installed packages that the program and tests may import.
        same_process: judge tests that need one process with the program in its process, still
            contained; such a verdict is the program's own word, and is marked.
        canary: run each script of assertions that has passed once more with other assertions; if it
            passes again, it cannot be judged.
        timeout: seconds of wall-clock time per test.
        memory_mib: limit of the address space in MiB.
        executor: isolation; auto is bubblewrap, or else Landlock, and refuses to run if neither
            works.
        allow_unsafe_exec: run without isolation if the host has none.
    """

    file: Positional[Path]
    tests: Path | None = None
    input: Path | None = None
    expected: Path | None = None
    comparison: Literal["tolerant", "exact"] = "tolerant"
    packages: Texts = ("numpy",)
    same_process: bool = False
    canary: bool = True
    timeout: float = 5.0
    memory_mib: int = 512
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

    def __post_init__(self):
        # a case is a pair of files
        if (self.input is None) != (self.expected is None):
            raise ValueError(f"input={self.input}, expected={self.expected}: a case needs both")
        require_at_most_one(self, "tests", "input")
        if not 0.001 <= self.timeout <= 3600:
            raise ValueError(f"timeout={self.timeout}: must lie in [0.001, 3600] seconds")
        # what `untrusted.Limits` takes, in MiB
        if not 64 <= self.memory_mib <= 2**28:
            raise ValueError(f"memory_mib={self.memory_mib}: must lie in [64, 2**28]")


@dataclass(frozen=True, kw_only=True)
class SandboxServe:
    """Run programs for other machines over HTTP: a worker with a bounded queue.

    Clients must send the token in DIFFUCODER_SANDBOX_TOKEN. Connections are not encrypted: use the
    loopback address, or a proxy or tunnel.

    Examples:
        DIFFUCODER_SANDBOX_TOKEN=$(openssl rand -hex 16) diffucoder sandbox serve --port 8700

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 picks a free one.
        workers: number of programs run in parallel; the number of cores by default.
        queue: maximum number of accepted programs; more are refused with 503.
        packages: installed packages that requests may choose from, and get unless they choose.
        executor: isolation of programs.
        allow_unsafe_exec: run without isolation if the host has none.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    workers: int | None = None
    queue: int = 256
    packages: Texts = ("numpy",)
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

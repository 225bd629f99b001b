"""Arguments of `diffucoder sandbox`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.cli.declared import Positional

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


@dataclass(frozen=True, kw_only=True)
class SandboxRun:
    """Run a Python file in the sandbox, against tests if there are any; exit status 1 unless all pass.

    Tests are Python, as pytest or unittest run them, or plain: each statement that asserts is then a test of its own,
    preceded by what stands above it. They may import the program by any name. Or they are cases of a contest: the
    program is run once for each, reads the input as its standard input, and must write the expected output.

    Examples:
        diffucoder sandbox run solution.py --tests tests.py
        diffucoder sandbox run solution.py --tests tests/
        diffucoder sandbox run solution.py --tests cases/ --comparison exact
        diffucoder sandbox run solution.py --input 1.in --expected 1.out
        diffucoder sandbox run solution.py --timeout 2

    Attributes:
        file: the program.
        tests: the tests: a file, or a folder with files named test_*.py or *_test.py, or with cases, whose files are
            1.in and 1.out (or 1.ans), or input1.txt and output1.txt; without tests the program is run.
        input: standard input of one case; with `expected`.
        expected: what it must write to standard output.
        comparison: of a case's output: tolerant compares tokens line by line, and numbers within 1e-6; exact
            compares the text, but for one newline at its end.
        packages: installed packages that program and tests may import beside the standard library.
        strict: let no object of the program decide by its own methods what plain value it equals, as for rewards.
        timeout: seconds of wall clock per test.
        memory_mib: address space.
        executor: how to contain it; auto takes bubblewrap, then Landlock, and refuses where neither works.
        allow_unsafe_exec: run without containment where there is none.
    """

    file: Positional[Path]
    tests: Path | None = None
    input: Path | None = None
    expected: Path | None = None
    comparison: Literal["tolerant", "exact"] = "tolerant"
    packages: tuple[str, ...] = ("numpy",)
    strict: bool = False
    timeout: float = 5.0
    memory_mib: int = 512
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

    def __post_init__(self) -> None:
        if (self.input is None) != (self.expected is None):
            raise ValueError(f"input={self.input}, expected={self.expected}: a case needs both")
        if self.input is not None and self.tests is not None:
            raise ValueError(f"tests={self.tests}, input={self.input}: give one of them")


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
        queue: programs accepted and not finished; more are refused with 503.
        executor: how to contain programs.
        allow_unsafe_exec: run without containment where there is none.
    """

    host: str = "127.0.0.1"
    port: int = 8700
    workers: int | None = None
    queue: int = 256
    executor: ExecutorName = "auto"
    allow_unsafe_exec: bool = False

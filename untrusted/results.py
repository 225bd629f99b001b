"""Programs and results: input and output of a sandbox wherever it runs, also as JSON."""

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, Literal, get_args

from untrusted.cases import Test
from untrusted.plain import from_plain
from untrusted.printable import printable

logger = logging.getLogger(__name__)

Outcome = Literal[
    "passed", "untested", "failed", "timeout", "out_of_memory", "cannot_judge", "sandbox_error"
]
# Rank of a test's outcome; the lowest one is that of the program. All other outcomes have rank 1.
RANKS = {"sandbox_error": 0, "cannot_judge": 2, "passed": 3}
# Outcomes that say nothing about the program.
UNJUDGED: tuple[Outcome, ...] = ("cannot_judge", "sandbox_error")
# Smallest and largest value of each limit. An interpreter alone takes about 64 MiB.
RANGES = {
    "seconds": (1e-3, 3600.0),
    "total_seconds": (1e-3, 3600.0),
    "memory_bytes": (64 * 2**20, 2**48),
    "output_bytes": (0, 2**20),
}
# Called with the number of finished programs and the number of all.
Progress = Callable[[int, int], None]
# Stops a run when it is set.
Cancel = threading.Event


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a program. In any case it gets no files, processes or sockets.

    Attributes:
        seconds: wall clock per test; each test starts the program again.
        total_seconds: wall clock for all tests of a program.
        memory_bytes: address space of the program.
        output_bytes: bytes of each output stream that are kept; the remaining ones are dropped.
        canary: run a script of assertions that has passed once more with other assertions, if there
            is time left: if it passes again, it cannot be judged.
    """

    seconds: float | int = 5.0
    total_seconds: float | int = 60.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 4096
    canary: bool = True

    def __post_init__(self):
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            # Neither comparison holds for nan.
            if not (isinstance(value, int | float) and least <= value <= most):
                raise ValueError(f"{name}={value!r}: must be between {least} and {most}")
            # Frozen, so set through `object`: 5 and 5.0 are the same limit, also as JSON.
            object.__setattr__(self, name, type(least)(value))
        if type(self.canary) is not bool:
            raise ValueError(f"canary={self.canary!r}: must be True or False")


@dataclass(frozen=True)
class Program:
    """A program, its tests and its limits."""

    code: str
    tests: tuple[Test, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test.

    Attributes:
        outcome: how the test ended.
        detail: the reason, in one line that is safe to show in a terminal.
        border: whether test and program ran in separate processes. If not, the program could have
            faked the outcome.
    """

    __test__ = False  # pytest must not collect this class

    outcome: Outcome
    detail: str = ""
    border: bool = True

    def __post_init__(self):
        if self.outcome not in get_args(Outcome):
            raise ValueError(
                f"outcome={self.outcome!r}: must be one of {', '.join(get_args(Outcome))}"
            )
        object.__setattr__(self, "detail", printable(self.detail))


@dataclass(frozen=True)
class Result:
    """How a program ended.

    Attributes:
        tests: one result per test; one for the program itself if there are no tests.
        stdout, stderr: the beginning of its output, unchanged: `printable.printable` makes it safe
            for a terminal.
        tier: how it was contained.
    """

    tests: tuple[TestResult, ...]
    stdout: str = ""
    stderr: str = ""
    tier: str = ""

    @property
    def outcome(self) -> Outcome:
        """How the program ended.

        `passed` if every test passed; `untested` if there was no test and the program reports that
        it ran to its end; `sandbox_error` if the sandbox itself failed; `failed`, `timeout` or
        `out_of_memory` as the first test that did; `cannot_judge` if the remaining tests need what
        the border cannot carry. sandbox_error and cannot_judge say nothing about the program.
        """
        # The first with the lowest rank: [failed, timeout, cannot_judge] -> failed
        return min((test.outcome for test in self.tests), key=lambda outcome: RANKS.get(outcome, 1))

    @property
    def unsafe(self) -> bool:
        """Whether the program was not contained."""
        return self.tier == "unsafe"

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def share(self) -> float:
        """Fraction of the tests that passed."""
        return sum(test.outcome == "passed" for test in self.tests) / len(self.tests)

    @property
    def detail(self) -> str:
        """The reason of the first test that ended with the program's outcome."""
        return next((test.detail for test in self.tests if test.outcome == self.outcome), "")


Programs = Sequence[Program]
Results = list[Result]
# The client for `Executor.send`, and how many batches it can run at a time.
Connection = tuple[Any, int]


@dataclass(frozen=True, kw_only=True)
class Executor(ABC):
    """Runs programs somewhere (this machine, a worker, a cluster, a provider), in batches.

    Attributes:
        batch: number of programs that are sent together.
        attempts: tries of a batch before its programs become sandbox errors.
        pause: seconds before the second try; doubled each time.
        packages: installed packages that programs and tests may import in addition to the standard
            library; None leaves them to whoever runs the programs.
        same_process: judge tests that the border cannot carry in the program's own process:
            contained, but the program could fake the verdict. Such results say so. Not for rewards.
    """

    batch: int = 8
    attempts: int = 3
    pause: float = 0.5
    packages: tuple[str, ...] | None = None
    same_process: bool = False

    def __post_init__(self):
        for name in ("batch", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    def run_many(
        self,
        programs: Programs,
        *,
        on_progress: Progress | None = None,
        cancel: Cancel | None = None,
        connection: Connection | None = None,
    ) -> Results:
        """Run programs; returns a result for each, in order: a sandbox error if it cannot run.

        Programs that a set `cancel` stops are sandbox errors that say so. It is also set if this
        call ends by an exception, such as Ctrl-C.

        Args:
            connection: one that `connect` has opened; by default a new one.
        """
        if not programs:
            return []
        cancel = cancel or Cancel()
        # batch = 2: [a, b, c] -> [a, b], [c], numbers 0 and 1
        starts = range(0, len(programs), self.batch)
        batches = [programs[start : start + self.batch] for start in starts]
        opened = nullcontext(connection) if connection else self.connect()
        with opened as (client, senders):
            threads = ThreadPoolExecutor(min(senders, len(batches)), thread_name_prefix="sender")
            try:
                futures = [
                    threads.submit(self.run_batch, client, batch, number, cancel)
                    for number, batch in enumerate(batches)
                ]
                done = 0
                # Progress in the order of completion, results in the order of the programs.
                for future in as_completed(futures):
                    done += len(future.result())
                    if on_progress:
                        on_progress(done, len(programs))
            except BaseException:  # such as Ctrl-C: stop programs that are still running
                cancel.set()
                raise
            finally:
                threads.shutdown(cancel_futures=True)
        return [result for future in futures for result in future.result()]

    def run_batch(self, client, programs: Programs, number: int, cancel: Cancel) -> Results:
        """Send a batch, again after failures; after the last attempt, return sandbox errors."""
        reason = ""
        for attempt in range(self.attempts):
            if cancel.is_set():
                return sandbox_errors(programs, "cancelled")
            # Before the tries 2, 3, 4: 0.5, 1, 2 seconds.
            if attempt:
                logger.warning("sandbox: %s", reason)
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                return self.send(client, programs, number + attempt, cancel)
            except OSError as error:
                reason = " ".join(str(error).split())[:400]
        return sandbox_errors(programs, reason)

    def request_text(self, programs: Programs) -> str:
        """Return a request to run programs with the settings of this executor, as JSON."""
        settings = {name: getattr(self, name, None) for name in SETTINGS}
        request = {name: value for name, value in settings.items() if value is not None}
        return json.dumps(request | {"jobs": [asdict(program) for program in programs]})

    @abstractmethod
    def connect(self) -> AbstractContextManager[Connection]:
        """Open a connection. Raises ValueError that names what is missing."""

    @abstractmethod
    def send(self, client, programs: Programs, turn: int, cancel: Cancel) -> Results:
        """Run a batch once. Raises OSError if another attempt may succeed.

        Args:
            client: from `connect`.
            programs: the batch.
            turn: number of the batch plus the number of earlier attempts, to choose a worker.
            cancel: the batch is cancelled as soon as it is set.
        """


# Settings of `Local` that are sent with a request if an executor has them.
SETTINGS = ("executor", "allow_unsafe", "workers", "packages", "same_process")


def read_request(text: str | bytes, kind: type) -> tuple[tuple[Program, ...], Any]:
    """Return the programs of a request, and its settings as a dataclass.

    Raises ValueError that names the problem.
    """
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("the request is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("a request must be an object with the list `jobs`")
    programs = from_plain(tuple[Program, ...], data.pop("jobs", None), "jobs")
    return programs, from_plain(kind, data, "request")


def import_client(name: str, title: str) -> Any:
    """Import an optional package. Raises ValueError that says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{title} is not installed ({error.name}): pip install 'jax-diffucoder[{name}]'"
        ) from error


def sandbox_errors(programs: Programs, detail: str) -> Results:
    """Return the results of programs that could not be run: they say nothing about the programs."""
    error = TestResult("sandbox_error", detail)
    return [Result((error,) * max(1, len(program.tests))) for program in programs]


def results_text(results: Sequence[Result]) -> str:
    """Return the answer to a request as JSON."""
    return json.dumps(
        {
            "results": [
                {"outcome": result.outcome, "unsafe": result.unsafe, **asdict(result)}
                for result in results
            ]
        }
    )


def read_results(text: str | bytes, programs: Programs) -> Results:
    """Read the answer to a request; raises OSError unless it has one result per program."""
    try:
        answers = json.loads(text)["results"]
        for result in answers:
            # Recomputed from the tests, not trusted.
            for name in ("outcome", "unsafe"):
                result.pop(name, None)
        results = from_plain(tuple[Result, ...], answers, "results")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OSError(f"the answer is not a list of results: {error}") from error
    if len(results) != len(programs):
        raise OSError("the answer does not have a result per job")
    return list(results)

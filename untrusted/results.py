"""Programs and results: input and output of a sandbox wherever it runs, also as JSON."""

import dataclasses
import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from untrusted.cases import Case, Test
from untrusted.printable import printable

Outcome = Literal[
    "passed", "untested", "failed", "timeout", "out_of_memory", "cannot_judge", "sandbox_error"
]
# Outcomes that say nothing about the program.
UNJUDGED: tuple[Outcome, ...] = ("cannot_judge", "sandbox_error")
# Bytes: the least address space of a program, and the most output that may be kept.
MIN_MEMORY = 64 * 2**20
OUTPUT_CAP = 2**20
# Called with the number of finished programs and the number of all.
Progress = Callable[[int, int], None]
# Stops a run when it is set.
Cancel = threading.Event


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a program. It gets no files, processes or sockets at all.

    Attributes:
        seconds: wall clock per test; the program itself runs anew for each.
        total_seconds: wall clock for all tests of a program.
        memory_bytes: address space of the program.
        output_bytes: bytes of each output stream that are kept; the rest is read and dropped.
        canary: run a script of assertions that has passed once more with other assertions, within
            the same seconds: if it passes again, it cannot be judged.
    """

    seconds: float | int = 5.0
    total_seconds: float | int = 60.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 4096
    canary: bool = True

    def __post_init__(self) -> None:
        for name in ("seconds", "total_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and 0 < value <= 3600):
                raise ValueError(f"{name}={value!r}: must be above 0 and at most 3600 seconds")
            # Frozen, so set through `object`: 5 and 5.0 are the same limit, also as JSON.
            object.__setattr__(self, name, float(value))
        if not (type(self.memory_bytes) is int and self.memory_bytes >= MIN_MEMORY):
            raise ValueError(
                f"memory_bytes={self.memory_bytes!r}: must be at least {MIN_MEMORY}, the interpreter's own"
            )
        if not (type(self.output_bytes) is int and 0 <= self.output_bytes <= OUTPUT_CAP):
            raise ValueError(
                f"output_bytes={self.output_bytes!r}: must be between 0 and {OUTPUT_CAP}"
            )
        if type(self.canary) is not bool:
            raise ValueError(f"canary={self.canary!r}: must be True or False")


@dataclass(frozen=True)
class Program:
    """A program, its tests and its limits."""

    code: str
    tests: tuple[Test, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """Return the program as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Program":
        """Read a program from plain data; raises ValueError that names the problem."""
        if not isinstance(data, dict) or not isinstance(data.get("code"), str):
            raise ValueError("a job must be an object with the text `code`")
        tests, limits = data.get("tests", []), data.get("limits", {})
        if not isinstance(tests, list | tuple) or not all(
            isinstance(test, str | dict) for test in tests
        ):
            raise ValueError("tests: must be a list of texts and cases")
        tests = [Case.from_json(test) if isinstance(test, dict) else test for test in tests]
        known = {field.name for field in dataclasses.fields(Limits)}
        if not isinstance(limits, dict) or set(limits) - known:
            raise ValueError(f"limits: must be an object with some of {', '.join(sorted(known))}")
        return cls(data["code"], tuple(tests), Limits(**limits))


@dataclass(frozen=True)
class TestResult:
    """How one test ended, and why, in one line that is safe to show in a terminal.

    Attributes:
        border: whether test and program ran in processes of their own. Without it, the verdict is
            the program's word.
    """

    __test__ = False  # no test of pytest's

    outcome: Outcome
    detail: str = ""
    border: bool = True

    def __post_init__(self) -> None:
        if self.outcome not in get_args(Outcome):
            raise ValueError(
                f"outcome={self.outcome!r}: must be one of {', '.join(get_args(Outcome))}"
            )
        object.__setattr__(self, "detail", printable(self.detail))


@dataclass(frozen=True)
class Result:
    """How a program ended.

    Attributes:
        outcome: `passed` if every test passed; `untested` if there was no test and the program
            reports that it ran to its end; `sandbox_error` if the sandbox itself failed; `failed`,
            `timeout` or `out_of_memory` as the first test that did; `cannot_judge` if the remaining
            tests need what the border cannot carry. sandbox_error and cannot_judge say nothing
            about the program.
        tests: one result per test; one for the program itself if there are no tests.
        stdout, stderr: the beginning of its output, unchanged: `printable.printable` makes it safe
            for a terminal.
        tier: how it was contained.
        unsafe: whether it was not contained.
    """

    outcome: Outcome
    tests: tuple[TestResult, ...]
    stdout: str = ""
    stderr: str = ""
    tier: str = ""
    unsafe: bool = False

    @classmethod
    def of(
        cls, tests: Sequence[TestResult], stdout: str = "", stderr: str = "", tier: str = ""
    ) -> "Result":
        """Combine the results of the tests into one."""
        outcomes: list[Outcome] = [test.outcome for test in tests if test.outcome != "passed"]
        # Sandbox errors first, unjudged tests last; the sort is stable, so else the first test
        # counts:
        #   [failed, timeout, cannot_judge] -> failed
        #   [cannot_judge, sandbox_error] -> sandbox_error
        order = sorted(
            outcomes, key=lambda outcome: (outcome != "sandbox_error", outcome == "cannot_judge")
        )
        worst: Outcome = order[0] if order else "passed"
        return cls(worst, tuple(tests), stdout, stderr, tier, tier == "unsafe")

    @classmethod
    def error(cls, detail: str, tests: int, tier: str = "") -> "Result":
        """Return the result of a failed sandbox, which says nothing about the program."""
        return cls.of([TestResult("sandbox_error", detail)] * max(1, tests), tier=tier)

    @classmethod
    def from_json(cls, data: Any) -> "Result":
        """Read a result from plain data; raises ValueError if it is none."""
        try:
            tests = tuple(
                TestResult(
                    str(test["outcome"]),  # pyright: ignore[reportArgumentType]
                    str(test["detail"]),
                    test.get("border") is not False,
                )
                for test in data["tests"]
            )
            # The outcome is computed from the tests, not believed.
            result = cls.of(tests, str(data["stdout"]), str(data["stderr"]), str(data["tier"]))
            return dataclasses.replace(result, unsafe=bool(data["unsafe"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a result: {type(error).__name__}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return dataclasses.asdict(self)

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


@runtime_checkable
class Executor(Protocol):
    """Runs programs somewhere: this machine, a worker, a cluster, a provider."""

    def run_many(
        self,
        programs: Sequence[Program],
        *,
        on_progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> list[Result]: ...


@dataclass(frozen=True, kw_only=True)
class BatchExecutor(ABC):
    """An executor that sends programs away in batches.

    Attributes:
        batch: number of programs that are sent together.
        attempts: tries of a batch before its programs become sandbox errors.
        packages, same_process: as in `Local`; None leaves the packages to whoever runs them.
    """

    batch: int = 8
    attempts: int = 3
    packages: tuple[str, ...] | None = None
    same_process: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    def run_many(
        self,
        programs: Sequence[Program],
        *,
        on_progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> list[Result]:
        """Run programs; returns a result for each, in order: a sandbox error if it cannot run."""
        # batch = 2: [a, b, c] -> [[a, b], [c]]
        batches = [
            programs[start : start + self.batch] for start in range(0, len(programs), self.batch)
        ]
        # Replaced as batches are done; those that `cancel` stops keep these results.
        results = [sandbox_errors(batch, "cancelled") for batch in batches]
        done = 0
        for number, answers in self.run_batches(batches, cancel or Cancel()):
            results[number] = answers
            done += len(answers)
            if on_progress:
                on_progress(done, len(programs))
        return [result for answers in results for result in answers]

    @abstractmethod
    def run_batches(
        self, batches: Sequence[Sequence[Program]], cancel: Cancel
    ) -> Iterator[tuple[int, list[Result]]]:
        """Yield the number and results of each finished batch; cancelled ones may be left out."""

    def request_text(self, programs: Sequence[Program], **settings: Any) -> str:
        """Return a request to run programs as JSON.

        Args:
            settings: settings of the executor that answers the request.
        """
        settings |= {"same_process": self.same_process}
        if self.packages is not None:
            settings["packages"] = self.packages
        return json.dumps({**settings, "jobs": [program.to_json() for program in programs]})


def import_client(name: str, title: str) -> Any:
    """Import an optional package; raises ValueError that says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{title} is not installed ({error.name}): pip install 'jax-diffucoder[{name}]'"
        ) from error


def sandbox_errors(programs: Sequence[Program], detail: str) -> list[Result]:
    """Return the results of programs that could not be run."""
    return [Result.error(detail, len(program.tests)) for program in programs]


def results_text(results: Sequence[Result]) -> str:
    """Return the answer to a request as JSON."""
    return json.dumps({"results": [result.to_json() for result in results]})


def read_results(text: str | bytes, programs: Sequence[Program]) -> list[Result]:
    """Read the answer to a request; raises ValueError unless it has one result per program."""
    data = json.loads(text)
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list) or len(results) != len(programs):
        raise ValueError("the answer does not have a result per job")
    return [Result.from_json(result) for result in results]

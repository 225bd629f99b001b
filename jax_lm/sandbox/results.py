"""What goes into a sandbox and what comes out, the same wherever it runs."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Outcome = Literal["passed", "failed", "timeout", "out_of_memory", "sandbox_error"]
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "timeout", "out_of_memory", "sandbox_error")
OUTPUT_CAP = 2**20
Progress = Callable[[int, int], None]


@runtime_checkable
class Cancel(Protocol):
    """A `threading.Event`, or anything else that says whether to stop."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a program may use. Files, processes and sockets it gets none of.

    Attributes:
        seconds: wall clock per test; the program itself is run anew for each.
        total_seconds: wall clock for all tests of a program.
        memory_bytes: address space of the program.
        output_bytes: how much of each output stream is kept; the rest is read and dropped.
    """

    seconds: float | int = 5.0
    total_seconds: float | int = 60.0
    memory_bytes: int = 512 * 2**20
    output_bytes: int = 4096

    def __post_init__(self) -> None:
        for name in ("seconds", "total_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and 0 < value <= 3600):
                raise ValueError(f"{name}={value!r}: must be above 0 and at most 3600 seconds")
            object.__setattr__(self, name, float(value))
        if not (type(self.memory_bytes) is int and self.memory_bytes >= 64 * 2**20):
            raise ValueError(
                f"memory_bytes={self.memory_bytes!r}: must be at least {64 * 2**20}, the interpreter's own"
            )
        if not (type(self.output_bytes) is int and 0 <= self.output_bytes <= OUTPUT_CAP):
            raise ValueError(f"output_bytes={self.output_bytes!r}: must be between 0 and {OUTPUT_CAP}")


@dataclass(frozen=True)
class Job:
    """A program and its tests."""

    code: str
    tests: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class TestResult:
    """What became of one test, and why in one line."""

    __test__ = False  # no test of pytest's

    outcome: Outcome
    detail: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome={self.outcome!r}: must be one of {', '.join(OUTCOMES)}")


@dataclass(frozen=True)
class Result:
    """What became of a program.

    Attributes:
        outcome: `passed` if every test passed; sandbox_error if the sandbox itself failed, which says nothing
            about the program; else the outcome of the first test that did not pass.
        tests: one result per test; one for the program itself where there are no tests.
        stdout, stderr: the beginning of what it wrote.
        tier: how it was contained.
        unsafe: whether it was not.
    """

    outcome: Outcome
    tests: tuple[TestResult, ...]
    stdout: str = ""
    stderr: str = ""
    tier: str = ""
    unsafe: bool = False

    @classmethod
    def of(cls, tests: Sequence[TestResult], stdout: str = "", stderr: str = "", tier: str = "") -> "Result":
        """The result that its tests add up to."""
        outcomes: list[Outcome] = [test.outcome for test in tests if test.outcome != "passed"]
        worst: Outcome = "sandbox_error" if "sandbox_error" in outcomes else outcomes[0] if outcomes else "passed"
        return cls(worst, tuple(tests), stdout, stderr, tier, tier == "unsafe")

    @classmethod
    def error(cls, detail: str, tests: int, tier: str = "") -> "Result":
        """The sandbox failed: no word about the program."""
        return cls.of([TestResult("sandbox_error", detail)] * max(1, tests), tier=tier)

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def share(self) -> float:
        """Fraction of the tests that passed."""
        return sum(test.outcome == "passed" for test in self.tests) / len(self.tests)

    @property
    def detail(self) -> str:
        """Why it did not pass: the first test's reason."""
        return next((test.detail for test in self.tests if test.outcome == self.outcome), "")


def errors(jobs: Sequence[Job], detail: str) -> list[Result]:
    """What a place answers for jobs that it could not run."""
    return [Result.error(detail, len(job.tests)) for job in jobs]


def require_positive(**values: int) -> None:
    """ValueError names the first setting that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")


@runtime_checkable
class Executor(Protocol):
    """A place where programs run: this machine, a worker, a cluster, a provider."""

    def run_many(
        self, jobs: Sequence[Job], *, on_progress: Progress | None = None, cancel: Cancel | None = None
    ) -> list[Result]: ...


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as plain data."""
    return {"code": job.code, "tests": list(job.tests), "limits": dataclasses.asdict(job.limits)}


def job_from_json(data: Any) -> Job:
    """A job from plain data; raises ValueError naming what is wrong."""
    if not isinstance(data, dict) or not isinstance(data.get("code"), str):
        raise ValueError("a job must be an object with the text `code`")
    tests, limits = data.get("tests", []), data.get("limits", {})
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ValueError("tests: must be a list of texts")
    known = {field.name for field in dataclasses.fields(Limits)}
    if not isinstance(limits, dict) or set(limits) - known:
        raise ValueError(f"limits: must be an object with some of {', '.join(sorted(known))}")
    return Job(data["code"], tuple(tests), Limits(**limits))


def result_to_json(result: Result) -> dict[str, Any]:
    """A result as plain data."""
    return dataclasses.asdict(result)


def result_from_json(data: Any) -> Result:
    """A result from plain data; raises ValueError where it is none."""
    try:
        tests = tuple(TestResult(str(test["outcome"]), str(test["detail"])) for test in data["tests"])  # pyright: ignore[reportArgumentType]
        result = Result.of(tests, str(data["stdout"]), str(data["stderr"]), str(data["tier"]))
        return dataclasses.replace(result, unsafe=bool(data["unsafe"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a result: {type(error).__name__}: {error}") from error

"""Run programs on this machine: choose the tier, run each test in processes, judge the answers."""

import functools
import os
import platform
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from queue import SimpleQueue
from time import monotonic

from untrusted.assertions import Call, call_of, is_script, read_call
from untrusted.cases import MAX_OUTPUT, Case, Test, difference
from untrusted.inside.channel import Fields
from untrusted.inside.wire import UnknownValueError, canonical
from untrusted.results import (
    Cancel,
    Connection,
    Executor,
    Limits,
    Outcome,
    Program,
    Programs,
    Result,
    Results,
    TestResult,
    read_request,
    results_text,
)
from untrusted.session import Child, SandboxFailureError, Session
from untrusted.tiers import (
    PACKAGES,
    SAFE,
    ExecutorName,
    Packages,
    SandboxUnavailableError,
    Tier,
    package_folders,
)

# Characters of a reason.
DETAIL_LENGTH = 400
PASSES_CHANGED = "passes even with its assertions negated and its literals changed"

# Tries to reach what a contained program must not. `diffucoder sandbox check` tries far more.
SELF_TEST = """
import os, socket
def reached():
    def attempt(name, act):
        try:
            act()
        except OSError:
            return []
        return [name]
    return (
        attempt("a file", lambda: open("/etc/passwd"))
        + attempt("writing", lambda: open("/jax-diffucoder-self-test", "x"))
        + attempt("a socket", lambda: socket.socket())
        + attempt("a process", lambda: os.fork() or os._exit(0))
        + attempt("a signal", lambda: os.kill(os.getppid(), 0))
    )
"""


@functools.cache
def why_not(tier: Tier) -> str:
    """Return why a tier does not work on this host; empty if it works. Tested once per process."""
    try:
        with Session(tier, packages=()) as session:
            result = run_program(
                session, Program(SELF_TEST, ("assert reached() == []",), Limits(seconds=20))
            )
    except (SandboxFailureError, SandboxUnavailableError) as error:
        return str(error).removeprefix(f"{tier}: ")
    return "" if result.passed else f"its self-test failed: {result.detail}"


def choose_tier(executor: str, *, allow_unsafe: bool = False) -> Tier:
    """Choose the tier to run in.

    Args:
        executor: auto, bubblewrap, landlock or unsafe.
        allow_unsafe: whether running without containment is allowed.

    Raises:
        SandboxUnavailableError: no tier works; the message names what is missing.
    """
    if executor not in ("auto", *SAFE, "unsafe"):
        raise ValueError(f"executor={executor!r}: must be auto, bubblewrap, landlock or unsafe")
    if executor == "unsafe":
        if not allow_unsafe:
            raise SandboxUnavailableError(
                "executor='unsafe' runs programs without containment: it must be allowed with --allow-unsafe-exec"
                " (allow_unsafe=True)"
            )
        return "unsafe"
    reasons = {}
    for tier in SAFE if executor == "auto" else (executor,):
        reasons[tier] = why_not(tier)
        if not reasons[tier]:
            return tier
    if allow_unsafe:
        return "unsafe"
    missing = "; ".join(f"{tier}: {reason}" for tier, reason in reasons.items())
    host = f"{platform.system()} {platform.release()} on {platform.machine()}"
    raise SandboxUnavailableError(
        f"programs cannot be contained on this host ({host}): {missing}. install bubblewrap (Debian: apt-get"
        " install bubblewrap) and allow unprivileged user namespaces, or use a Linux kernel from 5.13 on with Landlock"
        " on x86-64 or aarch64, or send the work to a worker (diffucoder sandbox serve). --allow-unsafe-exec"
        " (allow_unsafe=True) runs without containment"
    )


def run(
    code: str,
    tests: Sequence[Test] = (),
    limits: Limits | None = None,
    *,
    cancel: Cancel | None = None,
    **settings,
) -> Result:
    """Run a program against its tests on this machine; `settings` are those of `Local`.

    Raises SandboxUnavailableError if the program cannot be contained.
    """
    program = Program(code, tuple(tests), limits or Limits())
    return Local(workers=1, **settings).run_many([program], cancel=cancel)[0]


def answer_request(text: str) -> str:
    """Answer a JSON request on this machine (see `results.read_request`)."""
    programs, local = read_request(text, Local)
    return results_text(local.run_many(programs))


@dataclass(frozen=True)
class Local(Executor):
    """Runs programs on this machine.

    Attributes:
        executor: the tier; "auto" tries bubblewrap, then Landlock, and refuses if neither works.
        allow_unsafe: run without containment if there is none; every result says so.
        workers: number of programs that run in parallel; by default the number of cores.
    """

    executor: ExecutorName = "auto"
    allow_unsafe: bool = False
    workers: int | None = None
    _: KW_ONLY
    batch: int = 1
    pause: float = 0.0
    packages: Packages = PACKAGES

    def __post_init__(self):
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be at least 1")
        if missing := set(self.packages) - package_folders(self.packages).keys():
            raise ValueError(f"packages={self.packages}: no package {min(missing)!r} is installed")
        super().__post_init__()

    def choose_tier(self) -> Tier:
        """Return the tier to run in; raises SandboxUnavailableError if there is none."""
        return choose_tier(self.executor, allow_unsafe=self.allow_unsafe)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        # Raises if programs cannot be contained.
        self.choose_tier()
        workers = self.workers or os.cpu_count() or 1
        # The sessions that are not in use; None stands for one that has not been started.
        sessions = SimpleQueue()
        for _ in range(workers):
            sessions.put(None)
        try:
            yield sessions, workers
        finally:
            while not sessions.empty():
                if session := sessions.get():
                    session.close()

    def send(
        self, client: "SimpleQueue[Session | None]", programs: Programs, turn: int, cancel: Cancel
    ) -> Results:
        session = client.get()
        try:
            # A session has the packages that it was started with.
            if session and session.packages != self.packages:
                session = session.close()
            if not session:
                session = Session(self.choose_tier(), self.packages)
            session.cancel = cancel
            return [run_program(session, program, self.same_process) for program in programs]
        except SandboxFailureError:
            session = session and session.close()
            raise
        finally:
            client.put(session)


def run_program(session: Session, program: Program, same_process: bool = False) -> Result:
    """Run a program once, test by test; raises SandboxFailureError if the sandbox fails."""
    session.begin(program.limits, same_process)
    deadline = monotonic() + program.limits.total_seconds
    results = []
    # Without tests, only the program itself runs, once.
    for test in program.tests or (None,):
        seconds = min(program.limits.seconds, deadline - monotonic())
        results.append(run_test(session, program.code, test, seconds))
    # The output of second runs is not part of the result.
    output = session.text("stdout"), session.text("stderr")
    # Second runs come last, so that they take no time from other tests.
    for number, test in enumerate(program.tests if program.limits.canary else ()):
        seconds = min(program.limits.seconds, deadline - monotonic())
        is_trusted = results[number].outcome == "passed" and results[number].border and seconds > 0
        if is_trusted and is_script(test):
            job = {"code": program.code}
            changed, _, tester = exchange_test(session, job, test, seconds, changed=True)
            if has_passed(tester, changed):
                results[number] = failed(PASSES_CHANGED, "cannot_judge")
    return Result(tuple(results), *output, session.tier)


def run_test(session: Session, code: str, test: Test | None, seconds: float) -> TestResult:
    """Run one test in new processes; `seconds` is wall clock.

    A test is a script with input and output, a single call whose answer is compared here, or
    statements, which a second process runs. Without a test, only the program runs.
    """
    if seconds <= 0:
        total = session.limits.total_seconds
        return TestResult("timeout", f"no time left of {total:g} s for all tests")
    job: Fields = {"code": code}
    if test is None:
        (program,) = session.exchange([job], seconds)
        # A program could fake this report, but "untested" is not "passed".
        ended = program.answer.get("ended") is True
        return TestResult("untested") if ended else reason_of(program)
    if isinstance(test, Case) and not test.function:
        return run_case(session, code, test, seconds)
    call = call_of(test, code) if isinstance(test, Case) else read_call(test)
    if call is None:
        return run_statements(session, job, str(test), seconds)
    # A call with literals needs one process. If its answer is not a literal, a second process
    # compares it.
    job["prelude"] = call.prelude
    (program,) = session.exchange([job | call.request], seconds)
    judged = judge_call(call, program)
    statements = test if isinstance(test, str) else call.source
    return judged or run_statements(session, job, statements, seconds)


def run_case(session: Session, code: str, case: Case, seconds: float) -> TestResult:
    """Run a program as a script, and compare its output in this process."""
    (program,) = session.exchange([{"code": code, "script": True}], seconds, case.input.encode())
    output = session.written["stdout"]
    if len(output) > MAX_OUTPUT:
        return TestResult("failed", f"wrote more than {MAX_OUTPUT} bytes")
    if program.late or program.status:
        return reason_of(program, when="")
    # Invalid UTF-8 becomes surrogates, which no expected text contains.
    where = difference(case.output, output.decode("utf-8", "surrogateescape"), case.comparison)
    return TestResult("failed", where) if where else TestResult("passed")


def run_statements(session: Session, job: Fields, statements: str, seconds: float) -> TestResult:
    """Run the statements of a test in a second process, against the program of a job."""
    test, program, tester = exchange_test(session, job, statements, seconds)
    if "cannot" in tester.answer:
        if session.same_process:
            return run_together(session, job | test, seconds)
        return failed(tester.answer["cannot"], "cannot_judge")
    if has_passed(tester, test):
        return TestResult("passed")
    # If the program has ended, its error says more than the tester's, which lost its connection.
    return reason_of(program if says_why(program, tester) else tester)


def exchange_test(
    session: Session, job: Fields, statements: str, seconds: float, *, changed: bool = False
) -> tuple[Fields, Child, Child]:
    """Run a program and a test in two processes; returns the tester's job and both processes."""
    # The program cannot know this number, by which the tester proves that the test has ended.
    sentinel = secrets.token_hex(16)
    test = {"test": statements, "sentinel": sentinel, "code": job["code"], "changed": changed}
    program, tester = session.exchange([job, test], seconds)
    return test, program, tester


def has_passed(child: Child, test: Fields) -> bool:
    """Whether a process has reported, with the sentinel, that its test ended without a failure."""
    return child.answer.get("ended") == test["sentinel"]


def run_together(session: Session, job: Fields, seconds: float) -> TestResult:
    """Run a test in its program's own process, which could fake the result."""
    (child,) = session.exchange([job], seconds)
    if "cannot" in child.answer:
        return failed(child.answer["cannot"], "cannot_judge")
    return replace(
        TestResult("passed") if has_passed(child, job) else reason_of(child), border=False
    )


def says_why(program: Child, tester: Child) -> bool:
    """Whether a test failed because its program ended."""
    lost = tester.answer.get("raised", "ChannelEndError") == "ChannelEndError"
    # The tester may notice the end before this process does: then the status is not that of our own
    # SIGKILL.
    ended = program.ended or program.status != signal.SIGKILL
    return bool(program.answer) or (ended and lost)


def judge_call(call: Call, child: Child) -> TestResult | None:
    """Compare a call's answer with the expected value in this process.

    Returns None if one of them is not a literal, so that a tester has to compare them.
    """
    if "object" in child.answer:
        return None
    if "value" not in child.answer:
        return reason_of(child)
    try:
        # Not trusted: the program may send any value.
        value = str(child.answer["value"])
        accepted = [canonical(expected) for expected in (call.expected, *call.others)]
        if value in accepted:
            return TestResult("passed")
    except UnknownValueError:
        return None
    except RecursionError:
        return TestResult("failed", "returned a value that is too deep")
    return failed(f"returned {short(value)}, expected {short(accepted[0])}")


def short(text: str) -> str:
    most = DETAIL_LENGTH // 3
    return text if len(text) <= most else f"{text[:most]}…"


def failed(detail, outcome: Outcome = "failed") -> TestResult:
    return TestResult(outcome, " ".join(str(detail).split())[:DETAIL_LENGTH])


def reason_of(child: Child, when: str = " before the end") -> TestResult:
    """Return the result for a process without the expected answer: why it ended."""
    if child.reason:
        return failed(child.reason)
    if child.late:
        return TestResult("timeout", f"no end after {child.late:g} s")
    if child.answer:
        return reason_of_error(**child.answer)
    code = os.waitstatus_to_exitcode(child.status)
    if code >= 0:
        return failed(f"left with exit status {code}{when}")
    if -code == signal.SIGXCPU:
        return TestResult("timeout", "used up its processor time")
    # Ours, after it has closed its socket, or the kernel's.
    if -code == signal.SIGKILL:
        return failed("closed its connection to the sandbox, or was killed")
    # Python names no real-time signal but the first and the last.
    names = {int(each): each.name for each in signal.Signals}
    return failed(f"crashed with {names.get(-code, f'signal {-code}')}")


def reason_of_error(*, raised="no answer", base="", message="", line="", **_) -> TestResult:
    """Return the result for a process that has reported an exception."""
    if base == "SystemExit":
        return failed(f"left with exit status {message or 0}")
    outcome: Outcome = "out_of_memory" if base == "MemoryError" else "failed"
    return failed(f"{raised}: {message or line}" if message or line else raised, outcome)

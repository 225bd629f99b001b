"""Run programs on this machine: choose the tier, run each test in processes, judge the answers."""

import functools
import json
import logging
import os
import platform
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

from untrusted.answers import is_literal, matches, may_equal
from untrusted.assertions import Call, call_of, is_script, read_call
from untrusted.cases import MAX_OUTPUT, Case, Test, difference
from untrusted.inside.wire import encode_literal
from untrusted.results import (
    Cancel,
    Limits,
    Outcome,
    Program,
    Progress,
    Result,
    TestResult,
    results_text,
)
from untrusted.session import CancelledError, Child, SandboxFailureError, Session
from untrusted.tiers import (
    PACKAGES,
    SAFE,
    ExecutorName,
    SandboxUnavailableError,
    Tier,
    package_folders,
)

logger = logging.getLogger(__name__)

# Tries of a program if the sandbox fails; characters of a reason.
ATTEMPTS = 3
DETAIL_LENGTH = 400

# Tries what a contained program must not reach. The battery of `diffucoder sandbox check` tries far
# more.
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
    """Return why a tier does not work on this host; empty if it works. Tried once per process."""
    try:
        with Session(tier, packages=()) as session:
            result = run_program(
                session, Program(SELF_TEST, ("assert reached() == []",), Limits(seconds=20))
            )
    except (SandboxFailureError, SandboxUnavailableError) as error:
        return str(error).removeprefix(f"{tier}: ")
    return "" if result.passed else f"its self-test failed: {result.detail}"


def choose_tier(
    executor: str, *, allow_unsafe: bool = False, probe: Callable[[Tier], str] = why_not
) -> Tier:
    """Choose the tier to run in.

    Args:
        probe: returns why a tier does not work here; empty if it works.

    Raises SandboxUnavailableError, which names what is missing, if no tier works.
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
    reasons: dict[str, str] = {}
    for tier in SAFE if executor == "auto" else (executor,):
        reasons[tier] = probe(tier)
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
    executor: ExecutorName = "auto",
    allow_unsafe: bool = False,
    packages: tuple[str, ...] = PACKAGES,
    same_process: bool = False,
    cancel: Cancel | None = None,
) -> Result:
    """Run a program against its tests on this machine; see `Local` for the settings.

    Raises SandboxUnavailableError if the program cannot be contained.
    """
    local = Local(
        executor, allow_unsafe=allow_unsafe, workers=1, packages=packages, same_process=same_process
    )
    return local.run_many([Program(code, tuple(tests), limits or Limits())], cancel=cancel)[0]


def answer_request(text: str) -> str:
    """Answer a JSON request on this machine (see `BatchExecutor.request_text`)."""
    request = json.loads(text)
    allow_unsafe = request.get("allow_unsafe") is True
    local = Local(
        request.get("executor", "auto"),
        allow_unsafe=allow_unsafe,
        workers=request.get("workers"),
        packages=tuple(request.get("packages", PACKAGES)),
        same_process=request.get("same_process") is True,
    )
    return results_text(local.run_many([Program.from_json(program) for program in request["jobs"]]))


@dataclass(frozen=True)
class Local:
    """Runs programs on this machine.

    Attributes:
        executor: the tier; "auto" tries bubblewrap, then Landlock, and refuses if neither works.
        allow_unsafe: run without containment if there is none; every result says so.
        workers: number of programs that run in parallel; by default the number of cores.
        packages: installed packages that programs and tests may import in addition to the standard
            library.
        same_process: judge tests that the border cannot carry in the program's own process:
            contained, but the program could fake the verdict. Such results say so. Not for rewards.
    """

    executor: ExecutorName = "auto"
    allow_unsafe: bool = False
    workers: int | None = None
    packages: tuple[str, ...] = PACKAGES
    same_process: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers}: must be at least 1")
        package_folders(self.packages)

    def run_many(
        self,
        programs: Sequence[Program],
        *,
        on_progress: Progress | None = None,
        cancel: Cancel | None = None,
    ) -> list[Result]:
        """Run programs; returns a result for each, in order.

        Programs that a set `cancel` stops are sandbox errors that say so.
        """
        if not programs:
            return []
        tier = choose_tier(self.executor, allow_unsafe=self.allow_unsafe)
        workers = min(self.workers or os.cpu_count() or 1, len(programs))
        with Pool(tier, workers, cancel, self.packages) as pool:
            futures = [pool.submit(program, self.same_process) for program in programs]
            # Progress in the order of completion, results in the order of the programs.
            for done, _ in enumerate(as_completed(futures), 1):
                if on_progress:
                    on_progress(done, len(programs))
        return [future.result() for future in futures]


class Pool:
    """Threads with a sandbox each, as long as it is open.

    Left by an exception, it stops the programs that are still running.
    """

    def __init__(
        self,
        tier: Tier,
        workers: int,
        cancel: Cancel | None = None,
        packages: tuple[str, ...] = PACKAGES,
    ) -> None:
        self.tier = tier
        self.stop = threading.Event()
        start = functools.partial(
            Session, tier, lambda: self.stop.is_set() or (cancel and cancel.is_set()), packages
        )
        self.sandboxes = [Sandbox(tier, start) for _ in range(workers)]
        self.free = list(self.sandboxes)
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def submit(self, program: Program, same_process: bool = False) -> "Future[Result]":
        """Run a program as soon as a sandbox is free."""
        return self.threads.submit(self.work, program, same_process)

    def work(self, program: Program, same_process: bool) -> Result:
        # Never empty: there are as many sandboxes as threads. `pop` and `append` are atomic.
        sandbox = self.free.pop()
        try:
            return sandbox.run(program, same_process)
        finally:
            self.free.append(sandbox)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop.set()
        self.close()

    def close(self) -> None:
        """Wait for running programs, then end the sandboxes."""
        self.threads.shutdown(cancel_futures=True)
        for sandbox in self.sandboxes:
            sandbox.close()


class Sandbox:
    """A session that is started on first use and replaced when it fails."""

    def __init__(self, tier: Tier, start: Callable[[], Session]) -> None:
        self.tier, self.start = tier, start
        self.session: Session | None = None

    def run(self, program: Program, same_process: bool = False) -> Result:
        """Run a program; a failure of the sandbox is retried and never counts as a wrong answer."""
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                self.session = self.session or self.start()
                return run_program(self.session, program, same_process)
            except SandboxFailureError as error:
                logger.warning("the sandbox failed: %s", error)
                reason = str(error)
                self.close()
            except CancelledError:
                reason = "cancelled"
                break
        return Result.error(reason, len(program.tests), self.tier)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


def run_program(session: Session, program: Program, same_process: bool = False) -> Result:
    """Run a program once, test by test; raises SandboxFailureError if the sandbox fails."""
    session.begin(program.limits, same_process)
    deadline = time.monotonic() + program.limits.total_seconds
    results: list[TestResult] = []
    # Without tests, the program itself is run once.
    for test in program.tests or (None,):
        seconds = min(program.limits.seconds, deadline - time.monotonic())
        results.append(run_test(session, program.code, test, seconds))
    return Result.of(results, session.text("stdout"), session.text("stderr"), session.tier)


def run_test(session: Session, code: str, test: Test | None, seconds: float) -> TestResult:
    """Run one test in processes of its own; `seconds` is wall clock.

    There are three kinds: a script with input and output, a single call whose answer is compared
    here, and statements, which a second process runs. None runs the program alone.
    """
    if seconds <= 0:
        return TestResult(
            "timeout", f"no time left of {session.limits.total_seconds:g} s for all tests"
        )
    if test is None:
        (program,), late = session.exchange([{"code": code}], seconds)
        ended = program.answer is not None and program.answer.get("ended") is True
        # A program could claim this without having run to its end. But nothing is checked, so
        # nothing has passed.
        return TestResult("untested") if ended else reason_of(program, late, seconds)
    if isinstance(test, Case) and not test.function:
        return run_case(session, code, test, seconds)
    if isinstance(test, Case):
        call = call_of(test, code)
        statements = call.source
    else:
        call, statements = read_call(test), test
    job: dict[str, Any] = {"code": code}
    # A call of literals needs one process only: its answer is compared here.
    if call is not None:
        job["prelude"] = call.prelude
        request = {
            "function": call.function,
            "is_method": call.is_method,
            "arguments": [encode_literal(argument) for argument in call.arguments],
            "keywords": {name: encode_literal(value) for name, value in call.keywords.items()},
        }
        # None: the answer is no literal, so run the same test as statements.
        if (
            judged := judge_call(call, *session.exchange([job | request], seconds), seconds)
        ) is not None:
            return judged
    return run_statements(session, job, statements, seconds)


def run_case(session: Session, code: str, case: Case, seconds: float) -> TestResult:
    """Run a program as a script, and compare its output here, out of the program's reach."""
    program, output, late = session.execute(code, case.input.encode(), seconds)
    if len(output) > MAX_OUTPUT:
        return TestResult("failed", f"wrote more than {MAX_OUTPUT} bytes")
    if not late and program.answer is None and os.WIFEXITED(program.status) and program.status:
        return TestResult(
            "failed", f"left with exit status {os.waitstatus_to_exitcode(program.status)}"
        )
    if late or program.status:
        return reason_of(program, late, seconds)
    # Bytes that are no UTF-8 become surrogates, which no expected text can contain.
    where = difference(case.output, output.decode("utf-8", "surrogateescape"), case.comparison)
    return TestResult("failed", where) if where else TestResult("passed")


def run_statements(
    session: Session, job: dict[str, Any], statements: str, seconds: float
) -> TestResult:
    """Run the statements of a test in a second process next to the program of a job."""
    # A number that the program cannot know: only a test that came to its end reports it.
    sentinel = secrets.token_hex(16)
    test = {"test": statements, "sentinel": sentinel, "code": job["code"]}
    deadline = time.monotonic() + seconds
    (program, tester), late = session.exchange([job, test], seconds)
    if tester.answer is not None and tester.answer.get("ended") == sentinel:
        left = deadline - time.monotonic()
        if (
            session.limits.canary
            and is_script(statements)
            and passes_changed(session, job, test, left)
        ):
            said = "passes as well with its assertions negated and its literals changed"
            return failed(said, "cannot_judge")
        return TestResult("passed")
    if tester.answer is not None and "cannot" in tester.answer:
        if session.same_process:
            return run_together(session, job | test, seconds)
        return failed(str(tester.answer["cannot"]), "cannot_judge")
    # The program's own error says more than the tester's, which has only lost its connection.
    return reason_of(program if says_why(program, tester) else tester, late, seconds)


def passes_changed(
    session: Session, job: dict[str, Any], test: dict[str, Any], seconds: float
) -> bool:
    """Whether a script that has passed does so with changed assertions, which must not happen."""
    output = {name: bytes(head) for name, head in session.heads.items()}
    test = test | {"sentinel": secrets.token_hex(16), "changed": True}
    (_, tester), _ = session.exchange([job, test], max(seconds, 0.0))
    # What is printed in this run is none of the result's output.
    for name, head in session.heads.items():
        head[:] = output[name]
    return tester.answer is not None and tester.answer.get("ended") == test["sentinel"]


def run_together(session: Session, job: dict[str, Any], seconds: float) -> TestResult:
    """Run a test in its program's own process: the result is the program's word."""
    (child,), late = session.exchange([job], seconds)
    ended = child.answer is not None and child.answer.get("ended") == job["sentinel"]
    if child.answer is not None and "cannot" in child.answer:
        return failed(str(child.answer["cannot"]), "cannot_judge")
    return replace(TestResult("passed") if ended else reason_of(child, late, seconds), border=False)


def says_why(program: Child, tester: Child) -> bool:
    """Whether a test failed because its program ended."""
    ends = ("ChannelEndError",)
    lost = tester.answer is None or tester.answer.get("raised") in ends
    # The tester may notice the end before we do. But then it was not our own SIGKILL that ended the
    # program.
    ended = program.ended or program.status != signal.SIGKILL
    return program.answer is not None or (ended and lost)


def judge_call(call: Call, children: list[Child], late: bool, seconds: float) -> TestResult | None:
    """Compare a call's answer with the expected value here, out of the program's reach.

    Returns None if the answer is no literal: then a tester has to find out what it equals.
    """
    answer = children[0].answer
    if answer is None or "value" not in answer:
        return reason_of(children[0], late, seconds)
    value, right = answer["value"], (call.expected, *call.others)
    try:
        if any(may_equal(encode_literal(expected), value) for expected in right):
            if not is_literal(value):
                return None
            if any(matches(expected, value) for expected in right):
                return TestResult("passed")
        return failed(f"returned {short(value)}, expected {short(encode_literal(call.expected))}")
    except RecursionError:
        return TestResult("failed", "returned a value that is too deep")
    except (ValueError, TypeError, LookupError):
        return TestResult("failed", "the answer is no data")


def short(wire: Any) -> str:
    # A wide answer is not written out to be cut afterwards.
    text = repr(wire[:DETAIL_LENGTH] if isinstance(wire, list | str) else wire)
    return text if len(text) <= DETAIL_LENGTH // 3 else f"{text[: DETAIL_LENGTH // 3]}…"


def failed(detail: str, outcome: Outcome = "failed") -> TestResult:
    return TestResult(outcome, " ".join(detail.split())[:DETAIL_LENGTH])


def reason_of(child: Child, late: bool, seconds: float) -> TestResult:
    """Return why a process did not deliver the wanted answer."""
    # In this order: ended by the zygote, time, an exception, a signal, an exit status.
    if child.reason:
        return failed(child.reason)
    if late:
        return TestResult("timeout", f"no end after {seconds:g} s")
    if child.answer is not None:
        name, message = child.answer.get("raised", "no answer"), child.answer.get("message", "")
        if child.answer.get("base") == "SystemExit":
            return failed(f"left with exit status {message or 0}")
        outcome: Outcome = (
            "out_of_memory" if child.answer.get("base") == "MemoryError" else "failed"
        )
        line = child.answer.get("line", "")
        return failed(f"{name}: {message or line}" if message or line else str(name), outcome)
    if os.WIFSIGNALED(child.status):
        number = os.WTERMSIG(child.status)
        if number == signal.SIGXCPU:
            return TestResult("timeout", "used up its processor time")
        # Not our own SIGKILL, as the process ended before it was collected.
        if number == signal.SIGKILL and child.ended:
            return TestResult("out_of_memory", "killed by the kernel")
        return failed(f"crashed with {signal.Signals(number).name}")
    return failed(f"left with exit status {os.waitstatus_to_exitcode(child.status)} before the end")

"""One sandbox: a zygote process and what the parent exchanges with its children.

Knows processes, pipes and clocks; what the messages mean is `runner`'s business.
"""

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from untrusted.cases import MAX_OUTPUT
from untrusted.inside.deferred import ON_MENTION
from untrusted.inside.wire import MAX_MESSAGE
from untrusted.inside.zygote import COLLECT
from untrusted.results import Limits
from untrusted.tiers import PACKAGES, SandboxUnavailableError, Tier, command, work_folder

logger = logging.getLogger(__name__)

# A busy host may take long to start an interpreter; that is not the program's fault.
START_SECONDS, STOP_SECONDS = 20.0, 2.0
CHUNK = 2**16
TICK = 0.1


class SandboxFailureError(Exception):
    """The sandbox did not work: this says nothing about the program."""


class CancelledError(Exception):
    """The caller wants no result any more."""


@dataclass
class Child:
    """A process of the zygote: its socket, what it has said, how it ended, and why the zygote ended
    it if it did.
    """

    socket: socket.socket
    job: dict[str, Any]
    buffer: bytearray = field(default_factory=bytearray)
    started: bool = False
    answer: Any = None
    ended: bool = False
    status: int = 0
    reason: str = ""

    def line(self) -> bytes | None:
        """Take the next complete message, if there is one."""
        end = self.buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return line


class Session:
    """A zygote in a tier, for one program after another.

    Its end is the end of every process in it.
    """

    def __init__(
        self,
        tier: Tier,
        is_cancelled: Callable[[], Any] = lambda: False,
        packages: tuple[str, ...] = PACKAGES,
        same_process: bool = False,
    ) -> None:
        self.tier, self.is_cancelled, self.packages = tier, is_cancelled, packages
        self.limits, self.same_process = Limits(), same_process
        # In bubblewrap a folder of that name is made inside; elsewhere programs write into this
        # one.
        self.folder = (
            work_folder(packages)
            if tier == "bubblewrap"
            else tempfile.mkdtemp(prefix="jax-diffucoder-")
        )
        self.heads = {"stdout": bytearray(), "stderr": bytearray()}
        self.output: bytearray | None = None
        self.control, far = socket.socketpair()
        self.control.settimeout(START_SECONDS)
        try:
            self.process = subprocess.Popen(
                command(tier, far.fileno(), packages, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[far.fileno()],
                # bubblewrap's own environment would be readable in the sandbox.
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self.control.close()
            if isinstance(error, SandboxUnavailableError):
                raise
            raise SandboxFailureError(f"cannot start {error.filename}: {error.strerror}") from error
        finally:
            far.close()
        self.replies = self.control.makefile("rb")
        self.selector = selectors.DefaultSelector()
        self.pipes: dict[str, tuple[int, int]] = {}
        self.start()

    def start(self) -> None:
        """Wait until the zygote is there; what bubblewrap or Python say otherwise is the reason."""
        # If memory runs out, the kernel takes the sandbox first.
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{self.process.pid}/oom_score_adj", "w") as file,
        ):
            file.write("1000")
        try:
            self.reply()
        except SandboxFailureError:
            self.kill()
            reason = (
                self.process.stderr.read().decode("utf-8", "replace").split("\n")
                if self.process.stderr
                else []
            )
            self.close()
            said = [line for line in reason if line.strip()]
            raise SandboxFailureError(said[-1] if said else "the sandbox did not start") from None

    def begin(self, limits: Limits) -> None:
        """Prepare for the next program: its limits, and no output yet."""
        self.limits = limits
        for head in self.heads.values():
            head.clear()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reply(self) -> bytes:
        """Read the zygote's next line."""
        try:
            line = self.replies.readline()
        except OSError as error:
            raise SandboxFailureError(f"no word from the sandbox: {error}") from error
        if not line.endswith(b"\n"):
            raise SandboxFailureError("the sandbox ended")
        return line

    def execute(
        self, code: str, standard_input: bytes, seconds: float
    ) -> tuple[Child, bytes, bool]:
        """Run a program as a script until its process has ended, or has written more than
        `MAX_OUTPUT` bytes.

        Returns the process, what it wrote to standard output, and whether time ran out.
        """
        self.output = output = bytearray()
        try:
            (child,), late = self.exchange(
                [{"code": code, "script": True}], seconds, standard_input
            )
        finally:
            self.output = None
        return child, bytes(output), late

    def exchange(
        self, jobs: list[dict[str, Any]], seconds: float, standard_input: bytes = b""
    ) -> tuple[list[Child], bool]:
        """Fork a process per job, and wait until the last one has answered or any has failed.

        Two processes have a socket between them. Returns the processes, and whether time ran out.
        """
        peers = [end.detach() for end in socket.socketpair()] if len(jobs) == 2 else []
        children: list[Child] = []
        self.open_pipes()
        try:
            for position, job in enumerate(jobs):
                children.append(self.spawn(job, standard_input, peers[position : position + 1]))
        finally:
            for peer in peers:
                os.close(peer)
        self.close_pipes(1)
        for child in children:
            self.selector.register(child.socket, selectors.EVENT_READ, child)
        try:
            # They are there before they are asked for, which each is when it has been confined.
            for child in children:
                self.give(child)
            if not self.wait(lambda: all(child.started for child in children), START_SECONDS):
                raise SandboxFailureError("the sandbox did not confine a process in time")
            answered = self.wait(lambda: self.is_done(children), seconds)
        finally:
            told = self.collect()
            for child in children:
                if not child.ended:
                    self.selector.unregister(child.socket)
                child.socket.close()
        for child, status in zip(children, told["statuses"], strict=True):
            child.status, child.reason = status, told["reason"]
        for name in self.heads:
            self.drain(name)
        self.close_pipes(0)
        return children, not answered

    def is_done(self, children: list[Child]) -> bool:
        """Tell whether nothing more is to come that counts."""
        if self.output is None:
            # The end of an earlier one counts too: then the last waits in vain.
            return any(child.ended or child.answer is not None for child in children)
        # A script may close what it has; all of it is closed when its process ends.
        is_closed = all(pipe[0] < 0 for pipe in self.pipes.values())
        return len(self.output) > MAX_OUTPUT or (is_closed and children[0].ended)

    def open_pipes(self) -> None:
        """Make the pipes of one test.

        A program can change the flags of its end, which no other may ever have.
        """
        self.close_pipes(0, 1)
        self.pipes = {name: os.pipe() for name in self.heads}
        for name, (end, _) in self.pipes.items():
            os.set_blocking(end, False)
            self.selector.register(end, selectors.EVENT_READ, name)

    def close_pipes(self, *ends: int) -> None:
        """Close the reading ends (0), the writing ends (1)."""
        for name, pipe in self.pipes.items():
            for end in ends:
                if pipe[end] < 0:
                    continue
                if end == 0:
                    self.selector.unregister(pipe[0])
                os.close(pipe[end])
            self.pipes[name] = (-1 if 0 in ends else pipe[0], -1 if 1 in ends else pipe[1])

    def spawn(self, job: dict[str, Any], standard_input: bytes, peers: list[int]) -> Child:
        near, far = socket.socketpair()
        try:
            request = {"memory_bytes": self.limits.memory_bytes, "seconds": self.limits.seconds}
            request["load"] = [
                name for name in (*self.packages, *ON_MENTION, "pytest") if is_mentioned(name, job)
            ]
            outputs = [self.pipes[name][1] for name in ("stdout", "stderr")]
            source = open_input(standard_input)
            try:
                ends = [far.fileno(), source, *outputs, *peers]
                socket.send_fds(self.control, [json.dumps(request).encode()], ends)
            finally:
                os.close(source)
        except OSError as error:
            near.close()
            raise SandboxFailureError(f"cannot start a process: {error}") from error
        finally:
            far.close()
        return Child(near, job)

    def give(self, child: Child) -> None:
        """Hand a process its job, which it reads whole, before anything else, when it has been
        confined.
        """
        child.socket.settimeout(START_SECONDS)
        try:
            child.socket.sendall(json.dumps(child.job).encode() + b"\n")
        except ConnectionError:
            # It has ended, and may have said why.
            self.wait(lambda: child.ended, START_SECONDS)
            raise SandboxFailureError("a process ended before it took its job") from None
        except OSError as error:
            raise SandboxFailureError(f"a process did not take its job: {error}") from error

    def collect(self) -> dict[str, Any]:
        """End all processes of the zygote; returns their wait statuses, and why the zygote had
        ended them if it had.
        """
        try:
            self.control.sendall(COLLECT)
            return json.loads(self.reply())
        except OSError as error:
            raise SandboxFailureError(f"no word from the sandbox: {error}") from error

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Read what comes until `done()`; False if the time passes first."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.is_cancelled():
                raise CancelledError
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(min(left, TICK)):
                if isinstance(key.data, str):
                    self.drain(key.data)
                else:
                    self.hear(key.data)
        return True

    def drain(self, name: str) -> None:
        """Read all output that is there, and keep its head."""
        head = self.heads[name]
        if self.pipes[name][0] < 0:
            return
        with contextlib.suppress(BlockingIOError):
            # Bounded, as a program may write without end.
            for _ in range(16):
                chunk = os.read(self.pipes[name][0], CHUNK)
                if not chunk:
                    self.selector.unregister(self.pipes[name][0])
                    os.close(self.pipes[name][0])
                    self.pipes[name] = (-1, self.pipes[name][1])
                    return
                head += chunk[: self.limits.output_bytes - len(head)]
                if self.output is not None and name == "stdout":
                    self.output += chunk

    def hear(self, child: Child) -> None:
        """Read from a process: first that it is confined, then its answer; what follows is dropped."""
        try:
            chunk = child.socket.recv(CHUNK)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            # Its end would be news for ever.
            child.ended = True
            self.selector.unregister(child.socket)
        if child.answer is None:
            child.buffer += chunk
        if not child.started and (line := child.line()) is not None:
            word = json.loads(line)
            if "refused" in word:
                raise SandboxFailureError(word["refused"])
            child.started = True
        elif not child.started and child.ended:
            raise SandboxFailureError("a process ended before it was confined")
        if child.started and child.answer is None:
            child.answer = parse_answer(child)

    def text(self, name: str) -> str:
        return self.heads[name].decode("utf-8", "replace")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything and collect it."""
        self.replies.close()
        self.control.close()
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the sandbox did not end by itself within %g s", STOP_SECONDS)
        self.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        self.close_pipes(0, 1)
        self.selector.close()
        if self.tier != "bubblewrap":
            shutil.rmtree(self.folder, ignore_errors=True)


def open_input(content: bytes) -> int:
    """Open a file of this content to be read.

    It has no name: what is open is all that there is of it.
    """
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    # A file, as contests give it, and no pipe: fast programs ask for its size, or map it.
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def is_mentioned(package: str, job: dict[str, Any]) -> bool:
    """Whether a job may import a package; pytest is needed for its fixtures alone."""
    test = job.get("test", "")
    if package == "pytest":
        return package in test and ("fixture" in test or "caplog" in test)
    return package in f"{job.get('code', '')} {test}"


def parse_answer(child: Child) -> Any:
    """Read a process's answer, once it is complete; an answer that is no JSON object is a wrong
    one.
    """
    line = child.line()
    if line is None:
        too_large = {"raised": "ValueError", "message": "the answer is too large"}
        return too_large if len(child.buffer) > MAX_MESSAGE else None
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    return (
        answer
        if isinstance(answer, dict)
        else {"raised": "ValueError", "message": "the answer is no data"}
    )

"""One sandbox: a zygote process, and what the parent exchanges with its children.

Knows processes, pipes and clocks; `runner` knows what the messages mean.
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

# A busy host may take long to start an interpreter, which is not the program's fault.
START_SECONDS, STOP_SECONDS = 20.0, 2.0
# Bytes read at once; seconds between two looks at `is_cancelled`.
CHUNK = 2**16
TICK = 0.1


class SandboxFailureError(Exception):
    """Raised if the sandbox did not work, which says nothing about the program."""


class CancelledError(Exception):
    """Raised if the caller no longer wants a result."""


@dataclass
class Child:
    """A process of the zygote.

    Attributes:
        socket: the parent's end of its socket.
        job: what it is to do.
        buffer: received bytes that are not a complete message yet.
        started: it has reported that it is confined.
        answer: its answer as plain data; None before.
        ended: its end of the socket is closed.
        status: wait status.
        reason: why the zygote ended it early; empty otherwise.
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
        """Return the next complete message and remove it from the buffer; None if there is none."""
        end = self.buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 1]
        return line


class Session:
    """A zygote in a tier, for one program after another.

    If it ends, so does every process in it.
    """

    def __init__(
        self,
        tier: Tier,
        is_cancelled: Callable[[], Any] = lambda: False,
        packages: tuple[str, ...] = PACKAGES,
    ) -> None:
        self.tier, self.is_cancelled, self.packages = tier, is_cancelled, packages
        self.limits, self.same_process = Limits(), False
        # bubblewrap makes this folder inside the sandbox; in the other tiers it is a real one.
        self.folder = (
            work_folder(packages)
            if tier == "bubblewrap"
            else tempfile.mkdtemp(prefix="jax-diffucoder-")
        )
        # The beginning of each output stream; all of stdout while a script runs.
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
        """Wait until the zygote is ready; otherwise raise with what bubblewrap or Python said."""
        # If the host runs out of memory, the kernel ends the sandbox first.
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

    def begin(self, limits: Limits, same_process: bool) -> None:
        """Prepare for the next program: set its limits, clear the output."""
        self.limits, self.same_process = limits, same_process
        for head in self.heads.values():
            head.clear()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reply(self) -> bytes:
        """Return the zygote's next line."""
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
        """Run a program as a script until its process ends or writes more than `MAX_OUTPUT` bytes.

        Returns the process, its standard output, and whether time ran out.
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
        """Fork a process per job; wait until the last one has answered or any has failed.

        Two processes get a socket between them. Returns the processes, and whether time ran out.
        """
        peers = [end.detach() for end in socket.socketpair()] if len(jobs) == 2 else []
        children: list[Child] = []
        # Start: pipes and processes; our copies of the children's ends are closed at once
        self.open_pipes()
        try:
            for position, job in enumerate(jobs):
                children.append(self.spawn(job, standard_input, peers[position : position + 1]))
        finally:
            for peer in peers:
                os.close(peer)
        self.close_pipes(1)
        # Run: hand over the jobs, wait until all are confined, then until one answers
        for child in children:
            self.selector.register(child.socket, selectors.EVENT_READ, child)
        try:
            # All processes exist before a job is handed over; each reads it once it is confined.
            for child in children:
                self.give(child)
            if not self.wait(lambda: all(child.started for child in children), START_SECONDS):
                raise SandboxFailureError("the sandbox did not confine a process in time")
            answered = self.wait(lambda: self.is_done(children), seconds)
        # Collect, also after an error: no child may outlive its test
        finally:
            told = self.collect()
            for child in children:
                if not child.ended:
                    self.selector.unregister(child.socket)
                child.socket.close()
        for child, status in zip(children, told["statuses"], strict=True):
            child.status, child.reason = status, told["reason"]
        # What the pipes still hold
        for name in self.heads:
            self.drain(name)
        self.close_pipes(0)
        return children, not answered

    def is_done(self, children: list[Child]) -> bool:
        """Whether nothing more will come that counts."""
        if self.output is None:
            # The end of an earlier process counts too: the last one would wait in vain.
            return any(child.ended or child.answer is not None for child in children)
        # A script may close its streams early; all are closed once its process has ended.
        is_closed = all(pipe[0] < 0 for pipe in self.pipes.values())
        return len(self.output) > MAX_OUTPUT or (is_closed and children[0].ended)

    def open_pipes(self) -> None:
        """Make the pipes of one test.

        They are not used again: a program can change the flags of its end, and the next program
        would inherit them.
        """
        self.close_pipes(0, 1)
        self.pipes = {name: os.pipe() for name in self.heads}
        for name, (end, _) in self.pipes.items():
            os.set_blocking(end, False)
            self.selector.register(end, selectors.EVENT_READ, name)

    def close_pipes(self, *ends: int) -> None:
        """Close the reading ends (0), the writing ends (1), or both."""
        for name, pipe in self.pipes.items():
            for end in ends:
                if pipe[end] < 0:
                    continue
                if end == 0:
                    self.selector.unregister(pipe[0])
                os.close(pipe[end])
            # -1 marks a closed end: (5, 6) -> (5, -1)
            self.pipes[name] = (-1 if 0 in ends else pipe[0], -1 if 1 in ends else pipe[1])

    def spawn(self, job: dict[str, Any], standard_input: bytes, peers: list[int]) -> Child:
        near, far = socket.socketpair()
        try:
            request = {"memory_bytes": self.limits.memory_bytes, "seconds": self.limits.seconds}
            # Imported by the zygote before the fork, as a child has no time for it.
            request["load"] = [
                name for name in (*self.packages, *ON_MENTION) if is_mentioned(name, job)
            ]
            outputs = [self.pipes[name][1] for name in ("stdout", "stderr")]
            source = open_input(standard_input)
            try:
                # The order in which `zygote.live` expects them.
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
        """Hand a process its job, which it reads first of all once it is confined."""
        child.socket.settimeout(START_SECONDS)
        try:
            child.socket.sendall(json.dumps(child.job).encode() + b"\n")
        except ConnectionError:
            # It has ended, and may have said why: `hear` raises with the reason.
            self.wait(lambda: child.ended, START_SECONDS)
            raise SandboxFailureError("a process ended before it took its job") from None
        except OSError as error:
            raise SandboxFailureError(f"a process did not take its job: {error}") from error

    def collect(self) -> dict[str, Any]:
        """End all processes of the zygote.

        Returns their wait statuses, and why the zygote ended them early if it did.
        """
        try:
            self.control.sendall(COLLECT)
            return json.loads(self.reply())
        except OSError as error:
            raise SandboxFailureError(f"no word from the sandbox: {error}") from error

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Read until `done()` is true; returns False if `seconds` pass first."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.is_cancelled():
                raise CancelledError
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(min(left, TICK)):
                # A name is an output stream, anything else a process.
                if isinstance(key.data, str):
                    self.drain(key.data)
                else:
                    self.hear(key.data)
        return True

    def drain(self, name: str) -> None:
        """Read the output that is available, and keep its beginning."""
        head = self.heads[name]
        if self.pipes[name][0] < 0:
            return
        with contextlib.suppress(BlockingIOError):
            # Bounded, as a program may write without end: 16 chunks are 1 MiB.
            for _ in range(16):
                chunk = os.read(self.pipes[name][0], CHUNK)
                # End of file: every process has closed its end.
                if not chunk:
                    self.selector.unregister(self.pipes[name][0])
                    os.close(self.pipes[name][0])
                    self.pipes[name] = (-1, self.pipes[name][1])
                    return
                # Nothing is added once the head is full: the slice then ends at 0.
                head += chunk[: self.limits.output_bytes - len(head)]
                if self.output is not None and name == "stdout":
                    self.output += chunk

    def hear(self, child: Child) -> None:
        """Read from a process: first that it is confined, then its answer. The rest is dropped."""
        try:
            chunk = child.socket.recv(CHUNK)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            # A closed socket would stay readable for ever.
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
        """End everything and clean up."""
        self.replies.close()
        # The zygote ends by itself once its socket is closed.
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
    """Return a descriptor for reading this content.

    The file has no name: nothing but the descriptor leads to it.
    """
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    # A file, as contests use, not a pipe: fast programs ask for its size or map it.
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def is_mentioned(package: str, job: dict[str, Any]) -> bool:
    """Whether a job may import a package."""
    text = f"{job.get('code', '')} {job.get('test', '')}"
    # The fixture of this name uses it.
    return package in text or (package == "unittest.mock" and "monkeypatch" in text)


def parse_answer(child: Child) -> Any:
    """Parse a process's answer; None if it is not complete. Anything but an object is an error."""
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

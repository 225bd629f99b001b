"""A session: a zygote process, and the messages between the parent and the zygote's children.

Handles processes, pipes and timeouts; `runner` interprets the messages. The exchange for one test
of statements, with the parent on the left:

    to the zygote    {"memory_bytes": ..., "seconds": ..., "load": [...]} and descriptors, per child
    from each child  {"confined": true}
    to the program   {"code": "def f(x): ..."}
    to the tester    {"test": "y = f(1) ...", "sentinel": "9b1c...", "code": "def f(x): ..."}
    from the tester  {"ended": "9b1c..."}, or {"raised": "AssertionError", "line": ...}
    to the zygote    COLLECT, which kills both
    from the zygote  {"statuses": [9, 9], "reason": ""}
"""

import io
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from untrusted.cases import MAX_OUTPUT
from untrusted.inside.channel import Fields
from untrusted.inside.deferred import ON_MENTION
from untrusted.inside.wire import MAX_MESSAGE
from untrusted.inside.zygote import COLLECT
from untrusted.results import Cancel, Limits
from untrusted.tiers import PACKAGES, Packages, Tier, command, work_folder

logger = logging.getLogger(__name__)

# Time limits of starting and stopping; a busy host may take long to start an interpreter.
START_SECONDS = 20.0
STOP_SECONDS = 2.0
# Bytes per read.
CHUNK = 2**16
STREAMS = ("stdout", "stderr")
# Seconds between two checks of `cancel`.
TICK = 0.1


class SandboxFailureError(OSError):
    """Raised if the sandbox has failed or was stopped, which says nothing about the program."""


@dataclass
class Child:
    """A process of the zygote.

    Attributes:
        socket: the parent's end of its socket.
        job: what the process has to do, as JSON.
        buffer: received bytes that are not a complete message yet.
        started: whether it has reported that it is confined.
        answer: its answer as plain data; empty until it has answered.
        ended: whether its end of the socket is closed.
        status: wait status.
        reason: why the zygote ended it early; empty otherwise.
        late: its time limit in seconds, if it has exceeded that; else 0.
    """

    socket: socket.socket
    job: Fields
    buffer: bytearray = field(default_factory=bytearray)
    started: bool = False
    answer: Fields = field(default_factory=dict)
    ended: bool = False
    status: int = 0
    reason: str = ""
    late: float = 0.0


class Session:
    """A zygote in a tier, which runs one program after another.

    When the zygote ends, so do all its processes.
    """

    def __init__(self, tier: Tier, packages: Packages = PACKAGES):
        self.tier = tier
        self.packages = packages
        # Setting this event stops the running test.
        self.cancel = Cancel()
        self.limits = Limits()
        self.same_process = False
        # bubblewrap creates this folder inside the sandbox. In the other tiers it is a folder of
        # the host, which is removed when the session is closed, at the latest when this process
        # ends.
        # `nullcontext` does nothing when called: bubblewrap leaves nothing to remove.
        self.folder = work_folder(packages)
        self.remove = nullcontext
        if tier != "bubblewrap":
            made = tempfile.TemporaryDirectory(prefix="jax-diffucoder-", ignore_cleanup_errors=True)
            self.folder = made.name
            self.remove = made.cleanup
        # By stream: output of the running processes, up to `room` bytes, and the beginning of the
        # output of all processes of a program.
        self.room = 0
        self.written = {}
        self.heads = {}
        # By stream: the pipe.
        self.pipes = {}
        self.control, far = socket.socketpair()
        self.control.settimeout(START_SECONDS)
        arguments = command(tier, far.fileno(), packages, self.folder)
        try:
            self.process = subprocess.Popen(
                arguments,
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
            raise SandboxFailureError(f"cannot start {error.filename}: {error.strerror}") from error
        finally:
            far.close()
        self.replies = self.control.makefile("rb")
        self.selector = selectors.DefaultSelector()
        self.start()

    def start(self):
        """Wait until the zygote is ready. Raises SandboxFailureError with what the sandbox wrote to stderr."""
        # If the host runs out of memory, the kernel ends the sandbox first.
        with suppress(OSError), open(f"/proc/{self.process.pid}/oom_score_adj", "w") as file:
            file.write("1000")
        try:
            self.ask(b"")
        except SandboxFailureError:
            self.kill()
            assert self.process.stderr
            output = self.process.stderr.read().decode("utf-8", "replace").split("\n")
            self.close()
            lines = ["the sandbox did not start", *(line for line in output if line.strip())]
            raise SandboxFailureError(lines[-1]) from None

    def begin(self, limits: Limits, same_process: bool):
        """Set the limits of the next program and clear the output."""
        self.limits = limits
        self.same_process = same_process
        self.heads = {name: bytearray() for name in STREAMS}

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object):
        self.close()

    def ask(self, request: bytes) -> bytes:
        """Send the zygote a request; returns its next line."""
        try:
            self.control.sendall(request)
            line = self.replies.readline()
        except OSError as error:
            raise SandboxFailureError(f"no answer from the sandbox: {error}") from error
        if not line.endswith(b"\n"):
            raise SandboxFailureError("the sandbox ended")
        return line

    def exchange(
        self, jobs: list[Fields], seconds: float, standard_input: bytes = b""
    ) -> list[Child]:
        """Run a process per job; returns after the first answer or end, or after `seconds`.

        Two processes get a socket between them. A script runs until its process has ended or has
        written more than `MAX_OUTPUT` bytes; all its output is kept.
        """
        is_done = self.has_ended if "script" in jobs[0] else has_answered
        self.room = MAX_OUTPUT + 1 if "script" in jobs[0] else self.limits.output_bytes
        # Start pipes and processes; our copies of the children's ends are closed at once
        with ExitStack() as theirs:
            outputs = self.open_pipes(theirs)
            peers = [theirs.enter_context(end).fileno() for end in socket.socketpair()]
            children = [
                self.spawn(job, standard_input, [*outputs, peer] if len(jobs) == 2 else outputs)
                for job, peer in zip(jobs, peers, strict=False)
            ]
        # Run: hand over the jobs, wait until all are confined, then until one answers
        for child in children:
            self.selector.register(child.socket, selectors.EVENT_READ, partial(self.hear, child))
        try:
            if not self.wait(lambda: all(child.started for child in children), START_SECONDS):
                raise SandboxFailureError("the sandbox did not confine a process in time")
            # All processes are confined before one gets its job.
            for child in children:
                self.give(child)
            answered = self.wait(lambda: is_done(children), seconds)
        # Collect, also after an error: no child may outlive its test
        finally:
            # Wait statuses, and the reason if the zygote ended the processes early.
            collected = json.loads(self.ask(COLLECT))
            for child in children:
                if not child.ended:
                    self.selector.unregister(child.socket)
                child.socket.close()
        for child, status in zip(children, collected["statuses"], strict=True):
            child.status = status
            child.reason = collected["reason"]
            child.late = 0.0 if answered else seconds
        # What the pipes still hold
        for name, head in self.heads.items():
            self.drain(name)
            head += self.written[name][: self.limits.output_bytes - len(head)]
        self.close_pipes()
        return children

    def has_ended(self, children: list[Child]) -> bool:
        """Whether the output of a script is complete or too long."""
        # A script may close its streams early, so its process must have ended, too.
        is_closed = all(pipe.closed for pipe in self.pipes.values())
        return len(self.written["stdout"]) > MAX_OUTPUT or (is_closed and children[0].ended)

    def open_pipes(self, theirs: ExitStack) -> list[int]:
        """Open the pipes of one test; returns the ends to write to, which `theirs` will close.

        Each test gets new pipes, as a program can change the flags of its end.
        """
        self.close_pipes()
        writers = []
        for name in STREAMS:
            end, far = os.pipe()
            os.set_blocking(end, False)
            self.pipes[name] = io.FileIO(end)
            self.written[name] = bytearray()
            self.selector.register(end, selectors.EVENT_READ, partial(self.drain, name))
            writers.append(theirs.enter_context(io.FileIO(far, "w")).fileno())
        return writers

    def close_pipes(self):
        for pipe in self.pipes.values():
            if not pipe.closed:
                self.selector.unregister(pipe)
                pipe.close()

    def spawn(self, job: Fields, standard_input: bytes, ends: list[int]) -> Child:
        # The fixture `monkeypatch` uses unittest.mock.
        text = f"{job['code']} {job.get('test', '')}".replace("monkeypatch", "unittest.mock")
        request = {
            "memory_bytes": self.limits.memory_bytes,
            "seconds": self.limits.seconds,
            # The zygote imports them before the fork, so that they take none of the child's time.
            "load": [name for name in (*self.packages, *ON_MENTION) if name in text],
        }
        near, far = socket.socketpair()
        try:
            with far, open_input(standard_input) as source:
                # The order in which `zygote.live` expects them.
                ends = [far.fileno(), source.fileno(), *ends]
                socket.send_fds(self.control, [json.dumps(request).encode()], ends)
        except OSError as error:
            near.close()
            raise SandboxFailureError(f"cannot start a process: {error}") from error
        return Child(near, job)

    def give(self, child: Child):
        """Send a process its job."""
        child.socket.settimeout(START_SECONDS)
        try:
            child.socket.sendall(json.dumps(child.job).encode() + b"\n")
        except OSError as error:
            raise SandboxFailureError(f"a process did not take its job: {error}") from error

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Read until `done()` is true; returns False if `seconds` pass first."""
        deadline = monotonic() + seconds
        while not done():
            if self.cancel.is_set():
                raise SandboxFailureError("cancelled")
            left = deadline - monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(min(left, TICK)):
                key.data()
        return True

    def drain(self, name: str):
        """Read the available output and keep its beginning."""
        pipe = self.pipes[name]
        written = self.written[name]
        # Bounded, because a program may write endlessly: 16 chunks are 1 MiB.
        for _ in range(0 if pipe.closed else 16):
            chunk = pipe.read(CHUNK)
            # None: nothing more is there yet.
            if chunk is None:
                return
            # End of file: every process has closed its end.
            if not chunk:
                self.selector.unregister(pipe)
                return pipe.close()
            # Without room left, the slice is empty.
            written += chunk[: self.room - len(written)]

    def hear(self, child: Child):
        """Read from a process: first that it is confined, then its answer; ignore the rest."""
        try:
            chunk = child.socket.recv(CHUNK)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            # A closed socket would stay readable for ever.
            child.ended = True
            self.selector.unregister(child.socket)
        if not child.answer:
            child.buffer += chunk
        while b"\n" in child.buffer and not child.answer:
            line, _, child.buffer = child.buffer.partition(b"\n")
            message = parse_message(line)
            if child.started:
                child.answer = message
            elif "refused" in message:
                raise SandboxFailureError(message["refused"])
            child.started = True
        if child.ended and not child.started:
            raise SandboxFailureError("a process ended before it was confined")
        if len(child.buffer) > MAX_MESSAGE and not child.answer:
            child.answer = {"raised": "ValueError", "message": "the answer is too large"}

    def text(self, name: str) -> str:
        return self.heads[name].decode("utf-8", "replace")

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self):
        """End everything and clean up."""
        self.replies.close()
        # The zygote ends by itself once its socket is closed.
        self.control.close()
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the sandbox did not end by itself within %g s", STOP_SECONDS)
        self.kill()
        # Leaving the block waits for the process and closes its standard error.
        with self.process:
            self.close_pipes()
        self.selector.close()
        self.remove()


def has_answered(children: list[Child]) -> bool:
    """Whether a process has answered or ended."""
    # One is enough: if the program has ended, its tester would wait in vain.
    return any(child.ended or child.answer for child in children)


def open_input(content: bytes) -> io.BufferedReader:
    """Return a file with this content and without a name."""
    if not content:
        return open(os.devnull, "rb")
    # Not a pipe: some fast programs read the file's size or map it, as contests allow.
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return open(file.name, "rb")


def parse_message(line: bytearray) -> Fields:
    """Parse a message of a process; it becomes an error unless it is a JSON object."""
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return {"raised": "ValueError", "message": "the answer is not valid data"}

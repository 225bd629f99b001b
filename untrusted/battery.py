"""Attacks on the sandbox of this host: they try what a hostile program would, and must fail.

`diffucoder sandbox check` prints how each attack ended. The tests run the same attacks with and
without containment, to detect an attack that could not succeed anywhere. Each attack gets its own
target: a folder with a secret, listening sockets, and a process of the same user.
"""

import os
import resource
import select
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from time import perf_counter, sleep

from untrusted.results import Limits, Program
from untrusted.runner import run_program
from untrusted.session import Session
from untrusted.tiers import HARNESS, PACKAGES, hidden, readable

ATTACKS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))
# The code of each attack that tries to reach something, by name.
REACH = ATTACKS["reach"]
# Attacks that use up a resource, by name. Each has its code (`program`) and the outcomes that count
# as stopped.
EXHAUST = ATTACKS["exhaust"]

KILLED_BY_SECCOMP = "SIGSYS"


@dataclass(frozen=True)
class AttackResult:
    """How one attack ended."""

    attack: str
    stopped: bool
    detail: str


class AttackTarget(ExitStack):
    """A folder, sockets and a process to attack, made for one attack and removed afterwards."""

    def __enter__(self) -> "AttackTarget":
        self.folder = Path(
            self.enter_context(tempfile.TemporaryDirectory(prefix="jax-diffucoder-target-"))
        )
        self.secret = token_hex(16)
        (self.folder / "secret").write_text(self.secret)
        self.victim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"],
            # The secret in its environment is visible in /proc to a process of the same user.
            env={"SECRET": self.secret},
            stdin=subprocess.DEVNULL,
        )
        self.enter_context(self.victim)
        self.callback(self.victim.kill)
        # An abstract socket has no file. Every process in the same network namespace can reach it
        # by its name, "\0name".
        self.abstract = f"jax-diffucoder-{token_hex(8)}"
        self.listeners = {
            "tcp": self.listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": self.listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": self.listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.abstract}"),
            "datagram": self.listen(
                socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.abstract}-datagram"
            ),
        }
        return self

    def listen(self, family: int, kind: int, address: object) -> socket.socket:
        server = self.enter_context(socket.socket(family, kind))
        server.bind(address)  # pyright: ignore[reportArgumentType]
        if kind == socket.SOCK_STREAM:
            server.listen()
        return server

    def program(self, body: str) -> str:
        """Return the code of an attack on this target. Its `attack()` returns what was reached."""
        values = {
            "FOLDER": str(self.folder),
            "SECRET": self.secret,
            "VICTIM": self.victim.pid,
            "TCP": self.listeners["tcp"].getsockname()[1],
            "UDP": self.listeners["udp"].getsockname()[1],
            "ABSTRACT": self.abstract,
            # The folders of installed packages, of the virtual environment and of the interpreter.
            "SITES": [*hidden(readable({})), *map(sysconfig.get_path, ("purelib", "platlib"))],
            "ALLOWED": [*PACKAGES, *HARNESS],
            "HOST": os.uname().nodename,
        }
        # An attack that does not fill `reached` itself succeeds if it runs to its end.
        attempt = (
            body.strip() if "reached" in body else f"{body.strip()}\nreached.append('the end')"
        )
        function = (
            f"def attack():\n    reached = []\n    try:\n{textwrap.indent(attempt, ' ' * 8)}\n"
            "    except (OSError, AssertionError, ValueError): pass\n    return reached\n"
        )
        return "\n".join(
            [
                ATTACKS["prelude"],
                *(f"{name} = {value!r}" for name, value in values.items()),
                function,
            ]
        )

    def traces(self) -> list[str]:
        """Return what a successful attack has left on the target, in words."""
        # A socket is readable once someone has connected or sent.
        traces = [
            f"{name} heard something"
            for name, server in self.listeners.items()
            if select.select([server], [], [], 0)[0]
        ]
        names = sorted(path.name for path in self.folder.iterdir())
        traces += [f"files: {names}"] if names != ["secret"] else []
        if self.victim.poll() is not None:
            return [*traces, "the process has ended"]
        # Attacks set a limit of 77 open files and priority 7, which nothing else does.
        if (
            sys.platform == "linux"
            and resource.prlimit(self.victim.pid, resource.RLIMIT_NOFILE)[0] == 77
        ):
            traces.append("its limits were changed")
        if os.getpriority(os.PRIO_PROCESS, self.victim.pid) == 7:
            traces.append("its priority was changed")
        return traces


def reach(session: Session, name: str) -> AttackResult:
    """Run an attack that tries to reach something, on a new target.

    It counts as stopped if it leaves no trace, and either reaches nothing or is killed by the
    kernel for a forbidden system call.
    """
    with AttackTarget() as target:
        program = Program(
            target.program(REACH[name]), ("assert attack() == []",), Limits(seconds=10)
        )
        result = run_program(session, program)
        # A process that outlives the program needs time to act.
        if "orphan" in name:
            sleep(0.8)
        traces = target.traces()
    stopped = not traces and (result.passed or KILLED_BY_SECCOMP in result.detail)
    return AttackResult(name, stopped, "; ".join([*traces, result.detail]))


def exhaust(session: Session, name: str) -> AttackResult:
    """Run an attack that uses up a resource; stopped means that it ends in time, as expected."""
    attack = EXHAUST[name]
    # An attack that another limit must stop gets more time, so that it reaches it on a slow host.
    seconds = 1.5 if "timeout" in attack["outcomes"] else 15.0
    limits = Limits(seconds=seconds, memory_bytes=256 * 2**20)
    code = f"{ATTACKS['prelude']}\ndef attack():\n{textwrap.indent(attack['program'], '    ')}\n"
    start = perf_counter()
    result = run_program(session, Program(code, ("assert attack() == 0",), limits))
    stopped = result.outcome in attack["outcomes"] and perf_counter() - start < seconds + 30
    return AttackResult(name, stopped, f"{result.outcome}: {result.detail}")


def attacks() -> list[str]:
    """Return the names of all attacks."""
    return [*REACH, *EXHAUST]


def run_battery(session: Session, names: Sequence[str] | None = None) -> Iterator[AttackResult]:
    """Run attacks one after another; None is all of them."""
    for name in names or attacks():
        yield reach(session, name) if name in REACH else exhaust(session, name)

"""Attacks on this host's own sandbox: what a hostile program would try, and whether it succeeded.

`diffucoder sandbox check` prints the table. The tests run the same attacks, also without
containment, to detect an attack that could not succeed anywhere. Each attack gets its own target: a
folder with a secret, listening sockets, and a process of the same user.
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
from typing import Any

from untrusted.results import Limits, Program
from untrusted.runner import run_program
from untrusted.session import Session
from untrusted.tiers import HARNESS, PACKAGES, hidden, readable

ATTACKS = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))
# Attacks that try to reach something: code by name.
REACH: dict[str, str] = ATTACKS["reach"]
# Attacks that use up a resource, by name: code (`program`), and outcomes that count as stopped.
EXHAUST: dict[str, dict[str, Any]] = ATTACKS["exhaust"]

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
            # Its environment holds the secret, which /proc would show to a process of the same
            # user.
            env={"SECRET": self.secret},
            stdin=subprocess.DEVNULL,
        )
        self.enter_context(self.victim)
        self.callback(self.victim.kill)
        # Abstract sockets have no file: "\0name" is visible to every process in the same network
        # namespace.
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
        """Return the code of an attack on this target; its `attack()` returns what was reached."""
        values = {
            "FOLDER": str(self.folder),
            "SECRET": self.secret,
            "VICTIM": self.victim.pid,
            "TCP": self.listeners["tcp"].getsockname()[1],
            "UDP": self.listeners["udp"].getsockname()[1],
            "ABSTRACT": self.abstract,
            # folders of installed packages: the virtual environment's and the interpreter's
            "SITES": [*hidden(readable({})), *map(sysconfig.get_path, ("purelib", "platlib"))],
            "ALLOWED": [*PACKAGES, *HARNESS],
            "HOST": os.uname().nodename,
        }
        # An attack that does not fill `reached` itself is successful if it runs to its end.
        attempt = (
            body.strip() if "reached" in body else f"{body.strip()}\nreached.append('the end')"
        )
        attack = (
            f"def attack():\n    reached = []\n    try:\n{textwrap.indent(attempt, ' ' * 8)}\n"
            "    except (OSError, AssertionError, ValueError): pass\n    return reached\n"
        )
        return "\n".join(
            [ATTACKS["prelude"], *(f"{name} = {value!r}" for name, value in values.items()), attack]
        )

    def harm(self) -> list[str]:
        """List the traces of a successful attack on the target."""
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
        # The attacks set 77 open files and priority 7, which nothing else does.
        if (
            sys.platform == "linux"
            and resource.prlimit(self.victim.pid, resource.RLIMIT_NOFILE)[0] == 77
        ):
            traces.append("its limits were changed")
        if os.getpriority(os.PRIO_PROCESS, self.victim.pid) == 7:
            traces.append("its priority was changed")
        return traces


def reach(session: Session, name: str) -> AttackResult:
    """Carry out one attack on a new target.

    It must reach nothing, or the kernel must end it for trying.
    """
    with AttackTarget() as target:
        program = Program(
            target.program(REACH[name]), ("assert attack() == []",), Limits(seconds=10)
        )
        result = run_program(session, program)
        # A process that outlives the program needs time to act.
        if "orphan" in name:
            sleep(0.8)
        harm = target.harm()
    stopped = not harm and (result.passed or KILLED_BY_SECCOMP in result.detail)
    return AttackResult(name, stopped, "; ".join([*harm, result.detail]))


def exhaust(session: Session, name: str) -> AttackResult:
    """Carry out one attempt to use up a resource; it must end in time, with a known outcome."""
    attack = EXHAUST[name]
    # If a limit other than time must stop the attack, it has time to reach that limit on a slow host.
    seconds = 1.5 if "timeout" in attack["outcomes"] else 15.0
    limits = Limits(seconds=seconds, memory_bytes=256 * 2**20)
    code = f"{ATTACKS['prelude']}\ndef attack():\n{textwrap.indent(attack['program'], '    ')}\n"
    start = perf_counter()
    result = run_program(session, Program(code, ("assert attack() == 0",), limits))
    stopped = result.outcome in attack["outcomes"] and perf_counter() - start < seconds + 30
    return AttackResult(name, stopped, f"{result.outcome}: {result.detail}")


def attacks() -> list[str]:
    """List every attack by name."""
    return [*REACH, *EXHAUST]


def run_battery(session: Session, names: Sequence[str] | None = None) -> Iterator[AttackResult]:
    """Carry out the attacks one after another."""
    for name in names or attacks():
        yield reach(session, name) if name in REACH else exhaust(session, name)

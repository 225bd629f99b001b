"""The sandbox's own interpreter: forks a confined process per program and per test.

It runs no code of a program or a test and never sees one: a child reads its job from its own socket
after it has been confined, so that no child inherits another's job, and one zygote can serve
program after program. Where no namespace hides what a child must not know of, it answers the
child's calls that name something (`broker`). It is started by `untrusted.session` and imports the
standard library only, as everything in this folder.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import site
import socket
import sys
import time
from typing import Any

from untrusted.inside import program, tester
from untrusted.inside.broker import Broker
from untrusted.inside.channel import Channel
from untrusted.inside.confinement import ACCEPTED, confine, prepare_children, write_rules
from untrusted.inside.deferred import ON_MENTION, tempfile
from untrusted.inside.packages import Packages
from untrusted.inside.usage import MAX_NAMES, NAME_BYTES, WORK_BYTES, names_used, used_bytes
from untrusted.inside.world import World

COLLECT = b"c"
# Packages that start a thread per core, with memory for each, would exceed a program's memory by
# that alone.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
# Seconds between two looks at what the folder holds, at most; at least, however often it grows.
TICK, RECENT = 0.1, 0.01
TOO_MUCH = (
    f"its files have more than {WORK_BYTES // 2**20} MiB together, or are more than {MAX_NAMES}"
)
# Descriptors from here on are out of the way of those that a child gets.
FIRST_SPARE = 100


class Zygote:
    """Serves the parent: programs and tests, each a process of its own.

    Attributes:
        children: the processes that are running.
        strangers: by a descriptor on which each will hand over its calls: processes that are being
            confined.
        brokers: by the descriptor on which they hear: who answers these calls.
        reason: why the processes were ended before the parent said so.
    """

    def __init__(
        self, control: socket.socket, tier: str, readable: list[str], hidden: list[str], folder: str
    ) -> None:
        self.control, self.tier, self.readable, self.folder = control, tier, readable, folder
        self.world = World(readable, hidden, folder) if tier == "landlock" else None
        self.children: list[int] = []
        self.strangers: dict[int, int] = {}
        self.brokers: dict[int, Broker] = {}
        self.rules = -1
        if tier != "unsafe":
            prepare_children()
        if tier == "landlock":
            # Where they cannot be written, each child says so.
            with contextlib.suppress(OSError):
                self.rules = write_rules(readable, folder)
        self.begin()

    def begin(self) -> None:
        """Hear of nobody but the parent; the folder is empty."""
        self.poller = select.poll()
        self.poller.register(self.control, select.POLLIN)
        self.reason, self.used, self.looked = "", 0, time.monotonic()

    def serve(self, packages: dict[str, str]) -> None:
        """Do what the parent says until it closes its end, and answer what the children ask."""
        self.control.sendall(b"ready\n")
        while True:
            for descriptor, event in self.poller.poll(TICK * 1000 if self.children else None):
                if descriptor == self.control.fileno():
                    if not self.obey(packages):
                        return
                elif descriptor in self.strangers:
                    self.introduce(descriptor)
                elif event & select.POLLIN and descriptor in self.brokers:
                    self.brokers[descriptor].answer()
                elif descriptor in self.brokers:
                    self.poller.unregister(descriptor)
            if self.children and not self.reason and not self.may_grow(TICK):
                self.reason = TOO_MUCH
                end(self.children)

    def obey(self, packages: dict[str, str]) -> bool:
        """Carry out one request; tells whether there may be another."""
        request, descriptors, _, _ = socket.recv_fds(self.control, 4096, 5)
        if not request:
            self.collect()
            return False
        if request == COLLECT:
            self.control.sendall(json.dumps(self.collect()).encode() + b"\n")
        else:
            settings = json.loads(request)
            load(settings["load"], packages)
            self.spawn(descriptors, settings)
        return True

    def spawn(self, descriptors: list[int], request: dict[str, Any]) -> None:
        """Fork; the child lives and ends here."""
        near, far = [end.detach() for end in socket.socketpair()] if self.world else (-1, -1)
        child = os.fork()
        if child == 0:
            try:
                self.control.close()
                leave = live(
                    descriptors, [far, self.rules], self.tier, request, self.readable, self.folder
                )
            except BaseException:  # the child must not go on as a second zygote, whatever happened
                os._exit(1)
            if leave is None:
                os._exit(0)
            # The interpreter's own end: it waits for threads, calls what is registered for exit,
            # flushes every file.
            raise leave
        if not self.children:
            self.looked = time.monotonic()
        self.children.append(child)
        for descriptor in (*descriptors, far):
            if descriptor >= 0:
                os.close(descriptor)
        if near >= 0:
            self.strangers[near] = child
            self.poller.register(near, select.POLLIN)

    def introduce(self, descriptor: int) -> None:
        """Take a child's calls over."""
        child = self.strangers.pop(descriptor)
        self.poller.unregister(descriptor)
        assert self.world is not None
        # It may end at any moment.
        with socket.socket(fileno=descriptor) as stranger, contextlib.suppress(ConnectionError):
            _, listeners, _, _ = socket.recv_fds(stranger, 64, 1)
            if not listeners:
                return
            try:
                broker = Broker(listeners[0], child, self.world, self.may_grow)
            except OSError as error:
                os.close(listeners[0])
                stranger.sendall(str(error).encode())
                return
            self.brokers[listeners[0]] = broker
            self.poller.register(listeners[0], select.POLLIN)
            stranger.sendall(ACCEPTED)

    def may_grow(self, seconds: float = RECENT) -> bool:
        """Tell whether the folder may hold more, as of at most some seconds ago."""
        if time.monotonic() - self.looked > seconds:
            # bubblewrap's folder has a size of its own, which counts no file or folder that is
            # empty.
            if self.tier == "bubblewrap":
                self.used = names_used(self.folder) * NAME_BYTES
            else:
                self.used = used_bytes(self.folder, self.children)
            self.looked = time.monotonic()
        return self.used <= WORK_BYTES

    def collect(self) -> dict[str, Any]:
        """End all children and forget what they left; returns their wait statuses and what they
        were ended for.
        """
        end(self.children)
        statuses = [os.waitpid(child, 0)[1] for child in self.children]
        for descriptor in self.strangers:
            os.close(descriptor)
        for broker in self.brokers.values():
            broker.close()
        told = {"statuses": statuses, "reason": self.reason}
        for gone in (self.children, self.strangers, self.brokers):
            gone.clear()
        self.begin()
        empty(self.folder)
        return told


def live(
    descriptors: list[int],
    kept: list[int],
    tier: str,
    request: dict[str, Any],
    readable: list[str],
    folder: str,
) -> SystemExit | None:
    """Live a child's life: keep these descriptors alone, be confined, say so, do one job.

    They are the socket to the parent, standard input, output and error and, if there is one, the
    socket to the other. `kept` are, in the Landlock tier, what leads to who answers calls that name
    something, and its rules; else negative. Returns how a script leaves the interpreter; None for
    other jobs.
    """
    os.setsid()
    os.chdir(folder)
    if tier == "unsafe" or "tempfile" in sys.modules:
        # Elsewhere it is found to be the only one that can be written.
        tempfile.tempdir = folder
    # First out of the way of the numbers they get, as these may be among them.
    high = [
        os.dup2(descriptor, FIRST_SPARE + index) for index, descriptor in enumerate(descriptors)
    ]
    last = FIRST_SPARE + len(high)
    broker, rules = (
        os.dup2(descriptor, last + index) if descriptor >= 0 else -1
        for index, descriptor in enumerate(kept)
    )
    introduction = socket.socket(fileno=broker) if broker >= 0 else None
    targets = (3, 0, 1, 2, 4)[: len(high)]
    for descriptor, target in zip(high, targets, strict=True):
        os.dup2(descriptor, target)
    os.closerange(max(targets) + 1, last)
    os.closerange(max(last, broker + 1, rules + 1), 1024)
    results = Channel(3)
    try:
        if tier == "landlock" and rules < 0:
            rules = write_rules(readable, folder)
        confine(tier, rules, request["memory_bytes"], request["seconds"], introduction)
    except (OSError, ValueError) as error:
        results.send({"refused": str(error)})
        return None
    results.send({"confined": True})
    job = results.receive(limit=-1)
    peer = 4 if 4 in targets else None
    if "script" in job:
        return program.run_script(job["code"], results)
    if "test" in job and peer is not None:
        tester.run(job, results, peer)
    elif "test" in job:
        tester.run_in_one(job, results)
    else:
        program.run(job, results, peer)
    sys.stdout.flush()
    sys.stderr.flush()
    return None


def end(children: list[int]) -> None:
    """End processes, and what they could start where nothing forbids it."""
    for child in children:
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)


def empty(folder: str) -> None:
    """Remove everything in a folder, however deep it lies and whatever its rights are."""
    folders, number = [folder], 0
    while folders:
        path = folders.pop()
        for entry in list(os.scandir(path)):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            # Flat, as no path may become too long; and twice, as a folder of that name may be the
            # program's.
            number += 1
            os.chmod(entry.path, 0o700)
            flat = os.path.join(folder, f"{number}.{os.urandom(8).hex()}")
            os.rename(entry.path, flat)
            folders.append(flat)
        if path != folder:
            os.rmdir(path)


def load(names: list[str], packages: dict[str, str]) -> None:
    """Import what is mentioned once for all children to come: none of them has the time to."""
    for name in names:
        if (name in packages or name in ON_MENTION) and name not in sys.modules:
            importlib.import_module(name)


def main(
    descriptor: int,
    tier: str,
    readable: list[str],
    hidden: list[str],
    folder: str,
    packages: dict[str, str],
) -> None:
    """Serve the parent until it closes its end."""
    # Also of what is made for the children.
    os.umask(0o077)
    sys.meta_path.append(Packages(packages))
    for name in ONE_THREAD:
        # Read by libraries in C, and no part of what a program sees as its environment.
        os.putenv(name, "1")
    # `exit` and `quit`, which programs call: the interpreter was started without its site packages.
    site.setquit()
    Zygote(socket.socket(fileno=descriptor), tier, readable, hidden, folder).serve(packages)
    os._exit(0)

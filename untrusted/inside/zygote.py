"""The sandbox's own interpreter: forks a confined process per program and per test.

The zygote never sees the code of a program or a test. A child reads its job from its own socket
after it has been confined, so no child inherits the job of another, and one zygote serves program
after program. In the Landlock tier, where no namespace hides the rest of the host, the zygote
answers the child's system calls that take a name (`broker`). `untrusted.session` starts it. Like
everything in this folder, it imports the standard library only.
"""

import fcntl
import importlib
import json
import os
import select
import signal
import site
import socket
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from untrusted.inside import program, tester, together
from untrusted.inside.broker import Broker
from untrusted.inside.channel import Channel, Fields
from untrusted.inside.confinement import (
    ACCEPTED,
    address_space,
    confine,
    prepare_children,
    save_address_space,
)
from untrusted.inside.packages import Packages
from untrusted.inside.usage import MAX_NAMES, NAME_BYTES, WORK_BYTES, used_bytes
from untrusted.inside.world import World

# The only request that is not JSON: end the children and report.
COLLECT = b"c"
# Environment variables that prevent libraries from starting a thread per core, whose stacks alone
# would exceed a program's memory.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
# Largest and smallest time in seconds between two measurements of the folder while children run.
TICK = 0.1
RECENT = 0.01
TOO_MUCH = (
    f"its files have more than {WORK_BYTES // 2**20} MiB together, or are more than {MAX_NAMES}"
)
# Granularity in which address space that the zygote has loaded is added to a program's limit.
LOADED_STEP = 2**22
# A child's own descriptors besides 0 to 3; they are first duplicated to numbers from FIRST_SPARE on.
PEER = 4
BROKER = 5
FIRST_SPARE = 100


class Zygote:
    """Serves the parent: starts programs and tests, each in a new process.

    Attributes:
        children: process ids of the running children.

        brokers: the broker of each confined child, by the listener's descriptor.
        used: bytes in the folder when it was last measured; `grown` is an upper bound of the bytes
            added since then.
        reason: why the children were ended before the parent asked for it; empty otherwise.
    """

    def __init__(
        self, control: socket.socket, tier: str, readable: list[str], hidden: list[str], folder: str
    ):
        self.control = control
        self.tier = tier
        self.folder = folder
        # Only Landlock children share the host's namespaces, so only they need a broker.
        self.world = World(readable, hidden, folder) if tier == "landlock" else None
        # Bytes of address space at the start, and an upper bound of those that imports added.
        self.bare = address_space()
        self.loaded = LOADED_STEP
        if tier != "unsafe":
            prepare_children()
        self.begin()

    def begin(self):
        """Reset: no children, an empty folder, and only the parent to listen to."""
        self.children = []

        self.brokers = {}
        self.poller = select.poll()
        self.poller.register(self.control, select.POLLIN)
        self.reason = ""
        self.used = self.grown = 0
        self.looked = monotonic()

    def serve(self):
        """Serve the parent until it closes its end, and answer the children's calls."""
        self.control.sendall(b"ready\n")
        while True:
            # Without children there is nothing to measure, so wait without a limit.
            for descriptor, event in self.poller.poll(TICK * 1000 if self.children else None):
                # a request of the parent
                if descriptor == self.control.fileno():
                    if not self.obey():
                        return

                # a system call of a confined child
                elif event & select.POLLIN and descriptor in self.brokers:
                    self.brokers[descriptor].answer()
                # hang-up: the child has ended; `collect` closes the descriptor
                elif descriptor in self.brokers:
                    self.poller.unregister(descriptor)
            # A child that only writes makes no requests, so measure the folder at every tick.
            if self.children and not self.reason:
                self.measure(TICK)
                if self.used > WORK_BYTES:
                    self.reason = TOO_MUCH
                    end(self.children)

    def obey(self) -> bool:
        """Carry out one request; returns whether there may be another."""
        # At most 5 descriptors come along: results, standard input, output, error, the peer's
        # socket.
        request, descriptors, _, _ = socket.recv_fds(self.control, 4096, 5)
        # End of file: the parent has gone.
        if not request:
            self.collect()
            return False
        if request == COLLECT:
            self.control.sendall(json.dumps(self.collect()).encode() + b"\n")
        else:
            settings = json.loads(request)
            if load(settings["load"]):
                # Rounded up, so that the limit does not reveal which small modules other programs
                # have loaded: 1 MiB and 3 MiB both become 4 MiB.
                self.loaded = max(1, -(-(address_space() - self.bare) // LOADED_STEP)) * LOADED_STEP
            # Modules that other programs have loaded do not count towards the limit.
            settings["memory_bytes"] += self.loaded
            self.spawn(descriptors, settings)
        return True

    def spawn(self, descriptors: list[int], request: Fields):
        """Fork a child for one job; the child lives and ends inside this call."""
        # `near` stays here, `far` goes to the child, which sends its listener over it.
        near, far = socket.socketpair()
        child = os.fork()
        if child == 0:
            try:
                self.control.close()
                near.close()
                leave = self.live(descriptors, far.detach(), request)
            except BaseException:  # in any case, the child must not continue as a second zygote
                os._exit(1)
            if leave is None:
                os._exit(0)
            # The interpreter's own end: it waits for threads, calls what is registered for exit,
            # flushes every file.
            raise leave
        # The zygote goes on here: it remembers the child and closes the child's descriptors.
        if not self.children:
            self.looked = monotonic()
        self.children.append(child)
        for descriptor in descriptors:
            os.close(descriptor)
        far.close()
        # The child may end at any moment.
        with near, suppress(ConnectionError):
            if self.world:
                self.introduce(child, near, self.world)

    def live(self, descriptors: list[int], broker: int, request: Fields) -> SystemExit | None:
        """Run a child: keep only these descriptors, confine the process, report that, do one job.

        Args:
            descriptors: the socket to the parent, standard input, output and error, and the socket to
                the peer if there is one.
            broker: socket to the zygote's broker, for the Landlock tier.
            request: limits of the child.

        Returns the SystemExit of a script; None for other jobs.
        """
        # A new session, so that the whole process group can be killed.
        os.setsid()
        os.chdir(self.folder)
        if self.tier == "unsafe" or "tempfile" in sys.modules:
            # In the other tiers tempfile finds by itself that this is the only writable folder.
            tempfile: Any = importlib.import_module("tempfile")
            tempfile.tempdir = self.folder
        # Results to 3, then standard input, output, error, and the peer.
        wanted: dict[int, int] = dict(zip((3, 0, 1, 2, PEER), descriptors, strict=False))
        has_peer = PEER in wanted
        if self.world:
            wanted[BROKER] = broker
        # Move them out of the way first, as a source may have the number of another's target:
        # sources [0, 5, 6, 7] -> spares [100, 101, 102, 103] -> targets [3, 0, 1, 2]
        spares = {n: fcntl.fcntl(old, fcntl.F_DUPFD, FIRST_SPARE) for n, old in wanted.items()}
        # Close everything else: the spares, and what the zygote holds for itself and other children.
        os.closerange(0, FIRST_SPARE)
        for number, spare in spares.items():
            os.dup2(spare, number)
        os.closerange(FIRST_SPARE, 1024)
        # Confine, and report the outcome either way.
        results = Channel(3)
        try:
            introduction = socket.socket(fileno=BROKER) if self.world else None
            confine(self.tier, request["memory_bytes"], request["seconds"], introduction)
        except (OSError, ValueError) as error:
            results.send({"refused": str(error)})
            return None
        results.send({"confined": True})
        # Only now does the job arrive, in a process that is already confined.
        job = results.receive(limit=-1)
        if "script" in job:
            return program.run_script(job["code"], results)
        if "test" not in job:
            program.run(job, results, PEER if has_peer else None)
        elif has_peer:
            tester.run(job, results, PEER)
        else:
            together.run_in_one(job, results)
        sys.stdout.flush()
        sys.stderr.flush()
        return None

    def introduce(self, child: int, stranger: socket.socket, world: World):
        """Wait for the listener of a child that confines itself, and start a broker for it."""
        _, listeners, _, _ = socket.recv_fds(stranger, 64, 1)
        # Without a descriptor, the child has ended, or could not be confined and has reported it.
        for listener in listeners:
            try:
                self.brokers[listener] = Broker(listener, child, world, self.may_grow)
            # The child waits for this answer; anything but ACCEPTED makes it refuse to run.
            except OSError as error:
                os.close(listener)
                stranger.sendall(str(error).encode())
            else:
                self.poller.register(listener, select.POLLIN)
                stranger.sendall(ACCEPTED)

    def may_grow(self) -> bool:
        """Return whether the folder may get one more file, or more in a file."""
        self.grown += NAME_BYTES
        # Measure only if the folder might be full by now, because that takes long for many files.
        if self.used + self.grown > WORK_BYTES:
            self.measure(RECENT)
        return self.used <= WORK_BYTES

    def measure(self, seconds: float):
        """Measure the folder, unless it was measured less than `seconds` ago."""
        if monotonic() - self.looked > seconds:
            # bubblewrap's folder is a file system of limited size, but that size does not count
            # empty files and folders; so count inodes, also of removed files that are still open.
            if self.tier == "bubblewrap":
                system = os.statvfs(self.folder)
                self.used = (system.f_files - system.f_ffree) * NAME_BYTES
            else:
                self.used = used_bytes(self.folder, self.children)
            self.grown = 0
            self.looked = monotonic()

    def collect(self) -> Fields:
        """End all children and clean up after them.

        Returns their wait statuses, in the order of their start, and the reason if they were ended
        early.
        """
        end(self.children)
        statuses = [os.waitpid(child, 0)[1] for child in self.children]

        for broker in self.brokers.values():
            broker.close()
        report = {"statuses": statuses, "reason": self.reason}
        self.begin()
        # In bubblewrap a program may change the permissions of the folder itself.
        os.chmod(self.folder, 0o700)
        empty(self.folder)
        return report


def end(children: list[int]):
    """Kill processes and their process groups: the unsafe tier lets them start others."""
    for child in children:
        for kill in (os.kill, os.killpg):
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)


def empty(folder: str):
    """Remove everything in a folder, at any depth and whatever its permissions."""
    folders = [folder]
    number = 0
    while folders:
        path = folders.pop()
        for entry in list(os.scandir(path)):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            # Most folders are empty.
            with suppress(OSError):
                os.rmdir(entry.path)
                continue
            # Move each folder directly below `folder`, as a nested path may be too long for the
            # kernel. The random part avoids names that the program may have made.
            number += 1
            os.chmod(entry.path, 0o700)
            flat = os.path.join(folder, f"{number}.{os.urandom(8).hex()}")
            os.rename(entry.path, flat)
            folders.append(flat)
        # Its entries are gone or have been moved, so it is empty now.
        if path != folder:
            os.rmdir(path)


def load(names: list[str]) -> bool:
    """Import the modules that a job mentions, before the fork, so that no child spends time on it.

    Returns whether any module was new.
    """
    before = len(sys.modules)
    for name in names:
        if name not in sys.modules:
            # A package that cannot be imported here fails in the program that imports it.
            with suppress(Exception):
                importlib.import_module(name)
    return len(sys.modules) > before


def main(
    descriptor: int,
    tier: str,
    readable: list[str],
    hidden: list[str],
    folder: str,
    packages: dict[str, str],
):
    """Serve the parent until it closes its end. Entry point of the zygote's process."""
    # Private permissions, also for files that brokers create on behalf of children.
    os.umask(0o077)
    sys.meta_path.append(Packages(packages))
    for name in ONE_THREAD:
        # C libraries read it; `os.environ`, which is what a program sees, does not change.
        os.putenv(name, "1")
    save_address_space()
    # `exit` and `quit`, which programs call, are missing: the interpreter starts without `site`.
    site.setquit()
    Zygote(socket.socket(fileno=descriptor), tier, readable, hidden, folder).serve()
    # Without exit handlers: nothing here needs them.
    os._exit(0)

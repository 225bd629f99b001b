"""The sandbox's own interpreter: forks a confined process per program and per test.

It runs no code of a program or a test and never sees one: a child reads its job from its own socket after it
has been confined, so that no child inherits another's job, and one zygote can serve program after program. It is
started by `jax_lm.sandbox.session` and imports the standard library only, as everything in this folder.
"""

import contextlib
import importlib
import json
import os
import signal
import site
import socket
import sys
import tempfile
from typing import Any

from jax_lm.sandbox.inside import program, tester
from jax_lm.sandbox.inside.channel import Channel
from jax_lm.sandbox.inside.confinement import confine
from jax_lm.sandbox.inside.packages import Packages

COLLECT = b"c"
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Packages that start a thread per core, with memory for each, would exceed a program's memory by that alone."""


def live(
    descriptors: list[int], tier: str, request: dict[str, Any], readable: list[str], folder: str
) -> SystemExit | None:
    """Live a child's life: keep these descriptors alone, be confined, say so, do one job.

    They are the socket to the parent, standard input, output and error and, if there is one, the socket to the other.
    Returns how a script leaves the interpreter; None for other jobs.
    """
    os.setsid()
    os.umask(0o077)
    os.chdir(folder)
    tempfile.tempdir = folder
    # First out of the way of the numbers they get, as these may be among them.
    high = [os.dup2(descriptor, 100 + index) for index, descriptor in enumerate(descriptors)]
    targets = (3, 0, 1, 2, 4)[: len(high)]
    for descriptor, target in zip(high, targets, strict=True):
        os.dup2(descriptor, target)
    os.closerange(max(targets) + 1, 1024)
    results = Channel(3)
    try:
        confine(tier, readable, folder, request["memory_bytes"], request["seconds"])
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
    else:
        program.run(job, results, peer)
    sys.stdout.flush()
    sys.stderr.flush()
    return None


def spawn(control: socket.socket, descriptors: list[int], *settings: Any) -> int:
    """Fork; the child lives and ends here, the zygote gets its process id."""
    child = os.fork()
    if child == 0:
        try:
            control.close()
            leave = live(descriptors, *settings)
        except BaseException:  # the child must not go on as a second zygote, whatever happened
            os._exit(1)
        if leave is None:
            os._exit(0)
        # The interpreter's own end: it waits for threads, calls what is registered for exit, flushes every file.
        raise leave
    for descriptor in descriptors:
        os.close(descriptor)
    return child


def collect(children: list[int]) -> list[int]:
    """End all children, and what they could start where nothing forbids it; returns their wait statuses."""
    for child in children:
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    children.clear()
    return statuses


def empty(folder: str) -> None:
    """Remove everything in a folder, however deep it lies and whatever its rights are."""
    folders, number = [folder], 0
    while folders:
        path = folders.pop()
        for entry in list(os.scandir(path)):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            # Flat, as no path may become too long; and twice, as a folder of that name may be the program's.
            number += 1
            os.chmod(entry.path, 0o700)
            flat = os.path.join(folder, f"{number}.{os.urandom(8).hex()}")
            os.rename(entry.path, flat)
            folders.append(flat)
        if path != folder:
            os.rmdir(path)


def load(names: list[str], packages: dict[str, str]) -> None:
    """Import packages once for all children to come: none of them has the time to."""
    for name in names:
        if name in packages and name not in sys.modules:
            importlib.import_module(name)


def main(descriptor: int, tier: str, readable: list[str], folder: str, packages: dict[str, str]) -> None:
    """Serve the parent until it closes its end."""
    sys.meta_path.append(Packages(packages))
    for name in ONE_THREAD:
        # Read by libraries in C, and no part of what a program sees as its environment.
        os.putenv(name, "1")
    # `exit` and `quit`, which programs call: the interpreter was started without its site packages.
    site.setquit()
    control = socket.socket(fileno=descriptor)
    children: list[int] = []
    control.sendall(b"ready\n")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 4096, 5)
        if request == COLLECT:
            statuses = collect(children)
            empty(folder)
            control.sendall(json.dumps(statuses).encode() + b"\n")
        elif request:
            settings = json.loads(request)
            load(settings["load"], packages)
            children.append(spawn(control, descriptors, tier, settings, readable, folder))
            control.sendall(b"{}\n")
        else:
            collect(children)
            os._exit(0)

"""The sandbox's own interpreter: forks a confined process per program and per test.

It runs no code of a program or a test and never sees one: a child reads its job from its own socket after it
has been confined, so that no child inherits another's job. Imports the standard library only, as
everything in this folder; it is started by `jax_lm.sandbox.session`.
"""

import json
import os
import signal
import socket
import sys
from typing import Any

from jax_lm.sandbox.inside import program, tester
from jax_lm.sandbox.inside.channel import Channel
from jax_lm.sandbox.inside.confinement import confine

SPAWN, COLLECT = b"s", b"c"


def live(descriptors: list[int], settings: dict[str, Any]) -> None:
    """A child's life: keep the given sockets alone, be confined, say so, do one job."""
    # Signals as in any program: the zygote itself ignores nothing, but Ctrl-C is the parent's business.
    kept = [3 + position for position in range(len(descriptors))]
    high = [os.dup2(old, 100 + new) for new, old in zip(kept, descriptors, strict=True)]
    for old, new in zip(high, kept, strict=True):
        os.dup2(old, new, inheritable=False)
    os.closerange(kept[-1] + 1, 1024)
    results = Channel(kept[0])
    try:
        confine(**settings)
    except (OSError, ValueError) as error:
        results.send({"refused": str(error)})
        return
    results.send({"confined": True})
    job = results.receive()
    peer = kept[1] if len(kept) > 1 else None
    if "test" in job and peer is not None:
        tester.run(job, results, peer)
    else:
        program.run(job, results, peer)


def spawn(control: socket.socket, descriptors: list[int], settings: dict[str, Any]) -> int:
    """Fork; the child lives and ends here, the zygote gets its process id."""
    child = os.fork()
    if child == 0:
        try:
            control.close()
            live(descriptors, settings)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # the child must not go on as a second zygote, whatever happened
            os._exit(1)
        os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    return child


def collect(children: list[int]) -> list[int]:
    """End all children; their wait statuses."""
    for child in children:
        os.kill(child, signal.SIGKILL)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    children.clear()
    return statuses


def main(descriptor: int, settings: dict[str, Any]) -> None:
    """Serve the parent until it closes its end."""
    control = socket.socket(fileno=descriptor)
    children: list[int] = []
    control.sendall(b"ready\n")
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if command == SPAWN:
            children.append(spawn(control, descriptors, settings))
            control.sendall(b"{}\n")
        elif command == COLLECT:
            control.sendall(json.dumps(collect(children)).encode() + b"\n")
        else:
            collect(children)
            return

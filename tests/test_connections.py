"""Connections that carry no request: bounded in number and time, so that a crowd of them silences
nobody.
"""

import asyncio
import os
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("uvicorn")

from cases.server import call

from jax_lm.serving.connections import RESERVED, ConnectionLimits, client_of
from jax_lm.serving.engine import Engine
from jax_lm.serving.http import HttpServer, ListenOptions
from jax_lm.serving.queue import JobQueue

HEAD = b"GET /here HTTP/1.1\r\nHost: localhost\r\n"


class Idle(Engine):
    """What a server needs of an engine to stop."""

    def __init__(self):
        self.stopped, self.queue = threading.Event(), JobQueue(1, 1)
        self.preparing = 0

    def refuse_new(self, grace):
        """Nothing to do: a program that is being compiled goes on, and `stopped` is not set."""

    def give_up(self):
        pass


async def application(scope, receive, send):
    """Answers /slow late, /large at length, and everything else at once, when it has the body."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(2)
    body = b"x" * (2**26 if scope["path"] == "/large" else 2)
    length = str(len(body)).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
    )
    await send({"type": "http.response.body", "body": body})


@contextmanager
def listening(**limits):
    """A server with such limits: its address, and its connections."""
    addresses = []
    limits = ConnectionLimits(
        **{"total": 8, "head_seconds": 0.6, "unread_seconds": 0.6, "idle_seconds": 2} | limits
    )
    options = ListenOptions(port=0, grace=60.0, connections=limits)
    server = HttpServer(application, Idle(), options, lambda *address: addresses.append(address))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not addresses:
        time.sleep(0.01)
    try:
        yield addresses[0], server.connections
    finally:
        server.should_exit = True
        # far less than the grace: no job is waiting for the engine
        thread.join(10)
        assert not thread.is_alive()


def test_what_is_being_prepared_is_waited_for():
    engine, ready = Idle(), threading.Event()
    engine.preparing = 1
    options = ListenOptions(port=0, grace=60.0, connections=ConnectionLimits())
    server = HttpServer(application, engine, options, lambda *_: ready.set())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(10)
    server.should_exit = True
    thread.join(2)
    assert thread.is_alive()
    engine.preparing = 0
    thread.join(10)
    assert not thread.is_alive()


@contextmanager
def connected(address, count, sent=HEAD):
    """So many connections, each with those bytes sent."""
    sockets = [socket.create_connection(address, timeout=5) for _ in range(count)]
    try:
        for one in sockets:
            one.sendall(sent)
        time.sleep(0.2)
        yield sockets
    finally:
        for one in sockets:
            one.close()


def is_ended(connection, seconds=0.1):
    """Whether the server has hung up."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_head_has_a_deadline_that_dripping_does_not_move():
    with listening() as (address, _), connected(address, 3) as sockets:
        begin = time.monotonic()
        while time.monotonic() - begin < 3 and not all(is_ended(one, 0.02) for one in sockets):
            for one in sockets:
                with suppress(OSError):
                    one.send(b"x")
        assert 0.3 < time.monotonic() - begin < 2.5


def test_the_head_of_a_second_request_has_one_too():
    with listening() as (address, _), connected(address, 1, HEAD + b"\r\n") as (one,):
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(1.0)
        # It waits between two requests, which is another limit.
        assert not is_ended(one)
        one.sendall(b"GE")
        assert not is_ended(one, 0.3)
        assert is_ended(one, 2)


def test_who_does_not_read_is_dropped():
    with (
        listening() as (address, connections),
        connected(address, 1, HEAD.replace(b"here", b"large") + b"\r\n"),
    ):
        assert len(connections.open) == 1
        until = time.monotonic() + 20
        while connections.open and time.monotonic() < until:
            time.sleep(0.05)
        assert not connections.open
        assert call(address, "GET", "/here")[0] == 200


def test_beyond_the_bound_the_oldest_without_a_request_goes():
    with listening(head_seconds=60.0) as (address, connections):
        busy = HEAD.replace(b"here", b"slow") + b"\r\n"
        with connected(address, 1, busy) as (first,), connected(address, 5) as waiting:
            with connected(address, 2):
                # Six of eight are what one address may have: two of the older ones had to go, not
                # the busy one.
                assert [is_ended(one) for one in waiting] == [True, True, False, False, False]
                assert len(connections.open) == 6
                assert call(address, "GET", "/here")[0] == 200
            first.settimeout(5)
            assert first.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_makes_room_too():
    head = b"POST /here HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
    with listening(head_seconds=60.0) as (address, _), connected(address, 6, head) as waiting:
        assert call(address, "GET", "/here")[0] == 200
        assert is_ended(waiting[0])
        assert not is_ended(waiting[1])


def test_a_length_that_is_no_number_is_refused():
    with listening() as (address, _):
        for length in ("²", "-1", "0x5", "1_0", "9" * 5000):
            head = f"POST /here HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
            with connected(address, 1, head.encode()) as (one,):
                one.settimeout(5)
                assert one.recv(4096).startswith(b"HTTP/1.1 400"), length


def test_when_all_are_busy_the_new_one_goes():
    busy = HEAD.replace(b"here", b"slow") + b"\r\n"
    with listening() as (address, _), connected(address, 6, busy) as sockets:
        with pytest.raises(ConnectionError):
            call(address, "GET", "/here")
        for one in sockets:
            one.settimeout(5)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")


def test_other_addresses_keep_their_room():
    with listening(head_seconds=60.0) as (address, connections), connected(address, 12) as waiting:
        assert len(connections.open) == 6
        others = [socket.create_connection(address, 5, ("127.0.0.2", 0)) for _ in range(2)]
        time.sleep(0.2)
        assert len(connections.open) == 8
        # Full: who comes now takes the place of the oldest, whose ever it is.
        others.append(socket.create_connection(address, 5, ("127.0.0.2", 0)))
        time.sleep(0.2)
        assert len(connections.open) == 8
        assert is_ended(waiting[6])
        assert not any(is_ended(one) for one in others)
        for one in others:
            one.close()


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2::9", 5, 0, 0), "20010db800010002"),
        (("2001:db8:1:2:a::1", 6, 0, 0), "20010db800010002"),
        (("fe80::1%eth0", 6, 0, 2), "fe80000000000000"),
        (None, ""),
        ("", ""),
    ],
)
def test_who_counts_as_one_client(peer, name):
    assert client_of(peer) == name


def test_as_many_as_files_may_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # How many files earlier tests of this process have left open is not known.
    open_files = len(os.listdir("/dev/fd"))
    room = open_files + RESERVED + 100
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
        limits = ConnectionLimits.for_process(None)
        assert 90 < limits.total <= 110
        assert limits.per_address == int(0.75 * limits.total)
        assert ConnectionLimits.for_process(50).total == 50
        with pytest.raises(
            ValueError, match=rf"connections=250: the limit of {room} open files leaves \d+"
        ):
            ConnectionLimits.for_process(250)
        with pytest.raises(ValueError, match="connections=7: must be at least 8"):
            ConnectionLimits.for_process(7)
        little = open_files + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (little, hard))
        with pytest.raises(
            ValueError, match=f"connections=8: the limit of {little} open files leaves 0"
        ):
            ConnectionLimits.for_process(None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("grace", [1.0, 3.0, 30.0, 600.0])
def test_the_parts_of_the_grace_follow_each_other(grace):
    options = ListenOptions(grace=grace, connections=ConnectionLimits())
    assert (
        0
        < options.engine_seconds
        < options.request_seconds
        < options.request_seconds + options.margin
        < grace
    )


def test_a_grace_must_be_long_enough():
    for grace in (0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="grace="):
            ListenOptions(grace=grace, connections=ConnectionLimits())

"""Limits of connections: how many, how long they may idle, and which of them to drop.

uvicorn limits neither number nor time, and the middleware sees a request only once its head is
complete. Knows nothing about the content of requests.
"""

import asyncio
import os
import resource
from dataclasses import dataclass
from ipaddress import IPv6Address

from uvicorn.protocols.http.h11_impl import H11Protocol

# Default and minimum of the number of connections.
MOST = 1024
LEAST = 8
# Connections that the event loop accepts in one go, before it reads from any of them.
ACCEPTED_AT_ONCE = 8
# Connections that wait in the kernel to be accepted.
KERNEL_QUEUE = 1024
# File descriptors kept free for compilations and their cache, and for connections that are being
# accepted or dropped.
RESERVED = 32 + 4 * ACCEPTED_AT_ONCE
# Share of all connections that one address may have; a proxy is one address.
SHARE = 0.75
# Time between two searches for overdue connections.
SWEEP_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        total: number of open connections.
        head_seconds: time for the head of a request: of the first from connecting, of later ones
            from their first byte.
        unread_seconds: time in which a client must read at least some of its answer.
        idle_seconds: time between two requests.
    """

    total: int = MOST
    head_seconds: float = 10.0
    unread_seconds: float = 30.0
    idle_seconds: int = 10

    def __post_init__(self):
        if self.total < LEAST:
            raise ValueError(f"connections={self.total}: must be at least {LEAST}")
        if self.idle_seconds < 1:
            raise ValueError(f"keep_alive={self.idle_seconds}: must be at least 1")

    @property
    def per_address(self) -> int:
        return int(self.total * SHARE)

    @classmethod
    def here(cls, wanted: int | None, idle_seconds: int = 10) -> "ConnectionLimits":
        """Return limits for `wanted` connections, or for as many as this process can have.

        Raises:
            ValueError: the limit of open files leaves fewer connections.
        """
        # files that may still be opened, in addition to those that are open now
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = allowed - len(os.listdir("/dev/fd")) - RESERVED
        total = min(MOST, room) if wanted is None else wanted
        if total > room or room < LEAST:
            raise ValueError(
                f"connections={max(total, LEAST)}: the limit of {allowed} open files leaves "
                f"{max(room, 0)}"
            )
        return cls(total=total, idle_seconds=idle_seconds)


class Connections:
    """All connections of a server, oldest first."""

    def __init__(self, limits: ConnectionLimits):
        self.limits = limits
        self.open: dict[Connection, None] = {}

    def admit(self, new: "Connection") -> None:
        """Accept a connection. Beyond the limits, drop one without a request, or the new one."""
        self.open[new] = None
        # a client is an address: `client_of`
        of_client = [each for each in self.open if each.address == new.address]
        if len(of_client) > self.limits.per_address:
            self.drop_one_of(of_client)
        elif len(self.open) > self.limits.total:
            self.drop_one_of(list(self.open))

    def drop_one_of(self, connections: "list[Connection]") -> None:
        """Drop one of the connections, which are sorted by age.

        In order of preference: the oldest with an incomplete request, the oldest between two
        requests, the newest.
        """
        # oldest first; requests that are being answered are never dropped
        *others, newest = connections
        others = (each for each in others if not each.is_answered)
        # a client that sends slowly is dropped before one that is between two requests
        self.drop(min(others, key=lambda each: each.is_idle, default=newest))

    def drop(self, connection: "Connection") -> None:
        """Close a connection at once. Unread data on either side is lost."""
        self.open.pop(connection, None)
        connection.transport.abort()

    async def sweep_forever(self) -> None:
        """Drop connections that are overdue, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for connection in list(self.open):
                if connection.is_overdue(connection.loop.time(), self.limits):
                    self.drop(connection)


class Connection(H11Protocol):
    """A connection of uvicorn that measures how long it has been waiting for its client."""

    def __init__(self, connections: Connections, **arguments):
        super().__init__(**arguments)
        # not `connections`, which is uvicorn's own set
        self.all_connections = connections
        self.address = ""
        self.waiting_since = self.unread_since = 0.0
        self.unread = 0

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.waiting_since, self.address = (
            self.loop.time(),
            client_of(transport.get_extra_info("peername")),
        )
        self.all_connections.admit(self)

    def data_received(self, data: bytes) -> None:
        # first byte of the next request: the time for its head begins
        if self.is_idle:
            self.waiting_since = self.loop.time()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.all_connections.open.pop(self, None)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether it is between two requests, when uvicorn's own timer limits it."""
        return self.timeout_keep_alive_task is not None

    @property
    def has_head(self) -> bool:
        """Whether it has the whole head of a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_answered(self) -> bool:
        """Whether it has a whole request, which is being answered."""
        return self.has_head and (self.cycle.response_started or not self.cycle.more_body)

    def is_overdue(self, now: float, limits: ConnectionLimits) -> bool:
        """Return whether the client takes too long to send a request or to read its answer."""
        # bytes that the client has not read; any progress starts the time anew
        unread = self.transport.get_write_buffer_size()
        if unread != self.unread or not unread:
            self.unread = unread
            self.unread_since = now
        if now - self.unread_since > limits.unread_seconds:
            return True
        # the head of a request is incomplete for too long
        return (
            not (self.has_head or self.is_idle or unread)
            and now - self.waiting_since > limits.head_seconds
        )


def client_of(peer) -> str:
    """Return a name of the client: its address, or for IPv6 its /64 network, usually one client."""
    # "2001:db8::1%eth0" -> 20010db800000000; "192.0.2.1" stays
    address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    return IPv6Address(address.partition("%")[0]).packed[:8].hex() if ":" in address else address

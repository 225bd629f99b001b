"""Limits on connections: how many there may be, how long they may idle, and which ones to drop.

uvicorn limits neither their number nor their time, and the middleware sees a request only once its
head is complete. Knows nothing about the content of requests.
"""

import asyncio
import os
import resource
from dataclasses import dataclass
from ipaddress import IPv6Address

from uvicorn.protocols.http.h11_impl import H11Protocol

# Default and minimum of the number of connections.
DEFAULT_CONNECTIONS = 1024
MIN_CONNECTIONS = 8
# Connections that the event loop accepts in one go, before it reads from any of them.
ACCEPTED_AT_ONCE = 8
# Connections that wait in the kernel to be accepted.
KERNEL_QUEUE = 1024
# File descriptors kept free for compilations and their cache, and for connections that are being
# accepted or dropped.
RESERVED = 32 + 4 * ACCEPTED_AT_ONCE
# Share of all connections that one address may have. It is large, as a proxy is one address.
ADDRESS_SHARE = 0.75
# Time between two searches for overdue connections.
SWEEP_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on connections.

    Attributes:
        total: largest number of open connections.
        head_seconds: time for the head of a request. It begins with the connection for the first
            request, and with the first byte for later ones.
        unread_seconds: time in which a client must read at least some of its answer.
        idle_seconds: longest time between two requests.
    """

    total: int = DEFAULT_CONNECTIONS
    head_seconds: float = 10.0
    unread_seconds: float = 30.0
    idle_seconds: int = 10

    def __post_init__(self):
        if self.total < MIN_CONNECTIONS:
            raise ValueError(f"connections={self.total}: must be at least {MIN_CONNECTIONS}")
        if self.idle_seconds < 1:
            raise ValueError(f"keep_alive={self.idle_seconds}: must be at least 1")

    @property
    def per_address(self) -> int:
        return int(self.total * ADDRESS_SHARE)

    @classmethod
    def for_process(cls, wanted: int | None, idle_seconds: int = 10) -> "ConnectionLimits":
        """Return the limits of connections that this process can have open.

        Args:
            wanted: number of connections; None is `DEFAULT_CONNECTIONS`, or as many as the limit on
                open files leaves.
            idle_seconds: longest time between two requests.

        Raises:
            ValueError: the limit on open files leaves fewer connections than wanted.
        """
        # Each connection is an open file, in addition to those that are open now.
        file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = file_limit - len(os.listdir("/dev/fd")) - RESERVED
        total = min(DEFAULT_CONNECTIONS, room) if wanted is None else wanted
        if total > room or room < MIN_CONNECTIONS:
            raise ValueError(
                f"connections={max(total, MIN_CONNECTIONS)}: the limit of {file_limit} open files "
                f"leaves {max(room, 0)}"
            )
        return cls(total=total, idle_seconds=idle_seconds)


class Connections:
    """All connections of a server, oldest first."""

    def __init__(self, limits: ConnectionLimits):
        self.limits = limits
        self.open: dict[Connection, None] = {}

    def admit(self, new: "Connection"):
        """Accept a connection. Beyond the limits, drop one without a request, or the new one."""
        self.open[new] = None
        same_client = [each for each in self.open if each.address == new.address]
        if len(same_client) > self.limits.per_address:
            self.drop_one_of(same_client)
        elif len(self.open) > self.limits.total:
            self.drop_one_of(list(self.open))

    def drop_one_of(self, connections: "list[Connection]"):
        """Drop one of the connections, which are given oldest first.

        This is the oldest one with an incomplete request, else the oldest one between two requests,
        else the newest one. An older request that is being answered is never dropped.
        """
        *older, newest = connections
        droppable = (each for each in older if not each.is_being_answered)
        # `min` returns the oldest connection that is not idle, or the oldest one if all are idle.
        self.drop(min(droppable, key=lambda each: each.is_idle, default=newest))

    def drop(self, connection: "Connection"):
        """Close a connection at once. Unread data on either side is lost."""
        self.open.pop(connection, None)
        connection.transport.abort()

    async def sweep_forever(self):
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
        # Not named `connections`, which is uvicorn's own set.
        self.all_connections = connections
        self.address = ""
        self.waiting_since = self.unread_since = 0.0
        self.unread = 0

    def connection_made(self, transport):
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self.address = client_of(transport.get_extra_info("peername"))
        self.all_connections.admit(self)

    def data_received(self, data: bytes):
        # The first byte of the next request begins the time for its head.
        if self.is_idle:
            self.waiting_since = self.loop.time()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None):
        self.all_connections.open.pop(self, None)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether it is between two requests; uvicorn's own timer limits that time."""
        return self.timeout_keep_alive_task is not None

    @property
    def has_head(self) -> bool:
        """Whether it has received the whole head of a request that is not fully answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_being_answered(self) -> bool:
        """Whether it has received a whole request, or the beginning of its answer was sent."""
        return self.has_head and (self.cycle.response_started or not self.cycle.more_body)

    def is_overdue(self, now: float, limits: ConnectionLimits) -> bool:
        """Return whether the client takes too long to send a request or to read its answer.

        This also notes when the client last read something, so it must be called regularly.
        """
        # The bytes that the client has not read. Any progress restarts the time.
        unread = self.transport.get_write_buffer_size()
        if unread != self.unread or not unread:
            self.unread = unread
            self.unread_since = now
        if now - self.unread_since > limits.unread_seconds:
            return True
        # Has the head of a request been incomplete for too long?
        return (
            not (self.has_head or self.is_idle or unread)
            and now - self.waiting_since > limits.head_seconds
        )


def client_of(peer) -> str:
    """Return a name of the client: its IPv4 address, or its IPv6 /64 network.

    One client can usually choose any address of a /64 network.
    """
    # "2001:db8::1%eth0" -> 20010db800000000; "192.0.2.1" stays
    address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    return IPv6Address(address.partition("%")[0]).packed[:8].hex() if ":" in address else address

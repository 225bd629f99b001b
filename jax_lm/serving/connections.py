"""Connections before anything of a request is known: how many, how long, and who has to go when there is no room.

uvicorn bounds neither; the guard sees a request only when its head is complete. Knows nothing of what is asked.
"""

import asyncio
import os
import resource
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST, LEAST = 1024, 8
ACCEPTED_AT_ONCE = 8
"""Connections that the event loop takes in a go, before it looks at any of them."""
KERNEL_QUEUE = 1024
"""Connections that wait in the kernel to be taken."""
RESERVED = 32 + 4 * ACCEPTED_AT_ONCE
"""Descriptors kept free: for compilations and their cache, and for connections that are on their way in or out."""
SHARE = 0.75
"""Of all connections, how many one address may have: a proxy in front is one address."""
SWEEP_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Bounds of connections.

    Attributes:
        total: open at once.
        head_seconds: time for the head of a request, from the connection or from its first byte.
        unread_seconds: time in which a client must take at least some of what it is sent.
        idle_seconds: time between two requests.
    """

    total: int = MOST
    head_seconds: float = 10.0
    unread_seconds: float = 30.0
    idle_seconds: int = 10

    def __post_init__(self) -> None:
        if self.total < LEAST:
            raise ValueError(f"connections={self.total}: must be at least {LEAST}")

    @property
    def per_address(self) -> int:
        return int(self.total * SHARE)

    @classmethod
    def here(cls, wanted: int | None) -> "ConnectionLimits":
        """As many as were asked for, else as many as this process may open; ValueError if it may not open them."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = allowed - len(os.listdir("/dev/fd")) - RESERVED
        total = min(MOST, room) if wanted is None else wanted
        if total > room or room < LEAST:
            raise ValueError(
                f"connections={max(total, LEAST)}: the limit of {allowed} open files leaves {max(room, 0)}"
            )
        return cls(total=total)


class Connections:
    """All connections of a server, the oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open: dict[Connection, None] = {}

    def admit(self, new: "Connection") -> None:
        """Take a connection; beyond the bounds another goes that carries no request, or this one if there is none."""
        self.open[new] = None
        own = [each for each in self.open if each.address == new.address]
        if len(own) > self.limits.per_address:
            self.drop_one_of(own, new)
        elif len(self.open) > self.limits.total:
            self.drop_one_of(list(self.open), new)

    def drop_one_of(self, crowd: "list[Connection]", new: "Connection") -> None:
        """Drop the oldest that has not sent a whole request; else one between two requests; else the new one."""
        others = [each for each in crowd if each is not new and not each.is_answered]
        chosen = next((each for each in others if not each.is_idle), others[0] if others else new)
        self.drop(chosen)

    def drop(self, connection: "Connection") -> None:
        """End a connection at once, whatever has not been read of it or by it."""
        self.open.pop(connection, None)
        connection.transport.abort()

    def sweep(self, now: float) -> None:
        """Drop those whose time is over."""
        for connection in list(self.open):
            if connection.is_overdue(now, self.limits):
                self.drop(connection)

    async def sweep_for_ever(self) -> None:
        """Sweep now and then; meant to be cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(asyncio.get_running_loop().time())


class Connection(H11Protocol):
    """uvicorn's connection, which knows how long it has been waiting for what."""

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.others, self.address = connections, ""
        self.begun = self.unread_since = 0.0
        self.unread = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.begun, self.address = self.loop.time(), neighbourhood(transport.get_extra_info("peername"))
        self.others.admit(self)

    def data_received(self, data: bytes) -> None:
        if self.is_idle:
            self.begun = self.loop.time()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.open.pop(self, None)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether it waits between two requests; uvicorn's own timer ends it then."""
        return self.timeout_keep_alive_task is not None

    @property
    def has_head(self) -> bool:
        """Whether the head of a request is complete that has no answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_answered(self) -> bool:
        """Whether a whole request is here that is being answered."""
        return self.has_head and (self.cycle.response_started or not self.cycle.more_body)

    def is_overdue(self, now: float, limits: ConnectionLimits) -> bool:
        """Whether the client takes too long, to say what it wants or to read what it is told."""
        unread = self.transport.get_write_buffer_size()
        if unread != self.unread or not unread:
            self.unread, self.unread_since = unread, now
        if now - self.unread_since > limits.unread_seconds:
            return True
        return not (self.has_head or self.is_idle or unread) and now - self.begun > limits.head_seconds


def neighbourhood(peer: Any) -> str:
    """Name the client that an address stands for: of IPv6, the network that one client is usually given (/64)."""
    address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    return IPv6Address(address.partition("%")[0]).packed[:8].hex() if ":" in address else address

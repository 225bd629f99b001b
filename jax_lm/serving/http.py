"""uvicorn with limits on connections, and with a shutdown that answers every request.

    options = ListenOptions(port=8000, connections=ConnectionLimits.for_process(None))
    HttpServer(app, engine, options, announce=print).run()

Knows nothing about the content of requests.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Any

import uvicorn

from jax_lm.serving import connections
from jax_lm.serving.engine import Engine


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Where a server listens, and how long it may take to stop.

    Attributes:
        host: address or name.
        port: 0 takes a free port.
        grace: seconds from the signal to the end of the process; a supervisor must wait longer
            before it kills the process. Sequences are ended after `engine_seconds`, and requests
            whose sequences are still on the device are answered after `request_seconds`. The
            remaining time is for clients that read slowly and threads that end late.
        connections: limits of connections.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grace: float = 30.0
    connections: connections.ConnectionLimits

    def __post_init__(self):
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port}: must lie in [0, 65535]")
        if not 1 <= self.grace < inf:
            raise ValueError(f"grace={self.grace}: must be at least 1")

    @property
    def margin(self) -> float:
        # A grace of 30 s has a margin of 2 s: sequences end after 22 s and requests after 24 s, and
        # 6 s are left for slow clients.
        return min(2.0, self.grace / 8)

    @property
    def engine_seconds(self) -> float:
        """Seconds after which sequences are ended."""
        return self.grace - 4 * self.margin

    @property
    def request_seconds(self) -> float:
        """Seconds after which requests are answered even if the device still works on them."""
        return self.grace - 3 * self.margin


def require_free_address(host: str, port: int):
    """Raise ValueError unless a server can listen on an address.

    This is called before the model is loaded, so that a mistake is reported early.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Bind each address for a moment, and release it again.
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        advice = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise ValueError(
            f"host={host}, port={port}: nothing can listen there ({error.strerror}){advice}"
        ) from error


class HttpServer(uvicorn.Server):
    """Serves an application until it is stopped.

    Args:
        app: the application.
        engine: the engine of the application, which is closed when the server stops.
        options: where to listen, and how to end.
        announce: called with host and port of each address, once the server listens there.
    """

    def __init__(
        self, app, engine: Engine, options: ListenOptions, announce: Callable[[str, int], None]
    ):
        self.engine = engine
        self.options = options
        self.announce = announce
        self.connections = connections.Connections(options.connections)
        protocol: Any = partial(connections.Connection, self.connections)
        config = uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            loop="asyncio",
            http=protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            backlog=connections.ACCEPTED_AT_ONCE,
            timeout_keep_alive=options.connections.idle_seconds,
            # uvicorn takes whole seconds.
            timeout_graceful_shutdown=ceil(options.margin),
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None):
        await super().startup(sockets)
        # Raise the length of the kernel's queue: uvicorn passes `backlog` also to asyncio, which
        # accepts that many connections at once. `listen` on a duplicate changes the same socket.
        for listener in [listener for server in self.servers for listener in server.sockets]:
            with listener.dup() as duplicate:
                duplicate.listen(connections.KERNEL_QUEUE)
            self.announce(*listener.getsockname()[:2])
        self.sweeping = asyncio.create_task(self.connections.sweep_forever())

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop: after a signal, or because the engine has stopped."""
        return await super().on_tick(counter) or self.engine.stopped.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None):
        """Refuse new requests while sequences end, then accept no more connections and stop."""
        # 1. Refuse new requests, and wait for the sequences and for those that hear of a refusal.
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.options.request_seconds
        engine = self.engine
        engine.refuse_new(self.options.engine_seconds)
        while (engine.queue.jobs or engine.preparing) and loop.time() < deadline:
            if engine.stopped.is_set() or self.force_exit:
                break
            await asyncio.sleep(0.05)
        # 2. End the jobs that the device still works on.
        engine.give_up()
        # 3. Let uvicorn shut down, with a limit for clients that read slowly.
        timer = loop.call_later(self.options.margin / 2, self.drop_all)
        await super().shutdown(sockets)
        timer.cancel()
        self.sweeping.cancel()

    def drop_all(self):
        """Drop the connections of clients that have not read their answers yet."""
        for connection in list(self.connections.open):
            self.connections.drop(connection)

"""One JSON message per line over a socket. Imports the standard library only."""

import json
import socket
from typing import Any

Fields = dict[str, Any]
"""Values by name: a message, a job, an answer or a namespace."""

# Largest message between program and tester in bytes. The parent accepts less (`wire.MAX_MESSAGE`).
MAX_MESSAGE = 64 * 2**20


# Checking for cycles takes time, and none can occur, because a container is sent once per message.
ENCODER = json.JSONEncoder(check_circular=False)


class ChannelEndError(BaseException):
    """Raised if the process at the other end has ended. Not an Exception: no test may catch it."""


class Channel:
    """Sends and receives messages; raises ChannelEndError if the other side has ended."""

    def __init__(self, descriptor: int):
        self.socket = socket.socket(fileno=descriptor)
        self.lines = self.socket.makefile("rb")

    def send(self, message):
        data = ENCODER.encode(message).encode() + b"\n"
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise ChannelEndError("the other side has ended") from error

    def receive(self, limit: int = MAX_MESSAGE) -> Any:
        """Wait for the next message; raises ChannelEndError beyond `limit` bytes (-1: no limit)."""
        line = self.lines.readline(limit)
        # Cut off: by the limit, or because the sender has ended.
        if not line.endswith(b"\n"):
            raise ChannelEndError("the other side has ended")
        return json.loads(line)

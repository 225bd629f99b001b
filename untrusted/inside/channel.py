"""One JSON message per line over a socket. Imports the standard library only."""

import json
import socket
from typing import Any

# Bytes that program and tester may say at once; both are held to the memory of a program. The
# parent takes less.
MAX_MESSAGE = 64 * 2**20


ENCODER = json.JSONEncoder(check_circular=False)


class ChannelEndError(BaseException):
    """The process at the other end has ended, which no test may take for an answer."""


class Channel:
    """Sends and receives messages; the end of the other side is a ChannelEndError."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.lines = self.socket.makefile("rb")

    def send(self, message: Any) -> None:
        data = ENCODER.encode(message).encode() + b"\n"
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise ChannelEndError("the other side has ended") from error

    def receive(self, limit: int = MAX_MESSAGE) -> Any:
        """Wait for the next message; one that is longer than `limit` (-1: none) is one too."""
        line = self.lines.readline(limit)
        if not line.endswith(b"\n"):
            raise ChannelEndError("the other side has ended")
        return json.loads(line)

"""Run programs on another machine: a worker that listens on HTTP, and its client.

    DIFFUCODER_SANDBOX_TOKEN=… diffucoder sandbox serve --port 8700

- `POST /run` takes `{"jobs": [{"code", "tests", "limits"}, …]}`, optionally with `packages` and
  `same_process`, and answers `{"results": […]}`, or 503 if the queue is full.
- `GET /health` answers the tier and the number of programs that are queued or running.

Both need the token as a bearer token. It is read from the environment, compared in constant time
and never printed. There is no encryption: across machines, put the worker behind a proxy or a
tunnel.
"""

import hmac
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock

from untrusted.printable import printable
from untrusted.results import (
    Cancel,
    Connection,
    Executor,
    Program,
    Programs,
    Results,
    read_request,
    read_results,
    results_text,
    sandbox_errors,
)
from untrusted.runner import Local
from untrusted.tiers import Packages

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "DIFFUCODER_SANDBOX_TOKEN"
# Characters of a token, bytes of a request, open connections.
MIN_TOKEN = 16
MAX_BODY = 32 * 2**20
MAX_CONNECTIONS = 64


@dataclass(frozen=True)
class Settings:
    """Settings of `Local` that a request may choose; None leaves a setting to the worker."""

    packages: Packages | None = None
    same_process: bool = False


def token_from_environment() -> str:
    """Read the shared secret; raises ValueError if it is missing or too short."""
    # A mounted secret often ends with a line break.
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if len(token) < MIN_TOKEN:
        raise ValueError(f"{TOKEN_VARIABLE}: set it to a secret of at least {MIN_TOKEN} characters")
    return token


class Worker(ThreadingHTTPServer):
    """The server: a pool of sandboxes behind a bounded queue.

    Args:
        address: host and port; port 0 chooses a free one.
        local: runs the programs. A request may choose among its packages, by default all.
        queue_size: most programs that are accepted and not finished; more are refused with 503.

    Attributes:
        tier: how strictly this host contains programs.
        accepted: number of programs that are accepted and not finished.
        stack: closes the pool of sandboxes.
    """

    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], local: Local, queue_size: int = 256):
        if queue_size < 1:
            raise ValueError(f"queue_size={queue_size}: must be at least 1")
        self.token = token_from_environment().encode()
        self.local = local
        # Before the port is opened: a host that cannot contain programs must not listen.
        self.tier = local.choose_tier()
        # Made first: if the address is in use, the next line calls `server_close`, which needs it.
        self.stack = ExitStack()
        super().__init__(address, Handler)
        self.sandboxes = self.stack.enter_context(local.connect())
        self.queue_size = queue_size
        self.accepted = 0
        self.lock = Lock()
        self.connections = BoundedSemaphore(MAX_CONNECTIONS)

    def reserve(self, count: int) -> bool:
        """Reserve queue slots; returns False if too few are free."""
        with self.lock:
            if self.accepted + count > self.queue_size:
                return False
            self.accepted += count
            return True

    def release(self, count: int):
        """Return reserved queue slots."""
        with self.lock:
            self.accepted -= count

    def verify_request(self, request, client_address) -> bool:
        """Return False, which refuses the connection, beyond the limit: each has a thread."""
        return self.connections.acquire(blocking=False)

    def process_request(self, request, client_address):
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started, so none releases it
            self.connections.release()
            raise

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            # The counterpart of `verify_request`, whatever happened in between.
            self.connections.release()

    def server_close(self):
        super().server_close()
        self.stack.close()


class Handler(BaseHTTPRequestHandler):
    """One connection to the worker."""

    server: Worker  # pyright: ignore[reportIncompatibleVariableOverride]
    # Seconds that a client may stay silent. The base class reads these four.
    timeout = 30.0
    protocol_version = "HTTP/1.1"
    server_version = "diffucoder"
    sys_version = ""

    def do_GET(self):
        if self.is_admitted("/health"):
            health = {"tier": self.server.tier, "accepted": self.server.accepted}
            self.respond(200, json.dumps(health))

    def do_POST(self):
        # Checks in the order of their cost: token, path, body, queue.
        if not self.is_admitted("/run"):
            return
        try:
            programs, local = self.read_request()
        except ValueError as error:
            return self.refuse(400, str(error))
        if len(programs) > self.server.queue_size:
            return self.refuse(
                413, f"{len(programs)} jobs: at most {self.server.queue_size}, the worker's --queue"
            )
        if not self.server.reserve(len(programs)):
            return self.refuse(503, "the queue is full")
        # Run all jobs; the answer waits for the last one.
        try:
            answer = results_text(local.run_many(programs, connection=self.server.sandboxes))
        except Exception as error:  # whatever failed is the worker's fault, not the client's
            logger.exception("a request failed")
            return self.refuse(500, type(error).__name__)
        finally:
            self.server.release(len(programs))
        self.respond(200, answer)

    def is_admitted(self, path: str) -> bool:
        """Return whether a request has the token and this path; answer it with 401 or 404 if not."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token):
            self.refuse(401, "the token is missing or wrong")
        elif self.path != path:
            self.refuse(404, f"no such path: {self.path}")
        else:
            return True
        return False

    def read_request(self) -> tuple[tuple[Program, ...], Local]:
        """Return the programs of a request, and the executor to run them."""
        length = self.headers.get("Content-Length", "")
        # Checked before reading: the length decides how much memory the body takes.
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
            raise ValueError(f"Content-Length={length!r}: must be a number up to {MAX_BODY}")
        programs, settings = read_request(self.rfile.read(int(length)), Settings)
        local = self.server.local
        packages = local.packages if settings.packages is None else settings.packages
        if unknown := sorted(set(packages) - set(local.packages)):
            raise ValueError(f"packages={unknown!r:.80}: must be among {', '.join(local.packages)}")
        return programs, replace(local, packages=packages, same_process=settings.same_process)

    def refuse(self, status: int, reason: str):
        self.respond(status, json.dumps({"error": reason}))

    def respond(self, status: int, text: str):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "1")
        if status != 200 or self.close_connection:
            # The base class then closes the connection. A refused request may have an unread body,
            # which would otherwise be read as the next request.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args):
        # A request line may hold escape sequences, which a terminal would obey.
        logger.info("%s", printable(format % args))


@dataclass(frozen=True, kw_only=True)
class HttpWorkers(Executor):
    """Runs programs on workers.

    The workers take the batches in turn. A batch that fails goes to the next worker.

    Attributes:
        urls: addresses of the workers, such as http://127.0.0.1:8700.
        timeout: seconds that a worker may take to answer a batch.
    """

    attempts: int = 4
    urls: tuple[str, ...]
    timeout: float = 900.0

    def __post_init__(self):
        if not self.urls or not all(url.startswith(("http://", "https://")) for url in self.urls):
            raise ValueError(
                f"urls={self.urls!r}: must be addresses that start with http:// or https://"
            )
        super().__post_init__()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        # Two batches per worker: one runs while the next one waits there.
        yield token_from_environment(), 2 * len(self.urls)

    def send(self, client: str, programs: Programs, turn: int, cancel: Cancel) -> Results:
        body = self.request_text(programs).encode()
        half = len(programs) // 2
        if len(body) > MAX_BODY:
            if half == 0:
                detail = f"{len(body)} bytes with its tests: a worker takes {MAX_BODY}"
                return sandbox_errors(programs, detail)
            # Too large for one request: send it in halves, down to single programs.
            first = self.send(client, programs[:half], turn, cancel)
            return first + self.send(client, programs[half:], turn, cancel)
        # Batch 1 with two workers: the second one, and after a failure the first.
        url = self.urls[turn % len(self.urls)]
        headers = {"Authorization": f"Bearer {client}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url.rstrip('/')}/run", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return read_results(answer.read(), programs)
        except urllib.error.HTTPError as error:
            said = ""
            # The explanation may be cut off, and is not worth losing the status for.
            with error, suppress(OSError, HTTPException):
                said = printable(error.read(1000).decode("utf-8", "replace"))
            reason = f"{url} answered {error.code} {said} ({error.reason})"
            # The request is wrong, so that another attempt would fail too.
            if error.code in (400, 413):
                raise ValueError(reason) from error
            if error.code in (401, 404):
                raise ValueError(f"{reason}: check the address and {TOKEN_VARIABLE}") from error
            raise OSError(reason) from error
        except (OSError, HTTPException) as error:
            raise OSError(f"{url}: {error}") from error

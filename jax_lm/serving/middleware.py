"""The middleware before every endpoint: limits, keys, hosts, request ids, headers, access log.

Plain ASGI around the application. Knows nothing about the content of requests.
"""

import asyncio
import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jax_lm.config import Fields, Texts
from jax_lm.serving.errors import Refusal
from jax_lm.serving.ignored_fields import IGNORED, Ignored
from jax_lm.serving.metrics import Metrics
from jax_lm.serving.page_files import PAGE_FILES

logger = logging.getLogger("jax_lm.serving.access")

# Number of characters of the shortest key.
MIN_KEY_LENGTH = 16
# A secret (ASCII, as headers are), then optionally a label and requests per minute. "KEY 60" is
# refused, because 60 would be the label, but is probably meant as a limit.
KEY_LINE = re.compile(
    rf"(?P<secret>[!-~]{{{MIN_KEY_LENGTH},}})"
    r"(\s+(?P<label>(?!\d+$)\S+)(\s+(?P<rate>[1-9][0-9]*))?)?"
)
# A body that is too long is read up to this multiple of the limit before it is refused.
READ_BEYOND = 8
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Paths that need no key.
OPEN_PATHS = (*PAGE_FILES, "/health", "/ready")
# Paths that monitoring calls every few seconds.
PROBES = ("/health", "/ready", "/metrics")
# Request ids that clients may choose; others are replaced, because ids are written to the log.
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Format of the header `traceparent`, by which a trace names a request (W3C Trace Context).
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# Headers of every answer: the page may load only files of this server.
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits that every request must meet.

    Attributes:
        keys: API keys, one of which must be sent as a bearer token; empty if none is needed. Each
            may be followed by a label, and by the requests that it may send per minute.
        hosts: host names that the server answers for; empty for any. This prevents DNS rebinding: a
            web page whose own host name resolves to 127.0.0.1 gets no answer.
        body_bytes: length of the longest body.
        body_seconds: time that a body may take to arrive.
        requests: largest number of requests in progress.
        is_lenient: ignore unknown fields, and list them in a header of the answer.
    """

    keys: Texts = ()
    hosts: Texts = LOOPBACK
    body_bytes: int = 2**20
    body_seconds: float = 20.0
    requests: int = 256
    is_lenient: bool = False


class Key:
    """An API key: the digest of its secret, its label, and its remaining requests.

    Args:
        line: the secret, optionally a label for logs and metrics, and then optionally the requests
            per minute.
        number: number of the line in the key file; a key without a label is named after it.

    Raises:
        ValueError: the line is not a key; the message does not show it, as it may be a secret.
    """

    def __init__(self, line: str, number: int):
        match = KEY_LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"line {number}: must be a key of at least {MIN_KEY_LENGTH} ASCII characters, "
                "alone, with a label (KEY alice), or with a label and requests per minute "
                "(KEY alice 60)"
            )
        self.digest = digest_of(match["secret"])
        self.label = match["label"] or f"key{number}"
        self.rate = int(match["rate"] or 0)
        self.remaining = float(self.rate)
        self.counted_at = monotonic()

    def take(self, headers: dict[str, str]):
        """Count a request, and write the rate limit headers of its answer.

        Raises:
            Refusal: the key has no requests left at the moment.
        """
        if not self.rate:
            return
        # A token bucket: with 60 per minute, it gains one request each second, up to 60.
        now = monotonic()
        self.remaining = min(self.rate, self.remaining + (now - self.counted_at) * self.rate / 60)
        self.counted_at = now
        is_over = self.remaining < 1
        self.remaining -= not is_over
        headers |= {
            "x-ratelimit-limit-requests": str(self.rate),
            "x-ratelimit-remaining-requests": str(int(self.remaining)),
            "x-ratelimit-reset-requests": f"{(self.rate - self.remaining) * 60 / self.rate:.0f}s",
        }
        if is_over:
            raise Refusal(
                429,
                f"this key may send {self.rate} requests per minute",
                code="rate_limit_exceeded",
                retry_after=math.ceil((1 - self.remaining) * 60 / self.rate),
            )


def read_keys(path: Path) -> Texts:
    """Read the lines of a key file.

    Raises:
        ValueError: the file cannot be read or has no key, or a line is not a key.
    """
    try:
        # Some editors begin a file with a byte order mark.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        keys = parse_keys(lines)
    except (OSError, ValueError) as problem:
        raise ValueError(f"api_key_file={str(path)!r} cannot be read: {problem}") from problem
    if not keys:
        raise ValueError(f"api_key_file={str(path)!r}: must hold keys, one per line")
    return tuple(lines)


def parse_keys(lines: Sequence[str]) -> dict[bytes, Key]:
    """Parse the lines of a key file. Returns the keys by digest.

    Empty lines and lines that begin with # are skipped.

    Raises:
        ValueError: a line is not a key, or repeats an earlier one.
    """
    keys = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            key = Key(line, number)
            if keys.setdefault(key.digest, key) is not key:
                raise ValueError(f"line {number}: repeats the key of an earlier line")
    return keys


def digest_of(secret: str) -> bytes:
    """Return the digest by which a key is found.

    The time of a lookup by digest does not reveal how much of a guessed secret is correct.
    """
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


class Guard:
    """Middleware that passes on only requests within the limits."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, metrics: Metrics):
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.keys = parse_keys(limits.keys)
        self.open_requests = 0

    def reload_keys(self, path: Path):
        """Replace the keys with those of a file. If it cannot be read, nothing changes."""
        try:
            self.keys = parse_keys(read_keys(path))
        except ValueError as problem:
            logger.error("the keys stay as they were: %s", problem)
        else:
            logger.info("read %d keys", len(self.keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        method = scope["method"]
        if method == "HEAD":
            # Answered like GET; the HTTP protocol leaves out the body.
            scope = {**scope, "method": "GET"}
        # The client's own request id is kept if it is harmless in a log.
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        request_id = client_id if REQUEST_ID.fullmatch(client_id) else secrets.token_hex(12)
        scope.setdefault("state", {})["request_id"] = request_id
        start = monotonic()
        status = 500
        rate_headers = {}
        ignored = Ignored(is_lenient=self.limits.is_lenient)
        IGNORED.set(ignored)

        # Pass on the answer with our headers, and remember its status for the log.
        async def send_answer(message: Message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer_headers = MutableHeaders(scope=message)
                added = HEADERS | rate_headers | {"x-request-id": request_id}
                if ignored.names:
                    added["x-ignored-fields"] = header_list(ignored.names)
                for name, value in added.items():
                    answer_headers.setdefault(name, value)
            await send(message)

        self.open_requests += 1
        try:
            key = self.admit(scope, headers)
            if key:
                scope["state"]["key"] = key.label
                if method == "POST":
                    key.take(rate_headers)
            await self.app(scope, await self.with_body(receive), send_answer)
        except Refusal as refusal:
            response = refusal.response
            # The unread rest of this request must not be parsed as the next request.
            response.headers["connection"] = "close"
            await response(scope, receive, send_answer)
        finally:
            self.open_requests -= 1
            fields = {
                "request_id": request_id,
                "method": method,
                "seconds": round(monotonic() - start, 4),
            }
            if TRACEPARENT.fullmatch(headers.get("traceparent", "")):
                fields["traceparent"] = headers["traceparent"]
            if ignored.names:
                fields["ignored_fields"] = [name[:64] for name in ignored.names[:32]]
            self.record(scope, status, fields)

    def admit(self, scope: Scope, headers: Headers) -> Key | None:
        """Return the key that a request was sent with; None if it has no valid one.

        Raises:
            Refusal: the request exceeds a limit, or needs a key.
        """
        if self.open_requests > self.limits.requests and scope["path"] not in PROBES:
            raise Refusal(429, "too many requests at once", code="too_many_requests", retry_after=1)
        # "[::1]:8000" -> "::1"; "localhost:8000" -> "localhost"
        host = re.sub(r":\d*$", "", headers.get("host", "")).strip("[]").lower()
        if self.limits.hosts and host not in self.limits.hosts:
            message = f"this server does not answer for the host {host[:100]!r}"
            raise Refusal(421, message, code="wrong_host")
        # "Bearer KEY"
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        key = self.keys.get(digest_of(secret.strip())) if scheme.lower() == "bearer" else None
        if self.keys and key is None and scope["path"] not in OPEN_PATHS:
            raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")
        if scope["method"] == "POST":
            media_type = headers.get("content-type", "").split(";")[0].strip().lower()
            # A web page of another origin can make a browser post any type but JSON without CORS
            # permission, so only JSON shows that the request does not come from such a page.
            if media_type != "application/json":
                message = f"Content-Type={media_type[:100]!r}: must be application/json"
                raise Refusal(415, message, code="wrong_content_type")
        return key

    async def with_body(self, receive: Receive) -> Receive:
        """Read the body of a request. Returns a `receive` that yields it before later messages.

        A body of up to `READ_BEYOND` times the limit is read to its end before it is refused,
        because a client that is still writing would not read the answer.

        Raises:
            Refusal: the body is too long or takes too long, or the client has disconnected.
        """
        limit = self.limits.body_bytes
        body = bytearray()
        size = 0
        has_more = True
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while has_more and size <= READ_BEYOND * limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the client has disconnected")
                    # Bytes beyond the limit are counted, not kept.
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= limit:
                        body += part
                    has_more = message.get("more_body", False)
        except TimeoutError as late:
            raise Refusal(408, "the body took too long to arrive", code="body_too_slow") from late
        if size > limit:
            raise Refusal(413, f"the body is longer than {limit} bytes", code="body_too_long")
        unread = [{"type": "http.request", "body": bytes(body)}]

        async def receive_again():
            return unread.pop() if unread else await receive()

        return receive_again

    def record(self, scope: Scope, status: int, fields: Fields):
        """Count the request and log it, without its content."""
        # The path is the route's pattern, not that of the request, so that there are few labels.
        path = getattr(scope.get("route"), "path", "other")
        # The endpoint has recorded tokens, time in the queue, and how the answers ended.
        noted = scope["state"].get("noted", {})
        key = scope["state"].get("key", "")
        self.metrics.http_requests.labels(path, str(status), key).inc()
        self.metrics.key_tokens.labels(key).inc(noted.get("completion_tokens", 0))
        fields |= {"path": path, "status": status, **noted, **({"key": key} if key else {})}
        # Probes arrive every few seconds.
        log = logger.debug if path in PROBES else logger.info
        log("request", extra={"fields": fields})


def header_list(names: Sequence[str]) -> str:
    """Format names for a header: each once, without characters that a header cannot contain."""
    safe = (re.sub(r"[^\w.-]", "?", name, flags=re.ASCII)[:64] for name in dict.fromkeys(names))
    return ", ".join(safe)[:1000]


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)

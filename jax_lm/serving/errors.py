"""Errors that clients receive: refused requests, jobs that ended without an answer, defects."""

import logging
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from jax_lm.diffusion.state import NOT_FINITE
from jax_lm.serving import schemas
from jax_lm.serving.admission import ContextLengthError
from jax_lm.serving.queue import RejectedError

logger = logging.getLogger(__name__)

# Statuses after which a retry may succeed. For others, a header tells OpenAI's clients not to
# retry, which they would do for all from 500 on.
WORTH_RETRYING = (408, 409, 429, 503)
# Characters of a message; of a longer one, the beginning and the end are kept.
MAX_MESSAGE = 600
# OpenAI's error type by status; all others are invalid requests or server errors.
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# Status and message for each reason why a request has no answer.
FAILURES = {
    "queue_full": (429, "the queue is full; try again later"),
    "timeout": (504, "the request took longer than its timeout, or that of the server (--timeout)"),
    "compiling": (503, "the program for this request is still being compiled; try again later"),
    "shutdown": (503, "the server is shutting down"),
    "engine_failed": (503, "the engine failed, and the server ends"),
    "cancelled": (499, "the request was cancelled"),
    "error": (500, "decoding this request failed"),
    "not_finite": (500, NOT_FINITE),
}


class Refusal(Exception):  # noqa: N818 - it is an answer
    """Raised to answer a request with an error in OpenAI's format."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        # A message quotes what came, which may be a name of a megabyte; what is allowed comes last.
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} … {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        kind = ERROR_TYPES.get(status, kind)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": kind,
                "param": param and param[:100],
                "code": code,
            }
        }
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        if status not in WORTH_RETRYING:
            self.headers["x-should-retry"] = "false"

    @property
    def response(self) -> Response:
        return JSONResponse(self.body, self.status, self.headers)


def failure(reason: str, retry_after: int | None = None) -> Refusal:
    """Return the Refusal for a request without an answer, for a reason of `FAILURES`."""
    return Refusal(*FAILURES[reason], code=reason, retry_after=retry_after)


def invalid(problem: ValueError, body: schemas.DecodingBody | None = None) -> Refusal:
    """Return the Refusal for a request that cannot be decoded. Its message begins with the field.

    Args:
        body: the request, whose field names the message uses.
    """
    # "top_k=0: must be positive" is about the field top_k
    message = str(problem)
    if isinstance(problem, ContextLengthError):
        return Refusal(400, message, param="prompt", code="context_length_exceeded")
    param = schemas.field_of(message)
    names = {"max_tokens": body.length_field, "num_steps": "steps"} if body else {}
    if param in names:
        message = message.replace(param, names[param], 1)
        param = names[param]
    # errors of grammars begin with their kind; "grammar='cobol': …" may name the field already
    field = body and body.grammar_field
    if (
        field
        and not message.startswith(f"{field}=")
        and param in ("grammar", "regex", "json_schema")
    ):
        message = f"{field}: {message.removeprefix('grammar: ')}"
        param = field
    return Refusal(400, message, param=param)


async def on_error(http: Request, problem) -> Response:
    """Answer with an error: a refusal, an error of Starlette, or a defect of the server."""
    match problem:
        case Refusal():
            return problem.response
        case RejectedError():
            return failure(problem.code, problem.retry_after).response
        case RequestValidationError():
            # report only the first error
            first = problem.errors()[0]
            if first["type"] == "json_invalid":
                return Refusal(400, "the body is not JSON").response
            message, param = schemas.error_line(first)
            is_unsupported = first["type"] in ("extra_forbidden", "unsupported")
            code = "unsupported_parameter" if is_unsupported else None
            return Refusal(400, message, param=param, code=code).response
        case HTTPException():
            message = f"{http.method} {http.url.path[:200]}: {problem.detail}"
            if problem.status_code == 400:
                # FastAPI's "There was an error parsing the body"
                message = "the body is nested too deeply, has a number of too many digits, or is not UTF-8"
            refusal = Refusal(problem.status_code, message)
            refusal.headers |= problem.headers or {}
            return refusal.response
    # a defect: details go to the log, not to the client
    fields = {"request_id": request_id(http)}
    logger.error("a request failed", exc_info=problem, extra={"fields": fields})
    return Refusal(500, "the server failed").response


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (Refusal, RejectedError, RequestValidationError, HTTPException, Exception), on_error
)


def request_id(http: Request) -> str:
    return http.scope["state"]["request_id"]

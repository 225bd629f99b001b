"""What a client is told when there is no answer: of its request, of a job that ended without one, of a defect."""

import logging

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from jax_lm.serving import schemas
from jax_lm.serving.jobs import Event
from jax_lm.serving.responses import Refusal, error

logger = logging.getLogger(__name__)

QUEUE_FULL = "the queue is full; try again later"
FAILURES = {
    "timeout": (504, "the request took longer than it may"),
    "shutdown": (503, "the server is shutting down"),
    "cancelled": (499, "the request was cancelled"),
    "error": (500, "decoding this request failed"),
}
"""Reasons to end without an answer: status, and what the client is told."""


def refused(problem: ValueError, grammar_field: str | None = None) -> Refusal:
    """Word what cannot be decoded; such a line begins with the name of the field.

    Args:
        grammar_field: what a grammar is asked for by, whose own kinds are no fields.
    """
    param = str(problem).split("=")[0].split(":")[0]
    if grammar_field is not None and param in ("grammar", "regex", "json_schema"):
        words = str(problem).removeprefix("grammar: ")
        return Refusal(400, f"{grammar_field}: {words}", param=grammar_field)
    return Refusal(400, str(problem), param=param if param.isidentifier() else None)


def add_handlers(app: FastAPI) -> None:
    """Word whatever an endpoint raises."""
    app.exception_handler(Refusal)(on_failed)
    app.exception_handler(RequestValidationError)(on_invalid)
    app.exception_handler(StarletteHTTPException)(on_http)
    app.exception_handler(Exception)(on_defect)


async def on_failed(http: Request, problem: Exception) -> Response:
    assert isinstance(problem, Refusal)
    return JSONResponse(problem.body, problem.status, problem.headers)


async def on_invalid(http: Request, problem: Exception) -> Response:
    """The first thing that is wrong with a body, in one line."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse(error("the body is not JSON", status=400), 400)
    message, param = schemas.refusal(first)
    return JSONResponse(error(message, status=400, param=param), 400)


async def on_http(http: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException | StarletteHTTPException)
    return JSONResponse(error(str(problem.detail), status=problem.status_code), problem.status_code, problem.headers)


async def on_defect(http: Request, problem: Exception) -> Response:
    """The border: whatever broke is the server's fault; the log has it, the client does not."""
    logger.error("a request failed", exc_info=problem, extra={"fields": {"request_id": request_id(http)}})
    return JSONResponse(error("the server failed", status=500), 500)


def request_id(http: Request) -> str:
    return http.scope["state"]["request_id"]


def failure(finished: Event) -> Refusal:
    assert finished.reason is not None
    status, message = FAILURES[finished.reason]
    return Refusal(status, message, code=finished.reason)

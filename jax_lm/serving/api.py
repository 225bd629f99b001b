"""The HTTP side: OpenAI's endpoints, denoising as events, health, metrics and the page. Knows no JAX.

    app = create_app(engine, ServerSettings(model="builtin"), RequestLimits())

Every request becomes jobs of the engine, whose events reach this side through an `Inbox`; the engine's thread and the
event loop never wait for each other.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from jax_lm.serving import jobs, schemas
from jax_lm.serving.engine import ClosingError, Engine, QueueFullError
from jax_lm.serving.errors import FAILURES, QUEUE_FULL, add_handlers, failure, refused, request_id
from jax_lm.serving.guard import SCRIPTS, Guard, RequestLimits
from jax_lm.serving.infill import InfillBody, cut_to_fit, worded
from jax_lm.serving.jobs import Event, Inbox, Job
from jax_lm.serving.line import LeftError, Line, LineFullError
from jax_lm.serving.responses import AnswerFormat, ChatFormat, Refusal
from jax_lm.tokenizer import END_OF_TEXT, TokenizerError

logger = logging.getLogger(__name__)

DEFAULT_TOKENS = 128
COMMIT_FIELDS = ("position", "token_id", "text", "confidence", "step")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server that its answers depend on.

    Attributes:
        model: name under which the model is offered.
        notice: what to know of it, shown on the page.
        logs_prompts: write prompts to the log, and answers that are not streamed.
    """

    model: str
    notice: str = ""
    logs_prompts: bool = False


class Server:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.tokenizer, self.line = engine.tokenizer, Line()

    # What a request asks for.

    def require_model(self, body: schemas.DecodingBody) -> None:
        # Some clients write an empty name where the user gave none.
        if body.model not in (None, "", self.settings.model):
            message = f"model={body.model!r}: this server offers {self.settings.model!r}"
            raise Refusal(404, message, param="model", code="model_not_found")

    def requests(
        self,
        body: schemas.DecodingBody,
        before: list[int],
        after: list[int] | None,
        count: int,
        length: int | None = None,
    ) -> list[jobs.Request]:
        """Answers to one prompt; an empty prompt begins where a text begins, as OpenAI's does.

        `after` is None where no text follows the hole.
        """
        before = before or [self.tokenizer.token_id(END_OF_TEXT)]
        room = self.engine.context - len(before) - len(after or ())
        length = length or body.length or max(1, min(DEFAULT_TOKENS, room))
        seed = body.seed if body.seed is not None else secrets.randbelow(2**32)
        try:
            options = body.options(length)
        except ValueError as problem:
            raise refused(problem) from problem
        return [
            jobs.Request(
                before=tuple(before),
                after=tuple(after or ()),
                is_gap=after is not None,
                options=options,
                stop=body.stops,
                seed=seed,
                index=index,
                logprobs=body.wanted_logprobs,
            )
            for index in range(count)
        ]

    def prompt_ids(self, prompt: str | list[int]) -> list[int]:
        """Encode a text; ids are taken as they are, special tokens among them, if the tokenizer knows them."""
        if isinstance(prompt, str):
            return self.tokenizer.encode_plain(prompt)
        if unknown := [token for token in prompt if token >= self.tokenizer.vocab_size]:
            message = f"prompt: token {unknown[0]} must lie in [0, {self.tokenizer.vocab_size - 1}]"
            raise Refusal(400, message, param="prompt")
        return prompt

    def chat_ids(self, messages: Sequence[Any]) -> list[int]:
        try:
            return self.tokenizer.encode_chat([message.plain() for message in messages])
        except TokenizerError as problem:
            raise Refusal(400, str(problem), param="messages") from problem

    def submit(
        self,
        requests: Sequence[jobs.Request],
        inbox: Inbox,
        seconds: float | None = None,
        grammar_field: str | None = None,
    ) -> list[Job]:
        """Hand requests to the engine; what it refuses becomes an answer."""
        try:
            return self.engine.submit(requests, inbox.listen, seconds)
        except QueueFullError as full:
            raise Refusal(429, QUEUE_FULL, code="queue_full", retry_after=full.retry_after) from full
        except ClosingError as closing:
            raise Refusal(503, FAILURES["shutdown"][1], code="shutdown") from closing
        except ValueError as problem:
            raise refused(problem, grammar_field) from problem

    async def accept(
        self, body: schemas.OpenAI, requests: Sequence[jobs.Request], inbox: Inbox, http: Request
    ) -> list[Job]:
        """Hand requests to the engine; those under a grammar are prepared one by one, while others are served."""
        if body.grammar_name is None:
            return self.submit(requests, inbox)

        def work(waited: float) -> list[Job]:
            # The time that a request may take counts from its arrival.
            left = self.engine.options.timeout - waited
            if left <= 0:
                raise Refusal(*FAILURES["timeout"], code="timeout")
            return self.submit(requests, inbox, left, body.grammar_field)

        try:
            return await self.line.run(work, http.is_disconnected)
        except LeftError as left:
            raise Refusal(*FAILURES["cancelled"], code="cancelled") from left
        except LineFullError as full:
            raise Refusal(429, QUEUE_FULL, code="queue_full", retry_after=self.engine.retry_after()) from full
        except ModuleNotFoundError as missing:
            raise Refusal(
                501, f"{body.grammar_field}: this server lacks {missing.name}", code="not_installed"
            ) from missing

    # The endpoints.

    async def completions(self, body: schemas.CompletionBody, http: Request) -> Response:
        """One or several texts, each completed or infilled `n` times."""
        self.require_model(body)
        prompts = [self.prompt_ids(each) for each in body.prompts]
        after = None if body.suffix is None else self.tokenizer.encode_plain(body.suffix)
        texts = [each if isinstance(each, str) else self.tokenizer.decode(each) for each in body.prompts]
        before = [text if body.echo else "" for text in texts for _ in range(body.n)]
        shape = AnswerFormat(request_id(http), self.settings.model, body)
        if body.length == 0:
            return self.echoed(prompts, before, shape)
        requests = [request for prompt in prompts for request in self.requests(body, prompt, after, body.n)]
        return await self.answer(body, requests, before, shape, http)

    def echoed(self, prompts: Sequence[list[int]], before: Sequence[str], shape: AnswerFormat) -> Response:
        """Answer with the prompts alone, as `max_tokens` 0 asks."""
        longest, spent = max(map(len, prompts)), sum(map(len, prompts))
        if longest > self.engine.context:
            message = f"prompt: {longest} tokens, but the context holds {self.engine.context}"
            raise Refusal(400, message, param="prompt")
        if not shape.body.stream:
            return JSONResponse(shape.whole([(Event(reason="length"), text) for text in before], spent))

        async def pieces() -> AsyncIterator[str]:
            for index, text in enumerate(before):
                yield data(shape.chunk([shape.delta(index, text, Event(reason="length"))]))
            for piece in shape.closing(spent, 0):
                yield data(piece)

        return events_response(pieces())

    async def chat(self, body: schemas.ChatBody, http: Request) -> Response:
        """A conversation, answered `n` times."""
        self.require_model(body)
        requests = self.requests(body, self.chat_ids(body.messages), None, body.n)
        requests = [replace(request, is_message=True) for request in requests]
        shape = ChatFormat(request_id(http), self.settings.model, body)
        return await self.answer(body, requests, [""] * body.n, shape, http)

    async def answer(
        self,
        body: schemas.OpenAI,
        requests: Sequence[jobs.Request],
        before: Sequence[str],
        shape: AnswerFormat,
        http: Request,
    ) -> Response:
        """Decode, and word the answer in one piece or as a stream."""
        inbox = Inbox(hears_progress=body.stream)
        submitted = await self.accept(body, requests, inbox, http)
        # Answers to one prompt share it.
        prompt_tokens = sum(len(r.before) + len(r.after) for r in requests if not r.index)
        self.log_prompts(requests, http)
        if body.stream:
            return events_response(self.stream(submitted, inbox, before, shape, prompt_tokens))
        finished = await self.collect(submitted, inbox, http)
        self.log_texts([one.text for one in finished], "answers", http)
        return JSONResponse(shape.whole(list(zip(finished, before, strict=True)), prompt_tokens))

    async def collect(
        self, submitted: list[Job], inbox: Inbox, http: Request, *, half_is_enough: bool = False
    ) -> list[Event]:
        """How all jobs ended; Refusal if one gave no answer. If the client goes away, they are given up.

        Args:
            half_is_enough: whether what was final when the time was over is an answer.
        """

        async def ends() -> dict[Job | None, Event]:
            return {event.job: event async for event in inbox.events(len(submitted)) if event.reason}

        work, gone = asyncio.create_task(ends()), asyncio.ensure_future(http.receive())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refusal(*FAILURES["cancelled"])
            finished = [work.result()[job] for job in submitted]
        finally:
            self.engine.cancel(submitted)
            work.cancel()
            gone.cancel()
        for one in finished:
            if not (one.is_answer or (half_is_enough and one.reason == "timeout")):
                raise failure(one)
        return finished

    async def infill(self, body: InfillBody, http: Request) -> Response:
        """What stands between two texts, `n_cmpl` times, as llama.cpp words it."""
        self.require_model(body)
        extra, before, after = (
            self.tokenizer.encode_plain(text)
            for text in (
                "".join(f"{each.text}\n" for each in body.input_extra),
                body.input_prefix + body.prompt,
                body.input_suffix,
            )
        )
        length = min(DEFAULT_TOKENS, self.engine.context // 2) if body.length is None else body.length
        before, after, is_cut = cut_to_fit(extra, before, after, self.engine.context - length - 1)
        ends = [Event(reason="length")] * body.n_cmpl
        if length:
            requests = self.requests(body, before, after, body.n_cmpl, length)
            inbox = Inbox(hears_progress=False)
            seconds = body.t_max_predict_ms and body.t_max_predict_ms / 1000
            submitted = self.submit(requests, inbox, seconds)
            self.log_prompts(requests, http)
            ends = await self.collect(submitted, inbox, http, half_is_enough=True)
            self.log_texts([one.text for one in ends], "answers", http)
        return JSONResponse(worded(body, ends, self.settings.model, len(before) + len(after), is_cut=is_cut))

    async def stream(
        self, submitted: list[Job], inbox: Inbox, before: Sequence[str], shape: AnswerFormat, prompt_tokens: int
    ) -> AsyncIterator[str]:
        """Pieces of text that can no longer change; an end without an answer is an event with an error."""
        place: dict[Job | None, int] = {job: index for index, job in enumerate(submitted)}
        sent, tokens = dict.fromkeys(place, 0), 0
        try:
            for index in place.values():
                for choice in shape.opening(index, before[index]):
                    yield data(shape.chunk([choice]))
            async for event in inbox.events(len(submitted)):
                is_last = event.reason is not None
                if is_last and not event.is_answer:
                    yield data(failure(event).body)
                    return
                fresh = event.text[sent[event.job] :]
                sent[event.job] = len(event.text)
                if fresh:
                    yield data(shape.chunk([shape.delta(place[event.job], fresh)]))
                if is_last:
                    tokens += len(event.tokens)
                    yield data(shape.chunk([shape.delta(place[event.job], "", event)]))
            for piece in shape.closing(prompt_tokens, tokens):
                yield data(piece)
        finally:
            self.engine.cancel(submitted)

    async def denoise(self, body: schemas.DenoiseBody, http: Request) -> Response:
        """Every commit as a server-sent event: `start`, any number of `commits`, then `done` or `error`."""
        self.require_model(body)
        if body.messages is None:
            before = self.tokenizer.encode_plain(body.prompt or "")
            after = None if body.suffix is None else self.tokenizer.encode_plain(body.suffix)
        else:
            before, after = self.chat_ids(body.messages), None
        inbox = Inbox(hears_progress=True)
        (request,) = self.requests(body, before, after, 1)
        (job,) = self.submit([request], inbox)
        self.log_prompts([request], http)

        async def events() -> AsyncIterator[str]:
            try:
                start = {"id": request_id(http), "model": self.settings.model, "seed": request.seed}
                lengths = {"prompt_tokens": len(before) + len(after or ()), "length": request.options.max_new_tokens}
                yield data(start | lengths, "start")
                async for event in inbox.events(1):
                    if event.reason and not event.is_answer:
                        yield data(failure(event).body, "error")
                        return
                    commits = [{name: getattr(commit, name) for name in COMMIT_FIELDS} for commit in event.commits]
                    if commits:
                        yield data({"text": event.text, "forwards": event.forwards, "commits": commits}, "commits")
                    if event.reason:
                        totals = {"tokens": len(event.tokens), "forwards": event.forwards}
                        yield data({"text": event.text, "finish_reason": event.reason} | totals, "done")
            finally:
                self.engine.cancel([job])

        return events_response(events())

    def log_prompts(self, requests: Sequence[jobs.Request], http: Request) -> None:
        if self.settings.logs_prompts:
            self.log_texts([self.tokenizer.decode(request.before) for request in requests], "prompts", http)

    def log_texts(self, texts: Sequence[str], name: str, http: Request) -> None:
        """Log a prompt or an answer, if whoever runs the server wants it."""
        if self.settings.logs_prompts:
            logger.info("texts", extra={"fields": {"request_id": request_id(http), name: texts}})

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self.card()]}

    async def model(self, name: str) -> dict[str, Any]:
        if name != self.settings.model:
            raise Refusal(404, f"model={name!r}: this server offers {self.settings.model!r}", code="model_not_found")
        return self.card()

    def card(self) -> dict[str, Any]:
        context = self.engine.context
        # A prompt has at least one token. Clients of vLLM look for max_model_len.
        longest = min(self.engine.options.max_tokens, context - 1)
        limits = {"context": context, "max_model_len": context, "max_tokens": longest}
        about = {"notice": self.settings.notice, "has_chat": self.tokenizer.chat_template is not None}
        openai = {"id": self.settings.model, "object": "model", "created": 0, "owned_by": "jax-diffucoder"}
        return openai | about | limits

    async def health(self) -> Response:
        """200 while the engine's thread lives."""
        is_alive = not self.engine.stopped.is_set()
        return JSONResponse({"status": "ok" if is_alive else "stopped"}, 200 if is_alive else 503)

    async def ready(self) -> Response:
        """200 after warm-up and until shutdown."""
        is_ready = self.engine.ready.is_set() and not self.engine.is_closing and not self.engine.stopped.is_set()
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    async def metrics(self) -> Response:
        return Response(self.engine.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def create_app(engine: Engine, settings: ServerSettings, limits: RequestLimits) -> Callable[..., Awaitable[None]]:
    """The application, behind its guard."""
    app = FastAPI(title="DiffuCoder", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    server = Server(engine, settings)
    answers: dict[int | str, dict[str, Any]] = {400: {"description": "an option is out of range"}}
    for path, endpoint in (
        ("/v1/completions", server.completions),
        ("/v1/chat/completions", server.chat),
        ("/v1/denoise", server.denoise),
        ("/infill", server.infill),
    ):
        app.post(path, response_model=None, responses=answers)(endpoint)
    for path, endpoint in (
        ("/v1/models", server.models),
        ("/v1/models/{name:path}", server.model),
        ("/health", server.health),
        ("/ready", server.ready),
        ("/metrics", server.metrics),
    ):
        app.get(path, response_model=None)(endpoint)
    add_page(app)
    add_handlers(app)
    return Guard(app, limits, engine.metrics)


def data(content: dict[str, Any] | str, event: str | None = None) -> str:
    """A server-sent event."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return (f"event: {event}\n" if event else "") + f"data: {text}\n\n"


def events_response(events: AsyncIterator[str]) -> StreamingResponse:
    # Proxies would otherwise collect the events.
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{path: (path[1:], "text/javascript; charset=utf-8") for path in SCRIPTS},
}


def add_page(app: FastAPI) -> None:
    """Answer the paths of the page with its files, read once."""
    for path, (name, kind) in PAGE_FILES.items():
        app.get(path, include_in_schema=False)(page_file((PAGE / name).read_bytes(), kind))


def page_file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return send

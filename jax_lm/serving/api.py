"""The HTTP endpoints: OpenAI's, infilling, denoising as events, health, metrics and the page.

    app = create_app(engine, ServerSettings(model="builtin"), RequestLimits())

Every request becomes jobs of the engine, whose events arrive here through an `EventStream`; the
engine's thread and the event loop never wait for each other. Knows no JAX.
"""

import asyncio
import json
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from jax_lm.options import PRESETS
from jax_lm.serving import jobs, schemas
from jax_lm.serving.engine import Engine
from jax_lm.serving.errors import HANDLERS, Refusal, failure, invalid, request_id
from jax_lm.serving.infill import InfillBody, cut_to_fit, infill_answer
from jax_lm.serving.jobs import Event, EventStream, Job
from jax_lm.serving.middleware import Guard, RequestLimits
from jax_lm.serving.page_files import add_page
from jax_lm.serving.preparation import Preparation
from jax_lm.serving.responses import AnswerFormat, ChatFormat
from jax_lm.tokenizer import TokenizerError

logger = logging.getLogger(__name__)

# Length of the hole if a request does not name one.
DEFAULT_TOKENS = 128
# Seconds after which a silent stream sends a comment.
HEARTBEAT_SECONDS = 10.0
# Fields of a commit that clients of /v1/denoise receive.
COMMIT_FIELDS = ("position", "token_id", "text", "confidence", "step")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model: name under which the model is offered.
        notice: remark about the model, shown on the page.
        logs_prompts: write prompts to the log, and answers that are not streamed.
        defaults: values of fields that a request does not give (`schemas.SERVER_DEFAULTS`).
    """

    model: str
    notice: str = ""
    logs_prompts: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


class Server:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine, self.settings, self.tokenizer = engine, settings, engine.tokenizer
        self.preparation = Preparation(lambda: engine.queue.retry_after)

    # Create jobs from request bodies.

    def defaults(self, body: schemas.DecodingBody, *, is_gap: bool = False) -> Mapping[str, Any]:
        """Return the defaults for a request, with the preset of its model's name."""
        defaults = dict(self.settings.defaults)
        # holes that find their length are filled without a cache
        if is_gap and self.engine.inference.sampler.growth and body.growth != "off":
            defaults["preset"] = "exact"
        # Some clients send an empty name if the user has not set one.
        if body.model not in (None, ""):
            preset = self.preset_named(body.model, param="model")
            defaults |= {"preset": preset} if preset else {}
        return defaults

    def preset_named(self, name: str, param: str | None = None) -> str:
        """Return the preset of `name@preset`, empty for the plain name of the model.

        Raises:
            Refusal: there is no such model.
        """
        if name == self.settings.model:
            return ""
        model, _, preset = name.rpartition("@")
        if model != self.settings.model or preset not in PRESETS:
            message = (
                f"model={name!r}: this server offers {self.settings.model!r}, also with "
                f"{', '.join(f'@{each}' for each in PRESETS)}"
            )
            raise Refusal(404, message, param=param, code="model_not_found")
        return preset

    def requests(
        self,
        body: schemas.DecodingBody,
        before: list[int],
        after: list[int] | None,
        count: int,
        length: int | None = None,
    ) -> list[jobs.Request]:
        """Create the requests for the answers to one prompt.

        Args:
            before: ids of the prompt; an empty prompt is the beginning of a text, as in OpenAI's
                interface.
            after: ids of the text after the hole; None if there is none.
            count: number of answers.
            length: tokens of the hole, if the body does not say so.
        """
        before = before or [self.tokenizer.end_id]
        # tokens of the context that are left for the hole
        room = self.engine.context - len(before) - len(after or ())
        length = length or body.length or max(1, min(DEFAULT_TOKENS, room))
        try:
            options = body.options(length, self.defaults(body, is_gap=after is not None))
        except ValueError as problem:
            raise invalid(problem) from problem
        # answers to one prompt differ only in their index
        request = jobs.Request(
            before=tuple(before),
            after=tuple(after or ()),
            is_gap=after is not None,
            options=options,
            stop=body.stops,
            seed=(secrets.randbelow(2**32) if body.seed in (None, schemas.ANY_SEED) else body.seed),
            logprobs=body.wanted_logprobs,
        )
        return [replace(request, index=index) for index in range(count)]

    def prompt_ids(self, prompt: str | list[int]) -> list[int]:
        """Encode a text. Ids are returned as they are, if the tokenizer knows all of them."""
        if isinstance(prompt, str):
            return self.tokenizer.encode_plain(prompt)
        size = self.tokenizer.vocab_size
        if unknown := [token for token in prompt if token >= size]:
            message = f"prompt: token {unknown[0]} must lie in [0, {size - 1}]"
            raise Refusal(400, message, param="prompt")
        return prompt

    def suffix_ids(self, suffix: str | None) -> list[int] | None:
        return None if suffix is None else self.tokenizer.encode_plain(suffix)

    def chat_ids(self, messages: Sequence[Any]) -> list[int]:
        try:
            return self.tokenizer.encode_chat([message.plain() for message in messages])
        except TokenizerError as problem:
            raise Refusal(400, str(problem), param="messages") from problem

    async def submit(
        self,
        body: schemas.DecodingBody,
        make: Callable[[], Sequence[jobs.Request]],
        stream: EventStream,
        http: Request,
        seconds: float = math.inf,
    ) -> list[Job]:
        """Create requests and submit them to the engine.

        On a thread, as a long text takes seconds to encode; with a grammar, one after another.

        Args:
            make: creates the requests.
            seconds: time that they may take, if less than the engine allows.

        Raises:
            Refusal: the engine cannot decode a request.
        """
        arrived = time.monotonic()

        def prepare() -> list[Job]:
            requests = make()
            # the timeout of a request counts from its arrival
            left = self.engine.options.timeout - (time.monotonic() - arrived)
            if left <= 0:
                raise failure("timeout")
            try:
                submitted = self.engine.submit(requests, stream.listen, min(seconds, left))
            except ValueError as problem:
                raise invalid(problem, body.grammar_field) from problem
            if self.settings.logs_prompts:
                prompts = [self.tokenizer.decode(request.before) for request in requests]
                self.log_texts(prompts, "prompts", http)
            return submitted

        try:
            if body.grammar_name is None:
                return await asyncio.to_thread(prepare)
            return await self.preparation.run(prepare, http.is_disconnected)
        except ModuleNotFoundError as missing:
            message = f"{body.grammar_field}: this server lacks {missing.name}"
            raise Refusal(501, message, code="not_installed") from missing

    # The endpoints.

    async def completions(self, body: schemas.CompletionBody, http: Request) -> Response:
        """Complete or infill one or several texts, `n` times each."""
        return await self.complete(body, AnswerFormat, http)

    async def fim(self, body: schemas.FimBody, http: Request) -> Response:
        """Fill the gap between a prompt and a suffix, in Mistral's format."""
        return await self.complete(body, ChatFormat, http)

    async def complete(
        self, body: schemas.CompletionBody, kind: type[AnswerFormat], http: Request
    ) -> Response:
        """Complete or infill texts, and answer in a format."""
        self.defaults(body)
        before = [""] * len(body.prompts)
        if body.echo:
            before = [p if isinstance(p, str) else self.tokenizer.decode(p) for p in body.prompts]
        before = [text for text in before for _ in range(body.n)]
        answer_format = kind(request_id(http), self.settings.model, body)
        if body.length == 0:
            prompts = await asyncio.to_thread(lambda: [*map(self.prompt_ids, body.prompts)])
            return self.echo(prompts, before, answer_format, http)

        def make() -> list[jobs.Request]:
            return [
                request
                for prompt, after in body.gaps
                for request in self.requests(
                    body, self.prompt_ids(prompt), self.suffix_ids(after), body.n
                )
            ]

        return await self.answer(make, before, answer_format, http)

    def echo(
        self,
        prompts: Sequence[list[int]],
        before: Sequence[str],
        answer_format: AnswerFormat,
        http: Request,
    ) -> Response:
        """Answer with the prompts alone, for `max_tokens` 0."""
        lengths = [len(prompt) for prompt in prompts]
        if max(lengths) > self.engine.context:
            message = f"prompt: {max(lengths)} tokens, but the context holds {self.engine.context}"
            raise Refusal(400, message, param="prompt")
        end, total = Event(reason="length"), sum(lengths)
        if not answer_format.body.stream:
            return JSONResponse(answer_format.whole([(end, text) for text in before], total))

        async def pieces() -> AsyncIterator[str]:
            for index, text in enumerate(before):
                yield data(answer_format.chunk(answer_format.delta(index, text, end)))
            for piece in answer_format.closing(total, 0):
                yield data(piece)

        return self.stream_response([], pieces(), http)

    async def chat(self, body: schemas.ChatBody, http: Request) -> Response:
        """Answer a conversation `n` times."""
        self.defaults(body)

        def make() -> list[jobs.Request]:
            requests = self.requests(body, self.chat_ids(body.messages), None, body.n)
            return [replace(request, is_message=True) for request in requests]

        answer_format = ChatFormat(request_id(http), self.settings.model, body)
        return await self.answer(make, [""] * body.n, answer_format, http)

    async def answer(
        self,
        make: Callable[[], Sequence[jobs.Request]],
        before: Sequence[str],
        answer_format: AnswerFormat,
        http: Request,
    ) -> Response:
        """Decode, and answer in one piece or as a stream."""
        body = answer_format.body
        stream = EventStream(with_progress=body.stream)
        submitted = await self.submit(body, make, stream, http)
        # The answers to one prompt share its tokens.
        requests = [job.request for job in submitted]
        prompt_tokens = sum(request.prompt_tokens for request in requests if not request.index)
        # stream, or wait for all answers
        if body.stream:
            await self.begin(submitted, stream, http)
            pieces = self.pieces(submitted, stream, before, answer_format, prompt_tokens)
            return self.stream_response(submitted, pieces, http)
        ends = await self.collect(submitted, stream, http)
        # of several answers, those that were done in time
        choices = [each for each in zip(ends, before, strict=True) if each[0].is_answer]
        return JSONResponse(answer_format.whole(choices, prompt_tokens))

    async def begin(self, submitted: list[Job], stream: EventStream, http: Request) -> None:
        """Wait for the first event of a stream: until then, an error has a status of its own.

        Raises:
            Refusal: it is the end of a job without an answer.
        """
        first = await self.unless_gone(stream.first(), submitted, http)
        if first.reason and not first.is_answer:
            self.note(submitted, http)
            raise failure(first.reason)

    async def unless_gone(self, work: Awaitable[Any], submitted: list[Job], http: Request) -> Any:
        """Wait for a result. If the client disconnects first, its jobs are cancelled."""
        task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(http.receive())
        try:
            await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise failure("cancelled")
            return task.result()
        except BaseException:  # cancelled, refused or failed: nobody waits for the jobs
            self.engine.cancel(submitted)
            raise
        finally:
            task.cancel()
            disconnect.cancel()

    async def collect(
        self,
        submitted: list[Job],
        stream: EventStream,
        http: Request,
        *,
        allow_partial: bool = False,
    ) -> list[Event]:
        """Wait for all jobs and return their last events. Jobs of a lost client are cancelled.

        Args:
            allow_partial: accept the text that is final when a job times out.

        Raises:
            Refusal: a job ended without an answer; if others have one, a timeout is no error.
        """

        async def wait() -> dict[Job | None, Event]:
            events = stream.events(len(submitted))
            return {event.job: event async for event in events if event.reason}

        try:
            found = await self.unless_gone(wait(), submitted, http)
        finally:
            self.note(submitted, http)
        ends = [found[job] for job in submitted]
        is_any_answered = allow_partial or any(end.is_answer for end in ends)
        for end in ends:
            if not (end.is_answer or (is_any_answered and end.reason == "timeout")):
                raise failure(end.reason)
        self.log_texts([end.text for end in ends], "answers", http)
        return ends

    async def infill(self, body: InfillBody, http: Request) -> Response:
        """Fill the gap between two texts `n_cmpl` times, in llama.cpp's format."""
        self.defaults(body)
        context = self.engine.context
        length = min(DEFAULT_TOKENS, context // 2) if body.length is None else body.length

        def read() -> tuple[list[int], list[int], bool]:
            # other files, then text before and after the cursor
            extra = "".join(f"{snippet.text}\n" for snippet in body.input_extra)
            texts = (extra, body.input_prefix + body.prompt, body.input_suffix)
            extra, before, after = map(self.tokenizer.encode_plain, texts)
            # one token of the context is kept for the beginning of an empty text
            return cut_to_fit(extra, before, after, context - length - 1)

        before, after, is_cut = await asyncio.to_thread(read)
        ends = [Event(reason="length")] * body.n_cmpl
        if length:
            stream = EventStream(with_progress=False)
            seconds = body.t_max_predict_ms / 1000 if body.t_max_predict_ms else math.inf
            make = partial(self.requests, body, before, after, body.n_cmpl, length)
            submitted = await self.submit(body, make, stream, http, seconds)
            ends = await self.collect(submitted, stream, http, allow_partial=True)
        prompt_tokens = len(before) + len(after)
        return JSONResponse(
            infill_answer(body, ends, self.settings.model, prompt_tokens, is_cut=is_cut)
        )

    async def pieces(
        self,
        submitted: list[Job],
        stream: EventStream,
        before: Sequence[str],
        answer_format: AnswerFormat,
        prompt_tokens: int,
    ) -> AsyncIterator[str]:
        """Yield chunks of final text.

        Raises:
            Refusal: a job ended without an answer.
        """
        # number of each choice, characters sent of it, and tokens of all of them
        numbers: dict[Job | None, int] = {job: number for number, job in enumerate(submitted)}
        sent, tokens = [0] * len(submitted), 0
        # opening chunks: the role of a message, or the echo of the prompt
        for number, text in enumerate(before):
            for choice in answer_format.opening(number, text):
                yield data(answer_format.chunk(choice))
        # progress: text that is final and not sent yet
        async for event in stream.events(len(submitted)):
            if event.reason and not event.is_answer:
                raise failure(event.reason)
            number = numbers[event.job]
            text = event.text[sent[number] :]
            sent[number] = len(event.text)
            if text:
                yield data(answer_format.chunk(answer_format.delta(number, text)))
            if event.reason:
                tokens += len(event.tokens)
                yield data(answer_format.chunk(answer_format.delta(number, "", event)))
        # usage and [DONE]
        for piece in answer_format.closing(prompt_tokens, tokens):
            yield data(piece)

    def stream_response(
        self,
        submitted: list[Job],
        pieces: AsyncIterator[str],
        http: Request,
        error_event: str | None = None,
    ) -> StreamingResponse:
        """Respond with a stream of events, and cancel the jobs at its end.

        A Refusal raised by `pieces` becomes the last event. While nothing comes, comments are sent:
        proxies cut off a connection that is silent for long.
        """

        async def next_piece() -> str | None:
            return await anext(pieces, None)

        async def events() -> AsyncIterator[str]:
            step = None
            try:
                while True:
                    step = asyncio.create_task(next_piece())
                    while not (await asyncio.wait({step}, timeout=HEARTBEAT_SECONDS))[0]:
                        yield ": waiting\n\n"
                    if (piece := step.result()) is None:
                        break
                    yield piece
            except Refusal as refusal:
                yield data(refusal.body, error_event)
            finally:
                if step is not None:
                    step.cancel()
                self.engine.cancel(submitted)
                if submitted:
                    self.note(submitted, http)

        # Without this header, proxies would buffer the events.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def denoise(self, body: schemas.DenoiseBody, http: Request) -> Response:
        """Stream every commit: `start`, any number of `commits`, then `done` or `error`."""
        self.defaults(body)

        def make() -> list[jobs.Request]:
            before = (
                self.tokenizer.encode_plain(body.prompt or "")
                if body.messages is None
                else self.chat_ids(body.messages)
            )
            return self.requests(body, before, self.suffix_ids(body.suffix), 1)

        stream = EventStream(with_progress=True)
        submitted = await self.submit(body, make, stream, http)
        await self.begin(submitted, stream, http)
        request = submitted[0].request
        start = {
            "id": request_id(http),
            "model": self.settings.model,
            "seed": request.seed,
            "prompt_tokens": request.prompt_tokens,
            "length": request.options.max_new_tokens,
        }

        async def pieces() -> AsyncIterator[str]:
            # 1. start
            yield data(start, "start")
            async for event in stream.events(1):
                if event.reason and not event.is_answer:
                    raise failure(event.reason)
                text, forwards = {"text": event.text}, {"forwards": event.forwards}
                # 2. commits
                if event.commits:
                    commits = [
                        {name: getattr(commit, name) for name in COMMIT_FIELDS}
                        for commit in event.commits
                    ]
                    yield data(text | forwards | {"commits": commits}, "commits")
                # 3. the end
                if event.reason:
                    end = {"finish_reason": event.reason, "tokens": len(event.tokens)}
                    yield data(text | end | forwards, "done")

        return self.stream_response(submitted, pieces(), http, error_event="error")

    def note(self, submitted: Sequence[Job], http: Request) -> None:
        """Note what the jobs of a request took, for the log and the metrics of the middleware."""
        ends = [job.end for job in submitted if job.end is not None]
        waits = [(job.started or job.arrived) - job.arrived for job in submitted]
        http.scope["state"]["noted"] = {
            "prompt_tokens": sum(job.request.prompt_tokens for job in submitted),
            "completion_tokens": sum(len(end.tokens) for end in ends),
            "queue_seconds": round(max(waits, default=0.0), 4),
            "reason": ",".join(sorted({str(end.reason) for end in ends})),
        }

    def log_texts(self, texts: Sequence[str], name: str, http: Request) -> None:
        """Log prompts or answers if the operator wants it."""
        if self.settings.logs_prompts:
            logger.info("texts", extra={"fields": {"request_id": request_id(http), name: texts}})

    async def models(self) -> dict[str, Any]:
        """List the models: the one that is served, plain and with each preset."""
        name = self.settings.model
        names = [name, *(f"{name}@{preset}" for preset in PRESETS)]
        return {"object": "list", "data": [await self.model(each) for each in names]}

    async def model(self, name: str) -> dict[str, Any]:
        """Describe a model."""
        self.preset_named(name)
        context = self.engine.context
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "jax-diffucoder",
            "notice": self.settings.notice,
            "has_chat": self.tokenizer.chat_template is not None,
            "context": context,
            # Clients of vLLM look for this name.
            "max_model_len": context,
            # A prompt has at least one token.
            "max_tokens": min(self.engine.options.max_tokens, context - 1),
        }

    async def health(self) -> Response:
        """Answer 200 while the engine lives."""
        return status_response("ok" if not self.engine.stopped.is_set() else "stopped", "ok")

    async def ready(self) -> Response:
        """Answer 200 after warm-up and until shutdown."""
        return status_response("ready" if self.engine.is_ready else "not ready", "ready")

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self.engine.metrics.page(), media_type=kind)


def create_app(engine: Engine, settings: ServerSettings, limits: RequestLimits) -> Guard:
    """Create the application, with its guard around it."""
    app = FastAPI(
        title="DiffuCoder",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        exception_handlers=HANDLERS,
    )
    server = Server(engine, settings)
    answers: dict[int | str, dict[str, Any]] = {400: {"description": "an option is out of range"}}
    # POST: requests for text
    for path, endpoint in (
        ("/v1/completions", server.completions),
        ("/v1/chat/completions", server.chat),
        ("/v1/fim/completions", server.fim),
        ("/v1/denoise", server.denoise),
        ("/infill", server.infill),
    ):
        app.post(path, response_model=None, responses=answers)(endpoint)
    # GET: state of the server
    for path, endpoint in (
        ("/v1/models", server.models),
        ("/v1/models/{name:path}", server.model),
        ("/health", server.health),
        ("/ready", server.ready),
        ("/metrics", server.metrics),
    ):
        app.get(path, response_model=None)(endpoint)
    add_page(app)
    return Guard(app, limits, engine.metrics)


def data(content: dict[str, Any] | str, event: str | None = None) -> str:
    """Format a server-sent event."""
    # "event: done\ndata: {...}\n\n"; a blank line ends the event
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return (f"event: {event}\n" if event else "") + f"data: {text}\n\n"


def status_response(status: str, good: str) -> Response:
    return JSONResponse({"status": status}, 200 if status == good else 503)

"""The HTTP endpoints: OpenAI's, infilling, denoising as events, health, metrics and the page.

    app = create_app(engine, ServerSettings(model="builtin"), RequestLimits())

Every request becomes jobs of the engine, whose events arrive here through an `EventStream`; the
engine's thread and the event loop never wait for each other. Knows no JAX.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from jax_lm.config import Fields, Names
from jax_lm.options import PRESETS
from jax_lm.serving import jobs, schemas
from jax_lm.serving.chat import ChatBody, DenoiseBody, DetokenizeBody, ResponsesBody, TokenizeBody
from jax_lm.serving.engine import Engine
from jax_lm.serving.errors import HANDLERS, Refusal, failure, invalid, request_id
from jax_lm.serving.infill import InfillBody, LlamaBody, LlamaFormat
from jax_lm.serving.jobs import SILENCE, Event, EventStream, Job
from jax_lm.serving.middleware import Guard, RequestLimits
from jax_lm.serving.page_files import add_page
from jax_lm.serving.queue import RejectedError
from jax_lm.serving.response_objects import ResponsesFormat
from jax_lm.serving.responses import AnswerFormat, ChatFormat, DenoiseFormat, data
from jax_lm.serving.schemas import Gap, Gaps
from jax_lm.serving.scoring import score
from jax_lm.templates import GAP_TOKENS

logger = logging.getLogger(__name__)

# Seconds after which a silent stream sends a comment.
HEARTBEAT_SECONDS = 10.0
# Requests that may wait for the preparation of a grammar or the scores of a prompt.
MAX_PREPARING = 64
# Requests whose texts are encoded at once; others wait, and are dropped if their client leaves.
PREPARED_AT_ONCE = 4
# Paths of requests for text: their bodies, and the format of the answers.
ENDPOINTS: dict[str, tuple[type[schemas.DecodingBody], type[AnswerFormat]]] = {
    "/v1/completions": (schemas.CompletionBody, AnswerFormat),
    "/v1/chat/completions": (ChatBody, ChatFormat),
    "/v1/responses": (ResponsesBody, ResponsesFormat),
    "/v1/fim/completions": (schemas.FimBody, ChatFormat),
    "/v1/denoise": (DenoiseBody, DenoiseFormat),
    "/infill": (InfillBody, LlamaFormat),
    "/completion": (LlamaBody, LlamaFormat),
}
# The end of an answer to a request for 0 tokens.
NO_TOKENS = Event(reason="length")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model: name under which the model is offered.
        adapters: names under which it is offered with an adapter, and where each came from.
        notice: remark about the model, shown on the page.
        logs_prompts: write prompts to the log, and answers that are not streamed.
        defaults: default values of fields of requests (`schemas.SERVER_DEFAULTS`).
    """

    model: str
    adapters: Names = field(default_factory=dict)
    notice: str = ""
    logs_prompts: bool = False
    defaults: Fields = field(default_factory=dict)


class Server:
    """The endpoints of one engine."""

    def __init__(self, engine: Engine, settings: ServerSettings):
        self.engine = engine
        self.settings = settings
        self.tokenizer = engine.tokenizer
        self.presets = tuple(PRESETS)
        self.growth = engine.inference.sampler.growth
        # A text with holes that grow has a token before it, and one after it.
        self.markers = 2 * (self.growth is not None)
        # A model that is decoded from left to right has tokens around the texts of a gap.
        if engine.inference.config.is_unidirectional:
            self.presets = ()
            self.markers = len(GAP_TOKENS)
        # adapter and preset of each name that a request may give, both empty by default
        adapters = {settings.model: ""} | {name: name for name in settings.adapters}
        self.names = {name: (adapter, "") for name, adapter in adapters.items()}
        for (name, adapter), preset in product(adapters.items(), self.presets):
            self.names.setdefault(f"{name}@{preset}", (adapter, preset))
        # slow requests are prepared one at a time: those with a grammar, and those with scores
        self.grammar_turn = asyncio.Semaphore(1)
        self.scoring_turn = asyncio.Semaphore(1)
        self.turns = asyncio.Semaphore(PREPARED_AT_ONCE)
        self.places = asyncio.Semaphore(MAX_PREPARING)

    # Create jobs from request bodies.

    def find(self, name: str | None) -> tuple[str, str]:
        """Return the adapter and the preset that a name selects, both empty by default.

        Raises:
            Refusal: there is no such model.
        """
        # Some clients send an empty name if the user has not set one.
        name = name or self.settings.model
        if name not in self.names:
            offered = map(repr, (self.settings.model, *self.settings.adapters))
            message = f"model={name!r}: this server offers {', '.join(offered)}"
            if self.presets:
                message += f", also with {', '.join(f'@{each}' for each in self.presets)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        return self.names[name]

    def gaps(self, body: schemas.DecodingBody) -> Gaps:
        """Encode the texts of a request; each prompt gets at least one token.

        Raises:
            ValueError: a text cannot be encoded, or one that is returned or scored does not fit.
        """
        context = self.engine.context
        # an empty prompt becomes the end-of-text token, as in OpenAI's interface
        gaps = [
            gap._replace(before=gap.before or [self.tokenizer.end_id])
            for gap in body.gaps(self.tokenizer, context - self.markers)
        ]
        # answers of 0 tokens take no place in the queue, but are scored and written
        self.engine.require_few(len(gaps) * body.choices)
        longest = max(len(gap.before) for gap in gaps)
        if (body.length == 0 or body.scores_prompt) and longest > context:
            raise ValueError(f"prompt: {longest} tokens, but the context holds {context}")
        return gaps

    def with_scores(self, body: schemas.DecodingBody, gap: Gap, deadline: float) -> Gap:
        """Add the log-probabilities of the prompt's tokens; an empty prompt has none."""
        if not (body.scores_prompt and gap.echo):
            return gap
        scored = score(
            self.engine.workers[0],
            self.find(body.model)[0],
            self.tokenizer,
            gap.before,
            body.wanted_logprobs or 0,
            deadline,
        )
        return gap._replace(scored=scored)

    def requests(self, body: schemas.DecodingBody, gap: Gap) -> list[jobs.Request]:
        """Create the requests for the answers to one prompt."""
        defaults = dict(self.settings.defaults)
        adapter, preset = self.find(body.model)
        is_gap = gap.after is not None
        # holes that find their length are filled without a cache
        if not preset and is_gap and self.growth and body.growth != "off":
            preset = "exact"
        if preset:
            defaults["preset"] = preset
        # tokens of the context that are left for the hole
        room = self.engine.context - gap.tokens - self.markers
        options = self.engine.options
        length = body.length or max(1, min(options.default_tokens, options.max_tokens, room))
        # answers to one prompt differ only in their index
        request = jobs.Request(
            before=tuple(gap.before),
            after=tuple(gap.after or ()),
            is_gap=is_gap,
            is_message=body.is_message,
            adapter=adapter,
            options=body.options(length, defaults),
            stop=tuple(body.stop),
            seed=(secrets.randbelow(2**32) if body.seed in (None, schemas.ANY_SEED) else body.seed),
            logprobs=body.wanted_logprobs,
        )
        return [replace(request, index=index) for index in range(body.choices)]

    async def submit(self, answer_format: AnswerFormat, stream: EventStream, http: Request):
        """Encode the texts of a request and submit it to the engine.

        This runs on a thread, because a long text takes seconds to encode.

        Raises:
            Refusal: the engine cannot decode the request.
        """
        body = answer_format.body
        # the timeout of a request counts from its arrival
        deadline = monotonic() + self.engine.options.timeout

        def prepare():
            try:
                gaps = [self.with_scores(body, gap, deadline) for gap in self.gaps(body)]
                requests = [
                    request
                    for gap in (gaps if body.length != 0 else ())
                    for request in self.requests(body, gap)
                ]
                answer_format.begin(gaps, requests)
                seconds = min(body.seconds, deadline - monotonic())
                stream.jobs = self.engine.submit(
                    requests, stream.listen, seconds, with_progress=answer_format.is_stream
                )
            except ValueError as error:
                raise invalid(error, body) from error
            except TimeoutError as error:
                raise failure("timeout") from error
            self.log_texts(
                (self.tokenizer.decode(request.before) for request in requests), "prompts", http
            )

        try:
            if not body.is_slow:
                await self.prepare_in_turn(prepare, self.turns, http)
            # waiting requests have places, and so has the one being prepared
            elif self.places.locked():
                raise RejectedError("queue_full", self.engine.queue.retry_after)
            else:
                turn = self.scoring_turn if body.scores_prompt else self.grammar_turn
                async with self.places:
                    await self.prepare_in_turn(prepare, turn, http)
        except ModuleNotFoundError as error:
            raise Refusal(
                501, f"{body.grammar_field}: this server lacks {error.name}", code="not_installed"
            ) from error

    async def prepare_in_turn(
        self, prepare: Callable[[], None], turn: asyncio.Semaphore, http: Request
    ):
        """Prepare a request on a thread, after earlier ones.

        Meanwhile the event loop and the engine continue.

        Raises:
            RejectedError: the client has disconnected.
        """
        self.engine.preparing += 1
        try:
            # A semaphore is fair: requests are prepared in order of arrival.
            async with turn:
                if await http.is_disconnected():
                    raise RejectedError("cancelled")
                await asyncio.to_thread(prepare)
        finally:
            self.engine.preparing -= 1

    # The endpoints.

    async def answer(
        self, body: schemas.DecodingBody, kind: type[AnswerFormat], http: Request
    ) -> Response:
        """Decode the answers to a request, and return them in one piece or as a stream."""
        model = self.find(body.model)[0] or self.settings.model
        answer_format = kind(request_id(http), model, body)
        stream = EventStream()
        await self.submit(answer_format, stream, http)
        respond = self.stream if answer_format.is_stream else self.collect
        return await respond(stream, answer_format, http)

    async def unless_gone(self, work: Awaitable[Any], stream: EventStream, http: Request) -> Any:
        """Wait for a result. If the client disconnects first, its jobs are cancelled."""
        task = asyncio.ensure_future(work)
        disconnect = asyncio.ensure_future(http.receive())
        try:
            await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise failure("cancelled")
            return task.result()
        except BaseException:  # cancelled, refused or failed: nobody needs the jobs any more
            self.engine.cancel(stream.jobs)
            raise
        finally:
            task.cancel()
            disconnect.cancel()
            self.note(stream.jobs, http)

    async def events(
        self, stream: EventStream, answer_format: AnswerFormat
    ) -> AsyncIterator[tuple[int, Event]]:
        """Yield the events of a request with the numbers of their choices, and SILENCE."""
        # without jobs, the request asked for 0 tokens
        for number in range(0 if stream.jobs else len(answer_format.choices)):
            yield number, NO_TOKENS
        numbers: dict[Any, int] = {job: number for number, job in enumerate(stream.jobs)}
        async for event in stream.events(HEARTBEAT_SECONDS):
            yield numbers.get(event.job, -1), event

    async def collect(
        self, stream: EventStream, answer_format: AnswerFormat, http: Request
    ) -> Response:
        """Wait for all jobs, and format their answers. A disconnect of the client cancels them.

        Raises:
            Refusal: a job ended without an answer; if others have one, a timeout is no error.
        """

        async def wait():
            events = self.events(stream, answer_format)
            return {number: event async for number, event in events if event.reason}

        last_events = await self.unless_gone(wait(), stream, http)
        ends = [last_events[number] for number in sorted(last_events)]
        is_any_answered = any(map(answer_format.is_answer, ends))
        for end in ends:
            if not (end.is_answer or (is_any_answered and end.is_late)):
                raise failure(end.reason)
        self.log_texts((end.text for end in ends), "answers", http)
        return JSONResponse(answer_format.whole(ends))

    async def pieces(self, stream: EventStream, answer_format: AnswerFormat) -> AsyncIterator[str]:
        """Yield the events of a stream, and comments during pauses after the first event.

        Without comments, proxies close a connection that is silent for long.

        Raises:
            Refusal: a job ended without an answer.
        """
        opening = answer_format.opening()
        is_begun = False
        written = monotonic()
        async for number, event in self.events(stream, answer_format):
            if event.reason and not answer_format.is_answer(event):
                raise failure(event.reason)
            pieces = ()
            if event is not SILENCE:
                # the opening is exhausted after the first event
                pieces = (*opening, *answer_format.progress(number, event))
                is_begun = True
            # not every event has text
            if is_begun and not pieces and monotonic() - written >= HEARTBEAT_SECONDS:
                pieces = (": waiting\n\n",)
            for piece in pieces:
                written = monotonic()
                yield piece
        for piece in answer_format.closing():
            yield piece

    async def stream(
        self, stream: EventStream, answer_format: AnswerFormat, http: Request
    ) -> Response:
        """Respond with a stream of events, and cancel the jobs at its end.

        Raises:
            Refusal: there is no first event; later, a Refusal becomes the last event.
        """
        pieces = self.pieces(stream, answer_format)
        first = await self.unless_gone(anext(pieces), stream, http)

        async def events() -> AsyncIterator[str]:
            try:
                yield first
                async for piece in pieces:
                    yield piece
            except Refusal as refusal:
                yield data(refusal.body, answer_format.error_event)
            finally:
                self.engine.cancel(stream.jobs)
                self.note(stream.jobs, http)

        # Without this header, proxies would buffer the events.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    def note(self, submitted: Sequence[Job], http: Request):
        """Record tokens, waiting time and end of a request's jobs, for the middleware to log."""
        ends = [job.end for job in submitted if job.end]
        waits = [(job.started or monotonic()) - job.arrived for job in submitted]
        http.scope["state"]["noted"] = {
            "prompt_tokens": sum(job.request.prompt_tokens for job in submitted),
            "completion_tokens": sum(len(end.tokens) for end in ends),
            "queue_seconds": round(max(waits, default=0.0), 4),
            "reason": ",".join(sorted({end.reason for end in ends})),
        }

    def log_texts(self, texts: Iterable[str], name: str, http: Request):
        """Log prompts or answers if the operator wants it; otherwise they are not even read."""
        if self.settings.logs_prompts:
            logger.info("texts", extra={"fields": {"request_id": request_id(http), name: [*texts]}})

    # no coroutines: these run on threads, as a long text would hold up the event loop
    def tokenize(self, body: TokenizeBody) -> Response:
        """Return the tokens of a text or of a conversation."""
        self.find(body.model)
        try:
            tokens = body.gaps(self.tokenizer, self.engine.context)[0].before
        except ValueError as problem:
            raise invalid(problem) from problem
        texts = None
        if body.return_token_strs:
            texts = [jobs.spelling(self.tokenizer, token)["text"] for token in tokens]
        return JSONResponse(
            {
                "count": len(tokens),
                "max_model_len": self.engine.context,
                "tokens": tokens,
                "token_strs": texts,
            }
        )

    def detokenize(self, body: DetokenizeBody) -> Response:
        """Return the text of tokens, under the names that vLLM and llama.cpp give it."""
        self.find(body.model)
        try:
            text = self.tokenizer.decode(schemas.known_ids("tokens", body.tokens, self.tokenizer))
        except ValueError as problem:
            raise invalid(problem) from problem
        return JSONResponse({"prompt": text, "content": text})

    async def tokenizer_info(self) -> dict[str, str | None]:
        """Describe the tokenizer, as vLLM does for clients that tokenize here."""
        special = self.tokenizer.special
        return {
            "bos_token": special.begin,
            "eos_token": special.end,
            "pad_token": special.pad,
            "chat_template": self.tokenizer.chat_template,
        }

    async def version(self) -> Names:
        """Return the version of this package."""
        return {"version": version("jax-diffucoder")}

    async def models(self) -> Fields:
        """List the models: the one that is served and its adapters, plain and with each preset."""
        return {"object": "list", "data": [await self.model(name) for name in self.names]}

    async def model(self, name: str) -> Fields:
        """Describe a model."""
        context = self.engine.context
        adapter, preset = self.find(name)
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "jax-diffucoder",
            # of an adapter: where it came from, and its base
            "root": self.settings.adapters.get(adapter, self.settings.model),
            "parent": self.settings.model if adapter else None,
            "notice": self.settings.notice,
            "has_chat": self.tokenizer.chat_template is not None,
            # The page offers these; autoregressive models have none.
            "presets": self.presets,
            "preset": preset or self.settings.defaults.get("preset", "exact"),
            # names that clients of llama.cpp and of vLLM read
            "context_length": context,
            "max_model_len": context,
            # A prompt has at least one token.
            "max_tokens": min(self.engine.options.max_tokens, context - 1),
        }

    async def health(self) -> Response:
        """Answer 200 while the engine lives and the device does not hang."""
        return status_response(self.engine.is_alive, "ok", "stopped, or the device hangs")

    async def ready(self) -> Response:
        """Answer 200 after warm-up and until shutdown."""
        return status_response(
            self.engine.is_ready, "ready", "not ready", waits_for=self.engine.waits_for
        )

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(
            self.engine.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def create_app(engine: Engine, settings: ServerSettings, limits: RequestLimits) -> Guard:
    """Create the application, with its guard around it."""
    app = FastAPI(
        title="DiffuCoder",
        version=version("jax-diffucoder"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        exception_handlers=HANDLERS,
    )
    server = Server(engine, settings)
    answers: dict[int | str, Fields] = {400: {"description": "an option is out of range"}}
    # POST: requests for text
    for path, (body, kind) in ENDPOINTS.items():
        add_route = app.post(path, response_model=None, responses=answers, description=body.__doc__)
        add_route(endpoint_of(server, body, kind))
    for path, endpoint in (("/tokenize", server.tokenize), ("/detokenize", server.detokenize)):
        app.post(path, response_model=None, responses=answers)(endpoint)
    # GET: state of the server
    for path, endpoint in (
        ("/v1/models", server.models),
        ("/v1/models/", server.models),
        ("/v1/models/{name:path}", server.model),
        ("/version", server.version),
        ("/tokenizer_info", server.tokenizer_info),
        ("/health", server.health),
        ("/ready", server.ready),
        ("/metrics", server.metrics),
    ):
        app.get(path, response_model=None)(endpoint)
    add_page(app)
    return Guard(app, limits, engine.metrics)


def endpoint_of(
    server: Server, body_type: type[schemas.DecodingBody], kind: type[AnswerFormat]
) -> Callable[..., Awaitable[Response]]:
    """Return the function of a path, whose signature tells FastAPI the schema of the body."""

    async def answer(body: Any, http: Request):
        return await server.answer(body, kind, http)

    answer.__annotations__["body"] = body_type
    return answer


def status_response(is_good: bool, good: str, bad: str, **details: str | None) -> Response:
    return JSONResponse({"status": good if is_good else bad, **details}, 200 if is_good else 503)

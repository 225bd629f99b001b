"""The shapes of OpenAI's HTTP interface, and ours beside them: what a request may hold, what answers look like.

Knows neither HTTP nor the engine. What we do not have is refused by name, never ignored.
"""

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.jobs import Commit, Event

DEFAULT_TOKENS = 128
MAX_CHOICES, MAX_PROMPTS, MAX_STOPS = 8, 16, 4
MAX_SEED = 2**32 - 1
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

Text = Annotated[str, Field(max_length=200_000)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]


class Body(BaseModel):
    """A request: nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    include_usage: bool = False


class DecodingBody(Body):
    """Fields that all requests share: OpenAI's options that we have, and those of diffusion.

    `threshold` commits every token of at least that probability at once, in blocks of 32 unless `block_length` says
    otherwise (0 is the whole canvas); `steps` is the number of denoising steps, one per token if not given. `user` is
    for whoever keeps books in front of the server; nothing here looks at it.
    """

    model: str | None = Field(None, max_length=200)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    steps: int | None = Field(None, ge=1)
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right"] | None = None
    preset: Literal["exact", "fast", "turbo"] | None = None
    block_length: int | None = Field(None, ge=0)
    threshold: float | None = Field(None, gt=0, le=1)
    user: str | None = Field(None, max_length=200)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def length(self) -> int | None:
        """Tokens of the hole, if they were given."""
        return self.max_tokens

    def options(self, length: int) -> GenerationOptions:
        """Make the options of an answer of that many tokens."""
        decoding = Decoding(
            preset=self.preset or "exact",
            commit=None if self.threshold is None else "threshold",
            threshold=self.threshold,
            block_length=self.block_length,
        )
        given = {
            name: getattr(self, name) for name in ("temperature", "top_p", "alg") if getattr(self, name) is not None
        }
        return GenerationOptions(max_new_tokens=length, num_steps=self.steps, decoding=decoding, **given)

    @model_validator(mode="after")
    def agree(self) -> "DecodingBody":
        by_probability = self.threshold is not None or self.preset == "turbo"
        if by_probability and self.steps is not None:
            raise ValueError("steps: preset turbo and threshold decide the number of steps by themselves")
        if self.steps is not None and self.length is not None and self.steps > self.length:
            raise ValueError(f"steps: {self.steps} are more than the {self.length} tokens to decide")
        return self


class OpenAI(DecodingBody):
    """Options of OpenAI's two endpoints; those that we do not have may only say that they are off."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None


class CompletionBody(OpenAI):
    """POST /v1/completions; a `suffix` makes it infilling."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS)]
    suffix: Text | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=1)
    best_of: int | None = Field(None, ge=1)

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @model_validator(mode="after")
    def fit(self) -> "CompletionBody":
        if self.best_of not in (None, self.n):
            raise ValueError("best_of: only the value of n; answers are not ranked")
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs: a prompt has none, so that echo cannot be combined with them")
        return self


class TextPart(Body):
    type: Literal["text"]
    text: Text


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=64)]

    def plain(self) -> dict[str, str]:
        """As the chat template takes it; it has no developers."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": "system" if self.role == "developer" else self.role, "content": "".join(parts)}


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]


class ChatBody(OpenAI):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class DenoiseBody(DecodingBody):
    """POST /v1/denoise: one answer to a prompt (with a suffix: infilling) or a conversation, step by step."""

    prompt: Text | None = None
    suffix: Text | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def has_one_source(self) -> "DenoiseBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: give either a prompt or messages")
        if self.messages is not None and self.suffix is not None:
            raise ValueError("suffix: goes with a prompt, not with messages")
        return self


def error(message: str, *, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Refusal(Exception):  # noqa: N818 - it is an answer
    """A request that ends with an error, as the client is told it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.body = status, error(message, status=status, param=param, code=code)
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def log_probability(commit: Commit) -> float:
    """Of the token when it was committed, after temperature and filters."""
    return math.log(max(commit.confidence, 1e-30))


def completion_logprobs(tokens: Sequence[Commit], count: int) -> dict[str, Any]:
    """Only the chosen tokens have one: what else a position might have become is not kept."""
    offsets = [sum(len(token.text) for token in tokens[:place]) for place in range(len(tokens))]
    values = [log_probability(token) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": values,
        "top_logprobs": [{t.text: v} for t, v in zip(tokens, values, strict=True)] if count else None,
        "text_offset": offsets,
    }


def chat_logprobs(tokens: Sequence[Commit]) -> dict[str, Any]:
    content = [
        {"token": t.text, "logprob": log_probability(t), "bytes": list(t.text.encode()), "top_logprobs": []}
        for t in tokens
    ]
    return {"content": content, "refusal": None}


class AnswerFormat:
    """How one of OpenAI's endpoints words its answers.

    Args:
        identity: id of the answer.
        model: name of the model.
        body: what was asked.
    """

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, identity: str, model: str, body: OpenAI) -> None:
        self.body = body
        self.frame = {"id": f"{self.prefix}-{identity}", "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[tuple[Event, str]], prompt_tokens: int) -> dict[str, Any]:
        """The answer in one piece; each choice with the text that goes before it."""
        listed = [self.choice(index, *choice) for index, choice in enumerate(choices)]
        spent = usage(prompt_tokens, sum(len(finished.tokens) for finished, _ in choices))
        return self.frame | {"object": self.kind, "choices": listed, "usage": spent}

    def chunk(self, choices: list[dict[str, Any]], spent: dict[str, int] | None = None) -> dict[str, Any]:
        """A piece of a stream; `usage` is there if it was asked for, and null until the last piece."""
        options = self.body.stream_options
        last = {"usage": spent} if options is not None and options.include_usage else {}
        return self.frame | {"object": self.chunk_kind, "choices": choices} | last

    def choice(self, index: int, finished: Event, before: str) -> dict[str, Any]:
        assert isinstance(self.body, CompletionBody)
        count = self.body.logprobs
        logprobs = None if count is None else completion_logprobs(finished.tokens, count)
        text = before + finished.text
        return {"index": index, "text": text, "finish_reason": finished.reason, "logprobs": logprobs}

    def opening(self, index: int, before: str) -> list[dict[str, Any]]:
        """Begin the stream of a choice, before anything is decided."""
        return [self.delta(index, before)] if before else []

    def delta(self, index: int, text: str, finished: Event | None = None) -> dict[str, Any]:
        """More text of a choice; with its end, the reason, and the log-probabilities of all its tokens."""
        assert isinstance(self.body, CompletionBody)
        count = self.body.logprobs
        logprobs = completion_logprobs(finished.tokens, count) if finished and count is not None else None
        reason = finished.reason if finished else None
        return {"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}


class ChatFormat(AnswerFormat):
    """How the endpoint for conversations words its answers."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, index: int, finished: Event, before: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": finished.text, "refusal": None}
        return {
            "index": index,
            "message": message,
            "finish_reason": finished.reason,
            "logprobs": self.logprobs(finished),
        }

    def opening(self, index: int, before: str) -> list[dict[str, Any]]:
        start = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": start, "finish_reason": None, "logprobs": None}]

    def delta(self, index: int, text: str, finished: Event | None = None) -> dict[str, Any]:
        reason, delta = (finished.reason if finished else None), ({"content": text} if text else {})
        return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": self.logprobs(finished)}

    def logprobs(self, finished: Event | None) -> dict[str, Any] | None:
        assert isinstance(self.body, ChatBody)
        return chat_logprobs(finished.tokens) if finished and self.body.logprobs else None

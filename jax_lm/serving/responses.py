"""Answers in OpenAI's format: texts, streams, log-probabilities; and decoding as events.

Knows neither HTTP nor the engine. What a request may contain is in `schemas`.
"""

import json
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from jax_lm.config import Fields
from jax_lm.serving.jobs import Commit, Commits, Event, Request, TokenLogProb
from jax_lm.serving.schemas import DecodingBody, Gap

# The events of a stream as text.
Pieces = Iterator[str]
# How the log-probabilities of a prompt were computed; a masked-diffusion model defines none.
PROMPT_ESTIMATOR = "left to right: each token given those before it, the later ones masked"
# Fields of a commit that clients of /v1/denoise receive.
COMMIT_FIELDS = ("position", "token_id", "text", "confidence", "step")


def data(content: Fields | str, event: str | None = None) -> str:
    """Format a server-sent event."""
    # "event: done\ndata: {...}\n\n"; a blank line ends the event
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return (f"event: {event}\n" if event else "") + f"data: {text}\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> Fields:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion_logprobs(tokens: Commits, count: int) -> Fields:
    """Format log-probabilities of a completion: OpenAI's lists, confidences and commit steps.

    Args:
        tokens: tokens of the prompt, if it is echoed, and of the answer. The first of a prompt has
            no log-probability.
        count: number of most likely tokens that the request asked for, which `tokens` have; with 0
            none are listed.
    """
    # OpenAI's lists of top tokens include the chosen token
    top_logprobs = [
        {token_name(each): each.value for each in token.logprobs} or None for token in tokens
    ]
    # Tokens "ab", the first byte of "é", the second, "c" begin at 0, 2, 2, 3.
    decode = getincrementaldecoder("utf-8")("replace").decode
    ends = accumulate((len(decode(token.content)) for token in tokens), initial=0)
    return {
        "tokens": [*map(token_name, tokens)],
        "token_logprobs": [token.logprobs[0].value if token.logprobs else None for token in tokens],
        "top_logprobs": top_logprobs if count else None,
        "text_offset": list(ends)[:-1],
        "confidences": [token.confidence for token in tokens],
        "commit_steps": [token.step for token in tokens],
    }


def chat_logprobs(tokens: Commits) -> Fields:
    """Format log-probabilities of a message: OpenAI's objects, confidences and commit steps."""

    def describe(token: TokenLogProb):
        return {"token": token.text, "logprob": token.value, "bytes": list(token.content)}

    content = []
    for token in tokens:
        chosen, *top = map(describe, token.logprobs)
        content.append(
            {
                **chosen,
                "top_logprobs": top,
                "confidence": token.confidence,
                "commit_step": token.step,
            }
        )
    return {"content": content, "refusal": None}


def token_name(token: Commit | TokenLogProb) -> str:
    """Return the text of a token, or its bytes in OpenAI's notation if they are not text."""
    # b"\xe2\x82" -> "bytes:\xe2\x82"
    try:
        return token.content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.content)


class AnswerFormat:
    """Format of the answers of /v1/completions.

    Args:
        identity: id of the request.
        model: name of the model.
        body: the request.

    Attributes:
        error_event: name of the event by which a stream reports an error.
        streams: whether the answer is a stream by default.
        allows_partial: whether, after a timeout, the text that is final counts as an answer.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"
    error_event: str | None = None
    allows_partial = streams = False

    def __init__(self, identity: str, model: str, body: DecodingBody):
        self.body: Any = body
        self.is_stream: bool = getattr(body, "stream", self.streams)
        self.identity = identity
        self.model = model
        self.frame = {
            "id": f"{self.prefix}-{identity}",
            "created": int(time.time()),
            "model": model,
        }

    def begin(self, gaps: Sequence[Gap], requests: Sequence[Request]):
        """Note the encoded texts and the requests: one per choice, none if nothing is decoded."""
        self.prompt_tokens = sum(gap.tokens for gap in gaps)
        self.choices = [gap for gap in gaps for _ in range(self.body.choices)]
        self.requests = requests
        # progress of a stream: tokens of all choices, and characters sent of each
        self.tokens = 0
        self.sent = [0] * len(self.choices)

    def whole(self, ends: Sequence[Event]) -> Any:
        """Format an answer in one piece. Choices that were not done in time are left out.

        The others keep their index, which says which prompt they answer.
        """
        done = {index: end for index, end in enumerate(ends) if end.is_answer}
        return self.frame | {
            "object": self.kind,
            "choices": [self.choice(*each) for each in done.items()],
            "usage": usage(self.prompt_tokens, sum(len(end.tokens) for end in done.values())),
        }

    def is_answer(self, end: Event) -> bool:
        """Whether a choice ended with an answer; with `allows_partial`, a late end is one too."""
        return end.is_answer or (self.allows_partial and end.is_late)

    def opening(self) -> Pieces:
        """Yield the beginning of a stream."""
        for index, gap in enumerate(self.choices):
            if gap.echo:
                yield self.chunk(self.delta(index, gap.echo))

    def progress(self, index: int, event: Event) -> Pieces:
        """Yield what an event adds to a stream: text that is final, and the end of a choice."""
        if text := self.new_text(index, event.text):
            yield self.chunk(self.delta(index, text))
        if event.reason:
            self.tokens += len(event.tokens)
            yield self.chunk(self.delta(index, "", event))

    def new_text(self, index: int, text: str) -> str:
        """Return the part of a choice's text that a stream has not sent yet."""
        fresh, self.sent[index] = text[self.sent[index] :], len(text)
        return fresh

    def nothing(self) -> Pieces:
        """Yield nothing, where a stream has no beginning or no end."""
        yield from ()

    def closing(self) -> Pieces:
        """Yield the end of a stream."""
        if self.with_usage:
            # the chunk with the usage has no choices
            yield self.chunk(total=usage(self.prompt_tokens, self.tokens))
        yield data("[DONE]")

    @property
    def with_usage(self) -> bool:
        options = self.body.stream_options
        return options is not None and options.include_usage

    def chunk(self, *choices: Fields, total: Fields | None = None) -> str:
        """Format a chunk of a stream; `usage`, if requested, is null until the last chunk."""
        chunk = self.frame | {"object": self.chunk_kind, "choices": choices}
        return data(chunk | {"usage": total} if self.with_usage else chunk)

    def choice(self, index: int, end: Event) -> Fields:
        return self.delta(index, self.choices[index].echo + end.text, end)

    def delta(self, index: int, text: str, end: Event | None = None) -> Fields:
        """Return more text of a choice, or its end with the log-probabilities of all tokens."""
        return self.frame_choice(index, {"text": text}, end)

    def frame_choice(self, index: int, content: Fields, end: Event | None) -> Fields:
        return {
            "index": index,
            **content,
            "finish_reason": end.reason if end else None,
            "logprobs": self.logprobs(index, end.tokens) if end else None,
        }

    def logprobs(self, index: int, tokens: Commits) -> Fields | None:
        count = self.body.logprobs
        scored = self.choices[index].scored
        if count is None:
            return None
        logprobs = completion_logprobs((*scored, *tokens), count)
        return logprobs | {"prompt_estimator": PROMPT_ESTIMATOR} if scored else logprobs


class ChatFormat(AnswerFormat):
    """Format of the answers of /v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def choice(self, index, end) -> Fields:
        message = {"role": "assistant", "content": end.text, "refusal": None}
        return self.frame_choice(index, {"message": message}, end)

    def opening(self) -> Pieces:
        for index in range(len(self.choices)):
            delta = {"role": "assistant", "content": ""}
            yield self.chunk(self.frame_choice(index, {"delta": delta}, None))

    def delta(self, index, text, end=None) -> Fields:
        return self.frame_choice(index, {"delta": {"content": text} if text else {}}, end)

    def logprobs(self, index, tokens) -> Fields | None:
        return None if self.body.wanted_logprobs is None else chat_logprobs(tokens)


class DenoiseFormat(AnswerFormat):
    """Format of /v1/denoise: the events `start`, any number of `commits`, and `done`."""

    error_event = "error"
    streams = True

    def opening(self) -> Pieces:
        (request,) = self.requests
        yield data(
            {
                "id": self.identity,
                "model": self.model,
                "seed": request.seed,
                "prompt_tokens": self.prompt_tokens,
                "length": request.options.max_new_tokens,
            },
            "start",
        )

    def progress(self, index, event) -> Pieces:
        state = {"text": event.text, "forwards": event.forwards}
        if event.commits:
            commits = [
                {name: getattr(each, name) for name in COMMIT_FIELDS} for each in event.commits
            ]
            yield data(state | {"commits": commits}, "commits")
        if event.reason:
            yield data(state | {"finish_reason": event.reason, "tokens": len(event.tokens)}, "done")

    closing = AnswerFormat.nothing

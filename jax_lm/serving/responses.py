"""Answers in OpenAI's format: texts, chunks of a stream, log-probabilities.

Knows neither HTTP nor the engine. What a request may contain is in `schemas`.
"""

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from jax_lm.serving.jobs import Commit, Event, TokenLogProb
from jax_lm.serving.schemas import OpenAIBody

Json = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    total = prompt_tokens + completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": total,
    }


def completion_logprobs(tokens: Sequence[Commit], count: int) -> Json:
    """Format log-probabilities of a completion: OpenAI's lists, confidences and commit steps."""
    logprobs = [require_logprob(token) for token in tokens]
    # OpenAI reports the chosen token along with the most likely ones
    top = [
        {token_name(each): each.value for each in (*token.top, logprob)}
        for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    # Texts "ab", "c", "" begin at 0, 2, 3.
    ends = accumulate((len(token.text) for token in tokens), initial=0)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [logprob.value for logprob in logprobs],
        "top_logprobs": top if count else None,
        "text_offset": list(ends)[:-1],
        "confidences": [token.confidence for token in tokens],
        "commit_steps": [token.step for token in tokens],
    }


def chat_logprobs(tokens: Sequence[Commit]) -> Json:
    """Format log-probabilities of a message: OpenAI's objects, confidences and commit steps."""

    def describe(token: TokenLogProb) -> Json:
        return {"token": token.text, "logprob": token.value, "bytes": list(token.content)}

    content = [
        describe(require_logprob(token))
        | {"top_logprobs": [describe(each) for each in token.top]}
        | {"confidence": token.confidence, "commit_step": token.step}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def require_logprob(token: Commit) -> TokenLogProb:
    assert token.logprob is not None
    return token.logprob


def token_name(token: TokenLogProb) -> str:
    """Return the text of a token, or its bytes in OpenAI's notation if they are not text."""
    # b"\xe2\x82" -> "bytes:\xe2\x82"
    try:
        return token.content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.content)


class AnswerFormat:
    """Format of the answers of /v1/completions.

    Args:
        identity: id of the answer.
        model: name of the model.
        body: the request.
    """

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, identity: str, model: str, body: OpenAIBody) -> None:
        self.body: Any = body
        options = body.stream_options
        self.with_usage = options is not None and options.include_usage
        self.frame = {
            "id": f"{self.prefix}-{identity}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[tuple[Event, str]], prompt_tokens: int) -> Json:
        """Format an answer in one piece. Each choice is an event with the text before it."""
        tokens = sum(len(end.tokens) for end, _ in choices)
        return self.frame | {
            "object": self.kind,
            "choices": [self.choice(index, *choice) for index, choice in enumerate(choices)],
            "usage": usage(prompt_tokens, tokens),
        }

    def chunk(self, *choices: Json, total: Json | None = None) -> Json:
        """Format a chunk of a stream; `usage`, if requested, is null until the last chunk."""
        chunk = self.frame | {"object": self.chunk_kind, "choices": choices}
        return chunk | {"usage": total} if self.with_usage else chunk

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[Json | str]:
        """Return the end of a stream."""
        # the chunk with the usage has no choices
        last = [self.chunk(total=usage(prompt_tokens, completion_tokens))]
        return [*(last if self.with_usage else []), "[DONE]"]

    def choice(self, index: int, end: Event, before: str) -> Json:
        return self.delta(index, before + end.text, end)

    def opening(self, index: int, before: str) -> list[Json]:
        """Return the choices that begin the stream of an answer."""
        return [self.delta(index, before)] if before else []

    def delta(self, index: int, text: str, end: Event | None = None) -> Json:
        """Return more text of a choice, or its end with the log-probabilities of all tokens."""
        return self.frame_choice(index, {"text": text}, end)

    def frame_choice(self, index: int, content: Json, end: Event | None) -> Json:
        return {
            "index": index,
            **content,
            "finish_reason": end.reason if end else None,
            "logprobs": self.logprobs(end.tokens) if end else None,
        }

    def logprobs(self, tokens: Sequence[Commit]) -> Json | None:
        count = self.body.logprobs
        return None if count is None else completion_logprobs(tokens, count)


class ChatFormat(AnswerFormat):
    """Format of the answers of /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, index: int, end: Event, before: str) -> Json:
        message = {"role": "assistant", "content": end.text, "refusal": None}
        return self.frame_choice(index, {"message": message}, end)

    def opening(self, index: int, before: str) -> list[Json]:
        return [self.frame_choice(index, {"delta": {"role": "assistant", "content": ""}}, None)]

    def delta(self, index: int, text: str, end: Event | None = None) -> Json:
        return self.frame_choice(index, {"delta": {"content": text} if text else {}}, end)

    def logprobs(self, tokens: Sequence[Commit]) -> Json | None:
        return chat_logprobs(tokens) if self.body.logprobs else None

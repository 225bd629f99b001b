"""How answers are worded in OpenAI's HTTP interface: errors, texts, pieces of a stream, log-probabilities.

Knows neither HTTP nor the engine. What a request may hold is `bodies`.
"""

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from jax_lm.serving.jobs import Commit, Event, TokenLogProb
from jax_lm.serving.schemas import ChatBody, CompletionBody, OpenAI

ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


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


def completion_logprobs(tokens: Sequence[Commit], count: int) -> dict[str, Any]:
    """Log-probabilities of a completion: OpenAI's lists, and beside them how sure and when each token was decided."""
    offsets = [0, *accumulate(len(token.text) for token in tokens)][: len(tokens)]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [told(token).value for token in tokens],
        "top_logprobs": [{name(each): each.value for each in (*t.top, told(t))} for t in tokens] if count else None,
        "text_offset": offsets,
        "confidences": [token.confidence for token in tokens],
        "commit_steps": [token.step for token in tokens],
    }


def told(token: Commit) -> TokenLogProb:
    """The log-probability of a token whose request wanted it."""
    assert token.logprob is not None
    return token.logprob


def name(token: TokenLogProb) -> str:
    """The text of a token as a key: bytes that are no text by themselves are spelled out, as OpenAI does."""
    try:
        return token.content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.content)


def chat_logprobs(tokens: Sequence[Commit]) -> dict[str, Any]:
    """Log-probabilities of a message: OpenAI's objects, with how sure and when each token was decided."""

    def worded(token: TokenLogProb) -> dict[str, Any]:
        return {"token": token.text, "logprob": token.value, "bytes": list(token.content)}

    content = [
        worded(told(token))
        | {"top_logprobs": [worded(each) for each in token.top]}
        | {"confidence": token.confidence, "commit_step": token.step}
        for token in tokens
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

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[dict[str, Any] | str]:
        """End a stream: what it took, if that was asked for, and the mark of the end."""
        options = self.body.stream_options
        wants_usage = options is not None and options.include_usage
        return [*[self.chunk([], usage(prompt_tokens, completion_tokens))] * wants_usage, "[DONE]"]

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

"""A request on its way through the engine: what was asked, what has become final, how it ended.

Turns decided tokens into text and stop texts into ends. Knows neither queue nor device.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from jax_lm.options import GenerationOptions
from jax_lm.serving.growing import GrowingSequence
from jax_lm.serving.sequence import Sequence
from jax_lm.tokenizer import DiffuCoderTokenizer

REPLACEMENT = "\ufffd"
LEAST_LOGPROB = -9999.0
"""What OpenAI's interface has for a token that is as good as impossible."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion.

    Attributes:
        before: ids before the hole; at least one.
        after: ids after it.
        is_gap: whether a text follows the hole, be it empty: only then it may find its own length.
        is_message: whether the answer stands alone, as in a conversation: no grammar reads what is before it.
        options: how to decode; max_new_tokens is the length of the hole.
        stop: texts that end the answer; they are not part of it.
        seed: of the draws.
        index: number among the answers to one prompt; with the seed it decides the draws.
        logprobs: likeliest tokens to tell of each position, with their log-probabilities; None tells none.
    """

    before: tuple[int, ...]
    after: tuple[int, ...] = ()
    is_gap: bool = False
    is_message: bool = False
    options: GenerationOptions
    stop: tuple[str, ...] = ()
    seed: int = 0
    index: int = 0
    logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenLogProb:
    """A token, its text, its bytes, and its log-probability before temperature and filters."""

    text: str
    content: bytes
    value: float


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A position of the hole that was decided.

    Attributes:
        confidence: probability of the token, after temperature and filters.
        step: number of the step that decided it; a step may decide several.
        logprob: of the token; None unless the request wants log-probabilities.
        top: the likeliest tokens when it was decided, as many as the request wants.
    """

    position: int
    token_id: int
    text: str
    confidence: float
    step: int
    logprob: TokenLogProb | None = None
    top: tuple[TokenLogProb, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """News of a job: positions that some steps decided, or how it ended.

    Attributes:
        job: None of an answer that nothing had to be decided for.
        reason: of its end: stop, length, cancelled, timeout, shutdown or error; None while it goes on.
        text: of the answer, all that can no longer change.
        commits: positions decided since the last event, in the order of the steps.
        tokens: at the end, the answer's tokens in the order of the text, without stop tokens.
        forwards: model evaluations so far.
        error: what went wrong, for the log of whoever runs the server.
    """

    job: "Job | None" = None
    reason: str | None = None
    text: str = ""
    commits: tuple[Commit, ...] = ()
    tokens: tuple[Commit, ...] = ()
    forwards: int = 0
    error: BaseException | None = None

    @property
    def is_answer(self) -> bool:
        return self.reason in ("stop", "length")


Listener = Callable[[Event], None]


@dataclass(kw_only=True, eq=False)
class Job:
    """A request, its sequence, and who listens.

    Attributes:
        deadline: when it must have ended, by the monotonic clock.
        arrived: when it came, likewise.
        first_text: when the first text became final.
        is_ended: whether the listener was told of its end.
        text: what of the answer is final.
        reported: positions of the hole that the listener knows.
    """

    request: Request
    sequence: Sequence | GrowingSequence
    listen: Listener
    deadline: float
    arrived: float = field(default_factory=time.monotonic)
    first_text: float | None = None
    is_cancelled: bool = False
    is_ended: bool = False
    text: str = ""
    reported: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.reported = np.zeros(self.sequence.most, bool)

    def look(self, tokenizer: DiffuCoderTokenizer) -> Event:
        """Tell what has become of the sequence since the last look."""
        commits = self.commits(tokenizer)
        sequence, is_done = self.sequence, self.sequence.is_done
        ids = sequence.tokens[sequence.hole.start : sequence.settled].tolist()
        stop_ids = sequence.stop_ids
        text = tokenizer.decode(takewhile(lambda token: token not in stop_ids, ids), skip_special_tokens=True)
        if not is_done:
            # A character may still lack its last bytes.
            text = text.rstrip(REPLACEMENT)
        ends = [text.find(stop) for stop in self.request.stop if stop in text]
        if ends or is_done:
            self.text = text[: min(ends)] if ends else text
            return Event(
                job=self,
                reason="stop" if ends or sequence.is_stopped else "length",
                text=self.text,
                commits=commits,
                tokens=self.tokens(tokenizer, ids, is_cut=bool(ends)),
                forwards=sequence.forwards,
            )
        self.text = without_beginning(text, self.request.stop)
        return Event(job=self, text=self.text, commits=commits, forwards=sequence.forwards)

    def commits(self, tokenizer: DiffuCoderTokenizer) -> tuple[Commit, ...]:
        """List the positions that were decided and not reported yet, in the order of the steps."""
        fresh = self.sequence.final & ~self.reported
        self.reported |= fresh
        found = [self.commit(position, tokenizer) for position in np.flatnonzero(fresh).tolist()]
        return tuple(sorted(found, key=lambda commit: commit.step))

    def commit(self, position: int, tokenizer: DiffuCoderTokenizer) -> Commit:
        """Describe a decided position of the hole."""
        sequence, column = self.sequence, self.sequence.hole.start + position
        token, logprob, top = int(sequence.tokens[column]), None, ()
        if self.request.logprobs is not None and sequence.logprobs is not None:
            chosen, values, ids = (part[column] for part in sequence.logprobs)
            logprob = token_logprob(tokenizer, token, float(chosen))
            pairs = zip(ids[: self.request.logprobs].tolist(), values.tolist(), strict=False)
            top = tuple(token_logprob(tokenizer, other, value) for other, value in pairs)
        return Commit(
            position=position,
            token_id=token,
            text=tokenizer.decode([token]),
            confidence=float(sequence.confidence[column]),
            step=int(sequence.commit_step[column]),
            logprob=logprob,
            top=top,
        )

    def tokens(self, tokenizer: DiffuCoderTokenizer, ids: list[int], *, is_cut: bool) -> tuple[Commit, ...]:
        """The tokens that the text is made of: up to a stop token, and to where a stop text cut it."""
        stop_ids = self.sequence.stop_ids
        kept = next((index for index, token in enumerate(ids) if token in stop_ids), len(ids))
        # Without stop tokens every token counts, also those that are no text.
        while (
            (is_cut or stop_ids)
            and kept
            and len(tokenizer.decode(ids[: kept - 1], skip_special_tokens=True)) >= len(self.text)
        ):
            kept -= 1
        return tuple(self.commit(position, tokenizer) for position in range(kept))


def token_logprob(tokenizer: DiffuCoderTokenizer, token: int, value: float) -> TokenLogProb:
    """Describe a token; what the model rules out has a log-probability that JSON can write."""
    value = max(value, LEAST_LOGPROB)
    return TokenLogProb(text=tokenizer.decode([token]), content=tokenizer.token_bytes(token), value=value)


def without_beginning(text: str, stops: tuple[str, ...]) -> str:
    """The text without an end that might grow into a stop text."""
    longest = max(map(len, stops), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return text[:-length]
    return text


class Inbox:
    """Events of some jobs, carried from the engine's thread to the event loop."""

    def __init__(self, *, hears_progress: bool) -> None:
        self.hears_progress = hears_progress
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Event]()

    def listen(self, event: Event) -> None:
        """Called on the engine's thread."""
        if self.hears_progress or event.reason:
            # The loop may be gone when the server stops.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def events(self, count: int) -> AsyncIterator[Event]:
        """Until so many jobs have ended."""
        while count:
            event = await self.queue.get()
            count -= event.reason is not None
            yield event

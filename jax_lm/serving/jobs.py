"""A job is one request on its way through the engine. Its events report the progress.

Decodes tokens to text, and ends answers at stop texts. Knows neither queue nor device.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from jax_lm.config import Fields, Ints, Texts
from jax_lm.options import GenerationOptions
from jax_lm.serving.sequence import Sequence
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds

logger = logging.getLogger(__name__)

# The tokenizer decodes an incomplete UTF-8 sequence to this character.
REPLACEMENT = "\ufffd"
# Log-probability of a practically impossible token, as in OpenAI's interface.
MIN_LOGPROB = -9999.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for one completion.

    Attributes:
        before: ids before the hole; at least one.
        after: ids after the hole.
        is_gap: whether the hole lies between two texts, of which the second may be empty. Only then
            it may find its own length.
        is_message: whether the answer is a message of its own: a grammar does not read the text
            around it.
        adapter: name of the adapter of the model; empty for the model itself.
        options: how to decode; max_new_tokens is the length of the hole.
        stop: texts that end the answer and do not belong to it.
        seed: seed of the random draws.
        index: number among the answers to one prompt; the draws depend on it and on the seed.
        logprobs: number of most likely tokens to report per position, with log-probabilities;
            None reports none.
    """

    before: Ints
    after: Ints = ()
    is_gap: bool = False
    is_message: bool = False
    adapter: str = ""
    options: GenerationOptions
    stop: Texts = ()
    seed: int = 0
    index: int = 0
    logprobs: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(frozen=True, kw_only=True)
class TokenLogProb:
    """A token, its text, its bytes, and its log-probability before temperature and filters."""

    text: str
    content: bytes
    value: float


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A decided position of the hole.

    Attributes:
        content: bytes of the token, which may be a part of a character.
        confidence: probability of the token, after temperature and filters; None for a given token.
        step: number of the step that decided it; a step may decide several positions.
        logprobs: log-probabilities of the token, and of the most likely tokens when it was decided;
            empty unless the request asks for them.
    """

    position: int
    token_id: int
    text: str
    content: bytes
    confidence: float | None = None
    step: int | None = None
    logprobs: tuple[TokenLogProb, ...] = ()


Commits = tuple[Commit, ...]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Progress of a job, or its end.

    Attributes:
        job: None if the answer needed no decoding.
        reason: why the job ended: stop, length, cancelled, timeout, compiling (a timeout while its
            program was compiled), shutdown, engine_failed, not_finite or error; empty while it
            continues.
        text: the part of the answer that can no longer change.
        commits: positions decided since the last event, in the order of the steps.
        tokens: at the end, the tokens of the answer in the order of the text, without stop tokens.
        forwards: forward passes so far.
    """

    job: "Job | None" = None
    reason: str = ""
    text: str = ""
    commits: Commits = ()
    tokens: Commits = ()
    forwards: int = 0

    @property
    def is_answer(self) -> bool:
        return self.reason in ("stop", "length")

    @property
    def is_late(self) -> bool:
        return self.reason in ("timeout", "compiling")


# Yielded when no event has arrived for some time.
SILENCE = Event()

Listener = Callable[[Event], None]


@dataclass(kw_only=True, eq=False)
class Job:
    """A request with its sequence and the listener to its events.

    Attributes:
        deadline: when the job must have ended, by the monotonic clock.
        with_progress: whether the listener receives all events, not only the last one.
        arrived: when the request arrived, by the same clock.
        started: when it got a slot; None while it waits.
        end: the last event; None until the listener has received it.
        text: the part of the answer that is final.
        reported: positions of the hole that the listener knows [n]; False before the first event.
        delivering: held while an event is marked as the last one.
    """

    request: Request
    sequence: Sequence
    tokenizer: DiffuCoderTokenizer
    listen: Listener
    deadline: float
    with_progress: bool = True
    arrived: float = field(default_factory=monotonic)
    started: float | None = None
    is_cancelled: bool = False
    end: Event | None = None
    text: str = ""
    reported: Any = False
    delivering: Lock = field(default_factory=Lock)

    @property
    def age(self) -> float:
        """Seconds since the request arrived."""
        return monotonic() - self.arrived

    def deliver(self, event: Event):
        """Call the listener on the current thread, unless it has received the last event."""
        # `give_up` may deliver the end on another thread at the same time
        with self.delivering:
            if self.end:
                return
            self.end = event if event.reason else None
        try:
            self.listen(event)
        except Exception:  # whatever a listener raises must not end the engine
            logger.exception("a listener failed")

    def ending(self, reason: str, error: Exception | None = None) -> Event:
        """Return the event that ends the job without a complete answer."""
        reason = "not_finite" if isinstance(error, FloatingPointError) else reason
        return Event(job=self, reason=reason, text=self.text, forwards=self.sequence.forwards)

    def next_event(self) -> Event:
        """Return the event with everything that has become final since the last one."""
        # 1. positions that the client does not know yet
        commits = self.commits() if self.with_progress else ()
        sequence = self.sequence
        is_done = sequence.is_done
        # 2. text before the first mask and the first stop token
        ids = sequence.tokens[sequence.hole.start : sequence.first_open].tolist()
        ids = [*takewhile(lambda token: token not in sequence.stop_ids, ids)]
        text = self.decode(ids)
        if not is_done:
            # A character may still lack its last bytes.
            text = text.rstrip(REPLACEMENT)
        # 3. the end of the answer: a stop text, a stop token, or the end of the hole
        stops = [text.find(stop) for stop in self.request.stop if stop in text]
        reason = ""
        tokens = ()
        if stops or is_done:
            reason = "stop" if stops or sequence.is_stopped else "length"
            self.text = text[: min(stops)] if stops else text
            tokens = self.tokens(ids, is_cut=bool(stops))
        else:
            self.text = without_stop_beginning(text, self.request.stop)
        return Event(
            job=self,
            reason=reason,
            text=self.text,
            commits=commits,
            tokens=tokens,
            forwards=sequence.forwards,
        )

    def decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def commits(self) -> Commits:
        """Return the positions decided but not reported yet, in the order of the steps."""
        # final [1, 1, 0] and reported [1, 0, 0] -> fresh [0, 1, 0]
        fresh = self.sequence.final > self.reported
        self.reported |= fresh
        commits = map(self.commit, np.flatnonzero(fresh).tolist())
        return tuple(sorted(commits, key=lambda commit: commit.step or 0))

    def commit(self, position: int) -> Commit:
        """Describe a decided position of the hole."""
        sequence = self.sequence
        column = sequence.hole.start + position
        # positions count from the hole, columns from the start of the canvas
        token = int(sequence.tokens[column])
        logprobs = []
        if sequence.logprobs is not None:
            chosen, values, ids = (part[column] for part in sequence.logprobs)
            top_ids = ids[: self.request.logprobs].tolist()
            logprobs = [(token, chosen), *zip(top_ids, values, strict=False)]
        return describe(
            self.tokenizer,
            position,
            token,
            logprobs,
            confidence=float(sequence.confidence[column]),
            step=int(sequence.commit_step[column]),
        )

    def tokens(self, ids: TokenIds, *, is_cut: bool) -> Commits:
        """Return the tokens of the text, up to the first stop text; `ids` have no stop token."""
        end = len(ids)
        # With `ignore_eos` (no stop tokens), every token counts, even one that adds no text.
        if is_cut or self.sequence.stop_ids:
            # the first tokens that have all of the text; by bisection, as decoding takes long
            # (lengths would not do: a part of a character is a character, too)
            end = bisect_left(
                range(end), True, key=lambda count: self.decode(ids[:count]).startswith(self.text)
            )
        return tuple(map(self.commit, range(end)))


def describe(
    tokenizer: DiffuCoderTokenizer,
    position: int,
    token: int,
    logprobs: Iterable[tuple] = (),
    **decision: Any,
) -> Commit:
    """Describe a token.

    Args:
        decision: confidence and step, if it was decided.
        logprobs: (token, log-probability) pairs: the token itself, then the most likely ones.
    """
    return Commit(
        position=position,
        token_id=token,
        logprobs=tuple(
            # finite, as JSON has no -inf for impossible tokens
            TokenLogProb(**spelling(tokenizer, each), value=max(float(value), MIN_LOGPROB))
            for each, value in logprobs
        ),
        **spelling(tokenizer, token),
        **decision,
    )


# Answers repeat their tokens, and an answer describes each of them twice.
@lru_cache(2**14)
def spelling(tokenizer: DiffuCoderTokenizer, token: int) -> Fields:
    """Return text and bytes of a token, by the names of the fields that have them."""
    return {"text": tokenizer.decode([token]), "content": tokenizer.token_bytes(token)}


def without_stop_beginning(text: str, stops: Texts) -> str:
    """Remove the end of a text if it may be the beginning of a stop text."""
    # "ab\n" -> "ab" if "\n\n" is a stop text
    for start in range(max(0, len(text) - max(map(len, stops), default=0)), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[:start]
    return text


class EventStream:
    """Passes the events of some jobs from the engine's thread to the event loop.

    Attributes:
        jobs: the jobs, once they are in the queue.
    """

    def __init__(self):
        self.jobs = list[Job]()
        self.loop = asyncio.get_running_loop()
        self.queue = asyncio.Queue[Event]()

    def listen(self, event: Event):
        """Receive an event on the engine's thread."""
        # The event loop may be closed already when the server stops.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def events(self, seconds: float) -> AsyncIterator[Event]:
        """Yield events until all jobs have ended, and SILENCE if none comes for `seconds`.

        The engine ends jobs that are late, but not while a call of the device or the warm-up lasts.
        After such a silence, late jobs are ended here.
        """
        # every job ends with exactly one event that has a reason
        count = len(self.jobs)
        while count:
            event = SILENCE
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    event = await self.queue.get()
            if event is SILENCE:
                for job in self.jobs:
                    if monotonic() > job.deadline:
                        job.deliver(job.ending("timeout"))
            count -= bool(event.reason)
            yield event

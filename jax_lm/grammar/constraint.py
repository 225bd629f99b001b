"""A constraint: one answer, as tokens, under a grammar. Knows tokens and text; who decodes asks it.

What it lets through always has an end that fits in what is left of the hole, and it knows that end.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from jax_lm.grammar import Grammar
from jax_lm.tokenizer import DiffuCoderTokenizer

REPLACEMENT = "\ufffd"


class GivenUpError(Exception):
    """Nobody wants to know any more."""


@dataclass(frozen=True)
class Constraint:
    """A grammar for a hole of `room` tokens between two texts.

    Attributes:
        stops: texts that end an answer, before them; what stands there must be right as it is, so that none of them
            stands in an answer that was decided for here.
        known: a right answer, remembered since a search from further on need not find its end again.
        given_up: set by whoever asks, on any thread, to end a search by GivenUpError.

    Raises:
        ValueError: no right text of so many tokens is known.
    """

    grammar: Grammar
    tokenizer: DiffuCoderTokenizer
    room: int
    before: str = ""
    after: str = ""
    stops: tuple[str, ...] = ()
    known: list[int] = field(default_factory=list, init=False)
    given_up: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        rest = self.searched([])
        if rest is None:
            raise ValueError(f"grammar: no text of at most {self.room} tokens is known that is right at this place")
        self.known[:] = rest

    def answer(self, ids: Iterable[int]) -> list[int]:
        """Leave out a stop token, and what follows it."""
        stops = self.tokenizer.stop_ids
        return list(takewhile(lambda token: token not in stops, ids))

    def rest(self, ids: Sequence[int]) -> list[int] | None:
        """Find tokens that make these whole and fit; none if they are whole, None if no end is known."""
        rest = self.searched(ids)
        if rest is None and self.known[: len(ids)] == list(ids):
            return self.known[len(ids) :]
        return rest

    def searched(self, ids: Sequence[int]) -> list[int] | None:
        """Search for the rest by the grammar alone."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if text.endswith(REPLACEMENT):
            # A character that lacks its last bytes.
            return None
        end = self.end(text)
        if end is None or any(stop in text + end for stop in self.stops):
            return None
        rest = self.tokenizer.encode_plain(end)
        return None if len(ids) + len(rest) > self.room else rest

    def end(self, text: str) -> str | None:
        """Ask the grammar for an end of an answer."""
        if self.given_up.is_set():
            raise GivenUpError
        before, after = (self.before, self.after) if self.grammar.reads_prompt else ("", "")
        return self.grammar.completion(before + text, after)

    def is_met(self, ids: Sequence[int]) -> bool:
        """Tell whether an answer is right as it stands, up to a stop text."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        ends = [text.find(stop) for stop in self.stops if stop in text]
        return self.end(text[: min(ends)]) == "" if ends else self.rest(ids) == []

    def wrong_from(self, ids: Sequence[int], least: int) -> int | None:
        """Count the tokens of an answer that can stay, at least `least`; None if it is right as it stands."""
        return None if self.is_met(ids) else self.kept(ids, least)

    def kept(self, ids: Sequence[int], least: int) -> int:
        """Count the tokens of an answer that can stay: some with a known end, at least `least`, found by halving."""
        most = len(ids)
        while least < most:
            middle = (least + most + 1) // 2
            if self.rest(ids[:middle]) is None:
                most = middle - 1
            else:
                least = middle
        return least

    def next_token(self, ids: Sequence[int], candidates: Iterable[int]) -> int:
        """Choose what follows tokens that can stay: the first candidate that can, else as the known end goes on.

        A stop token can follow what is right as it stands.
        """
        rest, stops = self.rest(ids), self.tokenizer.stop_ids
        assert rest is not None, "tokens with a known end"
        for each in candidates:
            if each in stops:
                if not rest:
                    return each
            elif (end := self.rest([*ids, each])) is not None:
                self.known[:] = [*ids, each, *end]
                return each
        self.known[:] = [*ids, *rest]
        return rest[0] if rest else stops[0]

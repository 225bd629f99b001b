"""Constraints: the tokens of an answer must satisfy a grammar. Knows tokens and text.

A constraint accepts the beginning of an answer only if it knows an end for it that fits into the
rest of the hole.
"""

from dataclasses import dataclass, field
from itertools import chain
from threading import Event

from jax_lm.config import Texts
from jax_lm.grammar import Grammar
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds

REPLACEMENT = "\ufffd"


class GivenUpError(Exception):
    """Raised when a search is no longer needed."""


@dataclass(frozen=True)
class Constraint:
    """A grammar for a hole of `room` tokens between two texts.

    Attributes:
        stops: texts that end an answer. The text before a stop text must be valid by itself, so
            no answer is completed with a text that contains one.
        known: a valid answer. It is remembered because a search from a later token may not find
            its end again.
        given_up: set by any thread to end a search with GivenUpError.

    Raises:
        ValueError: no valid text of at most `room` tokens is known.
    """

    grammar: Grammar
    tokenizer: DiffuCoderTokenizer
    room: int
    before: str = ""
    after: str = ""
    stops: Texts = ()
    known: TokenIds = field(default_factory=list, init=False)
    given_up: Event = field(default_factory=Event, init=False)

    def __post_init__(self):
        # An empty answer must have an end that fits: otherwise no answer can be found later either.
        rest = self.search([])
        if rest is None:
            raise ValueError(
                f"grammar: no text of at most {self.room} tokens is known that is valid here"
            )
        self.known[:] = rest

    def rest(self, ids: TokenIds) -> TokenIds | None:
        """Return tokens that complete `ids`: [] if complete already, None if no end is known."""
        rest = self.search(ids)
        # known [5, 6, 7] with ids [5, 6] -> [7], even if the search finds no end any more
        if rest is None and self.known[: len(ids)] == ids:
            return self.known[len(ids) :]
        return rest

    def search(self, ids: TokenIds) -> TokenIds | None:
        """Return tokens that complete `ids` by the grammar alone, without the remembered answer."""
        text = self.decode(ids)
        if text.endswith(REPLACEMENT):
            # A character lacks its last bytes.
            return None
        end = self.find_end(text)
        if end is None or any(stop in text + end for stop in self.stops):
            return None
        # the end must fit too: 6 tokens and an end of 3 need 9 of the hole's tokens
        rest = self.tokenizer.encode_plain(end)
        return None if len(ids) + len(rest) > self.room else rest

    def decode(self, ids: TokenIds) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def find_end(self, text: str) -> str | None:
        """Return a text that completes the text of an answer; None if none is known."""
        if self.given_up.is_set():
            raise GivenUpError
        # a program is prompt, answer and suffix together
        if self.grammar.reads_prompt:
            return self.grammar.completion(self.before + text, self.after)
        return self.grammar.completion(text)

    def is_met(self, ids: TokenIds) -> bool:
        """Return whether an answer is valid without a completion, up to the first stop text."""
        text = self.decode(ids)
        # with stops ("\n\n",) the text "a\n\nb" is judged as "a"
        stops = [text.find(stop) for stop in self.stops if stop in text]
        return self.find_end(text[: min(stops)]) == "" if stops else self.rest(ids) == []

    def count_valid(self, ids: TokenIds, least: int) -> int:
        """Return a number of tokens, at least `least`, that have a known end, by bisection."""
        # Bisection works because every prefix of tokens that have an end has an end, too.
        # Invariant: `least` tokens have an end, and the result lies in [least, most].
        most = len(ids)
        while least < most:
            middle = (least + most + 1) // 2
            if self.rest(ids[:middle]) is None:
                most = middle - 1
            else:
                least = middle
        return least

    def forced(self, ids: TokenIds) -> TokenIds:
        """Return the tokens, if any, by which every answer goes on after valid ones.

        They end with a stop token if the answer ends with them.
        """
        text = self.decode(ids)
        if text.endswith(REPLACEMENT):
            return []
        more, is_over = self.grammar.forced(text)
        tokens = [*self.tokenizer.encode_plain(more), *self.tokenizer.stop_ids[:is_over]]
        # a shorter text may fit where the one that is usual does not
        if (end := self.rest(ids + tokens)) is None:
            return []
        self.known[:] = ids + tokens + end
        return tokens

    def next_tokens(self, ids: TokenIds, candidates: TokenIds) -> TokenIds:
        """Return the first candidate that can follow valid tokens, else the token of a known end.

        If only the beginning of the first candidate can follow, this is what is returned. A stop
        token is accepted only after a complete text.
        """
        rest = self.rest(ids)
        stops = self.tokenizer.stop_ids
        assert rest is not None, "tokens with a known end"
        # candidates come in the order of preference; '"\n' after {"a": "x, which has no line break: '"'
        first = self.decode(candidates[:1])
        parts = (self.tokenizer.encode_plain(first[:end]) for end in range(len(first) - 1, 0, -1))
        for tokens in chain([candidates[:1]], parts, ([each] for each in candidates[1:])):
            if tokens[0] in stops:
                if not rest:
                    return tokens
            elif (end := self.rest(ids + tokens)) is not None:
                self.known[:] = ids + tokens + end
                return tokens
        # no candidate fits: continue with the known end
        self.known[:] = ids + rest
        return rest[:1] or [stops[0]]

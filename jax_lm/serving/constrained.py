"""Sequences under a grammar: decoded in the slots as any other, and repaired there until their text is right.

What `jax_lm.diffusion.constrained` does with a batch is done here with each sequence by itself, so that it shares
steps with whoever else is there. Reading texts is left to other threads, and the sequence held until they are done:
the engine's thread never waits for a grammar. Knows neither queue nor HTTP.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.candidates import GUESSED_CANDIDATES
from jax_lm.diffusion.constrained import drawn_order
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.step import NEVER
from jax_lm.grammar.constraint import Constraint
from jax_lm.serving.sequence import TOP_LOGPROBS, Sequence

READERS = 4
"""Threads that read texts; each sequence has at most one at a time."""
MOMENT = 0.01
"""Seconds that the engine waits at most if it has nothing to do but to wait for a grammar."""


@dataclass(kw_only=True, eq=False)
class ConstrainedSequence(Sequence):
    """A text with one hole that must meet a constraint; its options name no grammar.

    Attributes:
        constraint: whose room is the hole.
        kept: tokens of the hole that will stay.
        is_met: whether the text is right.
        is_waiting: whether a grammar is being asked.
    """

    constraint: Constraint
    kept: int = 0
    is_met: bool = False
    is_waiting: bool = False

    @property
    def is_decoded(self) -> bool:
        """Whether steps have done what they can; the text may be wrong."""
        clear = self.tokens[self.hole.start : super().settled]
        return not self.masked.any() or bool(np.isin(clear, self.stop_ids).any())

    @property
    def is_held(self) -> bool:  # type: ignore[override] - others are never held
        return self.is_waiting or self.is_decoded

    @property
    def is_done(self) -> bool:
        return self.is_met

    @property
    def is_between_blocks(self) -> bool:
        return self.is_held or super().is_between_blocks

    @property
    def fixed(self) -> int:
        return self.hole.start + self.kept

    @property
    def settled(self) -> int:
        return super().settled if self.is_met else self.fixed

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        return super().final if self.is_met else np.arange(self.most) < self.kept

    @property
    def answer(self) -> list[int]:
        """What was decoded, up to a stop token."""
        return self.constraint.answer(self.tokens[self.hole.start : self.hole.end].tolist())

    def reopen(self) -> None:
        if not self.is_held:
            super().reopen()

    def reopen_from(self, kept: int) -> None:
        """Keep so many tokens for good, and mask what follows them."""
        self.kept = kept
        columns = slice(self.fixed, self.hole.end)
        self.masked[columns], self.commit_step[columns], self.confidence[columns] = True, NEVER, 0
        self.guesses = None

    def decide(self, token: int, log_probs: Float[np.ndarray, "v"], raw: Float[np.ndarray, "v"]) -> None:
        """Decide the next token for good; `log_probs` are at the temperature, `raw` before it."""
        column = self.fixed
        self.tokens[column], self.masked[column] = token, False
        self.commit_step[column], self.confidence[column] = self.step, np.exp(log_probs[token])
        if self.logprobs is not None:
            best = likeliest(raw, TOP_LOGPROBS)
            self.logprobs.chosen[column] = raw[token]
            self.logprobs.log_probs[column, : len(best)], self.logprobs.ids[column, : len(best)] = raw[best], best
        self.kept += 1
        self.step += 1
        # The block of the first mask begins anew with the steps that follow.
        self.first_step = self.step
        masks = np.flatnonzero(self.masked)
        self.block = next((n for n, block in enumerate(self.blocks) if len(masks) and masks[0] < block.end), self.block)


class Repairs:
    """Repairs sequences that were decoded and are wrong.

    Args:
        widths: of canvases, of which each sequence takes the narrowest that holds it; the evaluation that a repair
            needs is compiled for those that are needed, by the thread that reads the text.
    """

    def __init__(self, sampler: Sampler, widths: Collection[int]) -> None:
        self.sampler, self.widths = sampler, sorted(widths)
        self.readers = ThreadPoolExecutor(READERS, "grammar")
        self.compiled: set[int] = set()
        self.courses: dict[ConstrainedSequence, Iterator[Future]] = {}
        self.asked: dict[ConstrainedSequence, Future] = {}

    def look(self, sequence: Any) -> None:
        """Go on with a sequence that is held, as far as that is possible without waiting; others are left alone."""
        if not isinstance(sequence, ConstrainedSequence) or sequence.is_met or not sequence.is_held:
            return
        course = self.courses.setdefault(sequence, self.repair(sequence))
        while sequence not in self.asked or self.asked[sequence].done():
            self.asked.pop(sequence, None)
            asked = next(course, None)
            if asked is None:
                del self.courses[sequence]
                return
            self.asked[sequence] = asked

    def forget(self, sequence: Any) -> None:
        """Let go of a sequence that has ended, whatever is being asked for it."""
        if isinstance(sequence, ConstrainedSequence):
            sequence.constraint.given_up.set()
            self.courses.pop(sequence, None)
            self.asked.pop(sequence, None)

    def rest(self, sequences: Collection[Any]) -> None:
        """Wait a moment for a grammar if that is all there is to do."""
        if self.asked and all(sequence.is_held for sequence in sequences):
            wait(self.asked.values(), timeout=MOMENT, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads that read texts, once they are done."""
        self.readers.shutdown(wait=False, cancel_futures=True)

    def repair(self, sequence: ConstrainedSequence) -> Iterator[Future]:
        """Judge a decoded sequence, and decide its first wrong token; what is waited for is yielded.

        At the end the sequence is met, or there is more of it to decode.
        """
        sequence.is_waiting = True
        while sequence.is_decoded:
            kept = yield from self.ask(self.wrong_from, sequence)
            if kept is None:
                sequence.is_met = True
                break
            sequence.reopen_from(kept)
            logits = self.logits(sequence)
            sequence.forwards += 1
            raw, log_probs = (log_softmax(logits / scale) for scale in (1.0, sequence.options.temperature or 1.0))
            best = likeliest(log_probs, GUESSED_CANDIDATES)
            key: Key[Array, ""] = jax.random.wrap_key_data(jnp.asarray(sequence.key))
            step = jax.random.fold_in(key, sequence.step)
            order = best[drawn_order(step, log_probs[best], sequence.options.temperature)].tolist()
            token = yield from self.ask(sequence.constraint.next_token, sequence.answer[:kept], order)
            sequence.decide(token, log_probs, raw)
        sequence.is_waiting = False

    def ask(self, question: Callable[..., Any], *arguments: Any) -> Generator[Future, None, Any]:
        """Have a question answered on another thread; yields what is waited for, returns the answer."""
        asked = self.readers.submit(question, *arguments)
        yield asked
        return asked.result()

    def wrong_from(self, sequence: ConstrainedSequence) -> int | None:
        """Count the tokens that can stay, None if all is right; else see to it that a repair compiles nothing."""
        kept = sequence.constraint.wrong_from(sequence.answer, sequence.kept)
        if kept is not None and (width := self.width(sequence)) not in self.compiled:
            self.sampler.logits_at(np.zeros(width, np.int32), 1, 0)
            self.compiled.add(width)
        return kept

    def width(self, sequence: Sequence) -> int:
        return next(width for width in self.widths if width >= len(sequence.tokens))

    def logits(self, sequence: ConstrainedSequence) -> Float[np.ndarray, "v"]:
        """What the model says of the first column that does not stay."""
        length = len(sequence.tokens)
        tokens = np.where(sequence.masked, self.sampler.mask_id, sequence.tokens).astype(np.int32)
        return self.sampler.logits_at(np.pad(tokens, (0, self.width(sequence) - length)), length, sequence.fixed)


def likeliest(values: Float[np.ndarray, "v"], count: int) -> Int[np.ndarray, "c"]:
    """The largest, in their order; of equal ones those that come first."""
    return np.argsort(-values, kind="stable")[:count]


def log_softmax(logits: Float[np.ndarray, "v"]) -> Float[np.ndarray, "v"]:
    below = logits - logits.max()
    return below - np.log(np.exp(below).sum())

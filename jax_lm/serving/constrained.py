"""Sequences that must satisfy a grammar. They are decoded in slots like others, and then repaired.

Each sequence has its own `Repair`, so that it shares steps with the others in the batch. Threads
check and repair the texts. A sequence is held until its thread is done, so that the engine's thread
never waits for a grammar. Knows neither queue nor HTTP.
"""

from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jax_lm.diffusion.constrained import Repair
from jax_lm.diffusion.sampler import Sampler
from jax_lm.serving.sequence import TOP_LOGPROBS, Sequence

# Number of threads that check texts; a sequence occupies at most one at a time.
READERS = 4
# Candidates of a repair, most likely first. If the grammar allows none of them, it supplies a
# token.
REPAIR_CANDIDATES = 50
# Seconds that the engine waits for a grammar at a time if no sequence can be decoded.
MAX_WAIT = 0.01


@dataclass(kw_only=True, eq=False)
class ConstrainedSequence(Sequence):
    """A text with one hole that must meet a constraint; its options name no grammar.

    Attributes:
        repair: repair of the text in the hole.
        kept: number of tokens of the hole that are final.
        is_met: whether the text meets the constraint.
        is_waiting: whether a thread is checking or repairing the text.
    """

    repair: Repair
    kept: int = 0
    is_met: bool = False
    is_waiting: bool = False

    @property
    def is_decoded(self) -> bool:
        """Whether the text is complete, so that no step changes it; it may violate the grammar."""
        # tokens before the first mask
        clear = self.tokens[self.hole.start : super().settled]
        return not self.masked.any() or bool(np.isin(clear, self.stop_ids).any())

    @property
    def is_held(self) -> bool:  # type: ignore[override] - a constant of other sequences
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

    def reopen(self) -> None:
        if not self.is_held:
            super().reopen()

    def decide(
        self, token: int, log_probs: Float[np.ndarray, "v"], raw: Float[np.ndarray, "v"]
    ) -> None:
        """Set the next token of the hole, which is then final.

        Args:
            log_probs: log-probabilities at the temperature.
            raw: log-probabilities without temperature.
        """
        # the first column that is not final
        column = self.fixed
        self.tokens[column], self.masked[column] = token, False
        self.commit_step[column], self.confidence[column] = self.step, np.exp(log_probs[token])
        if self.logprobs is not None:
            top = most_likely(raw, TOP_LOGPROBS)
            for values, new in zip(self.logprobs, (raw[token], raw[top], top), strict=True):
                values[column] = new
        self.kept += 1
        self.step += 1
        # The next steps begin the block of the first mask again.
        self.block, self.first_step = 0, self.step
        self.next_block()


class Repairs:
    """Repairs the sequences of an engine.

    Args:
        widths: widths of the canvases for which the forward pass of a repair may be compiled. A
            sequence takes the narrowest that holds it.
        device: held during each call of the device.
    """

    def __init__(
        self, sampler: Sampler, widths: Collection[int], device: AbstractContextManager
    ) -> None:
        self.sampler, self.widths, self.device = sampler, sorted(widths), device
        self.readers = ThreadPoolExecutor(READERS, "grammar")
        self.compiled: set[int] = set()
        self.pending: dict[Any, Future] = {}

    def advance(self, sequence: Any) -> None:
        """Start or finish the repair of a held sequence, without waiting; ignore others."""
        if sequence in self.pending:
            if self.pending[sequence].done():
                sequence.is_waiting = False
                self.pending.pop(sequence).result()
        # other constrained sequences are still being decoded, or valid
        elif isinstance(sequence, ConstrainedSequence) and sequence.is_held and not sequence.is_met:
            sequence.is_waiting = True
            self.pending[sequence] = self.readers.submit(self.repair, sequence)

    def forget(self, sequence: Any) -> None:
        """Drop a sequence that has ended, even while a thread checks its text."""
        if isinstance(sequence, ConstrainedSequence):
            # stop a search that is still running
            sequence.repair.constraint.given_up.set()
            self.pending.pop(sequence, None)

    def wait_if_idle(self, sequences: Collection[Any]) -> None:
        """Wait briefly for a thread that checks a text, if no sequence can be decoded."""
        if self.pending and all(sequence.is_held for sequence in sequences):
            # otherwise the engine's loop would spin
            wait(self.pending.values(), timeout=MAX_WAIT, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads after their current checks, without waiting for them."""
        self.readers.shutdown(wait=False, cancel_futures=True)

    def repair(self, sequence: ConstrainedSequence) -> None:
        """Check a decoded sequence and decide its first wrong token, on a reader's thread.

        Afterwards, the sequence either satisfies its constraint or has masks to decode. Meanwhile
        no other thread reads it.
        """
        while sequence.is_decoded:
            # 1. how many tokens are valid
            ids = sequence.tokens[sequence.hole.start : sequence.hole.end]
            if (kept := sequence.repair.check(ids)) is None:
                sequence.is_met = True
                return
            # 2. one forward pass for the first wrong token, with everything from it on masked
            sequence.kept = kept
            first, end = sequence.fixed, sequence.hole.end
            rest = np.where(sequence.masked, -1, sequence.tokens)[first + 1 : end]
            hidden = sequence.masked.copy()
            hidden[first:end] = True
            logits = self.logits(sequence.tokens, hidden, first)
            sequence.forwards += 1
            raw = log_softmax(logits)
            # temperature 0 takes the most likely token; its confidence is that at temperature 1
            log_probs = log_softmax(logits / (sequence.options.temperature or 1.0))
            top = most_likely(log_probs, REPAIR_CANDIDATES)
            # a key of its own for each step of each sequence
            key = jax.random.wrap_key_data(jnp.asarray(sequence.key))
            key = jax.random.fold_in(key, sequence.step)
            # 3. decide the first candidate that the grammar allows; mask the rest unless it stays
            token = sequence.repair.choose(key, log_probs[top], top)
            if not sequence.repair.keeps(rest):
                sequence.mask(first, end)
            sequence.decide(token, log_probs, raw)

    def logits(
        self, tokens: Int[np.ndarray, "t"], masked: Bool[np.ndarray, "t"], column: int
    ) -> Float[np.ndarray, "v"]:
        """Compute the logits of a column."""
        length = len(tokens)
        width = next(width for width in self.widths if width >= length)
        if width not in self.compiled:
            # before the device is held, so that nobody waits for it
            self.sampler.logits_at(np.zeros(width, np.int32), 1, 0)
            self.compiled.add(width)
        tokens = np.where(masked, self.sampler.mask_id, tokens).astype(np.int32)
        # [t] -> [width], so that few widths are compiled
        padded = np.pad(tokens, (0, width - length))
        with self.device:
            return self.sampler.logits_at(padded, length, column)


def most_likely(values: Float[np.ndarray, "v"], count: int) -> Int[np.ndarray, "c"]:
    """Return the indices of the largest values, largest first; equal values keep their order."""
    return np.argsort(-values, kind="stable")[:count]


def log_softmax(logits: Float[np.ndarray, "v"]) -> Float[np.ndarray, "v"]:
    # subtract the maximum, as exp would overflow
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())

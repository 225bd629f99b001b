"""Sequences that must satisfy a grammar. They are decoded in slots like others, and then repaired.

Each sequence has its own `Repair`, so that it shares steps with the others in the batch. Threads
check and repair the texts. A sequence is held until its thread is done, so that the engine's thread
never waits for a grammar. Knows neither queue nor HTTP.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.constrained import HoleArrays, Repair, log_softmax, most_likely
from jax_lm.diffusion.sampler import LogitsWindow, Sampler
from jax_lm.models.shapes import SequenceMask, SequenceTokens
from jax_lm.serving.sequence import TOP_LOGPROBS, Sequence

LogProbs = Float[np.ndarray, "v"]

# Number of threads that check texts; a sequence occupies at most one at a time.
READERS = 4
# Most tokens that a thread chooses before the engine's thread reports them.
CHOICES_PER_TURN = 4
# Seconds that the engine waits for a grammar at a time if no sequence can be decoded.
MAX_WAIT = 0.01


@dataclass(kw_only=True, eq=False)
class ConstrainedSequence(Sequence):
    """A text with one hole that must meet a constraint; its options name no grammar.

    Attributes:
        repair: repair of the text in the hole.
        is_met: whether the text meets the constraint.
        is_waiting: whether a thread is checking or repairing the text.
    """

    repair: Repair
    is_met: bool = False
    is_waiting: bool = False

    def __post_init__(self):
        super().__post_init__()
        self.repair.force(self.arrays, self.step)

    @property
    def is_decoded(self) -> bool:
        """Whether the text is complete, so that no step changes it; it may violate the grammar."""
        # tokens before the first mask
        clear = self.tokens[self.hole.start : super().first_open]
        return not self.masked.any() or bool(np.isin(clear, self.stop_ids).any())

    @property
    def is_held(self) -> bool:  # type: ignore[override] - a constant of other sequences
        return self.is_waiting or self.is_decoded or self.repair.choices > 0

    @property
    def is_done(self) -> bool:
        return self.is_met

    @property
    def is_between_blocks(self) -> bool:
        return self.is_held or super().is_between_blocks

    @property
    def arrays(self) -> HoleArrays:
        columns = slice(self.hole.start, self.hole.end)
        own = (self.tokens, self.masked, self.commit_step, self.confidence)
        return HoleArrays(*(each[columns] for each in own))

    @property
    def first_revisable(self) -> int:
        return self.hole.start + len(self.repair.ids)

    @property
    def first_open(self) -> int:
        return super().first_open if self.is_met else self.hole.start + self.reportable_tokens

    @property
    def final(self) -> Bool[np.ndarray, "n"]:
        return super().final if self.is_met else np.arange(self.most) < self.reportable_tokens

    @property
    def reportable_tokens(self) -> int:
        """Number of final tokens that a client may know: all, unless their scores are missing."""
        return 0 if self.keeps_logprobs and self.repair.given else len(self.repair.ids)

    def masked_from(self, column: int) -> SequenceMask:
        """Return the masks, with all columns of the hole from one on."""
        return self.masked | self.within(Block(column, self.hole.end))

    def reopen(self):
        if not self.is_held:
            super().reopen()

    def score(self, column: int, log_probs: LogProbs):
        """Keep the log-probabilities of a decided token and of the most likely ones."""
        token = self.tokens[column]
        top = most_likely(log_probs, TOP_LOGPROBS)
        parts = (log_probs[token], log_probs[top], top)
        for values, value in zip(self.logprobs or (), parts, strict=True):
            values[column] = value


class Repairs:
    """Repairs the sequences of an engine.

    Args:
        samplers: samplers by the name of the adapter.
        widths: widths of the canvases for which the forward pass of a repair may be compiled. A
            sequence takes the narrowest that holds it.
        device: held during each call of the device.
    """

    def __init__(
        self,
        samplers: Mapping[str, Sampler],
        widths: Collection[int],
        device: AbstractContextManager,
    ):
        self.samplers = samplers
        self.widths = sorted(widths)
        self.device = device
        self.readers = ThreadPoolExecutor(READERS, "grammar")
        self.compiled: set[tuple[str, int]] = set()
        self.pending: dict[Any, Future] = {}

    def advance(self, sequence):
        """Start or finish the repair of a held sequence, without waiting; ignore others."""
        if sequence in self.pending:
            if self.pending[sequence].done():
                sequence.is_waiting = False
                self.pending.pop(sequence).result()
        # other constrained sequences are still being decoded, or valid
        elif isinstance(sequence, ConstrainedSequence) and sequence.is_held and not sequence.is_met:
            sequence.is_waiting = True
            self.pending[sequence] = self.readers.submit(self.repair, sequence)

    def forget(self, sequence):
        """Drop a sequence that has ended, even while a thread checks its text."""
        if isinstance(sequence, ConstrainedSequence):
            # stop a search that is still running
            sequence.repair.constraint.given_up.set()
            self.pending.pop(sequence, None)

    def wait_if_idle(self, sequences: Collection[Any]):
        """Wait briefly for a thread that checks a text, if no sequence can be decoded."""
        if self.pending and all(sequence.is_held for sequence in sequences):
            # otherwise the engine's loop would spin
            wait(self.pending.values(), timeout=MAX_WAIT, return_when=FIRST_COMPLETED)

    def close(self):
        """End the threads after their current checks, without waiting for them."""
        self.readers.shutdown(wait=False, cancel_futures=True)

    def repair(self, sequence: ConstrainedSequence):
        """Check a decoded sequence, or decide a few tokens of one that is invalid.

        This runs on a reader's thread. Meanwhile no other thread reads the sequence.
        """
        repair = sequence.repair
        for _ in range(CHOICES_PER_TURN):
            if repair.choices:
                self.choose(sequence)
            elif sequence.is_decoded:
                sequence.is_met = repair.check(sequence.arrays, sequence.step)
            if sequence.is_met:
                break
        # The next steps begin the block of the first mask again.
        sequence.extra = None
        sequence.block = 0
        sequence.first_step = sequence.step
        sequence.next_block()
        # tokens that no step has decided
        for place in repair.given if sequence.keeps_logprobs else ():
            column = sequence.hole.start + place
            masked = sequence.masked_from(column)
            logits, _ = self.logits(
                sequence.adapter, sequence.tokens, masked, column, LogitsWindow()
            )
            sequence.score(column, log_softmax(logits))
        repair.given.clear()

    def choose(self, sequence: ConstrainedSequence):
        """Decide the next token of a sequence: the first candidate that the grammar allows."""
        column = sequence.first_revisable
        repair = sequence.repair
        masked = sequence.masked_from(column)
        found = self.logits(sequence.adapter, sequence.tokens, masked, column, repair.window)
        repair.choose(sequence.arrays, sequence.step, sequence.key, *found)
        sequence.step += 1
        sequence.forwards += 1

    def logits(
        self,
        adapter: str,
        tokens: SequenceTokens,
        masked: SequenceMask,
        column: int,
        window: LogitsWindow,
    ) -> tuple[LogProbs, LogitsWindow]:
        """Compute the logits of a column, as `Sampler.logits_at` does."""
        sampler = self.samplers[adapter]
        length = len(tokens)
        width = next(width for width in self.widths if width >= length)
        if (adapter, width) not in self.compiled:
            # before the device is held, so that nobody waits for it: all rows, and then a block
            trial = LogitsWindow()
            for place in (1, 2):
                _, trial = sampler.logits_at(np.zeros(width, np.int32), 1, place, trial)
            self.compiled.add((adapter, width))
        # [t] -> [width], so that few widths are compiled
        padded = np.zeros(width, np.int32)
        padded[:length] = np.where(masked, sampler.mask_id, tokens)
        with self.device:
            return sampler.logits_at(padded, length, column, window)

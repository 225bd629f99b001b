"""Decoded rows: what a canvas says once its holes are filled, as texts. Knows tokens and text, nothing of models."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.results import DenoisingEvent, Generation
from jax_lm.tokenizer import DiffuCoderTokenizer


@dataclass(frozen=True)
class DecidedRow:
    """A row of a canvas, and what was decided of it so far.

    Attributes:
        holes: columns that are filled.
        starts: column where the hole around each begins.
        tokens: ids.
        confidence: probability of each token when it was decided.
        commit_step: step at which each was decided.
        count: holes that there are where they may be empty, and `starts` numbers them; None where none can be.
    """

    holes: Bool[np.ndarray, "t"]
    starts: Int[np.ndarray, "t"]
    tokens: Int[np.ndarray, "t"]
    confidence: Float[np.ndarray, "t"]
    commit_step: Int[np.ndarray, "t"]
    count: int | None = None

    @property
    def places(self) -> Int[np.ndarray, "n"]:
        return np.flatnonzero(self.holes)

    def generation(self, tokenizer: DiffuCoderTokenizer) -> Generation:
        """Read the text of each hole up to its stop token."""
        texts, kept, stops = [], [], 0
        starts, places = self.starts[self.places], self.places
        for start in dict.fromkeys(starts.tolist()) if self.count is None else range(self.count):
            hole = places[starts == start].tolist()
            ids = self.tokens[hole].tolist()
            end = next((k for k, token in enumerate(ids) if token in tokenizer.stop_ids), len(ids))
            stops += end < len(ids)
            texts.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
            kept.extend(hole[:end])
        tokens, confidence, steps = (
            tuple(part[kept].tolist()) for part in (self.tokens, self.confidence, self.commit_step)
        )
        return Generation(tuple(texts), tokens, confidence, steps, stopped=stops == len(texts))

    def event(
        self,
        tokenizer: DiffuCoderTokenizer,
        number: int,
        step: int,
        fresh: Bool[np.ndarray, "t"],
        masked: Bool[np.ndarray, "t"],
    ) -> DenoisingEvent:
        """Tell that this row, of that number in its batch, just decided the columns `fresh`."""
        places = self.places
        open_places = places[masked[places]]
        settled = places[places < open_places[0]] if len(open_places) else places
        # A character may still lack its last bytes.
        text = tokenizer.decode_until_stop(self.tokens[settled].tolist()).rstrip("\ufffd" if len(open_places) else "")
        return DenoisingEvent(
            row=number,
            step=step,
            positions=tuple((np.flatnonzero(fresh) - places[0]).tolist()),
            token_ids=tuple(self.tokens[fresh].tolist()),
            confidence=tuple(self.confidence[fresh].tolist()),
            text=text,
            is_last=not len(open_places),
        )


def decided_rows(
    holes: Bool[np.ndarray, "b t"],
    starts: Int[np.ndarray, "b t"],
    tokens: Int[Array, "b t"],
    confidence: Float[Array, "b t"],
    commit_step: Int[Array, "b t"],
) -> Iterator[DecidedRow]:
    """Go through the rows of a canvas, and of the arrays of a sampler's state."""
    arrays = (np.asarray(part) for part in (tokens, confidence, commit_step))
    return (DecidedRow(*row) for row in zip(holes, starts, *arrays, strict=True))

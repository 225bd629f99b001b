"""Results of a generation: texts with their tokens and confidences, and events on the way.

Knows no model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
from jaxtyping import Float, Int

from jax_lm.config import Floats, Ints, Texts
from jax_lm.models.shapes import SequenceMask, SequenceTokens
from jax_lm.tokenizer import DiffuCoderTokenizer

# Sureness below which an answer of the built-in model is doubtful; the model's card says how often
# that is right.
BUILTIN_SURENESS = 0.96


@dataclass(frozen=True)
class Generation:
    """Text of a row, up to its stop token.

    Attributes:
        holes: the text of each hole, up to its stop token.
        token_ids: tokens of all holes, without stop tokens.
        confidence: probability of each token when it was decided (after temperature and filters).
        commit_step: step at which each was decided.
        stopped: whether stop tokens ended it; otherwise a hole was full.
    """

    holes: Texts
    token_ids: Ints
    confidence: Floats
    commit_step: Ints
    stopped: bool

    @property
    def text(self) -> str:
        """Text of all holes: for a completion, what follows its prompt."""
        return "".join(self.holes)

    @property
    def mean_log_confidence(self) -> float:
        """Mean log-confidence per token; minus infinity without tokens."""
        if not self.token_ids:
            return -inf
        return sum(log(max(p, 1e-30)) for p in self.confidence) / len(self.confidence)

    def sureness(self, temperature: float) -> float:
        """Return the geometric mean of the tokens' probabilities before the temperature.

        A temperature T divides the log-odds of two candidates by T. This is undone as if there were
        no third candidate. Without tokens, the mean is 0.
        """
        # p = 0.8 at temperature 0.5: odds 4, before the temperature 4 ** 0.5 = 2, p = 2 / 3
        if not self.token_ids:
            return 0.0
        p = np.clip(self.confidence, 1e-7, 1 - 1e-7)
        odds_against = ((1 - p) / p) ** (temperature or 1.0)
        return float(np.exp(-np.log1p(odds_against).mean()))

    def doubt(self, temperature: float) -> str | None:
        """Return why an answer of the built-in model at this temperature is doubtful, if it is."""
        sureness = self.sureness(temperature)
        if sureness >= BUILTIN_SURENESS:
            return None
        return f"the built-in model is not sure of this answer ({sureness:.0%}): it knows small Python functions only"


def tied_share(confidence: Sequence[float]) -> float | None:
    """Return the share of tokens that were decided with a confidence of exactly 1; None of none.

    One candidate was left after the filters. Their order among each other is a tie, which goes from
    left to right.
    """
    return sum(p == 1 for p in confidence) / len(confidence) if len(confidence) else None


@dataclass(frozen=True)
class DecodedBatch:
    """Rows that were decoded in one batch, and its cost; tokens after a stop token do not count.

    Attributes:
        rows: in the order of the templates.
        forwards: forward passes.
        seconds: duration of the call.
        compile_seconds: the part of them that JAX spent on compilation.
    """

    rows: tuple[Generation, ...]
    forwards: int
    seconds: float
    compile_seconds: float = 0.0

    @property
    def run_seconds(self) -> float:
        """Time without compilation, which later calls of the same size do not need."""
        return max(self.seconds - self.compile_seconds, 1e-9)

    @property
    def tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.run_seconds

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / max(self.forwards, 1)

    def describe(self) -> str:
        """Describe tokens, speed, forward passes, ties and compilation in one line."""
        tied = tied_share([p for row in self.rows for p in row.confidence]) or 0
        return (
            f"{self.tokens} tokens in {self.run_seconds:.1f} s · {self.tokens_per_second:.0f} tokens/s · "
            f"forwards: {self.forwards}, {self.tokens_per_forward:.1f} tokens each · "
            f"{tied:.0%} of them tied · "
            f"{self.compile_seconds:.1f} s of compilation before"
        )


@dataclass(frozen=True)
class DenoisingEvent:
    """Positions of a row that one step (or several) decided.

    Attributes:
        row: index in the batch.
        step: steps taken.
        positions: newly decided positions, counted from the row's first hole.
        token_ids: their tokens.
        confidence: their probabilities.
        text: the text so far that can no longer change: everything before the first mask.
        is_last: whether the row is complete.
    """

    row: int
    step: int
    positions: Ints
    token_ids: Ints
    confidence: Floats
    text: str
    is_last: bool


@dataclass(frozen=True)
class DecidedRow:
    """A row of a canvas, and what has been decided of it so far.

    Attributes:
        holes: columns that are filled.
        numbers: a number for each hole, at each of its columns.
        tokens: ids.
        confidence: probability of each token when it was decided.
        commit_step: step at which each was decided.
        count: number of holes, numbered from 0, where one may be empty; else None.
        stopped: whether the row ended early, where its holes find their own length; else None.
    """

    holes: SequenceMask
    numbers: SequenceTokens
    tokens: SequenceTokens
    confidence: Float[np.ndarray, "t"]
    commit_step: SequenceTokens
    count: int | None = None
    stopped: bool | None = None

    @property
    def places(self) -> Int[np.ndarray, "n"]:
        return np.flatnonzero(self.holes)

    def generation(self, tokenizer: DiffuCoderTokenizer) -> Generation:
        """Read the text of each hole up to its stop token."""
        texts = []
        kept = []
        stops = 0
        # Columns [3, 4, 7] with numbers [0, 0, 1]: hole 0 is columns 3 and 4, hole 1 is column 7.
        places = self.places
        numbers = self.numbers[places]
        for number in dict.fromkeys(numbers.tolist()) if self.count is None else range(self.count):
            hole = places[numbers == number].tolist()
            ids = self.tokens[hole].tolist()
            end = next((k for k, token in enumerate(ids) if token in tokenizer.stop_ids), len(ids))
            stops += end < len(ids)
            texts.append(tokenizer.decode(ids[:end], skip_special_tokens=True))
            kept.extend(hole[:end])
        tokens, confidence, steps = (
            tuple(part[kept].tolist()) for part in (self.tokens, self.confidence, self.commit_step)
        )
        stopped = stops == len(texts) if self.stopped is None else self.stopped
        return Generation(tuple(texts), tokens, confidence, steps, stopped)

    def event(
        self,
        tokenizer: DiffuCoderTokenizer,
        number: int,
        step: int,
        fresh: SequenceMask,
        masked: SequenceMask,
    ) -> DenoisingEvent:
        """Return the event of this row's newly decided columns.

        Args:
            tokenizer: decodes the text.
            number: index of the row in its batch.
            step: steps taken.
            fresh: columns that have just been decided.
            masked: columns that are still masked.
        """
        # Holes at columns 2 to 5, of which 4 is masked: settled columns are 2 and 3.
        places = self.places
        open_places = places[masked[places]]
        settled = places[places < open_places[0]] if len(open_places) else places
        # A character may still lack its last bytes.
        return DenoisingEvent(
            row=number,
            step=step,
            positions=tuple((np.flatnonzero(fresh) - places[0]).tolist()),
            token_ids=tuple(self.tokens[fresh].tolist()),
            confidence=tuple(self.confidence[fresh].tolist()),
            text=tokenizer.decode_until_stop(self.tokens[settled].tolist()).rstrip(
                "\ufffd" if len(open_places) else ""
            ),
            is_last=not len(open_places),
        )


def read_rows(layout: tuple, state) -> Iterator[DecidedRow]:
    """Iterate over the rows of a canvas.

    Args:
        layout: where its holes are, a `jax_lm.diffusion.canvas.Layout`.
        state: its `jax_lm.diffusion.state.SamplerState`.
    """
    _, holes, numbers, counts, stopped = layout
    arrays = map(np.asarray, (state.tokens, state.confidence, state.commit_step))
    absent = [None] * len(holes)
    return map(DecidedRow, holes, numbers, *arrays, counts or absent, stopped or absent)

"""Results of a generation: texts with their tokens and confidences, and events on the way. Knows no model."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """The text of a row, up to its stop token.

    Attributes:
        holes: the text of each hole, up to its stop token.
        token_ids: of all holes, without stop tokens.
        confidence: probability of each token when it was decided (after temperature and filters).
        commit_step: step at which each was decided.
        stopped: whether stop tokens ended it; otherwise a hole was full.
    """

    holes: tuple[str, ...]
    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    commit_step: tuple[int, ...]
    stopped: bool

    @property
    def text(self) -> str:
        """The text of its holes; what a completion added to its prompt."""
        return "".join(self.holes)

    @property
    def mean_log_confidence(self) -> float:
        """Per token; minus infinity without any."""
        if not self.token_ids:
            return -math.inf
        return sum(math.log(max(p, 1e-30)) for p in self.confidence) / len(self.confidence)

    def sureness(self, temperature: float) -> float:
        """Geometric mean of the tokens' probabilities before the temperature; 0 without any.

        A temperature T divides the log-odds of two candidates by T. Undone as if there were no third.
        """
        if not self.token_ids:
            return 0.0
        bounded = (min(max(p, 1e-7), 1 - 1e-7) for p in self.confidence)
        logs = [-math.log1p(((1 - p) / p) ** (temperature or 1.0)) for p in bounded]
        return math.exp(sum(logs) / len(logs))


@dataclass(frozen=True)
class DecodedBatch:
    """Rows that were decoded together, and what that took; tokens after a stop token do not count.

    Attributes:
        rows: in the order of the templates.
        forwards: evaluations of the model.
        seconds: all of the call.
        compile_seconds: the part of them that JAX compiled.
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
        """Tokens, time without compilation, speed, forwards and the time of compilation in one line."""
        return (
            f"{self.tokens} tokens in {self.run_seconds:.1f} s · {self.tokens_per_second:.0f} tokens/s · "
            f"{self.forwards} forwards · {self.tokens_per_forward:.1f} tokens per forward · "
            f"{self.compile_seconds:.1f} s of compilation before"
        )


@dataclass(frozen=True)
class DenoisingEvent:
    """The positions of a row that one step (or several) decided.

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
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    text: str
    is_last: bool

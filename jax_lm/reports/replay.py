"""A generated text that a notebook shows as a replay of how its canvas was filled.

Knows no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from jax_lm.reports.charts import render
from jax_lm.results import Generation


class ReplayedText(str):
    """A string that a notebook shows as a replay of how its canvas was filled.

    Attributes:
        replay: what the notebook shows; None for a text that was derived from another one.
    """

    replay: "Replay | None" = None

    @classmethod
    def of(cls, text: str, replay: "Replay") -> "ReplayedText":
        made = cls(text)
        made.replay = replay
        return made

    @property
    def full(self) -> "ReplayedText":
        """The text with its prompt."""
        return (
            self if self.replay is None else ReplayedText.of(self.replay.prompt + self, self.replay)
        )

    def _repr_html_(self) -> str | None:
        """Return an isolated frame for a notebook; None if there is nothing to replay."""
        if self.replay is None or not self.replay.pieces:
            return None
        # The page is an attribute of the frame, so its quotes are escaped.
        page = escape(self.replay.page(), quote=True)
        # `sandbox`: scripts run, but have no access to the notebook.
        return f'<iframe sandbox="allow-scripts" style="width: 100%; height: 26rem; border: 0" srcdoc="{page}"></iframe>'


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The order in which the tokens of a text were committed.

    Attributes:
        prompt: given text.
        pieces: the text of each committed token, up to the stop token.
        commit_step: step at which each token was committed.
        confidence: probability of each token when it was committed.
        temperature: of the draws.
    """

    prompt: str
    pieces: tuple[str, ...]
    commit_step: tuple[int, ...]
    confidence: tuple[float, ...]
    temperature: float

    @classmethod
    def of(
        cls,
        prompt: str,
        row: Generation,
        decode: Callable[[Sequence[int]], str],
        temperature: float,
    ) -> "Replay":
        """Return the replay of a generation."""
        # Token by token, as each was committed at its own step.
        pieces = tuple(decode([token]) for token in row.token_ids)
        confidence = tuple(round(value, 4) for value in row.confidence)
        return cls(
            prompt=prompt,
            pieces=pieces,
            commit_step=row.commit_step,
            confidence=confidence,
            temperature=temperature,
        )

    def page(self) -> str:
        """Return the page of the decoding analysis with this trace alone."""
        # The values that the page of the analysis expects of a trace.
        trace = {
            "name": "generation",
            "sample": 0,
            "temperature": self.temperature,
            "prompt": self.prompt,
            "pieces": self.pieces,
            "commit_step": self.commit_step,
            "confidence": self.confidence,
            "end": len(self.pieces),
        }
        return render("analysis.html", metadata={}, pictures={}, traces=[trace])

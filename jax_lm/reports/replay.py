"""A generated text that a notebook shows as the replay of its canvas. Knows no model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from jax_lm.reports.charts import render
from jax_lm.results import Generation


class ReplayedText(str):
    """A text, and how its canvas was filled: a string to Python, a replay to a notebook.

    Attributes:
        replay: what the page shows; None for a text that was made from another one.
    """

    replay: "Replay | None" = None

    @classmethod
    def of(cls, text: str, replay: "Replay") -> "ReplayedText":
        made = cls(text)
        made.replay = replay
        return made

    @property
    def full(self) -> "ReplayedText":
        """The text behind its prompt."""
        return self if self.replay is None else ReplayedText.of(self.replay.prompt + self, self.replay)

    def _repr_html_(self) -> str | None:
        """Show the replay in a frame of its own, whose page reaches nothing; None if there is nothing to replay."""
        if self.replay is None or not self.replay.pieces:
            return None
        page = escape(self.replay.page(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" style="width: 100%; height: 26rem; border: 0" srcdoc="{page}"></iframe>'
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What was decided when.

    Attributes:
        prompt: given text.
        pieces: the text of each decided token, up to the stop token.
        commit_step: step at which each was decided.
        confidence: probability of each when it was decided.
        temperature: of the draws.
    """

    prompt: str
    pieces: tuple[str, ...]
    commit_step: tuple[int, ...]
    confidence: tuple[float, ...]
    temperature: float

    @classmethod
    def of(cls, prompt: str, row: Generation, decode: Callable[[Sequence[int]], str], temperature: float) -> "Replay":
        """Take what a generation tells."""
        pieces = tuple(decode([token]) for token in row.token_ids)
        confidence = tuple(round(value, 4) for value in row.confidence)
        return cls(
            prompt=prompt, pieces=pieces, commit_step=row.commit_step, confidence=confidence, temperature=temperature
        )

    def page(self) -> str:
        """Write the page of the decoding analysis with this trace alone."""
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

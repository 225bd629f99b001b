"""The replay of how a canvas was filled: a page for notebooks, and an animated picture.

Knows no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape

from jax_lm.config import Floats, Ints, Texts
from jax_lm.reports.rendering import render
from jax_lm.results import Generation

# The animated picture: pixels of a character, of a line and of the margin.
CHARACTER = 9.0
LINE = 22
MARGIN = 16
# The canvas is shown filled for this share of the animation; a step takes this many seconds.
REST = 0.25
STEP_SECONDS = 0.22
# Lower bounds of the confidence, and what a token of that confidence is called in the picture.
KINDS = ((0.95, "sure"), (0.6, "likely"), (0.0, "unsure"))


class ReplayedText(str):
    """A string that a notebook shows as a replay of how its canvas was filled.

    Attributes:
        replay: what the notebook shows; None for a text that was derived from another one.
    """

    replay: "Replay | None" = None

    @classmethod
    def of(cls, text: str, replay: "Replay") -> "ReplayedText":
        replayed = cls(text)
        replayed.replay = replay
        return replayed

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
    pieces: Texts
    commit_step: Ints
    confidence: Floats
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
        return cls(
            prompt=prompt,
            # Token by token, as each was committed at its own step.
            pieces=tuple(decode([token]) for token in row.token_ids),
            commit_step=row.commit_step,
            confidence=tuple(round(value, 4) for value in row.confidence),
            temperature=temperature,
        )

    def page(self) -> str:
        """Return the page of the decoding analysis with this trace alone."""
        # The values that the page of the analysis expects of a trace.
        trace = asdict(self) | {"name": "generation", "sample": 0, "end": len(self.pieces)}
        return render("analysis.html", metadata={}, pictures={}, traces=[trace])

    def animation(self) -> str:
        """Return an animated SVG picture of the canvas, readable on dark and on light pages.

        A token appears at the step that committed it, in the colour of its confidence.
        """
        steps = max(self.commit_step, default=0) + 1
        given, end = place_pieces(self.prompt, (0, 0))
        decided = []
        for text, step, confidence in zip(
            self.pieces, self.commit_step, self.confidence, strict=True
        ):
            kind = next(name for bound, name in KINDS if confidence >= bound)
            # 4 steps and a rest of a quarter: step 0 appears at 1/4 * 3/4 = 0.1875
            share = round((step + 1) / steps * (1 - REST), 4)
            placed, end = place_pieces(text, end)
            decided += [(piece, kind, share) for piece in placed]
        pieces = [*given, *(piece for piece, _, _ in decided)]
        return render(
            "canvas.svg",
            width=round(max((piece.x + piece.width for piece in pieces), default=0) + MARGIN),
            height=round(max((piece.y for piece in pieces), default=0) + MARGIN),
            given=given,
            decided=decided,
            seconds=round(steps * STEP_SECONDS / (1 - REST), 2),
        )


@dataclass(frozen=True)
class PlacedPiece:
    """A part of a line in the animated picture: its text, its lower left corner and its width."""

    text: str
    x: float
    y: float
    width: float


def place_pieces(text: str, start: tuple[int, int]) -> tuple[list[PlacedPiece], tuple[int, int]]:
    """Place the lines of a text that begins at (line, column); also returns where it ends.

    "b\\n  c" from (0, 4): "b" at (0, 4), "  c" at (1, 0), and the end is (1, 3).
    """
    line, column = start
    placed = []
    for count, part in enumerate(text.expandtabs(4).split("\n")):
        if count:
            line = line + 1
            column = 0
        if part:
            x = MARGIN + column * CHARACTER
            y = float(MARGIN + 10 + line * LINE)
            # XML cannot contain control characters.
            shown = "".join(each if each.isprintable() else "\ufffd" for each in part)
            placed.append(PlacedPiece(shown, x, y, len(part) * CHARACTER))
        column += len(part)
    return placed, (line, column)

"""Shows the canvas in the terminal while it fills in, coloured by confidence."""

from time import monotonic

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.state import SamplerState
from jax_lm.host import terminal
from jax_lm.host.compile_clock import compile_seconds
from jax_lm.inference import FIRST_NOTE, DiffuCoderInference
from jax_lm.options import GenerationOptions, advise_preset
from jax_lm.results import Generation
from jax_lm.templates import Template
from jax_lm.tokenizer import DiffuCoderTokenizer

MASK_GLYPH = "░"
# Upper bounds of the confidence, and their colours.
COLOURS = ((0.5, "red"), (0.8, "yellow"), (0.95, "green"), (1.01, "bright_green"))


LEGEND = "  ".join(f"{name} < {bound:.0%}" for bound, name in COLOURS[:-1])


def watch(
    engine: DiffuCoderInference,
    template: Template,
    options: GenerationOptions,
    seed: int,
    *,
    shows_given: bool,
) -> Generation:
    """Fill a template live in the terminal, and return the result."""
    console = Console(highlight=False)
    start = monotonic()
    with (
        compile_seconds() as compiled,
        Live(
            Text(FIRST_NOTE, style="dim"),
            console=console,
            refresh_per_second=20,
            vertical_overflow="crop",
        ) as live,
    ):

        def show(canvas, state):
            # called after every step
            left = int(np.asarray(state.masked).sum())
            text = canvas_text(state, engine.tokenizer, canvas, shows_given=shows_given)
            seconds = monotonic() - start - compiled()
            if left:
                holes = int(canvas.layout(state.extra).holes.sum())
                rest = terminal.duration(seconds / max(1, holes - left) * left)
                quicker = advise_preset(engine.fit(options), canvas.tokens.shape[1], engine.config)
                note = (
                    f"step {int(state.step)}, {left} masks, about {rest} left  {quicker}\n{LEGEND}"
                )
            else:
                passes = f"{int(state.forwards)} forward passes in {seconds:.1f} s"
                note = f"{passes}, after {compiled():.1f} s of compilation{count_ties(state)}"
            live.update(Group(fold(text, console.width), Text(note, style="dim")))

        return engine.decode([template], options, seed=seed, on_state=show).rows[0]


def canvas_text(
    state: SamplerState,
    tokenizer: DiffuCoderTokenizer,
    canvas: Canvas,
    *,
    shows_given: bool = False,
) -> Text:
    """Format the first row: given text is bold, masks are glyphs, holes end at a stop token.

    Colours show the model's own probability of a token if the state has it, because after top-p and
    top-k most tokens have a single candidate and a confidence of 100 %.
    """
    # arrays [1, t] of the first row; `starts` is the first column of each hole
    present, holes, starts = (values[0] for values in canvas.layout(state.extra)[:3])
    probabilities = state.confidence if state.logprobs is None else np.exp(state.logprobs.chosen)
    tokens, masked, confidence = (
        np.asarray(values)[0].tolist() for values in (state.tokens, state.masked, probabilities)
    )
    # `ended` is the start of the hole that a stop token has ended
    text = Text()
    ended = -1
    for column in np.flatnonzero(present).tolist():
        if not holes[column]:
            if shows_given:
                # Special tokens surround holes that grow; they are not shown.
                given = tokenizer.decode(
                    [tokens[column]], skip_special_tokens=canvas.room is not None
                )
                text.append(given, style="bold")
        elif starts[column] == ended:
            # Tokens after a stop token are not part of the answer.
            continue
        elif masked[column]:
            text.append(MASK_GLYPH, style="dim")
        elif tokens[column] in tokenizer.stop_ids:
            ended = starts[column]
        else:
            text.append(tokenizer.decode([tokens[column]]), style=colour(confidence[column]))
    return text


def fold(text: Text, width: int) -> Text:
    """Break lines at the terminal's width, not at words: code would jump while it fills in."""
    return Text("\n").join(
        part
        for line in text.split("\n", allow_blank=True)
        for part in line.divide(range(width, len(line), width))
    )


def count_ties(state: SamplerState) -> str:
    """Describe how many tokens had no other candidate, and so were taken from left to right."""
    # confidence is 0 where nothing was decided
    confidence = np.asarray(state.confidence)[0]
    ties = int((confidence == 1).sum())
    if not ties:
        return ""
    return (
        f"\n{ties} of {(confidence > 0).sum()} tokens had one candidate left after top_p and top_k: such ties "
        "are taken from left to right; --top-p 1 --top-k none shows the model's own order"
    )


def colour(confidence: float) -> str:
    return next(name for bound, name in COLOURS if confidence < bound)

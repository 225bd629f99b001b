"""The canvas in a terminal while it fills in: one glyph per mask, tokens coloured by confidence."""

import time

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jax_lm.diffusion.sampler import SamplerState
from jax_lm.inference import DiffuCoderInference, GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer

MASK_GLYPH = "░"
COLOURS = ((0.5, "red"), (0.8, "yellow"), (0.95, "green"), (1.01, "bright_green"))
"""Upper bound of the confidence, and its colour."""


def watch(engine: DiffuCoderInference, prompt: str, options: GenerationOptions, *, shown_prompt: str) -> None:
    """Denoise one prompt live, and leave the finished text on the screen."""
    console = Console(highlight=False)
    steps = options.sampling().steps
    start = time.monotonic()
    with Live(console=console, refresh_per_second=20, vertical_overflow="crop") as live:
        for state in engine.stream([prompt], options):
            is_last = int(state.step) == steps
            text = Text(shown_prompt, style="bold").append_text(canvas_text(state, engine.tokenizer, options))
            note = footer(state, time.monotonic() - start) if is_last else f"step {int(state.step)}/{steps}  {legend()}"
            live.update(Group(text, Text(note, style="dim")))


def canvas_text(state: SamplerState, tokenizer: DiffuCoderTokenizer, options: GenerationOptions) -> Text:
    """The canvas of the first row: tokens up to the first decided stop token, masks as glyphs."""
    columns = slice(-options.max_new_tokens, None)
    tokens, masked, confidence = (
        np.asarray(values)[0, columns].tolist() for values in (state.tokens, state.masked, state.confidence)
    )
    text = Text()
    for token, is_masked, sure in zip(tokens, masked, confidence, strict=True):
        if is_masked:
            text.append(MASK_GLYPH, style="dim")
        elif token in tokenizer.stop_ids:
            # What follows an end token will not be part of the answer.
            break
        else:
            text.append(tokenizer.decode([token]), style=colour(sure))
    return text


def colour(confidence: float) -> str:
    return next(name for bound, name in COLOURS if confidence < bound)


def legend() -> str:
    return "  ".join(f"{name} < {bound:.0%}" for bound, name in COLOURS[:-1])


def footer(state: SamplerState, seconds: float) -> str:
    return f"{int(state.forwards)} forward passes in {seconds:.1f} s, compilation included"

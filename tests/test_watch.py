"""The live view: masks as glyphs, colours by confidence, nothing after the end token."""

import numpy as np
import pytest

from jax_lm.commands.watch import MASK_GLYPH, canvas_text, colour
from jax_lm.inference import GenerationOptions

OPTIONS = GenerationOptions(max_new_tokens=48, temperature=0.0)


@pytest.mark.parametrize(("confidence", "name"), [(0.0, "red"), (0.6, "yellow"), (0.9, "green"), (1.0, "bright_green")])
def test_colour(confidence, name):
    assert colour(confidence) == name


def test_canvas_fills_in(engine):
    shown = [canvas_text(state, engine.tokenizer, OPTIONS) for state in engine.stream(["def add(a, b):"], OPTIONS)]
    glyphs = [text.plain.count(MASK_GLYPH) for text in shown]
    assert glyphs[0] > 0
    assert glyphs[-1] == 0
    assert shown[-1].plain == engine.complete(["def add(a, b):"], OPTIONS)[0]
    assert {str(span.style) for span in shown[-1].spans} <= {"red", "yellow", "green", "bright_green"}


def test_nothing_is_shown_after_an_end_token(engine):
    *_, state = engine.stream(["def add(a, b):"], OPTIONS)
    tokens = np.asarray(state.tokens)[0, -48:]
    assert np.isin(tokens, engine.tokenizer.stop_ids).any()
    assert "<|" not in canvas_text(state, engine.tokenizer, OPTIONS).plain

"""The live view: masks as glyphs, colours by confidence, nothing after the end token."""

import numpy as np
import pytest

from jax_lm.cli.commands.watching import MASK_GLYPH, canvas_text, colour
from jax_lm.options import GenerationOptions
from jax_lm.templates import Template

TEMPLATE = Template.completion("def add(a, b):", 48)
OPTIONS = GenerationOptions(max_new_tokens=48, temperature=0.0)


@pytest.mark.parametrize(
    ("confidence", "name"), [(0.0, "red"), (0.6, "yellow"), (0.9, "green"), (1.0, "bright_green")]
)
def test_colour(confidence, name):
    assert colour(confidence) == name


def shown(engine, **options):
    canvas = engine.canvas([TEMPLATE])
    return [
        canvas_text(state, engine.tokenizer, canvas, **options)
        for state in engine.states(canvas, OPTIONS)
    ]


def test_canvas_fills_in(engine):
    texts = shown(engine)
    glyphs = [text.plain.count(MASK_GLYPH) for text in texts]
    assert glyphs[0] > 0
    assert glyphs[-1] == 0
    assert texts[-1].plain == engine.complete(["def add(a, b):"], OPTIONS)[0]
    assert {str(span.style) for span in texts[-1].spans} <= {
        "red",
        "yellow",
        "green",
        "bright_green",
    }


def test_given_text_is_shown_on_request(engine):
    assert shown(engine, shows_given=True)[-1].plain == "def add(a, b):" + shown(engine)[-1].plain


def test_nothing_is_shown_after_an_end_token(engine):
    canvas = engine.canvas([TEMPLATE])
    *_, state = engine.states(canvas, OPTIONS)
    tokens = np.asarray(state.tokens)[0, -48:]
    assert np.isin(tokens, engine.tokenizer.stop_ids).any()
    assert "<|" not in canvas_text(state, engine.tokenizer, canvas).plain

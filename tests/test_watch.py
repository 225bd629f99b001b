"""The live view: masks as glyphs, colours by confidence, nothing after the end token."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

from jax_lm.cli.commands.watching import MASK_GLYPH, canvas_text, colour, count_ties, fold
from jax_lm.cli.main import parse
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


def test_colours_are_those_of_the_model_before_the_filters(engine):
    """At the defaults every token is certain after top_p: one colour, and all order is a tie."""
    options = GenerationOptions(max_new_tokens=48)
    states = []
    watched = engine.decode(
        [TEMPLATE], options, on_state=lambda canvas, state: states.append((canvas, state))
    )
    assert watched.rows == engine.decode([TEMPLATE], options).rows
    canvas, state = states[-1]
    kept = np.asarray(state.confidence)[0] > 0
    own = np.exp(np.asarray(state.logprobs.chosen)[0][kept])
    filtered = np.asarray(state.confidence)[0][kept]
    assert (filtered == 1).sum() > 0.9 * kept.sum() > len(np.unique(filtered))
    assert len(np.unique(own)) > 0.5 * kept.sum()
    # the colour is that of the model's own probability, whatever the filters left
    doubtful = state.logprobs._replace(chosen=np.full_like(state.logprobs.chosen, np.log(0.3)))
    text = canvas_text(state._replace(logprobs=doubtful), engine.tokenizer, canvas)
    assert {str(span.style) for span in text.spans} == {"red"}
    said = count_ties(state)
    assert f"{(filtered == 1).sum()} of {kept.sum()} tokens had one candidate left" in said


def test_lines_break_at_the_width_and_keep_their_columns():
    text = Text("    for i in ").append("range(░░░):", style="dim").append("\n\n    x")
    folded = fold(text, 16)
    assert folded.plain == "    for i in ran\nge(░░░):\n\n    x"
    assert [folded.plain[span.start : span.end] for span in folded.spans] == ["ran", "ge(░░░):"]


def test_given_text_is_shown_on_request(engine):
    assert shown(engine, shows_given=True)[-1].plain == "def add(a, b):" + shown(engine)[-1].plain


def test_nothing_is_shown_after_an_end_token(engine):
    canvas = engine.canvas([TEMPLATE])
    *_, state = engine.states(canvas, OPTIONS)
    tokens = np.asarray(state.tokens)[0, -48:]
    assert np.isin(tokens, engine.tokenizer.stop_ids).any()
    assert "<|" not in canvas_text(state, engine.tokenizer, canvas).plain


PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/migration.md",
    "jax_lm/cli/arguments/generation.py",
)


@pytest.mark.parametrize("page", PAGES)
def test_lines_that_watch_show_an_order(engine, page):
    """At the defaults, the leftmost mask comes first in 99 % of the steps: a typewriter."""
    text = (Path(__file__).parent.parent / page).read_text()
    lines = re.findall(r'diffucoder (generate --watch[^`\n]*")', text)
    assert lines
    for line in lines:
        given: Any = parse(shlex.split(line))
        (row,) = engine.decode([Template.completion(given.prompt, 256)], given.generation).rows
        # of some 55 steps
        assert sum(a > b for a, b in pairwise(row.commit_step)) > 10, line

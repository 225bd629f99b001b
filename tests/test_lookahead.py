"""Lookahead against a reading of LoPA in plain Python, one canvas and one forward after another."""

from dataclasses import replace
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import greedy, with_random_weights
from cases.sequences import make_sequence

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.options import Decoding, GenerationOptions

PROMPT, COLUMNS = 5, 16
TAU = Decoding(commit="threshold", threshold=0.5, block_length=8)


@pytest.fixture(scope="module")
def tiny(tiny_model):
    return Sampler(tiny_model)


def prompt(seed, rows=1):
    return np.random.default_rng(seed).integers(0, 95, (rows, PROMPT)).astype(np.int32)


def said(sampler, tokens):
    """The likeliest token of each column and its probability, without MASK."""
    logits = np.array(sampler.forward(jnp.asarray(tokens, jnp.int32)[None]))[0].astype(np.float64)
    logits = np.concatenate([logits[:1], logits[:-1]])
    logits[:, sampler.mask_id] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits.argmax(axis=1), weights.max(axis=1) / weights.sum(axis=1)


def lopa(sampler, given, branches, threshold, block):
    """Decode greedily: returns the tokens, and the forwards, each over all canvases of a step."""
    mask = sampler.mask_id
    tokens = [*given, *[mask] * COLUMNS]
    forwards = 0
    for start in range(PROMPT, PROMPT + COLUMNS, block):
        columns = range(start, start + block)

        def masks(canvas, columns=columns):
            return [column for column in columns if canvas[column] == mask]

        tried = [tokens]
        while masks(tokens):
            forwards += 1
            found = [said(sampler, canvas) for canvas in tried]
            means = [np.mean(p[masks(canvas)]) for canvas, (_, p) in zip(tried, found, strict=True)]
            # A tie goes to a branch before the canvas, and to the surer branch.
            order = [*range(1, len(tried)), 0]
            best = max(order, key=lambda index: (round(means[index], 9), -order.index(index)))
            tokens, (likeliest, p) = list(tried[best]), found[best]
            left = sorted(masks(tokens), key=lambda column: -p[column])
            taken = [column for column in left if p[column] >= threshold] or left[:1]
            for column in taken:
                tokens[column] = int(likeliest[column])
            left = [column for column in left if column not in taken]
            if len(left) == 1:
                tokens[left[0]] = int(likeliest[left[0]])
                left = []
            tried = [tokens]
            for column in left[:branches]:
                tried.append([*tokens[:column], int(likeliest[column]), *tokens[column + 1 :]])
    return tokens, forwards


def options(branches, **settings):
    decoding = replace(TAU, **settings)
    order = {"top_p": None, "top_k": None, "alg": "maskgit_plus"}
    return GenerationOptions(temperature=0.0, lookahead=branches, decoding=decoding, **order)


def decoded(sampler, tokens, settings, **more):
    return sampler.generate(Canvas.after(tokens, None, COLUMNS), settings, **more)


@pytest.mark.parametrize("branches", [1, 3, 10])
def test_it_is_the_published_algorithm(tiny, branches):
    fewer = 0
    for seed in range(12):
        model = with_random_weights(tiny, np.random.default_rng(seed))
        tokens, forwards = lopa(model, prompt(seed)[0].tolist(), branches, 0.5, 8)
        state = decoded(model, prompt(seed), options(branches))
        assert np.asarray(state.tokens)[0].tolist() == tokens
        assert int(state.forwards) == forwards
        fewer += int(decoded(model, prompt(seed), options(0)).forwards) - forwards
    assert fewer > 0


def test_a_branch_is_chosen_that_the_rule_alone_would_not_take(tiny):
    """The comparison above would pass with the canvas always on top, were no text ever another."""
    texts = []
    for branches in (0, 3):
        models = [with_random_weights(tiny, np.random.default_rng(seed)) for seed in range(12)]
        states = [
            decoded(model, prompt(seed), options(branches)) for seed, model in enumerate(models)
        ]
        texts.append([np.asarray(state.tokens).tolist() for state in states])
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "settings", [{}, {"cache": "window"}, {"cache": "dual", "first_token": "force"}]
)
def test_rows_of_a_batch_are_what_they_are_alone(tiny, settings):
    chosen = options(3, **settings)
    tokens, model = prompt(1, rows=3), with_random_weights(tiny, np.random.default_rng(4))
    together = decoded(model, tokens, chosen)
    for row in range(3):
        alone = decoded(model, tokens[row : row + 1], chosen)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.confidence[0], together.confidence[row], atol=1e-5)
        assert not np.asarray(together.masked).any()


def test_a_stream_ends_with_the_same_text_and_only_adds(tiny):
    canvas, chosen = Canvas.after(prompt(2), None, COLUMNS), options(3, cache="window")
    states = list(tiny.stream(canvas, chosen))
    for before, after in pairwise(states):
        kept = ~np.asarray(before.masked)
        np.testing.assert_array_equal(
            np.asarray(before.tokens)[kept], np.asarray(after.tokens)[kept]
        )
    np.testing.assert_array_equal(states[-1].tokens, tiny.generate(canvas, chosen).tokens)
    history = states[-1].history(tiny.mask_id)
    np.testing.assert_array_equal(history[-1], states[-1].tokens)


def test_a_stop_token_in_a_branch_ends_the_row(tiny):
    """Whatever the model says is a stop: the first column ends it all."""
    stops = tuple(range(tiny.mask_id))
    state = decoded(tiny, prompt(3), options(2), stop_ids=stops)
    assert len(set(np.asarray(state.tokens)[0, PROMPT:].tolist())) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lookahead": -1}, "lookahead=-1: must lie in"),
        (
            {"lookahead": 2},
            "lookahead=2: needs a commit rule by probability: threshold, factor, dynamic, entropy",
        ),
        ({"lookahead": 2, "draft": 2, "decoding": TAU}, "draft=2: must be 0 with lookahead"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GenerationOptions(**settings)


def test_the_strict_reference_and_rows_that_share_steps_have_none(tiny):
    with pytest.raises(ValueError, match="must not be given with lookahead=2"):
        decoded(tiny, prompt(0), options(2), strict_reference=True)
    with pytest.raises(ValueError, match="lookahead=2: must be 0 for sequences of a batch"):
        make_sequence(0, options=greedy(lookahead=2, decoding=Decoding(preset="turbo")))

"""Draft and verify: the decoding without guesses to the last token and step, from fewer
evaluations.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import greedy, with_random_weights
from cases.sequences import CASES, COLUMNS, finish, make_sequence
from cases.server import RecordingListener, started

from jax_lm.diffusion import drafts
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.drafts import DraftCanvases, count_right
from jax_lm.diffusion.sampler import Sampler, run
from jax_lm.diffusion.state import BatchInputs, SamplerState, Window
from jax_lm.diffusion.step import StepConfig
from jax_lm.options import (
    ALGS,
    COMMIT_RULES,
    MAX_DRAFT,
    P2,
    RULES_BY_SETTING,
    Decoding,
    GenerationOptions,
)
from jax_lm.serving.engine import EngineOptions
from jax_lm.serving.jobs import Request
from jax_lm.serving.slots import Slots

WIDTH, FIRST, STOPS = 24, 8, (3, 40)
LAYOUTS = {
    "whole canvas": (Decoding(block_length=0), 3),
    "blocks": (Decoding(block_length=8), 2),
    "window": (Decoding(block_length=8, cache="window"), 4),
    "window, frozen prompt, second block light": (
        Decoding(block_length=8, cache="window", freeze_prompt=True, refresh_every=2),
        1,
    ),
    "prefix": (Decoding(block_length=8, cache="prefix"), 7),
    "dual, forced": (Decoding(block_length=8, cache="dual", first_token="force"), 2),
}
"""Blocks, cache, and how many guesses: all that is compiled for; the rest of a case is a number."""
WHOLE_CANVAS, FAST_BLOCKS = Decoding(preset="exact"), Decoding(preset="fast", block_length=8)
ORDINARY, WHOLE = 8, 100
"""Random cases of a layout, in an ordinary run and for a release."""


def random_canvas(rng):
    """Three rows of different lengths; holes of the region are random, but for its ends."""
    tokens = rng.integers(0, 95, (3, WIDTH))
    holes = rng.random((3, WIDTH)) < rng.choice([0.5, 0.8, 1.0])
    holes[:, :FIRST] = False
    holes[0, [FIRST, -1]] = True
    padding = np.arange(WIDTH) < rng.integers(0, FIRST, (3, 1))
    return Canvas(tokens.astype(np.int32), holes, ~padding)


def random_options(rng, decoding):
    """Any order, commit rule, draw and schedule."""
    commit = str(rng.choice(COMMIT_RULES))
    drawn = {
        "threshold": float(rng.choice([0.05, 0.3, 0.9])),
        "factor": float(rng.choice([0.5, 2.0])),
        "entropy_bound": float(rng.choice([0.0, 0.5, 3.0])),
    }
    rule = replace(
        decoding,
        commit=commit,
        **{name: value for name, value in drawn.items() if commit in RULES_BY_SETTING[name]},
    )
    return GenerationOptions(
        temperature=float(rng.choice([0.0, 0.8])),
        top_p=float(rng.choice([0.8, 1.0])),
        top_k=20,
        alg=str(rng.choice([alg for alg in ALGS if alg != P2])),
        alg_temp=float(rng.choice([0.0, 0.5])),
        num_steps=int(rng.choice([4, 11, 16])) if commit == "steps" or rng.random() < 0.2 else None,
        decoding=rule,
    )


def require_same(drafted, plain):
    """Every array of the decoding, and no evaluation more."""
    for name in ("tokens", "masked", "commit_step"):
        np.testing.assert_array_equal(getattr(drafted, name), getattr(plain, name), err_msg=name)
    np.testing.assert_allclose(drafted.confidence, plain.confidence, rtol=0, atol=1e-5)
    assert int(drafted.step) == int(plain.step)
    assert int(drafted.forwards) <= int(plain.forwards)


def decoded(sampler, canvas, options, seed):
    """The end of a decoding; with wrong guesses it may have none."""
    for looks, state in enumerate(
        sampler.stream(canvas, options, seed=seed, every=None, stop_ids=STOPS)
    ):
        assert looks < WIDTH * 4, "no end"
        last = state
    return last


def check_cases(sampler, layout, numbers):
    """Decode random cases with and without guesses; returns the evaluations of both."""
    decoding, draft = LAYOUTS[layout]
    totals = np.zeros(2, int)
    for number in numbers:
        rng = np.random.default_rng((list(LAYOUTS).index(layout), number))
        model, canvas, options = (
            with_random_weights(sampler, rng),
            random_canvas(rng),
            random_options(rng, decoding),
        )
        plain, drafted = (
            decoded(model, canvas, replace(options, draft=count), number) for count in (0, draft)
        )
        require_same(drafted, plain)
        totals += int(drafted.forwards), int(plain.forwards)
    return totals


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """Of one layer, masked positions side by side would be equally likely but for rounding."""
    return Sampler(tiny_model)


@pytest.mark.parametrize("layout", ["whole canvas", "window, frozen prompt, second block light"])
def test_random_models_decode_alike_with_fewer_evaluations(tiny, layout):
    with_guesses, without = check_cases(tiny, layout, range(ORDINARY))
    assert with_guesses < without


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_random_models_decode_alike(tiny, layout, for_release):
    with_guesses, without = check_cases(tiny, layout, range(WHOLE))
    assert with_guesses < without


def accept_all(chain, following, inputs, config):
    return jnp.int32(len(chain.step) - 1)


def accept_tokens_alone(chain, following, inputs, config):
    """As FreeDave's code: a guess that has no wrong token, though another number of them."""
    is_right = jnp.all((chain.tokens[1:] == following.tokens[:-1]) | chain.masked[1:], axis=(1, 2))
    return jnp.sum(jnp.cumprod(is_right), dtype=jnp.int32)


@pytest.mark.parametrize("broken", [accept_all, accept_tokens_alone])
def test_a_broken_verification_does_not_go_unnoticed(tiny, broken, monkeypatch):
    monkeypatch.setattr(drafts, "count_right", broken)
    # The one program that verifies guesses is compiled anew; all others stay.
    run.parallel.clear_cache()
    try:
        with pytest.raises(AssertionError):
            check_cases(tiny, "whole canvas", range(ORDINARY))
    finally:
        run.parallel.clear_cache()


@pytest.mark.parametrize("wrong", range(4))
def test_a_wrong_guess_ends_what_is_accepted(wrong):
    """Four canvases that each decide a token more; the guess of one of them is another token."""
    tokens = np.full((5, 1, 6), 9)
    for done in range(1, 5):
        tokens[done:, 0, done] = done
    masked = tokens == 9
    chain = DraftCanvases(*map(jnp.asarray, (tokens[:4], masked[:4], np.arange(4))))
    zeros = jnp.zeros((4, 1, 6))
    following = SamplerState(
        jnp.asarray(tokens[1:]),
        jnp.asarray(masked[1:]),
        zeros,
        zeros,
        jnp.arange(1, 5),
        zeros,
        zeros,
    )
    config = StepConfig(length=6, rows=None, mask_id=9, top_k=None)
    inputs = BatchInputs._make(
        (None, Window.of(block=0, rows=0, first_step=0, until=9, forwards=9), None)
    )
    assert count_right(chain, following, inputs, config) == 3
    for part in ("tokens", "masked", "step"):
        right = getattr(chain, part)
        other = right.at[wrong].set(~right[wrong] if part == "masked" else right[wrong] + 1)
        # Of the canvas itself nothing is guessed: what it is does not matter.
        assert (
            count_right(chain._replace(**{part: other}), following, inputs, config)
            == (wrong - 1) % 4
        )
    closed = chain._replace(masked=chain.masked.at[2:].set(False))
    same = following._replace(masked=following.masked.at[1:].set(False))
    assert count_right(closed, same, inputs, config) == 1, "no step is taken from a full block"


def golden_canvas(sampler):
    """Two rows, one with two holes and a given token between them."""
    tokens = np.random.default_rng(0).integers(0, 490, (2, 40))
    holes = np.zeros((2, 40), bool)
    holes[:, 8:] = True
    holes[1, 20:23] = False
    return Canvas(tokens.astype(np.int32), holes, np.ones((2, 40), bool))


@pytest.mark.parametrize(
    ("decoding", "temperature", "top_k"), [(WHOLE_CANVAS, 0.0, None), (FAST_BLOCKS, 0.8, 50)]
)
def test_presets_on_the_recorded_checkpoint(golden_sampler, decoding, temperature, top_k):
    options = greedy(32, temperature=temperature, top_p=0.9, top_k=top_k, decoding=decoding)
    canvas = golden_canvas(golden_sampler)
    plain = golden_sampler.generate(canvas, options, seed=2, stop_ids=(7,))
    drafted = golden_sampler.generate(canvas, replace(options, draft=5), seed=2, stop_ids=(7,))
    require_same(drafted, plain)


@pytest.mark.parametrize(
    ("decoding", "top_k", "every"), [(WHOLE_CANVAS, None, 3), (FAST_BLOCKS, 50, 1)]
)
def test_a_stream_tells_every_step_as_if_it_were_taken_alone(
    golden_sampler, decoding, top_k, every
):
    """With the programs of the test above."""
    options = greedy(32, top_p=0.9, top_k=top_k, decoding=decoding)
    canvas = golden_canvas(golden_sampler)
    plain, drafted = (
        list(
            golden_sampler.stream(canvas, replace(options, draft=draft), every=every, stop_ids=(7,))
        )
        for draft in (0, 5)
    )
    assert len(plain) == len(drafted) > 2
    for ours, reference in zip(drafted, plain, strict=True):
        require_same(ours, reference)


def test_guesses_of_a_model_that_looks_at_nothing_are_all_right(tiny):
    """If all tokens are alike to it, a position's candidates never change, so that a step in four
    is evaluated.
    """
    blind = jax.tree.map(lambda part: part, tiny.params)
    embedding = blind["model"]["embed_tokens"]["weight"]
    blind["model"]["embed_tokens"]["weight"] = jnp.broadcast_to(embedding[:1], embedding.shape)
    canvas = Canvas.after(np.arange(8)[None], None, 24)
    # From left to right: by confidence all masked positions would be alike but for rounding.
    options = greedy(24, draft=3, alg="left_to_right")
    states = [
        tiny.changed(params=blind).generate(canvas, replace(options, draft=draft))
        for draft in (0, 3)
    ]
    require_same(states[1], states[0])
    # The schedule commits 0, 1, …, 1, 2: 23 evaluations, the first one without a guess.
    assert [int(state.forwards) for state in states] == [23, 1 + -(-22 // 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": -1}, "draft=-1: must lie in"),
        ({"draft": MAX_DRAFT + 1}, f"draft={MAX_DRAFT + 1}: must lie in"),
        (
            {"draft": 2, "decoding": Decoding(preset="fast", refresh_steps=3)},
            "draft=2: must be 0 with refresh_steps",
        ),
        (
            {"draft": 2, "decoding": Decoding(cache="prefix", refresh_every=2)},
            "draft=2: must be 0 with cache='prefix'",
        ),
    ],
)
def test_what_could_not_be_the_same_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GenerationOptions(**options)


def test_the_strict_reference_has_no_guesses(tiny):
    with pytest.raises(ValueError, match="must not be given with draft=2"):
        tiny.generate(
            Canvas.after(np.arange(8)[None], None, 4), greedy(4, draft=2), strict_reference=True
        )


def told(sequence):
    """All that a sequence holds at its end, but for the number of evaluations."""
    decided = slice(sequence.hole.start, sequence.first_open)
    return sequence.tokens[decided].tolist(), sequence.commit_step[decided].tolist()


@pytest.fixture(scope="module")
def make_slots(golden_sampler):
    """Return slots of four sequences; each kind is made, and compiled, once."""

    @cache
    def make(is_cached, draft):
        return Slots(
            golden_sampler,
            COLUMNS,
            is_cached=is_cached,
            count=4,
            sizes=(4,),
            stop_ids=(500,),
            draft=draft,
        )

    return make


@pytest.mark.parametrize("is_cached", [False, True])
def test_sequences_of_a_batch_become_the_same(make_slots, is_cached):
    """Of all settings, joining while others are on their way."""
    found = {}
    for draft in (0, 3):
        slots = make_slots(is_cached, draft)
        every = [make_sequence(number, case) for number, case in enumerate(CASES.values())]
        mine = [sequence for sequence in every if sequence.is_cached == is_cached]
        slots.join(mine[0])
        slots.advance(3)
        finish(slots, *mine[1:4])
        while not mine[0].is_done:
            slots.advance(4)
        slots.leave(mine[0])
        for start in range(4, len(mine), 4):
            finish(slots, *mine[start : start + 4])
        found[draft] = mine
    assert [told(sequence) for sequence in found[3]] == [told(sequence) for sequence in found[0]]
    assert sum(sequence.forwards for sequence in found[3]) < sum(
        sequence.forwards for sequence in found[0]
    )


def test_a_sequence_with_guesses_of_its_own_is_refused():
    with pytest.raises(ValueError, match="draft=2: must be 0 for sequences of a batch"):
        make_sequence(1, greedy(40, draft=2))


def test_a_lost_block_is_done_again_without_its_guesses(make_slots):
    slots = make_slots(True, 3)
    sequence, whole = make_sequence(6, CASES["fast"]), make_sequence(6, CASES["fast"])
    finish(slots, whole)
    slots.join(sequence)
    slots.advance(2)
    slots.leave(sequence)
    sequence.reopen()
    assert sequence.extra is None
    finish(slots, sequence)
    assert told(sequence) == told(whole)


def test_a_server_with_guesses_answers_the_same(tiny_inference):
    """Commits are told in the order of their steps, and the answer takes fewer evaluations."""
    ends, heard = [], []
    for draft in (0, 4):
        options = EngineOptions(slots=1, queue=4, context=96, max_tokens=80, draft=draft)
        with started(tiny_inference, options) as engine:
            requests = [
                Request(
                    before=(5, 6, 7),
                    options=greedy(24, max_new_tokens=24, decoding=Decoding(preset=preset)),
                    seed=1,
                )
                for preset in ("exact", "fast")
            ]
            for request in requests:
                listener = RecordingListener()
                engine.submit([request], listener)
                ends += listener.finished().values()
                heard.append([commit for event in listener.events for commit in event.commits])
    for drafted, plain in zip(ends[2:], ends[:2], strict=True):
        assert drafted.text == plain.text
        assert [commit.token_id for commit in drafted.tokens] == [
            commit.token_id for commit in plain.tokens
        ]
        assert drafted.forwards <= plain.forwards
    for drafted, plain in zip(heard[2:], heard[:2], strict=True):
        assert [(commit.position, commit.step) for commit in drafted] == [
            (commit.position, commit.step) for commit in plain
        ]

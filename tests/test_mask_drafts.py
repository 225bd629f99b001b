"""Drafts from masks: fewer forward passes, and the text of one token per pass."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions

# One token per pass. Blocks are decoded from left to right.
ONE_BY_ONE = GenerationOptions(
    max_new_tokens=23,
    temperature=0.0,
    top_p=None,
    alg="left_to_right",
    decoding=Decoding(commit="threshold", threshold=1.0, block_length=4),
)
DRAFTED = replace(ONE_BY_ONE, draft=3, decoding=Decoding(cache="causal"))


@pytest.fixture
def sampler(tiny_config):
    """A model with causal blocks that likes a few tokens, so that some drafts are right."""
    config = replace(tiny_config, model_type="qwen2", block_size=4, is_causal=True)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    # The first hidden unit is large for every token, and the logits of three tokens look at it.
    assert model.lm_head
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[...] = embedding[...].at[:, 0].set(1.0)
    head[...] = head[...].at[:, 0].set(0.0).at[[7, 8, 9], 0].set(jnp.array([0.55, 0.5, 0.3]))
    return Sampler(model)


def canvas(rows=(5, 9, 1), new=23):
    """Prompts of these lengths, padded on the left."""
    width = max(rows)
    present = np.arange(width) >= width - np.array(rows)[:, None]
    ids = np.random.default_rng(0).integers(3, 40, (len(rows), width))
    return Canvas.after(np.where(present, ids, 0), present, new)


def assert_same(drafted, one_by_one):
    np.testing.assert_array_equal(drafted.tokens, one_by_one.tokens)
    np.testing.assert_array_equal(drafted.commit_step, one_by_one.commit_step)
    np.testing.assert_allclose(drafted.confidence, one_by_one.confidence, atol=1e-5)
    assert int(drafted.step) == int(one_by_one.step)


@pytest.mark.parametrize("stop_ids", [(), (73,)], ids=["whole", "stopped"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"temperature": 0.2, "top_p": 0.9}])
@pytest.mark.parametrize("draft", [1, 2, 3])
def test_text_is_that_of_one_token_per_pass(sampler, draft, settings, stop_ids):
    drafted = DRAFTED.with_settings(draft=draft, **settings)
    for seed in range(2):
        given = {"seed": seed, "stop_ids": stop_ids}
        expected = sampler.generate(canvas(), ONE_BY_ONE.with_settings(**settings), **given)
        state = sampler.generate(canvas(), drafted, **given)
        assert_same(state, expected)
        assert int(state.forwards) < int(expected.forwards)
        # A row alone is decoded like a row of a batch.
        first = canvas()
        first = Canvas(first.tokens[:1], first.holes[:1], first.attention_mask[:1])
        alone = sampler.generate(first, drafted, **given)
        np.testing.assert_array_equal(alone.tokens[0], expected.tokens[0])


def test_drafts_that_are_all_right_decide_a_block_per_pass(sampler):
    # The greedy answer repeats one token: the first pass decides one, each other pass four.
    state = sampler.generate(canvas((4,)), DRAFTED)
    assert len(set(state.tokens[0, -23:].tolist())) == 1
    assert int(state.forwards) == 1 + -(-22 // 4)


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
def test_short_answers(sampler, new):
    for temperature in (0.0, 0.7):
        settings = {"temperature": temperature, "max_new_tokens": new}
        expected = sampler.generate(canvas(new=new), ONE_BY_ONE.with_settings(**settings))
        assert_same(sampler.generate(canvas(new=new), DRAFTED.with_settings(**settings)), expected)


def test_streams_report_every_step(sampler):
    options = DRAFTED.with_settings(temperature=0.7)
    states = list(sampler.stream(canvas(), options, every=1, seed=3))
    expected = list(
        sampler.stream(canvas(), ONE_BY_ONE.with_settings(temperature=0.7), every=1, seed=3)
    )
    # Blocks of four report their last step again.
    by_step = {int(state.step): state for state in expected}
    assert [int(state.step) for state in states] == list(range(1, 24))
    for state in states:
        assert_same(state, by_step[int(state.step)])


def test_refused(sampler, tiny_model):
    for draft in (0, 4):
        with pytest.raises(
            ValueError, match=rf"draft={draft}: .*must lie in \[1, 3\] for blocks of 4"
        ):
            sampler.generate(canvas(), DRAFTED.with_settings(draft=draft))
    with pytest.raises(ValueError, match="must be 0 for Dream, without causal blocks"):
        Sampler(tiny_model).generate(canvas(), DRAFTED)
    # Orders are chosen before the model is known.
    with pytest.raises(ValueError, match="alg='maskgit_plus': must be 'left_to_right' with draft"):
        DRAFTED.with_settings(alg="maskgit_plus")
    holes = canvas()
    holes.holes[:, -1] = False
    with pytest.raises(ValueError, match="only completes prompts"):
        sampler.generate(holes, DRAFTED)
    state = next(sampler.stream(canvas(), ONE_BY_ONE))
    with pytest.raises(ValueError, match="state: must be None with draft=3"):
        sampler.generate(canvas(), DRAFTED, state=state)
    for name, value in {
        "threshold": 0.5, "block_length": 4, "active_blocks": 1, "alg_temp": 0.1
    }.items():  # fmt: skip
        with pytest.raises(
            ValueError, match=rf"{name}={value!r}: must be .* with draft and cache="
        ):
            DRAFTED.with_settings(**{name: value})

"""Scores along a decoding are what its sampler recorded, through caches and behind early ends."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.trace import decoded_blocks, trace_log_probs
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.training.grpo_config import PolicyLoss
from jax_lm.training.policy_loss import policy_loss

PROMPT, COLUMNS, MASK = 3, 12, 95
# T 1 and no filters: the probability that the sampler records is the model's. The strict reference
# admits MASK as a candidate, as scores do.
DECODINGS = {
    "whole canvas": (Decoding(), 1.0),
    "window": (Decoding(cache="window", block_length=4), 0.7),
    "dual": (Decoding(cache="dual", block_length=6, commit="threshold", threshold=0.02), 1.0),
}


@pytest.mark.parametrize("name", DECODINGS)
def test_a_score_is_the_probability_that_the_sampler_recorded(tiny_model, name):
    decoding, temperature = DECODINGS[name]
    options = GenerationOptions(
        max_new_tokens=COLUMNS,
        num_steps=6 if decoding.settings.commit == "steps" else None,
        temperature=temperature,
        top_p=None,
        top_k=None,
        decoding=decoding,
    )
    prompt = np.random.default_rng(2).integers(0, 90, (16, PROMPT)).astype(np.int32)
    canvas, stop_ids = Canvas.after(prompt, None, COLUMNS), tuple(range(8))
    state = Sampler(tiny_model).generate(
        canvas, options, seed=5, stop_ids=stop_ids, strict_reference=True
    )
    tokens, steps, confidence = (
        np.asarray(part) for part in (state.tokens, state.commit_step, state.confidence)
    )
    completions, steps = tokens[:, PROMPT:], steps[:, PROMPT:]
    # What counts: up to the first stop token, in rows without a mask that was left.
    stops = np.isin(completions, stop_ids)
    counted = np.cumsum(stops, axis=1) - stops == 0
    counted &= ~(completions == MASK).any(axis=1, keepdims=True)
    assert (stops.any(axis=1) & counted.any(axis=1)).sum() >= 3
    assert counted.all(axis=1).any()
    recorded = np.log(confidence[:, PROMPT:], where=counted, out=np.zeros(counted.shape))

    def difference(options):
        blocks = decoded_blocks(tokens.shape[1], options, tiny_model.config)
        score = partial(trace_log_probs, tiny_model, blocks=blocks, mask_id=MASK)
        scores = jax.jit(partial(score, temperature=temperature))(
            tokens, canvas.attention_mask, steps
        )
        return np.abs(np.where(counted, scores, 0) - recorded).max()

    assert difference(options) < 2e-5
    # Without the cache that they were sampled with, scores are of other distributions.
    if decoding.settings.cache != "none":
        length = decoding.settings.block_length
        plain = Decoding(commit=decoding.settings.commit, block_length=length)
        assert difference(replace(options, decoding=plain)) > 1e-3


def test_the_gradient_does_not_depend_on_remat(tiny_model):
    graph, weights = nnx.split(tiny_model)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 90, (4, PROMPT + COLUMNS)).astype(np.int32)
    steps = np.sort(rng.integers(0, 6, (4, COLUMNS)).astype(np.int32), axis=1)
    decoding = Decoding(cache="window", block_length=4)
    options = GenerationOptions(max_new_tokens=COLUMNS, num_steps=12, decoding=decoding)
    blocks = decoded_blocks(PROMPT + COLUMNS, options, tiny_model.config)

    def gradient(remat):
        def total(weights):
            rows = jnp.asarray(tokens), jnp.ones(tokens.shape, bool), jnp.asarray(steps)
            model = nnx.merge(graph, weights)
            return jnp.sum(trace_log_probs(model, *rows, blocks, MASK, remat=remat))

        return jax.jit(jax.grad(total))(weights)

    for ours, theirs in zip(*map(jax.tree.leaves, map(gradient, (False, True))), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(np.abs(theirs).max() + 1e-9))


def test_its_policy_gradient_on_two_tokens_is_the_exact_one(tiny_config):
    """Over all 49 completions of two tokens, one decided after the other, the mean of A times the
    gradient of the score is the gradient of the mean reward.
    """
    mask, length = 7, 2
    config = replace(tiny_config, vocab_size=8, mask_token_id=mask)
    graph, weights = nnx.split(DreamForCausalLM(config, rngs=nnx.Rngs(0)))
    # The prompt 3, and all pairs of tokens behind it; position 1 is decided first in every second row.
    pairs = np.array(list(np.ndindex(mask, mask)), np.int32)
    tokens = np.concatenate([np.full((len(pairs), 1), 3, np.int32), pairs], axis=1)
    steps = np.where(np.arange(len(pairs))[:, None] % 2, [[1, 0]], [[0, 1]]).astype(np.int32)
    rewards = np.random.default_rng(0).uniform(size=len(pairs)).astype(np.float32)
    present = jnp.ones(tokens.shape, bool)

    def probability(weights):
        """p(first) p(second | first), from two plain forward passes."""
        model, product = nnx.merge(graph, weights), 1.0
        for step in (0, 1):
            open_at = np.pad(steps, ((0, 0), (1, 0)), constant_values=-1) >= step
            canvas = jnp.asarray(np.where(open_at, mask, tokens))
            log_probs = jax.nn.log_softmax(model(canvas, present), axis=-1)
            # row p predicts the token at p + 1
            column = np.argmax(steps == step, axis=1)
            rows = np.arange(len(pairs))
            product *= jnp.exp(log_probs[rows, column, pairs[rows, column]])
        return product

    exact = jax.jit(jax.grad(lambda weights: jnp.sum(probability(weights) * rewards)))(weights)
    # As a loss of the trainer: each completion counts as often as it is drawn.
    drawn = np.asarray(jax.jit(probability)(weights))
    options = GenerationOptions(max_new_tokens=length, num_steps=length)
    blocks = decoded_blocks(tokens.shape[1], options, config)

    def loss(weights):
        model = nnx.merge(graph, weights)
        rows = jnp.asarray(tokens), present, jnp.asarray(steps)
        scores = trace_log_probs(model, *rows, blocks, mask)
        counted, advantages = jnp.ones(pairs.shape, bool), jnp.asarray(drawn * rewards)
        form = PolicyLoss(loss_type="dr_grpo", beta=0.0)
        total, weight, _ = policy_loss(scores, None, None, advantages, counted, form)
        # dr_grpo divides by rows times columns
        return -total / weight * pairs.size

    ours = jax.jit(jax.grad(loss))(weights)
    for mine, theirs in zip(*map(jax.tree.leaves, (ours, exact)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * float(np.abs(theirs).max()) + 1e-9)

"""Advantages, masked copies, scores, clipped ratios and the divergence, against the stated
formulas.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.ad_checkpoint import print_saved_residuals

from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.grpo_config import Estimator, PolicyLoss
from jax_lm.training.policy_loss import (
    Copies,
    completion_scores,
    divergence,
    forward_process,
    policy_loss,
    selective_log_softmax,
    weighted_scores,
)
from jax_lm.training.rollouts import advantages, sample_keys
from jax_lm.training.update import gradient

ROWS, LENGTH = 6, 5
PROMPT, COMPLETION, MASK = 6, 10, 95
TOLERANCE = 0.5
# Compiled once for all tests; called plainly, every small operation is a program of its own.
LOSS = jax.jit(policy_loss, static_argnames=("form", "tolerance"))
FORWARD = jax.jit(forward_process, static_argnums=(2, 3, 4))


@jax.jit
def scores_of(logits, index, copies):
    """Scores of copies from the logits at each of their positions."""
    log_probs = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log_probs, index[:, None, :, None], axis=-1)[..., 0]
    return weighted_scores(own, copies.scored, copies.weights, copies.divisor)


@pytest.fixture(scope="module")
def inputs():
    """Scores of three policies, advantages of both signs, rows of 5, 4, … 1 and no tokens."""
    rng = np.random.default_rng(0)
    old = rng.normal(size=(ROWS, LENGTH)).astype(np.float32) - 4
    scores = old + rng.normal(size=old.shape).astype(np.float32)
    reference = scores + rng.normal(size=old.shape).astype(np.float32)
    mask = np.arange(LENGTH) < LENGTH - np.arange(ROWS)[:, None]
    advantage = np.array([1.0, -0.5, 0.7, -1.5, 0.3, 9.0], np.float32)
    return scores, old, reference, advantage, mask


def loss_of(inputs, form):
    total, weight, metrics = LOSS(*inputs, form=form, tolerance=TOLERANCE)
    return float(total / weight), {
        name: float(getattr(value, "value", value)) for name, value in metrics.items()
    }


def plain_divergence(d, clamp):
    """e^d - d - 1, and its tangents beyond the clamp, for one number."""
    near = min(max(d, -clamp), clamp)
    return np.exp(near) - near - 1 + (np.exp(near) - 1) * (d - near)


def plain_terms(inputs, form):
    """Token terms of the clipped surrogate, one by one in float64."""
    scores, old, reference, advantage, mask = (np.asarray(part, np.float64) for part in inputs)
    high = form.epsilon if form.epsilon_high is None else form.epsilon_high
    terms = np.zeros_like(scores)
    for row, place in np.argwhere(mask):
        ratio = np.exp(scores[row, place] - old[row, place])
        if form.loss_type == "gspo":
            chosen = mask[row].astype(bool)
            ratio = np.exp((scores[row, chosen] - old[row, chosen]).mean())
        clipped = min(max(ratio, 1 - form.epsilon), 1 + high)
        kl = plain_divergence(reference[row, place] - scores[row, place], form.kl_clamp)
        bound = form.delta if form.delta is not None and advantage[row] < 0 else np.inf
        surrogate = min(min(ratio, bound) * advantage[row], clipped * advantage[row])
        p = np.exp(old[row, place])
        weight = form.negative_scale * p**form.negative_power * (p >= form.negative_floor)
        weight = weight if advantage[row] < 0 else 1
        terms[row, place] = -weight * surrogate + form.beta * kl
    return terms, mask


def expected(inputs, form):
    terms, mask = plain_terms(inputs, form)
    lengths = mask.sum(axis=1)
    judged = lengths > 0
    if form.loss_type in ("bnpo", "dapo"):
        return terms.sum() / mask.sum()
    if form.loss_type == "dr_grpo":
        return terms.sum() / (judged.sum() * LENGTH)
    return (terms.sum(axis=1)[judged] / lengths[judged]).mean()


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dapo", "dr_grpo", "gspo"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.5, "kl_clamp": 0.7},
        {"negative_scale": 0.3, "negative_power": 0.5, "negative_floor": 0.01, "delta": 1.7},
    ],
)
def test_loss_is_the_formula(inputs, loss_type, changes):
    form = PolicyLoss(**({"loss_type": loss_type} | changes))
    assert loss_of(inputs, form)[0] == pytest.approx(expected(inputs, form), rel=1e-5)


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dr_grpo", "gspo"])
def test_parts_of_a_batch_sum_up_to_its_loss(inputs, loss_type):
    form = PolicyLoss(loss_type=loss_type)
    parts = [
        LOSS(*(part[rows] for part in inputs), form=form, tolerance=0.0)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    together = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    assert float(together) == pytest.approx(loss_of(inputs, form)[0], rel=1e-6)


def test_before_the_first_update_the_gradient_is_that_of_the_advantage(inputs):
    """At ratio 1 the surrogate's value is minus the advantage, its gradient minus the advantage
    times that of s.
    """
    scores, _, _, advantage, mask = inputs

    def total(scores):
        loss, _, metrics = policy_loss(
            scores,
            jnp.asarray(inputs[0]),
            None,
            jnp.asarray(advantage),
            jnp.asarray(mask),
            PolicyLoss(beta=0.0),
        )
        return loss, metrics

    gradient, metrics = jax.jit(jax.grad(total, has_aux=True))(scores)
    np.testing.assert_allclose(gradient, np.where(mask, -advantage[:, None], 0), rtol=1e-6)
    assert float(metrics["max_log_ratio"]) == 0
    assert float(metrics["clipped_share"].value) == float(metrics["unequal_share"].value) == 0
    assert "kl" not in metrics


@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_one_token_far_away_ends_no_run(advantage):
    """e^200 is infinite in float32, and infinity times 0 no number."""
    old, rows = jnp.zeros((1, 3)), (jnp.array([advantage]), jnp.ones((1, 3), bool))

    def total(scores):
        return policy_loss(scores, old, None, *rows, PolicyLoss(beta=0.0)).total

    scores = np.float32([[0.0, 200.0, 0.1]])
    loss, slope = map(np.asarray, jax.jit(jax.value_and_grad(total))(scores))
    assert np.isfinite(loss)
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope[0, [0, 2]], -advantage * np.exp([0.0, 0.1]), rtol=1e-6)


def test_metrics_are_means_over_the_completion(inputs):
    scores, old, reference, advantage, mask = inputs
    form = PolicyLoss(epsilon=0.2)
    _, metrics = loss_of(inputs, form)
    d = (reference - scores)[mask].astype(np.float64)
    assert metrics["kl"] == pytest.approx(
        np.mean([plain_divergence(one, 5.0) for one in d]), rel=1e-5
    )
    assert metrics["max_log_ratio"] == pytest.approx(np.abs(scores - old)[mask].max())
    assert 0 < metrics["unequal_share"] < 1
    assert metrics["unequal_share"] == pytest.approx(
        (np.abs(scores - old)[mask] > TOLERANCE).mean()
    )
    ratio, sign = np.exp(scores - old), np.broadcast_to(advantage[:, None], mask.shape)
    clipped = ((ratio < 0.8) & (sign < 0)) | ((ratio > 1.2) & (sign > 0))
    assert 0 < metrics["clipped_share"] < 1
    assert metrics["clipped_share"] == pytest.approx(clipped[mask].mean())


def test_divergence_goes_on_as_a_line_that_still_draws_back():
    """A token far below the reference is pulled up as hard as at the clamp, not let go."""
    s = np.float32([[-40.0, -5.1, -5.0, -4.9, 0.0, 4.9, 5.1, 40.0]])
    reference = jnp.zeros(s.shape)
    diverge = jax.jit(divergence, static_argnums=2)
    value = np.asarray(diverge(s, reference, 5.0))[0]
    total = jax.jit(jax.grad(lambda scores: jnp.sum(divergence(scores, reference, 5.0))))
    slope = np.asarray(total(s))[0]
    d = -s[0].astype(np.float64)
    np.testing.assert_allclose(value, [plain_divergence(one, 5.0) for one in d], rtol=1e-5)
    np.testing.assert_allclose(slope, 1 - np.exp(np.clip(d, -5, 5)), rtol=1e-5)
    # Without a clamp it is the published form, and inside the clamp both are the same.
    published = np.asarray(diverge(s, reference, float("inf")))[0]
    np.testing.assert_allclose(published, np.exp(d) - d - 1, rtol=1e-5)
    np.testing.assert_array_equal(published[3:6], value[3:6])


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dr_grpo"])
def test_metrics_do_not_depend_on_accumulation(inputs, loss_type):
    """Means over tokens, whatever the loss is divided by: rows have 5, 4, … 0 tokens."""
    names = ("scores", "old", "reference", "advantages", "mask")
    batch = dict(zip(names, map(jnp.asarray, inputs), strict=True))

    def loss(params, rows, key):
        scores = rows["scores"] + params["shift"]
        others = (rows[name] for name in names[1:])
        return policy_loss(scores, *others, PolicyLoss(loss_type=loss_type), tolerance=TOLERANCE)

    (_, whole), (_, split) = (
        gradient(loss, {"shift": jnp.zeros(())}, {}, batch, jax.random.key(0), parts=parts)
        for parts in (1, 3)
    )
    assert whole.keys() == {
        *("loss", "kl", "clipped_share", "unequal_share", "max_log_ratio"),
        *("logprob", "rewarded_logprob", "rate_scale"),
    }
    for name, value in whole.items():
        assert float(split[name]) == pytest.approx(float(value), rel=1e-6), name


def test_nothing_outside_the_completion_counts(inputs):
    scores, old, reference, advantage, mask = inputs
    # Of either sign: there e^d is infinite without a clamp.
    wild = np.where(mask, scores, 1e4).astype(np.float32)
    for form in (PolicyLoss(), PolicyLoss(kl_clamp=float("inf"))):
        assert loss_of((-wild, old, reference, advantage, mask), form) == loss_of(
            (-scores, *inputs[1:]), form
        )
        assert loss_of((wild, old, reference, advantage, mask), form) == loss_of(inputs, form)


def test_leave_one_out_is_the_reward_less_the_mean_of_the_others():
    rewards = np.array([1.0, 0.0, 2.5, 0.5, 3.0, 3.0, 3.0, 3.0], np.float32)
    ours = advantages(rewards, 4)
    for row in range(4):
        others = np.delete(rewards[:4], row)
        assert ours[row] == pytest.approx(rewards[row] - others.mean(), abs=1e-6)
    # A group without variance teaches nothing.
    assert (ours[4:] == 0).all()
    plain = advantages(rewards, 4, baseline="mean")
    np.testing.assert_allclose(plain[:4], rewards[:4] - rewards[:4].mean(), atol=1e-6)
    np.testing.assert_allclose(ours, plain * 4 / 3, atol=1e-6)
    scaled = advantages(rewards, 4, scale_rewards=True)
    np.testing.assert_allclose(scaled[:4], ours[:4] / (rewards[:4].std(ddof=1) + 1e-4), rtol=1e-5)
    assert (scaled[4:] == 0).all()


def test_what_was_not_judged_belongs_to_no_baseline():
    rewards = np.array([1.0, np.nan, 4.0, np.nan, np.nan, 5.0, np.nan, np.nan, np.nan], np.float32)
    np.testing.assert_array_equal(advantages(rewards, 3), [-3, 0, 3, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "ppo"}, "loss_type='ppo': must be one of bnpo"),
        ({"epsilon": 1.0}, r"epsilon=1\.0: must lie in \(0, 1\)"),
        ({"epsilon_high": 0.0}, r"epsilon_high=0\.0: must be positive"),
        ({"beta": -0.1}, r"beta=-0\.1: must not be negative"),
        ({"kl_clamp": 0.0}, r"kl_clamp=0\.0: must be positive"),
        ({"delta": 1.0}, r"delta=1\.0: must be above 1"),
        ({"negative_floor": 1.5}, r"negative_floor=1\.5: must lie in \[0, 1\]"),
        ({"negative_power": -1.0}, r"negative_power=-1\.0: must not be negative"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(**changes)


@pytest.fixture(scope="module")
def rows():
    """Four rows of a prompt and a completion, without padding."""
    return np.random.default_rng(0).integers(0, 90, (4, PROMPT + COMPLETION)).astype(np.int32)


@pytest.fixture(scope="module")
def scored(tiny_model):
    """Compiled scores of rows."""
    graph, state = nnx.split(tiny_model)

    @functools.partial(jax.jit, static_argnames="chunk")
    def score(tokens, present, copies, *, chunk):
        return completion_scores(nnx.merge(graph, state), tokens, present, copies, chunk)

    return score


def copies_of(tokens, estimator=None, *, seed=0, rollout=0, iteration=1, ids=None):
    """The copies as NumPy arrays."""
    ids = np.arange(len(tokens)) if ids is None else ids
    keys = sample_keys(seed, rollout, iteration, jnp.asarray(ids))
    copies = FORWARD(keys, tokens, COMPLETION, MASK, estimator or Estimator())
    return jax.tree.map(np.asarray, copies)


@pytest.mark.parametrize("pairs", [1, 3])
def test_pairs_are_exact_complements_and_nothing_leaks(rows, pairs):
    copies = copies_of(rows, Estimator(num_mask_pairs=pairs))
    first, second = copies.scored[:, 1::2], copies.scored[:, 2::2]
    assert copies.scored.shape == (4, 1 + 2 * pairs, COMPLETION)
    assert copies.scored[:, 0].all()
    assert (first ^ second).all()
    # A token is predicted exactly where the model does not see it, and the prompt is never masked.
    assert ((copies.tokens[:, :, PROMPT:] == MASK) == copies.scored).all()
    assert (copies.tokens[:, :, :PROMPT] == rows[:, None, :PROMPT]).all()
    assert (
        np.where(copies.scored, rows[:, None, PROMPT:], copies.tokens[:, :, PROMPT:])
        == rows[:, None, PROMPT:]
    ).all()


def test_weights_are_the_inverse_shares():
    estimator = Estimator(num_mask_pairs=1)
    tokens = np.zeros((512, 2000), np.int32)
    copies = FORWARD(sample_keys(0, 0, 1, jnp.arange(512)), tokens, 2000, MASK, estimator)
    copies = jax.tree.map(np.asarray, copies)
    t = 1 / copies.weights[:, 1]
    assert (copies.weights[:, 0] == 1).all()
    np.testing.assert_allclose(1 / copies.weights[:, 2], 1 - t, rtol=1e-6)
    assert 0.2 <= t.min() < 0.21
    assert 0.79 < t.max() <= 0.8
    # Six standard errors of a share of 2,000 draws.
    np.testing.assert_allclose(copies.scored[:, 1].mean(axis=1), t, atol=6 * np.sqrt(0.25 / 2000))


def test_decoupled_masks_are_independent_and_full_mask_is_one_copy():
    tokens = np.zeros((256, 1000), np.int32)
    keys = sample_keys(0, 0, 1, jnp.arange(256))

    def copied(estimator):
        return jax.tree.map(np.asarray, FORWARD(keys, tokens, 1000, MASK, estimator))

    copies = copied(Estimator(estimator="decoupled"))
    t = 1 / copies.weights[:, 1]
    both = (copies.scored[:, 1] & copies.scored[:, 2]).mean(axis=1)
    np.testing.assert_allclose(both, t * (1 - t), atol=6 * np.sqrt(0.25 / 1000))
    coupled = copied(Estimator())
    assert (copies.scored[:, 1] == coupled.scored[:, 1]).all()
    full = copied(Estimator(estimator="full_mask"))
    assert full.scored.shape[1] == 1
    assert full.scored.all()


def test_masks_follow_from_rollout_iteration_and_sample_alone(rows):
    whole = copies_of(rows)
    for ids in (np.array([2, 0]), np.array([3, 1])):
        part = copies_of(rows[ids], ids=ids)
        for ours, expected in zip(part, whole, strict=True):
            np.testing.assert_array_equal(ours, expected[ids])
    for other in (
        copies_of(rows, rollout=1),
        copies_of(rows, iteration=2),
        copies_of(rows, seed=1),
    ):
        assert not np.array_equal(other.scored, whole.scored)
        assert not np.array_equal(other.weights, whole.weights)


def plain_scores(logits, index, masked, weights):
    """The stated formula for one pair, token by token in float64."""
    logits = np.asarray(logits, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.take_along_axis(log_probs, np.asarray(index)[:, None, :, None], -1)[..., 0]
    pairs = (masked.shape[1] - 1) // 2
    total = own[:, 0] * np.asarray(weights)[:, 0, None]
    for pair in range(pairs):
        for copy in (1 + 2 * pair, 2 + 2 * pair):
            total = total + np.where(
                masked[:, copy], own[:, copy] * np.asarray(weights)[:, copy, None], 0
            )
    return total / (pairs + 1)


@pytest.mark.parametrize("pairs", [1, 2])
def test_scores_are_the_formula(rows, pairs):
    copies = copies_of(rows, Estimator(num_mask_pairs=pairs))
    shape = (4, 1 + 2 * pairs, COMPLETION, 13)
    logits = (np.random.default_rng(1).normal(size=shape) * 3).astype(np.float32)
    index = rows[:, PROMPT:] % 13
    ours = scores_of(logits, index, copies)
    np.testing.assert_allclose(
        ours, plain_scores(logits, index, np.asarray(copies.scored), copies.weights), rtol=2e-6
    )


def test_selective_log_softmax_is_the_score_of_three_stacked_versions(rows):
    copies = jax.tree.map(jnp.asarray, copies_of(rows))
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3, COMPLETION, 13)), jnp.float32)
    index = jnp.asarray(rows[:, PROMPT:] % 13)
    stacked = logits.swapaxes(0, 1).reshape(12, COMPLETION, 13)
    ours = selective_log_softmax(stacked, index, copies.weights.T, copies.scored[:, 1])
    np.testing.assert_allclose(ours, scores_of(logits, index, copies), rtol=1e-6)
    shared = selective_log_softmax(
        stacked, index, jnp.array([1.0, 4.0, 4 / 3]), copies.scored[:, 1]
    )
    weights = jnp.broadcast_to(jnp.array([1.0, 4.0, 4 / 3]), (4, 3))
    np.testing.assert_allclose(
        shared, scores_of(logits, index, copies._replace(weights=weights)), rtol=1e-6
    )
    with pytest.raises(ValueError, match="logits has 8 rows: must have 3 for each of the 4"):
        selective_log_softmax(stacked[:8], index, copies.weights.T, copies.scored[:, 1])


def test_full_mask_scores_are_log_probabilities(rows):
    copies = copies_of(rows, Estimator(estimator="full_mask"))
    logits = np.random.default_rng(1).normal(size=(4, 1, COMPLETION, 13)).astype(np.float32)
    index = rows[:, PROMPT:] % 13
    expected = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits[:, 0])), np.asarray(index)[..., None], -1
    )
    np.testing.assert_allclose(scores_of(logits, index, copies), expected[..., 0], rtol=1e-6)


def test_padding_changes_no_score(scored, rows):
    """Neither how much there is, nor what is in it, nor how much the other rows of a chunk have."""
    copies = copies_of(rows)
    present = np.arange(rows.shape[1]) >= np.arange(4)[:, None]
    plain = scored(rows, present, copies, chunk=1)
    padding = ((0, 0), (5, 0))
    padded_copies = copies._replace(
        tokens=np.pad(copies.tokens, ((0, 0), *padding), constant_values=7)
    )
    padded = scored(
        np.pad(rows, padding, constant_values=7), np.pad(present, padding), padded_copies, chunk=2
    )
    np.testing.assert_allclose(padded, plain, atol=2e-5)


def test_chunks_change_neither_scores_nor_gradients(tiny_model, rows):
    graph, state = nnx.split(tiny_model)
    rows, copies = jax.tree.map(jnp.asarray, (rows, copies_of(rows)))
    present = jnp.ones(rows.shape, bool)
    factors = jnp.asarray(np.random.default_rng(2).normal(size=(4, COMPLETION)), jnp.float32)

    def value(chunk, remat):
        def total(state):
            scores = completion_scores(
                nnx.merge(graph, state), rows, present, copies, chunk, remat=remat
            )
            return jnp.sum(scores * factors), scores

        return jax.jit(jax.grad(total, has_aux=True))(state)

    whole, scores = value(None, remat=False)
    # Three do not divide four samples: two are scored twice. Eight are more than there are.
    for chunk, remat in ((1, False), (3, False), (8, False), (None, True), (3, True)):
        chunked, chunked_scores = value(chunk, remat)
        np.testing.assert_allclose(scores, chunked_scores, atol=2e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * float(np.abs(a).max())),
            whole,
            chunked,
        )


def test_remat_keeps_the_inputs_of_layers_alone(tiny_config, rows, capsys):
    """Inside a layer there are arrays as wide as its feed-forward."""
    config = dataclasses.replace(tiny_config, intermediate_size=1024)
    graph, state = nnx.split(DreamForCausalLM(config))
    rows, copies = jax.tree.map(jnp.asarray, (rows, copies_of(rows)))
    present = jnp.ones(rows.shape, bool)

    def kept(remat):
        def total(state):
            return jnp.sum(
                completion_scores(nnx.merge(graph, state), rows, present, copies, remat=remat)
            )

        print_saved_residuals(total, state)
        return re.findall(r"f32\[((?:\d+,){2,}\d+)\]", capsys.readouterr().out)

    wide = f"12,{rows.shape[1]},1024"
    assert sum(shape.endswith(wide) for shape in kept(False)) >= 2 * config.num_hidden_layers
    inputs = kept(True)
    assert sum(shape.endswith(wide) for shape in inputs) == 0
    assert (
        sum(shape.endswith(f"12,{rows.shape[1]},32") for shape in inputs)
        >= config.num_hidden_layers
    )


def test_memory_holds_the_logits_of_one_chunk(tiny_config, rows):
    """With a large vocabulary the logits dominate: a gradient over all rows at once would hold them
    all.
    """
    config = dataclasses.replace(tiny_config, vocab_size=16_384, num_hidden_layers=1)

    graph, state = nnx.split(DreamForCausalLM(config))
    tokens = np.tile(rows, (8, 1))
    tokens, copies = jax.tree.map(jnp.asarray, (tokens, copies_of(tokens)))

    def temporary(chunk):
        def total(state):
            present = jnp.ones(tokens.shape, bool)
            return jnp.sum(
                completion_scores(nnx.merge(graph, state), tokens, present, copies, chunk)
            )

        return jax.jit(jax.grad(total)).lower(state).compile().memory_analysis().temp_size_in_bytes

    one_sample = 3 * COMPLETION * config.vocab_size * 4
    weights = 2 * config.vocab_size * config.hidden_size * 4
    assert temporary(1) < 6 * one_sample + 3 * weights
    assert temporary(32) > 32 * one_sample


def test_estimator_is_checked(rows):
    with pytest.raises(ValueError, match="estimator='single': must be one of coupled"):
        Estimator(estimator="single")
    with pytest.raises(ValueError, match="num_mask_pairs=0: must be at least 1"):
        Estimator(num_mask_pairs=0)
    with pytest.raises(ValueError, match=r"mask ratios 0\.0 to 0\.8"):
        Estimator(min_mask_ratio=0.0)
    assert isinstance(copies_of(rows), Copies)

"""Advantages, clipped ratios and the divergence, against the stated formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.training.grpo_config import PolicyLoss
from jax_lm.training.policy_loss import advantages, divergence, policy_loss

ROWS, LENGTH = 6, 5


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
    total, weight, metrics = policy_loss(*map(jnp.asarray, inputs), form)
    return float(total / weight), {name: float(value) for name, value in metrics.items()}


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
        d = np.clip(reference[row, place] - scores[row, place], -form.kl_clamp, form.kl_clamp)
        surrogate = min(ratio * advantage[row], clipped * advantage[row])
        terms[row, place] = -surrogate + form.beta * (np.exp(d) - d - 1)
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
@pytest.mark.parametrize("changes", [{}, {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.5, "kl_clamp": 0.7}])
def test_loss_is_the_formula(inputs, loss_type, changes):
    form = PolicyLoss(**({"loss_type": loss_type} | changes))
    assert loss_of(inputs, form)[0] == pytest.approx(expected(inputs, form), rel=1e-5)


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dr_grpo", "gspo"])
def test_parts_of_a_batch_sum_up_to_its_loss(inputs, loss_type):
    form = PolicyLoss(loss_type=loss_type)
    parts = [policy_loss(*(jnp.asarray(part[rows]) for part in inputs), form) for rows in (slice(0, 2), slice(2, 6))]
    together = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    assert float(together) == pytest.approx(loss_of(inputs, form)[0], rel=1e-6)


def test_before_the_first_update_the_gradient_is_that_of_the_advantage(inputs):
    """At ratio 1 the surrogate's value is minus the advantage, its gradient minus the advantage times that of s."""
    scores, _, _, advantage, mask = inputs

    def total(scores):
        loss, _, metrics = policy_loss(
            scores, jnp.asarray(inputs[0]), None, jnp.asarray(advantage), jnp.asarray(mask), PolicyLoss(beta=0.0)
        )
        return loss, metrics

    gradient, metrics = jax.grad(total, has_aux=True)(jnp.asarray(scores))
    np.testing.assert_allclose(gradient, np.where(mask, -advantage[:, None], 0), rtol=1e-6)
    assert float(metrics["max_log_ratio"]) == 0
    assert float(metrics["clipped_share"]) == 0
    assert "kl" not in metrics


def test_metrics_are_means_over_the_completion(inputs):
    scores, old, reference, advantage, mask = inputs
    form = PolicyLoss(epsilon=0.2)
    _, metrics = loss_of(inputs, form)
    d = np.clip(reference - scores, -5, 5)[mask].astype(np.float64)
    assert metrics["kl"] == pytest.approx((np.exp(d) - d - 1).mean(), rel=1e-5)
    assert metrics["max_log_ratio"] == pytest.approx(np.abs(scores - old)[mask].max())
    ratio, sign = np.exp(scores - old), np.broadcast_to(advantage[:, None], mask.shape)
    clipped = ((ratio < 0.8) & (sign < 0)) | ((ratio > 1.2) & (sign > 0))
    assert 0 < metrics["clipped_share"] < 1
    assert metrics["clipped_share"] == pytest.approx(clipped[mask].mean())


def test_divergence_is_clamped_on_both_sides():
    scores = jnp.array([[0.0, 0.0, 0.0]])
    reference = jnp.array([[40.0, -40.0, 1.0]])
    np.testing.assert_allclose(
        divergence(scores, reference, 5.0)[0], [np.exp(5) - 6, np.exp(-5) + 4, np.e - 2], rtol=1e-5
    )


def test_nothing_outside_the_completion_counts(inputs):
    scores, old, reference, advantage, mask = inputs
    wild = np.where(mask, scores, 1e4).astype(np.float32)
    assert loss_of((wild, old, reference, advantage, mask), PolicyLoss()) == loss_of(inputs, PolicyLoss())


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
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        PolicyLoss(**changes)


def test_groups_are_checked():
    with pytest.raises(ValueError, match="num_generations=4: must be at least 2 and divide 6"):
        advantages(np.zeros(6, np.float32), 4)
    with pytest.raises(ValueError, match="baseline='median'"):
        advantages(np.zeros(6, np.float32), 3, baseline="median")

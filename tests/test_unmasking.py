"""Filters, confidences, counts and the choice of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion import unmasking
from jax_lm.diffusion.decoding import ranks
from jax_lm.diffusion.unmasking import SamplingConfig, confidence, disturbed, draw, filtered, inverse_cdf, largest

MASK_ID = 0


def uniform(rows, positions):
    """Numbers in [0, 1), [rows, positions]."""
    return jax.random.uniform(jax.random.key(0), (rows, positions))


def plain_filter(logits, top_p, top_k):
    """Probabilities after top_p and then top_k, by a full sort, in float64."""
    order = np.argsort(-logits, kind="stable")
    probs = np.exp(logits[order] - logits.max())
    probs /= probs.sum()
    kept = np.ones(len(logits), bool)
    if top_p is not None:
        kept &= np.concatenate([[0.0], np.cumsum(probs)[:-1]]) <= top_p
    if top_k is not None:
        kept[top_k:] = False
    result = np.zeros(len(logits))
    result[order[kept]] = probs[kept] / probs[kept].sum()
    return result


def dense(candidates, size):
    """Candidate probabilities laid out over the vocabulary."""
    rows = np.zeros((*candidates.ids.shape[:2], size))
    np.put_along_axis(rows, np.asarray(candidates.ids), np.exp(np.asarray(candidates.log_probs)), axis=-1)
    return rows


@pytest.mark.parametrize(
    ("top_p", "top_k"), [(None, None), (None, 5), (0.9, None), (0.9, 5), (0.5, 50), (1e-6, None), (1.0, None)]
)
def test_filters_equal_a_full_sort(top_p, top_k):
    logits = np.random.default_rng(0).normal(size=(4, 30, 120)).astype(np.float32) * 3
    config = SamplingConfig(steps=1, top_p=top_p, top_k=top_k, strict_reference=True)
    ours = dense(filtered(jnp.asarray(logits), config, MASK_ID), 120)
    theirs = np.apply_along_axis(plain_filter, -1, logits.astype(np.float64), top_p, top_k)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_prefiltered_nucleus_equals_the_full_sort_on_many_rows():
    rng = np.random.default_rng(1)
    scale = rng.uniform(0.2, 6.0, size=(10_000, 1))
    logits = jnp.asarray((rng.normal(size=(10_000, 200)) * scale).astype(np.float32)).reshape(100, 100, 200)
    config = SamplingConfig(steps=1, top_p=0.9, top_k=None)
    # 32 candidates suffice for the sharp rows only: the batch as a whole takes the fallback.
    quick = filtered(logits, config, MASK_ID, prefilter=32)
    full = filtered(logits, config, MASK_ID, prefilter=200)
    np.testing.assert_array_equal(np.isinf(quick.log_probs), np.isinf(full.log_probs))
    sharp = logits * 20
    quick, full = (filtered(sharp, config, MASK_ID, prefilter=size) for size in (32, 200))
    np.testing.assert_array_equal(np.isinf(quick.log_probs), np.isinf(full.log_probs))


def test_mask_is_a_candidate_only_for_the_strict_reference():
    logits = jnp.zeros((1, 1, 8)).at[..., MASK_ID].set(50.0)
    for strict in (False, True):
        config = SamplingConfig(steps=1, strict_reference=strict)
        token, _ = draw(uniform(1, logits.shape[1]), filtered(logits, config, MASK_ID), config.temperature)
        assert (int(token[0, 0]) == MASK_ID) == strict


def test_confidences_by_hand():
    probs = jnp.array([0.5, 0.3, 0.2])
    candidates = unmasking.Candidates(jnp.log(probs)[None, None], jnp.array([[[7, 8, 9]]]))
    number = uniform(1, 1)
    token, probability = draw(number, candidates, 0.0)
    assert int(token[0, 0]) == 7
    values = {
        alg: float(confidence(number, candidates, probability, jnp.array([[4]]), alg)[0, 0]) for alg in unmasking.ALGS
    }
    assert values["maskgit_plus"] == pytest.approx(0.5)
    assert values["topk_margin"] == pytest.approx(0.2)
    assert values["entropy"] == pytest.approx(float(jnp.sum(probs * jnp.log(probs))))
    assert 0 <= values["random"] < 1


def test_left_to_right_scores_by_position():
    candidates = unmasking.Candidates(jnp.zeros((1, 3, 1)), jnp.zeros((1, 3, 1), jnp.int32))
    scores = confidence(uniform(1, 3), candidates, jnp.ones((1, 3)), jnp.array([[9, 2, 5]]), "left_to_right")
    np.testing.assert_array_equal(ranks(scores, jnp.ones((1, 3), bool)), [[2, 0, 1]])


def test_alg_temp_draws_from_the_softmax_of_confidence():
    scores, draws = jnp.log(jnp.array([0.6, 0.3, 0.1])), 20_000
    noisy = disturbed(uniform(draws, 3), jnp.tile(scores, (draws, 1)), 1.0)
    first = np.asarray(ranks(noisy, jnp.ones((draws, 3), bool))) == 0
    np.testing.assert_array_equal(first.sum(axis=1), np.ones(draws))
    # Four standard errors of a share at 20,000 draws.
    np.testing.assert_allclose(first.mean(axis=0), [0.6, 0.3, 0.1], atol=4 * 0.0035)


@pytest.mark.parametrize("size", [5, 700, 9_000])
def test_largest_equals_top_k_with_its_ties(size):
    values = np.random.default_rng(0).integers(0, 40, size=(2, 3, size)).astype(np.float32)
    for ours, theirs in zip(largest(jnp.asarray(values), 5), jax.lax.top_k(values, 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_inverse_cdf_draws_in_proportion_over_a_whole_vocabulary():
    rng = np.random.default_rng(3)
    weights = np.where(rng.random(10_000) < 0.5, 0.0, rng.random(10_000)).astype(np.float32)
    draws = jnp.asarray((np.arange(5_000) + 0.5) / 5_000, jnp.float32)[None]
    index = np.asarray(inverse_cdf(jnp.broadcast_to(weights, (1, 5_000, 10_000)), draws))[0]
    assert (weights[index] > 0).all()
    # Evenly spaced numbers: the empirical distribution may differ from the weights by rounding alone.
    drawn = np.cumsum(np.bincount(index, minlength=10_000)) / 5_000
    np.testing.assert_allclose(drawn, np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64), atol=3e-4)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("size", [3, 500])
def test_inverse_cdf_never_takes_a_column_without_weight(number, size):
    weights = jnp.zeros((1, 1, size)).at[..., size // 2].set(0.3)
    assert int(inverse_cdf(weights, jnp.full((1, 1), number))[0, 0]) == size // 2


def test_tokens_are_drawn_from_the_tempered_distribution():
    logits = jnp.tile(jnp.log(jnp.array([1e-9, 0.6, 0.3, 0.1])), (1, 20_000, 1))
    config = SamplingConfig(steps=1, temperature=0.5, top_k=None)
    tokens, probability = draw(uniform(1, logits.shape[1]), filtered(logits, config, MASK_ID), config.temperature)
    expected = np.array([0.36, 0.09, 0.01]) / 0.46
    shares = np.bincount(np.asarray(tokens[0]), minlength=4)[1:] / 20_000
    np.testing.assert_allclose(shares, expected, atol=4 * 0.0035)
    np.testing.assert_allclose(np.unique(np.asarray(probability).round(4)), np.sort(expected).round(4), atol=2e-4)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": -3}, "steps=-3"),
        ({"steps": 4, "alg": "greedy"}, "alg='greedy'"),
        ({"steps": 4, "top_p": 0.0}, "top_p=0.0"),
        ({"steps": 4, "top_p": 1.5}, "top_p=1.5"),
        ({"steps": 4, "top_p": float("nan")}, "top_p=nan"),
        ({"steps": 4, "top_k": 0}, "top_k=0"),
        ({"steps": 4, "temperature": -0.1}, "temperature=-0.1"),
        ({"steps": 4, "temperature": float("nan")}, "temperature=nan"),
        ({"steps": 4, "alg_temp": -1.0}, "alg_temp=-1.0"),
        ({"steps": 4, "eps": 1.0}, "eps=1.0"),
    ],
)
def test_settings_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        SamplingConfig(**options)

"""Filters, confidences, counts and the choice of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion import unmasking
from jax_lm.diffusion.unmasking import SamplingConfig, choose, confidence, draw, filtered, transfer_ratios

MASK_ID = 0


def counts(masks, steps):
    """What a row of `masks` masks commits at each step."""
    committed, masked = [], jnp.ones((1, masks), bool)
    for ratio in transfer_ratios(steps, 1e-3):
        count = int(unmasking.commit_counts(masked, jnp.asarray(ratio))[0])
        committed.append(count)
        masked = jnp.arange(masks)[None] >= sum(committed)
    return committed


@pytest.mark.parametrize(
    ("masks", "steps", "expected"),
    [
        (256, 256, [0] + [1] * 254 + [2]),
        (256, 128, [1] + [2] * 126 + [3]),
        (256, 64, [3] + [4] * 62 + [5]),
        (32, 32, [0] + [1] * 30 + [2]),
        (24, 1, [24]),
    ],
)
def test_schedule_of_the_reference(masks, steps, expected):
    assert counts(masks, steps) == expected


@pytest.mark.parametrize(("masks", "steps"), [(24, 48), (7, 3), (1, 5), (100, 33)])
def test_schedule_leaves_no_mask(masks, steps):
    assert sum(counts(masks, steps)) == masks


def test_ratios_equal_torch_to_the_bit():
    torch = pytest.importorskip("torch")
    for steps in range(2, 600):
        times = torch.linspace(1, 1e-3, steps + 1)
        expected = (1 - times[1:] / times[:-1]).numpy()
        np.testing.assert_array_equal(transfer_ratios(steps, 1e-3)[:-1], expected[:-1])


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
        token, _ = draw(jax.random.split(jax.random.key(0), 1), filtered(logits, config, MASK_ID), config)
        assert (int(token[0, 0]) == MASK_ID) == strict


def test_confidences_by_hand():
    probs = jnp.array([0.5, 0.3, 0.2])
    candidates = unmasking.Candidates(jnp.log(probs)[None, None], jnp.array([[[7, 8, 9]]]))
    keys = jax.random.split(jax.random.key(0), 1)
    token, probability = draw(keys, candidates, SamplingConfig(steps=1))
    assert int(token[0, 0]) == 7
    values = {alg: float(confidence(keys, candidates, probability, alg)[0, 0]) for alg in unmasking.ALGS}
    assert values["maskgit_plus"] == pytest.approx(0.5)
    assert values["topk_margin"] == pytest.approx(0.2)
    assert values["entropy"] == pytest.approx(float(jnp.sum(probs * jnp.log(probs))))
    assert 0 <= values["random"] < 1


def test_left_to_right_takes_the_first_masks():
    candidates = unmasking.Candidates(jnp.zeros((1, 5, 1)), jnp.zeros((1, 5, 1), jnp.int32))
    keys = jax.random.split(jax.random.key(0), 1)
    scores = confidence(keys, candidates, jnp.ones((1, 5)), "left_to_right")
    masked = jnp.array([[False, True, False, True, True]])
    chosen = choose(keys, scores, masked, jnp.array([2]), 0.0)
    np.testing.assert_array_equal(chosen, [[False, True, False, True, False]])


def test_choice_respects_masks_and_counts_per_row():
    scores = jnp.array([[0.9, 0.8, 0.1, 0.7], [0.1, 0.2, 0.3, 0.4]])
    masked = jnp.array([[False, True, True, True], [True, True, False, True]])
    keys = jax.random.split(jax.random.key(0), 2)
    chosen = choose(keys, scores, masked, jnp.array([2, 0]), 0.0)
    np.testing.assert_array_equal(chosen, [[False, True, False, True], [False] * 4])


def test_equal_scores_go_left_to_right():
    chosen = choose(
        jax.random.split(jax.random.key(0), 1), jnp.zeros((1, 6)), jnp.ones((1, 6), bool), jnp.array([2]), 0.0
    )
    np.testing.assert_array_equal(chosen, [[True, True, False, False, False, False]])


def test_alg_temp_draws_from_the_softmax_of_confidence():
    scores, draws = jnp.log(jnp.array([0.6, 0.3, 0.1])), 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    chosen = choose(keys, jnp.tile(scores, (draws, 1)), jnp.ones((draws, 3), bool), jnp.ones(draws, jnp.int32), 1.0)
    np.testing.assert_array_equal(chosen.sum(axis=1), np.ones(draws))
    # Four standard errors of a share at 20,000 draws.
    np.testing.assert_allclose(chosen.mean(axis=0), [0.6, 0.3, 0.1], atol=4 * 0.0035)


def test_tokens_are_drawn_from_the_tempered_distribution():
    logits = jnp.tile(jnp.log(jnp.array([1e-9, 0.6, 0.3, 0.1])), (1, 20_000, 1))
    config = SamplingConfig(steps=1, temperature=0.5, top_k=None)
    tokens, probability = draw(jax.random.split(jax.random.key(0), 1), filtered(logits, config, MASK_ID), config)
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

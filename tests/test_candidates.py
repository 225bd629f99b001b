"""Filters, confidences, counts and the choice of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import greedy

from jax_lm.diffusion import candidates as of_candidates
from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.candidates import SamplingParams, break_ties
from jax_lm.diffusion.nucleus import Candidates, Rows
from jax_lm.options import ALGS, GenerationOptions

MASK_ID = 0
# Compiled: called plainly, every small operation is a program of its own.
confidence, add_noise, draw, ranks = map(
    jax.jit,
    (of_candidates.confidence, of_candidates.add_noise, of_candidates.draw, commit_rules.ranks),
)
filtered = jax.jit(of_candidates.filtered, static_argnames=("top_k", "excluded_id"))
all_log_probs = jax.jit(lambda rows, ids: rows.log_probs(rows.logits, ids))


def params(**options):
    """Settings of a block of one column, as numbers."""
    return jax.tree.map(np.asarray, SamplingParams.of(greedy(1, **options), 1, 1))


def uniform(rows, positions):
    """Numbers in [0, 1), [rows, positions]."""
    return jax.random.uniform(jax.random.key(0), (rows, positions))


def plain_filter(logits, top_p, top_k, min_p=0.0):
    """Probabilities after top_p, top_k and min_p, by a full sort, in float64."""
    order = np.argsort(-logits, kind="stable")
    probs = np.exp(logits[order] - logits.max())
    probs /= probs.sum()
    kept = np.ones(len(logits), bool)
    if top_p is not None:
        kept &= np.concatenate([[0.0], np.cumsum(probs)[:-1]]) <= top_p
    if top_k is not None:
        kept[top_k:] = False
    kept &= probs >= min_p * probs[0]
    result = np.zeros(len(logits))
    result[order[kept]] = probs[kept] / probs[kept].sum()
    return result


def dense(candidates, size):
    """Candidate probabilities laid out over the vocabulary."""
    if isinstance(candidates, Rows):
        return np.exp(np.asarray(all_log_probs(candidates, np.arange(size))))
    rows = np.zeros((*candidates.ids.shape[:2], size))
    np.put_along_axis(
        rows, np.asarray(candidates.ids), np.exp(np.asarray(candidates.log_probs)), axis=-1
    )
    return rows


@pytest.mark.parametrize(
    ("top_p", "top_k"),
    [(None, None), (None, 5), (0.9, None), (0.9, 5), (0.5, 50), (1e-6, None), (1.0, None)],
)
def test_filters_equal_a_full_sort(top_p, top_k):
    logits = np.random.default_rng(0).normal(size=(4, 30, 120)).astype(np.float32) * 3
    ours = dense(filtered(logits, params(top_p=top_p), top_k=top_k), 120)
    theirs = np.apply_along_axis(plain_filter, -1, logits.astype(np.float64), top_p, top_k)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("top_p", "top_k"), [(None, None), (None, 5), (0.9, None), (0.9, 50)])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5, 1.0])
def test_min_p_equals_a_full_sort(top_p, top_k, min_p):
    logits = np.random.default_rng(2).normal(size=(4, 30, 120)).astype(np.float32) * 3
    ours = dense(filtered(logits, params(top_p=top_p, min_p=min_p), top_k=top_k), 120)
    theirs = np.apply_along_axis(plain_filter, -1, logits.astype(np.float64), top_p, top_k, min_p)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
    assert (ours > 0).sum() == (theirs > 0).sum()


@pytest.mark.parametrize("vocabulary", [30, 120])
@pytest.mark.parametrize("top_k", [1, 7, 50])
def test_a_traced_top_k_is_the_static_one(vocabulary, top_k):
    logits = np.random.default_rng(3).normal(size=(4, 30, vocabulary)).astype(np.float32) * 3
    if vocabulary > 50:
        # Ties are cut at k; without a k that cuts anything, top_p keeps them all.
        logits[0] = 1.0
    traced = filtered(logits, params(top_p=0.9)._replace(top_k=np.int32(top_k)), top_k=50)
    static = filtered(logits, params(top_p=0.9), top_k=top_k)
    np.testing.assert_allclose(
        dense(traced, vocabulary), dense(static, vocabulary), rtol=0, atol=2e-6
    )
    with pytest.raises(ValueError, match="needs a static top_k"):
        filtered(logits, params()._replace(top_k=np.int32(top_k)), top_k=None)


@pytest.mark.parametrize("number", [1e39, 1e300])
@pytest.mark.parametrize("name", ["entropy_bound", "factor"])
@pytest.mark.filterwarnings("error")
def test_a_setting_beyond_float32_is_its_largest_number(name, number):
    commit = {"entropy_bound": "entropy", "factor": "factor"}.get(name)
    options = GenerationOptions(max_new_tokens=1).with_settings(**{name: number, "commit": commit})
    assert getattr(SamplingParams.of(options, 1, 1), name) == np.finfo(np.float32).max


def test_mask_is_a_candidate_only_for_the_strict_reference():
    logits = jnp.zeros((1, 1, 8)).at[..., MASK_ID].set(50.0)
    for strict in (False, True):
        candidates = filtered(logits, params(), top_k=50, excluded_id=None if strict else MASK_ID)
        token, _ = draw(uniform(1, logits.shape[1]), candidates, jnp.float32(0))
        assert (int(token[0, 0]) == MASK_ID) == strict


def test_confidences_by_hand():
    probs = jnp.array([0.5, 0.3, 0.2])
    candidates = Candidates(jnp.log(probs)[None, None], jnp.array([[[7, 8, 9]]]))
    number = uniform(1, 1)
    token, probability = draw(number, candidates, jnp.float32(0))
    assert int(token[0, 0]) == 7
    values = {
        alg: float(
            confidence(number, candidates, probability, jnp.array([[4]]), jnp.int32(index))[0, 0]
        )
        for index, alg in enumerate(ALGS)
    }
    assert values["maskgit_plus"] == pytest.approx(0.5)
    assert values["topk_margin"] == pytest.approx(0.2)
    assert values["entropy"] == pytest.approx(float(jnp.sum(probs * jnp.log(probs))))
    assert 0 <= values["random"] < 1


def test_left_to_right_scores_by_position():
    candidates = Candidates(jnp.zeros((1, 3, 1)), jnp.zeros((1, 3, 1), jnp.int32))
    alg, positions = jnp.int32(ALGS.index("left_to_right")), jnp.array([[9, 2, 5]])
    scores = confidence(uniform(1, 3), candidates, jnp.ones((1, 3)), positions, alg)
    np.testing.assert_array_equal(ranks(scores, jnp.ones((1, 3), bool)), [[2, 0, 1]])


def test_single_candidates_go_by_what_the_model_said():
    scores = break_ties(jnp.array([[0.8, 1.0, 1.0]]), jnp.log(jnp.array([[0.7, 0.6, 0.9]])))
    np.testing.assert_allclose(scores, [[0.8, 1.6, 1.9]], rtol=1e-6)
    np.testing.assert_array_equal(ranks(scores, jnp.ones((1, 3), bool)), [[2, 1, 0]])


def test_alg_temp_draws_from_the_softmax_of_confidence():
    scores, draws = jnp.log(jnp.array([0.6, 0.3, 0.1])), 20_000
    noisy = add_noise(uniform(draws, 3), jnp.tile(scores, (draws, 1)), jnp.float32(1))
    first = np.asarray(ranks(noisy, jnp.ones((draws, 3), bool))) == 0
    np.testing.assert_array_equal(first.sum(axis=1), np.ones(draws))
    # Four standard errors of a share at 20,000 draws.
    np.testing.assert_allclose(first.mean(axis=0), [0.6, 0.3, 0.1], atol=4 * 0.0035)


def test_tokens_are_drawn_from_the_tempered_distribution():
    logits = jnp.tile(jnp.log(jnp.array([1e-9, 0.6, 0.3, 0.1])), (1, 20_000, 1))
    candidates = filtered(logits, params(temperature=0.5), top_k=None, excluded_id=MASK_ID)
    tokens, probability = draw(uniform(1, logits.shape[1]), candidates, jnp.float32(0.5))
    expected = np.array([0.36, 0.09, 0.01]) / 0.46
    shares = np.bincount(np.asarray(tokens[0]), minlength=4)[1:] / 20_000
    np.testing.assert_allclose(shares, expected, atol=4 * 0.0035)
    np.testing.assert_allclose(
        np.unique(np.asarray(probability).round(4)), np.sort(expected).round(4), atol=2e-4
    )


def test_entropy_is_that_of_the_logits_without_mask():
    logits = np.random.default_rng(1).normal(scale=4, size=(2, 5, 300)).astype(np.float32)
    logits[0, 0, 1:] = -80.0
    logits[1, 2, 4] = 60.0
    exact = logits.astype(np.float64)
    exact[..., 7] = -np.inf
    probs = np.exp(exact - exact.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    expected = -(probs * np.log(np.where(probs > 0, probs, 1))).sum(-1)
    found = np.asarray(of_candidates.row_entropy(jnp.asarray(logits), 7))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    assert (found >= 0).all()

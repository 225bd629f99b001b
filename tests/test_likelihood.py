"""The Monte-Carlo log-likelihood against an exact sum over all masks."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.sampler import Sampler

PROMPT, COMPLETION = [3, 5, 8], [13, 21, 34]


def exact(sampler, model):
    """The estimator's expectation: the mean over l of the mean over all masks of l tokens."""
    total = 0.0
    for level in range(1, 4):
        sums = []
        for masked in itertools.combinations(range(3), level):
            tokens = np.array([PROMPT + COMPLETION])
            tokens[0, [3 + place for place in masked]] = sampler.mask_id
            logits = (
                model.logits(shift_right(model.model(jnp.asarray(tokens))))
                .at[..., sampler.mask_id]
                .set(-jnp.inf)
            )
            log_probs = logits - jnp.log(jnp.sum(jnp.exp(logits), -1, keepdims=True))
            sums.append(sum(float(log_probs[0, 3 + place, COMPLETION[place]]) for place in masked))
        total += 3 / level * float(np.mean(sums)) / 3
    return total


def test_estimate_converges_to_the_exact_sum(tiny_model):
    sampler = Sampler(tiny_model)
    score = log_likelihood(sampler, PROMPT, COMPLETION, samples=600, seed=0)
    assert score.tokens == 3
    assert abs(score.log_likelihood - exact(sampler, tiny_model)) < 4 * score.standard_error


def test_deterministic_for_a_seed(tiny_model):
    sampler = Sampler(tiny_model)
    first, again, other = (
        log_likelihood(sampler, PROMPT, COMPLETION, samples=5, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert math.isinf(log_likelihood(sampler, PROMPT, COMPLETION, samples=1, seed=0).standard_error)


@pytest.mark.parametrize(
    ("completion", "samples", "seed", "named"),
    [([], 4, 0, "completion has no tokens"), ([1], 0, 0, "samples=0"), ([1], 4, -1, "seed=-1")],
)
def test_bad_requests_are_named(tiny_model, completion, samples, seed, named):
    with pytest.raises(ValueError, match=named):
        log_likelihood(Sampler(tiny_model), PROMPT, completion, samples=samples, seed=seed)

"""Monte-Carlo log-likelihood of a completion under a masked-diffusion model.

This is the evidence bound by LLaDA's low-variance estimator: mask l of the completion's L tokens, l
uniform on 1 … L, and average L / l times the summed log-probability of the masked ones. Its
expectation is a lower bound of the log-likelihood. The samples cover 1 … L evenly, so that few are
needed.
"""

from dataclasses import dataclass
from functools import partial
from math import inf, sqrt

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion.candidates import TokenLogProbs
from jax_lm.diffusion.masking import align_rows
from jax_lm.diffusion.nucleus import map_columns
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.graph import ModelFunction, ModelGraph
from jax_lm.models.shapes import BatchValues, Mask
from jax_lm.models.token_likelihood import column_parts
from jax_lm.tokenizer import TokenIds, pad_left

# Samples of one forward pass, and the multiple to which their rows are padded.
SCORE_ROWS = 8
SCORE_WIDTH = 32


@dataclass(frozen=True)
class Score:
    """An estimate in nats, its standard error, and the numbers of tokens and samples behind it."""

    log_likelihood: float
    standard_error: float
    tokens: int
    samples: int


def log_likelihood(
    sampler: Sampler, prompt: TokenIds, completion: TokenIds, *, samples: int, seed: int
) -> Score:
    """Estimate log p(completion | prompt), deterministic for a seed.

    For an autoregressive model it is exact, and takes one sample.

    Raises:
        ValueError: nothing to score, fewer than one sample, or a negative seed.
    """
    # A row does not see the token that it predicts: all tokens are scored at once.
    is_exact = sampler.config.is_autoregressive
    if is_exact and not prompt:
        raise ValueError("prompt has no tokens: an autoregressive model predicts from one")
    if not completion:
        raise ValueError("completion has no tokens: nothing to score")
    if samples < 1:
        raise ValueError(f"samples={samples}: must be at least 1")
    if seed < 0:
        raise ValueError(f"seed={seed}: must not be negative")
    rng = np.random.default_rng(seed)
    length = len(completion)
    # choose masks
    if is_exact:
        levels = np.array([length])
    else:
        # One l from each of `samples` equal strata of 1 … L.
        strata = np.arange(samples) + rng.random(samples)
        levels = np.floor(strata * length / samples).astype(int) + 1
    # One row for all samples: [pad ..., prompt, completion].
    tokens, present = pad_left([prompt + completion], sampler.mask_id, multiple_of=SCORE_WIDTH)
    values = []
    # score, SCORE_ROWS samples at a time
    for first in range(0, len(levels), SCORE_ROWS):
        counts = levels[first : first + SCORE_ROWS]
        masked = np.zeros((SCORE_ROWS, tokens.shape[1]), bool)
        for number, level in enumerate(counts):
            masked[number, rng.choice(length, level, replace=False) - length] = True
        sums = masked_log_probability(
            sampler.graph, sampler.params, tokens, present.astype(bool), masked, sampler.mask_id
        )
        # Rows without a sample fill up the last pass, and are dropped.
        values += (np.asarray(sums)[: len(counts)] * length / counts).tolist()
    error = float(np.std(values, ddof=1)) / sqrt(samples) if len(values) > 1 else inf
    return Score(float(np.mean(values)), 0.0 if is_exact else error, length, len(levels))


@partial(ModelFunction, static_argnames=("graph", "mask_id"))
def masked_log_probability(
    graph: ModelGraph,
    params: dict,
    tokens: Int[Array, "1 t"],
    present: Bool[Array, "1 t"],
    masked: Mask,
    mask_id: int,
) -> BatchValues:
    """Return the summed log-probability of the masked tokens of each row."""
    model = graph.merge(params)
    present = jnp.broadcast_to(present, masked.shape)
    is_noisy = masked & model.config.family.is_diffusion
    hidden = model.model(jnp.where(is_noisy, mask_id, tokens), present)
    hidden = align_rows(hidden, model.config)

    def log_probs(hidden, tokens):
        return TokenLogProbs.of(model.logits(hidden), tokens, 1, mask_id).chosen

    parts = column_parts(model, *masked.shape)
    each = map_columns(log_probs, parts, hidden, jnp.broadcast_to(tokens, masked.shape))
    return jnp.sum(jnp.where(masked, each, 0.0), axis=1)

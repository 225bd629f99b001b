"""Candidates of a masked position: filters, the drawn token, and its confidence.

Pure functions of logits; they know neither the model nor the loop. Everything is computed in
float32: confidences in bfloat16 would tie above p = 0.998. The semantics are those of Dream's
`diffusion_generate` and `sample_tokens`.
"""

from typing import NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.commit_rules import transfer_ratios
from jax_lm.diffusion.nucleus import Candidates, Rows, RowValue, largest
from jax_lm.models.shapes import (
    RowChoice,
    RowIds,
    RowLogits,
    RowMask,
    RowScores,
    RowValues,
    Scalar,
    ScalarInt,
    Shape,
)
from jax_lm.options import ALGS, RULES_BY_SETTING, GenerationOptions

# Candidates per position that drafts are made from, if the whole vocabulary is sampled. If a drawn
# token is not among them, the draft is rejected: that costs a forward pass, not the text.
DRAFT_CANDIDATES = 50

# A setting; under `jax.vmap` it has one entry per row.
Value = Float[Array, "*b"]
Number = Int[Array, "*b"]
Flag = Bool[Array, "*b"]


class SamplingParams(NamedTuple):
    """Settings of a generation as traced numbers: another temperature needs no new compilation.

    Under `jax.vmap` each row has its own settings. `jax_lm.options` explains each of them. None
    compiles a program without the setting; the numbers that turn it off are in parentheses.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p: mass of the nucleus, or None (infinity).
        top_k: number of candidates where it is less than the static top_k, or None.
        min_p: least share of the most likely token's probability, or None (0).
        alg: index of the order in `ALGS`.
        alg_temp: 0 takes the most confident positions.
        by_schedule: whether the noise schedule decides how many tokens a step commits; otherwise
            their probabilities do.
        threshold: probability from which tokens are committed.
        decay: decay of the threshold while the block fills; 0 except in the rule `dynamic`.
        factor: factor of the rule `factor`; 0 in the others.
        entropy_bound: bound of the rules `entropy` and `low_entropy`; negative in the others, which
            need no entropies.
        bounds_each: whether each entropy is bounded (`low_entropy`), and not their sum.
        steps: denoising steps of the block; 0 is no limit.
        ratios: noise schedule of the block, filled up with ones.
        early_stop: whether a stop token ends a row; None means always.
        add_threshold, activate_threshold: filled shares of a block from which the next block
            begins, and from which it must decide a token at each step; None unless several blocks
            are filled at once.
        cache_delay, refresh_steps: passes before a delayed cache keeps a finished block, and from
            one pass over all rows to the next (infinity); None unless several blocks are filled.
        keeps_logprobs: whether to record log-probabilities in a state that has room for them; None
            means never.
    """

    temperature: Value
    top_p: Value | None
    top_k: Number | None
    min_p: Value | None
    alg: Number
    alg_temp: Value
    by_schedule: Flag
    threshold: Value
    decay: Value
    factor: Value
    entropy_bound: Value
    bounds_each: Flag
    steps: Number
    ratios: Float[Array, "*b s"]
    early_stop: Flag | None = None
    add_threshold: Value | None = None
    activate_threshold: Value | None = None
    cache_delay: Value | None = None
    refresh_steps: Value | None = None
    keeps_logprobs: Flag | None = None

    @classmethod
    def of(
        cls, options: GenerationOptions, block: int, region: int, *, columns: int = 0
    ) -> "SamplingParams":
        """Return the settings for a block of `block` columns in a region of `region` columns.

        The blocks of a region share its steps in proportion to their lengths.

        Args:
            options: how to decode.
            block: columns of the block.
            region: columns of the region.
            columns: least length of the schedule, so that blocks of different lengths share a
                compilation.
        """
        # 10 steps for a region of 32 columns: a block of 8 gets ceil(10 * 8 / 32) = 3 of them.
        decoding = options.decoding.settings
        steps = 0 if options.steps is None else max(1, -(-options.steps * block // region))
        ratios = np.ones(max(steps, block, columns), np.float32)
        if steps:
            ratios[:steps] = transfer_ratios(steps)
        numbers = {
            "temperature": as_float32(options.temperature),
            "top_p": as_float32(options.top_p),
            "top_k": None,
            "min_p": as_float32(options.min_p),
            "alg": np.int32(ALGS.index(options.alg)),
            "alg_temp": as_float32(options.alg_temp),
            "by_schedule": np.bool_(decoding.commit == "steps"),
            "threshold": as_float32(decoding.threshold),
            "bounds_each": np.bool_(decoding.commit == "low_entropy"),
            "steps": np.int32(steps),
            "ratios": ratios,
        }
        # A rule that is off gets a number that turns it off, so that all rules share a program.
        for name, off in (("decay", 0), ("factor", 0), ("entropy_bound", -1)):
            is_read = decoding.commit in RULES_BY_SETTING[name]
            numbers[name] = as_float32(getattr(decoding, name) if is_read else off)
        if options.decoding.is_pipelined:
            numbers |= {
                name: as_float32(getattr(decoding, name))
                for name in ("add_threshold", "activate_threshold", "cache_delay")
            }
            numbers["refresh_steps"] = as_float32(decoding.refresh_steps or np.inf)
        return cls(**numbers)

    @property
    def is_by_chance(self) -> Flag:
        """Whether the order is `origin`, which commits each position independently by chance."""
        return self.alg == ALGS.index("origin")


def as_float32(number: SupportsFloat | None) -> np.float32 | None:
    """Convert a setting to float32; numbers beyond its range become the largest finite float32."""
    return (
        None if number is None else np.float32(min(float(number), float(np.finfo(np.float32).max)))
    )


class TokenLogProbs(NamedTuple):
    """Log-probabilities of positions when they were decided.

    They are those of the model, before temperature and filters, and exclude MASK.

    Attributes:
        chosen: log-probability of the token that was chosen.
        log_probs: log-probabilities of the most likely tokens.
        ids: ids of the most likely tokens.
    """

    chosen: Float[Array, "*b t"]
    log_probs: Float[Array, "*b t k"]
    ids: Int[Array, "*b t k"]

    @classmethod
    def empty(cls, shape: Shape, count: int) -> "TokenLogProbs":
        """Return zeros, with room for `count` tokens per position."""
        return cls(
            jnp.zeros(shape), jnp.zeros((*shape, count)), jnp.zeros((*shape, count), jnp.int32)
        )

    @classmethod
    def of(
        cls, logits: RowLogits, tokens: RowIds, count: int, excluded_id: int | None
    ) -> "TokenLogProbs":
        """Compute the log-probabilities of logits and of the tokens drawn from them."""
        logits = exclude(logits, excluded_id)
        log_total = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1, keepdims=True)
        values, ids = largest(logits, count)
        chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)
        return cls((chosen - log_total)[..., 0], values - log_total, ids)


def filtered(
    logits: RowLogits,
    params: SamplingParams,
    *,
    top_k: int | None,
    excluded_id: int | None = None,
    needed: RowMask | None = None,
) -> Candidates | Rows:
    """Filter logits to candidates: temperature, top_p over the full distribution, top_k, min_p.

    Log-probabilities are normalised over the remaining candidates. The filters also act at
    temperature 0, as in the reference. With top_k, only the k largest logits and the mass of the
    vocabulary are needed. Ties with the k-th largest logit are cut at k, ties at the border of the
    nucleus where its mass is full; in both cases the lowest ids stay.

    Args:
        logits: logits of the positions.
        params: temperature and filters.
        top_k: largest number of candidates (static); `params.top_k` takes fewer of them without
            another compilation.
        excluded_id: a token that is no candidate.
        needed: positions whose candidates are read; others may be skipped. None is all.

    Returns:
        `Candidates` with a static top_k, `Rows` where the whole vocabulary is sampled.

    Raises:
        ValueError: `params.top_k` without a static top_k.
    """
    if top_k is None and params.top_k is not None:
        raise ValueError("params.top_k: needs a static top_k")
    logits = exclude(logits, excluded_id)
    # At temperature 0 the filters act as at temperature 1.
    scale = 1 / jnp.where(params.temperature > 0, params.temperature, 1.0)
    # whole vocabulary: candidates are found without a sort (`nucleus`)
    if top_k is None or (top_k >= logits.shape[-1] and params.top_k is None):
        needed = jnp.ones(logits.shape[:2], bool) if needed is None else needed
        return Rows.of(logits, scale, top_p=params.top_p, min_ratio=params.min_p, needed=needed)
    # the k largest, in descending order
    best, ids = largest(logits, top_k)
    # Relative to the largest, which is 0.
    values = (best - best[..., :1]) * scale
    if params.top_p is not None:
        log_total = jnp.log(
            jnp.sum(jnp.exp((logits - best[..., :1]) * scale), axis=-1, keepdims=True)
        )
        values = jnp.where(in_nucleus(values, log_total, params.top_p), values, -jnp.inf)
        # A NaN outside the k largest must still be noticed.
        values = jnp.where(jnp.isnan(log_total), jnp.nan, values)
    if params.top_k is not None:
        values = jnp.where(jnp.arange(values.shape[-1]) < params.top_k, values, -jnp.inf)
    if params.min_p is not None:
        # The ratio to the largest probability is exp(value), however many candidates are left.
        values = jnp.where(values >= jnp.log(params.min_p), values, -jnp.inf)
    return Candidates(jax.nn.log_softmax(values, axis=-1), ids)


def likeliest_candidates(candidates: Candidates | Rows) -> Candidates:
    """Return the candidates that drafts are made from: all, or the most likely of a vocabulary."""
    if isinstance(candidates, Candidates):
        return candidates
    values, ids = largest(candidates.logits, DRAFT_CANDIDATES)
    return Candidates(candidates.log_probs(values, ids), ids)


def in_nucleus(values: RowValues, log_total: RowValue, top_p: Scalar) -> Bool[Array, "b r c"]:
    """Return which logits, in descending order, have a mass of at most `top_p` before them."""
    # probabilities [.5, .3, .15, .05], top_p .8: masses before [0, .5, .8, .95] -> [1, 1, 1, 0]
    mass = jnp.cumsum(jnp.exp(values - log_total), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(mass[..., :1]), mass[..., :-1]], axis=-1)
    return before <= top_p


def exclude(logits: RowLogits, token_id: int | None) -> RowLogits:
    """Give a token no probability; None excludes none."""
    if token_id is None:
        return logits
    # Not `.at[].set`: for that, XLA's CPU compiler copies all logits, once per operation that
    # reads them.
    return jnp.where(jnp.arange(logits.shape[-1]) == token_id, -jnp.inf, logits)


def row_entropy(logits: RowLogits, excluded_id: int | None = None) -> RowScores:
    """Compute the entropy of the model's distribution at each position, in nats.

    Neither temperature nor filters apply; `excluded_id` is no outcome.
    """
    logits = exclude(logits.astype(jnp.float32), excluded_id)
    # With weights w = exp(l - max l): H = log sum w - sum w log w / sum w.
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(shifted)
    total = jnp.sum(weights, axis=-1)
    weighted = jnp.sum(jnp.where(weights > 0, weights * shifted, 0.0), axis=-1)
    # Rounding must not make it negative.
    return jnp.maximum(jnp.log(total) - weighted / total, 0.0)


def draw(uniform: RowScores, candidates: Candidates | Rows, temperature: Scalar) -> RowChoice:
    """Draw a token for each position, or take the most likely at temperature 0.

    Args:
        uniform: random numbers in [0, 1), one per position.
        candidates: candidates of the positions.
        temperature: read only to see whether it is 0; log-probabilities already include it.

    Returns:
        The tokens and their probabilities.
    """
    # `cond`: without temperature, no cumulative sums are computed.
    tokens, log_probs = lax.cond(
        temperature > 0, lambda: candidates.draw(uniform), candidates.likeliest
    )
    return tokens, jnp.exp(log_probs)


def confidence(
    uniform: RowScores,
    candidates: Candidates | Rows,
    probability: RowScores,
    positions: RowIds,
    alg: ScalarInt,
) -> RowScores:
    """Compute the confidence of each position by the measure of the order `ALGS[alg]`.

    A position with a larger confidence is committed earlier.
    """
    measures = {
        "topk_margin": candidates.margin,
        "entropy": candidates.entropy,
        "random": lambda: uniform,
        "left_to_right": lambda: -positions.astype(jnp.float32),
    }
    # Of the others, `origin` decides by chance alone, and `break_ties` separates those of `untied`.
    return lax.switch(alg, [measures.get(name, lambda: probability) for name in ALGS])


def break_ties(scores: RowScores, log_probs: RowScores) -> RowScores:
    """Separate positions with a single candidate, all of probability 1, by its unfiltered one."""
    # after the filters [.8, 1, 1], before them [.7, .6, .9]: scores [.8, 1.6, 1.9]
    return jnp.where(scores == 1, 1 + jnp.exp(log_probs), scores)


def add_noise(uniform: RowScores, scores: RowScores, alg_temp: Scalar) -> RowScores:
    """Add Gumbel noise to scores: their order is then that of draws without replacement.

    The draws are from softmax(scores / alg_temp); at alg_temp 0, scores do not change.
    """
    # At least the smallest float: log 0 would be -inf.
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniform, jnp.finfo(jnp.float32).tiny)))
    return jnp.where(alg_temp > 0, scores / jnp.where(alg_temp > 0, alg_temp, 1.0) + gumbel, scores)

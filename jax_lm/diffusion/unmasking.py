"""Candidates of a masked position: filters, the drawn token, its confidence by the measure of the order.

Pure functions of logits; they know neither the model nor the loop. Everything is computed in float32:
confidences in bfloat16 would tie above p = 0.998. Semantics: Dream's `diffusion_generate` and its
`sample_tokens`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.decoding import transfer_ratios
from jax_lm.options import ALGS, GenerationOptions

PREFILTER = 1024
"""How many of the largest logits are tried before top_p without top_k falls back to a full sort."""
CHUNK = 64
"""Columns that `largest` and `inverse_cdf` look at as one, so that they go over the vocabulary once."""


class SamplingParams(NamedTuple):
    """Settings of a generation as numbers, traced: another temperature compiles nothing anew.

    Under `jax.vmap` each row has settings of its own. Meaning of each: `jax_lm.options`.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_p: mass of the nucleus; None is off, and another program. Infinity is off too.
        top_k: number of candidates, where it is less than the static one; None is off, and another program.
        min_p: least share of the likeliest token's probability; None is off, and another program. 0 is off too.
        alg: index of the order in `ALGS`.
        alg_temp: 0 takes the most confident positions.
        by_schedule: whether the noise schedule says how many tokens a step commits, or else their probability.
        threshold: probability from which tokens are committed.
        decay: of the threshold while the block fills; 0 but for the rule `dynamic`.
        factor: of the rule `factor`; 0 for the others.
        steps: denoising steps of the block; 0 is no limit.
        ratios: noise schedule of the block, filled up with ones.
        early_stop: whether a stop token ends a row; None is always, and another program.
    """

    temperature: Float[Array, "*b"]
    top_p: Float[Array, "*b"] | None
    top_k: Int[Array, "*b"] | None
    min_p: Float[Array, "*b"] | None
    alg: Int[Array, "*b"]
    alg_temp: Float[Array, "*b"]
    by_schedule: Bool[Array, "*b"]
    threshold: Float[Array, "*b"]
    decay: Float[Array, "*b"]
    factor: Float[Array, "*b"]
    steps: Int[Array, "*b"]
    ratios: Float[Array, "*b s"]
    early_stop: Bool[Array, "*b"] | None = None

    @classmethod
    def of(cls, options: GenerationOptions, block: int, region: int, *, columns: int = 0) -> "SamplingParams":
        """Settings for a block of `block` columns in a region of `region`, which share out the steps of the canvas.

        Args:
            columns: least length of the schedule, so that blocks of different lengths share a compilation.
        """
        decoding = options.decoding.resolved
        steps = 0 if options.steps is None else max(1, -(-options.steps * block // region))
        ratios = np.ones(max(steps, block, columns), np.float32)
        if steps:
            ratios[:steps] = transfer_ratios(steps)
        numbers: dict[str, Any] = {
            "temperature": np.float32(options.temperature),
            "top_p": None if options.top_p is None else np.float32(options.top_p),
            "top_k": None,
            "min_p": None if options.min_p is None else np.float32(options.min_p),
            "alg": np.int32(ALGS.index(options.alg)),
            "alg_temp": np.float32(options.alg_temp),
            "by_schedule": np.bool_(decoding.commit == "steps"),
            "threshold": np.float32(decoding.threshold),
            "decay": np.float32(decoding.decay if decoding.commit == "dynamic" else 0),
            "factor": np.float32(decoding.factor if decoding.commit == "factor" else 0),
            "steps": np.int32(steps),
            "ratios": ratios,
        }
        return cls(**numbers)

    @property
    def is_by_chance(self) -> Bool[Array, "*b"]:
        """Whether the order is `origin`: each position is decided by chance, not as one of a number."""
        return self.alg == ALGS.index("origin")


class Candidates(NamedTuple):
    """Tokens that a position may become: normalised log-probabilities (-inf = filtered out) and ids."""

    log_probs: Float[Array, "b r c"]
    ids: Int[Array, "b r c"]


def filtered(
    logits: Float[Array, "b r v"], params: SamplingParams, *, top_k: int | None, excluded_id: int | None = None
) -> Candidates:
    """Temperature, then top_p over the full distribution, top_k and min_p; renormalised over what is left.

    The filters act at temperature 0 too, as in the reference. With top_k only the k largest logits and one
    logsumexp over the vocabulary are needed. Ties with the k-th largest logit are cut at k.

    Args:
        top_k: candidates that there are at all; `params.top_k` takes less of them without another compilation.
        excluded_id: a token that is no candidate.

    Raises:
        ValueError: `params.top_k` without a static one, whose order it counts in.
    """
    if top_k is None and params.top_k is not None:
        raise ValueError("params.top_k: needs a static top_k")
    if excluded_id is not None:
        logits = logits.at[..., excluded_id].set(-jnp.inf)
    logits = logits / jnp.where(params.temperature > 0, params.temperature, 1.0)
    if top_k is not None and (top_k < logits.shape[-1] or params.top_k is not None):
        values, ids = largest(logits, min(top_k, logits.shape[-1]))
        if params.top_p is not None:
            log_total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
            values = jnp.where(in_nucleus(values, log_total, params.top_p), values, -jnp.inf)
        if params.top_k is not None:
            values = jnp.where(jnp.arange(values.shape[-1]) < params.top_k, values, -jnp.inf)
    else:
        values, ids = logits, jnp.broadcast_to(jnp.arange(logits.shape[-1]), logits.shape)
        if params.top_p is not None:
            values = jnp.where(logits >= nucleus_cutoff(logits, params.top_p), logits, -jnp.inf)
    if params.min_p is not None:
        # The ratio of two probabilities is that of their weights, whatever the other filters leave.
        floor = jnp.max(values, axis=-1, keepdims=True) + jnp.log(params.min_p)
        values = jnp.where(values >= floor, values, -jnp.inf)
    return Candidates(jax.nn.log_softmax(values, axis=-1), ids)


def in_nucleus(
    values: Float[Array, "b r c"], log_total: Float[Array, "b r 1"], top_p: Float[Array, ""]
) -> Bool[Array, "b r c"]:
    """Which of the logits, sorted descending, belong to the nucleus: those with at most `top_p` before them."""
    mass = jnp.cumsum(jnp.exp(values - log_total), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(mass[..., :1]), mass[..., :-1]], axis=-1)
    return before <= top_p


def nucleus_cutoff(
    logits: Float[Array, "b r v"], top_p: Float[Array, ""], *, prefilter: int = PREFILTER
) -> Float[Array, "b r 1"]:
    """Smallest logit of the nucleus. Sorts the whole vocabulary only if the `prefilter` largest do not reach it."""
    log_total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    size = min(prefilter, logits.shape[-1])

    def cutoff(count: int) -> Float[Array, "b r 1"]:
        values = largest(logits, count)[0]
        return jnp.min(jnp.where(in_nucleus(values, log_total, top_p), values, jnp.inf), axis=-1, keepdims=True)

    if size == logits.shape[-1]:
        return cutoff(size)
    reached = jnp.sum(jnp.exp(largest(logits, size)[0] - log_total), axis=-1) > top_p
    return jax.lax.cond(jnp.all(reached), lambda: cutoff(size), lambda: cutoff(logits.shape[-1]))


def largest(values: Float[Array, "b r v"], count: int) -> tuple[Float[Array, "b r c"], Int[Array, "b r c"]]:
    """`jax.lax.top_k`, order of ties included, in one pass: the largest lie in the chunks of the largest maxima."""
    vocabulary = values.shape[-1]
    if vocabulary < 2 * CHUNK * count:
        found, ids = jax.lax.top_k(values, count)
        return found, ids
    chunks = in_chunks(values, -jnp.inf)
    # Ascending, so that equal values keep the order of their ids.
    best = jnp.sort(jax.lax.top_k(jnp.max(chunks, axis=-1), count)[1], axis=-1)
    near = jnp.take_along_axis(chunks, best[..., None], axis=-2)
    found, index = jax.lax.top_k(near.reshape(*near.shape[:-2], -1), count)
    return found, jnp.take_along_axis(best, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def in_chunks(values: Float[Array, "b r v"], fill: float) -> Float[Array, "b r n c"]:
    """Columns grouped by CHUNK, filled up at the end."""
    padded = jnp.pad(values, ((0, 0), (0, 0), (0, -values.shape[-1] % CHUNK)), constant_values=fill)
    return padded.reshape(*values.shape[:-1], -1, CHUNK)


def inverse_cdf(weights: Float[Array, "b r c"], uniform: Float[Array, "b r"]) -> Int[Array, "b r"]:
    """Index drawn in proportion to the weights: the first whose cumulative weight exceeds `uniform` of the total.

    One random number per draw, where Gumbel noise takes two logarithms per column of the vocabulary.
    """
    if weights.shape[-1] > 2 * CHUNK:
        chunks = in_chunks(weights, 0.0)
        sums = jnp.sum(chunks, axis=-1)
        chunk = inverse_cdf(sums, uniform)[..., None]
        own = jnp.take_along_axis(sums, chunk, axis=-1)[..., 0]
        before = jnp.sum(jnp.where(jnp.arange(sums.shape[-1]) < chunk, sums, 0.0), axis=-1)
        rest = jnp.clip((uniform * jnp.sum(sums, axis=-1) - before) / own, 0.0, 1 - 1e-6)
        return chunk[..., 0] * CHUNK + inverse_cdf(
            jnp.take_along_axis(chunks, chunk[..., None], axis=-2)[..., 0, :], rest
        )
    below = jnp.cumsum(weights, axis=-1)
    # The weight is looked at too: where the rounding of a sum is not monotone, a filtered column must not pass.
    passes = (below > (uniform * below[..., -1])[..., None]) & (weights > 0)
    return jnp.where(jnp.any(passes, axis=-1), jnp.argmax(passes, axis=-1), jnp.argmax(weights, axis=-1))


def draw(
    uniform: Float[Array, "b r"], candidates: Candidates, temperature: Float[Array, ""]
) -> tuple[Int[Array, "b r"], Float[Array, "b r"]]:
    """A token for each position, and its probability; `uniform` in [0, 1) decides if there is a temperature."""
    index = jax.lax.cond(
        temperature > 0,
        lambda: inverse_cdf(jnp.exp(candidates.log_probs), uniform),
        lambda: jnp.argmax(candidates.log_probs, axis=-1),
    )[..., None]
    tokens = jnp.take_along_axis(candidates.ids, index, axis=-1)[..., 0]
    return tokens, jnp.exp(jnp.take_along_axis(candidates.log_probs, index, axis=-1)[..., 0])


def confidence(
    uniform: Float[Array, "b r"],
    candidates: Candidates,
    probability: Float[Array, "b r"],
    positions: Int[Array, "b r"],
    alg: Int[Array, ""],
) -> Float[Array, "b r"]:
    """How sure each position is, by the measure of the order `ALGS[alg]`; larger is committed earlier."""

    def topk_margin() -> Float[Array, "b r"]:
        best = jnp.exp(jax.lax.top_k(candidates.log_probs, min(2, candidates.ids.shape[-1]))[0])
        return best[..., 0] - (best[..., 1] if best.shape[-1] > 1 else 0.0)

    def entropy() -> Float[Array, "b r"]:
        probs = jnp.exp(candidates.log_probs)
        return jnp.sum(probs * jnp.log(probs + 1e-10), axis=-1)

    measures = {
        # `origin` decides each position by chance alone.
        "origin": lambda: probability,
        "maskgit_plus": lambda: probability,
        "topk_margin": topk_margin,
        "entropy": entropy,
        "random": lambda: uniform,
        "left_to_right": lambda: -positions.astype(jnp.float32),
    }
    return jax.lax.switch(alg, [measures[name] for name in ALGS])


def disturbed(
    uniform: Float[Array, "b r"], scores: Float[Array, "b r"], alg_temp: Float[Array, ""]
) -> Float[Array, "b r"]:
    """Scores whose order is distributed as draws from softmax(scores / alg_temp) without replacement (Gumbel noise)."""
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniform, jnp.finfo(jnp.float32).tiny)))
    return jnp.where(alg_temp > 0, scores / jnp.where(alg_temp > 0, alg_temp, 1.0) + gumbel, scores)

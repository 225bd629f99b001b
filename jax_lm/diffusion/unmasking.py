"""What a masked position would become: filters, the drawn token, its confidence by the measure of the order.

Pure functions of logits; they know neither the model nor the loop. Everything is computed in float32:
confidences in bfloat16 would tie above p = 0.998. Semantics: Dream's `diffusion_generate` and its
`sample_tokens`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.settings import Choice, Number, either, is_choice

ALGS = ("origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right")
PREFILTER = 1024
"""How many of the largest logits are tried before top_p without top_k falls back to a full sort."""
CHUNK = 64
"""Columns that `largest` and `inverse_cdf` look at as one, so that they go over the vocabulary once."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn and ordered. Hashable, hence static under jit; `lanes` traces temperature, top_p and alg.

    Attributes:
        steps: denoising steps over the whole canvas, shared out among blocks; None only for commit rules by
            probability, and then there is no limit.
        alg: order of unmasking: `origin` (each position by chance), or most confident first by the
            chosen token's probability (`maskgit_plus`), the margin of the two best (`topk_margin`) or
            negative entropy (`entropy`); `random` and `left_to_right` are controls with the same counts.
        alg_temp: 0 takes the most confident; above, positions are drawn from softmax(confidence / alg_temp).
        temperature: 0 takes the likeliest token.
        top_p: mass of the nucleus, in (0, 1]; None is off.
        top_k: number of candidates; None is off. The published sampler's hidden default is 50.
        eps: where the noise schedule ends.
        stop_ids: tokens that end a row: once one has no mask before it, what follows it is not decoded. Lossless
            for the text up to there; empty decodes everything, as the reference does.
        strict_reference: admit MASK itself as a candidate, as the reference does.
    """

    steps: int | None
    alg: Choice = "entropy"
    alg_temp: float = 0.0
    temperature: Number = 0.0
    top_p: Number | None = None
    top_k: int | None = 50
    eps: float = 1e-3
    stop_ids: tuple[int, ...] = ()
    strict_reference: bool = False

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps={self.steps}: must be at least 1")
        if self.alg not in ALGS:
            raise ValueError(f"alg={self.alg!r}: must be one of {', '.join(ALGS)}")
        if not self.alg_temp >= 0:
            raise ValueError(f"alg_temp={self.alg_temp}: must not be negative")
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature}: must not be negative")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie in (0, 1], or be None")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be at least 1, or None")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps={self.eps}: must lie in (0, 1)")

    @property
    def is_by_chance(self) -> bool | Bool[Array, ""]:
        """Whether the order is `origin`: each position is decided by chance, not as one of a number."""
        return is_choice(self.alg, "origin", ALGS)


class Candidates(NamedTuple):
    """What a position may become: normalised log-probabilities (-inf = filtered out) and their token ids."""

    log_probs: Float[Array, "b r c"]
    ids: Int[Array, "b r c"]


def filtered(
    logits: Float[Array, "b r v"], config: SamplingConfig, mask_id: int, *, prefilter: int = PREFILTER
) -> Candidates:
    """Temperature, then top_p over the full distribution, then top_k; renormalised over what is left.

    The filters act at temperature 0 too, as in the reference. With top_k only the k largest logits and one
    logsumexp over the vocabulary are needed. Ties with the k-th largest logit are cut at k.
    """
    if not config.strict_reference:
        logits = logits.at[..., mask_id].set(-jnp.inf)
    if not isinstance(config.temperature, float | int):
        logits = logits / jnp.where(config.temperature > 0, config.temperature, 1.0)
    elif config.temperature > 0:
        logits = logits / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        values, ids = largest(logits, config.top_k)
        if config.top_p is not None:
            log_total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
            values = jnp.where(in_nucleus(values, log_total, config.top_p), values, -jnp.inf)
    else:
        values, ids = logits, jnp.broadcast_to(jnp.arange(logits.shape[-1]), logits.shape)
        if config.top_p is not None:
            values = jnp.where(logits >= nucleus_cutoff(logits, config.top_p, prefilter), logits, -jnp.inf)
    return Candidates(jax.nn.log_softmax(values, axis=-1), ids)


def in_nucleus(values: Float[Array, "b r c"], log_total: Float[Array, "b r 1"], top_p: Number) -> Bool[Array, "b r c"]:
    """Which of the logits, sorted descending, belong to the nucleus: those with at most `top_p` before them."""
    mass = jnp.cumsum(jnp.exp(values - log_total), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(mass[..., :1]), mass[..., :-1]], axis=-1)
    return before <= top_p


def nucleus_cutoff(logits: Float[Array, "b r v"], top_p: Number, prefilter: int) -> Float[Array, "b r 1"]:
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
    uniform: Float[Array, "b r"], candidates: Candidates, temperature: Number
) -> tuple[Int[Array, "b r"], Float[Array, "b r"]]:
    """A token for each position, and its probability; `uniform` in [0, 1) decides if there is a temperature."""
    index = either(
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
    alg: Choice,
) -> Float[Array, "b r"]:
    """How sure each position is, by the measure of `alg`; larger is committed earlier."""
    if not isinstance(alg, str):
        every = [confidence(uniform, candidates, probability, positions, name) for name in ALGS]
        return jnp.stack(every)[alg]
    match alg:
        case "maskgit_plus":
            return probability
        case "topk_margin":
            best = jnp.exp(jax.lax.top_k(candidates.log_probs, min(2, candidates.ids.shape[-1]))[0])
            return best[..., 0] - (best[..., 1] if best.shape[-1] > 1 else 0.0)
        case "entropy":
            probs = jnp.exp(candidates.log_probs)
            return jnp.sum(probs * jnp.log(probs + 1e-10), axis=-1)
        case "random":
            return uniform
        case "left_to_right":
            return -positions.astype(jnp.float32)
        case _:
            # `origin` decides each position by chance alone.
            return probability


def disturbed(uniform: Float[Array, "b r"], scores: Float[Array, "b r"], alg_temp: float) -> Float[Array, "b r"]:
    """Scores whose order is distributed as draws from softmax(scores / alg_temp) without replacement (Gumbel noise)."""
    if alg_temp == 0:
        return scores
    gumbel = -jnp.log(-jnp.log(jnp.maximum(uniform, jnp.finfo(jnp.float32).tiny)))
    return scores / alg_temp + gumbel

"""Candidates: a few tokens, or a row of logits over the whole vocabulary, found without a sort.

A sort of 152,064 columns costs many times a small model on a CPU, and is slow on GPUs and TPUs.
A nucleus needs none. In plain terms, for one row:

    weights = exp((logits - max(logits)) / temperature)
    limit = top_p * sum(weights)
    largest 32: if their cumulative weight passes the limit, the border is where it does
    else bisect a threshold: sum(weights[logits > threshold]) <= limit   # one pass per bit
    equal logits at the border: as many stay as have room, by id
    a token is a candidate if (logit, id) is not behind the border

Every sum reads the row once, and the exponentials are computed once. Pure functions of arrays;
`candidates` decides which filters apply.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jax_lm.models.products import pick
from jax_lm.models.shapes import (
    RowChoice,
    RowIds,
    RowLogits,
    RowMask,
    RowScores,
    RowValueIds,
    RowValues,
    Scalar,
)

# Logits that a CPU filters at once: 4 MiB, which fit its caches together with their weights.
CACHED_LOGITS = 2**20
# Columns of a chunk. A two-level search reads the maxima or sums of chunks, then one chunk.
CHUNK = 64
# Terms that a CPU adds in parallel within a chunk.
TERMS = 8
# The border of a nucleus is looked for among this many largest logits first: a confident row needs
# no bisection.
GROUP = 32


def in_parts(decide: Callable[..., Any], logits: Float[Array, "b c v"], *others: Array) -> Any:
    """Apply a function that treats rows independently; on a CPU, to few enough rows for its caches."""
    count = logits.shape[1]
    fitting = max(1, CACHED_LOGITS // (logits.shape[0] * logits.shape[2]))
    # a power of two, which divides most blocks: 6 rows fit, and 32 are 8 parts of 4
    if (parts := -(-count // (1 << fitting.bit_length() - 1))) == 1:
        return decide(logits, *others)
    return lax.platform_dependent(
        logits, *others, cpu=partial(map_columns, decide, parts), default=decide
    )


def map_columns(function: Callable[..., Any], parts: int, *arguments: Array) -> Any:
    """Apply a function that treats columns independently to one part of the columns at a time.

    If the columns do not divide, the last part begins early, and computes some of them again.
    """
    if parts == 1:
        return function(*arguments)
    # 5 columns in 3 parts: columns 0 and 1, 2 and 3, 3 and 4. No part is more than a slice: on a
    # CPU, padded or reordered logits would be a copy of them all.
    count = arguments[0].shape[1]
    size = -(-count // parts)
    starts = jnp.minimum(jnp.arange(0, count, size), count - size)

    def compute(start):
        return function(*(lax.dynamic_slice_in_dim(a, start, size, 1) for a in arguments))

    # [p, b, s, ...] -> [b, c, ...]: column 4 is in part 2, at index 4 - 3.
    columns = jnp.arange(count)
    part = columns // size
    index = columns - starts[part]
    results = lax.map(compute, starts)
    return jax.tree.map(lambda a: jnp.moveaxis(a[part, :, index], 0, 1), results)


# One number for each row of the window.
RowValue = Float[Array, "b r 1"]
RowCount = Int[Array, "b r 1"]
# One number for each of the n chunks of a row.
ChunkValues = Float[Array, "b r n"]


class Border(NamedTuple):
    """Logit and token id of the last candidate of each row, in a stable descending order."""

    value: RowValue
    last: RowCount

    def excludes(
        self, values: Float[Array, "b r *c"], ids: Int[Array, "..."]
    ) -> Bool[Array, "b r *c"]:
        """Return whether tokens with these logits and ids are no candidates.

        A NaN is never excluded, so that it reaches the probability of the chosen token.
        """
        return (values < self.value) | ((values == self.value) & (ids > self.last))


def largest(values: RowLogits, count: int) -> tuple[RowValues, RowValueIds]:
    """Return the largest values of each row with their ids, equal values by id.

    Equals `jax.lax.top_k`, except that -0 equals 0. One pass: the largest values lie in the chunks
    with the largest maxima.
    """
    vocabulary = values.shape[-1]
    if vocabulary < 2 * CHUNK * count:
        return top_k(unsigned_zeros(values), min(count, vocabulary))
    chunks = in_chunks(values, -jnp.inf)
    # Ascending, so that equal values keep the order of their ids.
    best_chunks = jnp.sort(top_k(unsigned_zeros(jnp.max(chunks, axis=-1)), count)[1], axis=-1)
    from_best = unsigned_zeros(jnp.take_along_axis(chunks, best_chunks[..., None], axis=-2))
    values, index = top_k(from_best.reshape(*from_best.shape[:-2], -1), count)
    return values, jnp.take_along_axis(best_chunks, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def top_k(values: RowLogits, count: int) -> tuple[RowValues, RowValueIds]:
    """Call `jax.lax.top_k` such that XLA's CPU compiler does not sort all columns."""
    best, index = lax.top_k(values, count)
    # Two barriers: on a mesh, XLA 0.10.2 aborts when it meets one around the pair.
    return lax.optimization_barrier(best), lax.optimization_barrier(index)


def unsigned_zeros(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Replace -0 by 0, which `jax.lax.top_k` would otherwise order after all zeros."""
    return jnp.where(values == 0, 0.0, values)


def in_chunks(values: Array, fill: float = 0.0) -> Array:
    """Group columns [b, r, v] by CHUNK into [b, r, n, c], padded at the end."""
    padded = jnp.pad(values, ((0, 0), (0, 0), (0, -values.shape[-1] % CHUNK)), constant_values=fill)
    return padded.reshape(*values.shape[:-1], -1, CHUNK)


def chunk_sums(*parts: Float[Array, "b r n c"]) -> tuple[ChunkValues, ...]:
    """Sum several arrays by chunk, in one pass over their common operands."""

    def sum_together(*parts):
        zeros = (jnp.zeros((), jnp.float32),) * len(parts)
        # One reduction with several operands: given several reductions, XLA's CPU compiler would
        # write the operand of each to memory.
        return tuple(lax.reduce(parts, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (3,)))

    def in_terms(*parts):
        # XLA's CPU compiler turns a sum of adjacent values, or of many terms, into a serial loop.
        sums = sum_together(*(part.reshape(*part.shape[:-1], TERMS, -1) for part in parts))
        return tuple(jnp.sum(each, axis=-1) for each in sums)

    return lax.platform_dependent(*parts, cpu=in_terms, default=sum_together)


def weigh(logits: RowLogits, peak: RowValue, scale: Scalar) -> RowLogits:
    """Compute exp(scale * (logit - peak)) once for all sums that read it."""

    def in_branch(*operands):
        # XLA's CPU compiler drops barriers and would recompute the exponentials within each sum,
        # but it keeps what a branch returns. A scale is positive, so the branch is always taken.
        return lax.cond(
            scale > 0, exponential, lambda logits, *_: jnp.zeros_like(logits), *operands
        )

    def behind_barrier(*operands):
        return lax.optimization_barrier(exponential(*operands))

    return lax.platform_dependent(logits, peak, scale, cpu=in_branch, default=behind_barrier)


def exponential(logits: Array, peak: Array, scale: Array) -> Array:
    """Compute exp(scale * (logit - peak))."""
    return jnp.exp((logits - peak) * scale)


def nucleus(logits: RowLogits, weights: RowLogits, top_p: Scalar, needed: RowMask) -> Border:
    """Return the last token of each row with at most `top_p` of the mass before it.

    Tokens are ordered by descending logit, equal ones by id. The border is among the GROUP largest
    of a confident row. Otherwise it is bisected: the mass above a threshold falls as that rises.

    Args:
        weights: weights from `weigh`; that of the largest logit is 1.
        needed: rows whose result is used; the others are not bisected.
    """
    limit = top_p * jnp.sum(weights, axis=-1, keepdims=True)
    nearest, is_inside = border_among(*largest(logits, GROUP), weights, limit)
    is_open = ~is_inside & needed[..., None] & (top_p < 1)
    border = lax.cond(
        jnp.any(is_open),
        lambda: border_where(is_open, bisect_border(logits, weights, limit), nearest),
        lambda: nearest,
    )
    everything = Border(
        jnp.full_like(limit, -jnp.inf), jnp.full_like(border.last, logits.shape[-1])
    )
    return border_where(top_p < 1, border, everything)


def border_where(which: Bool[Array, "..."], yes: Border, no: Border) -> Border:
    """Select borders row by row, like `jnp.where`."""
    return jax.tree.map(partial(jnp.where, which), yes, no)


def border_among(
    values: RowValues, ids: RowValueIds, weights: RowLogits, limit: RowValue
) -> tuple[Border, Bool[Array, "b r 1"]]:
    """Return the border among the largest tokens, in descending order, and whether it is there."""
    # Weights 8, 4, 2, 1 of a total of 16 and a limit of 13: masses before them 0, 8, 12, 14, so the
    # third token is the last one with at most 13 before it, and the fourth shows that it is.
    mass = jnp.cumsum(jnp.take_along_axis(weights, ids, axis=-1), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(limit), mass[..., :-1]], axis=-1)
    index = jnp.sum(before <= limit, axis=-1, keepdims=True) - 1
    value, last = (jnp.take_along_axis(part, index, axis=-1) for part in (values, ids))
    return Border(value, last), mass[..., -1:] > limit


def bisect_border(logits: RowLogits, weights: RowLogits, limit: RowValue) -> Border:
    """Bisect the border by the bits of the logits, then among equal logits by id.

    This takes one pass over the rows per bit of a float, whatever the logits.
    """
    least = jnp.iinfo(jnp.int32).min

    def flip(bits):
        """Map the bits of floats to integers of the same order, and back."""
        return jnp.where(bits < 0, least - bits, bits)

    def logit(key):
        return lax.bitcast_convert_type(flip(key), jnp.float32)

    def mass_above(value):
        return jnp.sum(jnp.where(logits > value, weights, 0.0), axis=-1, keepdims=True)

    def halve(_, keys):
        outside, inside = keys
        # The mean, without an overflow.
        middle = (outside & inside) + ((outside ^ inside) >> 1)
        is_inside = mass_above(logit(middle)) <= limit
        return jnp.where(is_inside, outside, middle), jnp.where(is_inside, middle, inside)

    def key_of(values):
        return flip(lax.bitcast_convert_type(values, jnp.int32))

    peak = key_of(jnp.max(logits, axis=-1, keepdims=True))
    _, key = lax.fori_loop(0, 32, halve, (key_of(jnp.full_like(limit, -jnp.inf)), peak))
    value = logit(key)
    weight = jnp.max(jnp.where(logits == value, weights, 0.0), axis=-1, keepdims=True)
    # Equal tokens stay as long as the mass before each is within the limit.
    count = 1 + jnp.floor(
        jnp.minimum((limit - mass_above(value)) / weight, logits.shape[-1])
    ).astype(jnp.int32)
    return Border(value, nth_marked(logits == value, count))


def nth_marked(marked: Bool[Array, "b r v"], count: RowCount) -> RowCount:
    """Return the id of each row's `count`-th marked token, or of the last if there are fewer."""
    # 5 marks and count 3: the first token at which more than 2.5 of 5 have passed
    marks = jnp.sum(marked, axis=-1, keepdims=True)
    share = (jnp.minimum(count, marks) - 0.5) / marks
    return inverse_cdf(marked.astype(jnp.float32), share[..., 0])[..., None]


def inverse_cdf(weights: RowValues, uniform: RowScores) -> RowIds:
    """Draw an index in proportion to the weights, by inversion of the cumulative distribution.

    The index is the first whose cumulative weight exceeds `uniform` of the total. A draw takes one
    random number; Gumbel noise takes two logarithms per column of the vocabulary.
    """
    # weights [1, 2, 1] and uniform .5: cumulative [1, 3, 4], the first above 2 is index 1
    if weights.shape[-1] > 2 * CHUNK:
        chunks = in_chunks(weights)
        chunk, rest = draw_chunk(jnp.sum(chunks, axis=-1), uniform)
        own = jnp.take_along_axis(chunks, chunk[..., None, None], axis=-2)[..., 0, :]
        return chunk * CHUNK + inverse_cdf(own, rest)
    below = jnp.cumsum(weights, axis=-1)
    # Cumulative sums may round non-monotonically: a column without weight must never pass.
    passes = (below > (uniform * below[..., -1])[..., None]) & (weights > 0)
    return jnp.where(
        jnp.any(passes, axis=-1), jnp.argmax(passes, axis=-1), jnp.argmax(weights, axis=-1)
    )


def draw_chunk(sums: ChunkValues, uniform: RowScores) -> RowChoice:
    """Draw a chunk in proportion to the sums; also return the random number for the draw within it."""
    chunk = inverse_cdf(sums, uniform)
    own = pick(sums, chunk)
    before = jnp.sum(jnp.where(jnp.arange(sums.shape[-1]) < chunk[..., None], sums, 0.0), axis=-1)
    return chunk, jnp.clip((uniform * jnp.sum(sums, axis=-1) - before) / own, 0.0, 1 - 1e-6)


class Candidates(NamedTuple):
    """Tokens that a position may become.

    Attributes:
        log_probs: normalised log-probabilities; -inf is filtered out.
        ids: ids of the tokens.
    """

    log_probs: RowValues
    ids: RowValueIds

    def at(self, index: RowIds) -> RowChoice:
        """Return the token at an index of each row, and its log-probability."""
        return pick(self.ids, index), pick(self.log_probs, index)

    def likeliest(self) -> RowChoice:
        """Return the most likely token of each row, and its log-probability."""
        return self.at(jnp.argmax(self.log_probs, axis=-1))

    def draw(self, uniform: RowScores) -> RowChoice:
        """Draw a token of each row by its probability; also return its log-probability."""
        return self.at(inverse_cdf(jnp.exp(self.log_probs), uniform))

    def margin(self) -> RowScores:
        """Return the probability of the most likely token minus that of the second."""
        # A single candidate has no second: its margin is its probability.
        best = jnp.exp(lax.top_k(self.log_probs, min(2, self.ids.shape[-1]))[0])
        return best[..., 0] - (best[..., 1] if best.shape[-1] > 1 else 0.0)

    def entropy(self) -> RowScores:
        """Return the sum of p log p (negative entropy), as the reference computes it."""
        probs = jnp.exp(self.log_probs)
        return jnp.sum(probs * jnp.log(probs + 1e-10), axis=-1)


class Rows(NamedTuple):
    """Rows of logits, each filtered to its candidates.

    Attributes:
        logits: before the temperature.
        scale: 1 / temperature.
        best, best_ids: the two largest.
        border: the last candidate; None if all tokens are candidates.
        sums: summed weights of the candidates of each chunk; a probability is a weight divided by
            their total.
        log_sums: summed weight times log weight of the candidates of each chunk, for the entropy.
    """

    logits: RowLogits
    scale: Scalar
    best: Float[Array, "b r 2"]
    best_ids: Int[Array, "b r 2"]
    border: Border | None
    sums: ChunkValues
    log_sums: ChunkValues

    @classmethod
    def of(
        cls,
        logits: RowLogits,
        scale: Scalar,
        *,
        top_p: Scalar | None,
        min_ratio: Scalar | None,
        needed: RowMask,
    ) -> "Rows":
        """Filter rows to the nucleus of `top_p`, and to weights >= `min_ratio` of the largest."""
        best, best_ids = largest(logits, 2)
        peak = best[..., :1]
        ids = jnp.arange(logits.shape[-1])
        weights = weigh(logits, peak, scale)
        border = None if top_p is None else nucleus(logits, weights, top_p, needed)
        if min_ratio is not None:
            least = Border(
                peak + jnp.log(min_ratio) / scale,
                jnp.full_like(best_ids[..., :1], logits.shape[-1]),
            )
            border = (
                least if border is None else border_where(least.value > border.value, least, border)
            )
        kept = weights if border is None else jnp.where(border.excludes(logits, ids), 0.0, weights)
        # A logit may be -inf, and its weight 0.
        weighted_logs = jnp.where(kept > 0, kept * ((logits - peak) * scale), 0.0)
        return cls(
            logits,
            scale,
            best,
            best_ids,
            border,
            *chunk_sums(in_chunks(kept), in_chunks(weighted_logs)),
        )

    def log_probs(self, values: RowValues, ids: Int[Array, "..."]) -> RowValues:
        """Compute log-probabilities of tokens from their logits and ids; -inf if not candidates."""
        log_probs = (values - self.best[..., :1]) * self.scale - self.log_total[..., None]
        return (
            log_probs
            if self.border is None
            else jnp.where(self.border.excludes(values, ids), -jnp.inf, log_probs)
        )

    @property
    def log_total(self) -> RowScores:
        return jnp.log(jnp.sum(self.sums, axis=-1))

    def likeliest(self) -> RowChoice:
        """Return the most likely token of each row, and its log-probability."""
        return self.best_ids[..., 0], -self.log_total

    def draw(self, uniform: RowScores) -> RowChoice:
        """Draw a token of each row by its probability; also return its log-probability."""
        chunk, rest = draw_chunk(self.sums, uniform)
        ids = chunk[..., None] * CHUNK + jnp.arange(CHUNK)
        # The last chunk may reach beyond the vocabulary.
        logits = jnp.take_along_axis(self.logits, ids, axis=-1, mode="fill", fill_value=-jnp.inf)
        return Candidates(self.log_probs(logits, ids), ids).draw(rest)

    def margin(self) -> RowScores:
        """Return the probability of the most likely token minus that of the second."""
        probs = jnp.exp(self.log_probs(self.best, self.best_ids))
        return probs[..., 0] - probs[..., 1]

    def entropy(self) -> RowScores:
        """Return the sum of p log p.

        The reference's log(p + 1e-10) differs by at most 1e-10 for each candidate.
        """
        return jnp.sum(self.log_sums, axis=-1) / jnp.sum(self.sums, axis=-1) - self.log_total

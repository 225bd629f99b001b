"""Rows of logits over the whole vocabulary: the largest, the nucleus, a draw and the entropy, without a sort.

Pure functions of arrays; which filters there are, `unmasking` says. A sort of 152,064 columns costs many times a small
model on a CPU, and is slow on GPUs and TPUs. All that is needed of a row are a few sums over its columns: each reads it
once, and the exponentials are computed once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

CACHED_LOGITS = 2**20
"""Logits that a CPU looks at together: 4 MiB, which its caches hold beside their weights."""
CHUNK = 64
"""Columns that are looked at as one where something is looked for, so that this goes over the vocabulary once."""
TERMS = 8
"""Columns of a chunk that a CPU sums up at once."""
GROUP = 32
"""Tokens around the border of a nucleus that are looked at one by one."""
STRIDE = 32
"""The border is looked for in every so many columns first."""
CUTS = 4
"""Thresholds whose masses one pass sums up."""
FIRST_PASSES, PASSES = 8, 8
"""Passes over some columns, and the most over all; rows that need more are bisected by the bits of their logits."""
AROUND = (0.93, 0.985, 1.015, 1.07)
"""Thresholds of the first pass over all columns, in parts of what some of them said: that is seldom further off."""


def in_parts(decide: Callable[..., Any], logits: Float[Array, "b c v"], *others: Array) -> Any:
    """Call what treats every row alone, on a CPU for so few rows at a time that all it does stays in the caches."""
    count = logits.shape[1]
    size = max(1, CACHED_LOGITS // (logits.shape[0] * logits.shape[2]))
    parts = -(-count // size)
    while count % parts:
        parts += 1
    if parts == 1:
        return decide(logits, *others)

    def one_by_one(*arguments: Array) -> Any:
        split = [jnp.moveaxis(a.reshape(a.shape[0], parts, -1, *a.shape[2:]), 1, 0) for a in arguments]
        found = jax.lax.map(lambda part: decide(*part), split)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1).reshape(a.shape[1], count, *a.shape[3:]), found)

    return jax.lax.platform_dependent(logits, *others, cpu=one_by_one, default=decide)


class Border(NamedTuple):
    """The last candidate of each row in the order of a stable descending sort: its logit and its id."""

    value: Float[Array, "b r 1"]
    last: Int[Array, "b r 1"]

    def includes(self, values: Float[Array, "b r *c"], ids: Int[Array, "..."]) -> Bool[Array, "b r *c"]:
        """Whether tokens of those logits and ids are candidates."""
        return (values > self.value) | ((values == self.value) & (ids <= self.last))


class Bracket(NamedTuple):
    """Weights between which a border lies, and the mass above each: more than is allowed before it, and no more."""

    low: Float[Array, "b r 1"]
    high: Float[Array, "b r 1"]
    outer: Float[Array, "b r 1"]
    inner: Float[Array, "b r 1"]


def largest(values: Float[Array, "b r v"], count: int) -> tuple[Float[Array, "b r c"], Int[Array, "b r c"]]:
    """Find the largest values of each row and their ids, equal ones by id: `jax.lax.top_k`, but for the zeros' signs.

    In one pass: the largest lie in the chunks of the largest maxima.
    """
    vocabulary = values.shape[-1]
    if vocabulary < 2 * CHUNK * count:
        return top_k(unsigned_zeros(values), min(count, vocabulary))
    chunks = in_chunks(values, -jnp.inf)
    # Ascending, so that equal values keep the order of their ids.
    best = jnp.sort(top_k(unsigned_zeros(jnp.max(chunks, axis=-1)), count)[1], axis=-1)
    near = unsigned_zeros(jnp.take_along_axis(chunks, best[..., None], axis=-2))
    found, index = top_k(near.reshape(*near.shape[:-2], -1), count)
    return found, jnp.take_along_axis(best, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def top_k(values: Float[Array, "b r v"], count: int) -> tuple[Float[Array, "b r c"], Int[Array, "b r c"]]:
    """Call `jax.lax.top_k`; of one that is read in two parts, XLA's CPU compiler would make a sort of all columns."""
    best, index = jax.lax.top_k(values, count)
    # Two barriers: on a mesh, XLA 0.10.2 aborts when it meets one around the pair.
    return jax.lax.optimization_barrier(best), jax.lax.optimization_barrier(index)


def unsigned_zeros(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Make -0 equal to 0 also for `jax.lax.top_k`, which else puts it after all zeros."""
    return jnp.where(values == 0, 0.0, values)


def in_chunks(values: Array, fill: float = 0.0) -> Array:
    """Columns [b, r, v] grouped by CHUNK, [b, r, n, c], filled up at the end."""
    padded = jnp.pad(values, ((0, 0), (0, 0), (0, -values.shape[-1] % CHUNK)), constant_values=fill)
    return padded.reshape(*values.shape[:-1], -1, CHUNK)


def chunk_sums(*parts: Float[Array, "b r n c"]) -> tuple[Float[Array, "b r n"], ...]:
    """Sum up several arrays by chunk, in one pass over what they are computed from."""

    def summed(*parts: Array) -> tuple[Array, ...]:
        zeros = (jnp.zeros((), jnp.float32),) * len(parts)
        # One reduction of several operands: of several reductions, XLA's CPU compiler stores what each sums up.
        return tuple(jax.lax.reduce(parts, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (3,)))

    def in_terms(*parts: Array) -> tuple[Array, ...]:
        # Of a sum along neighbours, or of many terms, that compiler makes a loop that adds one number at a time.
        sums = summed(*(part.reshape(*part.shape[:-1], TERMS, -1) for part in parts))
        return tuple(jnp.sum(each, axis=-1) for each in sums)

    return jax.lax.platform_dependent(*parts, cpu=in_terms, default=summed)


def weigh(logits: Float[Array, "b r v"], peak: Float[Array, "b r 1"], scale: Float[Array, ""]) -> Float[Array, "b r v"]:
    """Compute exp(scale * (logit - peak)), once for all that is summed up."""

    def stored(*operands: Array) -> Array:
        # XLA's CPU compiler drops barriers, and would compute them again within each sum, one by one; it keeps what a
        # branch returns. A scale is positive.
        return jax.lax.cond(scale > 0, exponential, lambda logits, *_: jnp.zeros_like(logits), *operands)

    def barred(*operands: Array) -> Array:
        return jax.lax.optimization_barrier(exponential(*operands))

    return jax.lax.platform_dependent(logits, peak, scale, cpu=stored, default=barred)


def exponential(logits: Array, peak: Array, scale: Array) -> Array:
    return jnp.exp((logits - peak) * scale)


def nucleus(
    logits: Float[Array, "b r v"], weights: Float[Array, "b r v"], top_p: Float[Array, ""], needed: Bool[Array, "b r"]
) -> Border:
    """Find the last token of each row with at most `top_p` of the mass before it, in a stable descending order.

    Where it is not among the GROUP largest, it is bracketed: the mass above a threshold falls as that rises.

    Args:
        weights: of `weigh`; the largest logit has 1.
        needed: rows that are read; the others keep what their GROUP largest say.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    limit = top_p * total
    nearest, is_found = border_among(*largest(logits, GROUP), weights, jnp.zeros_like(limit), limit)
    is_open = ~is_found & needed[..., None] & (top_p < 1)

    def searched() -> Border:
        bracket = bracketed(weights, total, limit, is_open)
        group = largest(jnp.where(weights <= bracket.high, logits, -jnp.inf), GROUP)
        border, is_found = border_among(*group, weights, bracket.inner, limit)
        is_left = is_open & ~is_found
        border = border_where(is_open, border, nearest)
        return jax.lax.cond(
            jnp.any(is_left), lambda: border_where(is_left, bisected(logits, weights, limit), border), lambda: border
        )

    border = jax.lax.cond(jnp.any(is_open), searched, lambda: nearest)
    everything = Border(jnp.full_like(limit, -jnp.inf), jnp.full_like(border.last, logits.shape[-1]))
    return border_where(top_p < 1, border, everything)


def border_where(which: Bool[Array, "..."], yes: Border, no: Border) -> Border:
    """Take the border of one where that is said, else of the other."""
    return Border(jnp.where(which, yes.value, no.value), jnp.where(which, yes.last, no.last))


def border_among(
    values: Float[Array, "b r c"],
    ids: Int[Array, "b r c"],
    weights: Float[Array, "b r v"],
    inner: Float[Array, "b r 1"],
    limit: Float[Array, "b r 1"],
) -> tuple[Border, Bool[Array, "b r 1"]]:
    """Find the border among tokens in descending order, and whether it is there.

    Args:
        inner: mass of all before them, at most `limit`.
    """
    mass = inner + jnp.cumsum(jnp.take_along_axis(weights, ids, axis=-1), axis=-1)
    before = jnp.concatenate([inner, mass[..., :-1]], axis=-1)
    index = jnp.sum(before <= limit, axis=-1, keepdims=True) - 1
    border = Border(jnp.take_along_axis(values, index, axis=-1), jnp.take_along_axis(ids, index, axis=-1))
    return border, mass[..., -1:] > limit


def bracketed(
    weights: Float[Array, "b r v"],
    total: Float[Array, "b r 1"],
    limit: Float[Array, "b r 1"],
    is_open: Bool[Array, "b r 1"],
) -> Bracket:
    """Bracket the border of each open row until GROUP tokens are left between, if PASSES passes do it."""
    beyond = jnp.maximum(total - limit, jnp.finfo(jnp.float32).eps * total)
    # All lighter tokens together weigh less than what lies beyond the border, so it is above them.
    low = 0.5 * beyond / weights.shape[-1]
    start = Bracket(low, jnp.ones_like(low), total, jnp.zeros_like(low))
    some = weights[..., ::STRIDE]
    limit_of_some = jnp.sum(some, axis=-1, keepdims=True) - beyond / STRIDE

    def first_cut(_: Int[Array, ""], bracket: Bracket) -> Bracket:
        return narrowed(bracket, some, evenly(bracket), limit_of_some)

    first = jax.lax.fori_loop(0, FIRST_PASSES, first_cut, start)
    center = jnp.sqrt(first.low * first.high)

    def goes_on(carry: tuple[Int[Array, ""], Bracket]) -> Bool[Array, ""]:
        done, bracket = carry
        # Each token between weighs at least `low`.
        return (done < PASSES) & jnp.any(is_open & (bracket.outer - bracket.inner > GROUP * bracket.low))

    def cut(carry: tuple[Int[Array, ""], Bracket]) -> tuple[Int[Array, ""], Bracket]:
        done, bracket = carry
        # Even cuts now and then, whatever the masses are.
        is_even = (bracket.high > 2 * bracket.low) | (done % 3 == 0)
        thresholds = jnp.where(is_even, evenly(bracket), interpolated(bracket, limit))
        thresholds = jnp.where(done == 0, center * jnp.asarray(AROUND), thresholds)
        return done + 1, narrowed(bracket, weights, thresholds, limit)

    return jax.lax.while_loop(goes_on, cut, (jnp.int32(0), start))[1]


def evenly(bracket: Bracket) -> Float[Array, "b r k"]:
    """Thresholds that cut a bracket in parts of equal ratios."""
    return bracket.low * (bracket.high / bracket.low) ** (jnp.arange(1, CUTS + 1) / (CUTS + 1))


def interpolated(bracket: Bracket, limit: Float[Array, "b r 1"]) -> Float[Array, "b r k"]:
    """Thresholds close around where the border lies if the mass between is spread evenly."""
    between = bracket.outer - bracket.inner
    share = (bracket.outer - limit) / between
    # How uneven it is: by the width of the bracket, and by chance, as the number of tokens is.
    error = 0.1 * jnp.log(bracket.high / bracket.low) + jnp.sqrt(bracket.low / between)
    shares = jnp.clip(share + jnp.minimum(error, 0.3) * jnp.asarray((-1.0, -0.2, 0.2, 1.0)), 0.03, 0.97)
    return bracket.low + (bracket.high - bracket.low) * shares


def narrowed(
    bracket: Bracket, weights: Float[Array, "b r v"], thresholds: Float[Array, "b r k"], limit: Float[Array, "b r 1"]
) -> Bracket:
    """The part of a bracket, between two of the thresholds, in which the mass above passes the limit."""
    chunks = in_chunks(weights)
    parts = [jnp.where(chunks > thresholds[..., k, None, None], chunks, 0.0) for k in range(CUTS)]
    masses = jnp.stack([jnp.sum(sums, axis=-1) for sums in chunk_sums(*parts)], axis=-1)
    is_inside = masses <= limit

    def least(values: Array, others: Array) -> Array:
        return jnp.minimum(others, jnp.min(values, axis=-1, keepdims=True))

    return Bracket(
        low=-least(jnp.where(is_inside, jnp.inf, -thresholds), -bracket.low),
        high=least(jnp.where(is_inside, thresholds, jnp.inf), bracket.high),
        outer=least(jnp.where(is_inside, jnp.inf, masses), bracket.outer),
        inner=-least(jnp.where(is_inside, -masses, jnp.inf), -bracket.inner),
    )


def bisected(logits: Float[Array, "b r v"], weights: Float[Array, "b r v"], limit: Float[Array, "b r 1"]) -> Border:
    """Find the border bit by bit, then among equal logits by id: as many passes as a float has bits, for any row."""
    least = jnp.iinfo(jnp.int32).min

    def flipped(bits: Int[Array, "..."]) -> Int[Array, "..."]:
        """Turn the bits of floats into integers of the same order, and back."""
        return jnp.where(bits < 0, least - bits, bits)

    def logit(key: Int[Array, "..."]) -> Float[Array, "..."]:
        return jax.lax.bitcast_convert_type(flipped(key), jnp.float32)

    def mass_above(value: Float[Array, "b r 1"]) -> Float[Array, "b r 1"]:
        return jnp.sum(jnp.where(logits > value, weights, 0.0), axis=-1, keepdims=True)

    def halve(_: Int[Array, ""], keys: tuple[Array, Array]) -> tuple[Array, Array]:
        outside, inside = keys
        # The mean, without an overflow.
        middle = (outside & inside) + ((outside ^ inside) >> 1)
        is_inside = mass_above(logit(middle)) <= limit
        return jnp.where(is_inside, outside, middle), jnp.where(is_inside, middle, inside)

    def key_of(values: Array) -> Int[Array, "b r 1"]:
        return flipped(jax.lax.bitcast_convert_type(values, jnp.int32))

    peak = key_of(jnp.max(logits, axis=-1, keepdims=True))
    _, key = jax.lax.fori_loop(0, 32, halve, (key_of(jnp.full_like(limit, -jnp.inf)), peak))
    value = logit(key)
    weight = jnp.max(jnp.where(logits == value, weights, 0.0), axis=-1, keepdims=True)
    # Of equal tokens, so many have room for all before them.
    count = 1 + jnp.floor(jnp.minimum((limit - mass_above(value)) / weight, logits.shape[-1])).astype(jnp.int32)
    return Border(value, place(logits == value, count))


def place(marked: Bool[Array, "b r v"], count: Int[Array, "b r 1"]) -> Int[Array, "b r 1"]:
    """Id of the marked token that is the `count`-th of its row; beyond the last column if there are fewer."""
    chunks = in_chunks(marked.astype(jnp.int32))
    marks = jnp.sum(chunks, axis=-1)
    is_before = jnp.cumsum(marks, axis=-1) < count
    chunk = jnp.sum(is_before, axis=-1, keepdims=True)
    rest = count - jnp.sum(jnp.where(is_before, marks, 0), axis=-1, keepdims=True)
    own = jnp.take_along_axis(chunks, jnp.minimum(chunk, marks.shape[-1] - 1)[..., None], axis=-2)[..., 0, :]
    return chunk * CHUNK + jnp.sum(jnp.cumsum(own, axis=-1) < rest, axis=-1, keepdims=True)


def inverse_cdf(weights: Float[Array, "b r c"], uniform: Float[Array, "b r"]) -> Int[Array, "b r"]:
    """Index drawn in proportion to the weights: the first whose cumulative weight exceeds `uniform` of the total.

    One random number per draw, where Gumbel noise takes two logarithms per column of the vocabulary.
    """
    if weights.shape[-1] > 2 * CHUNK:
        chunks = in_chunks(weights)
        sums = jnp.sum(chunks, axis=-1)
        chunk, rest = drawn_chunk(sums, uniform)
        own = jnp.take_along_axis(chunks, chunk[..., None, None], axis=-2)[..., 0, :]
        return chunk * CHUNK + inverse_cdf(own, rest)
    below = jnp.cumsum(weights, axis=-1)
    # The weight is looked at too: where the rounding of a sum is not monotone, a filtered column must not pass.
    passes = (below > (uniform * below[..., -1])[..., None]) & (weights > 0)
    return jnp.where(jnp.any(passes, axis=-1), jnp.argmax(passes, axis=-1), jnp.argmax(weights, axis=-1))


def drawn_chunk(
    sums: Float[Array, "b r n"], uniform: Float[Array, "b r"]
) -> tuple[Int[Array, "b r"], Float[Array, "b r"]]:
    """Draw a chunk in proportion to the sums, and what is left of the random number for the draw within it."""
    chunk = inverse_cdf(sums, uniform)
    own = jnp.take_along_axis(sums, chunk[..., None], axis=-1)[..., 0]
    before = jnp.sum(jnp.where(jnp.arange(sums.shape[-1]) < chunk[..., None], sums, 0.0), axis=-1)
    return chunk, jnp.clip((uniform * jnp.sum(sums, axis=-1) - before) / own, 0.0, 1 - 1e-6)


class Rows(NamedTuple):
    """Rows of logits any of whose tokens may be candidates.

    Attributes:
        logits: before the temperature.
        scale: what they are multiplied by, 1 / temperature.
        best, best_ids: the two largest.
        border: the last candidate; None if all are.
        sums: weight of the candidates of each chunk; their total is the mass that probabilities refer to.
        heats: sums of the weights times their logarithms.
    """

    logits: Float[Array, "b r v"]
    scale: Float[Array, ""]
    best: Float[Array, "b r 2"]
    best_ids: Int[Array, "b r 2"]
    border: Border | None
    sums: Float[Array, "b r n"]
    heats: Float[Array, "b r n"]

    @classmethod
    def of(
        cls,
        logits: Float[Array, "b r v"],
        scale: Float[Array, ""],
        *,
        top_p: Float[Array, ""] | None,
        min_ratio: Float[Array, ""] | None,
        needed: Bool[Array, "b r"],
    ) -> "Rows":
        """Filter rows: the nucleus of `top_p`, and no token whose weight is less than `min_ratio` of the largest."""
        best, best_ids = largest(logits, 2)
        peak, ids = best[..., :1], jnp.arange(logits.shape[-1])
        weights = weigh(logits, peak, scale)
        border = None if top_p is None else nucleus(logits, weights, top_p, needed)
        if min_ratio is not None:
            least = Border(peak + jnp.log(min_ratio) / scale, jnp.full_like(best_ids[..., :1], logits.shape[-1]))
            border = least if border is None else border_where(least.value > border.value, least, border)
        kept = weights if border is None else jnp.where(border.includes(logits, ids), weights, 0.0)
        # A logit may be -inf, and its weight 0.
        heats = jnp.where(kept > 0, kept * ((logits - peak) * scale), 0.0)
        return cls(logits, scale, best, best_ids, border, *chunk_sums(in_chunks(kept), in_chunks(heats)))

    def log_probs(self, values: Float[Array, "b r c"], ids: Int[Array, "..."]) -> Float[Array, "b r c"]:
        """Compute the log-probabilities of tokens of those logits and ids."""
        log_probs = (values - self.best[..., :1]) * self.scale - self.log_total[..., None]
        return log_probs if self.border is None else jnp.where(self.border.includes(values, ids), log_probs, -jnp.inf)

    @property
    def log_total(self) -> Float[Array, "b r"]:
        return jnp.log(jnp.sum(self.sums, axis=-1))

    def likeliest(self) -> tuple[Int[Array, "b r"], Float[Array, "b r"]]:
        """The likeliest token of each row, and its log-probability."""
        return self.best_ids[..., 0], -self.log_total

    def drawn(self, uniform: Float[Array, "b r"]) -> tuple[Int[Array, "b r"], Float[Array, "b r"]]:
        """A token of each row drawn by its probability, and its log-probability."""
        chunk, rest = drawn_chunk(self.sums, uniform)
        ids = chunk[..., None] * CHUNK + jnp.arange(CHUNK)
        # The last chunk may be longer than what is left of the vocabulary.
        logits = jnp.take_along_axis(self.logits, ids, axis=-1, mode="fill", fill_value=-jnp.inf)
        log_probs = self.log_probs(logits, ids)
        index = inverse_cdf(jnp.exp(log_probs), rest)[..., None]
        ids, log_probs = (jnp.take_along_axis(part, index, axis=-1)[..., 0] for part in (ids, log_probs))
        return ids, log_probs

    def margin(self) -> Float[Array, "b r"]:
        """Probability of the likeliest token less that of the second."""
        probs = jnp.exp(self.log_probs(self.best, self.best_ids))
        return probs[..., 0] - probs[..., 1]

    def entropy(self) -> Float[Array, "b r"]:
        """Sum of p log p; the reference's log(p + 1e-10) differs by at most 1e-10 for each candidate."""
        return jnp.sum(self.heats, axis=-1) / jnp.sum(self.sums, axis=-1) - self.log_total

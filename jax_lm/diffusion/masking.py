"""Masks over token rows: the logit shift, samples side by side in a row, and the forward (noising) process.

Every random number of a sample follows from the key and the sample's number alone: so its masks do not depend on how
a batch is padded, packed, split or sharded. Knows neither models nor the order of unmasking.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

LevelDraws = Literal["even", "antithetic", "independent"]
LEVEL_DRAWS = get_args(LevelDraws)
GOLDEN_STEP = 2654435769
"""2^32 / golden ratio: multiples of it, modulo 2^32, spread evenly however many there are."""


def shift_right(rows: Float[Array, "b t x"], starts: Bool[Array, "b t"] | None = None) -> Float[Array, "b t x"]:
    """Align logits, or the hidden states they come from, with the tokens they predict.

    Dream was adapted from a causal model: row p predicts the token at p + 1. Position 0 keeps row 0, and so does
    the first position of every sample where several stand in a row (`starts`). This is the only place where that
    shift is made.
    """
    shifted = jnp.concatenate([rows[:, :1], rows[:, :-1]], axis=1)
    return shifted if starts is None else jnp.where(starts[..., None], rows, shifted)


def sample_starts(samples: Int[Array, "b t"]) -> Bool[Array, "b t"]:
    """Where a sample begins; `samples` numbers the sample of each token, -1 where there is none."""
    return jnp.concatenate([jnp.ones_like(samples[:, :1], bool), samples[:, 1:] != samples[:, :-1]], axis=1)


def sample_positions(samples: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Positions counted from the start of each sample."""
    places = jnp.broadcast_to(jnp.arange(samples.shape[1]), samples.shape)
    return places - jax.lax.cummax(jnp.where(sample_starts(samples), places, 0), axis=1)


def over_samples(reduce: str, values: Float[Array, "b t"], samples: Int[Array, "b t"]) -> Float[Array, "b t"]:
    """Sum or minimum ("sum", "min") of the values of each token's sample."""
    places = jnp.cumsum(sample_starts(samples), axis=1) - 1
    segments = {"sum": jax.ops.segment_sum, "min": jax.ops.segment_min}[reduce]
    totals = jax.vmap(lambda v, p: segments(v, p, num_segments=samples.shape[1], indices_are_sorted=True))
    return jnp.take_along_axis(totals(values, places), places, axis=1)


def noise_levels(
    key: PRNGKeyArray, samples: Int[Array, "b t"], draws: LevelDraws = "even", minimum: float = 1e-3
) -> Float[Array, "b t"]:
    """t ~ U(minimum, 1) of each token's sample.

    independent: one draw per sample. antithetic: samples 2k and 2k + 1 have u and 1 - u. even: one draw for the
    step, and each sample is a golden-ratio step further around the unit interval than the one before, so that any
    number of samples covers it evenly. The distribution of a single sample's level is the same in all three.
    """
    if draws == "even":
        turns = samples.astype(jnp.uint32) * jnp.uint32(GOLDEN_STEP)
        u = (jax.random.uniform(key) + turns.astype(jnp.float32) / 2.0**32) % 1.0
    else:
        numbers = samples // 2 if draws == "antithetic" else samples
        u = jax.vmap(jax.vmap(lambda number: jax.random.uniform(jax.random.fold_in(key, number))))(numbers)
        if draws == "antithetic":
            u = jnp.where(samples % 2 == 1, 1 - u, u)
    return minimum + (1 - minimum) * u


def forward_process(
    key: PRNGKeyArray,
    tokens: Int[Array, "b t"],
    canvas: Bool[Array, "b t"],
    samples: Int[Array, "b t"],
    levels: Float[Array, "b t"],
    mask_id: int,
) -> tuple[Int[Array, "b t"], Bool[Array, "b t"]]:
    """Mask each canvas position with the probability of its level, and at least one of every sample's canvas.

    Returns:
        Noisy tokens, and which positions were masked.
    """

    def draw(sample: Array, position: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, sample), position))

    draws = jax.vmap(jax.vmap(draw))(samples, sample_positions(samples))
    draws = jnp.where(canvas, draws, 2.0)
    masked = canvas & ((draws < levels) | (draws == over_samples("min", draws, samples)))
    return jnp.where(masked, mask_id, tokens), masked


def masked_share(levels: Float[Array, "b t"], sizes: Float[Array, "b t"]) -> Float[Array, "b t"]:
    """Probability that `forward_process` masks a canvas position: its level, or being the one mask of its sample.

    `sizes` are the canvas positions of its sample. A loss that divides by it has the mean of one that masks with
    probability `levels` alone and divides by them.
    """
    return levels + (1 - levels) ** sizes / jnp.maximum(sizes, 1)


def attention_mask(samples: Int[Array, "b t"], openness: Float[Array, "b"], key: PRNGKeyArray) -> Bool[Array, "b t s"]:
    """Which positions a token attends to: those of its own sample that are not in the future, and each future one
    with probability `openness` of its row (1 is bidirectional, 0 causal)."""
    own = samples[:, :, None] == samples[:, None, :]
    places = jnp.arange(samples.shape[1])

    def opened(first: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, first), (places.size, places.size))

    future = jax.vmap(opened)(samples[:, 0]) < openness[:, None, None]
    return own & ((places[:, None] >= places[None]) | future)

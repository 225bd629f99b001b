"""Masks over token rows: the logit shift, and the forward (noising) process of training.

Knows neither models nor the order of unmasking.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


def shift_right(rows: Float[Array, "b t x"]) -> Float[Array, "b t x"]:
    """Align logits, or the hidden states they come from, with the tokens they predict.

    Dream was adapted from a causal model: row p predicts the token at p + 1. Position 0 keeps row 0.
    This is the only place where that shift is made.
    """
    return jnp.concatenate([rows[:, :1], rows[:, :-1]], axis=1)


def noise_levels(key: PRNGKeyArray, rows: int, minimum: float = 1e-3) -> Float[Array, "b"]:
    """Stratified t ~ U(minimum, 1): one draw from each of `rows` equal strata, in random order."""
    key_order, key_offset = jax.random.split(key)
    strata = jax.random.permutation(key_order, rows) + jax.random.uniform(key_offset, (rows,))
    return minimum + (1 - minimum) * strata / rows


def forward_process(
    key: PRNGKeyArray,
    tokens: Int[Array, "b t"],
    canvas: Bool[Array, "b t"],
    levels: Float[Array, "b"],
    mask_id: int,
) -> tuple[Int[Array, "b t"], Bool[Array, "b t"]]:
    """Mask each canvas position with its row's probability, and at least one of every row's canvas.

    Returns:
        Noisy tokens, and which positions were masked.
    """
    draws = jnp.where(canvas, jax.random.uniform(key, tokens.shape), 2.0)
    lowest = jnp.min(draws, axis=1, keepdims=True)
    masked = canvas & ((draws < levels[:, None]) | (draws == lowest))
    return jnp.where(masked, mask_id, tokens), masked

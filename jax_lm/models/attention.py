"""Grouped-query attention, and the keys and values that it runs over. Dimension letters: see `jax_lm.models.dream`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jax_lm.models.products import product


class KeyValues(NamedTuple):
    """Keys (after the rotary embedding) and values of one layer, to which its queries attend."""

    keys: Float[Array, "b k s h"]
    values: Float[Array, "b k s h"]

    def rewritten(self, fresh: "KeyValues", start: Int[Array, ""]) -> "KeyValues":
        """Replace the positions from `start` on by `fresh`."""
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=2) for old, new in zip(self, fresh, strict=True)
        )
        return KeyValues(keys, values)


def attend(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b k s h"],
    v: Float[Array, "b k s h"],
    attention_mask: Bool[Array, "b s"] | Bool[Array, "b t s"] | None,
) -> Float[Array, "b t n h"]:
    """Attend to all keys that the mask admits, to all queries or to each; grouped queries, softmax in float32.

    The query heads of a group become further rows of their key head, so that keys are never repeated.
    """
    b, t, n, h = q.shape
    groups = n // k.shape[1]
    q = q.reshape(b, t, -1, groups, h).transpose(0, 2, 3, 1, 4).reshape(b, -1, groups * t, h)
    scores = product(q, k) / h**0.5
    if attention_mask is not None:
        # Where only keys are masked, a padded query sees the real keys, so that no row is empty.
        if attention_mask.ndim == 2:
            admitted = attention_mask[:, None, None, :]
        else:
            admitted = jnp.tile(attention_mask, (1, groups, 1))[:, None]
        scores = jnp.where(admitted, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    y = product(weights, v.swapaxes(2, 3)).astype(q.dtype)
    return y.reshape(b, -1, groups, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)

"""The kernel of `jax_lm.models.window_attention`, in Pallas for Triton.

Dimension letters: see `jax_lm.models.dream`.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from jax_lm.models.attention import Attended, KeyValues, WindowOperands, query_mask

# Columns of the cache that a step of the loop reads, and warps that share the rows of a head.
BLOCK = 64
WARPS = 4
LOWEST = float(jnp.finfo(jnp.float32).min)
# The rows of one head.
Tile = Float[Array, "t h"]


def call(window: WindowOperands, starts: Int[Array, " b"], *, interpret: bool = False) -> Attended:
    """Rotate queries and keys, write keys and values into the cache, and attend to the cache.

    Args:
        window: the rows and the cache, which is written in place. The mask must be an array.
        starts: column of the first row of each sequence.
        interpret: run in Pallas' interpreter, on machines without a GPU.

    Returns:
        The attention output, and the cache.
    """
    *rows, mask, cache = window
    b, t, n, h = window.q.shape
    groups = n // window.k.shape[2]
    # [b, 1, s] or [b, t, s]; Triton loads no bits.
    admitted = query_mask(mask).astype(jnp.int8)  # pyright: ignore[reportArgumentType]

    # A program computes one query head of one sequence: its blocks are [t, h] of the window, and
    # [s, h] of the cache.
    def block(head):
        return pallas.BlockSpec((None, t, None, h), lambda row, i: (row, 0, head(i), 0))

    by_query, by_key, shared = (
        block(head) for head in (lambda i: i, lambda i: i // groups, lambda i: 0)
    )
    columns = pallas.BlockSpec((None, *admitted.shape[1:]), lambda row, i: (row, 0, 0))
    cached = pallas.BlockSpec(
        (None, None, *cache.keys.shape[2:]), lambda row, i: (row, i // groups, 0, 0)
    )
    start = pallas.BlockSpec((1,), lambda row, i: (row,))
    y, *written = pallas.pallas_call(
        partial(window_kernel, groups=groups),
        grid=(b, n),
        in_specs=[start, by_query, by_key, by_key, shared, shared, columns, cached, cached],
        out_specs=[by_query, cached, cached],
        out_shape=[window.q, *cache],
        # Operands 7 and 8 become outputs 1 and 2.
        input_output_aliases={7: 1, 8: 2},
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=interpret,
        name="window_attention",
    )(starts, *rows, admitted, *cache)
    return y, KeyValues(*written)


def window_kernel(*refs: Any, groups: int):
    """Compute one query head. The softmax is accumulated over blocks of columns, as in
    FlashAttention (arXiv 2205.14135).

    `refs` are the blocks of the operands and of the results of `call`.
    """
    *window, mask, old_keys, old_values, output, new_keys, new_values = refs
    start, q, k, v, cos, sin = (ref[...] for ref in window)
    t, h = q.shape
    s = old_keys.shape[0]
    q = rotate_tile(q, cos, sin)
    k = rotate_tile(k, cos, sin)
    # The heads that share keys compute the same cache; the first of them writes it.
    writes = pallas.program_id(1) % groups == 0

    def attend_block(number, state):
        y, highest, total = state
        at = pallas.ds(number * BLOCK, BLOCK)
        column = number * BLOCK + jnp.arange(BLOCK)
        row = column - start
        in_cache = column < s
        in_window = (in_cache & (row >= 0) & (row < t))[:, None]
        # Column 7 of a window that starts at 5 takes row 2: a product with [0, 0, 1, 0, ...].
        # Triton has no gather within a tile.
        chosen = (row[:, None] == jnp.arange(t)).astype(q.dtype)

        def merge(old, new, rows):
            before = triton.load(old.at[at], mask=in_cache[:, None], other=0)
            after = jnp.where(in_window, dot(chosen, rows).astype(q.dtype), before)
            triton.store(new.at[at], after, mask=in_window & writes)
            return after

        keys = merge(old_keys, new_keys, k)
        values = merge(old_values, new_values, v)
        admitted = triton.load(mask.at[:, at], mask=in_cache[None], other=0) != 0
        scores = jnp.where(admitted, dot(q, keys.T) / h**0.5, LOWEST)
        higher = jnp.maximum(highest, scores.max(1))
        weights = jnp.exp(scores - higher[:, None])
        # What was summed so far was relative to the maximum until here.
        scale = jnp.exp(highest - higher)
        y = y * scale[:, None] + dot(weights.astype(q.dtype), values)
        return y, higher, total * scale + weights.sum(1)

    nothing = jnp.zeros((t, h)), jnp.full(t, LOWEST), jnp.zeros(t)
    y, _, total = lax.fori_loop(0, pallas.cdiv(s, BLOCK), attend_block, nothing)
    output[...] = (y / total[:, None]).astype(q.dtype)


def rotate_tile(x: Tile, cos: Tile, sin: Tile) -> Tile:
    """Apply the rotary embedding: `window_attention.rotate` without cutting the tile."""
    h = x.shape[-1]
    i = jnp.arange(h)[:, None] - jnp.arange(h)
    # A product with 1 and -1 is exact. For h = 4: [x1, x2, x3, x4] -> [-x3, -x4, x1, x2].
    halves = (i == -h // 2).astype(x.dtype) - (i == h // 2).astype(x.dtype)
    return (x.astype(jnp.float32) * cos + dot(x, halves) * sin).astype(x.dtype)


def dot(x: Array, y: Array) -> Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)

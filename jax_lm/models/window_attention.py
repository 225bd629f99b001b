"""Attention of a window of rows to a longer KV cache. Dimension letters: see `jax_lm.models.dream`.

On NVIDIA GPUs one Pallas kernel rotates queries and keys, writes keys and values into the cache,
and attends to the cache. XLA launches a kernel for each of these steps. A window has few rows, so
each launch takes about as long as its work. The kernel was compiled for GPUs but has not run on one
yet. On other devices, and with JAX_LM_WINDOW_KERNEL=0 in the environment, XLA compiles the steps.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jax_lm.models.attention import (
    AMPERE,
    Angles,
    Attended,
    KeyValues,
    Queries,
    WindowOperands,
    attend,
    merged_by_rows,
)
from jax_lm.models.shapes import ScalarInt
from jax_lm.sharding import MeshShape, first_device, row_axes

SWITCH = "JAX_LM_WINDOW_KERNEL"
# Rows and head dimensions that fill the tiles of Triton's products, which are powers of two.
KERNEL_ROWS = (16, 32, 64)
KERNEL_HEAD_DIMS = (64, 128)
# cos and sin
Rotary = tuple[Angles, Angles]


def rotate(x: Queries, rotary: Rotary) -> Queries:
    """Apply the rotary position embedding."""
    cos, sin = rotary
    x32 = x.astype(jnp.float32)
    # rotate_half: [x1, x2, x3, x4] -> [-x3, -x4, x1, x2]
    first, second = jnp.split(x32, 2, axis=-1)
    return (x32 * cos + jnp.concatenate([-second, first], axis=-1) * sin).astype(x.dtype)


def attend_to_cache(window: WindowOperands, start: ScalarInt, mesh: Mesh | None = None) -> Attended:
    """Write the keys and values of a window into the cache, and attend to all of it.

    Args:
        window: the rows and the cache.
        start: column of the first row.
        mesh: mesh over which the arrays are sharded; None is one device.

    Returns:
        The attention output [b, t, n, h], and the cache with the window.
    """
    if not has_kernel(window, mesh):
        return in_steps(window, start, mesh)
    if window.mask is None:
        b, _, s, _ = window.cache.keys.shape
        window = window._replace(mask=jnp.ones((b, s), bool))
    if mesh is None:
        return in_one_kernel(window, start)
    # XLA cannot partition a kernel, so each device runs it on its own rows and heads.
    axes = row_axes(len(window.q), mesh.shape)
    rows: Any = PartitionSpec(axes)
    heads: Any = PartitionSpec(axes, None, "tensor")
    cached: Any = PartitionSpec(axes, "tensor")
    # q, k, v [b, t, n, h]; cos, sin, mask [b, ...]; cache [b, k, s, h]
    specs = WindowOperands(heads, heads, heads, rows, rows, rows, KeyValues(cached, cached))
    return jax.shard_map(
        in_one_kernel,
        mesh=mesh,
        in_specs=(specs, PartitionSpec()),
        out_specs=(heads, specs.cache),
        check_vma=False,
    )(window, start)


def has_kernel(window: WindowOperands, mesh: Mesh | None) -> bool:
    """Whether the kernel supports this window on the first device."""
    device = first_device(mesh)
    # rows, head dimension; key heads and columns of the cache
    (_, t, _, h), (_, heads, s, _) = window.q.shape, window.cache.keys.shape
    return (
        device.platform == "gpu"
        # products of bfloat16 in tensor cores
        and float(device.compute_capability) >= AMPERE
        and window.q.dtype == jnp.bfloat16
        and t in KERNEL_ROWS
        # not the refresh of a whole cache
        and t < s
        and h in KERNEL_HEAD_DIMS
        # each device has whole heads
        and heads % MeshShape.of(mesh).tensor == 0
        and os.environ.get(SWITCH) != "0"
    )


def in_steps(window: WindowOperands, start: ScalarInt, mesh: Mesh | None = None) -> Attended:
    """Compute `attend_to_cache` step by step."""
    rotary = window.cos, window.sin
    # [b, t, k, h] -> [b, k, t, h], the layout of the cache.
    # A cache of 6 columns, start = 2 and t = 3: columns 2, 3 and 4 are replaced.
    keys, values = (
        lax.dynamic_update_slice_in_dim(old, new.swapaxes(1, 2), start, axis=2)
        for old, new in zip(window.cache, (rotate(window.k, rotary), window.v), strict=True)
    )
    y = attend(rotate(window.q, rotary), keys, values, window.mask, mesh)
    return y, KeyValues(keys, values)


@jax.custom_vjp
def in_one_kernel(window: WindowOperands, start: ScalarInt) -> Attended:
    """Compute `in_steps` in one kernel; gradients are those of the steps."""
    # The import takes 0.2 s, and only programs for GPUs need it.
    from jax_lm.models import window_kernel

    # As `dynamic_update_slice` does, move a window that would end past the cache: 16 rows from
    # column 60 of 72 begin at 56. Each row has a start of its own, as canvases of a vmap have.
    start = jnp.clip(start, 0, window.cache.keys.shape[2] - window.q.shape[1])
    return merged_by_rows(window_kernel.call)(window, jnp.broadcast_to(start, len(window.q)))


# Forward: keep the operands. Backward: differentiate the steps, which are computed again.
in_one_kernel.defvjp(
    lambda *operands: (in_one_kernel(*operands), operands),
    lambda operands, cotangents: jax.vjp(in_steps, *operands)[1](cotangents),
)

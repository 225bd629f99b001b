"""Matrix products, scalings and lookups that accumulate in float32, as do their gradients.

JAX's own rules for the gradients accumulate in the dtype of the operands. In bfloat16, with 8 bits
of precision, a sum stalls as soon as a term is less than 1/256 of it, so a gradient that sums
thousands of rows loses most of its value. The rules below accumulate in float32 for every dtype.

The second purpose of this module is to work around two optimizations of XLA:CPU that cost memory:

- Loop-invariant code motion. XLA:CPU has no kernels for some operations on bfloat16. It converts or
  transposes the operand first, and moves this copy out of an enclosing loop if the operand does not
  change in it. In a decoding loop, whose weights never change, that is a second copy of all
  weights, made again at each call. See `keep_in_loop`.
- Fusion into transposed copies. A contraction over several axes is computed from a transposed copy
  of each operand. See `contract_flat`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, Real, Shaped

from jax_lm import sharding
from jax_lm.checkpoints.stored import FP8, FP8_LIMIT, Int8Kernel, Kernel
from jax_lm.config import Ints
from jax_lm.models.shapes import Tokens, Vectors

# The rows of all tokens, floating-point or int8.
Table = Float[Array, "v d"] | Int8[Array, "v d"]
# Rows that a matrix multiplies, with any axes before them.
Rows = Float[Array, "*z m i"]
Operands = tuple[Array, Array]
# CPUs multiply int8 by int8 up to this many rows per sequence; a row that is split into two halves
# counts twice. With more rows, multiplying bfloat16 is so much faster that widening the kernel pays
# (docs/results/speed.md).
INT8_ROWS = 128
# Up to this many rows, reading the kernel takes most of the time, so a second half costs little.
SPLIT_ROWS = 8


def product(
    a: Rows, b: Float[Array, "*y n i"] | Int8[Array, "n i"], dtype: DTypeLike = jnp.float32
) -> Float[Array, "*z m n"]:
    """Compute a bᵀ, accumulated in float32.

    On CPUs with bfloat16 units this is 4-5 times faster than a bfloat16 `@`. The gradient rounds
    the cotangent to the dtype of the operands: JAX's own rule would multiply float32 by bfloat16,
    for which no backend has a fast kernel.

    Args:
        a: rows.
        b: one matrix, such as a weight [out, in], or a batch of matrices with the leading
            dimensions of `a`. An int8 or fp8 weight is multiplied without its scales, and has no
            gradient.
        dtype: dtype of the result. A result that nothing else is added to is best rounded here:
            an accelerator's kernel then writes half of the bytes, and XLA launches none to round.
    """
    return rounded_product(a, b, dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rounded_product(a: Array, b: Array, dtype: DTypeLike) -> Array:
    if b.dtype == jnp.int8:
        return int8_product(a, b)
    if b.dtype == FP8:
        return fp8_product(a, b)
    if b.ndim == 2:
        # `b` is a weight, which a decoding loop does not change.
        a, b = keep_in_loop(a, b)
    axes = (a.ndim - 1,), (b.ndim - 1,), b.ndim - 2
    is_alone = b.ndim == 2 and a.size == a.shape[-1] and a.dtype == jnp.bfloat16
    if dtype == jnp.float32 and not is_alone:
        return contract(a, b, *axes)

    # XLA:CPU has no fast kernel that rounds its own results, and multiplies a single row of
    # bfloat16 ten times slower than two.
    def on_cpu(a, b):
        if not is_alone:
            return contract(a, b, *axes).astype(dtype)
        # [[5, 6]] -> [[5, 6], [0, 0]]
        two_rows = jnp.concatenate([a, jnp.zeros_like(a)], axis=-2)
        return contract(two_rows, b, *axes)[..., :1, :].astype(dtype)

    return lax.platform_dependent(
        a, b, cpu=on_cpu, default=lambda a, b: contract(a, b, *axes, dtype)
    )


def product_backward(
    dtype: DTypeLike, operands: Operands, cotangent: Array
) -> tuple[Array, Array | None]:
    a, b = operands
    g = cotangent.astype(a.dtype)
    if b.dtype == jnp.int8:
        g, b = lax.optimization_barrier((g, b))
        return contract(g, b.astype(g.dtype), (g.ndim - 1,), (0,), 0).astype(g.dtype), None
    # Dimensions of `b` before its matrix; those of `a` and `g` between them and the last are rows.
    batch = b.ndim - 2
    rows = tuple(range(batch, a.ndim - 1))
    # y = a bᵀ, so da = g b (sum over n) and db = gᵀ a (sum over all rows).
    da = contract(g, b, (g.ndim - 1,), (batch,), batch)
    if batch:
        db = contract(g, a, rows, rows, batch)
    else:
        # The gradient of a weight sums over batch and position, and only XLA:CPU needs them merged.
        db = lax.platform_dependent(
            g, a, cpu=contract_flat, default=lambda g, a: contract(g, a, rows, rows, 0)
        )
    return da.astype(a.dtype), db.astype(b.dtype)


rounded_product.defvjp(lambda a, b, dtype: (rounded_product(a, b, dtype), (a, b)), product_backward)


def int8_product(x: Rows, weight: Int8Kernel) -> Float[Array, "*z m o"]:
    """Compute x Wᵀ for an int8 weight, which is widened to the dtype of `x`, except on CPUs.

    XLA:CPU would write the widened weight to memory at every call, so a few rows of bfloat16 become
    int8 as well, with one scale per row. A range of -127 to 127 is too coarse for the input of
    `down_proj`, whose largest entries exceed the others a hundredfold. There, and wherever it costs
    little, a second int8 row holds the rounding error of the first. The choice depends on the rows
    of one sequence alone, so the result does not depend on the batch.
    """
    # `down_proj`, as well as the small k_proj and v_proj, have fewer outputs than inputs.
    halves = 2 if x.shape[-2] <= SPLIT_ROWS or len(weight) < x.shape[-1] else 1
    # Behind a barrier that depends on `x`. Otherwise XLA may widen the kernels of all layers ahead
    # of a loop, and keep the very copy that int8 is meant to save.
    x, weight = lax.optimization_barrier((x, weight))
    is_few = x.dtype == jnp.bfloat16 and x.shape[-2] * halves <= INT8_ROWS

    def widened():
        return product(x, weight.astype(x.dtype))

    def quantized():
        x32 = x.astype(jnp.float32)
        # `initial` only matters for a row of zeros, whose scale must not be 0.
        scale = jnp.max(jnp.abs(x32), axis=-1, keepdims=True, initial=1e-30) / 127
        high = jnp.round(x32 / scale)
        # 3.2 -> high 3 and low 51 = .2 * 254. The rounding error is at most 1/2, which is low 127.
        low = jnp.round((x32 / scale - high) * 254)
        rows = jnp.concatenate([high, low][:halves], axis=-2).astype(jnp.int8)
        sums = contract(rows, weight, (x.ndim - 1,), (1,), 0, jnp.int32).astype(jnp.float32)
        high, *rest = jnp.split(sums, halves, axis=-2)
        return sum((low / 254 for low in rest), high) * scale

    return lax.platform_dependent(cpu=quantized if is_few else widened, default=widened)


def fp8_product(x: Rows, weight: Kernel) -> Float[Array, "*z m o"]:
    """Compute x Wᵀ for an fp8 weight; each row becomes fp8 as well, with a scale of its own.

    Cards multiply fp8 by fp8 twice as fast as bfloat16 by bfloat16. The scale maps the largest
    entry of a row to 448; an entry keeps its 4 significant bits down to 1/28,672 of that, so large
    entries do not spoil small ones, as they do in int8.
    """
    x32 = x.astype(jnp.float32)
    # `initial` as in `int8_product`.
    scale = jnp.max(jnp.abs(x32), axis=-1, keepdims=True, initial=1e-30) / FP8_LIMIT
    rows = (x32 / scale).astype(FP8)
    sums = lax.platform_dependent(
        rows,
        weight,
        # CPUs have no fp8; as bfloat16, the numbers are the same. Widened behind a barrier, one
        # kernel at a time.
        cpu=lambda *operands: product(
            *(part.astype(jnp.bfloat16) for part in lax.optimization_barrier(operands))
        ),
        default=lambda rows, weight: contract(rows, weight, (x.ndim - 1,), (1,), 0),
    )
    return sums * scale


def contract(
    a: Array, b: Array, a_axes: Ints, b_axes: Ints, batch: int, dtype: DTypeLike = jnp.float32
) -> Array:
    """Contract the given axes in float32, batched over the first `batch` axes."""
    axes = tuple(range(batch))
    # By default, accelerators round float32 inputs to a mantissa of 10 bits or fewer.
    with jax.default_matmul_precision("highest" if a.dtype == jnp.float32 else "default"):
        return lax.dot_general(a, b, ((a_axes, b_axes), (axes, axes)), preferred_element_type=dtype)


def contract_flat(a: Float[Array, "*z m"], b: Float[Array, "*z n"]) -> Float[Array, "m n"]:
    """Compute aᵀ b, summed over all rows, after merging the leading axes into one.

    For a contraction over several axes, XLA:CPU makes transposed copies of the operands. It also
    fuses the computation of `a` into its copy, which then runs with a large stride. Two plain
    matrices are contracted in place.
    """
    # [b, t, m] and [b, t, n] -> [b * t, m] and [b * t, n]; the result is [m, n].
    return contract(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), (0,), (0,), 0)


def scale_columns(x: Vectors, weight: Float[Array, "d"]) -> Vectors:
    """Multiply each column by its weight.

    The product is computed in float32. The result rounds to the same numbers, but the gradient of
    the weight is then summed in float32; in bfloat16, sums of thousands of rows stall.
    """
    return (x.astype(jnp.float32) * weight.astype(jnp.float32)).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table: Table, ids: Tokens, mesh: Mesh | None) -> Real[Array, "b t d"]:
    """Look up rows of a table by id, in its dtype; on a `mesh`, sharded by rows of the batch.

    JAX's own gradient sums the cotangents of an id in their dtype. In bfloat16, a row that is
    looked up thousands of times, such as the row of MASK, loses most of its gradient.
    """
    if mesh is None:
        return take_rows(table, ids)
    # `fsdp` splits the columns of the table. Each device looks up its own columns, for the ids of
    # all devices along `fsdp`; then the devices exchange parts of rows for whole rows. Gathering
    # the table instead would put all of it on every device.
    rows = free_row_axis(ids, mesh)
    embedded = take_rows(table, sharding.constrain(ids, mesh, rows))
    return sharding.shard_rows(sharding.constrain(embedded, mesh, rows, None, "fsdp"), mesh)


def take_rows(table: Table, ids: Tokens) -> Real[Array, "b t d"]:
    """Look up rows by id, in the dtype of the table.

    XLA:CPU gathers bfloat16 by way of float32; `keep_in_loop` limits that copy to these rows.
    """
    ids, table = keep_in_loop(ids, table)
    return table[ids]


def pick(values: Shaped[Array, "*b n"], index: Int[Array, "*b"]) -> Shaped[Array, "*b"]:
    """Return the entry of each row at its index."""
    # [[5, 6], [7, 8]] at [1, 0] -> [6, 7]
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def keep_in_loop(changing: Array, weight: Array) -> Operands:
    """Prevent XLA:CPU from copying a bfloat16 weight ahead of a loop. Returns both operands.

    XLA:CPU implements a gather from a bfloat16 table by converting the table to float32, and a
    product with a bfloat16 matrix by transposing the matrix. These copies depend on the weight
    alone, so loop-invariant code motion moves them in front of the loop: at each call, the program
    copies all weights, and needs as much memory again as the weights take.

    An optimization barrier makes the copies depend on `changing` as well, an operand that differs
    in each iteration, so they stay in the loop.

    Args:
        changing: the other operand of the operation, computed inside the loop.
        weight: the operand that is constant in the loop.
    """
    if weight.dtype != jnp.bfloat16:
        return changing, weight
    return tie_operands("cpu", changing, weight)


def tie_operands(platform: str, *operands) -> tuple[Any, ...]:
    """Return the operands, behind one optimization barrier on the given platform.

    Everything computed from one of the results then depends on all operands, so XLA cannot move it
    out of a loop that changes any of them. Values are unchanged; other platforms get no barrier.
    """
    barrier = {platform: lambda *values: tuple(lax.optimization_barrier(values))}
    return lax.platform_dependent(*operands, **barrier, default=lambda *values: values)


def free_row_axis(ids: Array, mesh: Mesh) -> str | None:
    """Return the mesh axis that can split rows while `fsdp` splits columns, or None."""
    return "data" if "data" in (sharding.row_axes(len(ids), mesh.shape) or ()) else None


def lookup_backward(mesh: Mesh | None, saved: Operands, cotangent: Array) -> tuple[Array, None]:
    ids, like = saved
    if mesh is not None:
        # The cotangent is split by columns like the table. Each device then sums its own columns of
        # the gradient, and no device holds all of it.
        rows = free_row_axis(ids, mesh)
        ids = sharding.constrain(ids, mesh, rows)
        cotangent = sharding.constrain(cotangent, mesh, rows, None, "fsdp")
    empty = jnp.zeros((len(like), cotangent.shape[-1]), jnp.float32)
    gradient = (
        sharding.constrain(empty, mesh, "tensor", "fsdp").at[ids].add(cotangent.astype(jnp.float32))
    )
    return sharding.constrain(gradient, mesh, "tensor", "fsdp").astype(like.dtype), None


# table[:, :0] is [v, 0]: the gradient needs the length and dtype of the table, but no values.
lookup.defvjp(
    lambda table, ids, mesh: (lookup(table, ids, mesh), (ids, table[:, :0])), lookup_backward
)

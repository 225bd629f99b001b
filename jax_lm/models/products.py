"""Products of matrices that accumulate in float32 whatever the dtype, and their gradients."""

from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


@jax.custom_vjp
def product(a: Float[Array, "*z m i"], b: Float[Array, "*y n i"]) -> Float[Array, "*z m n"]:
    """Compute a bᵀ, accumulated in float32; `b` is one matrix, or has the leading dimensions of `a`.

    On CPUs with bfloat16 units this is also 4-5 times faster than a bfloat16 `@`. The gradient rounds the
    cotangent to the dtype of the operands: JAX's own rule would multiply float32 by bfloat16, which has
    no fast kernel anywhere.
    """
    return contract(a, b, (a.ndim - 1,), (b.ndim - 1,), b.ndim - 2)


def product_forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(a, b), (a, b)


def product_backward(operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    a, b = operands
    g = cotangent.astype(a.dtype)
    batch = b.ndim - 2
    rows = tuple(range(batch, a.ndim - 1))
    da = contract(g, b, (g.ndim - 1,), (batch,), batch)
    return da.astype(a.dtype), contract(g, a, rows, rows, batch).astype(b.dtype)


product.defvjp(product_forward, product_backward)


def contract(a: Array, b: Array, a_axes: tuple[int, ...], b_axes: tuple[int, ...], batch: int) -> Array:
    """Sum products over the given axes in float32, batched over the first `batch` axes."""
    axes = tuple(range(batch))
    with full_precision(a.dtype):
        return jax.lax.dot_general(a, b, ((a_axes, b_axes), (axes, axes)), preferred_element_type=jnp.float32)


def full_precision(dtype: DTypeLike) -> AbstractContextManager:
    """Multiply float32 at full precision: accelerators would otherwise round their inputs to 10 bits or fewer."""
    return jax.default_matmul_precision("highest" if dtype == jnp.float32 else "default")

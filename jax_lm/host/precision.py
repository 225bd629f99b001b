"""The choice of a dtype for the weights on the present device."""

import timeit

import jax
import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")
# Number of parameters below which a CPU uses float32 without a measurement: the weights fit into
# memory, and the result is exact.
SMALL_MODEL = 250_000_000


def fitting_dtype(parameter_count: int) -> str:
    """Return bfloat16 on accelerators, and float32 or bfloat16 on a CPU.

    On a CPU, small models use float32; for others, the dtype with the faster trial product.
    """
    if jax.default_backend() != "cpu":
        return "bfloat16"
    if parameter_count < SMALL_MODEL:
        return "float32"
    return min(DTYPES, key=trial_seconds)


def trial_seconds(dtype: str) -> float:
    """Return the best of three timings of the kind of product that dominates a forward pass."""
    rows = jnp.ones((256, 2048), dtype)
    weight = jnp.ones((2048, 2048), dtype)

    @jax.jit
    def trial(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.dot_general(
            rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def run_trial() -> None:
        trial(rows, weight).block_until_ready()

    # the first call compiles
    run_trial()
    return min(timeit.repeat(run_trial, number=1, repeat=3))

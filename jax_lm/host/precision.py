"""The dtype of weights that fits the device."""

import time

import jax
import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")
SMALL_MODEL = 250_000_000
"""Parameters below which a CPU runs in float32 without measuring: the weights fit, the result is exact."""


def fitting_dtype(parameter_count: int) -> str:
    """bfloat16 on accelerators; on a CPU float32 for small models, else what a trial product runs faster in."""
    if jax.default_backend() != "cpu":
        return "bfloat16"
    if parameter_count < SMALL_MODEL:
        return "float32"
    return min(DTYPES, key=trial_seconds)


def trial_seconds(dtype: str) -> float:
    """Best of three times of one product of the kind that dominates a forward pass."""
    rows, weight = jnp.ones((256, 2048), dtype), jnp.ones((2048, 2048), dtype)

    @jax.jit
    def trial(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.dot_general(rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    trial(rows, weight).block_until_ready()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        trial(rows, weight).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)

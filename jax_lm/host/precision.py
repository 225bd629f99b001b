"""The choice of a dtype for the weights on the present device."""

import re
import timeit
from collections.abc import Sequence

import jax
import jax.numpy as jnp

DTYPES = ("float32", "bfloat16")
# Number of parameters below which a CPU uses float32 without a measurement: the weights fit into
# memory, and the result is exact.
SMALL_MODEL = 250_000_000
# CUDA compute capability of the first GPUs with products of fp8.
FP8_CAPABILITY = (8, 9)


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
    def trial(rows, weight):
        return jax.lax.dot_general(
            rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    def run_trial():
        trial(rows, weight).block_until_ready()

    # the first call compiles
    run_trial()
    return min(timeit.repeat(run_trial, number=1, repeat=3))


def require_fp8(name: str, capability: Sequence[int]):
    """Raise ValueError if the accelerator of this name cannot multiply fp8."""
    if tuple(capability) < FP8_CAPABILITY:
        raise ValueError(
            f"dtype='fp8': {name} has no products of fp8, which NVIDIA GPUs of compute capability "
            "8.9 or more have (L4, RTX 4090, H100, H200); int8 takes as little memory"
        )


def require_fp8_here():
    """Raise ValueError if the present accelerator cannot multiply fp8; a CPU uses bfloat16."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        # "8.9"; a TPU has none, and that of an AMD GPU is no number
        match = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
        require_fp8(device.device_kind, [*map(int, match.groups())] if match else [])

"""Weight-only int8: symmetric, one scale per output channel; activations keep their dtype.

A quantised kernel is an int8 `weight` [o, i] with a float32 `scale` [o] beside it, in the model and in a checkpoint.
Linear layers and the head are quantised; embeddings, norms and biases stay.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

QUANTIZATION = {"quant_method": "diffucoder_int8"}
"""The `quantization_config` in the config.json of a checkpoint that holds int8 weights."""

LIMIT = 127
KERNELS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def is_kernel(name: str) -> bool:
    """Tell whether the parameter of this name is a matrix that int8 applies to."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and layer.rpartition(".")[2] in KERNELS


def scale_name(kernel: str) -> str:
    """Name the scales of a kernel."""
    return f"{kernel.removesuffix('weight')}scale"


def quantize(weight: Float[Array, "o i"]) -> tuple[Int8[Array, "o i"], Float[Array, "o"]]:
    """Round weight / scale to int8, with the scale that lets the largest of each row be 127."""
    weight = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(weight), axis=1) / LIMIT
    # A row of zeros has any scale; 0 would make it 0 / 0.
    scale = jnp.where(scale == 0, 1, scale)
    return jnp.round(weight / scale[:, None]).astype(jnp.int8), scale


def widened(x: Float[Array, "*b i"], weight: Int8[Array, "o i"]) -> tuple[Array, Array]:
    """Widen the kernel of a product to the dtype of `x`; returns both operands.

    The barrier ties the conversion to its use: else XLA may convert the kernels of all layers ahead of time, and hold
    the copy that int8 is there to save.
    """
    x, weight = jax.lax.optimization_barrier((x, weight))
    return x, weight.astype(x.dtype)

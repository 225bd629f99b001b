"""What a model takes before it is loaded: parameters and memory, from its shape alone."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_lm.models.dream import DreamConfig, parameter_shapes


def parameter_count(config: DreamConfig) -> int:
    """Number of weights, biases included."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def memory_estimate(config: DreamConfig, dtype: DTypeLike, *, batch: int, canvas: int) -> tuple[int, int]:
    """Bytes of the weights, and an estimate of the working memory of one denoising step.

    The estimate counts what lives at the widest point: either the float32 logits and their filtered copy, or
    the activations of one layer (float32 attention scores, and the two feed-forward branches).

    Raises:
        ValueError: batch or canvas is not positive.
    """
    for name, value in (("batch", batch), ("canvas", canvas)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    size = jnp.dtype(dtype).itemsize
    rows = batch * canvas
    logits = 2 * 4 * rows * config.vocab_size
    scores = 2 * 4 * rows * canvas * config.num_attention_heads
    branches = 2 * 4 * rows * config.intermediate_size
    hidden = 4 * size * rows * config.hidden_size
    return parameter_count(config) * size, hidden + max(logits, scores, branches)

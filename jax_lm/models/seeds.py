"""Random keys of seeds of up to 64 bits."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

WORD = 2**32 - 1


def seed_words(seed: int) -> Any:
    """Return the data [2] of the random key of a seed."""
    # 2**32 + 5 -> [1, 5]
    return np.array([seed >> 32 & WORD, seed & WORD], np.uint32)


def seed_key(seed: int) -> PRNGKeyArray:
    """Return the random key of a seed.

    `jax.random.key` reads the low 32 bits alone, unless JAX computes with 64.
    """
    return jax.random.wrap_key_data(seed_words(seed))

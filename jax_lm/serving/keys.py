"""Random keys of requests, drawn on the host.

The event loop and the threads that prepare requests must not wait for an accelerator.
"""

from functools import cache
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt32

from jax_lm.models.seeds import seed_words


@cache
def host_device() -> Any:
    """Return the CPU; None, which is the default device, if JAX may not use it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it
        return None


# One call of the device instead of one for each operation.
fold_words = jax.jit(
    lambda words, index: jax.random.key_data(
        jax.random.fold_in(jax.random.wrap_key_data(words), index)
    )
)


def request_key(seed: int, index: int) -> UInt32[np.ndarray, "2"]:
    """Return the data of `fold_in(key(seed), index)`; a seed may have 64 bits."""
    with jax.default_device(host_device()):
        return np.asarray(fold_words(seed_words(seed), index))

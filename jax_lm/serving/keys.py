"""Random keys of requests, as JAX makes them, without its devices: `jax.random.fold_in` on the host.

The event loop and the threads that prepare requests must not wait for a device.
"""

import numpy as np
from jaxtyping import UInt32

WORD = 2**32 - 1
# Distances of the rotations of Threefry-2x32, and the parity of its key schedule (Salmon et al.,
# "Parallel random numbers: as easy as 1, 2, 3", 2011).
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """Encrypt a block of two words with Threefry-2x32, 20 rounds."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    a, b = (block[0] + key[0]) & WORD, (block[1] + key[1]) & WORD
    for turn in range(5):
        for distance in ROTATIONS[turn % 2]:
            a = (a + b) & WORD
            b = ((b << distance | b >> (32 - distance)) & WORD) ^ a
        a = (a + keys[(turn + 1) % 3]) & WORD
        b = (b + keys[(turn + 2) % 3] + turn + 1) & WORD
    return a, b


def request_key(seed: int, index: int) -> UInt32[np.ndarray, "2"]:
    """Return the data of `fold_in(key(seed), index)`; a seed may have 64 bits."""
    return np.array(threefry((seed >> 32 & WORD, seed & WORD), (0, index)), np.uint32)

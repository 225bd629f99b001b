"""Inputs, settings and models of generations, and counts of what they compile."""

import jax
import jax.numpy as jnp
import numpy as np

from jax_lm.host.compile_clock import compile_clock
from jax_lm.options import GenerationOptions


def greedy(steps=None, **options):
    """Return options of a greedy generation without a nucleus, in `steps` denoising steps."""
    return GenerationOptions(**{"temperature": 0.0, "top_p": None, "num_steps": steps} | options)


def ragged_prompts():
    """Return three left-padded prompts of different lengths, and their mask."""
    rng = np.random.default_rng(0)
    ids, mask = np.full((3, 9), 500), np.zeros((3, 9), int)
    for row, length in enumerate((3, 9, 6)):
        ids[row, -length:], mask[row, -length:] = rng.integers(0, 490, size=length), 1
    return ids, mask


def with_random_weights(sampler, rng):
    """Return a sampler of the same shape with random weights; predictions range from hesitant to
    certain.
    """
    scale = rng.choice([0.5, 1.0, 2.0])

    def drawn(part):
        noise = rng.normal(size=part.shape).astype(np.float32)
        return jnp.asarray(
            1 + 0.1 * noise if part.ndim == 1 else scale * noise / np.sqrt(part.shape[-1])
        )

    return sampler.changed(params=jax.tree.map(drawn, sampler.params))


def tokens_of(state):
    """Return the tokens of a sampler state as a NumPy array."""
    return np.asarray(state.tokens)


def count_compilations(call):
    """Return the number of programs that a call compiles."""
    before = compile_clock().count
    call()
    return compile_clock().count - before

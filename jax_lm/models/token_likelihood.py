"""Log-probabilities of given tokens, without logits of the whole vocabulary for all rows at once.

    log p(token) = logit of the token - log of the sum of e^logit over the vocabulary

The head goes through the vocabulary in blocks, forward and again backward: what exists is [rows, block], and each part
of the head's gradient is complete once it has been computed, also where rows lie on many devices.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_lm import sharding
from jax_lm.models.dream import DreamForCausalLM

LOGIT_BYTES = 2**28
"""Of float32 logits that a device may hold at once; 441 rows of a vocabulary of 152,064."""

Head = dict[str, Array]


def token_log_probs(
    model: DreamForCausalLM, hidden: Float[Array, "b t d"], index: Int[Array, "b t"]
) -> Float[Array, "b t"]:
    """Compute log-probabilities in float32 of tokens, from the last hidden states that predict them."""
    blocks = vocabulary_blocks(model, *index.shape)
    if blocks == 1:
        # Few enough to be kept for the gradient, which then need not compute them again.
        logits = model.logits(hidden)
        own = jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
        return own - jax.nn.logsumexp(logits, axis=-1)
    graph, state = nnx.split(model.head)
    return log_probs_by_block(graph, blocks, nnx.to_pure_dict(state), hidden, index)


def vocabulary_blocks(model: DreamForCausalLM, rows: int, length: int) -> int:
    """Choose in how many blocks the head goes through the vocabulary; they are even, also among devices of `tensor`."""
    sizes = {"data": 1, "fsdp": 1, "tensor": 1} if model.mesh is None else dict(model.mesh.shape)
    vocabulary = model.config.vocab_size // sizes["tensor"]
    for axis in sharding.row_axes(rows, sizes) or ():
        rows //= sizes[axis]
    least = -(-rows * length * vocabulary * 4 // LOGIT_BYTES)
    return next(blocks for blocks in range(min(max(least, 1), vocabulary), vocabulary + 1) if vocabulary % blocks == 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_probs_by_block(
    graph: nnx.GraphDef, blocks: int, head: Head, hidden: Float[Array, "b t d"], index: Int[Array, "b t"]
) -> Float[Array, "b t"]:
    return log_probs_by_block_forward(graph, blocks, head, hidden, index)[0]


def log_probs_by_block_forward(
    graph: nnx.GraphDef, blocks: int, head: Head, hidden: Array, index: Array
) -> tuple[Array, tuple[Head, Array, Array, Array]]:
    def add(sums: tuple[Array, Array, Array], block: Array) -> tuple[tuple[Array, Array, Array], None]:
        largest, total, own = sums
        logits = nnx.merge(graph, head_block(head, blocks, block)).logits(hidden)
        larger = jnp.maximum(largest, jnp.max(logits, axis=-1))
        total = total * jnp.exp(largest - larger) + jnp.sum(jnp.exp(logits - larger[..., None]), axis=-1)
        here = jnp.take_along_axis(logits, (index // blocks)[..., None], axis=-1)[..., 0]
        return (larger, total, jnp.where(index % blocks == block, here, own)), None

    nothing = jnp.zeros(index.shape, jnp.float32)
    (largest, total, own), _ = jax.lax.scan(add, (nothing - jnp.inf, nothing, nothing), jnp.arange(blocks))
    normaliser = largest + jnp.log(total)
    return own - normaliser, (head, hidden, index, normaliser)


def log_probs_by_block_backward(
    graph: nnx.GraphDef, blocks: int, saved: tuple[Head, Array, Array, Array], cotangent: Array
) -> tuple[Any, Array, None]:
    head, hidden, index, normaliser = saved
    trained = {name: leaf for name, leaf in head.items() if jnp.issubdtype(leaf.dtype, jnp.floating)}

    def add(sums: tuple[Head, Array], block: Array) -> tuple[tuple[Head, Array], None]:
        gradients, towards_hidden = sums
        here = head_block(head, blocks, block)

        def logits_of(floats: Head, hidden: Array) -> Array:
            return nnx.merge(graph, here | floats).logits(hidden)

        logits, pull = jax.vjp(logits_of, {name: here[name] for name in trained}, hidden)
        chosen = (index % blocks == block)[..., None] & (jnp.arange(logits.shape[-1]) == (index // blocks)[..., None])
        of_head, of_hidden = pull(cotangent[..., None] * (chosen - jnp.exp(logits - normaliser[..., None])))
        gradients = jax.tree.map(lambda whole, new: whole.at[:, block].set(new), gradients, of_head)
        return (gradients, towards_hidden + of_hidden.astype(jnp.float32)), None

    empty = {name: jnp.zeros_like(split_vocabulary(leaf, blocks)) for name, leaf in trained.items()}
    start = empty, jnp.zeros(hidden.shape, jnp.float32)
    (gradients, towards_hidden), _ = jax.lax.scan(add, start, jnp.arange(blocks))
    none = {name: np.zeros(leaf.shape, jax.dtypes.float0) for name, leaf in head.items()}
    whole = {name: gradient.reshape(head[name].shape) for name, gradient in gradients.items()}
    return none | whole, towards_hidden.astype(hidden.dtype), None


log_probs_by_block.defvjp(log_probs_by_block_forward, log_probs_by_block_backward)


def split_vocabulary(leaf: Array, blocks: int) -> Array:
    """Cut the vocabulary in blocks; block i has tokens i, i + blocks, …, so that every device has some of each."""
    return leaf.reshape(-1, blocks, *leaf.shape[1:])


def head_block(head: Head, blocks: int, block: Array) -> Head:
    """Take one block of a head."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(split_vocabulary(leaf, blocks), block, 1, False), head)

"""Log-probabilities of given tokens, computed without the logits of the whole vocabulary.

    log p(token) = logit[token] - logsumexp(logits over the vocabulary)

The forward and the backward pass iterate over the vocabulary in blocks, so only the logits of one
block exist at a time, [rows, block]. A block sees all rows, so its part of the head's gradient is
final after one visit, also if the rows are sharded over many devices.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array

from jax_lm import sharding
from jax_lm.checkpoints.stored import Arrays
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import Hidden
from jax_lm.models.products import pick
from jax_lm.models.shapes import Tokens, TokenValues

# Upper limit for the float32 logits that a device holds at once: 441 rows of a vocabulary of 152,064
# just fit.
LOGIT_BYTES = 2**28
# The limit in a decoding step. It is twice as large, because no backward pass follows; a canvas of 512
# tokens is then one part.
DECODING_LOGIT_BYTES = 2**29

# Parameters of the head by name; the first axis of each is the vocabulary.
Head = Arrays
# What the forward pass saves for the backward pass: head, hidden states, tokens and normalizers.
Saved = tuple[Head, Array, Array, Array]


def token_log_probs(model: DreamForCausalLM, hidden: Hidden, index: Tokens) -> TokenValues:
    """Compute float32 log-probabilities of tokens.

    Args:
        model: the model whose head is used.
        hidden: last hidden states of the rows that predict the tokens.
        index: ids of the tokens.
    """
    blocks = vocabulary_blocks(model, *index.shape)
    if blocks == 1:
        # All logits fit. Plain autodiff stores them, so the backward pass need not recompute them.
        logits = model.logits(hidden)
        return pick(logits, index) - jax.nn.logsumexp(logits, axis=-1)
    graph, state = nnx.split(model.head)
    return log_probs_by_block(graph, blocks, nnx.to_pure_dict(state), hidden, index)


def logit_bytes(model: DreamForCausalLM, rows: int, length: int) -> int:
    """Return the bytes of the float32 logits [rows, length, v] on each device."""
    shape = sharding.MeshShape.of(model.mesh)
    for axis in sharding.row_axes(rows, shape.sizes) or ():
        rows //= shape.sizes[axis]
    return 4 * rows * length * model.config.vocab_size // shape.tensor


def column_parts(model: DreamForCausalLM, batch: int, columns: int) -> int:
    """Return the number of parts to cut columns into, so that the logits of a part fit the limit.

    The limit is `DECODING_LOGIT_BYTES`. A part has at least one column of each sequence.
    """
    # 16 sequences of 1,024 columns at a vocabulary of 152,064: 9,732,096 bytes a column, 55 columns
    # a part, 19 parts.
    return -(-columns // max(1, DECODING_LOGIT_BYTES // logit_bytes(model, batch, 1)))


def vocabulary_blocks(model: DreamForCausalLM, rows: int, length: int) -> int:
    """Choose the number of blocks that the vocabulary is split into.

    It is the smallest number for which the logits of a block stay below `LOGIT_BYTES` per device,
    and which divides the vocabulary on each device of the `tensor` axis.
    """
    vocabulary = model.config.vocab_size // sharding.MeshShape.of(model.mesh).tensor
    least = -(-logit_bytes(model, rows, length) // LOGIT_BYTES)
    return next(
        blocks
        for blocks in range(min(max(least, 1), vocabulary), vocabulary + 1)
        if vocabulary % blocks == 0
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_probs_by_block(
    graph: nnx.GraphDef, blocks: int, head: Head, hidden: Hidden, index: Tokens
) -> TokenValues:
    return log_probs_by_block_forward(graph, blocks, head, hidden, index)[0]


def log_probs_by_block_forward(
    graph: nnx.GraphDef, blocks: int, head: Head, hidden: Array, index: Array
) -> tuple[Array, Saved]:
    def add(sums, block):
        # Online softmax: `total` is the sum of e^(logit - largest) over the blocks so far. If this
        # block has a larger logit, the sum is rescaled by e^(largest - larger).
        largest, total, token_logits = sums
        logits = nnx.merge(graph, head_block(head, blocks, block)).logits(hidden)
        larger = jnp.maximum(largest, jnp.max(logits, axis=-1))
        total = total * jnp.exp(largest - larger) + jnp.sum(
            jnp.exp(logits - larger[..., None]), axis=-1
        )
        # Token i is column i // blocks of block i % blocks. What is gathered in another block means
        # nothing, and `where` drops it.
        candidates = pick(logits, index // blocks)
        return (larger, total, jnp.where(index % blocks == block, candidates, token_logits)), None

    zeros = jnp.zeros(index.shape, jnp.float32)
    (largest, total, token_logits), _ = lax.scan(
        add, (zeros - jnp.inf, zeros, zeros), jnp.arange(blocks)
    )
    log_normalizer = largest + jnp.log(total)
    return token_logits - log_normalizer, (head, hidden, index, log_normalizer)


def log_probs_by_block_backward(
    graph: nnx.GraphDef, blocks: int, saved: Saved, cotangent: Array
) -> tuple[Any, Array, None]:
    head, hidden, index, log_normalizer = saved
    # An int8 head has no gradient; its float scales have one.
    trained = {
        name: leaf for name, leaf in head.items() if jnp.issubdtype(leaf.dtype, jnp.floating)
    }

    def add(sums, block):
        gradients, d_hidden = sums
        block_params = head_block(head, blocks, block)

        def compute_logits(floats, hidden):
            return nnx.merge(graph, block_params | floats).logits(hidden)

        logits, pull = jax.vjp(
            compute_logits, {name: block_params[name] for name in trained}, hidden
        )
        is_token = (index % blocks == block)[..., None] & (
            jnp.arange(logits.shape[-1]) == (index // blocks)[..., None]
        )
        # d log p(token) / d logit_i = [i is the token] - p_i
        d_head, block_d_hidden = pull(
            cotangent[..., None] * (is_token - jnp.exp(logits - log_normalizer[..., None]))
        )
        gradients = jax.tree.map(lambda all_, new: all_.at[:, block].set(new), gradients, d_head)
        return (gradients, d_hidden + block_d_hidden.astype(jnp.float32)), None

    # The head's gradient is filled block by block; that of the hidden states is summed over the blocks.
    empty = {name: jnp.zeros_like(split_vocabulary(leaf, blocks)) for name, leaf in trained.items()}
    start = empty, jnp.zeros(hidden.shape, jnp.float32)
    (gradients, d_hidden), _ = lax.scan(add, start, jnp.arange(blocks))
    # JAX's cotangent of an integer array has the dtype float0.
    no_gradients = {name: np.zeros(leaf.shape, jax.dtypes.float0) for name, leaf in head.items()}
    d_head = {name: gradient.reshape(head[name].shape) for name, gradient in gradients.items()}
    return no_gradients | d_head, d_hidden.astype(hidden.dtype), None


log_probs_by_block.defvjp(log_probs_by_block_forward, log_probs_by_block_backward)


def split_vocabulary(leaf: Array, blocks: int) -> Array:
    """Split the vocabulary axis into blocks, [v, ...] -> [v / blocks, blocks, ...].

    Block i holds the tokens i, i + blocks, i + 2 * blocks and so on. For 6 tokens and 2 blocks,
    these are [0, 2, 4] and [1, 3, 5]. As blocks are strided, every device of the `tensor` axis,
    which has a contiguous range of tokens, has a share of each block.
    """
    return leaf.reshape(-1, blocks, *leaf.shape[1:])


def head_block(head: Head, blocks: int, block: Array) -> Head:
    """Return one block of the parameters of a head."""
    return jax.tree.map(
        lambda leaf: lax.dynamic_index_in_dim(split_vocabulary(leaf, blocks), block, 1, False), head
    )

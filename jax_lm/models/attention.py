"""Grouped-query attention over a KV cache. Dimension letters: see `jax_lm.models.dream`.

Where a kernel exists and pays off, `attend` avoids writing the [t, s] scores to memory: it uses
JAX's splash attention or blocks of queries on TPUs, and cuDNN's kernel on NVIDIA GPUs.
docs/results/scale has the memory that this saves, as compiled.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jax_lm.models.products import product
from jax_lm.models.shapes import PairMask, Tokens
from jax_lm.sharding import MeshShape, divisors, first_device, row_axes

# Columns of a TPU vector register. The splash kernel needs a head dimension and key blocks that are
# multiples of it.
LANES = 128
# Queries and keys per block of the splash kernel; the first size that divides the sequence is used.
BLOCKS = (512, 384, 256, LANES)
# Upper limit for the float32 scores of one block of queries: half of the VMEM of a TPU v5e.
BLOCK_BYTES = 64 * 2**20
# Lower limit for the queries of a block, even if their scores exceed BLOCK_BYTES.
MIN_BLOCK_QUERIES = 16
# Segment id of the positions that pad a sequence to a multiple of LANES. Samples have ids from 0
# on, and positions outside any sample have -1, so padding shares an id with neither.
PADDING_ID = -2
# Sequence length from which avoiding the scores pays off. In the compiled program, those of shorter
# sequences stay in the VMEM of a v5e anyway. A GPU writes them at any length.
MIN_LENGTH = {"tpu": 1024, "gpu": 256}
# Compute capability from which cuDNN has the kernel.
AMPERE = 8.0
# Largest head dimension that the kernel supports on all of these cards.
MAX_HEAD_DIM = 128


Queries = Float[Array, "b t n h"]
Keys = Float[Array, "b k s h"]
# Cosines or sines of the rotary embedding.
Angles = Float[Array, "b t 1 h"]


class KeyValues(NamedTuple):
    """Keys (after the rotary embedding) and values of one layer."""

    keys: Keys
    values: Keys


class SampleMask(NamedTuple):
    """A mask of packed rows: tokens attend to the tokens of the same sample, and to no others.

    For example, samples [0, 0, 1, 1, 1, -1] are a row of two samples and one padding token.

    Attributes:
        samples: number of the sample that each token belongs to; -1 for padding.
    """

    samples: Tokens


# A number of each key: its position, or the id of its segment.
KeyInts = Int[Array, "b s"]
GivenMask = Bool[Array, "b s"] | PairMask | SampleMask
# None admits all keys.
KeyMask = GivenMask | None
# The attention output, and the keys and values that were attended to.
Attended = tuple[Queries, KeyValues]
Attention = Callable[[Queries, Keys, Keys, KeyMask], Queries]


class WindowOperands(NamedTuple):
    """Rows that are computed anew, and the cache that they attend to.

    Attributes:
        q: queries of the window, before the rotary embedding.
        k: its keys, before the rotary embedding.
        v: its values.
        cos: of its positions.
        sin: of its positions.
        mask: columns of the cache that may be attended to.
        cache: keys and values of all columns, those of the window included.
    """

    q: Queries
    k: Float[Array, "b t k h"]
    v: Float[Array, "b t k h"]
    cos: Angles
    sin: Angles
    mask: KeyMask
    cache: KeyValues


def attend(
    q: Queries, k: Keys, v: Keys, attention_mask: KeyMask, mesh: Mesh | None = None
) -> Queries:
    """Compute attention with the fastest implementation available.

    On a `mesh`, rows are sharded like the hidden states, and heads like the weights.

    Args:
        q: queries.
        k: keys.
        v: values.
        attention_mask: keys that may be attended to, by all queries ([b, s]) or by each
            ([b, t, s]), or a `SampleMask`; None admits all.
        mesh: mesh over which the arrays are sharded; None is one device.

    Returns:
        The attention output [b, t, n, h]. A query that may attend to nothing gets finite numbers
        without meaning.
    """
    implementation = choose_attention(q, k, attention_mask, mesh)
    if implementation is None:
        return attend_in_full(q, k, v, attention_mask)
    if mesh is None:
        return implementation(q, k, v, attention_mask)
    # XLA cannot partition a kernel, so each device runs it on its own rows and heads.
    rows = row_axes(len(q), mesh.shape)
    queries = PartitionSpec(rows, None, "tensor")
    keys = PartitionSpec(rows, "tensor")
    specs = queries, keys, keys, PartitionSpec(rows)
    return jax.shard_map(
        implementation, mesh=mesh, in_specs=specs, out_specs=queries, check_vma=False
    )(q, k, v, attention_mask)


def choose_attention(
    q: Queries, k: Keys, attention_mask: KeyMask, mesh: Mesh | None
) -> Attention | None:
    """Choose an implementation that does not write all scores, for the device of the program.

    Returns None if attention in full is as good: the kernels need bfloat16, and a window that
    attends to a longer cache (t < s) is too narrow for its scores to matter.
    """
    device = first_device(mesh)
    (_, t, _, h), (_, heads, s, _) = q.shape, k.shape
    is_long = t == s and t >= MIN_LENGTH.get(device.platform, t + 1)
    if not is_long or q.dtype != jnp.bfloat16 or heads % MeshShape.of(mesh).tensor:
        return None
    if device.platform == "gpu":
        fits = t % 2 == 0 and h % 8 == 0 and h <= MAX_HEAD_DIM
        return (
            cudnn if fits and has_cudnn() and float(device.compute_capability) >= AMPERE else None
        )
    # The splash kernel takes segment ids. It cannot take a mask that differs between queries and is
    # computed at run time, as the mask of attention annealing is.
    by_sample = (
        attention_mask is None or isinstance(attention_mask, SampleMask) or attention_mask.ndim == 2
    )
    if by_sample and h % LANES == 0:
        return splash
    return attend_in_blocks if t % LANES == 0 else None


def attend_in_full(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Compute attention by two products and a softmax in float32.

    The query heads that share a key head are stacked as further rows of that head, so that keys
    are never repeated in memory.
    """
    b, t, n, h = q.shape
    # For n = 4 query heads and k = 2 key heads: groups = 2, and [b, t, 4, h] -> [b, 2, 2 * t, h].
    groups = n // k.shape[1]
    q = q.reshape(b, t, -1, groups, h).transpose(0, 2, 3, 1, 4).reshape(b, -1, groups * t, h)
    scores = product(q, k) / h**0.5
    if attention_mask is not None:
        admitted = query_mask(attention_mask)
        # A mask per key holds for padded queries too: they attend to the real keys, so that no row
        # of scores is masked whole. A mask per query is repeated for the stacked heads.
        if admitted.shape[1] > 1:
            admitted = jnp.tile(admitted, (1, groups, 1))
        scores = jnp.where(admitted[:, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    y = product(weights, v.swapaxes(2, 3), q.dtype)
    # [b, k, groups * t, h] -> [b, t, n, h]
    return y.reshape(b, -1, groups, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def attend_in_blocks(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Compute attention for one block of queries at a time, and recompute it in the backward pass.

    In the compiled program the scores of a block stay in a TPU's VMEM, unless its blocks would
    then have fewer than MIN_BLOCK_QUERIES queries.
    """
    b, t, n, _ = q.shape
    size = max(
        size
        for size in divisors(t)
        if 4 * b * n * size * k.shape[2] <= BLOCK_BYTES or size <= MIN_BLOCK_QUERIES
    )
    # The gradients of keys and values are summed over the blocks in the dtype that keys and values
    # have outside the loop, so this dtype must be float32.
    keys = k.astype(jnp.float32)
    values = v.astype(jnp.float32)

    @jax.checkpoint
    def attend_block(block):
        return attend_in_full(block[0], keys.astype(q.dtype), values.astype(q.dtype), block[1])

    def split(x):
        # [b, t, ...] -> [t / size, b, size, ...]
        return x.reshape(b, t // size, size, *x.shape[2:]).swapaxes(0, 1)

    blocks = jax.tree.map(split, (q, full_mask(q, k, attention_mask)))
    return jax.lax.map(attend_block, blocks).swapaxes(0, 1).reshape(q.shape)


def full_mask(q: Queries, k: Keys, mask: KeyMask) -> PairMask | None:
    """Expand a mask to one row of keys per query; None stays None and admits all keys."""
    return None if mask is None else jnp.broadcast_to(query_mask(mask), (*q.shape[:2], k.shape[2]))


def query_mask(mask: GivenMask) -> Bool[Array, "b #t s"]:
    """Return which keys may be attended to, per query or once for all queries."""
    if isinstance(mask, SampleMask):
        # [0, 0, 1] -> [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
        return mask.samples[:, :, None] == mask.samples[:, None, :]
    return mask[:, None] if mask.ndim == 2 else mask


def limit_to_blocks(mask: KeyMask, queries: Tokens, keys: KeyInts, block: int) -> PairMask:
    """Limit a mask to the keys in the query's own block and in earlier ones.

    Args:
        mask: keys that may be attended to.
        queries: positions of the queries.
        keys: positions of the keys.
        block: length of a block; 1 is causal attention.
    """
    # block == 2: query 1 attends to keys 0 and 1, query 2 to keys 0 to 3.
    earlier = attends_by_blocks(queries[..., None] // block, keys[:, None] // block)
    return earlier if mask is None else earlier & query_mask(mask)


def attends_by_blocks(
    queries: Int[Array, "*b t 1"],
    keys: Int[Array, "*#b #t s"],
    noisy_queries: Bool[Array, "*#b t 1"] | bool = False,
    noisy_keys: Bool[Array, "*#b #t s"] | bool = False,
) -> Bool[Array, "*b t s"]:
    """Return which keys a query attends to under block-causal attention, in decoding and training.

    Clean tokens attend to the clean tokens of their own and of earlier blocks. In training, each
    block has a noisy copy, which attends to itself and to the clean tokens of earlier blocks
    (BD3LM, arXiv 2503.09573): what it will see when it is decoded.

    Args:
        queries: blocks of the queries.
        keys: blocks of the keys.
        noisy_queries: which queries belong to a noisy copy.
        noisy_keys: which keys do.
    """
    # Blocks [0, 1 | 0, 1], of which the first two are noisy copies:
    #   [1, 0, 0, 0]  noisy block 0 attends to itself
    #   [0, 1, 1, 0]  noisy block 1 also to clean block 0
    #   [0, 0, 1, 0]  clean block 0 to itself
    #   [0, 0, 1, 1]  clean block 1 also to clean block 0
    return jnp.where(noisy_keys, noisy_queries & (keys == queries), keys <= queries - noisy_queries)


def splash(
    q: Queries, k: Keys, v: Keys, attention_mask: KeyMask, *, interpret: bool = False
) -> Queries:
    """Compute attention with JAX's kernel for TPUs, forward and backward.

    The kernel is jax.experimental.pallas.ops.tpu.splash_attention. It does not scale the scores, so
    the queries are scaled instead, which rounds them once more.

    Args:
        q: queries.
        k: keys.
        v: values.
        attention_mask: keys that may be attended to, or a `SampleMask`; None admits all.
        interpret: run the kernel in Pallas' interpreter, on machines without a TPU.
    """
    # The import takes 0.1 s, and only programs for TPUs need it.
    from jax.experimental.pallas.ops.tpu import splash_attention

    _, t, n, h = q.shape
    # t = 1000 -> 24 positions of padding, a length of 1024 and blocks of 512.
    padding = -t % LANES
    q_ids, k_ids = (pad_axis(ids, padding, 1, PADDING_ID) for ids in segment_ids(q, attention_mask))
    scaled = pad_axis((q.astype(jnp.float32) / h**0.5).astype(q.dtype).swapaxes(1, 2), padding, 2)
    block = next(size for size in BLOCKS if (t + padding) % size == 0)
    # Without the option `use_fused_bwd_kernel`, the gradients take two kernels: the fused one would
    # accumulate the gradient of the queries in bfloat16.
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([splash_attention.FullMask((t + padding, t + padding))] * n),
        block_sizes=splash_attention.BlockSizes(
            **dict.fromkeys(
                ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"),
                block,
            )
        ),
        interpret=interpret,
    )
    ids = splash_attention.SegmentIds(q_ids, k_ids)
    y: Any = jax.vmap(kernel)(scaled, pad_axis(k, padding, 2), pad_axis(v, padding, 2), ids)
    return y.swapaxes(1, 2)[:, :t]


def segment_ids(q: Queries, mask: KeyMask) -> tuple[Tokens, KeyInts]:
    """Return segment ids of queries and keys: a query may attend to the keys that share its id."""
    if isinstance(mask, SampleMask):
        return mask.samples, mask.samples
    ones = jnp.ones(q.shape[:2], jnp.int32)
    if mask is None:
        return ones, ones
    # The kernel's gradient is wrong for a query without any key. In a row that is all padding, as
    # fills up a batch, every key is therefore admitted. mask [0, 1, 1] -> [0, 1, 1], but
    # [0, 0, 0] -> [1, 1, 1].
    return ones, (mask | ~jnp.any(mask, axis=1, keepdims=True)).astype(jnp.int32)


def pad_axis(x: Array, count: int, axis: int, value: int = 0) -> Array:
    """Append `count` entries of `value` along an axis."""
    widths = [(0, count if dimension == axis else 0) for dimension in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


def cudnn(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Compute attention with cuDNN's kernel for NVIDIA GPUs, forward and backward.

    The kernel is called through jax.nn.dot_product_attention.
    """
    return differentiable_cudnn(q, k, v, full_mask(q, k, attention_mask))


def call_cudnn(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    """Call cuDNN's kernel, which takes [b, s, k, h] and a mask of each query, [b, 1, t, s]."""
    return jax.nn.dot_product_attention(
        q,
        k.swapaxes(1, 2),
        v.swapaxes(1, 2),
        mask=None if mask is None else mask[:, None],
        implementation="cudnn",
    )


def merged_by_rows(function: Callable) -> Callable:
    """Return the function with a rule for `jax.vmap` that merges the mapped axis into the batch.

    The sampler applies vmap over canvases. JAX's own batching rules of kernels fail if an operand
    is not mapped, or has a dimension of 1.
    """
    batched = jax.custom_batching.custom_vmap(function)

    @batched.def_vmap
    def merge_mapped_axis(size, is_mapped, *operands):
        # [size, b, ...] -> [size * b, ...]
        def merge(x, mapped):
            stacked = x if mapped else jnp.broadcast_to(x, (size, *x.shape))
            return stacked.reshape(-1, *stacked.shape[2:])

        y = batched(*jax.tree.map(merge, tuple(operands), tuple(is_mapped)))
        return jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), y), jax.tree.map(
            lambda _: True, y
        )

    return batched


differentiable_cudnn = jax.custom_vjp(merged_by_rows(call_cudnn))


def cudnn_forward(q: Array, k: Array, v: Array, mask: Array | None) -> tuple[Array, Callable]:
    return jax.vjp(lambda q, k, v: call_cudnn(q, k, v, mask), q, k, v)


def cudnn_backward(gradients: Callable, cotangent: Array) -> tuple[Array, Array, Array, None]:
    # The mask has no gradient.
    return *gradients(cotangent), None


differentiable_cudnn.defvjp(cudnn_forward, cudnn_backward)


@cache
def has_cudnn() -> bool:
    """Whether JAX finds cuDNN.

    It does on machines with a GPU. Compiling for an absent GPU must work without it.
    """
    heads = jax.ShapeDtypeStruct((1, LANES, 1, LANES), jnp.bfloat16)
    try:
        jax.eval_shape(
            partial(jax.nn.dot_product_attention, implementation="cudnn"), heads, heads, heads
        )
    except RuntimeError:
        return False
    return True

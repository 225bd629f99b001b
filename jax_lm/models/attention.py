"""Grouped-query attention, and the keys and values that it runs over. Dimension letters: see `jax_lm.models.dream`.

`attend` never writes the scores of all queries with all keys to memory where something else exists and pays: JAX's
splash attention on TPUs, or blocks of queries, and cuDNN's kernel on NVIDIA GPUs. What that saves, as compiled, is in
docs/results/scale.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jax_lm.models.products import product
from jax_lm.sharding import divisors, row_axes

LANES = 128
"""Columns of a TPU's registers: keys come in blocks of a multiple of it, and so do the numbers of a head."""
BLOCKS = (512, 384, 256, LANES)
"""Queries and keys of a block, the first that divides the sequence."""
BLOCK_BYTES, MIN_BLOCK_QUERIES = 64 * 2**20, 16
"""Of the scores of a block of queries, half of what a v5e's own memory holds; and queries of a block at least."""
PADDING_ID = -2
"""Number of positions that fill a sequence up; those of samples, and of what is no sample, are larger."""
MIN_LENGTH = {"tpu": 1024, "gpu": 256}
"""Positions from which that pays. Below, as compiled, the scores of a row stay in a v5e's own memory anyway;
GPUs write them at any length."""


AMPERE, MAX_HEAD_DIM = 8.0, 128
"""Compute capability from which cuDNN has the kernel, and the size of heads up to which each of these cards does."""


class KeyValues(NamedTuple):
    """Keys (after the rotary embedding) and values of one layer, to which its queries attend."""

    keys: Float[Array, "b k s h"]
    values: Float[Array, "b k s h"]

    def write(self, fresh: "KeyValues", start: Int[Array, ""]) -> "KeyValues":
        """Replace the positions from `start` on by `fresh`."""
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=2) for old, new in zip(self, fresh, strict=True)
        )
        return KeyValues(keys, values)


class SampleMask(NamedTuple):
    """A mask of packed rows: a token attends to all that are of its own sample, by their numbers, and to no other.

    Attributes:
        samples: -1 where there is none, or more.
    """

    samples: Int[Array, "b t"]


KeyMask = Bool[Array, "b s"] | Bool[Array, "b t s"] | SampleMask | None
Queries = Float[Array, "b t n h"]
Keys = Float[Array, "b k s h"]
Attention = Callable[[Queries, Keys, Keys, KeyMask], Queries]


def attend(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask, mesh: Mesh | None = None) -> Queries:
    """Attend to all keys that the mask admits: for all queries, for each, or by samples.

    On a `mesh`, rows and heads are split as the hidden states and the weights are. A query that may attend to nothing
    gets numbers that mean nothing, but are finite.
    """
    lean = choose_attention(q, k, attention_mask, mesh)
    if lean is None:
        return attend_in_full(q, k, v, attention_mask)
    if mesh is None:
        return lean(q, k, v, attention_mask)
    # The compiler cannot split a kernel: each device is told to run it for its own rows and heads.
    rows = row_axes(len(q), mesh.shape)
    queries, keys = PartitionSpec(rows, None, "tensor"), PartitionSpec(rows, "tensor")
    specs = queries, keys, keys, PartitionSpec(rows)
    return jax.shard_map(lean, mesh=mesh, in_specs=specs, out_specs=queries, check_vma=False)(q, k, v, attention_mask)


def choose_attention(q: Queries, k: Keys, attention_mask: KeyMask, mesh: Mesh | None) -> Attention | None:
    """Choose, for the machine that the program is for, what does not write all scores; None is to attend in full.

    Kernels multiply bfloat16. A window that attends to a longer cache is too narrow for its scores to matter.
    """
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    (_, t, _, h), (_, heads, s, _) = q.shape, k.shape
    is_long = t == s and t >= MIN_LENGTH.get(device.platform, t + 1)
    if not is_long or q.dtype != jnp.bfloat16 or (mesh is not None and heads % mesh.shape["tensor"]):
        return None
    if device.platform == "gpu":
        fits = t % 2 == 0 and h % 8 == 0 and h <= MAX_HEAD_DIM
        return cudnn if fits and has_cudnn() and float(device.compute_capability) >= AMPERE else None
    # The kernel for TPUs knows samples, but no mask of each query that is drawn, as that of opening attention is.
    by_sample = attention_mask is None or isinstance(attention_mask, SampleMask) or attention_mask.ndim == 2
    if by_sample and h % LANES == 0:
        return splash
    return attend_in_blocks if t % LANES == 0 else None


def attend_in_full(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Attend by two products and a softmax in float32 between them.

    The query heads of a group become further rows of their key head, so that keys are never repeated.
    """
    b, t, n, h = q.shape
    groups = n // k.shape[1]
    q = q.reshape(b, t, -1, groups, h).transpose(0, 2, 3, 1, 4).reshape(b, -1, groups * t, h)
    scores = product(q, k) / h**0.5
    if attention_mask is not None:
        admitted = query_mask(attention_mask)
        # Where only keys are masked, a padded query sees the real keys, so that no row is empty.
        if admitted.shape[1] > 1:
            admitted = jnp.tile(admitted, (1, groups, 1))
        scores = jnp.where(admitted[:, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    y = product(weights, v.swapaxes(2, 3)).astype(q.dtype)
    return y.reshape(b, -1, groups, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, n, h)


def attend_in_blocks(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Attend in full for some queries at a time, whose scores are made again for the gradient.

    A block is as large as a TPU's own memory holds: as compiled, its scores never leave it.
    """
    b, t, n, _ = q.shape
    size = max(size for size in divisors(t) if 4 * b * n * size * k.shape[2] <= BLOCK_BYTES or size <= MIN_BLOCK_QUERIES)
    # Gradients of keys and values add up over the blocks, in the dtype that these have outside of the loop.
    keys, values = k.astype(jnp.float32), v.astype(jnp.float32)

    @jax.checkpoint
    def attend_block(part: tuple[Queries, Bool[Array, "b t s"] | None]) -> Queries:
        return attend_in_full(part[0], keys.astype(q.dtype), values.astype(q.dtype), part[1])

    def split(x: Array) -> Array:
        return x.reshape(b, t // size, size, *x.shape[2:]).swapaxes(0, 1)

    parts = jax.tree.map(split, (q, full_mask(q, k, attention_mask)))
    return jax.lax.map(attend_block, parts).swapaxes(0, 1).reshape(q.shape)


def full_mask(q: Queries, k: Keys, mask: KeyMask) -> Bool[Array, "b t s"] | None:
    """Say for each query which keys are admitted; None admits all."""
    return None if mask is None else jnp.broadcast_to(query_mask(mask), (*q.shape[:2], k.shape[2]))


def query_mask(mask: Bool[Array, "b s"] | Bool[Array, "b t s"] | SampleMask) -> Bool[Array, "b #t s"]:
    """Say for each query, or once for all, which keys are admitted."""
    if isinstance(mask, SampleMask):
        return mask.samples[:, :, None] == mask.samples[:, None, :]
    return mask[:, None] if mask.ndim == 2 else mask


def splash(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask, *, interpret: bool = False) -> Queries:
    """Attend by JAX's kernel for TPUs (jax.experimental.pallas.ops.tpu.splash_attention), forward and backward.

    Scores are scaled before they are made, which rounds the queries once more.

    Args:
        interpret: run the kernel's program where there is no TPU.
    """
    # Takes a tenth of a second, which only programs for TPUs need.
    from jax.experimental.pallas.ops.tpu import splash_attention

    _, t, n, h = q.shape
    filling = -t % LANES
    q_numbers, k_numbers = (pad_axis(numbers, filling, 1, PADDING_ID) for numbers in segment_ids(q, attention_mask))
    scaled = pad_axis((q.astype(jnp.float32) / h**0.5).astype(q.dtype).swapaxes(1, 2), filling, 2)
    block = next(size for size in BLOCKS if (t + filling) % size == 0)
    # Two kernels for the gradients: the one for all would add up those of queries in bfloat16.
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([splash_attention.FullMask((t + filling, t + filling))] * n),
        block_sizes=splash_attention.BlockSizes(
            **dict.fromkeys(("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"), block)
        ),
        interpret=interpret,
    )
    numbers = splash_attention.SegmentIds(q_numbers, k_numbers)
    y: Any = jax.vmap(kernel)(scaled, pad_axis(k, filling, 2), pad_axis(v, filling, 2), numbers)
    return y.swapaxes(1, 2)[:, :t]


def segment_ids(q: Queries, mask: KeyMask) -> tuple[Int[Array, "b t"], Int[Array, "b s"]]:
    """Number queries and keys, so that a query may attend to the keys of its own number."""
    if isinstance(mask, SampleMask):
        return mask.samples, mask.samples
    ones = jnp.ones(q.shape[:2], jnp.int32)
    if mask is None:
        return ones, ones
    # The kernel's gradient is right only where there is something to attend to: what fills a batch up sees itself.
    return ones, (mask | ~jnp.any(mask, axis=1, keepdims=True)).astype(jnp.int32)


def pad_axis(x: Array, count: int, axis: int, value: int = 0) -> Array:
    """Append so many equal entries along an axis."""
    widths = [(0, count if at == axis else 0) for at in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


def cudnn(q: Queries, k: Keys, v: Keys, attention_mask: KeyMask) -> Queries:
    """Attend by cuDNN's kernel for NVIDIA GPUs (jax.nn.dot_product_attention), forward and backward."""
    return differentiable_cudnn(q, k, v, full_mask(q, k, attention_mask))


def call_cudnn(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
    """Call the kernel, which takes heads after positions, and no mask that is one for all queries."""
    keys, values, admitted = k.swapaxes(1, 2), v.swapaxes(1, 2), None if mask is None else mask[:, None]
    return jax.nn.dot_product_attention(q, keys, values, mask=admitted, implementation="cudnn")


# The sampler maps over canvases: JAX's own rule for that fails if a mask is one for all heads.
batched_cudnn = jax.custom_batching.custom_vmap(call_cudnn)
differentiable_cudnn = jax.custom_vjp(batched_cudnn)


@batched_cudnn.def_vmap
def merge_mapped_axis(size: int, is_mapped: Any, *given: Array | None) -> tuple[Array, bool]:
    """Put what is mapped over into the rows."""

    def rows(x: Array, mapped: bool) -> Array:
        whole = x if mapped else jnp.broadcast_to(x, (size, *x.shape))
        return whole.reshape(-1, *whole.shape[2:])

    y = batched_cudnn(*jax.tree.map(rows, tuple(given), tuple(is_mapped)))
    return y.reshape(size, -1, *y.shape[1:]), True


def cudnn_forward(q: Array, k: Array, v: Array, mask: Array | None) -> tuple[Array, Callable]:
    return jax.vjp(lambda q, k, v: call_cudnn(q, k, v, mask), q, k, v)


def cudnn_backward(gradients: Callable, cotangent: Array) -> tuple[Array, Array, Array, None]:
    return *gradients(cotangent), None


differentiable_cudnn.defvjp(cudnn_forward, cudnn_backward)


@functools.cache
def has_cudnn() -> bool:
    """Tell whether JAX finds cuDNN: with a GPU it does, but to compile for one that is not here nobody needs it."""
    heads = jax.ShapeDtypeStruct((1, LANES, 1, LANES), jnp.bfloat16)
    try:
        jax.eval_shape(functools.partial(jax.nn.dot_product_attention, implementation="cudnn"), heads, heads, heads)
    except RuntimeError:
        return False
    return True

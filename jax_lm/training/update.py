"""One compiled training step: the gradient of a loss over a batch in parts, and the update.

Knows no loss, no model and no loop.
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from jax_lm.checkpoints.stored import Arrays
from jax_lm.config import Fields
from jax_lm.models.graph import IN_ORDER
from jax_lm.models.products import tie_operands
from jax_lm.models.seeds import seed_key
from jax_lm.models.shapes import Scalar
from jax_lm.sharding import first_device

# Numbers of any shape.
Numbers = Float[Array, "*n"]
# Weights by name, nested: {"model": {"layers": {0: {"mlp": ...}}}}.
Params = dict[Any, Any]
# A tree of arrays whose first axis is the rows, with an attribute `tokens` [b, t].
Batch = Any
# Whether a parameter is selected, by its name.
NameTest = Callable[[str], bool]


# Name of the metric by which a loss may scale the optimizer's step.
RATE_SCALE = "rate_scale"


class Mean(NamedTuple):
    """A mean in parts: the sum over some rows, and their weight. The quotient is taken last."""

    total: Numbers
    weight: Numbers

    @property
    def value(self) -> Scalar:
        """The mean over all parts; 0 if there is nothing to average."""
        weight = jnp.sum(self.weight)
        return jnp.sum(self.total) / jnp.where(weight == 0, 1.0, weight)


class LossTerms(NamedTuple):
    """The loss of some rows; that of a batch is the sum of `total` over the sum of `weight`.

    Attributes:
        total: weighted sum over these rows.
        weight: divisor of the total, such as tokens or rows; a constant for the gradient.
        metrics: means, each with a weight of its own, so that no split of a batch changes one;
            for names that start with max_, the maximum over these rows.
    """

    total: Scalar
    weight: Scalar
    metrics: dict[str, Mean | Array]


# A loss of params, batch and key. The key is that of the step and the same for all rows of a batch,
# however it is split. Random numbers of a row follow from it and from a number in the batch
# (`jax.random.fold_in`).
Loss = Callable[[Params, Batch, PRNGKeyArray], LossTerms]


def make_update(
    loss: Loss,
    transform: optax.GradientTransformation,
    rate: optax.Schedule,
    *,
    parts: int,
    dtype: DTypeLike,
    seed: int,
    placement: tuple | None = None,
) -> Callable:
    """Compile the training step.

    Args:
        loss: what to minimise.
        transform: the optimizer.
        rate: learning rate, for the metrics; the transform has its own.
        parts: parts of a batch, computed one after the other.
        dtype: dtype that the loss computes in.
        seed: seed of the loss's random numbers.
        placement: where params and optimizer state lie, from `placements`.

    Returns:
        A function of params, optimizer state, frozen weights, step number and batch. It returns
        new params, new optimizer state and metrics. Params and optimizer state are donated, and
        returned to the same devices.
    """

    def update(params, optimizer, frozen, step, batch):
        # Random numbers follow from seed and step, so that a resumed run draws the same.
        key = jax.random.fold_in(seed_key(seed), step)
        gradients, metrics = gradient(loss, params, frozen, batch, key, parts=parts, dtype=dtype)
        scale = metrics.get(RATE_SCALE, 1.0)
        metrics |= {
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": rate(step - 1) * scale,
        }
        updates, optimizer = transform.update(gradients, optimizer, params)
        if RATE_SCALE in metrics:
            updates = jax.tree.map(lambda leaf: leaf * scale, updates)
        return optax.apply_updates(params, updates), optimizer, metrics

    mesh = jax.tree.leaves(placement)[0].mesh if placement else None
    return jax.jit(
        update,
        donate_argnums=(0, 1),
        out_shardings=placement and (*placement, None),
        compiler_options=IN_ORDER if first_device(mesh).platform == "cpu" else None,
    )


def named_leaves(tree) -> Fields:
    """Return the leaves of a tree by their paths."""
    return {
        jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def placements(params: Params, optimizer: optax.OptState) -> tuple | None:
    """Return shardings that place moments like their parameters, and the rest on every device.

    Returns None if the parameters are not on a mesh.
    """
    # path of each weight -> its sharding
    shardings = named_leaves(params)
    mesh = next(
        (x.sharding.mesh for x in shardings.values() if isinstance(x.sharding, NamedSharding)), None
    )
    if mesh is None:
        return None

    def place(path, leaf):
        # A moment's path ends with that of its weight: [1][0].mu['layers'][0] and ['layers'][0].
        name = jax.tree_util.keystr(path)
        owner = next(
            (x for known, x in shardings.items() if name.endswith(known) and x.shape == leaf.shape),
            None,
        )
        return NamedSharding(mesh, PartitionSpec()) if owner is None else owner.sharding

    return jax.tree_util.tree_map_with_path(place, (params, optimizer))


def gradient(
    loss: Loss,
    params: Params,
    frozen: Params,
    batch: Batch,
    key: PRNGKeyArray,
    *,
    parts: int = 1,
    dtype: DTypeLike = jnp.float32,
) -> tuple[Params, Arrays]:
    """Compute gradient and metrics of a batch's loss.

    The result does not depend on the number of parts, which must divide the rows: each part
    contributes a sum, and the sum of all parts is divided once by their weight.
    """

    def total(params, rows):
        terms = loss(merge_params(in_dtype(frozen, dtype), compute_copy(params, dtype)), rows, key)
        return terms.total, terms

    # sum the gradients of all parts
    differentiate = jax.grad(total, has_aux=True)
    if parts == 1:
        gradients, terms = differentiate(params, batch)
        terms = jax.tree.map(lambda value: value[None], terms)
    else:

        def add(sums, rows):
            # Tied to its rows, the compute copy is made in this loop; TPUs would make it before the
            # loop and keep all of it. On CPUs a tie costs a copy of the weights.
            gradients, terms = differentiate(*tie_operands("tpu", params, rows))
            return jax.tree.map(jnp.add, sums, gradients), terms

        gradients, terms = lax.scan(
            add, jax.tree.map(jnp.zeros_like, params), split_rows(batch, parts)
        )
    # divide once: parts with sums 6 and 3 over 2 and 1 tokens have the mean 9 / 3
    weight = jnp.sum(terms.weight)
    # If every row is excluded, the gradient is zero and not 0 / 0.
    weight = jnp.where(weight == 0, 1.0, weight)
    metrics = {
        name: m.value if isinstance(m, Mean) else jnp.max(m) for name, m in terms.metrics.items()
    }
    return jax.tree.map(lambda g: g / weight, gradients), {
        "loss": jnp.sum(terms.total) / weight
    } | metrics


def split_rows(batch: Batch, parts: int) -> Batch:
    """Split rows into `parts`; part i takes rows i, i + parts, ...

    So every part has rows of every device. 6 rows in 2 parts are 0 2 4 and 1 3 5.

    Raises:
        ValueError: `parts` does not divide the rows.
    """

    def split(leaf):
        if leaf.shape[0] % parts:
            raise ValueError(
                f"accumulation in parts={parts}: must divide the {leaf.shape[0]} rows of a batch"
            )
        # [0, 1, 2, 3, 4, 5] -> [[0, 1], [2, 3], [4, 5]] -> [[0, 2, 4], [1, 3, 5]]
        return jnp.reshape(leaf, (-1, parts, *leaf.shape[1:])).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def in_dtype(params, dtype: DTypeLike) -> Any:
    """Cast float leaves to `dtype`; leave others, such as int8 weights, as they are."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )


@partial(jax.jit, static_argnames="dtype")
def compute_copy(params: Params, dtype: DTypeLike) -> Params:
    """Copy trained weights to the dtype that losses and samplers compute in.

    Gradients pass through. Rounding to bfloat16 is stochastic. With rounding to nearest, a weight
    that was loaded from bfloat16 would not change until it has moved by half a step, 1/512 of its
    size, which takes hundreds of updates at the learning rates of fine-tuning. The random draw
    depends only on the weight's name and index. So equal weights give equal copies on any mesh,
    and numbers that bfloat16 can represent do not change.
    """

    def copy(path, weights):
        if weights.dtype == jnp.float32 and jnp.dtype(dtype) == jnp.bfloat16:
            return stochastically_rounded(weights, zlib.crc32(jax.tree_util.keystr(path).encode()))
        return in_dtype(weights, dtype)

    return jax.tree_util.tree_map_with_path(copy, params)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def stochastically_rounded(weights: Numbers, salt: int) -> Array:
    """Round float32 to bfloat16 at random, such that the mean is exact.

    A number a quarter of a step above its lower neighbour is rounded up in one of four draws. The
    random draw is a hash of salt and index.
    """
    # Number of each element: in a [2, 3] array, element [1, 2] is 1 * 3 + 2 = 5.
    hashed = jnp.zeros(weights.shape, jnp.uint32)
    for axis, size in enumerate(weights.shape):
        hashed = hashed * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, weights.shape, axis)
    hashed ^= jnp.uint32(salt)
    # The finalizer of MurmurHash3.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = (hashed ^ (hashed >> shift)) * jnp.uint32(factor)
    # bfloat16 is the upper half of float32. Adding a draw from 0 to 0xFFFF to the lower half
    # carries into the upper one with probability lower / 0x10000.
    bits = lax.bitcast_convert_type(weights, jnp.uint32) + ((hashed ^ (hashed >> 16)) & 0xFFFF)
    upper = lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(weights), upper, weights.astype(jnp.bfloat16))


@stochastically_rounded.defjvp
def _(salt: int, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    return stochastically_rounded(*primals, salt), tangents[0].astype(jnp.bfloat16)


def merge_params(first: Params, second: Params) -> Params:
    """Merge two nested dicts."""
    # {"a": {"b": 1}} and {"a": {"c": 2}} -> {"a": {"b": 1, "c": 2}}
    return unflatten_dict(flatten_dict(first) | flatten_dict(second))


def partition(tree: Params, belongs: NameTest) -> tuple[Params, Params]:
    """Split a nested dict into the leaves whose dotted names satisfy `belongs`, and the others."""
    # {"a": {"b": 1, "c": 2}} with belongs(name) = name.endswith("c") -> {"a": {"c": 2}} and
    # {"a": {"b": 1}}
    chosen, others = {}, {}
    for path, leaf in flatten_dict(tree).items():
        part = chosen if belongs(".".join(map(str, path))) else others
        part[path] = leaf
    return unflatten_dict(chosen), unflatten_dict(others)

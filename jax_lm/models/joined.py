"""Products of one input, joined for decoding on a GPU.

    model = join_on_gpu(DreamForCausalLM.from_pretrained(folder))

q, k and v become one matrix, and gate and up another. The time of a step over few rows goes into
launching kernels and reading weights, so it gains from fewer and larger products. XLA does not do
this by itself: it copies the weights of q, k and v next to each other at every step to make one
cuBLAS call, and does not join gate and up. TPUs gain nothing (docs/results/compiled). Only the
model of a sampler is joined: training, adapters and files have the published layers.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array, Float

from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import (
    DreamAttention,
    DreamLinear,
    DreamMLP,
    Hidden,
    LinearInput,
    Projections,
)
from jax_lm.sharding import MeshShape, first_device


class JoinedLinear(DreamLinear):
    """Linear layers that share their input, computed as one product."""

    def __init__(self, layers: Sequence[DreamLinear], shards: int):
        """Join layers; each of `shards` devices along `tensor` gets its part of every layer."""
        self.shards = shards
        self.sizes = tuple(len(layer.weight[...]) for layer in layers)

        def join_parameters(name):
            if getattr(layers[0], name) is None:
                return None
            # Outputs q0 to q3, k0 and k1 on two devices: [q0 q1 k0 | q2 q3 k1].
            values = [getattr(layer, name)[...] for layer in layers]
            split = [each.reshape(shards, len(each) // shards, *each.shape[1:]) for each in values]
            joined = jnp.concatenate(split, axis=1).reshape(-1, *values[0].shape[1:])
            sharding = getattr(values[0], "sharding", None)
            if isinstance(sharding, NamedSharding):
                joined = jax.device_put(joined, sharding)
            return nnx.Param(joined)

        self.weight = join_parameters("weight")
        self.bias = join_parameters("bias")
        self.scale = nnx.data(join_parameters("scale"))
        self.group_scale = nnx.data(join_parameters("group_scale"))

    def outputs(self, x: LinearInput) -> Sequence[Float[Array, "*b _"]]:
        """Compute the output of each layer, in the order in which they were joined."""
        # One product gives [q0 q1 k0 | q2 q3 k1]: split each device's part into q and k.
        y = self(x).reshape(*x.shape[:-1], self.shards, -1)
        borders = np.cumsum(self.sizes[:-1]) // self.shards
        return [part.reshape(*x.shape[:-1], -1) for part in jnp.split(y, borders, axis=-1)]


class JoinedAttention(DreamAttention):
    """Attention that computes queries, keys and values as one product."""

    def __init__(self, attention: DreamAttention, layers: Sequence[DreamLinear], shards: int):
        self.head_dim = attention.head_dim
        self.key_heads = attention.key_heads
        self.qkv_proj = JoinedLinear(layers, shards)
        self.q_norm = attention.q_norm
        self.k_norm = attention.k_norm
        self.o_proj = attention.o_proj

    def project(self, x: Hidden) -> Projections:
        return self.qkv_proj.outputs(x)


class JoinedMLP(DreamMLP):
    """Feed-forward network that computes gate and up projection as one product."""

    def __init__(self, mlp: DreamMLP, layers: Sequence[DreamLinear], shards: int):
        self.gate_up_proj = JoinedLinear(layers, shards)
        self.down_proj = mlp.down_proj

    def project(self, x: Hidden) -> Projections:
        return self.gate_up_proj.outputs(x)


def join_on_gpu(model: DreamForCausalLM) -> DreamForCausalLM:
    """Join the products of a model in place if it is on GPUs, and return it. For decoding only."""
    return join(model) if first_device(model.mesh).platform == "gpu" else model


def join(model: DreamForCausalLM) -> DreamForCausalLM:
    """Join the products of a model in place, and return it.

    Layers with adapters are not joined, nor are q, k and v if `tensor` does not divide the number
    of key heads.
    """
    shards = MeshShape.of(model.mesh).tensor

    def are_plain(layers):
        return all(type(layer) is DreamLinear for layer in layers)

    # One layer at a time, so that at most one layer's weights are in memory twice.
    for layer in model.model.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        layers = [attention.q_proj, attention.k_proj, attention.v_proj]
        if are_plain(layers) and attention.key_heads % shards == 0:
            layer.self_attn = JoinedAttention(attention, layers, shards)
        layers = [mlp.gate_proj, mlp.up_proj]
        if are_plain(layers):
            layer.mlp = JoinedMLP(mlp, layers, shards)
    return model

"""Products of one input, joined for decoding on a GPU.

    model = join_on_gpu(DreamForCausalLM.from_pretrained(folder))

q, k and v become one matrix, and gate and up another. A step over few rows is bound by launching
kernels and reading weights, so it gains from fewer and larger products. XLA does not get there by
itself: for q, k and v it copies the three weights next to each other at every step, to make one
cuBLAS call, and gate and up it leaves apart. TPUs gain nothing (docs/results/compiled). Only the
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
from jax_lm.models.layers import DreamAttention, DreamLinear, DreamMLP, Hidden, Projections
from jax_lm.sharding import MeshShape, first_device


class JoinedLinear(DreamLinear):
    """Linear layers of one input as one product; `split` computes it and splits the result."""

    def __init__(self, layers: Sequence[DreamLinear], shards: int):
        """Join layers; each of `shards` devices along `tensor` has its part of every layer."""
        self.shards = shards
        self.sizes = tuple(len(layer.weight[...]) for layer in layers)

        def join(name: str):
            if getattr(layers[0], name) is None:
                return None
            # Outputs q0 to q3, k0 and k1 on two devices: [q0 q1 k0 | q2 q3 k1].
            parts = [getattr(layer, name)[...] for layer in layers]
            split = [part.reshape(shards, len(part) // shards, *part.shape[1:]) for part in parts]
            joined = jnp.concatenate(split, axis=1).reshape(-1, *parts[0].shape[1:])
            placed = getattr(parts[0], "sharding", None)
            if isinstance(placed, NamedSharding):
                joined = jax.device_put(joined, placed)
            return nnx.Param(joined)

        self.weight = join("weight")
        self.bias = join("bias")
        self.scale = nnx.data(join("scale"))
        self.group_scale = nnx.data(join("group_scale"))

    def split(self, x: Float[Array, "*b i"]) -> Sequence[Float[Array, "*b _"]]:
        """Compute the outputs of each layer."""
        y = self(x).reshape(*x.shape[:-1], self.shards, -1)
        borders = np.cumsum(self.sizes[:-1]) // self.shards
        return [part.reshape(*x.shape[:-1], -1) for part in jnp.split(y, borders, axis=-1)]


class JoinedAttention(DreamAttention):
    """Attention whose queries, keys and values are one product."""

    def __init__(self, attention: DreamAttention, layers: Sequence[DreamLinear], shards: int):
        self.head_dim = attention.head_dim
        self.key_heads = attention.key_heads
        self.qkv_proj = JoinedLinear(layers, shards)
        self.q_norm = attention.q_norm
        self.k_norm = attention.k_norm
        self.o_proj = attention.o_proj

    def project(self, x: Hidden) -> Projections:
        return self.qkv_proj.split(x)


class JoinedMLP(DreamMLP):
    """Feed-forward network whose gate and up projections are one product."""

    def __init__(self, mlp: DreamMLP, layers: Sequence[DreamLinear], shards: int):
        self.gate_up_proj = JoinedLinear(layers, shards)
        self.down_proj = mlp.down_proj

    def project(self, x: Hidden) -> Projections:
        return self.gate_up_proj.split(x)


def join_on_gpu(model: DreamForCausalLM) -> DreamForCausalLM:
    """Join the products of a model in place if it is on GPUs, for decoding only; returns it."""
    return join(model) if first_device(model.mesh).platform == "gpu" else model


def join(model: DreamForCausalLM) -> DreamForCausalLM:
    """Join the products of a model in place; returns it.

    Layers with adapters stay apart, as do q, k and v if `tensor` does not divide the key heads.
    """
    shards = MeshShape.of(model.mesh).tensor

    def are_plain(layers: Sequence[nnx.Module]):
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

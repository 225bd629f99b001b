"""Low-rank adapters: y = W x + scale B A x, with A and B trained and W as it was.

Any layer that maps [*, in] to [*, out] and has a `weight` can carry one. Their files are PEFT's
(`jax_lm.checkpoints.peft`). Knows models, nothing of training.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jax_lm.checkpoints import peft
from jax_lm.checkpoints.loading import CheckpointTensors, LoadSpec, load_tensors
from jax_lm.checkpoints.peft import ATTENTION, LINEAR, LoraConfig, NamedBase, StoredAdapter
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.products import product
from jax_lm.sharding import gather_to_host, tree_shardings


class LoraLinear(nnx.Module):
    """A linear layer with an adapter; B starts at zero, so that nothing changes before it is trained."""

    def __init__(self, base: Any, rank: int, scale: float, key: Array) -> None:
        out_size, in_size = base.weight[...].shape
        bound = in_size**-0.5
        self.base = base
        self.lora_a = nnx.Param(jax.random.uniform(key, (rank, in_size), minval=-bound, maxval=bound))
        self.lora_b = nnx.Param(jnp.zeros((out_size, rank)))
        self.scale = scale

    def __call__(self, x: Float[Array, "*b i"], dtype: DTypeLike | None = None) -> Float[Array, "*b o"]:
        low = product(x, self.lora_a[...].astype(x.dtype)).astype(x.dtype)
        added = product(low, self.lora_b[...].astype(x.dtype)) * self.scale
        return (self.base(x, dtype=jnp.float32) + added).astype(dtype or x.dtype)

    @property
    def weight(self) -> Any:
        return self.base.weight


def add_lora(model: DreamForCausalLM, config: LoraConfig, seed: int) -> None:
    """Give the targeted layers of a model adapters, in place; ValueError if there is no such layer."""
    key = jax.random.key(seed)
    targeted = [(number, path) for number, path in linear_paths(model) if config.carries(path)]
    if not targeted:
        raise ValueError(f"lora_targets={config.targets!r}: no layer of the model is meant")
    for number, path in targeted:
        name = path.rpartition(".")[2]
        layer = model.model.layers[number]
        block = layer.self_attn if name in ATTENTION else layer.mlp
        folded = jax.random.fold_in(jax.random.fold_in(key, number), LINEAR.index(name))
        setattr(block, name, LoraLinear(getattr(block, name), config.rank_of(path), config.scale_of(path), folded))


def linear_paths(model: DreamForCausalLM) -> Iterator[tuple[int, str]]:
    """List the linear layers of the decoder by their dotted paths, each with the number of its decoder layer."""
    for number in range(len(model.model.layers)):
        for name in LINEAR:
            yield number, f"model.layers.{number}.{'self_attn' if name in ATTENTION else 'mlp'}.{name}"


def is_lora(name: str) -> bool:
    """Tell whether a parameter belongs to an adapter."""
    return name.endswith(("lora_a", "lora_b"))


def save_adapter(
    model: DreamForCausalLM, folder: Path, config: LoraConfig, base: NamedBase, *, dtype: DTypeLike = jnp.float32
) -> None:
    """Write the adapters of a model, and the name of what is below them; of several hosts, the first one writes."""
    adapter = {name: value.astype(dtype) for name, value in parameters(model).items() if is_lora(name)}
    tensors = {name: jax.device_get(gather_to_host(value)) for name, value in adapter.items()}
    if jax.process_index() == 0:
        peft.save(folder, tensors, config, base)


def load_adapter(model: DreamForCausalLM, adapter: StoredAdapter) -> None:
    """Give a model an adapter, in place and in float32; CheckpointError if it is of another shape or not whole."""
    add_lora(model, adapter.config, seed=0)
    shapes = {name: value.shape for name, value in parameters(model).items() if is_lora(name)}
    template = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    shardings = tree_shardings(template, model.config, model.mesh) if model.mesh else {}
    stored = CheckpointTensors(adapter.files[1], adapter.tensors)
    tensors = load_tensors(stored, LoadSpec(shapes=shapes, dtype=jnp.float32, shardings=shardings))
    for path, layer in adapters(model):
        # Set as wholes: assigned into, they would stay on the device of the fresh ones.
        layer.lora_a, layer.lora_b = nnx.Param(tensors[f"{path}.lora_a"]), nnx.Param(tensors[f"{path}.lora_b"])


def merge(model: DreamForCausalLM) -> None:
    """Add the adapters of a model to its weights, in place and in their dtype; ValueError if the weights are int8."""
    for path, adapter in adapters(model):
        weight = adapter.base.weight
        if weight[...].dtype == jnp.int8:
            raise ValueError(f"{path}: int8 weights cannot take an adapter; merge into the float checkpoint")
        change = adapter.scale * adapter.lora_b[...] @ adapter.lora_a[...]
        weight[...] = (weight[...].astype(jnp.float32) + change).astype(weight[...].dtype)
        owner: Any = model
        *parents, last = path.split(".")
        for parent in parents:
            owner = owner[int(parent)] if parent.isdecimal() else getattr(owner, parent)
        setattr(owner, last, adapter.base)


def adapters(model: DreamForCausalLM) -> Sequence[tuple[str, LoraLinear]]:
    """List the layers that carry an adapter, by their dotted path."""
    return [(".".join(map(str, path)), node) for path, node in nnx.iter_graph(model) if isinstance(node, LoraLinear)]

"""Low-rank adapters: y = W x + (alpha / rank) B A x, with A and B trained and W as it was.

Any layer that maps [*, in] to [*, out] and has a `weight` can carry one. Files: adapter.safetensors with
`<layer>.lora_a` [rank, in] and `<layer>.lora_b` [out, rank], and adapter.json. Knows models, nothing of training.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float
from safetensors.numpy import save_file

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.loading import CheckpointTensors, WantedTensors, load_tensors
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.products import product
from jax_lm.sharding import whole

WEIGHTS, CONFIG = "adapter.safetensors", "adapter.json"
ATTENTION, FEED_FORWARD = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Size of adapters, and the layers that carry one.

    Attributes:
        rank: of the product B A.
        alpha: the product is scaled by alpha / rank; twice the rank if not given.
        targets: names of the layers that carry one.
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = ATTENTION + FEED_FORWARD

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora_rank={self.rank}: must be at least 1")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise ValueError(f"lora_alpha={self.alpha}: must be positive")
        unknown = set(self.targets) - set(ATTENTION + FEED_FORWARD)
        if unknown or not self.targets:
            raise ValueError(f"lora_targets={self.targets}: must be some of {', '.join(ATTENTION + FEED_FORWARD)}")

    @property
    def scale(self) -> float:
        return 2.0 if self.alpha is None else self.alpha / self.rank


class LoraLinear(nnx.Module):
    """A linear layer with an adapter; B starts at zero, so that nothing changes before it is trained."""

    def __init__(self, base: Any, config: LoraConfig, key: Array) -> None:
        out_size, in_size = base.weight[...].shape
        bound = in_size**-0.5
        self.base = base
        self.lora_a = nnx.Param(jax.random.uniform(key, (config.rank, in_size), minval=-bound, maxval=bound))
        self.lora_b = nnx.Param(jnp.zeros((out_size, config.rank)))
        self.scale = config.scale

    def __call__(self, x: Float[Array, "*b i"], dtype: DTypeLike | None = None) -> Float[Array, "*b o"]:
        low = product(x, self.lora_a[...].astype(x.dtype)).astype(x.dtype)
        added = product(low, self.lora_b[...].astype(x.dtype)) * self.scale
        return (self.base(x, dtype=jnp.float32) + added).astype(dtype or x.dtype)

    @property
    def weight(self) -> Any:
        return self.base.weight


def add_lora(model: DreamForCausalLM, config: LoraConfig, seed: int) -> None:
    """Give the targeted layers of a model adapters, in place."""
    key = jax.random.key(seed)
    for number, layer in enumerate(model.model.layers):
        for index, name in enumerate(ATTENTION + FEED_FORWARD):
            if name in config.targets:
                block = layer.self_attn if name in ATTENTION else layer.mlp
                folded = jax.random.fold_in(jax.random.fold_in(key, number), index)
                setattr(block, name, LoraLinear(getattr(block, name), config, folded))


def is_lora(name: str) -> bool:
    """Tell whether a parameter belongs to an adapter."""
    return name.endswith(("lora_a", "lora_b"))


def save_adapter(model: DreamForCausalLM, folder: Path, config: LoraConfig, *, dtype: DTypeLike = jnp.float32) -> None:
    """Write the adapters of a model; each file appears whole or not at all. Of several hosts, the first one writes."""
    adapter = {name: value.astype(dtype) for name, value in parameters(model).items() if is_lora(name)}
    tensors = {name: jax.device_get(whole(value)) for name, value in adapter.items()}
    if jax.process_index() > 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with huggingface.replacing(folder / WEIGHTS) as path:
        save_file(tensors, path)
    with huggingface.replacing(folder / CONFIG) as path:
        path.write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")


def load_adapter(model: DreamForCausalLM, folder: Path) -> None:
    """Give a model the adapters of a folder, in place; CheckpointError if it holds none, or of another shape."""
    fields = huggingface.read_json(folder, CONFIG)
    try:
        config = LoraConfig(rank=fields["rank"], alpha=fields["alpha"], targets=tuple(fields["targets"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG}: {error!r}") from error
    add_lora(model, config, seed=0)
    shapes = {name: value.shape for name, value in parameters(model).items() if is_lora(name)}
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {WEIGHTS}")
    stored = CheckpointTensors(path, {tensor.name: tensor for tensor in huggingface.headers(path)})
    tensors = load_tensors(stored, WantedTensors(shapes=shapes, dtype=jnp.float32))
    for path, adapter in adapters(model):
        adapter.lora_a[...], adapter.lora_b[...] = tensors[f"{path}.lora_a"], tensors[f"{path}.lora_b"]


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

"""Low-rank adapters: y = W x + scale B A x, where A and B are trained and W is frozen.

Any layer that maps [*, in] to [*, out] and has a `weight` can carry an adapter. Files are in PEFT's
layout (`jax_lm.checkpoints.peft`). This module knows about models, but not about training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array

from jax_lm.checkpoints import peft
from jax_lm.checkpoints.loading import CheckpointTensors, LoadSpec, load_tensors
from jax_lm.checkpoints.peft import ATTENTION, LINEAR, LoraConfig, NamedBase, StoredAdapter
from jax_lm.host.distributed import is_first
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.layers import ADAPTED_ROWS, LinearInput, LinearOutput
from jax_lm.models.products import product
from jax_lm.models.seeds import seed_key
from jax_lm.sharding import gather_to_host, tree_shardings


class LoraLinear(nnx.Module):
    """A linear layer with an adapter. B starts at zero, so an untrained adapter changes nothing."""

    def __init__(self, base, rank: int, scale: float, key: Array):
        out_size, in_size = base.shape
        # The initialization of PEFT: kaiming_uniform with a = sqrt(5), a bound of 1 / sqrt(in).
        bound = in_size**-0.5
        self.base = base
        self.lora_a = nnx.Param(
            jax.random.uniform(key, (rank, in_size), minval=-bound, maxval=bound)
        )
        self.lora_b = nnx.Param(jnp.zeros((out_size, rank)))
        self.scale = scale

    def __call__(self, x: LinearInput, dtype: DTypeLike | None = None) -> LinearOutput:
        # [*, in] -> [*, rank] -> [*, out]; both summands are in float32, and their sum is rounded.
        low = product(x, self.lora_a[...].astype(x.dtype), x.dtype)
        added = product(low, self.lora_b[...].astype(x.dtype)) * self.scale
        if (rows := ADAPTED_ROWS.get()) is not None:
            added = jnp.where(rows[..., None], added, 0)
        return (self.base(x, dtype=jnp.float32) + added).astype(dtype or x.dtype)

    @property
    def weight(self) -> Any:
        return self.base.weight


def add_lora(model: DreamForCausalLM, config: LoraConfig, seed: int):
    """Add adapters to the targeted layers of a model, in place.

    Args:
        model: the model.
        config: rank, scale and layers of the adapters.
        seed: seed of the random values of A.

    Raises:
        ValueError: the configuration targets no layer of the model, or masks that it does not have.
    """
    key = seed_key(seed)
    has_target = False
    for number, layer in enumerate(model.model.layers):
        for index, name in enumerate(LINEAR):
            part = "self_attn" if name in ATTENTION else "mlp"
            path = f"model.layers.{number}.{part}.{name}"
            if not config.carries(path):
                continue
            has_target = True
            block = getattr(layer, part)
            # The key depends on the layer alone, so other targets leave the values of A unchanged.
            folded = jax.random.fold_in(jax.random.fold_in(key, number), index)
            rank, scale = config.rank_of(path), config.scale_of(path)
            setattr(block, name, LoraLinear(getattr(block, name), rank, scale, folded))
    if not has_target:
        raise ValueError(f"lora_targets={config.targets!r}: no layer of the model is meant")
    if config.on_masks:
        if model.config.mask_token_id is None:
            raise ValueError("lora_on_masks=True: the model has no mask token")
        model.model.adapted_token = model.config.mask_token_id


def is_lora(name: str) -> bool:
    """Whether a parameter belongs to an adapter."""
    return name.endswith(("lora_a", "lora_b"))


def save_adapter(
    model: DreamForCausalLM,
    folder: Path,
    config: LoraConfig,
    base: NamedBase,
    *,
    dtype: DTypeLike = jnp.float32,
):
    """Write the adapters of a model, with the name of their base model.

    With several hosts, every host must call this, and the first one writes.

    Args:
        model: the model with adapters.
        folder: where to write.
        config: configuration of the adapters.
        base: the model that the adapters were trained on.
        dtype: dtype of the stored tensors.
    """
    # Gathering is a collective operation, so it must run on every host.
    adapter = {
        name: value.astype(dtype) for name, value in parameters(model).items() if is_lora(name)
    }
    tensors = {name: jax.device_get(gather_to_host(value)) for name, value in adapter.items()}
    if is_first():
        peft.save(folder, tensors, config, base)


def load_adapter(model: DreamForCausalLM, adapter: StoredAdapter):
    """Add a stored adapter to a model, in place and in float32.

    Raises:
        CheckpointError: tensors of the adapter are missing, unknown or of the wrong shape.
    """
    # Add the layers first: they define shapes and shardings. Their values are replaced below.
    add_lora(model, adapter.config, seed=0)
    shapes = {name: value.shape for name, value in parameters(model).items() if is_lora(name)}
    template = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    shardings = tree_shardings(template, model.config, model.mesh) if model.mesh else {}
    stored = CheckpointTensors(adapter.files[1], adapter.tensors)
    tensors = load_tensors(stored, LoadSpec(shapes=shapes, dtype=jnp.float32, shardings=shardings))
    for path, layer in adapters(model):
        # New Params, because assigning into the existing ones would keep their initial sharding.
        layer.lora_a = nnx.Param(tensors[f"{path}.lora_a"])
        layer.lora_b = nnx.Param(tensors[f"{path}.lora_b"])


def merge(model: DreamForCausalLM):
    """Merge the adapters of a model into its weights, in place and in the dtype of the weights.

    Raises:
        ValueError: the weights are quantized, or the adapters act on masks alone.
    """
    require_mergeable(on_masks=model.model.adapted_token is not None)
    for path, adapter in adapters(model):
        weight = adapter.base.weight
        if adapter.base.scale is not None:
            raise ValueError(
                f"{path}: quantized weights cannot take an adapter; merge into the float checkpoint"
            )
        # B [out, rank] times A [rank, in] has the shape of W, [out, in].
        change = adapter.scale * product(adapter.lora_b[...], adapter.lora_a[...].T)
        weight[...] = (weight[...].astype(jnp.float32) + change).astype(weight[...].dtype)
        # Put the plain layer back in place of its `LoraLinear`.
        _, _, number, part, name = path.split(".")  # model.layers.0.mlp.up_proj
        setattr(getattr(model.model.layers[int(number)], part), name, adapter.base)


def require_mergeable(*, on_masks: bool):
    """Raise ValueError for adapters that act on masks alone."""
    if on_masks:
        raise ValueError(
            "adapters that act on masks alone cannot be merged into weights, which act on all tokens"
        )


def adapters(model: DreamForCausalLM) -> Sequence[tuple[str, LoraLinear]]:
    """Return the layers that carry an adapter, with their dotted paths."""
    return [
        (".".join(map(str, path)), node)
        for path, node in nnx.iter_graph(model)
        if isinstance(node, LoraLinear)
    ]

"""Adapters as if they had been trained."""

import jax

from jax_lm.checkpoints.peft import LoraConfig, NamedBase
from jax_lm.model_source import folder_fingerprint
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import adapters, add_lora, save_adapter


def save_trained(base, folder, *, rank, seed):
    """Save an adapter that changes the answers of a model."""
    model, config = (
        DreamForCausalLM.from_pretrained(base),
        LoraConfig(rank=rank, targets=("q_proj", "down_proj")),
    )
    add_lora(model, config, seed=seed)
    for number, (_, layer) in enumerate(adapters(model)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        layer.lora_b[...] = 2.0 * jax.random.normal(key, layer.lora_b[...].shape)
    save_adapter(model, folder, config, NamedBase(str(base), None, folder_fingerprint(base)))

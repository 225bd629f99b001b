"""Models of `family_cases`, and models that take another family for their own."""

import dataclasses
import json

import jax.numpy as jnp
from family_cases import random_tensor
from flax import nnx
from tokenizers import AddedToken, models

from jax_lm.config import DreamConfig
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters
from jax_lm.templates import GAP_TOKENS
from jax_lm.tokenizer import BYTES_OF_LETTERS, DIFFUSION_PAD, END_OF_TEXT, byte_level_bpe


def build(config):
    """A model with the random tensors of a case."""
    tensors = {
        name: jnp.asarray(random_tensor(name, shape))
        for name, shape in parameter_shapes(config).items()
    }
    return DreamForCausalLM.from_tensors(config, tensors)


def with_rule(model, **change):
    """A model that takes another family for its own."""

    class Mistaken(DreamConfig):
        @property
        def family(self):
            return dataclasses.replace(super().family, **change)

    config = Mistaken(**dataclasses.asdict(model.config))
    return DreamForCausalLM.from_tensors(config, parameters(model))


def write_random(folder, family, **sizes):
    """Write random weights in bfloat16 with the files of a row of families.toml; returns the folder.

    The tokenizer has the bytes, the family's mask token (`<M>` if it names none), and gap tokens.
    """
    kind, architecture = next(iter(family.types.items()))
    mask = [family.mask_token or "<M>"] if family.is_diffusion else []
    special = [END_OF_TEXT, DIFFUSION_PAD, *GAP_TOKENS, *mask]
    words = byte_level_bpe(models.BPE(vocab=dict(BYTES_OF_LETTERS), merges=[]))
    words.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    ids = {"eos_token_id": END_OF_TEXT, "pad_token_id": DIFFUSION_PAD}
    config = DreamConfig(
        model_type=kind,
        block_size=family.block_size,
        is_causal=family.is_causal or None,
        # heads that are wider than hidden_size / num_attention_heads, as Qwen3 has them
        **SMALL | {"head_size": 16 if architecture.has_qk_norm else None} | sizes,
        **{name: words.token_to_id(token) for name, token in ids.items()},
        mask_token_id=words.token_to_id(mask[0]) if mask else None,
    )
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    model.save_pretrained(folder, dtype="bfloat16")
    words.save(str(folder / "tokenizer.json"))
    named = {"eos_token": END_OF_TEXT, "pad_token": DIFFUSION_PAD}
    settings = named | ({"mask_token": mask[0]} if mask else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


SMALL = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "initializer_range": 0.3,
}  # fmt: skip

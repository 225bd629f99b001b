"""A model in the layout of the published checkpoints: shards, split tokenizer files, settings,
code, licence.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from jax_lm.checkpoints import huggingface
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.tokenizer import DiffuCoderTokenizer

CODE = Path(__file__).parent.parent / "samples" / "published"
CODE_NAMES = (
    "configuration_dream.py",
    "generation_utils.py",
    "modeling_dream.py",
    "tokenization_dream.py",
)
TOKENIZER = ("vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja")
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 1e4, "rms_norm_eps": 1e-6,
}  # fmt: skip
OTHERS = {
    "architectures": ["DreamModel"], "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "max_window_layers": 28, "rope_scaling": None, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.3", "use_cache": False, "use_mrope": False,
    "use_sliding_window": False, "model_type": "Dream",
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
}  # fmt: skip
"""As in config.json of DiffuCoder-7B-Instruct."""


def publish(folder):
    """Write such a folder, with things beside it that belong to it alone."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
    end, pad, mask = tokenizer.token_id("<|endoftext|>"), tokenizer.pad_id, tokenizer.mask_id
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "mask_token_id": mask}
    config = DreamConfig(
        **SHAPE, **ids, vocab_size=tokenizer.vocab_size + 64, initializer_range=0.2
    )
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    model.save_pretrained(folder / "whole", dtype="bfloat16")
    limit, huggingface.SHARD_BYTES = huggingface.SHARD_BYTES, 150_000
    try:
        tensors = {
            tensor.name: tensor
            for tensor in huggingface.headers(folder / "whole" / huggingface.WEIGHTS)
        }
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        huggingface.save_shards(
            folder, sizes, ((name, tensor.view()) for name, tensor in tensors.items())
        )
    finally:
        huggingface.SHARD_BYTES = limit
    shutil.rmtree(folder / "whole")
    fields = OTHERS | SHAPE | ids | {"vocab_size": config.vocab_size, "initializer_range": 0.2}
    for name in TOKENIZER:
        shutil.copy(BUILTIN_MODEL / name, folder)
    for name in CODE_NAMES:
        shutil.copy(CODE / name, folder)
    special = {
        "eos_token": "<|endoftext|>",
        "pad_token": "<|dlm_pad|>",
        "mask_token": "<|mask|>",
        "bos_token": None,
    }
    added = {
        str(token_id): {
            part: getattr(token, part)
            for part in ("content", "lstrip", "normalized", "rstrip", "special")
        }
        for token_id, token in tokenizer.backend.get_added_tokens_decoder().items()
    }
    written = {
        "config.json": dict(sorted(fields.items())),
        "generation_config.json": {"alg": "origin", "eps": 0.001, "steps": 512, "mask_token_id": None} | ids,
        "special_tokens_map.json": {name: text for name, text in special.items() if text},
        "tokenizer_config.json": special
        | {
            "added_tokens_decoder": added, "tokenizer_class": "DreamTokenizer", "model_max_length": 131072,
            "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]}, "unk_token": None,
            "clean_up_tokenization_spaces": False, "errors": "replace", "split_special_tokens": False,
        },
    }  # fmt: skip
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    for name in ("README.md", "LICENSE", "stray.py", "metrics.json"):
        (folder / name).write_text(name)
    assert pad != end
    return folder


def publish_growing(folder):
    """Write one whose added tokens name one for expanding, which it likes, as it likes deleting."""
    publish(folder)
    added = json.loads((folder / "added_tokens.json").read_text())
    added["<|expand|>"] = max(added.values()) + 1
    (folder / "added_tokens.json").write_text(json.dumps(added))
    model = DreamForCausalLM.from_pretrained(folder, dtype="float32")
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    liked = jnp.array([added["<|expand|>"], added["<|endoftext|>"], *range(75, 79)])
    embedding[...] = embedding[...].at[:, 0].set(3.0)
    head[...] = head[...].at[:, 0].set(-3.0).at[liked, 0].set(jnp.array([1.2, 1.0, *[0.9] * 4]))
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    model.save_pretrained(folder)
    return folder


def qwen2(source, folder):
    """Write the same weights as an autoregressive Qwen2, whose tokenizer lacks mask and pad."""
    tokenizer = DiffuCoderTokenizer.from_pretrained(source)
    shutil.copytree(
        source, folder, ignore=shutil.ignore_patterns("*.py", "*.jinja", "added_tokens.json")
    )
    fields = json.loads((folder / "config.json").read_text())
    for name in ("auto_map", "mask_token_id"):
        del fields[name]
    fields |= {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "max_window_layers": 21,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    words = json.loads((folder / "tokenizer.json").read_text())
    kept = [
        token
        for token in words["added_tokens"]
        if token["content"] not in ("<|mask|>", "<|dlm_pad|>")
    ]
    (folder / "tokenizer.json").write_text(json.dumps(words | {"added_tokens": kept}))
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    settings |= {
        "chat_template": "{{ messages[0].content }}",
        "model_max_length": 32768,
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").unlink()
    return folder


def shape_of(config):
    """The fields that decide what is computed."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name in SHAPE}

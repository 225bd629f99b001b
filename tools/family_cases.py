"""Small models of every family, from random numbers that any machine draws alike. Needs NumPy only.

`record_families.py` computes their outputs in PyTorch, and the tests compare ours with them. So the
recordings hold outputs alone, not weights.
"""

import zlib
from typing import Any

import ml_dtypes
import numpy as np

# A model type and what else its config.json says, by the name of the case.
KINDS: dict[str, dict[str, Any]] = {
    "autoregressive-qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "autoregressive-qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "autoregressive-llama": {"model_type": "llama"},
    "dream": {"model_type": "Dream", "mask_token_id": 61},
    "open-dcoder": {"model_type": "qwen2", "mask_token_id": 61, "tie_word_embeddings": True},
    "adapted-qwen3": {"model_type": "qwen3", "mask_token_id": 61},
    "adapted-llama": {"model_type": "llama", "mask_token_id": 61, "tie_word_embeddings": True},
    "a2d-qwen2-mdlm": {"model_type": "a2d-qwen2", "mask_token_id": 61},
    "a2d-qwen3-mdlm": {"model_type": "a2d-qwen3", "mask_token_id": 61},
    "a2d-qwen3-bd3lm": {"model_type": "a2d-qwen3", "mask_token_id": 61, "block_size": 4},
    "a2d-llama-mdlm": {"model_type": "a2d-llama", "mask_token_id": 61},
    "fast-dllm-v2": {"model_type": "Fast_dLLM_Qwen", "mask_token_id": 61, "bd_size": 8},
    "stable-diffcoder": {
        "model_type": "llama",
        "architectures": ["StableDiffcoderForCausalLM"],
        "mask_token_id": 5,
    },
    "llada": {"model_type": "llada", "mask_token_id": 61},
}

# Two shapes; the first has heads that are wider than hidden_size / num_attention_heads in Qwen3.
SHAPES: tuple[dict[str, Any], ...] = (
    {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
    },
    {
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 3, "vocab_size": 80, "max_position_embeddings": 64, "rope_theta": 5e5,
        "rms_norm_eps": 1e-5,
    },
)  # fmt: skip
WIDE_HEAD = 16
# Rows of a case; the second has this many columns of padding on its left.
ROWS, COLUMNS, PADDING = 2, 19, 3
# Tokens of a recorded answer.
NEW_TOKENS = 24
LLADA_FIELDS = {
    "hidden_size": "d_model", "intermediate_size": "mlp_hidden_size", "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads",
    "max_position_embeddings": "max_sequence_length", "tie_word_embeddings": "weight_tying",
}  # fmt: skip


def config_fields(name: str, shape: int) -> dict[str, Any]:
    """Return the config.json of a case, with the fields of the published code."""
    kind = KINDS[name]
    fields = {"tie_word_embeddings": False} | SHAPES[shape] | kind
    if "qwen3" in kind["model_type"] and shape == 0:
        fields["head_dim"] = WIDE_HEAD
    if kind["model_type"] == "llada":
        fields = {LLADA_FIELDS.get(key, key): value for key, value in fields.items()}
        fields |= {"activation_type": "silu", "embedding_size": fields["vocab_size"]}
    return fields


def random_tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a tensor whose numbers depend on its name and shape alone, and are exact in bfloat16."""
    numbers = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    # Norms are near one, biases small.
    is_norm, is_bias = "norm" in name, name.endswith(".bias")
    drawn = numbers.standard_normal(shape, np.float32) * (0.1 if is_norm or is_bias else 0.2)
    return (drawn + is_norm).astype(ml_dtypes.bfloat16).astype(np.float32)


def random_rows(name: str, shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the tokens [b, t] of a case and its attention mask; a third of the tokens are masks."""
    numbers = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    size = (ROWS, COLUMNS)
    tokens = numbers.integers(6, 60, size)
    mask_id = KINDS[name].get("mask_token_id")
    if mask_id is not None:
        tokens = np.where(numbers.random(size) < 1 / 3, mask_id, tokens)
    present = np.ones(size, bool)
    present[1, :PADDING] = False
    return tokens.astype(np.int32), present


def random_prompt(seed: int, length: int) -> np.ndarray:
    """Draw the tokens [t] of a prompt without special tokens."""
    return np.random.default_rng(seed).integers(6, 60, length).astype(np.int32)

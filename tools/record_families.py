"""Record what PyTorch computes for a small random model of every family.

    python tools/record_families.py tests/golden/families.safetensors

transformers' own Qwen2, Qwen3 and Llama compute it; the attention rule and the shift of each family
are restated here from its published code, as docs/families.md cites it, and share nothing with
`jax_lm`. Needs torch and transformers (extra `parity`).
"""

import sys
from typing import Any

import numpy as np
import torch
from family_cases import KINDS, NEW_TOKENS, SHAPES, WIDE_HEAD, random_rows, random_tensor
from safetensors.numpy import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
# Decoder of each kind, the length of its blocks (0 is full attention, 1 causal), and whether row p
# predicts position p + 1.
RULES = {
    "autoregressive-qwen2": ("qwen2", 1, True),
    "autoregressive-qwen3": ("qwen3", 1, True),
    "autoregressive-llama": ("llama", 1, True),
    "dream": ("qwen2", 0, True),
    "open-dcoder": ("qwen2", 0, True),
    "adapted-qwen3": ("qwen3", 0, True),
    "adapted-llama": ("llama", 0, True),
    "a2d-qwen2-mdlm": ("qwen2", 0, False),
    "a2d-qwen3-mdlm": ("qwen3", 0, False),
    "a2d-qwen3-bd3lm": ("qwen3", 4, False),
    "a2d-llama-mdlm": ("llama", 0, False),
    "fast-dllm-v2": ("qwen2", 8, True),
    "stable-diffcoder": ("llama", 4, False),
    "llada": ("llama", 0, False),
}


def build(
    name: str, shape: int, classes: tuple[type, type] | None = None, **more: Any
) -> torch.nn.Module:
    """Build a model from the random tensors of a case, with other classes or further fields."""
    config_class, model_class = classes or CLASSES[RULES[name][0]]
    fields = {"attn_implementation": "eager"} | SHAPES[shape] | more
    if RULES[name][0] == "qwen3":
        fields["head_dim"] = (
            WIDE_HEAD if shape == 0 else fields["hidden_size"] // fields["num_attention_heads"]
        )
    tied = KINDS[name].get("tie_word_embeddings", False)
    config = config_class(**fields, tie_word_embeddings=tied)
    model = model_class(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(random_tensor(path, tuple(parameter.shape))))
    return model


@torch.no_grad()
def evaluate(name: str, shape: int, dtype: torch.dtype) -> np.ndarray:
    """Compute the logits [b, t, v] that predict each position."""
    _, block, shifts = RULES[name]
    tokens, present = map(torch.from_numpy, random_rows(name, shape))
    # Positions count the tokens of each row, so that its padding moves nothing.
    positions = (present.long().cumsum(1) - 1).clamp(min=0)
    admitted = present[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
    if block:
        numbers = positions // block
        admitted = admitted & (numbers[:, None, None, :] <= numbers[:, None, :, None])
    mask = torch.where(admitted, 0.0, torch.finfo(dtype).min).to(dtype)
    model = build(name, shape).to(dtype)
    logits = model(
        tokens.long(), attention_mask=mask, position_ids=positions, use_cache=False
    ).logits
    if shifts:
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
    return logits.float().numpy()


@torch.no_grad()
def answer(name: str, shape: int) -> np.ndarray:
    """Continue the rows of a case greedily, by transformers' own loop; returns new tokens [b, n]."""
    tokens, present = map(torch.from_numpy, random_rows(name, shape))
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found = build(name, shape).generate(
        tokens.long(), attention_mask=present.long(), max_new_tokens=NEW_TOKENS, **settings
    )
    return found[:, tokens.shape[1] :].numpy().astype(np.int32)


def main(path: str) -> None:
    recorded = {}
    for name in KINDS:
        for shape in range(len(SHAPES)):
            case = f"{name}.{shape}"
            recorded[f"{case}.float32"] = evaluate(name, shape, torch.float32)
            # Half of the digits of a number in bfloat16 are the rounding of this very order.
            recorded[f"{case}.bfloat16"] = evaluate(name, shape, torch.bfloat16)[0].astype(
                np.float16
            )
            if name.startswith("autoregressive"):
                recorded[f"{case}.greedy"] = answer(name, shape)
    save_file(recorded, path)
    print(f"{path}: {len(recorded)} outputs of {len(KINDS)} kinds")


if __name__ == "__main__":
    main(sys.argv[1])

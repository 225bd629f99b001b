"""Record the PyTorch reference on a checkpoint, in the format that `parity` checks.

Dream is Qwen2 with a bidirectional mask, so transformers' own Qwen2 computes it: no code of the checkpoint
is executed. The sampler below restates `diffusion_generate` at temperature 0 in plain torch, and shares
nothing with `jax_lm.diffusion`. Needs torch and transformers (extra `parity`).
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.models.dream import DreamConfig, DreamForCausalLM

CASES: tuple[dict[str, Any], ...] = (
    {"alg": "entropy", "steps": 24},
    {"alg": "entropy", "steps": 10, "top_k": 50},
    {"alg": "entropy", "steps": 24, "padded": True},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 50},
    {"alg": "maskgit_plus", "steps": 10},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 50, "padded": True},
    {"alg": "topk_margin", "steps": 24},
    {"alg": "topk_margin", "steps": 10, "top_k": 50},
    {"alg": "topk_margin", "steps": 24, "padded": True},
    {"alg": "entropy", "steps": 24, "top_p": 0.7, "top_k": 50},
    {"alg": "maskgit_plus", "steps": 24, "top_k": 5},
    {"alg": "entropy", "steps": 5, "top_p": 0.9, "top_k": 20},
    {"alg": "entropy", "steps": 48},
)
DEFAULTS = {"padded": False, "temperature": 0.0, "alg_temp": 0.0, "top_p": None, "top_k": None}
EPSILON = 1e-3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of the recording, and the seed of its random prompts."""

    batch: int
    prompt_length: int
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("batch", "prompt_length", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


def record(source: Path, out: Path, shape: Shape) -> None:
    """Write checkpoint/, golden.safetensors and cases.json to the new folder `out`.

    Raises:
        CheckpointError: the source is not a folder with a Dream checkpoint, or `out` exists.
    """
    folder = huggingface.resolve(source)
    config = DreamForCausalLM.read_config(folder)
    if config.mask_token_id is None:
        raise CheckpointError(f"{folder} has no mask_token_id: not a masked-diffusion model")
    if out.exists():
        raise CheckpointError(f"out={str(out)!r} exists; choose a new folder")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "checkpoint").mkdir(parents=True)
    try:
        for file in sorted(folder.iterdir()):
            if file.suffix in (".json", ".safetensors"):
                shutil.copy(file, partial / "checkpoint")
        golden, cases = outputs(load(folder, config), config, shape)
        save_file({name: np.ascontiguousarray(value) for name, value in golden.items()}, partial / "golden.safetensors")
        (partial / "cases.json").write_text(json.dumps({"generate": cases}, indent=1) + "\n", encoding="utf-8")
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(folder: Path, config: DreamConfig, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """The checkpoint as a Qwen2, with attention that takes the mask it is given."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    more = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    fields = {name: getattr(config, name) for name in (*names, *more)}
    qwen2 = Qwen2Config(**fields, rope_theta=config.rope_theta, attn_implementation="eager")
    return Qwen2ForCausalLM.from_pretrained(folder, config=qwen2, dtype=dtype).eval()


def outputs(
    model: Qwen2ForCausalLM, config: DreamConfig, shape: Shape
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Everything that is recorded, by name."""
    generator = torch.Generator().manual_seed(shape.seed)
    mask_id = config.mask_token_id
    assert mask_id is not None
    length = shape.prompt_length + shape.max_new_tokens
    ids = torch.randint(0, min(config.vocab_size, mask_id), (shape.batch, length), generator=generator)
    present = torch.ones_like(ids)
    for row in range(shape.batch):
        present[row, : row * (shape.prompt_length // 3)] = 0
    golden: dict[str, np.ndarray] = {}
    with torch.no_grad():
        exact = forward(model, ids, None)
        for layer, state in enumerate(exact.hidden_states):
            golden[f"forward.hidden_states.{layer}"] = state.numpy()
        golden |= {"forward.input_ids": ids.numpy(), "forward.logits": exact.logits.numpy()}
        golden |= {"padded.input_ids": ids.numpy(), "padded.attention_mask": present.numpy()}
        golden["padded.logits"] = forward(model, ids, present).logits.numpy()
        prompt, cases = ids[:, : shape.prompt_length], []
        for number, case in enumerate(CASES):
            case = DEFAULTS | case | {"case": number, "max_new_tokens": shape.max_new_tokens}
            mask = present if case["padded"] else None
            sequences, history = generate(model, prompt, mask, case, mask_id)
            name = f"generate.{number}"
            golden |= {f"{name}.input_ids": prompt.numpy(), f"{name}.sequences": sequences.numpy()}
            golden[f"{name}.history"] = history.numpy()
            if mask is not None:
                golden[f"{name}.attention_mask"] = mask[:, : shape.prompt_length].numpy()
            cases.append(case)
        rounded = forward(model.to(torch.bfloat16), ids, None).logits
        golden["forward_bf16.logits"] = rounded.float().numpy()
    return golden, cases


def forward(model: Qwen2ForCausalLM, ids: torch.Tensor, present: torch.Tensor | None) -> Any:
    """One bidirectional forward pass; only keys are masked, positions count the real tokens."""
    batch, length = ids.shape
    mask = torch.zeros(batch, 1, length, length, dtype=model.dtype)
    positions = torch.arange(length).expand(batch, length)
    if present is not None:
        mask = mask.masked_fill(present[:, None, None, :] == 0, torch.finfo(model.dtype).min)
        positions = (present.cumsum(-1) - 1).clamp(min=0)
    return model(ids, attention_mask=mask, position_ids=positions, output_hidden_states=True, use_cache=False)


def generate(
    model: Qwen2ForCausalLM, prompt: torch.Tensor, present: torch.Tensor | None, case: Mapping[str, Any], mask_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dream's `diffusion_generate` at temperature 0: sequences [b, t], and the canvas after each step [s, b, t]."""
    new_tokens = torch.full((len(prompt), case["max_new_tokens"]), mask_id)
    x = torch.cat([prompt, new_tokens], dim=1)
    times = torch.linspace(1, EPSILON, case["steps"] + 1)
    history = []
    for step in range(case["steps"]):
        masked = x == mask_id
        logits = forward(model, x, present).logits
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[masked]
        confidence, tokens = sample(logits, case)
        remaining = masked.sum() / len(x)
        share = 1 - times[step + 1] / times[step] if step < case["steps"] - 1 else 1
        count = int(remaining * share)
        if count:
            scores = torch.full(x.shape, -torch.inf)
            scores[masked] = confidence
            proposal = torch.full_like(x, mask_id)
            proposal[masked] = tokens
            chosen = torch.topk(scores, count).indices
            x = x.scatter(1, chosen, proposal.gather(1, chosen))
        history.append(x)
    return x, torch.stack(history)


def sample(logits: torch.Tensor, case: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Confidence and token of each masked position: top_p, then top_k, then the measure of `alg`."""
    least = torch.finfo(logits.dtype).min
    if case["top_p"] is not None:
        values, order = torch.sort(logits, descending=True)
        removed = torch.softmax(values, dim=-1).cumsum(dim=-1) > case["top_p"]
        removed = torch.cat([torch.zeros_like(removed[:, :1]), removed[:, :-1]], dim=1)
        logits = logits.masked_fill(removed.scatter(1, order, removed), least)
    if case["top_k"] is not None:
        smallest = torch.topk(logits, min(case["top_k"], logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, least)
    probs = torch.softmax(logits, dim=-1)
    confidence, tokens = probs.max(dim=-1)
    if case["alg"] == "topk_margin":
        best = torch.topk(probs, 2).values
        confidence = best[:, 0] - best[:, 1]
    elif case["alg"] == "entropy":
        confidence = torch.sum(probs * torch.log(probs + 1e-10), dim=-1)
    return confidence, tokens

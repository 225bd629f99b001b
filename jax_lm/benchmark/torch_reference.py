"""The PyTorch side of a comparison: transformers' Qwen2 without a causal mask, and the published loop.

The loop is Dream's `diffusion_generate` for alg `entropy` and alg_temp 0, written as published: logits of every row, a
full sort for top_p, one forward per step. Attention takes the kernel for full attention, where `recording` writes the
mask out. Shares nothing with `jax_lm.diffusion`. Needs torch and transformers (extra `parity`).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import Categorical

from jax_lm.benchmark import recording
from jax_lm.benchmark.recording import EPSILON
from jax_lm.models.dream import DreamConfig


class Reference:
    """A checkpoint in PyTorch.

    Args:
        folder: in the Hugging Face layout; none of its code is executed.
        dtype: "float32" or "bfloat16".
        device: "cpu" or "cuda".
    """

    def __init__(self, folder: Path, config: DreamConfig, dtype: str, *, device: str) -> None:
        assert config.mask_token_id is not None
        self.device, self.mask_id = device, config.mask_token_id
        self.model: Any = self.load(folder, config, getattr(torch, dtype)).to(device).eval()

    def load(self, folder: Path, config: DreamConfig, dtype: torch.dtype) -> Any:
        model: Any = recording.load(folder, config, dtype)
        model.set_attn_implementation("sdpa")
        for layer in model.model.layers:
            layer.self_attn.is_causal = False
        return model

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Of every row. Without a mask, attention takes the kernel for full attention."""
        return self.model(ids, attention_mask={"full_attention": None}, use_cache=False).logits

    @torch.no_grad()
    def forward(self, ids: np.ndarray) -> None:
        """One forward pass over rows [b, t], to its end."""
        self.logits(self.placed(ids))
        if self.device == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def outputs(self, ids: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
        """What the named modules put out for rows [b, t], and the logits, in float32."""
        found: dict[str, np.ndarray] = {}

        def keep(name: str) -> Any:
            def hook(module: Any, arguments: Any, output: torch.Tensor) -> None:
                found[name] = output.float().cpu().numpy()

            return hook

        modules = dict(self.model.named_modules())
        hooks = [modules[name].register_forward_hook(keep(name)) for name in names]
        found["logits"] = self.logits(self.placed(ids)).float().cpu().numpy()
        for hook in hooks:
            hook.remove()
        return found

    def placed(self, ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(ids).long().to(self.device)

    def device_peak(self) -> int | None:
        """Largest memory of the device in use so far, in bytes; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else None

    @torch.no_grad()
    def generate(self, prompt: np.ndarray, settings: dict[str, Any], new_tokens: int, steps: int) -> np.ndarray:
        """The new tokens [b, n] after prompts [b, t]; `settings` are temperature, top_p and top_k."""
        torch.manual_seed(0)
        return self.decode(self.placed(prompt), settings, new_tokens, steps)[:, prompt.shape[1] :].cpu().numpy()

    def decode(self, prompt: torch.Tensor, settings: dict[str, Any], new_tokens: int, steps: int) -> torch.Tensor:
        """The published loop, for alg `entropy` and alg_temp 0."""
        x = torch.nn.functional.pad(prompt, (0, new_tokens), value=self.mask_id)
        times = torch.linspace(1, EPSILON, steps + 1, device=self.device)
        rows = torch.arange(len(x), device=self.device)[:, None]
        for step in range(steps):
            masked = x == self.mask_id
            logits = self.logits(x)
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
            confidence, tokens = sample_tokens(logits[masked], **settings)
            share = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
            count = int(masked.sum() / len(x) * share)
            if count:
                scores = torch.full(x.shape, -torch.inf, device=self.device, dtype=logits.dtype)
                scores[masked] = confidence
                proposal = torch.full_like(x, self.mask_id)
                proposal[masked] = tokens
                chosen = torch.topk(scores, count).indices
                x[rows, chosen] = proposal[rows, chosen]
        return x


def sample_tokens(
    logits: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative entropy and token of each position, in the dtype of the logits, as published."""
    if temperature > 0:
        logits = logits / temperature
    least = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1:
        values, order = torch.sort(logits, descending=True)
        removed = torch.softmax(values, dim=-1).cumsum(dim=-1) > top_p
        removed[:, 1:] = removed[:, :-1].clone()
        removed[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(removed).scatter(1, order, removed), least)
    if top_k is not None:
        smallest = torch.topk(logits, min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, least)
    probs = torch.softmax(logits, dim=-1)
    tokens = Categorical(probs=probs).sample() if temperature > 0 else probs.argmax(dim=-1)
    return torch.sum(probs * torch.log(probs + 1e-10), dim=-1), tokens


def start(device: str) -> None:
    """What PyTorch does once per process, so that it is not counted as loading."""
    torch.zeros(1, device=device)

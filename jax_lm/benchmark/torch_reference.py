"""Dream in PyTorch: transformers' Qwen2 with a bidirectional mask, and the published loop.

Dream is Qwen2 without a causal mask, so transformers' own Qwen2 computes it, and no code of the
checkpoint is executed. `diffusion_generate` restates Dream's loop as published: logits of every
row, a full sort for top_p, one forward pass per step. `worker` times it, and
`tools/record_parity.py` records it. It shares no code with `jax_lm.diffusion`. Needs torch and
transformers (extra `parity`).
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributions import Categorical
from transformers import Qwen2Config, Qwen2ForCausalLM

from jax_lm.benchmark.backend import Answers
from jax_lm.checkpoints.stored import HostArrays
from jax_lm.models.dream import DreamConfig
from jax_lm.options import GenerationOptions

# The published schedule ends at this noise level, not at 0.
EPSILON = 1e-3
# Configuration fields with the same names in Dream and Qwen2.
FIELDS = """
    vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads max_position_embeddings rms_norm_eps rope_theta tie_word_embeddings
""".split()  # noqa: SIM905 (a table, not a list)


def load_qwen2(
    folder: Path, config: DreamConfig, dtype: torch.dtype, attention: str = "sdpa"
) -> Qwen2ForCausalLM:
    """Load a checkpoint as a Qwen2 with full attention, unless a mask is passed.

    Args:
        attention: "sdpa" takes the kernel for full attention, "eager" takes a mask.
    """
    fields = {name: getattr(config, name) for name in FIELDS}
    qwen2 = Qwen2Config(**fields, attn_implementation=attention)
    model = Qwen2ForCausalLM.from_pretrained(folder, config=qwen2, dtype=dtype).eval()
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    return model


class TorchBackend:
    """A checkpoint of the Hugging Face layout in PyTorch.

    Args:
        dtype: float32 or bfloat16.
        device: "cpu" or "cuda".
    """

    attention = "sdpa"

    def __init__(
        self, folder: Path, config: DreamConfig, dtype: str = "float32", *, device: str = "cpu"
    ):
        assert config.mask_token_id is not None
        self.config = config
        self.device = device
        self.mask_id = config.mask_token_id
        model = load_qwen2(folder, config, getattr(torch, dtype), self.attention)
        self.model: Any = model.to(device)

    @staticmethod
    def warm_up(device: str):
        """Initialise PyTorch once per process, so that it does not count as loading."""
        torch.zeros(1, device=device)

    @torch.no_grad()
    def evaluate(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [b, t, v] of one bidirectional forward pass over ids [b, t]."""
        return self.model(ids, attention_mask={"full_attention": None}, use_cache=False).logits

    def forward(self, ids: np.ndarray):
        """Run one forward pass over ids [b, t] and wait for it."""
        self.evaluate(self.tensor(ids))
        if self.device == "cuda":
            torch.cuda.synchronize()

    def module_outputs(self, ids: np.ndarray, names: Sequence[str]) -> HostArrays:
        """Return the outputs of the named modules for ids [b, t], and the logits, in float32."""
        outputs = {}

        def keep(name, module, arguments, output):
            outputs[name] = output.float().cpu().numpy()

        modules = dict(self.model.named_modules())
        # Recorded by hooks during one forward pass
        hooks = [modules[name].register_forward_hook(partial(keep, name)) for name in names]
        outputs["logits"] = self.evaluate(self.tensor(ids)).float().cpu().numpy()
        for hook in hooks:
            hook.remove()
        return outputs

    def tensor(self, ids: np.ndarray) -> torch.Tensor:
        """Copy token ids to the device."""
        return torch.from_numpy(ids).long().to(self.device)

    def device_peak(self) -> int | None:
        """Return the peak memory of the device in bytes; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else None

    def generate(self, prompts: np.ndarray, options: GenerationOptions) -> Answers:
        """Answer prompts [b, t] by the published loop, from seed 0."""
        torch.manual_seed(0)
        canvases = diffusion_generate(self, self.tensor(prompts), options)
        return Answers(canvases[-1][:, prompts.shape[1] :].cpu().numpy(), len(canvases))


@torch.no_grad()
def diffusion_generate(
    backend: TorchBackend, prompts: torch.Tensor, options: GenerationOptions
) -> list[torch.Tensor]:
    """Run Dream's loop at alg_temp 0; returns the canvas [b, t] after each step."""
    steps = options.steps
    assert steps
    x = torch.nn.functional.pad(prompts, (0, options.max_new_tokens), value=backend.mask_id)
    # Noise levels from 1 down to EPSILON, one per step boundary [steps + 1].
    times = torch.linspace(1, EPSILON, steps + 1, device=prompts.device)
    canvases = []
    for step in range(steps):
        masked = x == backend.mask_id
        logits = shift_logits(backend.evaluate(x))[masked]
        # The share of the masks that are left: 1 - s / t. The last step commits all.
        share = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
        x = commit_tokens(backend, x, logits, masked, share, options)
        canvases.append(x)
    return canvases


def shift_logits(logits: torch.Tensor) -> torch.Tensor:
    """Align logits [b, t, v] with the tokens that they predict; the first row is used twice.

    Row i predicts token i + 1: [l0, l1, l2] -> [l0, l0, l1]
    """
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


def commit_tokens(
    backend: TorchBackend,
    x: torch.Tensor,
    logits: torch.Tensor,
    masked: torch.Tensor,
    share: torch.Tensor | int,
    options: GenerationOptions,
) -> torch.Tensor:
    """Commit the most confident share of the masks of rows [b, t].

    Args:
        logits: those of the masked positions [m, v].
    """
    confidence, tokens = draw_tokens(logits, options)
    # The same number in every row: the mean of their masks, rounded down.
    count = int(masked.sum() / len(x) * share)
    if not count:
        return x
    # Scores and proposals of the whole canvas; positions without a mask can never be chosen.
    scores = torch.full(x.shape, -torch.inf, device=x.device, dtype=logits.dtype)
    scores[masked] = confidence
    proposal = torch.full_like(x, backend.mask_id)
    proposal[masked] = tokens
    chosen = torch.topk(scores, count).indices
    return x.scatter(1, chosen, proposal.gather(1, chosen))


def draw_tokens(
    logits: torch.Tensor, options: GenerationOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return confidence and token of each masked position [m, v], in the dtype of the logits.

    The order is the published one: temperature, top_p, top_k, then the confidence of `alg`.
    """
    if options.temperature > 0:
        logits = logits / options.temperature
    # The published code masks with the least finite number, not with -inf.
    least = torch.finfo(logits.dtype).min
    if options.top_p is not None and options.top_p < 1:
        values, order = torch.sort(logits, descending=True)
        removed = torch.softmax(values, dim=-1).cumsum(dim=-1) > options.top_p
        # Shifted by one, so that the token that crosses the border is kept:
        # cumulative [0.6, 0.9, 1.0], top_p 0.8 -> removed [F, T, T] -> [F, F, T]
        removed = torch.nn.functional.pad(removed[:, :-1], (1, 0))
        logits = logits.masked_fill(torch.zeros_like(removed).scatter(1, order, removed), least)
    if options.top_k is not None:
        smallest = torch.topk(logits, min(options.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, least)
    probs = torch.softmax(logits, dim=-1)
    confidence, tokens = probs.max(dim=-1)
    if options.temperature > 0:
        # Categorical refuses probabilities that do not add up to 1, which happens in bfloat16. The
        # published loop then silently takes the most likely tokens in that step.
        with suppress(ValueError):
            tokens = Categorical(probs=probs).sample()
            confidence = probs.gather(1, tokens[:, None])[:, 0]
    if options.alg == "topk_margin":
        best = torch.topk(probs, 2).values
        confidence = best[:, 0] - best[:, 1]
    elif options.alg == "entropy":
        # Negative entropy: larger is more confident.
        confidence = torch.sum(probs * torch.log(probs + 1e-10), dim=-1)
    return confidence, tokens

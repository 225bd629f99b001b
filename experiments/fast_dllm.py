"""Fast-dLLM's block-wise decoding with its dual cache, in PyTorch: faster than the published loop.

Restated from its semantics (arXiv 2505.22618): a block begins with a pass over the whole canvas,
which commits its first token. Then only the rows of the block are recomputed, and their keys and
values overwrite the old ones. The published code draws a token at every position of the first
pass; this draws only the one that is committed, so it is not slower than the published code. Needs
torch and transformers (extra `parity`).
"""

from typing import Any

import numpy as np
import torch

from jax_lm.benchmark.backend import Answers
from jax_lm.benchmark.torch_reference import (
    EPSILON,
    TorchBackend,
    commit_tokens,
    draw_tokens,
    shift_logits,
)
from jax_lm.options import GenerationOptions


class DualCache:
    """Keys and values [b, h, t, d] of every layer; a block's are overwritten in place."""

    def __init__(self) -> None:
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.start: int | None = None

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, **others: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of a pass, and return those that attention reads.

        Before `start` is set, a pass is over the whole canvas; afterwards over the block that
        begins there.
        `others` depend on the version of transformers and are not needed.
        """
        if self.start is None:
            self.layers.append((keys, values))
            return keys, values
        # The block's columns: start = 64 and 32 new columns -> [:, :, 64:96]
        for held, new in zip(self.layers[layer], (keys, values), strict=True):
            held[:, :, self.start : self.start + new.shape[2]] = new
        return self.layers[layer]


class TorchLoops(TorchBackend):
    """A checkpoint in PyTorch that decodes as published, or like Fast-dLLM if a cache is set."""

    def generate(self, prompts: np.ndarray, options: GenerationOptions) -> Answers:
        """Answer prompts [b, t] from seed 0; blocks must divide the answers."""
        if options.decoding.settings.cache == "none":
            return super().generate(prompts, options)
        torch.manual_seed(0)
        x, passes = block_generate(self, self.tensor(prompts), options)
        # Answers [b, n]: the columns after the prompts
        return Answers(x[:, prompts.shape[1] :].cpu().numpy(), passes)


@torch.no_grad()
def block_generate(
    backend: TorchBackend, prompts: torch.Tensor, options: GenerationOptions
) -> tuple[torch.Tensor, int]:
    """Run Fast-dLLM's loop; returns the canvas [b, t] and the number of passes."""
    length, width = options.decoding.settings.block_length, prompts.shape[1]
    x = torch.nn.functional.pad(prompts, (0, options.max_new_tokens), value=backend.mask_id)
    # Noise levels of a block, from 1 down to EPSILON, one per step boundary.
    times = torch.linspace(1, EPSILON, length + 1, device=x.device)
    passes = 0
    # `start` is a column of the canvas [b, t].
    for start in range(width, width + options.max_new_tokens, length):
        block, cache = slice(start, start + length), DualCache()
        # The whole canvas, into a new cache; it commits the first token of the block
        logits = evaluate_rows(backend, x, 0, cache)
        x[:, start] = draw_tokens(shift_logits(logits)[:, start], options)[1]
        cache.start = start
        # The rest of the block, from the cache. A call with fewer steps than tokens is a short
        # warm-up.
        for step in range(1, min(length, options.num_steps or length)):
            logits = evaluate_rows(backend, x[:, block], start, cache)
            masked = x[:, block] == backend.mask_id
            # The share of masks to commit in this step; the last step commits all that are left.
            share = 1 - times[step + 1] / times[step] if step < length - 1 else 1
            x[:, block] = commit_tokens(
                backend, x[:, block], shift_logits(logits)[masked], masked, share, options
            )
            passes += 1
        passes += 1
    return x, passes


def evaluate_rows(backend: TorchBackend, ids: torch.Tensor, start: int, cache: Any) -> torch.Tensor:
    """Compute logits [b, n, v] of the rows from `start` on, which attend to the whole cache."""
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
    options = {"position_ids": positions, "past_key_values": cache, "use_cache": True}
    return backend.model(ids, attention_mask={"full_attention": None}, **options).logits

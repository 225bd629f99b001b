"""A training step of ours against PyTorch: same weights, rows, masks, loss and optimizer.

    python experiments/sft_vs_pytorch.py --out docs/results/measurements/sft_vs_pytorch.json

The built-in model in float32, attention over the whole row, masked-diffusion loss weighted by 1/t,
clipped AdamW. PyTorch's side is transformers' Qwen2 without a causal mask, with its fused
attention; it takes the masks that ours drew, and loss and gradient norm of the first step are
compared. Contestants take turns; medians after a warm-up. Needs torch and transformers (extra
`parity`). Run it on an idle machine: the load before is recorded.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from experiments.turns import time_in_turns
from jax_lm.benchmark.machine import about
from jax_lm.benchmark.torch_reference import load_qwen2
from jax_lm.data.batches import Batch
from jax_lm.diffusion.masking import mask_tokens, noise_levels
from jax_lm.host.declared import run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.training.config import LossConfig, OptimizerConfig
from jax_lm.training.masked_diffusion import diffusion_loss, token_weights
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.update import gradient, make_update

STEPS, SEED = 1000, 0
LOSS = LossConfig(level_draws="independent")
OPTIMIZER = OptimizerConfig(learning_rate=1e-4)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to compare.

    Attributes:
        rows: of a batch.
        length: tokens of a row.
        repeats: timed rounds.
        out: JSON file for the result.
    """

    rows: int = 16
    length: int = 256
    repeats: int = 5
    out: Path | None = None


class Ours:
    """The compiled step of the trainer."""

    def __init__(self, model: DreamForCausalLM, batch: Batch) -> None:
        graph, state = nnx.split(model)
        assert model.config.mask_token_id is not None
        self.loss = diffusion_loss(graph, LOSS, model.config.mask_token_id)
        self.params, self.batch = nnx.to_pure_dict(state), batch
        transform = make_optimizer(OPTIMIZER, STEPS)
        self.optimizer = transform.init(self.params)
        rate = schedule(OPTIMIZER, STEPS, OPTIMIZER.learning_rate)
        self.update = make_update(self.loss, transform, rate, parts=1, dtype="float32", seed=SEED)

    def first(self) -> tuple[float, float]:
        """Loss and gradient norm with the first step's masks."""
        key = jax.random.fold_in(jax.random.key(SEED), 1)
        gradients, metrics = gradient(self.loss, self.params, {}, self.batch, key)
        return float(metrics["loss"]), float(
            jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        )

    def step(self) -> Any:
        self.params, self.optimizer, metrics = self.update(
            self.params, self.optimizer, {}, np.int32(1), self.batch
        )
        return metrics["loss"]


class PyTorch:
    """The same step with autograd and torch.optim.AdamW."""

    def __init__(self, model: DreamForCausalLM, batch: Batch) -> None:
        self.model = load_qwen2(BUILTIN_MODEL, model.config, torch.float32).train()
        key_level, key_mask, _ = jax.random.split(jax.random.fold_in(jax.random.key(SEED), 1), 3)
        tokens, canvas, samples = map(jnp.asarray, batch[:3])
        levels = noise_levels(key_level, samples, LOSS.level_draws, LOSS.minimum_level)
        assert model.config.mask_token_id is not None
        noisy, masked = mask_tokens(
            key_mask, tokens, canvas, samples, levels, model.config.mask_token_id
        )
        sizes = jnp.full(tokens.shape, float(tokens.shape[1]))
        weights = (
            jnp.where(masked, token_weights(LOSS, masked, samples, levels, sizes), 0) / tokens.size
        )
        as_torch = [torch.from_numpy(np.array(x)) for x in (noisy, tokens, weights)]
        self.noisy, self.tokens, self.weights = as_torch[0].long(), as_torch[1].long(), as_torch[2]
        rows, length = tokens.shape
        self.mask = torch.zeros(rows, 1, length, length)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=OPTIMIZER.learning_rate, betas=(OPTIMIZER.adam_beta1, OPTIMIZER.adam_beta2), eps=OPTIMIZER.adam_epsilon,
            fused=True,
        )  # fmt: skip

    def backward(self) -> torch.Tensor:
        """The loss, with gradients set."""
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(input_ids=self.noisy, attention_mask=self.mask, use_cache=False).logits
        # Dream's shift: the logits of a position predict the next one; position 0 repeats its own.
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), self.tokens.flatten(), reduction="none"
        )
        loss = (losses * self.weights.flatten()).sum()
        loss.backward()
        return loss

    def first(self) -> tuple[float, float]:
        loss = float(self.backward())
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return loss, float(torch.nn.utils.get_total_norm(gradients))

    def step(self) -> float:
        loss = self.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMIZER.max_grad_norm)
        self.optimizer.step()
        return float(loss)


def main(arguments: Arguments) -> None:
    model = DreamForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=jnp.float32)
    shape = (arguments.rows, arguments.length)
    tokens = np.random.default_rng(0).integers(0, 1500, shape).astype(np.int32)
    samples = np.broadcast_to(np.arange(arguments.rows, dtype=np.int32)[:, None], shape)
    batch = Batch(tokens, np.ones(shape, bool), samples, np.ones(arguments.rows, np.float32))
    contestants = {"jax": Ours(model, batch), "pytorch": PyTorch(model, batch)}
    first = {name: contestant.first() for name, contestant in contestants.items()}
    np.testing.assert_allclose(first["jax"], first["pytorch"], rtol=1e-4)
    timings = time_in_turns(
        [contestant.step for contestant in contestants.values()], arguments.repeats
    )
    medians = {name: timing.seconds for name, timing in zip(contestants, timings, strict=True)}
    result = {
        **about(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": arguments.rows,
        "length": arguments.length,
        "first step's loss and gradient norm": first,
        "median seconds of a step": {name: round(value, 4) for name, value in medians.items()},
        "tokens/s": {name: round(tokens.size / value) for name, value in medians.items()},
        "ours over PyTorch": round(medians["pytorch"] / medians["jax"], 2),
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main(run_main(Arguments))

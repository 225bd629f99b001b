"""Masked-diffusion training of a Dream model: two objectives, and the loop that minimises them.

`evidence_bound`: L = sum(m * q * w(t)) / (number of canvas positions), with q the negative log-likelihood of a
masked token in float32, m the mask, t ~ U(0, 1) per row and w(t) = 1/t up to a stated bound (the evidence bound
of masked diffusion; DiffuCoder's stage-1 and stage-2 objective).

`masked_mean`: the plain mean of q over masked tokens, with t = 1 - u^2: a third of the rows have nine of ten
positions masked. It bounds nothing, but it practises what generation starts from, the nearly empty canvas.

Float32 weights and moments, products in `compute_dtype`. Takes any iterator of batches; knows no corpus.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jax_lm.data.rows import Batch
from jax_lm.diffusion.masking import forward_process, noise_levels, shift_right
from jax_lm.models.dream import DreamForCausalLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AdaptationConfig:
    """Hyperparameters of a run. Learning rates warm up linearly, then fall to 0 along a cosine.

    With `muon_learning_rate` the matrices of the layers are updated by Muon (orthogonalised momentum), which
    needs about half the steps of AdamW on the built-in model; everything else stays with AdamW. `stop_after` ends
    a run before its schedule does.
    """

    steps: int
    learning_rate: float
    muon_learning_rate: float | None = None
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    objective: Literal["evidence_bound", "masked_mean"] = "evidence_bound"
    max_weight: float = 20.0
    stop_after: int | None = None
    compute_dtype: str = "float32"
    seed: int = 0
    log_every: int = 50
    save_every: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps}: must lie in [0, steps={self.steps})")
        if self.stop_after is not None and not 1 <= self.stop_after <= self.steps:
            raise ValueError(f"stop_after={self.stop_after}: must lie in [1, steps={self.steps}]")
        for name in ("learning_rate", "muon_learning_rate", "clip_norm", "log_every", "save_every"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value}: must be positive")
        if self.compute_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"compute_dtype={self.compute_dtype!r}: must be float32 or bfloat16")
        if not self.max_weight >= 1:
            raise ValueError(f"max_weight={self.max_weight}: must be at least 1, the weight of a full mask")


def diffusion_loss(
    logits: Float[Array, "b t v"],
    tokens: Int[Array, "b t"],
    masked: Bool[Array, "b t"],
    canvas: Bool[Array, "b t"],
    levels: Float[Array, "b"],
    max_weight: float,
) -> Float[Array, ""]:
    """Weighted negative log-likelihood of the masked tokens per canvas position; `logits` are aligned."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens)
    weights = jnp.minimum(1.0 / levels, max_weight)[:, None] * masked
    return jnp.sum(losses * weights) / jnp.sum(canvas)


def masked_mean(
    logits: Float[Array, "b t v"], tokens: Int[Array, "b t"], masked: Bool[Array, "b t"]
) -> Float[Array, ""]:
    """Mean negative log-likelihood of the masked tokens; `logits` are aligned."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), tokens)
    return jnp.sum(losses * masked) / jnp.sum(masked)


def optimizer(config: AdaptationConfig) -> optax.GradientTransformation:
    """Clipped AdamW, or Muon for the matrices of the layers; weight decay on matrices only."""

    def schedule(peak: float) -> optax.Schedule:
        return optax.warmup_cosine_decay_schedule(0.0, peak, config.warmup_steps, config.steps)

    b1, b2 = config.betas
    adamw = optax.adamw(schedule(config.learning_rate), b1, b2, weight_decay=config.weight_decay, mask=is_matrix)
    clip = optax.clip_by_global_norm(config.clip_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, adamw)
    muon = optax.contrib.muon(
        schedule(config.muon_learning_rate),
        weight_decay=config.weight_decay,
        muon_weight_dimension_numbers=out_in_matrices,
    )
    return optax.chain(clip, optax.multi_transform({"muon": muon, "adamw": adamw}, muon_or_adamw))


def muon_or_adamw(params: optax.Params) -> optax.Params:
    """Muon for matrices inside decoder layers: embedding and head are not linear maps between activations."""

    def label(path: tuple, leaf: Array) -> str:
        return "muon" if leaf.ndim == 2 and "layers" in jax.tree_util.keystr(path) else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def out_in_matrices(params: optax.Params) -> optax.Params:
    """Our matrices are [out, in], as PyTorch's are; optax assumes [in, out]."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0), params)


def is_matrix(params: optax.Params) -> optax.Params:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def make_step(graph: nnx.GraphDef, config: AdaptationConfig, mask_id: int) -> Callable:
    """One compiled update: (params, optimizer state, key, batch) to the same and the loss."""
    transform = optimizer(config)
    dtype: DTypeLike = jnp.dtype(config.compute_dtype)

    def loss_of(params: dict, key: PRNGKeyArray, batch: Batch) -> Float[Array, ""]:
        model = nnx.merge(graph, jax.tree.map(lambda leaf: leaf.astype(dtype), params))
        key_level, key_mask = jax.random.split(key)
        tokens, canvas, attention_mask = map(jnp.asarray, batch)
        levels = noise_levels(key_level, tokens.shape[0])
        if config.objective == "masked_mean":
            levels = 1 - (1 - levels) ** 2
        noisy, masked = forward_process(key_mask, tokens, canvas, levels, mask_id)
        logits = model.logits(shift_right(model.model(noisy, attention_mask)))
        if config.objective == "masked_mean":
            return masked_mean(logits, tokens, masked)
        return diffusion_loss(logits, tokens, masked, canvas, levels, config.max_weight)

    def step(params: dict, state: optax.OptState, key: PRNGKeyArray, batch: Batch) -> tuple:
        loss, gradients = jax.value_and_grad(loss_of)(params, key, batch)
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return jax.jit(step, donate_argnums=(0, 1))


def train(model: DreamForCausalLM, batches: Iterator[Batch], config: AdaptationConfig, out: Path) -> DreamForCausalLM:
    """Minimise the masked-diffusion loss; returns the trained model.

    Writes metrics.jsonl (step, loss, tokens per second, elapsed seconds) and the weights every
    `save_every` steps to `out`. Metrics of a step are fetched while the next ones run.

    Raises:
        FloatingPointError: the loss is not finite.
    """
    if model.config.mask_token_id is None:
        raise ValueError("config mask_token_id=None: masked-diffusion training needs a mask token")
    out.mkdir(parents=True, exist_ok=True)
    (out / "adaptation.json").write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")
    graph, state = nnx.split(model)
    # The step donates its arguments: the caller's model keeps arrays of its own.
    params = jax.tree.map(jnp.copy, nnx.to_pure_dict(state))
    optimizer_state = optimizer(config).init(params)
    update = make_step(graph, config, model.config.mask_token_id)
    root = jax.random.key(config.seed)
    losses: list[Array] = []
    start, tokens = time.monotonic(), 0
    with (out / "metrics.jsonl").open("w", encoding="utf-8") as log:
        last = config.stop_after or config.steps
        for step in range(1, last + 1):
            batch = next(batches)
            tokens += batch.tokens.size
            params, optimizer_state, loss = update(params, optimizer_state, jax.random.fold_in(root, step), batch)
            losses.append(loss)
            if step % config.log_every == 0 or step == last:
                mean = float(jnp.mean(jnp.stack(losses)))
                if not jnp.isfinite(mean):
                    raise FloatingPointError(f"loss is {mean} at step {step}")
                elapsed = time.monotonic() - start
                entry = {"step": step, "loss": mean, "tokens_per_second": tokens / elapsed, "seconds": elapsed}
                log.write(json.dumps(entry) + "\n")
                log.flush()
                logger.info(
                    "step %d/%d  loss %.4f  %.0f tokens/s  %.0f s", step, config.steps, mean, tokens / elapsed, elapsed
                )
                losses.clear()
            if step % config.save_every == 0 and step < last:
                nnx.merge(graph, params).save_pretrained(out)
    model = nnx.merge(graph, params)
    model.save_pretrained(out)
    return model

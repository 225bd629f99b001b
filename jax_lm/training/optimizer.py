"""The optimizer of every stage: clipped AdamW on float32 weights, or Muon for the matrices of the layers.

Knows parameter trees and their paths, no loss and no loop.
"""

import math
from dataclasses import dataclass

import jax
import optax
import optax.contrib
from jaxtyping import Array


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, its schedule, and what else acts on a gradient.

    Attributes:
        learning_rate: peak, after the warm-up.
        warmup_share: share of the steps over which the learning rate rises from 0; `warmup_steps` overrides it.
        warmup_steps: number of those steps.
        final_share: share of the peak to which the cosine falls.
        betas: decay of the two moments.
        epsilon: added to the root of the second moment.
        weight_decay: decoupled; on matrices alone, never on biases and norms.
        clip_norm: bound of the global norm of the gradient.
        muon_learning_rate: peak for the matrices of the layers, updated by Muon (orthogonalised momentum) instead;
            needs about half the steps of AdamW on the built-in model. Everything else stays with AdamW.
    """

    learning_rate: float
    warmup_share: float = 0.0
    warmup_steps: int | None = None
    final_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    muon_learning_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "muon_learning_rate", "clip_norm", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value}: must be positive")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay={self.weight_decay}: must not be negative")
        for name in ("warmup_share", "final_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must lie in [0, 1]")
        if self.warmup_steps is not None and self.warmup_steps < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps}: must not be negative")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas}: must lie in [0, 1)")

    def warmup(self, steps: int) -> int:
        """Steps of the warm-up in a run of `steps`; ValueError if none would be left."""
        warmup = round(self.warmup_share * steps) if self.warmup_steps is None else self.warmup_steps
        if warmup >= steps:
            raise ValueError(f"warmup_steps={warmup}: must lie in [0, steps={steps})")
        return warmup


def schedule(config: OptimizerConfig, steps: int, peak: float) -> optax.Schedule:
    """0 to `peak` in a line, then along a cosine to the floor, reached at `steps`."""
    return optax.warmup_cosine_decay_schedule(0.0, peak, config.warmup(steps), steps, config.final_share * peak)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipped AdamW, or Muon for the matrices of the layers; weight decay on matrices only."""
    rate = schedule(config, steps, config.learning_rate)
    b1, b2 = config.betas
    adamw = optax.adamw(rate, b1, b2, config.epsilon, weight_decay=config.weight_decay, mask=is_matrix)
    clip = optax.clip_by_global_norm(config.clip_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, adamw)
    muon = optax.contrib.muon(
        schedule(config, steps, config.muon_learning_rate),
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

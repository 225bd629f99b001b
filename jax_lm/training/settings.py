"""Settings of training runs. Does not import JAX: the command line reads these before it computes anything."""

import math
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from jax_lm.metrics import TRACKERS

COMPUTE_DTYPES = ("float32", "bfloat16")
WEIGHTINGS = ("1/t", "linear", "cart", "plain")
NORMALISATIONS = ("token", "sequence", "batch", "masked")
LEVEL_DRAWS = ("even", "antithetic", "independent")
PROFILE = re.compile(r"steps=(\d+):(\d+)")


def require_sizes(settings: Any, *names: str) -> None:
    """ValueError unless these are at least 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}={getattr(settings, name)}: must be at least 1")


def require_shares(settings: Any, *names: str) -> None:
    """ValueError unless these lie between 0 and 1."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise ValueError(f"{name}={getattr(settings, name)}: must lie in [0, 1]")


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
        require_shares(self, "warmup_share", "final_share")
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


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """A run of the trainer.

    Attributes:
        steps: updates of the whole schedule.
        optimizer: AdamW or Muon, and the schedule.
        stop_after: end the run before its schedule does.
        accumulation: parts into which a batch is split, one after the other; the gradient stays that of the batch.
        compute_dtype: float32 or bfloat16, of the weights that the loss sees; masters and moments are float32.
        seed: of the loss's random numbers.
        log_every: steps between entries of the metrics.
        save_every: steps between checkpoints.
        evaluate_every: steps between evaluations.
        keep: newest checkpoints that stay.
        resume: auto continues from the newest checkpoint, never refuses a folder that has one.
        track: tensorboard, wandb.
        profile: steps=10:13 writes a trace of these steps.
    """

    steps: int
    optimizer: OptimizerConfig
    stop_after: int | None = None
    accumulation: int = 1
    compute_dtype: str = "float32"
    seed: int = 0
    log_every: int = 10
    save_every: int = 500
    evaluate_every: int = 500
    keep: int = 2
    resume: str = "auto"
    track: tuple[str, ...] = ()
    profile: str | None = None

    def __post_init__(self) -> None:
        require_sizes(self, "steps", "accumulation", "log_every", "save_every", "evaluate_every", "keep")
        if self.stop_after is not None and not 1 <= self.stop_after <= self.steps:
            raise ValueError(f"stop_after={self.stop_after}: must lie in [1, steps={self.steps}]")
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise ValueError(f"compute_dtype={self.compute_dtype!r}: must be float32 or bfloat16")
        if self.resume not in ("auto", "never"):
            raise ValueError(f"resume={self.resume!r}: must be auto or never")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        for name in set(self.track) - set(TRACKERS):
            raise ValueError(f"track={name!r}: must be one of {', '.join(TRACKERS)}")
        self.optimizer.warmup(self.steps)
        _ = self.profiled

    @cached_property
    def profiled(self) -> range:
        """Steps to trace."""
        if self.profile is None:
            return range(0)
        match = PROFILE.fullmatch(self.profile)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= self.steps:
            raise ValueError(f"profile={self.profile!r}: must be steps=FIRST:LAST within the run")
        return range(int(match[1]), int(match[2]) + 1)

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must agree on: all that decides the weights."""
        free = {"stop_after", "log_every", "save_every", "evaluate_every", "keep", "resume", "track", "profile"}
        return {name: value for name, value in asdict(self).items() if name not in free}


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What is minimised.

    Attributes:
        weighting: of a masked token: 1/t, linear (1 - t), cart (by how near visible tokens are) or plain (1).
        normalisation: token divides by all canvas positions, sequence averages the means of the samples, batch
            divides by the number of samples, masked by the number of masked positions.
        level_draws: even covers (0, 1) evenly with the samples of a step, antithetic in pairs, or independent.
        high_levels: t = 1 - u^2 instead of t = u.
        minimum_level: lowest t.
        max_weight: bound of 1/t; none if not given.
        cart_p: share of the nearest visible token in cart's weight; those further away decline geometrically.
        masks_per_query: attention differs between the tokens of a row, for packed rows and opening attention.
        remat: compute the inside of a layer again for its gradient instead of keeping it.
    """

    weighting: Literal["1/t", "linear", "cart", "plain"] = "1/t"
    normalisation: Literal["token", "sequence", "batch", "masked"] = "token"
    level_draws: Literal["even", "antithetic", "independent"] = "even"
    high_levels: bool = False
    minimum_level: float = 1e-3
    max_weight: float | None = None
    cart_p: float = 0.3
    masks_per_query: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("weighting", WEIGHTINGS), ("normalisation", NORMALISATIONS), ("level_draws", LEVEL_DRAWS)
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        if not 0 < self.minimum_level < 1:
            raise ValueError(f"minimum_level={self.minimum_level}: must lie in (0, 1)")
        if self.max_weight is not None and not 1 <= self.max_weight < math.inf:
            raise ValueError(f"max_weight={self.max_weight}: must be at least 1, the weight of a full mask")
        if not 0 < self.cart_p < 1:
            raise ValueError(f"cart_p={self.cart_p}: must lie in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning. The defaults are the published ones, but for the size of a batch.

    Attributes:
        length: tokens of a row; pads after an answer are targets up to here, so that the model learns to end.
        rows: of a batch.
        epochs: passes over the samples, instead of `steps`.
        packed: several samples in a row, that do not see each other.
        spare_pads: pads after the answer of a packed sample.
        condition_share: share of the steps over which prompts come to be visible always; before, a prompt is masked
            like the answer with a probability that falls from 1 to 0.
        held_out_share: share of the samples that are evaluated instead of learnt.
        loss: what is minimised.
        training: the run.
    """

    length: int = 2048
    rows: int = 8
    epochs: float | None = None
    packed: bool = False
    spare_pads: int = 16
    condition_share: float = 0.0
    held_out_share: float = 0.0
    loss: LossConfig = LossConfig(normalisation="sequence")
    training: TrainerConfig = TrainerConfig(steps=1000, optimizer=OptimizerConfig(learning_rate=1e-5, warmup_share=0.1))

    def __post_init__(self) -> None:
        require_sizes(self, "length", "rows")
        require_shares(self, "condition_share", "held_out_share")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs={self.epochs}: must be positive")
        if self.spare_pads < 0:
            raise ValueError(f"spare_pads={self.spare_pads}: must not be negative")


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Adaptation of an autoregressive model to masked diffusion. Published settings, but for the size of a batch.

    Attributes:
        length: tokens of a row, which short texts share and long ones fill in parts.
        rows: of a batch.
        annealing_steps: steps over which attention opens from causal to full.
        cut_share: share of the texts that are cut to a random length.
        prefix_share: share of the texts of which a random beginning is never masked.
        held_out_share: share of the texts that are evaluated instead of learnt.
        loss: what is minimised.
        training: the run.
    """

    length: int = 4096
    rows: int = 8
    annealing_steps: int = 10_000
    cut_share: float = 0.01
    prefix_share: float = 0.01
    held_out_share: float = 0.0
    loss: LossConfig = LossConfig()
    training: TrainerConfig = TrainerConfig(
        steps=100_000, optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=20_000)
    )

    def __post_init__(self) -> None:
        require_sizes(self, "length", "rows")
        require_shares(self, "cut_share", "prefix_share", "held_out_share")
        if self.annealing_steps < 0:
            raise ValueError(f"annealing_steps={self.annealing_steps}: must not be negative")

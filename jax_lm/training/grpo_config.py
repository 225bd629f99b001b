"""Settings of a coupled-GRPO run, under the names of Apple's recipe and of TRL; the defaults are that recipe.

Checks settings and sorts them by part. Does not import JAX: the command line reads these before it knows whether it
will compute anything.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from jax_lm.options import Decoding, GenerationOptions

ESTIMATORS = ("coupled", "decoupled", "full_mask")
LOSS_TYPES = ("bnpo", "grpo", "dapo", "dr_grpo", "gspo")
BASELINES = ("leave_one_out", "mean")


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """Which masked copies are scored. Hashable, hence static under jit.

    Attributes:
        kind: `coupled` draws m1 and takes its exact complement, so that each token is predicted once per pair;
            `decoupled` draws the second mask on its own at 1 - t, `full_mask` scores the fully masked copy alone: the
            paper's controls.
        pairs: mask pairs per sample, the paper's lambda; more costs two forwards each and varies less.
        min_ratio, max_ratio: bounds of t, the share of the completion that m1 masks.
    """

    kind: str = "coupled"
    pairs: int = 1
    min_ratio: float = 0.2
    max_ratio: float = 0.8

    def __post_init__(self) -> None:
        if self.kind not in ESTIMATORS:
            raise ValueError(f"estimator={self.kind!r}: must be one of {', '.join(ESTIMATORS)}")
        if self.pairs < 1:
            raise ValueError(f"num_mask_pairs={self.pairs}: must be at least 1")
        if not 0 < self.min_ratio <= self.max_ratio < 1:
            raise ValueError(f"mask ratios {self.min_ratio} to {self.max_ratio}: must lie in (0, 1) in this order")

    @property
    def copies(self) -> int:
        """Rows that the model sees per sample."""
        return 1 if self.kind == "full_mask" else 1 + 2 * self.pairs


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The form of the loss. Hashable, hence static under jit.

    Attributes:
        loss_type: what the token terms are divided by. `bnpo` and `dapo`: the completion tokens of the batch (the two
            differ where parts of a batch are normalised apart, and ours never are); `grpo`: each row by its own
            tokens, then the mean of rows; `dr_grpo`: rows times the completion length, so that long answers are not
            favoured by their length; `gspo`: as `grpo`, with one ratio per row, the geometric mean of its tokens'.
        epsilon: the ratio is clipped below 1 - epsilon.
        epsilon_high: and above 1 + epsilon_high; None is epsilon.
        beta: weight of the divergence from the reference policy; 0 needs no reference.
        kl_clamp: bound of |s_ref - s| inside the divergence: e^d of a composite score explodes.
    """

    loss_type: str = "bnpo"
    epsilon: float = 0.5
    epsilon_high: float | None = None
    beta: float = 0.01
    kl_clamp: float = 5.0

    def __post_init__(self) -> None:
        if self.loss_type not in LOSS_TYPES:
            raise ValueError(f"loss_type={self.loss_type!r}: must be one of {', '.join(LOSS_TYPES)}")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon={self.epsilon}: must lie in (0, 1)")
        if self.epsilon_high is not None and not self.epsilon_high > 0:
            raise ValueError(f"epsilon_high={self.epsilon_high}: must be positive, or None")
        if not self.beta >= 0:
            raise ValueError(f"beta={self.beta}: must not be negative")
        if not self.kl_clamp > 0:
            raise ValueError(f"kl_clamp={self.kl_clamp}: must be positive")

    @property
    def upper(self) -> float:
        """Largest ratio that is not clipped."""
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """A run: rollouts of `prompts_per_step` x `num_generations` completions, each used for `num_iterations` updates.

    Attributes:
        num_generations: completions per prompt, the group whose rewards are compared.
        prompts_per_step: prompts per rollout.
        num_iterations: updates per rollout, each with masks of its own.
        num_train_epochs: how often every prompt is used.
        max_steps: updates of the run, in place of what the epochs need.
        max_prompt_length: longer prompts are dropped, and counted.
        max_completion_length: tokens of the canvas.
        diffusion_steps: denoising steps; None is one token per step, or what the decoding's commit rule needs.
        temperature, top_p, top_k, alg: of sampling; as in `GenerationOptions`.
        decoding: exact, fast or turbo: the preset by which completions are sampled.
        generation_batch_size: completions sampled together; None is all of a rollout.
        reward_funcs, reward_weights: names (or package.module:function) and weights of the rewards.
        shuffle_rewards: hand the rewards of a rollout out at random: a control, which must not learn.
        beta, epsilon, epsilon_high, loss_type, kl_clamp: of the loss; see `PolicyLoss`.
        baseline: of the advantages: leave_one_out, or mean.
        scale_rewards: divide advantages by the standard deviation of their group.
        estimator: which masked copies are scored: coupled, or the controls decoupled and full_mask.
        num_mask_pairs: pairs of masked copies per completion, the paper's lambda.
        min_mask_ratio, max_mask_ratio: bounds of the share that the first mask of a pair covers.
        ref_model_sync_steps: updates after which the reference moves towards the policy; None is never.
        ref_model_mixup_alpha: by this share of the way.
        score_chunk: completions whose copies go through the model at once; memory grows with it. All of them (of a
            part, if accumulated) computes nothing twice, and keeps every activation.
        gradient_accumulation_steps: parts into which the completions of an update are split.
        learning_rate, warmup_ratio, min_lr_ratio: peak, share of the steps to reach it, share of it at the end.
        adam_beta1, adam_beta2, weight_decay, max_grad_norm: of AdamW (no decay on biases and norms) and clipping.
        compute_dtype: of sampling, scores and gradients; weights and moments of the optimizer are float32.
        seed: of prompts, completions and masks.
        log_every: updates between entries of the metrics.
        save_every: updates between checkpoints.
        evaluate_every: updates between evaluations.
        resume: auto continues the run in the folder, never refuses one.
        track: tensorboard, wandb.
    """

    num_generations: int = 10
    prompts_per_step: int = 8
    num_iterations: int = 2
    num_train_epochs: float = 1.0
    max_steps: int | None = None
    max_prompt_length: int = 200
    max_completion_length: int = 256
    diffusion_steps: int | None = 256
    temperature: float = 1.0
    top_p: float | None = 0.95
    top_k: int | None = 50
    alg: str = "entropy"
    decoding: str = "exact"
    generation_batch_size: int | None = None
    reward_funcs: tuple[str, ...] = ("code", "code_format")
    reward_weights: tuple[float, ...] = (2.0, 0.5)
    shuffle_rewards: bool = False
    beta: float = PolicyLoss.beta
    epsilon: float = PolicyLoss.epsilon
    epsilon_high: float | None = PolicyLoss.epsilon_high
    loss_type: str = PolicyLoss.loss_type
    kl_clamp: float = PolicyLoss.kl_clamp
    baseline: str = "leave_one_out"
    scale_rewards: bool = False
    estimator: str = Estimator.kind
    num_mask_pairs: int = Estimator.pairs
    min_mask_ratio: float = Estimator.min_ratio
    max_mask_ratio: float = Estimator.max_ratio
    ref_model_sync_steps: int | None = 64
    ref_model_mixup_alpha: float = 0.6
    score_chunk: int = 1
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-6
    warmup_ratio: float = 1e-4
    min_lr_ratio: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    weight_decay: float = 0.1
    max_grad_norm: float = 0.2
    compute_dtype: str = "bfloat16"
    seed: int = 0
    log_every: int = 1
    save_every: int = 50
    evaluate_every: int = 50
    resume: str = "auto"
    track: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("prompts_per_step", "num_iterations", "max_prompt_length", "score_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("max_steps", "ref_model_sync_steps", "generation_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1, or None")
        if self.num_generations < 2:
            raise ValueError(f"num_generations={self.num_generations}: must be at least 2, to have a group")
        if not self.num_train_epochs > 0:
            raise ValueError(f"num_train_epochs={self.num_train_epochs}: must be positive")
        if not 0 <= self.ref_model_mixup_alpha <= 1:
            raise ValueError(f"ref_model_mixup_alpha={self.ref_model_mixup_alpha}: must lie in [0, 1]")
        if self.baseline not in BASELINES:
            raise ValueError(f"baseline={self.baseline!r}: must be one of {', '.join(BASELINES)}")
        if len(self.reward_funcs) != len(self.reward_weights):
            raise ValueError(
                f"reward_weights={self.reward_weights}: must have one weight per reward {self.reward_funcs}"
            )
        for name, size, whole in (
            ("generation_batch_size", self.generation_batch_size or self.completions, self.completions),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps, self.completions),
            ("score_chunk", self.score_chunk, self.completions // max(self.gradient_accumulation_steps, 1)),
        ):
            if size < 1 or whole % size:
                raise ValueError(f"{name}={size}: must divide {whole}, the completions that it splits")
        # These parts check their own settings; sampling and optimizer do when they are made.
        _ = self.form, self.masks, self.options

    @property
    def completions(self) -> int:
        """Completions of a rollout."""
        return self.prompts_per_step * self.num_generations

    @property
    def form(self) -> PolicyLoss:
        """Settings of the loss."""
        return PolicyLoss(
            loss_type=self.loss_type,
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
            beta=self.beta,
            kl_clamp=self.kl_clamp,
        )

    @property
    def masks(self) -> Estimator:
        """Settings of the masked copies."""
        return Estimator(
            kind=self.estimator,
            pairs=self.num_mask_pairs,
            min_ratio=self.min_mask_ratio,
            max_ratio=self.max_mask_ratio,
        )

    @property
    def options(self) -> GenerationOptions:
        """Settings of sampling."""
        return GenerationOptions(
            max_new_tokens=self.max_completion_length,
            num_steps=self.diffusion_steps,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            alg=self.alg,
            decoding=Decoding(preset=self.decoding),
        )

    def steps(self, prompt_count: int) -> int:
        """Updates of a run over so many prompts."""
        if self.max_steps is not None:
            return self.max_steps
        return math.ceil(prompt_count * self.num_train_epochs / self.prompts_per_step) * self.num_iterations

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must agree on; the trainer adds what it knows itself."""
        free = {"log_every", "save_every", "evaluate_every", "resume", "track", "max_steps", "generation_batch_size"}
        return {name: value for name, value in asdict(self).items() if name not in free}

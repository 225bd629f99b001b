"""Settings of coupled-GRPO: the masked copies of a score, the form of the loss, the run.

    GRPOConfig(num_generations=8, masks=Estimator(estimator="trace"), loss=PolicyLoss(beta=0.0))

Imports no JAX, because the command line reads these. Docstrings are its help.
"""

import math
from dataclasses import dataclass
from functools import partial

from jax_lm.config import Floats, Texts
from jax_lm.options import (
    P2,
    PIPELINE_SETTINGS,
    GenerationOptions,
    require,
    require_above_zero,
    require_inner_shares,
    require_not_negative,
    require_one_of,
    require_shares,
    require_sizes,
)
from jax_lm.training.config import OptimizerConfig, TrainerConfig

# The values that settings may take.
ESTIMATORS = """
    coupled decoupled full_mask trace stratified left_to_right evidence
""".split()  # noqa: SIM905 (a table, not a list)
LOSS_TYPES = ("bnpo", "grpo", "dapo", "dr_grpo", "gspo")
BASELINES = ("leave_one_out", "mean")
# Apple's recipe (DiffuCoder, arXiv 2506.20639).
PAPER_SAMPLING = GenerationOptions(max_new_tokens=256, num_steps=256, temperature=1.0)
PAPER_TRAINING = TrainerConfig(
    optimizer=OptimizerConfig(
        learning_rate=1e-6, warmup_ratio=1e-4, adam_beta2=0.99, max_grad_norm=0.2
    ),
    compute_dtype="bfloat16",
    log_every=1,
    save_every=50,
    evaluate_every=50,
)


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """Masked copies whose log-probabilities make a score. Hashable, hence static under jit.

    Attributes:
        estimator: `coupled` draws m1 and takes its exact complement, so that each token is
            predicted once per pair. The paper's controls: `decoupled` draws the second mask
            independently at 1 - t, `full_mask` scores the fully masked copy alone. `trace` scores
            each token on the canvas that it was drawn from, by the passes of the sampler (TraceRL,
            arXiv 2509.06949). `stratified` divides the positions into random parts, and masks each
            once. `left_to_right` scores each token with all tokens before it visible and all others
            masked (JustGRPO, arXiv 2601.15165), one forward pass per token. `evidence` draws pairs
            of which m1 masks a number of tokens between none and all; the mean of the scores'
            sum is the evidence bound (ESPO, arXiv 2512.03759, with `loss_type` gspo).
        num_mask_pairs: mask pairs per completion, the paper's lambda; each costs two forward passes
            and reduces the variance.
        num_segments: parts of `stratified`; each costs one forward pass. `trace` has one canvas
            for each decoding step: merging steps would score canvases that the sampler never saw.
        min_mask_ratio: lower bound of t, the share of the completion that m1 masks.
        max_mask_ratio: upper bound of t.
        sampling_temperature: score at the temperature of sampling, instead of 1.
    """

    estimator: str = "coupled"
    num_mask_pairs: int = 1
    num_segments: int = 4
    min_mask_ratio: float = 0.2
    max_mask_ratio: float = 0.8
    sampling_temperature: bool = False

    def __post_init__(self):
        require_one_of("estimator", self.estimator, ESTIMATORS)
        require_sizes(self, "num_mask_pairs", "num_segments")
        if not 0 < self.min_mask_ratio <= self.max_mask_ratio < 1:
            raise ValueError(
                f"mask ratios {self.min_mask_ratio} to {self.max_mask_ratio}: "
                f"must lie in (0, 1) in this order"
            )

    @property
    def reads_steps(self) -> bool:
        """Whether masks follow from an order of the tokens, as decoded or from left to right."""
        return self.estimator in ("trace", "left_to_right")

    @property
    def copies(self) -> int:
        """Masked copies per completion, of estimators that draw masks."""
        pairs = 2 * self.num_mask_pairs
        others = {"stratified": self.num_segments, "full_mask": 1, "evidence": pairs}
        # The full mask, and two copies per pair.
        return others.get(self.estimator, 1 + pairs)

    @property
    def divisor(self) -> float:
        """Number of estimates that a token's weighted log-probabilities add up to."""
        # The full mask is one estimate, and each pair is another. With `evidence`, each copy is
        # one.
        others = {"stratified": 1.0, "evidence": float(self.copies)}
        return others.get(self.estimator, (self.copies + 1) / 2)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The form of the policy-gradient loss. Hashable, hence static under jit.

    Attributes:
        loss_type: divisor of the token terms. `bnpo` and `dapo`: the completion tokens of the batch
            (the two differ only if parts of a batch are normalised separately, which ours never
            are). `grpo`: each row by its own tokens, then the mean of rows. `dr_grpo`: rows times
            the completion length, so that long answers are not favoured. `gspo`: like `grpo`, with
            one ratio per row, the geometric mean of its tokens' ratios.
        epsilon: the ratio is clipped below 1 - epsilon.
        epsilon_high: the ratio is clipped above 1 + epsilon_high; None is epsilon.
        beta: weight of the divergence from the reference policy; 0 needs no reference.
        kl_clamp: |s_ref - s| beyond which the divergence is linear, as e^d of a composite score
            explodes; inf is the published form.
        negative_scale: factor of the tokens of completions that are worse than their group.
        negative_power: tokens of such completions are also weighted by their probability to this
            power.
        negative_floor: tokens of such completions do not count below this probability.
        delta: upper bound of the ratio of such tokens, which the clip leaves unbounded above (dual
            clip); None is no bound.
    """

    loss_type: str = "bnpo"
    epsilon: float = 0.5
    epsilon_high: float | None = None
    beta: float = 0.01
    kl_clamp: float = 5.0
    negative_scale: float = 1.0
    negative_power: float = 0.0
    negative_floor: float = 0.0
    delta: float | None = None

    def __post_init__(self):
        require_one_of("loss_type", self.loss_type, LOSS_TYPES)
        require_inner_shares(self, "epsilon")
        require("must be positive", lambda value: value > 0, self, "epsilon_high", "kl_clamp")
        require_not_negative(self, "beta", "negative_scale", "negative_power")
        require_shares(self, "negative_floor")
        require("must be above 1", lambda value: value > 1, self, "delta")

    @property
    def upper(self) -> float:
        """Largest ratio that is not clipped."""
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Coupled-GRPO: rollouts of `prompts_per_step` x `num_generations` completions.

    Each rollout is used for `num_iterations` updates. The defaults are Apple's recipe.

    Attributes:
        num_generations: completions per prompt, whose rewards are compared.
        prompts_per_step: prompts per rollout.
        num_iterations: updates per rollout, each with its own masks.
        num_train_epochs: how often every prompt is used; `max_steps` overrides it.
        max_prompt_length: longer prompts are dropped, and counted.
        held_out_prompts: number of prompts, drawn by the seed, that are not learnt from; their mean
            reward is measured every `evaluate_every` updates and at the end, always with the same
            random numbers.
        generation_batch_size: completions sampled together; None is all of a rollout.
        reward_funcs: names of rewards, or functions of yours, as file.py:function or
            package.module:function.
        reward_weights: their weights, in this order; on the command line 1 for a single reward if
            not given.
        dynamic_sampling: how often a rollout draws new prompts to replace groups whose completions
            have equal rewards and teach nothing (DAPO, arXiv 2503.14476); 0 keeps such groups.
        shuffle_rewards: assign the rewards of a rollout at random: a control, which must not learn.
        baseline: what is subtracted from a reward: leave_one_out (mean of the other completions of
            the group) or mean (of all of them).
        scale_rewards: divide advantages by the standard deviation of their group.
        ref_model_sync_steps: updates after which the reference moves towards the policy; None is
            never.
        ref_model_mixup_alpha: share of the distance by which it moves.
        score_chunk: completions whose copies go through the model at once, a multiple of the
            devices that split rows; None is one per such device. Memory grows with it. A chunk of
            all completions (of a part, if accumulated) keeps its activations for the gradient,
            smaller ones recompute them. An incomplete chunk is filled up with rows that do not
            count.
        remat: recompute the inside of layers, as in SFT.
        rollout_mesh: devices for sampling, such as data=2,tensor=4, where a copy of the weights in
            the compute dtype is placed for a rollout; None splits it as little as memory allows.
        generation: how completions are sampled.
        masks: which masked copies are scored.
        loss: clipping and the penalty for drifting away.
        training: steps, optimizer, checkpoints.
    """

    num_generations: int = 10
    prompts_per_step: int = 8
    num_iterations: int = 2
    num_train_epochs: float = 1.0
    max_prompt_length: int = 200
    held_out_prompts: int = 0
    generation_batch_size: int | None = None
    reward_funcs: Texts = ("code", "code_format")
    reward_weights: Floats = (2.0, 0.5)
    dynamic_sampling: int = 0
    shuffle_rewards: bool = False
    baseline: str = "leave_one_out"
    scale_rewards: bool = False
    ref_model_sync_steps: int | None = 64
    ref_model_mixup_alpha: float = 0.6
    score_chunk: int | None = None
    remat: bool | None = None
    rollout_mesh: str | None = None
    generation: GenerationOptions = PAPER_SAMPLING
    masks: Estimator = Estimator()
    loss: PolicyLoss = PolicyLoss()
    training: TrainerConfig = PAPER_TRAINING

    def __post_init__(self):
        require_sizes(
            self,
            "prompts_per_step",
            "num_iterations",
            "max_prompt_length",
            "score_chunk",
            "ref_model_sync_steps",
            "generation_batch_size",
        )
        require_above_zero(self, "num_train_epochs")
        require_not_negative(self, "held_out_prompts", "dynamic_sampling")
        require_shares(self, "ref_model_mixup_alpha")
        require_one_of("baseline", self.baseline, BASELINES)
        # Scores are computed with full attention, so completions must be sampled with it.
        decoding = self.generation.decoding.settings
        require("scores do not know its mask", lambda cache: cache != "causal", decoding, "cache")
        if self.masks.estimator == "trace":
            # With these settings, keys and values come from earlier blocks, or tokens from other
            # canvases.
            require_traced = partial(require, "estimator='trace' does not score such a decoding")
            require_traced(lambda value: value == 1, decoding, "refresh_every")
            require_traced(lambda value: not value, decoding, "refresh_steps", "freeze_prompt")
            require_traced(lambda value: not value, self.generation, "lookahead")
            require_traced(lambda value: value != P2, self.generation, "alg")
            require_traced(lambda value: False, self.generation.decoding, *PIPELINE_SETTINGS)
            require_traced(lambda value: value != "delayed", decoding, "cache")
        if self.masks.sampling_temperature:
            rule = "scores have no temperature 0"
            require(rule, lambda value: value > 0, self.generation, "temperature")
        require(
            "must be at least 2, to have a group", lambda value: value >= 2, self, "num_generations"
        )
        # A missing weight would shift all weights after it, and of two equal names one would count.
        rewards = self.reward_funcs
        weights = self.reward_weights
        if not len({*rewards}) == len(rewards) == len(weights):
            raise ValueError(
                f"reward_weights={weights}: must have one weight per reward {rewards}, and these must differ"
            )
        # 8 prompts with 10 generations are 80 completions, which batches and parts must divide.
        rule = f"must divide {self.completions}, the completions that it splits"
        require_divisor = partial(require, rule, lambda size: self.completions % size == 0)
        require_divisor(self, "generation_batch_size")
        require_divisor(self.training, "gradient_accumulation_steps")

    @property
    def completions(self) -> int:
        """Completions per rollout."""
        return self.prompts_per_step * self.num_generations

    def steps(self, prompt_count: int) -> int:
        """Return the number of updates of a run over `prompt_count` prompts."""
        if self.training.max_steps is not None:
            return self.training.max_steps
        # 100 prompts, 1 epoch, 8 per rollout, 2 updates each: 13 rollouts, 26 updates
        return self.num_iterations * math.ceil(
            prompt_count * self.num_train_epochs / self.prompts_per_step
        )

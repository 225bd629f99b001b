"""Settings of training runs, under the names of Hugging Face and TRL.

    optimizer = OptimizerConfig(learning_rate=1e-4)
    SftConfig(max_length=256, training=TrainerConfig(max_steps=200, optimizer=optimizer))

Imports no JAX, because the command line reads these. Docstrings are its help.
"""

import re
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf

from jax_lm.config import Fields, Texts
from jax_lm.options import (
    require,
    require_above_zero,
    require_inner_shares,
    require_not_negative,
    require_one_of,
    require_only,
    require_shares,
    require_sizes,
)
from jax_lm.training.metrics import TRACKERS

# The values that settings may take.
WEIGHTINGS = ("1/t", "linear", "cart", "plain")
NORMALISATIONS = ("token", "sequence", "batch", "masked")
OPTIMIZERS = ("adafactor",)
# Settings of the trainer that may differ when a run is resumed.
CHANGEABLE = """
    stop_after log_every save_every evaluate_every keep async_checkpointing metric_for_best_model
    load_best_model_at_end early_stopping_patience resume track profile
""".split()  # noqa: SIM905 (a table, not a list)

# For example steps=10:13.
PROFILE = re.compile(r"steps=(\d+):(\d+)")


def settings_without(config, *names: str) -> Fields:
    """Return the settings that a resumed run must agree on: all except `names`, nested."""
    return {name: value for name, value in asdict(config).items() if name not in names}


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, its schedule, and gradient clipping.

    Attributes:
        optim: adafactor instead of AdamW. It keeps no first moment, and only row and column sums of
            a matrix's second moment, so it takes almost no memory; it ignores the adam settings.
        learning_rate: peak, after the warm-up.
        warmup_ratio: share of the steps over which the learning rate rises; `warmup_steps`
            overrides it.
        warmup_steps: number of those steps.
        min_lr_ratio: share of the peak to which the cosine falls.
        adam_beta1: decay of the first moment.
        adam_beta2: decay of the second moment.
        adam_epsilon: added to the root of the second moment.
        weight_decay: decoupled; applies to the model's matrices, never to biases, norms and
            adapters.
        max_grad_norm: bound of the gradient's global norm.
        muon_learning_rate: peak for the layers' matrices, which Muon (orthogonalised momentum)
            updates instead; needs about half the steps of AdamW on the built-in model. All other
            weights stay with AdamW.
    """

    optim: str | None = None
    learning_rate: float
    warmup_ratio: float = 0.0
    warmup_steps: int | None = None
    min_lr_ratio: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    muon_learning_rate: float | None = None

    def __post_init__(self):
        if self.optim is not None:
            require_one_of("optim", self.optim, OPTIMIZERS)
        require_above_zero(
            self, "learning_rate", "muon_learning_rate", "max_grad_norm", "adam_epsilon"
        )
        require_not_negative(self, "weight_decay", "warmup_steps")
        require_shares(self, "warmup_ratio", "min_lr_ratio")
        require(
            "must lie in [0, 1)", lambda value: 0 <= value < 1, self, "adam_beta1", "adam_beta2"
        )

    def warmup(self, steps: int) -> int:
        """Return the warm-up steps of a run. Raises ValueError if no other steps would be left."""
        # ratio 0.03 of 1000 steps: 30
        warmup = self.warmup_steps
        if warmup is None:
            warmup = round(self.warmup_ratio * steps)
        if warmup >= steps:
            raise ValueError(f"warmup_steps={warmup}: must lie in [0, max_steps={steps})")
        return warmup


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """A run of the trainer.

    Attributes:
        max_steps: updates of the whole schedule; None is as many as the epochs need.
        optimizer: AdamW or Muon, and the schedule.
        stop_after: end the run after this many steps, before its schedule ends.
        gradient_accumulation_steps: parts of a batch, computed one after the other; the gradient is
            that of the whole batch.
        compute_dtype: float32 or bfloat16, of the weights in the loss (and in the rollouts of
            coupled-GRPO); masters and moments are float32. None is bfloat16 for models of 250
            million parameters and more.
        seed: seed of the data order and of the loss's random numbers.
        log_every: steps between entries of the metrics.
        save_every: steps between checkpoints.
        evaluate_every: steps between evaluations.
        keep: newest checkpoints to keep, in addition to the best one with `metric_for_best_model`.
        async_checkpointing: write checkpoints while training continues; None does on accelerators
            only, as on a CPU it takes a copy of the state and the cores that train.
        metric_for_best_model: metric that compares evaluations, such as loss or reward; higher is
            better, unless the name ends in loss. Each new best evaluation is saved, and the best
            one is kept.
        load_best_model_at_end: end with the weights of the best evaluation instead of the last;
            None does in coupled-GRPO with held-out prompts, by their reward.
        early_stopping_patience: evaluations in a row without improvement that end the run.
        resume: `auto` continues from the newest checkpoint; `never` refuses a folder that has one.
        track: trackers that also record the metrics: tensorboard, wandb.
        profile: steps=10:13 writes a trace of these steps.
    """

    max_steps: int | None = None
    optimizer: OptimizerConfig
    stop_after: int | None = None
    gradient_accumulation_steps: int = 1
    compute_dtype: str | None = None
    seed: int = 0
    log_every: int = 10
    save_every: int = 500
    evaluate_every: int = 500
    keep: int = 2
    async_checkpointing: bool | None = None
    metric_for_best_model: str | None = None
    load_best_model_at_end: bool | None = None
    early_stopping_patience: int | None = None
    resume: str = "auto"
    track: Texts = ()
    profile: str | None = None

    def __post_init__(self):
        sizes = ("gradient_accumulation_steps", "log_every", "save_every", "evaluate_every", "keep")
        require_sizes(self, "max_steps", "stop_after", "early_stopping_patience", *sizes)
        # Both compare evaluations, and need to know by which metric.
        for name in ("load_best_model_at_end", "early_stopping_patience"):
            if getattr(self, name) and self.metric_for_best_model is None:
                raise ValueError(f"{name}={getattr(self, name)}: needs metric_for_best_model")
        if self.compute_dtype is not None:
            require_one_of("compute_dtype", self.compute_dtype, ("float32", "bfloat16"))
        require_one_of("resume", self.resume, ("auto", "never"))
        require_not_negative(self, "seed")
        for name in self.track:
            require_one_of("track", name, tuple(TRACKERS))
        # Without max_steps, epochs define the steps once the data are known.
        if self.max_steps is not None:
            # Raises if the warm-up takes all steps.
            self.optimizer.warmup(self.max_steps)
            if self.last_step > self.max_steps:
                raise ValueError(
                    f"stop_after={self.stop_after}: must lie in [1, max_steps={self.max_steps}]"
                )
        # Raises if the text is malformed.
        _ = self.profile_steps

    @property
    def dtype(self) -> str:
        """Compute dtype of updates. Raises ValueError if none has been chosen yet."""
        if self.compute_dtype is None:
            raise ValueError("compute_dtype=None: must be given, or chosen by the size of a model")
        return self.compute_dtype

    @property
    def steps(self) -> int:
        """Updates of the whole schedule. Raises ValueError if the number is not known yet."""
        if self.max_steps is None:
            raise ValueError("max_steps=None: must be given where epochs do not define the steps")
        return self.max_steps

    @property
    def last_step(self) -> int:
        """The step at which this run ends."""
        return self.stop_after or self.steps

    @cached_property
    def profile_steps(self) -> range:
        """Steps to trace."""
        if self.profile is None:
            return range(0)
        match = PROFILE.fullmatch(self.profile)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= (self.max_steps or inf):
            raise ValueError(f"profile={self.profile!r}: must be steps=FIRST:LAST within the run")
        # steps=10:13 -> steps 10 to 13, both included
        return range(int(match[1]), int(match[2]) + 1)

    @property
    def identity(self) -> Fields:
        """Settings that a resumed run must agree on: all that affect the weights."""
        return settings_without(self, *CHANGEABLE)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The masked-diffusion loss.

    Attributes:
        weighting: weight of a masked token: 1/t, linear (1 - t), cart (by distance to visible
            tokens) or plain (1).
        normalisation: token divides by all canvas positions, sequence averages the means of the
            samples, batch divides by the number of samples, masked by the number of masked
            positions.
        level_draws: how levels t are drawn: `even` spreads the samples of a step evenly over (0,
            1), `antithetic` pairs t with 1 - t, `independent` draws one level per sample.
        high_levels: t = 1 - u^2 instead of t = u, except for the samples of `confident_share`.
        minimum_level: lowest t.
        confident_share: share of the samples that show a beginning and the tokens of the rest that
            the model is most confident of, as in decoding by confidence; costs one more forward
            pass, and requires plain weighting.
        max_weight: bound of 1/t; None is no bound.
        cart_p: share of the nearest visible token in cart's weight; the shares of tokens further
            away fall geometrically. The default is that of Dream's training configuration.
        masks_per_query: attention differs between the tokens of a row, as packed rows need; None
            follows the rows.
        block_length: train block diffusion: each block of this many tokens has its own level and
            attends to the clean blocks before it, in rows of twice the length. The saved model
            attends by these blocks. None takes the block length of the model, if it has one.
        complementary_masks: learn each sample twice, from its masks and from their complement, so
            that every token counts once; requires plain weighting and token or sequence
            normalisation.
        remat: recompute the inside of a layer for its gradient instead of keeping it; None does for
            models of 250 million parameters and more.
    """

    weighting: str = "1/t"
    normalisation: str = "token"
    level_draws: str = "even"
    high_levels: bool = False
    minimum_level: float = 1e-3
    confident_share: float = 0.0
    max_weight: float | None = None
    cart_p: float = 0.1
    masks_per_query: bool | None = None
    block_length: int | None = None
    complementary_masks: bool = False
    remat: bool | None = None

    def __post_init__(self):
        require_one_of("weighting", self.weighting, WEIGHTINGS)
        require_one_of("normalisation", self.normalisation, NORMALISATIONS)
        require_one_of("level_draws", self.level_draws, ("even", "antithetic", "independent"))
        require_inner_shares(self, "minimum_level", "cart_p")
        rule = "must be from 0 to 1, and 0 with a weighting that is not plain"
        # The other weightings assume masks that are drawn independently.
        highest = 1 if self.weighting == "plain" else 0
        require(rule, lambda value: 0 <= value <= highest, self, "confident_share")
        require_sizes(self, "block_length")
        if self.block_length is not None and self.weighting == "cart":
            raise ValueError(
                f"block_length={self.block_length}: must be None with weighting='cart'"
            )
        counts_once = self.weighting == "plain" and self.normalisation in ("token", "sequence")
        if self.complementary_masks and not counts_once:
            raise ValueError(
                f"complementary_masks=True: needs weighting='plain', not {self.weighting!r}, and "
                f"normalisation='token' or 'sequence', not {self.normalisation!r}"
            )
        rule = "must be at least 1, the weight of a full mask"
        require(rule, lambda value: 1 <= value < inf, self, "max_weight")

    @property
    def row_factor(self) -> int:
        """Tokens computed per token of a row: block diffusion adds a clean copy of each row."""
        return 1 if self.block_length is None else 2


SFT_LOSS = LossConfig(normalisation="sequence")


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning. The defaults are the published ones, except for the batch size.

    Attributes:
        max_length: tokens of a row; pads after an answer are targets up to here, so that the model
            learns to end. None takes what the longest sample needs, at most 2,048 and the context
            of the model.
        batch_size: rows of a step, over all devices.
        num_train_epochs: passes over the samples, instead of `max_steps`.
        packed: put several samples into a row; they do not see each other.
        spare_pads: pads after the answer of a packed sample.
        condition_share: share of the steps during which a prompt may be masked like the answer,
            with a probability that falls from 1 to 0; after them prompts are always visible.
        expand_delete: teach holes that adapt their length (DreamOn): lines of an answer are the
            canvas, with the wrong number of masks, under DreamOn's loss. The checkpoint gets the
            token for expanding if it has none. That loss weighs by 1 - t and hardly teaches full
            holes; plain `weighting` and `high_levels` teach them too.
        excess_masks: distribution of the number of surplus masks in a hole of `expand_delete`, up
            to 63: uniform, as published, or log, uniform in the logarithm, for short holes.
        held_out_share: share of the samples that are evaluated instead of learnt.
        loss: the masked-diffusion loss.
        training: steps, optimizer, checkpoints.
    """

    max_length: int | None = None
    batch_size: int = 8
    num_train_epochs: float | None = None
    packed: bool = False
    spare_pads: int = 16
    condition_share: float = 0.0
    expand_delete: bool = False
    excess_masks: str = "uniform"
    held_out_share: float = 0.0
    loss: LossConfig = SFT_LOSS
    training: TrainerConfig = TrainerConfig(
        max_steps=1000, optimizer=OptimizerConfig(learning_rate=1e-5, warmup_ratio=0.1)
    )

    def __post_init__(self):
        require_sizes(self, "max_length", "batch_size")
        require_shares(self, "condition_share", "held_out_share")
        require_above_zero(self, "num_train_epochs")
        require_not_negative(self, "spare_pads")
        require_one_of("excess_masks", self.excess_masks, ("uniform", "log"))
        if self.expand_delete:
            self.require_own_loss()

    def require_own_loss(self):
        """Raise ValueError for settings that DreamOn's loss would ignore."""
        # DreamOn's loss draws its own masks; these settings still apply.
        free = {"remat", "high_levels"}
        if self.loss.weighting == "plain":
            free.add("weighting")
        # The defaults, which mean that the user has set nothing.
        required = {name: value for name, value in asdict(SFT_LOSS).items() if name not in free}
        reason = "with expand_delete, whose loss is its own"
        require_only(self.loss, required, reason)
        require_only(self, {"packed": False, "condition_share": 0.0}, reason)


@dataclass(frozen=True, kw_only=True)
class AdaptConfig:
    """Adaptation of an autoregressive model to masked diffusion.

    The defaults are the published ones, except for the batch size.

    Attributes:
        max_length: tokens of a row; short texts share one, long texts fill several. None is 4096, or
            the model's context if that is shorter.
        batch_size: rows of a step, over all devices.
        annealing_steps: steps over which attention opens from causal to full; None is a tenth of the
            run, or 0 with `block_length`.
        cut_share: share of the texts that are cut to a random length.
        prefix_share: share of the texts with a random beginning that is never masked.
        attention: with `block_length`, what a token attends to. `blocks`: its whole block, and those
            before it (BD3LM). `causal`: the tokens up to itself, so that the model stays the
            autoregressive one that it was, and learns to fill the masks after a text (arXiv
            2507.11851).
        held_out_share: share of the texts that are evaluated instead of learnt.
        loss: the masked-diffusion loss.
        training: steps, optimizer, checkpoints.
    """

    max_length: int | None = None
    batch_size: int = 8
    attention: str = "blocks"
    annealing_steps: int | None = None
    cut_share: float = 0.01
    prefix_share: float = 0.01
    held_out_share: float = 0.0
    loss: LossConfig = LossConfig()
    training: TrainerConfig = TrainerConfig(
        max_steps=100_000, optimizer=OptimizerConfig(learning_rate=2e-5, warmup_ratio=0.2)
    )

    def __post_init__(self):
        require_sizes(self, "max_length", "batch_size")
        require_shares(self, "cut_share", "prefix_share", "held_out_share")
        require_not_negative(self, "annealing_steps")
        require_one_of("attention", self.attention, ("blocks", "causal"))
        if self.is_causal and self.loss.block_length is None:
            raise ValueError("attention='causal': needs block_length")
        if self.annealing_steps and self.loss.block_length is not None:
            raise ValueError(
                f"annealing_steps={self.annealing_steps}: must be 0 with block_length, whose "
                "blocks see what is before them from the first step on"
            )

    @property
    def is_causal(self) -> bool:
        return self.attention == "causal"

    @property
    def opening_steps(self) -> int:
        """Steps over which attention opens."""
        if self.loss.block_length is not None:
            return 0
        if self.annealing_steps is not None:
            return self.annealing_steps
        return round((self.training.max_steps or 0) / 10)

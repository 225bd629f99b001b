"""Coupled-GRPO: policy optimisation of a masked-diffusion model on rewards.

    trainer = DiffuGRPOTrainer(model, tokenizer, rows, GRPOConfig(), out=folder)
    trainer.train()

Source: DiffuCoder, arXiv 2506.20639. The steps of an update:

1. `RolloutSource.draw` makes a rollout every `num_iterations` updates: `rollouts` samples
   completions, judges them and compares the rewards of each group.
2. `RolloutSource.score` scores the completions under the old and the reference policy
   (`policy_loss`).
3. `grpo_loss` scores them under the current policy, and computes the loss from all three.
4. `trainer` takes the step.
"""

import hashlib
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from jaxtyping import Array

from jax_lm.config import DreamConfig, Fields
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import training_flops
from jax_lm.rewards import WeightedSum, weighted_sum
from jax_lm.sharding import on_mesh
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import settings_without
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.metrics import Metrics
from jax_lm.training.policy_loss import policy_loss
from jax_lm.training.prompt_set import PromptSet
from jax_lm.training.rollout_source import RolloutSource
from jax_lm.training.run_defaults import log_setup, resolve_grpo, weight_count
from jax_lm.training.trainer import Evaluate, State, Trainer
from jax_lm.training.update import NameTest, Params, in_dtype, merge_params, partition

__all__ = ["DiffuGRPOTrainer", "GRPOConfig"]

logger = logging.getLogger(__name__)

# Allowed |s - s_old| before a rollout's first update: two programs may round differently.
RATIO_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}

# Share of tokens that may exceed the tolerance, and the number of rollouts in a row with a larger
# share that ends a run. So the 99 % quantile decides: the largest of a million differences means
# nothing.
UNEQUAL_SHARE = 0.01
UNEQUAL_ROLLOUTS = 3

# Scores of rewarded rows are compared with earlier ones once there are this many.
WATCHED_UPDATES = 4


class DiffuGRPOTrainer:
    """Trains a masked-diffusion model on the rewards of its own completions.

    Args:
        model: the policy to start from, and the first reference.
        tokenizer: tokenizer of the model.
        rows: prompts, each a mapping with "prompt" (text, or chat messages) and the columns that
            rewards read.
        config: settings of the run.
        out: folder for metrics, completions and checkpoints; a run in it is continued.
        rewards: rewards of completions; None makes them from `reward_funcs` and `reward_weights`.
        trained: which parameters are trained, by their checkpoint name (such as `is_lora`).
        identity: further settings (JSON) that a resumed run must agree on.

    Raises:
        ValueError: settings contradict each other, no prompt is usable, or the model has no mask
            token.
    """

    def __init__(
        self,
        model: DreamForCausalLM,
        tokenizer: DiffuCoderTokenizer,
        rows: Iterable[Fields],
        config: GRPOConfig,
        *,
        out: Path,
        rewards: WeightedSum | None = None,
        trained: NameTest = lambda name: True,
        identity: Fields | None = None,
    ):
        self.out = out
        self.unequal_rollouts = 0
        # Scores of rewarded rows; step, value and error of the best value of each watched metric.
        self.scores: list[float] = []
        self.best: dict[str, tuple[int, float, float]] = {}

        # What the policy learns from: prompts and rewards.
        tokenizer.require_ids(model.config)
        judges = rewards or weighted_sum(
            dict(zip(config.reward_funcs, config.reward_weights, strict=True))
        )
        prompts = PromptSet.of(rows, tokenizer, config.max_prompt_length)
        judges.require_columns(prompt.columns for prompt in prompts.prompts)
        # Try out rewards that were given by name, so that a broken function fails now.
        if rewards is None:
            first = prompts.prompts[0]
            judges.try_out(first.content, **first.columns | {"completion_ids": []})
        prompts, self.held_out = prompts.hold_out(config.held_out_prompts, config.training.seed)
        require_room_for_completions(model, prompts, config)

        # The weights of the policy: those that are trained, and the others.
        sampler = Sampler(model)
        weights = on_mesh(sampler.params, model.config, model.mesh)
        params, self.others = partition(weights, trained)
        self.graph = sampler.graph

        # Settings that follow from the size of the model and from the devices.
        self.config = resolve_grpo(config, weight_count(weights), model.mesh)
        training = self.config.training
        if self.held_out and training.load_best_model_at_end is None:
            metric = training.metric_for_best_model or "reward"
            training = replace(training, metric_for_best_model=metric, load_best_model_at_end=True)
        frozen = in_dtype(self.others, training.dtype)

        # Where batches come from, and what minimises the loss on them.
        self.source = RolloutSource(
            sampler, tokenizer, prompts, judges, self.config, out, params=params, frozen=frozen
        )
        self.trainer = Trainer(
            grpo_loss(self.source.score_rows, self.config),
            params,
            replace(training, max_steps=self.config.steps(len(prompts.prompts))),
            out=out,
            frozen=frozen,
            identity=self.describe(model, prompts) | (identity or {}),
            # The passes of `trace` differ in their rows.
            token_flops=(
                None if config.masks.reads_steps else partial(self.count_flops, model.config)
            ),
        )

    def describe(self, model: DreamForCausalLM, prompts: PromptSet) -> Fields:
        """Return the settings that a resumed run must agree on; logs how the run computes."""
        config = self.config
        mesh_record = log_setup(
            model.mesh,
            compute_dtype=config.training.dtype,
            remat=config.remat,
            score_chunk=config.score_chunk,
        )
        # The digest of the prompts covers which of them are held out.
        settings = settings_without(config, "held_out_prompts", "training")
        if config.generation.decoding.settings.commit == "steps":
            # Rows do not depend on their batch. With other commit rules they do: a block begins
            # when the slowest row of the batch has finished the previous one.
            del settings["generation_batch_size"]
        return mesh_record | {"grpo": settings, "prompts": fingerprint(prompts)}

    def count_flops(self, shape: DreamConfig, length: int) -> float:
        """Count the operations per token of an update; those of rollouts do not count."""
        flops = training_flops(
            shape, length, self.config.generation.max_new_tokens, all_weights=not self.others
        )
        return self.config.masks.copies * flops

    def train(self, evaluate: Evaluate | None = None) -> bool:
        """Start the run or continue it; returns whether it reached its end.

        Args:
            evaluate: returns metrics of the trained weights, at the start, every `evaluate_every`
                steps and at the end. The mean reward of held-out prompts, if there are any, is added to them.

        Raises:
            RuntimeError: in several rollouts in a row, the first update did not see the policy,
                rows or masks that the old scores were made with.
            FloatingPointError: loss or gradient is not finite.
            ValueError: `out` holds a run that may not be, or cannot be, continued.
        """
        self.unequal_rollouts = 0
        self.scores = []
        self.best = {}
        # Held-out rewards come first, so that the caller's metrics win where names are equal.
        evaluations = [evaluate] if evaluate else []
        if self.held_out:
            evaluations.insert(0, self.evaluate_held_out)

        def evaluate_all(params):
            return {name: value for each in evaluations for name, value in each(params).items()}

        return self.trainer.run(
            self.source,
            evaluate=evaluate_all if evaluations else None,
            evaluates_start=True,
            check=self.check,
        )

    def evaluate_held_out(self, params: Params) -> Metrics:
        """Return the metrics of held-out prompts; warns if their reward has fallen."""
        metrics = self.source.evaluate(self.held_out, params)
        self.watch(
            "the held-out reward", self.state.step, metrics["reward"], metrics["reward_error"]
        )
        return metrics

    def check(self, step: int, metrics: Metrics):
        """Check the metrics of an update: its ratios, and the scores of rewarded rows."""
        self.check_ratio(step, metrics)
        if metrics["rate_scale"]:
            score = metrics["rewarded_logprob"]
            self.scores.append(score)
            if len(self.scores) >= WATCHED_UPDATES:
                # Rewarded rows should become likelier; otherwise negative rows dominate updates.
                self.watch(
                    "the mean log-probability of rewarded rows",
                    step,
                    score,
                    statistics.stdev(self.scores),
                )

    def watch(self, name: str, step: int, value: float, error: float):
        """Warn if a value is two standard errors below the best so far."""
        best_step, best, best_error = self.best.setdefault(name, (step, value, error))
        if best - value > 2 * math.hypot(error, best_error):
            logger.warning(
                "step %d: %s is %.3f, more than two standard errors below the %.3f of step %d: lower "
                "learning_rate or negative_scale, or stop",
                *(step, name, value, best, best_step),
            )
        elif value > best:
            self.best[name] = step, value, error

    @property
    def state(self) -> State:
        """Trained weights, moments, and steps done."""
        return self.trainer.state

    @property
    def model(self) -> DreamForCausalLM:
        """The current policy."""
        return self.graph.merge(merge_params(self.others, self.state.params))

    def check_ratio(self, step: int, metrics: Metrics):
        """Check that the first update of a rollout started from ratio 1.

        Warns if it did not, and raises RuntimeError if that happens in several rollouts in a row.
        """
        # With num_iterations == 2, steps 1, 3, 5, ... are the first updates of a rollout.
        if (step - 1) % self.config.num_iterations:
            return
        if metrics["unequal_share"] <= UNEQUAL_SHARE:
            self.unequal_rollouts = 0
            return
        self.unequal_rollouts += 1
        message = (
            f"step {step}: |s - s_old| is above {RATIO_TOLERANCE[self.config.training.dtype]} for "
            f"{metrics['unequal_share']:.1%} of the tokens (at most {UNEQUAL_SHARE:.0%}; the "
            f"largest is {metrics['max_log_ratio']:.3g}) before the first update of a rollout"
        )
        if self.unequal_rollouts == UNEQUAL_ROLLOUTS:
            raise RuntimeError(f"{message}, of the {UNEQUAL_ROLLOUTS}rd in a row")
        logger.warning(message)


def require_room_for_completions(model: DreamForCausalLM, prompts: PromptSet, config: GRPOConfig):
    """Raise ValueError if prompts and completions exceed the context, or attention is by blocks."""
    if model.config.block_size is not None:
        raise ValueError(
            f"{model.config.family.name} attends by blocks, which coupled-GRPO does not score"
        )
    new_tokens = config.generation.max_new_tokens
    context = model.config.max_position_embeddings
    length = prompts.width + new_tokens
    if length > context:
        raise ValueError(
            f"max_prompt_length={config.max_prompt_length}, max_new_tokens={new_tokens}: "
            f"rows take {length} tokens, the context holds {context}"
        )


def fingerprint(prompts: PromptSet) -> str:
    """Return a digest of prompts and columns; a resumed run must see the same."""
    content = [[prompt.ids, dict(prompt.columns)] for prompt in prompts.prompts]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:16]


def grpo_loss(score: Callable[..., Array], config: GRPOConfig) -> Callable:
    """Make the loss that the trainer minimises.

    Its masks follow from the keys of the batch, not from the key of the step.
    """

    def loss(params, batch, key):
        return policy_loss(
            score(params, batch.rows),
            batch.old_scores,
            batch.reference_scores,
            batch.advantages,
            batch.rows.completion_mask,
            config.loss,
            tolerance=RATIO_TOLERANCE[config.training.dtype],
        )

    return loss

"""Coupled-GRPO: policy optimisation of a masked-diffusion model on rewards (DiffuCoder, arXiv 2506.20639).

    trainer = DiffuGRPOTrainer(model, tokenizer, rows, GRPOConfig(), out=folder)
    trainer.train()

The story of an update: `RolloutSource.draw` makes a rollout every `num_iterations` updates, for which `rollouts`
samples and rewards completions; `policy_loss` turns rewards into advantages, and scores the completions under old,
reference and present policy; `grpo_loss` joins them, and `trainer` takes the step.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import Array

from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import training_flops
from jax_lm.rewards import WeightedSum, weighted_sum
from jax_lm.sharding import on_mesh
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import settings_without
from jax_lm.training.fitting import announced, chosen_dtype, fitted_grpo, weight_count
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.policy_loss import forward_process, policy_loss, selective_log_softmax
from jax_lm.training.rollout_source import PolicyBatch, RolloutSource
from jax_lm.training.rollouts import PromptSet
from jax_lm.training.trainer import Evaluate, State, Trainer
from jax_lm.training.update import LossTerms, Params, in_dtype, merged, partition

__all__ = ["DiffuGRPOTrainer", "GRPOConfig", "forward_process", "selective_log_softmax"]

logger = logging.getLogger(__name__)

RATIO_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""|s - s_old| that rounding alone may cause before a rollout's first update, as two programs may round differently."""

UNEQUAL_SHARE, UNEQUAL_ROLLOUTS = 0.01, 3
"""Share of the tokens that may exceed the tolerance, so that its 99 % quantile is what counts (the largest of a million
scores says nothing); and the rollouts in a row with more of them that end a run."""


class DiffuGRPOTrainer:
    """Trains a masked-diffusion model on the rewards of its own completions.

    Args:
        model: the policy to start from, and the first reference.
        tokenizer: of the model.
        rows: prompts, each a mapping with "prompt" (text, or chat messages) and the columns that rewards read.
        config: of the run.
        out: folder for metrics, completions and checkpoints; a run in it is continued.
        rewards: of a completion; None makes it from `reward_funcs` and `reward_weights`.
        trained: which parameters are trained, by their checkpoint name (such as `is_lora`); the others stay.
        identity: further settings (JSON) that a resumed run must agree on.

    Raises:
        ValueError: settings that contradict each other, no usable prompt, or a model without a mask token.
    """

    def __init__(
        self,
        model: DreamForCausalLM,
        tokenizer: DiffuCoderTokenizer,
        rows: Iterable[Mapping[str, Any]],
        config: GRPOConfig,
        *,
        out: Path,
        rewards: WeightedSum | None = None,
        trained: Callable[[str], bool] = lambda name: True,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        tokenizer.require_ids(mask_token_id=model.config.mask_token_id, vocab_size=model.config.vocab_size)
        rewards = rewards or weighted_sum(dict(zip(config.reward_funcs, config.reward_weights, strict=True)))
        prompts = PromptSet.of(rows, tokenizer, config.max_prompt_length)
        prompts, self.held_out = prompts.split(config.held_out_prompts, config.training.seed)
        new_tokens, context = config.generation.max_new_tokens, model.config.max_position_embeddings
        if prompts.width + new_tokens > context:
            lengths = f"max_prompt_length={config.max_prompt_length}, max_new_tokens={new_tokens}"
            raise ValueError(f"{lengths}: rows take {prompts.width + new_tokens} tokens, the context holds {context}")
        sampler = Sampler(model)
        weights = on_mesh(sampler.params, model.config, model.mesh)
        config = fitted_grpo(config, weight_count(weights), model.mesh)
        dtype = chosen_dtype(config.training)
        where = announced(model.mesh, compute_dtype=dtype, remat=config.remat, score_chunk=config.score_chunk)
        ours, self.others = partition(weights, trained), partition(weights, lambda name: not trained(name))
        frozen = in_dtype(self.others, dtype)
        # Which prompts are learnt from is part of their digest.
        copies, shape, all_weights = config.masks.copies, model.config, not self.others
        agreed = settings_without(config, "held_out_prompts", "training")
        if config.generation.decoding.resolved.commit == "steps":
            # Else a block begins when the slowest row of a batch ended the one before.
            del agreed["generation_batch_size"]
        self.graph, self.config, self.out, self.unequal_rollouts = sampler.graph, config, out, 0
        self.source = RolloutSource(sampler, tokenizer, prompts, rewards, config, out, params=ours, frozen=frozen)
        self.trainer = Trainer(
            grpo_loss(self.source.score, config),
            ours,
            replace(config.training, max_steps=config.steps(len(prompts.prompts))),
            out=out,
            frozen=frozen,
            identity=where | {"grpo": agreed, "prompts": fingerprint(prompts)} | dict(identity or {}),
            # Of updates alone: the time that rollouts take counts, what they compute does not.
            token_flops=lambda length: copies * training_flops(shape, length, new_tokens, all_weights=all_weights),
        )

    def train(self, evaluate: Evaluate | None = None) -> bool:
        """Run to the end, or continue; whether the end was reached.

        Args:
            evaluate: metrics of the trained weights, every `evaluate_every` steps and at the end; the mean reward of
                the held-out prompts, if there are any, comes without.

        Raises:
            RuntimeError: the first updates of several rollouts in a row did not see the policy, rows or masks that
                their old scores were made with.
            FloatingPointError: loss or gradient is not finite.
            ValueError: `out` holds a run that may not be, or cannot be, continued.
        """
        self.unequal_rollouts = 0
        held_out = partial(self.source.evaluate, self.held_out) if self.held_out else None
        both = (lambda params: {**held_out(params), **evaluate(params)}) if held_out and evaluate else None
        return self.trainer.run(self.source, evaluate=both or held_out or evaluate, check=self.check_ratio)

    @property
    def state(self) -> State:
        """Trained weights, moments, and steps done."""
        return self.trainer.state

    @property
    def model(self) -> DreamForCausalLM:
        """The policy as it is now."""
        return nnx.merge(self.graph, merged(self.others, self.state.params))

    def check_ratio(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warn if the first update of a rollout did not start from ratio 1; RuntimeError if that goes on."""
        if (step - 1) % self.config.num_iterations:
            return
        if metrics["unequal_share"] <= UNEQUAL_SHARE:
            self.unequal_rollouts = 0
            return
        self.unequal_rollouts += 1
        finding = (
            f"step {step}: |s - s_old| is above {RATIO_TOLERANCE[chosen_dtype(self.config.training)]} for "
            f"{metrics['unequal_share']:.1%} of the tokens (at most {UNEQUAL_SHARE:.0%}; the largest is "
            f"{metrics['max_log_ratio']:.3g}) before the first update of a rollout"
        )
        if self.unequal_rollouts == UNEQUAL_ROLLOUTS:
            raise RuntimeError(f"{finding}, of the {UNEQUAL_ROLLOUTS}rd in a row")
        logger.warning(finding)


def fingerprint(prompts: PromptSet) -> str:
    """Digest the prompts and their columns: a resumed run must see the same."""
    content = [[prompt.ids, dict(prompt.columns)] for prompt in prompts.prompts]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:16]


def grpo_loss(score: Callable[..., Array], config: GRPOConfig) -> Callable:
    """Make the loss that the trainer minimises; its masks follow from the batch's keys, not from the step's."""

    def loss(params: Params, batch: PolicyBatch, key: Array) -> LossTerms:
        scores = score(params, batch.rows)
        old, reference = batch.old_scores, batch.reference_scores
        tolerance = RATIO_TOLERANCE[chosen_dtype(config.training)]
        rows = batch.advantages, batch.completion_mask
        return policy_loss(scores, old, reference, *rows, config.loss, tolerance=tolerance)

    return loss

"""Coupled-GRPO: policy optimisation of a masked-diffusion model on rewards (DiffuCoder, arXiv 2506.20639).

    trainer = DiffuGRPOTrainer(model, tokenizer, rows, GRPOConfig(), out=folder)
    trainer.train()

Joins the parts: `rollouts` samples and rewards completions, `policy_scores` says how likely the policy finds them,
`policy_batches` makes both the batches of updates, `policy_loss` says what to minimise, `trainer` runs and resumes.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flax import nnx
from jaxtyping import Array

from jax_lm.diffusion.sampler import Sampler
from jax_lm.metrics import Writers
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.rewards import WeightedSum, weighted_sum
from jax_lm.sharding import on_mesh
from jax_lm.terminal import Report
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.policy_batches import PolicyBatch, RolloutSource
from jax_lm.training.policy_loss import policy_loss
from jax_lm.training.policy_scores import forward_process, selective_log_softmax
from jax_lm.training.rollouts import PromptSet
from jax_lm.training.settings import OptimizerConfig, TrainerConfig
from jax_lm.training.trainer import Running, Trainer
from jax_lm.training.update import LossTerms, Params, in_dtype, merged, partition

__all__ = ["DiffuGRPOTrainer", "GRPOConfig", "forward_process", "selective_log_softmax"]

RATIO_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Largest |s - s_old| before a rollout's first update: rounding alone, as two programs may round differently."""


class DiffuGRPOTrainer(Trainer):
    """Trains a masked-diffusion model on the rewards of its own completions.

    Args:
        model: the policy to start from, and the first reference.
        tokenizer: of the model.
        rows: prompts, each a mapping with "prompt" (text, or chat messages) and the columns that rewards read.
        config: of the run.
        out: folder for metrics, completions and checkpoints; a run in it is continued.
        rewards: what a completion is worth; None makes it from `reward_funcs` and `reward_weights`.
        trained: which parameters are trained, by their checkpoint name (such as `is_lora`); the others stay.
        evaluate: metrics of the trained weights.

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
        evaluate: Callable[[Params], Mapping[str, float]] | None = None,
    ) -> None:
        tokenizer.require_ids(mask_token_id=model.config.mask_token_id, vocab_size=model.config.vocab_size)
        rewards = rewards or weighted_sum(dict(zip(config.reward_funcs, config.reward_weights, strict=True)))
        prompts = PromptSet.of(rows, tokenizer, config.max_prompt_length)
        width, context = prompts.width + config.max_completion_length, model.config.max_position_embeddings
        if width > context:
            lengths = (
                f"max_prompt_length={config.max_prompt_length}, max_completion_length={config.max_completion_length}"
            )
            raise ValueError(f"{lengths}: rows take {width} tokens, the context holds {context}")
        sampler = Sampler(model)
        weights = on_mesh(sampler.params, model.config, model.mesh)
        ours, self.others = partition(weights, trained), partition(weights, lambda name: not trained(name))
        frozen = in_dtype(self.others, config.compute_dtype)
        self.graph, self.grpo = sampler.graph, config
        self.source = RolloutSource(
            sampler, tokenizer, prompts, rewards, config, out, params=ours, frozen=frozen
        )  # fmt: skip
        super().__init__(
            make_loss(self.source.score, config),
            ours,
            trainer_config(config, config.steps(len(prompts.prompts))),
            out=out,
            frozen=frozen,
            identity={"grpo": config.identity, "prompts": fingerprint(prompts)},
            evaluate=evaluate,
        )

    def train(self) -> bool:
        """Run to the end, or continue; whether the end was reached."""
        return self.run(self.source)

    @property
    def model(self) -> DreamForCausalLM:
        """The policy as it is now."""
        return nnx.merge(self.graph, merged(self.others, self.state.params))

    def finish(self, running: Running, writers: Writers, bar: Report | None) -> None:
        """As every trainer does; also, the first update of a rollout must have started from ratio 1.

        Raises:
            AssertionError: the update does not see the policy, rows or masks that the old scores were made with.
        """
        is_first = (running.step - 1) % self.grpo.num_iterations == 0
        largest, allowed = float(running.metrics["max_log_ratio"]), RATIO_TOLERANCE[self.grpo.compute_dtype]
        assert not is_first or not largest > allowed, (
            f"step {running.step}: |s - s_old| is {largest} before the first update of a rollout, not within {allowed}"
        )
        super().finish(running, writers, bar)


def trainer_config(config: GRPOConfig, steps: int) -> TrainerConfig:
    """Settings of the loop and the optimizer; ValueError names one that is out of range."""
    optimizer = OptimizerConfig(
        learning_rate=config.learning_rate,
        warmup_share=config.warmup_ratio,
        final_share=config.min_lr_ratio,
        betas=(config.adam_beta1, config.adam_beta2),
        weight_decay=config.weight_decay,
        clip_norm=config.max_grad_norm,
    )
    return TrainerConfig(
        steps=steps,
        optimizer=optimizer,
        accumulation=config.gradient_accumulation_steps,
        compute_dtype=config.compute_dtype,
        seed=config.seed,
        log_every=config.log_every,
        save_every=config.save_every,
        evaluate_every=config.evaluate_every,
        resume=config.resume,
        track=config.track,
    )


def make_loss(score: Callable[..., Array], config: GRPOConfig) -> Callable:
    """The loss that the trainer minimises; its masks follow from the batch's keys, not from the step's."""

    def loss(params: Params, batch: PolicyBatch, key: Array) -> LossTerms:
        scores = score(params, (batch.tokens, batch.attention_mask, batch.keys))
        old, reference = batch.old_scores, batch.reference_scores
        terms = policy_loss(scores, old, reference, batch.advantages, batch.completion_mask, config.form)
        return LossTerms(*terms)

    return loss


def fingerprint(prompts: PromptSet) -> str:
    """Of the prompts and their columns: a resumed run must see the same."""
    content = [[prompt.ids, dict(prompt.columns)] for prompt in prompts.prompts]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:16]

"""Coupled-GRPO: policy optimisation of a masked-diffusion model on rewards (DiffuCoder, arXiv 2506.20639).

    trainer = DiffuGRPOTrainer(model, tokenizer, rows, GRPOConfig(), out=folder)
    trainer.train()

Joins the parts: `rollouts` samples and rewards completions, `policy_scores` says how likely the policy finds them,
`policy_loss` what to minimise, `trainer` runs and resumes. A rollout serves `num_iterations` updates; the old and the
reference policy's scores are taken when it is made, with the masks of each update.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from jax_lm.diffusion.sampler import Sampler
from jax_lm.metrics import Writers
from jax_lm.models.dream import DreamForCausalLM, flatten, nest
from jax_lm.rewards import Scored, WeightedSum, weighted_sum
from jax_lm.terminal import Report
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.policy_loss import advantages, policy_loss
from jax_lm.training.policy_scores import (
    completion_scores,
    forward_process,
    sample_keys,
    selective_log_softmax,
)
from jax_lm.training.rollouts import Completions, Prompt, PromptSet, judge, reward_metrics, rewards_of, sample
from jax_lm.training.settings import OptimizerConfig, TrainerConfig
from jax_lm.training.trainer import Running, State, Trainer
from jax_lm.training.update import LossTerms, Params, in_dtype

__all__ = ["DiffuGRPOTrainer", "GRPOConfig", "forward_process", "selective_log_softmax"]

logger = logging.getLogger(__name__)

RATIO_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Largest |s - s_old| before a rollout's first update: rounding alone, as two programs may round differently."""

SAMPLING = 0
"""Iteration number of the keys that completions are sampled with; updates count from 1."""

LOGGED_COMPLETIONS = 4


class PolicyBatch(NamedTuple):
    """What an update sees of a rollout.

    Attributes:
        tokens: prompts and completions.
        attention_mask: as in sampling.
        completion_mask: the tokens that count; none in rows that were not judged.
        advantages: of the completions.
        keys: data of the keys that draw the masks.
        old_scores: scores of the policy that sampled, under these masks.
        reference_scores: those of the reference policy; None if beta is 0.
    """

    tokens: Int[Array, "b t"]
    attention_mask: Bool[Array, "b t"]
    completion_mask: Bool[Array, "b c"]
    advantages: Float[Array, "b"]
    keys: UInt32[Array, "b k"]
    old_scores: Float[Array, "b c"]
    reference_scores: Float[Array, "b c"] | None


@partial(jax.jit, static_argnames=("graph", "completion_length", "mask_id", "masks", "chunk"))
def policy_scores(
    graph: nnx.GraphDef,
    params: Params,
    rows: tuple[Array, Array, Array],
    *,
    completion_length: int,
    mask_id: int,
    masks: Estimator,
    chunk: int,
) -> Float[Array, "b c"]:
    """Scores under a policy of `rows`: tokens, attention mask, key data."""
    tokens, attention_mask, keys = rows
    copies = forward_process(jax.random.wrap_key_data(keys), tokens, completion_length, mask_id, masks)
    return completion_scores(nnx.merge(graph, params), tokens, attention_mask, copies, chunk)


@partial(jax.jit, static_argnames="alpha")
def mixed(reference: Params, params: Params, alpha: float) -> Params:
    """The reference moved towards the policy: (1 - alpha) reference + alpha policy, computed in float32."""

    def mix(old: Array, new: Array) -> Array:
        return ((1 - alpha) * old.astype(jnp.float32) + alpha * new.astype(jnp.float32)).astype(old.dtype)

    return jax.tree.map(mix, reference, params)


class RolloutSource:
    """Draws the batches of a run: a new rollout every `num_iterations` updates.

    Args:
        sampler: over the model; its weights are those of the first reference policy.
        tokenizer: of the model.
        prompts: of the run.
        rewards: what a completion is worth.
        config: of the run.
        out: folder for completions/, some texts of each rollout.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: DiffuCoderTokenizer,
        prompts: PromptSet,
        rewards: WeightedSum,
        config: GRPOConfig,
        out: Path,
    ) -> None:
        self.sampler, self.tokenizer, self.prompts, self.rewards = sampler, tokenizer, prompts, rewards
        self.config, self.out = config, out
        self.dtype = jnp.dtype(config.compute_dtype)
        self.score = partial(
            policy_scores, sampler.graph, completion_length=config.max_completion_length, mask_id=sampler.mask_id,
            masks=config.masks, chunk=config.score_chunk,
        )  # fmt: skip
        # A copy: the trainer overwrites its own arrays.
        self.reference = jax.tree.map(jnp.copy, in_dtype(sampler.params, self.dtype)) if config.beta else None
        self.batches: list[PolicyBatch] = []
        self.finished_at: float | None = None

    def draw(self, state: State) -> tuple[PolicyBatch, dict[str, float]]:
        """The batch of the next update, and metrics of the rollout if it begins one."""
        config = self.config
        rollout, iteration = divmod(state.step, config.num_iterations)
        sync = config.ref_model_sync_steps
        if self.reference is not None and sync and state.step and state.step % sync == 0:
            self.reference = mixed(self.reference, state.params, config.ref_model_mixup_alpha)
        metrics: dict[str, float] = {}
        if iteration == 0:
            jax.block_until_ready(state.params)
            if self.finished_at is not None:
                # Of the rollout before, with what the trainer did between its updates.
                seconds = time.monotonic() - self.finished_at
                seen = self.batches[0].tokens.size * config.masks.copies * config.num_iterations
                metrics |= {"update_seconds": seconds, "update_tokens_per_second": seen / seconds}
            self.batches, made = self.make(in_dtype(state.params, self.dtype), rollout)
            metrics |= made
            self.finished_at = time.monotonic()
        return self.batches[iteration], metrics

    def make(self, params: Params, rollout: int) -> tuple[list[PolicyBatch], dict[str, float]]:
        """A rollout: its batch for each update, and its metrics."""
        config, start = self.config, time.monotonic()
        prompts = [
            prompt
            for prompt in self.prompts.chosen(config.seed, rollout, config.prompts_per_step)
            for _ in range(config.num_generations)
        ]
        ids = jnp.arange(config.completions)
        self.sampler.params = params
        completions = sample(
            self.sampler, self.tokenizer, prompts, config.options,
            keys=sample_keys(config.seed, rollout, SAMPLING, ids), width=self.prompts.width,
            batch_size=config.generation_batch_size,
        )  # fmt: skip
        sampled = time.monotonic()
        scored = judge(self.rewards, prompts, completions)
        rewarded = time.monotonic()
        keys = [sample_keys(config.seed, rollout, 1 + number, ids) for number in range(config.num_iterations)]
        rewards = rewards_of(scored)
        if config.shuffle_rewards:
            rewards = np.random.default_rng((config.seed, rollout)).permutation(rewards)
        batches = [self.batch(params, completions, rewards, jax.random.key_data(key)) for key in keys]
        jax.block_until_ready(batches)
        # The trainer makes a copy in the compute dtype itself: two would be one too many.
        self.sampler.params = {}
        seconds = (sampled - start, rewarded - sampled, time.monotonic() - rewarded)
        self.log(rollout, prompts, completions, scored)
        metrics = reward_metrics(scored, completions, config.num_generations) | self.speed(completions, *seconds)
        return batches, metrics

    def batch(
        self, params: Params, completions: Completions, rewards: Float[np.ndarray, "b"], keys: UInt32[Array, "b k"]
    ) -> PolicyBatch:
        """A rollout as one update sees it, with the scores that the update starts from."""
        config = self.config
        tokens, attention_mask = jnp.asarray(completions.tokens), jnp.asarray(completions.attention_mask)
        rows = (tokens, attention_mask, keys)
        made = advantages(rewards, config.num_generations, baseline=config.baseline, scale_rewards=config.scale_rewards)
        return PolicyBatch(
            tokens=tokens,
            attention_mask=attention_mask,
            completion_mask=jnp.asarray(completions.completion_mask & np.isfinite(rewards)[:, None]),
            advantages=jnp.asarray(made),
            keys=keys,
            old_scores=self.score(params, rows),
            reference_scores=None if self.reference is None else self.score(self.reference, rows),
        )

    def speed(self, completions: Completions, sampling: float, rewarding: float, scoring: float) -> dict[str, float]:
        """Seconds and throughput of each phase."""
        policies = 1 if self.reference is None else 2
        scored = completions.tokens.size * self.config.masks.copies * self.config.num_iterations * policies
        return {
            "rollout_seconds": sampling,
            "reward_seconds": rewarding,
            "score_seconds": scoring,
            "rollout_tokens_per_second": float(completions.lengths.sum()) / sampling,
            "rewards_per_second": len(completions.texts) / max(rewarding, 1e-9),
            "score_tokens_per_second": scored / scoring,
        }

    def log(self, rollout: int, prompts: list[Prompt], completions: Completions, scored: Scored) -> None:
        """Some completions, for people to read; a resumed run writes the same again."""
        if jax.process_index() > 0:
            return
        entries = [
            {
                "prompt": prompts[row].given,
                "completion": completions.texts[row],
                "reward": scored.totals[row],
                "rewards": {name: scores[row] for name, scores in scored.parts.items()},
            }
            for row in range(min(LOGGED_COMPLETIONS, len(prompts)))
        ]
        folder = self.out / "completions"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        (folder / f"{rollout:06}.jsonl").write_text(text, encoding="utf-8")

    def save(self) -> dict[str, Any]:
        """Reference weights and the present rollout."""
        reference = {} if self.reference is None else dict(flatten(self.reference))
        batches = {
            str(number): {name: value for name, value in batch._asdict().items() if value is not None}
            for number, batch in enumerate(self.batches)
        }
        return {"reference": reference, "batches": batches}

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `save` gave."""
        if self.reference is not None:
            leaves = {name: jnp.asarray(value) for name, value in saved["reference"].items()}
            self.reference = nest(leaves, self.reference)
        empty: dict[str, Any] = {"reference_scores": None}
        batches = jax.tree.map(jnp.asarray, saved["batches"])
        self.batches = [PolicyBatch(**(empty | batches[str(number)])) for number in range(len(batches))]


class DiffuGRPOTrainer(Trainer):
    """Trains a masked-diffusion model on the rewards of its own completions.

    Args:
        model: the policy to start from, and the first reference.
        tokenizer: of the model.
        rows: prompts, each a mapping with "prompt" (text, or chat messages) and the columns that rewards read.
        config: of the run.
        out: folder for metrics, completions and checkpoints; a run in it is continued.
        rewards: what a completion is worth; None makes it from `reward_funcs` and `reward_weights`.
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
        evaluate: Callable[[Params], Mapping[str, float]] | None = None,
    ) -> None:
        tokenizer.require_ids(mask_token_id=model.config.mask_token_id, vocab_size=model.config.vocab_size)
        rewards = rewards or weighted_sum(dict(zip(config.reward_funcs, config.reward_weights, strict=True)))
        prompts = PromptSet.of(rows, tokenizer, config.max_prompt_length)
        config.options.sampling()
        width, context = prompts.width + config.max_completion_length, model.config.max_position_embeddings
        if width > context:
            lengths = (
                f"max_prompt_length={config.max_prompt_length}, max_completion_length={config.max_completion_length}"
            )
            raise ValueError(f"{lengths}: rows take {width} tokens, the context holds {context}")
        sampler = Sampler(model)
        self.graph, self.grpo = sampler.graph, config
        self.source = RolloutSource(sampler, tokenizer, prompts, rewards, config, out)
        super().__init__(
            make_loss(self.source.score, config),
            sampler.params,
            trainer_config(config, config.steps(len(prompts.prompts))),
            out=out,
            identity={"grpo": config.identity, "prompts": fingerprint(prompts)},
            evaluate=evaluate,
        )

    def train(self) -> bool:
        """Run to the end, or continue; whether the end was reached."""
        return self.run(self.source)

    @property
    def model(self) -> DreamForCausalLM:
        """The policy as it is now."""
        return nnx.merge(self.graph, self.state.params)

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

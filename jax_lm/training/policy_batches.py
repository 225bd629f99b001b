"""A rollout as the batches of its updates: completions, advantages, and the scores that each update starts from.

Joins sampling and rewards (`rollouts`) to scores (`policy_scores`). A rollout serves `num_iterations` updates; the old
and the reference policy's scores are taken when it is made, with the masks of each update. On a mesh the rows of a
rollout, which are small, lie whole on every device; model and scores split them.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from jax_lm.diffusion.sampler import Sampler
from jax_lm.rewards import Scored, WeightedSum
from jax_lm.sharding import replicate
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.policy_loss import advantages
from jax_lm.training.policy_scores import completion_scores, forward_process, sample_keys
from jax_lm.training.rollouts import Completions, Prompt, PromptSet, judge_together, reward_metrics, rewards_of, sample
from jax_lm.training.trainer import State
from jax_lm.training.update import Params, in_dtype, merged

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
    model = nnx.merge(graph, params)
    return replicate(completion_scores(model, tokens, attention_mask, copies, chunk), model.mesh)


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
        params: what is trained: all weights or adapters. The reference policy is a copy of these, hence adapters where
            adapters are trained.
        frozen: the other weights, in the compute dtype.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: DiffuCoderTokenizer,
        prompts: PromptSet,
        rewards: WeightedSum,
        config: GRPOConfig,
        out: Path,
        *,
        params: Params,
        frozen: Params,
    ) -> None:
        self.sampler, self.tokenizer, self.prompts, self.rewards = sampler, tokenizer, prompts, rewards
        self.config, self.out, self.frozen = config, out, frozen
        self.dtype = jnp.dtype(config.compute_dtype)
        self.mesh = sampler.mesh
        self.score = partial(
            policy_scores, sampler.graph, completion_length=config.max_completion_length, mask_id=sampler.mask_id,
            masks=config.masks, chunk=config.score_chunk,
        )  # fmt: skip
        # A copy: the trainer overwrites its own arrays.
        self.reference = jax.tree.map(jnp.copy, in_dtype(params, self.dtype)) if config.beta else None
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
        self.sampler.params = self.policy(params)
        completions = sample(
            self.sampler, self.tokenizer, prompts, config.options,
            keys=sample_keys(config.seed, rollout, SAMPLING, ids), width=self.prompts.width,
            batch_size=config.generation_batch_size,
        )  # fmt: skip
        sampled = time.monotonic()
        scored = judge_together(self.rewards, prompts, completions, config.num_generations)
        rewarded = time.monotonic()
        keys = [sample_keys(config.seed, rollout, 1 + number, ids) for number in range(config.num_iterations)]
        rewards = rewards_of(scored.totals)
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
        rows = (self.put(completions.tokens), self.put(completions.attention_mask), self.put(keys))
        made = advantages(rewards, config.num_generations, baseline=config.baseline, scale_rewards=config.scale_rewards)
        return PolicyBatch(
            *rows[:2],
            completion_mask=self.put(completions.completion_mask & np.isfinite(rewards)[:, None]),
            advantages=self.put(made),
            keys=rows[2],
            old_scores=self.score(self.policy(params), rows),
            reference_scores=None if self.reference is None else self.score(self.policy(self.reference), rows),
        )

    def policy(self, params: Params) -> Params:
        """All weights of the policy whose trained ones these are."""
        return merged(self.frozen, params)

    def put(self, x: Any) -> Array:
        """Onto the device, or onto every device of the mesh, as all processes hold the same."""
        if self.mesh is None:
            return jnp.asarray(x)
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec()), np.asarray(x), x.shape)

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

    @property
    def arrays(self) -> Any:
        """The reference policy, which a checkpoint holds in the places where it lies."""
        return {} if self.reference is None else self.reference

    @arrays.setter
    def arrays(self, loaded: Any) -> None:
        self.reference = None if self.reference is None else loaded

    def save(self) -> dict[str, Any]:
        """The present rollout."""
        batches = {
            str(number): {name: value for name, value in batch._asdict().items() if value is not None}
            for number, batch in enumerate(self.batches)
        }
        return {"batches": batches}

    def load(self, saved: dict[str, Any]) -> None:
        """Take up what `save` gave."""
        empty: dict[str, Any] = {"reference_scores": None}
        batches = jax.tree.map(self.put, saved["batches"])
        self.batches = [PolicyBatch(**(empty | batches[str(number)])) for number in range(len(batches))]

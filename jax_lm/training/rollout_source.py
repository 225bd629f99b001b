"""Where the batches of coupled-GRPO come from: rollouts, their rewards, and old scores under the masks of each update.

A rollout is made every `num_iterations` updates. Old and reference scores are taken once, when it is made, with the
masks of each update, and while programs are judged unless verdicts choose the rows; a single update begins at the
policy that sampled, and needs no old ones. On a mesh the rows of a rollout, which are small, lie whole on
every device; model and scores split them.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from jax_lm.rewards import WeightedSum
from jax_lm.sharding import divisors, replicate
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.fitting import chosen_dtype
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.placement import RolloutWeights
from jax_lm.training.policy_loss import advantages, completion_scores, forward_process, sample_keys
from jax_lm.training.rollouts import (
    HELD_OUT,
    Completions,
    Prompt,
    PromptSet,
    Rollout,
    has_variance,
    reward_by_process,
    reward_metrics,
    rewards_of,
    sample_completions,
)
from jax_lm.training.trainer import State
from jax_lm.training.update import Params, compute_copy, merged
from untrusted.printable import printable_json

SAMPLING = 0
"""Iteration number of the keys that completions are sampled with; updates count from 1."""

LOGGED_COMPLETIONS = 4


class MaskedRows(NamedTuple):
    """Rows to score, and what their masks follow from.

    Attributes:
        tokens: prompts and completions.
        attention_mask: as in sampling.
        keys: data of the keys that draw the masks.
        completion_mask: the tokens that count.
        commit_step: steps of the decoding, for the estimator that reads them; else None.
    """

    tokens: Int[Array, "b t"]
    attention_mask: Bool[Array, "b t"]
    keys: UInt32[Array, "b k"]
    completion_mask: Bool[Array, "b c"]
    commit_step: Int[Array, "b c"] | None


class PolicyBatch(NamedTuple):
    """A rollout as one of its updates sees it.

    Attributes:
        tokens: prompts and completions.
        attention_mask: as in sampling.
        completion_mask: the tokens that count; none in rows that were not judged.
        keys: data of the keys that draw the masks.
        old_scores: scores of the policy that sampled, under these masks; None if this is its only update.
        reference_scores: those of the reference policy; None if beta is 0.
        commit_step: steps of the decoding; None where no score depends on them.
    """

    tokens: Int[Array, "b t"]
    attention_mask: Bool[Array, "b t"]
    completion_mask: Bool[Array, "b c"]
    advantages: Float[Array, "b"]
    keys: UInt32[Array, "b k"]
    old_scores: Float[Array, "b c"] | None = None
    reference_scores: Float[Array, "b c"] | None = None
    commit_step: Int[Array, "b c"] | None = None

    @property
    def rows(self) -> MaskedRows:
        """What scores are made of."""
        return MaskedRows(self.tokens, self.attention_mask, self.keys, self.completion_mask, self.commit_step)


@partial(jax.jit, static_argnames=("graph", "completion_length", "mask_id", "masks", "chunk", "remat"))
def policy_scores(
    graph: nnx.GraphDef,
    params: Params,
    rows: MaskedRows,
    *,
    completion_length: int,
    mask_id: int,
    masks: Estimator,
    chunk: int,
    remat: bool = False,
) -> Float[Array, "b c"]:
    """Score rows under a policy."""
    copies = forward_process(
        jax.random.wrap_key_data(rows.keys),
        rows.tokens,
        completion_length,
        mask_id,
        masks,
        commit_step=rows.commit_step,
        completion_mask=rows.completion_mask,
    )
    model = nnx.merge(graph, params)
    scores = completion_scores(model, rows.tokens, rows.attention_mask, copies, chunk, remat=remat)
    return replicate(scores, model.mesh)


@partial(jax.jit, static_argnames="alpha", donate_argnums=0)
def mixed(reference: Params, params: Params, alpha: float) -> Params:
    """Move the reference, which is overwritten, towards the policy: (1 - alpha) reference + alpha policy."""
    return jax.tree.map(lambda old, new: (1 - alpha) * old + alpha * new, reference, params)


def ready_at(arrays: Any) -> float:
    """Wait for arrays, and tell when they were there."""
    jax.block_until_ready(arrays)
    return time.monotonic()


class RolloutSource:
    """Draws the batches of a run: a new rollout every `num_iterations` updates.

    Args:
        out: folder for completions/, some texts of each rollout.
        params: trained weights, all or adapters.
        frozen: the other weights, in the compute dtype.

    Attributes:
        arrays: the reference policy, a copy of `params` in float32 (in bfloat16 it would not follow small moves), hence
            adapters where adapters are trained, and where those lie; {} if beta is 0.
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
        self.mesh = sampler.mesh
        self.tokenizer, self.prompts, self.rewards = tokenizer, prompts, rewards
        self.config, self.out, self.frozen = config, out, frozen
        self.dtype = jnp.dtype(chosen_dtype(config.training))
        shapes = jax.eval_shape(lambda *trees: merged(trees[0], compute_copy(trees[1], self.dtype)), frozen, params)
        self.weights = RolloutWeights(sampler, config.rollout_mesh, trained=params, policy=shapes)
        # On a CPU the programs that are judged would lose the cores, and their time limits.
        self.scores_while_judging = jax.default_backend() != "cpu"
        self.score = partial(
            policy_scores,
            sampler.graph,
            completion_length=config.generation.max_new_tokens,
            mask_id=sampler.mask_id,
            masks=config.masks,
            chunk=config.score_chunk,
            remat=bool(config.remat),
        )
        # A copy: the trainer overwrites its own arrays.
        self.arrays = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params) if config.loss.beta else {}
        self.batches: list[PolicyBatch] = []
        self.finished_at: float | None = None

    def draw(self, state: State) -> tuple[PolicyBatch, dict[str, float]]:
        """Draw the batch of the next update, and metrics of the rollout if it begins one."""
        config, sync = self.config, self.config.ref_model_sync_steps
        rollout, iteration = divmod(state.step, config.num_iterations)
        if self.arrays and sync and state.step and state.step % sync == 0:
            self.arrays = mixed(self.arrays, state.params, config.ref_model_mixup_alpha)
        metrics: dict[str, float] = {}
        if iteration == 0:
            jax.block_until_ready(state.params)
            if self.finished_at is not None:
                # Of the rollout before, with what the trainer did between its updates.
                seconds = time.monotonic() - self.finished_at
                seen = self.batches[0].tokens.size * config.masks.copies * config.num_iterations
                metrics |= {"update_seconds": seconds, "update_tokens_per_second": seen / seconds}
            self.batches, made = self.make(compute_copy(state.params, self.dtype), rollout)
            metrics |= made
            self.finished_at = time.monotonic()
        return self.batches[iteration], metrics

    def sample(self, params: Params, prompts: Sequence[Prompt], rollout: int, first: int = 0) -> Completions:
        """Complete each prompt once, under the policy in the compute dtype, with the random numbers of a rollout.

        Args:
            first: number of the first completion among those of the rollout.
        """
        limit = self.config.generation_batch_size or len(prompts)
        return sample_completions(
            self.weights.with_weights(self.policy(params)),
            self.tokenizer,
            prompts,
            self.config.generation,
            keys=sample_keys(self.config.training.seed, rollout, SAMPLING, first + jnp.arange(len(prompts))),
            width=self.prompts.width,
            batch_size=next(size for size in divisors(len(prompts)) if size <= limit),
        )

    def evaluate(self, prompts: Sequence[Prompt], params: Params) -> dict[str, float]:
        """Measure the mean reward of one completion per prompt, and the share of completions that end."""
        completions = self.sample(compute_copy(params, self.dtype), prompts, HELD_OUT)
        metrics = reward_metrics(reward_by_process(self.rewards, prompts, completions, 1), completions, 1)
        of_one_each = ("reward_std", "zero_variance_groups")
        return {name: value for name, value in metrics.items() if name not in of_one_each}

    def make(self, params: Params, rollout: int) -> tuple[list[PolicyBatch], dict[str, float]]:
        """Make a rollout: its batch for each update, and its metrics."""
        config, start = self.config, time.monotonic()
        prompts, completions = self.drawn(params, rollout)
        sampled = time.monotonic()
        if config.dynamic_sampling:
            scored = reward_by_process(self.rewards, prompts, completions, config.num_generations)
            times = np.array([sampled - start, time.monotonic() - sampled])
            everything, times = self.refilled(params, rollout, Rollout(tuple(prompts), completions, scored), times)
            made, begin = self.chosen(everything), time.monotonic()
            updates = self.scored_updates(params, rollout, made.completions)
            sampling, rewarding, scoring = *times.tolist(), ready_at(updates) - begin
        else:
            updates = self.scored_updates(params, rollout, completions)
            with ThreadPoolExecutor(1) as pool:
                scored_at = pool.submit(ready_at, updates)
                judging = sampled if self.scores_while_judging else scored_at.result()
                scored = reward_by_process(self.rewards, prompts, completions, config.num_generations)
                rewarding, scoring = time.monotonic() - judging, scored_at.result() - sampled
            everything = made = Rollout(tuple(prompts), completions, scored)
            sampling = sampled - start
        rewards = rewards_of(made.scored.totals)
        if config.shuffle_rewards:
            rewards = np.random.default_rng((config.training.seed, rollout)).permutation(rewards)
        batches = [self.batch(rows, made.completions, rewards) for rows in updates]
        policies = config.needs_old_scores + bool(self.arrays)
        seen = made.completions.tokens.size * config.masks.copies * config.num_iterations * policies
        self.log(rollout, made)
        return batches, reward_metrics(everything.scored, everything.completions, config.num_generations) | {
            "rollout_seconds": sampling,
            "reward_seconds": rewarding,
            "score_seconds": scoring,
            "rollout_tokens_per_second": float(everything.completions.lengths.sum()) / sampling,
            "rewards_per_second": len(everything.prompts) / max(rewarding, 1e-9),
            "score_tokens_per_second": seen / max(scoring, 1e-9),
        }

    def drawn(
        self, params: Params, rollout: int, draw: int = 0, count: int | None = None
    ) -> tuple[list[Prompt], Completions]:
        """Draw `count` prompts for a rollout, and complete each of them as often as a group is large."""
        config, first = self.config, rollout * self.config.prompts_per_step
        chosen = self.prompts.chosen(config.training.seed, first, count or config.prompts_per_step, draw)
        prompts = [prompt for prompt in chosen for _ in range(config.num_generations)]
        return prompts, self.sample(params, prompts, rollout, first=draw * config.completions)

    def refilled(
        self, params: Params, rollout: int, first: Rollout, times: Float[np.ndarray, "2"]
    ) -> tuple[Rollout, Float[np.ndarray, "2"]]:
        """Draw prompts anew until enough groups have variance, at most `dynamic_sampling` times.

        As many are drawn as are missing, filled up to a power of two, as each number of rows is compiled.

        Args:
            times: seconds that sampling and judging took so far; returned with those of the further draws.
        """
        config, parts = self.config, [first]
        while len(parts) <= config.dynamic_sampling and (missing := self.missing(Rollout.joined(parts))) > 0:
            start, count = time.monotonic(), min(config.prompts_per_step, 1 << (missing - 1).bit_length())
            prompts, completions = self.drawn(params, rollout, len(parts), count)
            sampled = time.monotonic()
            scored = reward_by_process(self.rewards, prompts, completions, config.num_generations)
            parts.append(Rollout(tuple(prompts), completions, scored))
            times = times + np.array([sampled - start, time.monotonic() - sampled])
        return Rollout.joined(parts), times

    def missing(self, made: Rollout) -> int:
        """How many groups with variance a rollout lacks of those that it has room for."""
        varied = has_variance(rewards_of(made.scored.totals), self.config.num_generations)
        return self.config.prompts_per_step - int(varied.sum())

    def chosen(self, made: Rollout) -> Rollout:
        """Pick the groups of a rollout: the first that have variance, and if those are too few the first others."""
        size = self.config.num_generations
        varied = has_variance(rewards_of(made.scored.totals), size)
        groups = np.argsort(~varied, kind="stable")[: self.config.prompts_per_step]
        return made.of_rows((groups[:, None] * size + np.arange(size)).ravel().tolist())

    def scored_updates(self, params: Params, rollout: int, completions: Completions) -> list[dict[str, Array | None]]:
        """Begin to score completions for each update, under masks of its own."""
        old = self.policy(params) if self.config.needs_old_scores else None
        policies = old, self.policy(compute_copy(self.arrays, self.dtype)) if self.arrays else None
        ids, seed = jnp.arange(self.config.completions), self.config.training.seed
        keys = [sample_keys(seed, rollout, 1 + number, ids) for number in range(self.config.num_iterations)]
        return [self.scored_rows(policies, completions, jax.random.key_data(key)) for key in keys]

    def scored_rows(
        self, policies: tuple[Params | None, Params | None], completions: Completions, keys: UInt32[Array, "b k"]
    ) -> dict[str, Array | None]:
        """Begin to score the rows of an update under the policy that sampled and the reference."""
        old, reference = policies
        rows = MaskedRows(
            tokens=self.put(completions.tokens),
            attention_mask=self.put(completions.attention_mask),
            keys=self.put(keys),
            completion_mask=self.put(completions.completion_mask),
            commit_step=self.put(completions.commit_step) if self.config.masks.estimator == "trace" else None,
        )
        return {
            "tokens": rows.tokens,
            "attention_mask": rows.attention_mask,
            "keys": rows.keys,
            "commit_step": rows.commit_step,
            "old_scores": None if old is None else self.score(old, rows),
            "reference_scores": None if reference is None else self.score(reference, rows),
        }

    def batch(self, rows: dict[str, Any], completions: Completions, rewards: Float[np.ndarray, "b"]) -> PolicyBatch:
        """Show a rollout as one update sees it."""
        config = self.config
        made = advantages(rewards, config.num_generations, baseline=config.baseline, scale_rewards=config.scale_rewards)
        counted = self.put(completions.completion_mask & np.isfinite(rewards)[:, None])
        return PolicyBatch(**rows, completion_mask=counted, advantages=self.put(made))

    def policy(self, params: Params) -> Params:
        """Join trained weights with the frozen ones."""
        return merged(self.frozen, params)

    def put(self, x: Any) -> Array:
        """Put onto the device, or onto every device of the mesh, as all processes hold the same."""
        if self.mesh is None:
            return jnp.asarray(x)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.make_array_from_process_local_data(everywhere, np.asarray(x), x.shape)

    def log(self, rollout: int, made: Rollout) -> None:
        """Write some completions for people to read; a resumed run writes the same again."""
        if jax.process_index() > 0:
            return
        entries = [
            {
                "prompt": made.prompts[row].content,
                "completion": made.completions.texts[row],
                "reward": made.scored.totals[row],
                "rewards": {name: scores[row] for name, scores in made.scored.parts.items()},
            }
            for row in range(min(LOGGED_COMPLETIONS, len(made.prompts)))
        ]
        folder = self.out / "completions"
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(printable_json(entry) + "\n" for entry in entries)
        (folder / f"{rollout:06}.jsonl").write_text(text, encoding="utf-8")

    def save(self) -> dict[str, Any]:
        """Give the present rollout to a checkpoint."""
        batches = (batch._asdict() for batch in self.batches)
        held = [{name: value for name, value in batch.items() if value is not None} for batch in batches]
        return {"batches": {str(number): batch for number, batch in enumerate(held)}}

    def load(self, saved: dict[str, Any]) -> None:
        """Take up the rollout that `save` gave."""
        batches = jax.tree.map(self.put, saved["batches"])
        self.batches = [PolicyBatch(**batches[str(number)]) for number in range(len(batches))]

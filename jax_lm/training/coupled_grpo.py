"""Coupled-GRPO: policy optimisation of a masked-diffusion model on rewards (DiffuCoder, arXiv 2506.20639).

    trainer = DiffuGRPOTrainer(model, tokenizer, rows, GRPOConfig(), out=folder)
    trainer.train()

The story of an update: `RolloutSource.draw` makes a rollout every `num_iterations` updates, for which `rollouts`
samples and rewards completions; `policy_loss` turns rewards into advantages, and scores the completions under old,
reference and present policy; `grpo_loss` joins them, and `trainer` takes the step. Old and reference scores are taken
once, when the rollout is made, with the masks of each update, and while programs are judged. On a mesh the rows of a
rollout, which are small, lie whole on every device; model and scores split them.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import training_flops
from jax_lm.printing import printable_json
from jax_lm.rewards import Scored, WeightedSum, weighted_sum
from jax_lm.sharding import divisors, on_mesh, replicate
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.config import settings_without
from jax_lm.training.fitting import announced, chosen_dtype, fitted_grpo, weight_count
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.placement import RolloutWeights
from jax_lm.training.policy_loss import (
    advantages,
    completion_scores,
    forward_process,
    policy_loss,
    sample_keys,
    selective_log_softmax,
)
from jax_lm.training.rollouts import (
    HELD_OUT,
    Completions,
    Prompt,
    PromptSet,
    reward_by_process,
    reward_metrics,
    rewards_of,
    sample_completions,
)
from jax_lm.training.trainer import Evaluate, State, Trainer
from jax_lm.training.update import LossTerms, Params, in_dtype, merged, partition

__all__ = ["DiffuGRPOTrainer", "GRPOConfig", "forward_process", "selective_log_softmax"]

logger = logging.getLogger(__name__)

RATIO_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""|s - s_old| that rounding alone may cause before a rollout's first update, as two programs may round differently."""

UNEQUAL_SHARE, UNEQUAL_ROLLOUTS = 0.01, 3
"""Share of the tokens that may exceed the tolerance, so that its 99 % quantile is what counts (the largest of a million
scores says nothing); and the rollouts in a row with more of them that end a run."""

SAMPLING = 0
"""Iteration number of the keys that completions are sampled with; updates count from 1."""

LOGGED_COMPLETIONS = 4


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
        agreed = settings_without(config, "generation_batch_size", "held_out_prompts", "training")
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


def ready_at(arrays: Any) -> float:
    """Wait for arrays, and tell when they were there."""
    jax.block_until_ready(arrays)
    return time.monotonic()


def fingerprint(prompts: PromptSet) -> str:
    """Digest the prompts and their columns: a resumed run must see the same."""
    content = [[prompt.ids, dict(prompt.columns)] for prompt in prompts.prompts]
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()[:16]


class PolicyBatch(NamedTuple):
    """A rollout as one of its updates sees it.

    Attributes:
        tokens: prompts and completions.
        attention_mask: as in sampling.
        completion_mask: the tokens that count; none in rows that were not judged.
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
    reference_scores: Float[Array, "b c"] | None = None


def grpo_loss(score: Callable[..., Array], config: GRPOConfig) -> Callable:
    """Make the loss that the trainer minimises; its masks follow from the batch's keys, not from the step's."""

    def loss(params: Params, batch: PolicyBatch, key: Array) -> LossTerms:
        scores = score(params, (batch.tokens, batch.attention_mask, batch.keys))
        old, reference = batch.old_scores, batch.reference_scores
        tolerance = RATIO_TOLERANCE[chosen_dtype(config.training)]
        rows = batch.advantages, batch.completion_mask
        return policy_loss(scores, old, reference, *rows, config.loss, tolerance=tolerance)

    return loss


@partial(jax.jit, static_argnames=("graph", "completion_length", "mask_id", "masks", "chunk", "remat"))
def policy_scores(
    graph: nnx.GraphDef,
    params: Params,
    rows: tuple[Array, Array, Array],
    *,
    completion_length: int,
    mask_id: int,
    masks: Estimator,
    chunk: int,
    remat: bool = False,
) -> Float[Array, "b c"]:
    """Score `rows` (tokens, attention mask, key data) under a policy."""
    tokens, attention_mask, keys = rows
    copies = forward_process(jax.random.wrap_key_data(keys), tokens, completion_length, mask_id, masks)
    model = nnx.merge(graph, params)
    return replicate(completion_scores(model, tokens, attention_mask, copies, chunk, remat=remat), model.mesh)


@partial(jax.jit, static_argnames="alpha", donate_argnums=0)
def mixed(reference: Params, params: Params, alpha: float) -> Params:
    """Move the reference, which is overwritten, towards the policy: (1 - alpha) reference + alpha policy."""
    return jax.tree.map(lambda old, new: (1 - alpha) * old + alpha * new, reference, params)


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
        shapes = jax.eval_shape(lambda *trees: merged(trees[0], in_dtype(trees[1], self.dtype)), frozen, params)
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
            self.batches, made = self.make(in_dtype(state.params, self.dtype), rollout)
            metrics |= made
            self.finished_at = time.monotonic()
        return self.batches[iteration], metrics

    def sample(self, params: Params, prompts: Sequence[Prompt], rollout: int) -> Completions:
        """Complete each prompt once, under the policy in the compute dtype, with the random numbers of a rollout."""
        limit = self.config.generation_batch_size or len(prompts)
        return sample_completions(
            self.weights.with_weights(self.policy(params)),
            self.tokenizer,
            prompts,
            self.config.generation,
            keys=sample_keys(self.config.training.seed, rollout, SAMPLING, jnp.arange(len(prompts))),
            width=self.prompts.width,
            batch_size=next(size for size in divisors(len(prompts)) if size <= limit),
        )

    def evaluate(self, prompts: Sequence[Prompt], params: Params) -> dict[str, float]:
        """Measure the mean reward of one completion per prompt, and the share of completions that end."""
        completions = self.sample(in_dtype(params, self.dtype), prompts, HELD_OUT)
        metrics = reward_metrics(reward_by_process(self.rewards, prompts, completions, 1), completions, 1)
        of_one_each = ("reward_std", "zero_variance_groups")
        return {name: value for name, value in metrics.items() if name not in of_one_each}

    def make(self, params: Params, rollout: int) -> tuple[list[PolicyBatch], dict[str, float]]:
        """Make a rollout: its batch for each update, and its metrics."""
        config, seed, start = self.config, self.config.training.seed, time.monotonic()
        chosen = self.prompts.chosen(seed, rollout, config.prompts_per_step)
        prompts = [prompt for prompt in chosen for _ in range(config.num_generations)]
        ids = jnp.arange(config.completions)
        completions = self.sample(params, prompts, rollout)
        sampled = time.monotonic()
        policies = self.policy(params), self.policy(in_dtype(self.arrays, self.dtype)) if self.arrays else None
        keys = [sample_keys(seed, rollout, 1 + number, ids) for number in range(config.num_iterations)]
        updates = [self.scored_rows(policies, completions, jax.random.key_data(key)) for key in keys]
        with ThreadPoolExecutor(1) as pool:
            scored_at = pool.submit(ready_at, updates)
            judging = sampled if self.scores_while_judging else scored_at.result()
            scored = reward_by_process(self.rewards, prompts, completions, config.num_generations)
            rewarding, scoring = time.monotonic() - judging, scored_at.result() - sampled
        rewards = rewards_of(scored.totals)
        if config.shuffle_rewards:
            rewards = np.random.default_rng((seed, rollout)).permutation(rewards)
        batches = [self.batch(rows, completions, rewards) for rows in updates]
        sampling = sampled - start
        seen = completions.tokens.size * config.masks.copies * config.num_iterations * (2 if self.arrays else 1)
        self.log(rollout, prompts, completions, scored)
        return batches, reward_metrics(scored, completions, config.num_generations) | {
            "rollout_seconds": sampling,
            "reward_seconds": rewarding,
            "score_seconds": scoring,
            "rollout_tokens_per_second": float(completions.lengths.sum()) / sampling,
            "rewards_per_second": len(completions.texts) / max(rewarding, 1e-9),
            "score_tokens_per_second": seen / scoring,
        }

    def scored_rows(
        self, policies: tuple[Params, Params | None], completions: Completions, keys: UInt32[Array, "b k"]
    ) -> dict[str, Array | None]:
        """Begin to score the rows of an update under the policy that sampled and the reference."""
        old, reference = policies
        rows = (self.put(completions.tokens), self.put(completions.attention_mask), self.put(keys))
        return {
            "tokens": rows[0],
            "attention_mask": rows[1],
            "keys": rows[2],
            "old_scores": self.score(old, rows),
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

    def log(self, rollout: int, prompts: list[Prompt], completions: Completions, scored: Scored) -> None:
        """Write some completions for people to read; a resumed run writes the same again."""
        if jax.process_index() > 0:
            return
        entries = [
            {
                "prompt": prompts[row].content,
                "completion": completions.texts[row],
                "reward": scored.totals[row],
                "rewards": {name: scores[row] for name, scores in scored.parts.items()},
            }
            for row in range(min(LOGGED_COMPLETIONS, len(prompts)))
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

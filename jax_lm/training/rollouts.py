"""Rollouts: completions that a policy samples, their rewards, and the advantages within a group.

A row is a left-padded prompt followed by its completion. A completion ends with its first stop
token: what was sampled after it is neither rewarded nor scored, and is replaced by padding.
Knows the sampler and rewards, no loss.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from math import nan, sqrt
from time import monotonic
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, Float, Int

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.seeds import seed_key
from jax_lm.models.shapes import BatchCounts, BatchKeys, HostMask, HostTokens, HostValues, ScalarInt
from jax_lm.options import GenerationOptions
from jax_lm.rewards.weighted_sum import Scored, WeightedSum
from jax_lm.sharding import row_devices
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds, pad_left
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.metrics import Metrics
from jax_lm.training.prompt_set import HELD_OUT, HostObjects, Prompts, PromptSet
from jax_lm.training.update import Params

# A reward of each completion; NaN of one that was not judged.
RewardArray = Float[np.ndarray, "b"]

# Iteration number in the keys of sampling; the updates of a rollout have numbers from 1.
SAMPLING = 0

# Added to the standard deviation of a group, which is 0 if all rewards are equal.
STD_EPSILON = 1e-4


# Example: prompt P Q, completion a b and stop token S, in 3 and 4 columns:
#   tokens           [pad, P, Q, a, b, S, pad]
#   attention_mask   [0, 1, 1, 1, 1, 1, 1]
#   completion_mask  [1, 1, 1, 0]
class Completions(NamedTuple):
    """Sampled completions, one row each.

    Attributes:
        tokens: prompt and completion, padded before the prompt and after the completion.
        attention_mask: False on the padding before the prompt, as in sampling.
        completion_mask: the completion up to and including its first stop token.
        sampled: the tokens as sampled, including those after the stop token.
        commit_step: sampler step that decided each position.
        confidence: probability of each token when it was decided, after temperature and filters.
        texts: the completions as strings, without the stop token.
        stopped: whether a completion has a stop token.
    """

    tokens: HostTokens
    attention_mask: HostMask
    completion_mask: Bool[np.ndarray, "b c"]
    sampled: HostTokens
    commit_step: Int[np.ndarray, "b c"]
    confidence: Float[np.ndarray, "b c"]
    texts: HostObjects
    stopped: Bool[np.ndarray, "b"]

    @property
    def lengths(self) -> Int[np.ndarray, "b"]:
        """Number of tokens of each completion, including the stop token."""
        return self.completion_mask.sum(axis=1)

    def ids(self, row: int) -> TokenIds:
        """Return the token ids of a completion, up to and including its stop token."""
        width = self.tokens.shape[1] - self.completion_mask.shape[1]
        return self.tokens[row, width : width + self.lengths[row]].tolist()


class Rollout(NamedTuple):
    """Completions and their rewards; the completions of one prompt are consecutive rows.

    Attributes:
        prompts: the prompt of each row.
        completions: one per row.
        totals: weighted sum of a row's rewards, NaN if it could not be judged; None until judged.
        parts: rewards by name, NaN where one did not judge or does not apply.
    """

    prompts: HostObjects
    completions: Completions
    totals: RewardArray | None
    parts: OrderedDict[str, RewardArray]

    @property
    def rewards(self) -> RewardArray:
        """The totals in float32, as training uses them."""
        assert self.totals is not None
        return self.totals.astype(np.float32)


class Rollouts:
    """Samples the completions of a run and judges them.

    Args:
        sampler: sampler of the policy, on the mesh that rollouts sample on; its weights are not
            kept.
        shardings: where the policy's weights lie on that mesh; None on one device.
        tokenizer: tokenizer of the policy.
        prompts: what the policy completes.
        rewards: what completions are worth.
        config: settings of the run.

    Attributes:
        seconds: how long the phases of the current rollout took.
    """

    def __init__(
        self,
        sampler: Sampler,
        shardings,
        tokenizer: DiffuCoderTokenizer,
        prompts: PromptSet,
        rewards: WeightedSum,
        config: GRPOConfig,
    ):
        self.sampler = sampler.changed(params={})
        self.shardings = shardings
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.rewards = rewards
        self.config = config
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def sample_rollout(self, policy: Params, number: int) -> Rollout:
        """Sample the completions of a rollout.

        Dynamic sampling also judges them, and draws prompts anew until enough groups have
        variance, at most `dynamic_sampling` times. Each draw takes as many prompts as are missing,
        rounded up to a power of two because every number of rows is compiled: 3 become 4.

        Args:
            policy: all weights, in the compute dtype.
            number: number of the rollout in the run.
        """
        # sample
        self.seconds.clear()
        rollout = self.draw_rollout(policy, number)
        if not self.config.dynamic_sampling:
            return rollout
        # judge, and replace groups without variance
        rollout = self.judge_rollout(rollout)
        for draw in range(1, 1 + self.config.dynamic_sampling):
            varied = has_variance(rollout.rewards, self.config.num_generations)
            missing = self.config.prompts_per_step - int(varied.sum())
            if missing <= 0:
                break
            # 3 missing: (3 - 1).bit_length() = 2, and 1 << 2 = 4
            count = min(self.config.prompts_per_step, 1 << (missing - 1).bit_length())
            added = self.judge_rollout(self.draw_rollout(policy, number, draw, count))
            rollout = jax.tree.map(lambda *parts: np.concatenate(parts), rollout, added)
        return rollout

    def draw_rollout(
        self, policy: Params, number: int, draw: int = 0, count: int | None = None
    ) -> Rollout:
        """Draw prompts, and sample a group of completions for each of them.

        Args:
            policy: as in `sample_rollout`.
            number: number of the rollout.
            draw: number of the draw within the rollout.
            count: prompts to draw; None draws as many as a rollout has.
        """
        start = monotonic()
        config = self.config
        first = number * config.prompts_per_step
        count = count or config.prompts_per_step
        selected = self.prompts.select(config.training.seed, first, count, draw)
        # prompts [p, q] in groups of 2 -> [p, p, q, q]
        prompts = np.repeat(np.array(selected, object), config.num_generations)
        completions = self.complete(policy, prompts, number, first=draw * config.completions)
        self.seconds["rollout_seconds"] += monotonic() - start
        return Rollout(prompts, completions, None, OrderedDict())

    def complete(
        self, policy: Params, prompts: Prompts, number: int, first: int = 0
    ) -> Completions:
        """Sample one completion for each prompt with the random numbers of a rollout.

        Args:
            policy: as in `sample_rollout`; copied to the mesh of rollouts for the call.
            prompts: one per completion.
            number: number of the rollout.
            first: number of the first completion among those of the rollout.
        """
        ids = first + jnp.arange(len(prompts))
        if self.shardings is not None:
            policy = jax.device_put(policy, self.shardings)
        return sample_completions(
            self.sampler.changed(params=policy),
            self.tokenizer,
            prompts,
            self.config.generation,
            keys=sample_keys(self.config.training.seed, number, SAMPLING, ids),
            width=self.prompts.width,
            batch_size=self.config.generation_batch_size or self.config.completions,
        )

    def judge_rollout(self, rollout: Rollout) -> Rollout:
        """Reward the completions of a rollout."""
        start = monotonic()
        rollout = judge_completions(
            self.rewards, rollout.prompts, rollout.completions, self.config.num_generations
        )
        self.seconds["reward_seconds"] += monotonic() - start
        return rollout

    def choose_groups(self, rollout: Rollout) -> Rollout:
        """Choose the groups to train on: the first with variance, then the first without.

        If 2 are needed and of groups 0 to 3 only group 3 has variance, these are 3 and 0.
        """
        size = self.config.num_generations
        varied = has_variance(rollout.rewards, size)
        groups = np.argsort(~varied, kind="stable")[: self.config.prompts_per_step]
        # groups [3, 0] of size 2 -> rows [6, 7, 0, 1]
        rows = (groups[:, None] * size + np.arange(size)).ravel()
        return jax.tree.map(lambda leaf: leaf[rows], rollout)

    def compare(self, rollout: Rollout, number: int) -> tuple[RewardArray, Bool[np.ndarray, "b c"]]:
        """Return the completions' advantages, and which tokens count.

        No token counts in a completion that was not judged, or whose group has no variance.
        """
        config = self.config
        rewards = rollout.rewards
        # The control: rewards that have nothing to do with their completions.
        if config.shuffle_rewards:
            rewards = np.random.default_rng((config.training.seed, number)).permutation(rewards)
        compared = advantages(
            rewards,
            config.num_generations,
            baseline=config.baseline,
            scale_rewards=config.scale_rewards,
        )
        teaches = np.repeat(has_variance(rewards, config.num_generations), config.num_generations)
        counts = teaches & np.isfinite(rewards)
        return compared, rollout.completions.completion_mask & counts[:, None]

    def rollout_metrics(self, rollout: Rollout) -> Metrics:
        """Summarise all completions drawn for a rollout: rewards, lengths, entropy, times.

        The entropy of sampling, per token, is estimated from the sampled tokens.
        """
        completions = rollout.completions
        confidence = completions.confidence[completions.completion_mask]
        return {
            **reward_metrics(rollout, self.config.num_generations),
            **self.seconds,
            "entropy": -float(np.log(confidence).mean()),
        }

    def evaluate(self, policy: Params, prompts: Prompts) -> tuple[Metrics, Completions]:
        """Measure the mean reward of one completion per prompt; also return the completions."""
        completions = self.complete(policy, prompts, HELD_OUT)
        judged = judge_completions(self.rewards, np.array(prompts, object), completions, 1)
        metrics = reward_metrics(judged, 1)
        # One completion per prompt has no variance.
        del metrics["reward_std"], metrics["zero_variance_groups"]
        return metrics | {"reward_error": standard_error(judged.rewards)}, completions


def sample_keys(
    seed: int, rollout: ScalarInt | int, iteration: ScalarInt | int, sample_ids: BatchCounts
) -> BatchKeys:
    """Derive one key per sample from its global id, whatever batch the sample is in."""
    key = jax.random.fold_in(jax.random.fold_in(seed_key(seed), rollout), iteration)
    return jax.vmap(lambda sample: jax.random.fold_in(key, sample))(sample_ids)


def sample_completions(
    sampler: Sampler,
    tokenizer: DiffuCoderTokenizer,
    prompts: Prompts,
    options: GenerationOptions,
    *,
    keys: BatchKeys,
    width: int,
    batch_size: int | None = None,
) -> Completions:
    """Sample one completion for each prompt.

    Args:
        sampler: holds the policy's weights.
        tokenizer: has the pad and stop tokens, and decodes.
        prompts: one per completion.
        options: how completions are sampled.
        keys: one per prompt, so that a completion does not depend on the batch it is sampled in.
        width: columns for prompts.
        batch_size: rows sampled together; None samples all at once.
    """
    count = len(prompts)
    batch_size = min(batch_size or count, count)
    # prompts [[1, 2], [3]] and width 3 -> [[pad, 1, 2], [pad, pad, 3]]
    ids, mask = pad_left([prompt.ids for prompt in prompts], tokenizer.pad_id, multiple_of=width)
    # A mesh computes rows that it cannot split on every device, so some rows are sampled twice
    # and their second sample is dropped: 6 rows on 4 devices become rows 0 1 2 3 4 5 0 1. The last
    # batch is filled up in the same way: 5 rows by 2 are rows 0 1, 2 3 and 4 0.
    padded_size = batch_size + -batch_size % row_devices(sampler.mesh)
    # decode, one batch after another
    batches = []
    for first in range(0, count, batch_size):
        rows = (first + np.arange(padded_size) % batch_size) % count
        canvas = Canvas.after(ids[rows], mask[rows], options.max_new_tokens)
        state = sampler.generate(canvas, options, seed=keys[rows], stop_ids=tokenizer.stop_ids)
        arrays = state.tokens, canvas.attention_mask, state.commit_step, state.confidence
        # drop the second samples
        batches.append([np.asarray(array)[:batch_size] for array in arrays])
    tokens, mask, steps, confidence = (
        np.concatenate(parts)[:count] for parts in zip(*batches, strict=True)
    )
    return cut_at_stop(tokens, mask, steps, confidence, width, tokenizer)


def cut_at_stop(
    sampled: HostTokens,
    attention_mask: HostMask,
    commit_step: HostTokens,
    confidence: HostValues,
    width: int,
    tokenizer: DiffuCoderTokenizer,
) -> Completions:
    """End each completion at the first stop token after column `width`."""
    tokens = sampled.copy()
    # Stop token S: [a, b, S, c] -> completion mask [1, 1, 1, 0] and tokens [a, b, S, pad].
    # A view: writing to it changes `tokens`.
    completions = tokens[:, width:]
    is_stop = np.isin(completions, tokenizer.stop_ids)
    stopped = np.any(is_stop, axis=1)
    last = np.where(stopped, is_stop.argmax(axis=1), completions.shape[1] - 1)
    completion_mask = np.arange(completions.shape[1]) <= last[:, None]
    completions[~completion_mask] = tokenizer.pad_id
    texts = np.array([tokenizer.decode_until_stop(row.tolist()) for row in completions], object)
    decided = sampled, commit_step[:, width:], confidence[:, width:]
    return Completions(tokens, attention_mask, completion_mask, *decided, texts, stopped)


def reward_completions(
    rewards: WeightedSum,
    prompts: Prompts,
    completions: Completions,
    rows: Sequence[int] | None = None,
) -> Scored:
    """Reward completions.

    A reward sees the prompts' contents, the texts, the prompts' columns and `completion_ids`.

    Args:
        rewards: the rewards and their weights.
        prompts: the prompt of each completion.
        completions: what is rewarded.
        rows: completions to reward; None rewards all of them.
    """
    rows = range(len(prompts)) if rows is None else rows
    columns = {name: [prompts[row].columns[name] for row in rows] for name in prompts[0].columns}
    columns["completion_ids"] = [completions.ids(row) for row in rows]
    return rewards.score(
        [prompts[row].content for row in rows], [completions.texts[row] for row in rows], **columns
    )


def judge_completions(
    rewards: WeightedSum, prompts: HostObjects, completions: Completions, group_size: int
) -> Rollout:
    """Reward the completions of a rollout, split by groups over the processes of the run.

    No program runs twice, and all processes return the same rewards.
    """
    # With groups of 2 and 2 processes, rows 0 1 4 5 belong to process 0 and rows 2 3 6 7 to 1.
    owner = np.arange(len(prompts)) // group_size % jax.process_count()
    mine = np.flatnonzero(owner == jax.process_index()).tolist()
    table = np.full((1 + len(rewards.rewards), len(prompts)), np.nan)
    if mine:
        scored = reward_completions(rewards, prompts, completions, mine)
        # None, the score of what was not judged, becomes NaN.
        # Row 0 of the table holds the totals, the others the parts.
        table[:, mine] = np.array([scored.totals, *scored.parts.values()], np.float64)
    if jax.process_count() > 1:
        everyone = np.asarray(multihost_utils.process_allgather(table.astype(np.float32)))
        # [processes, 1 + rewards, rows]: take each row's column from the process that owns it.
        table = everyone[owner, :, np.arange(len(prompts))].T.astype(np.float64)
    # Ordered, because JAX sorts the names of a plain dict.
    parts = OrderedDict(zip(rewards.rewards, table[1:], strict=True))
    return Rollout(prompts, completions, table[0], parts)


def advantages(
    rewards: RewardArray,
    num_generations: int,
    *,
    baseline: str = "leave_one_out",
    scale_rewards: bool = False,
) -> RewardArray:
    """Compute advantages: compare each reward with the others of its group of consecutive rows.

    A reward is NaN if the completion was not judged: it enters no baseline, and its advantage is 0.
    A completion without another judged one in its group has advantage 0, too.

    Args:
        rewards: one per completion.
        num_generations: completions per group.
        baseline: leave_one_out subtracts the mean of the group's other completions (RLOO), mean
            that of all of them.
        scale_rewards: divide by the group's standard deviation (plus 1e-4).
    """
    groups = rewards.astype(np.float64).reshape(-1, num_generations)
    # Groups [[3, 1], [2, nan]]: counts [2, 1], totals [4, 2], centred [[1, -1], [0, 0]].
    judged = np.isfinite(groups)
    count = judged.sum(axis=1, keepdims=True)
    total = np.where(judged, groups, 0.0).sum(axis=1, keepdims=True)
    result = centred = np.where(judged, groups - total / np.maximum(count, 1), 0.0)
    others = np.maximum(count - 1, 1)
    if baseline == "leave_one_out":
        # A mean that includes the completion itself would shrink its advantage by (n - 1) / n:
        # r - mean of the others = n / (n - 1) * (r - mean of all).
        # Rewards 3 and 1: 3 - 1 = 2 / 1 * (3 - 2).
        result = centred * count / others
    if scale_rewards:
        # The sample standard deviation, with n - 1.
        result = result / (np.sqrt((centred**2).sum(axis=1, keepdims=True) / others) + STD_EPSILON)
    return result.ravel().astype(np.float32)


def has_variance(rewards: RewardArray, group_size: int) -> Bool[np.ndarray, "g"]:
    """Return which groups have judged completions with different rewards.

    Only these groups teach: in the others, all advantages are 0.
    """
    groups = rewards.reshape(-1, group_size)
    return np.array([len(np.unique(group[np.isfinite(group)])) > 1 for group in groups])


def reward_metrics(rollout: Rollout, group_size: int) -> Metrics:
    """Summarise rewards and completions: means over what was judged, NaN if nothing was."""
    rewards = rollout.rewards
    groups = [group[np.isfinite(group)] for group in rewards.reshape(-1, group_size)]
    deviations = [np.std(group, ddof=1, dtype=np.float64) for group in groups if len(group) > 1]
    return {
        "reward": mean_of_judged(rewards),
        "reward_std": float(np.mean(deviations)) if deviations else 0.0,
        # Such a group has no advantages, and none of its tokens counts.
        "zero_variance_groups": 1 - float(has_variance(rewards, group_size).mean()),
        "excluded_completions": float(np.isnan(rewards).sum()),
        "completion_tokens": float(rollout.completions.lengths.mean()),
        "unfinished_completions": 1 - float(rollout.completions.stopped.mean()),
        **{f"reward_{name}": mean_of_judged(part) for name, part in rollout.parts.items()},
    }


def standard_error(rewards: RewardArray) -> float:
    """Return the standard error of the mean of the rewards that are not NaN."""
    judged = rewards[np.isfinite(rewards)]
    return float(judged.std(ddof=1) / sqrt(judged.size)) if judged.size > 1 else nan


def mean_of_judged(scores: RewardArray) -> float:
    """Average the scores that are not NaN; NaN if all are."""
    judged = scores[np.isfinite(scores)]
    return float(judged.mean()) if judged.size else nan

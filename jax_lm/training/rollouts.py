"""Rollouts: prompts in their order, the completions that a policy writes to them, and what those are worth.

A row is a left-padded prompt and its completion, and ends at its first stop token: what was sampled after that is
neither rewarded nor scored, and is replaced by padding. Knows the sampler and rewards, no loss.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Bool, Float, Int, Key

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.options import GenerationOptions
from jax_lm.rewards.reward import Chat, Scores
from jax_lm.rewards.weighted_sum import Scored, WeightedSum
from jax_lm.sharding import row_devices
from jax_lm.tokenizer import DiffuCoderTokenizer, pad_left

logger = logging.getLogger(__name__)

PROMPT = "prompt"
WIDTH_BUCKET = 32
"""Prompts are padded to a multiple of this."""

HELD_OUT = 2**32 - 1
"""In place of the number of an epoch or a rollout, for prompts that are evaluated."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as text or chat messages, which rewards see; its ids, and the columns that rewards read."""

    content: Chat
    ids: tuple[int, ...]
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a run, in a random order that follows from the seed and the rollout's number alone.

    Attributes:
        prompts: those that fit.
        too_long: how many were dropped, because they have more than the allowed tokens.
        width: columns that hold any of the prompts; one width, so that everything compiles once.
    """

    prompts: tuple[Prompt, ...]
    too_long: int
    width: int

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], tokenizer: DiffuCoderTokenizer, max_length: int) -> "PromptSet":
        """Encode rows with a `prompt` (text, completed as it stands, or chat messages) and columns for rewards.

        Raises:
            ValueError: a row without a prompt, or no prompt that fits.
        """
        prompts = []
        for number, row in enumerate(rows):
            content = row.get(PROMPT)
            if not content or not isinstance(content, str | list | tuple):
                raise ValueError(f"row {number} has no 'prompt' (text or chat messages): {str(row)[:80]}")
            text = content if isinstance(content, str) else tokenizer.apply_chat_template(content)
            columns = {name: value for name, value in row.items() if name != PROMPT}
            prompts.append(Prompt(content, tuple(tokenizer.encode(text)), columns))
        fitting = tuple(prompt for prompt in prompts if len(prompt.ids) <= max_length)
        too_long = len(prompts) - len(fitting)
        if not fitting:
            raise ValueError(f"no prompt has at most max_prompt_length={max_length} tokens ({too_long} are longer)")
        if too_long:
            logger.warning("%d prompts dropped: longer than max_prompt_length=%d tokens", too_long, max_length)
        longest = max(len(prompt.ids) for prompt in fitting)
        return cls(fitting, too_long, longest + -longest % WIDTH_BUCKET)

    def split(self, count: int, seed: int) -> tuple["PromptSet", tuple[Prompt, ...]]:
        """Split off `count` prompts drawn by the seed; ValueError if none would be left. The rest keeps its width."""
        if count >= len(self.prompts):
            raise ValueError(f"held_out_prompts={count}: must leave some of the {len(self.prompts)} prompts that fit")
        order = np.random.default_rng((seed, HELD_OUT)).permutation(len(self.prompts))
        held_out = set(order[:count].tolist())
        learnt = tuple(prompt for number, prompt in enumerate(self.prompts) if number not in held_out)
        return PromptSet(learnt, self.too_long, self.width), tuple(self.prompts[number] for number in order[:count])

    def chosen(self, seed: int, first: int, count: int, draw: int = 0) -> list[Prompt]:
        """Choose prompts from number `first` on: every prompt once per epoch, each epoch in an order of its own.

        Args:
            draw: which choice of a rollout it is; each goes through the prompts in other orders.
        """
        size = len(self.prompts)
        numbers = range(first, first + count)
        epochs = {number // size for number in numbers}
        stream = (draw,) if draw else ()
        orders = {epoch: np.random.default_rng((seed, epoch, *stream)).permutation(size) for epoch in epochs}
        return [self.prompts[orders[number // size][number % size]] for number in numbers]


@dataclass(frozen=True)
class Completions:
    """Sampled completions, one row each.

    Attributes:
        tokens: prompt and completion; padding before the one and after the other.
        attention_mask: False on the padding before the prompt, as in sampling.
        completion_mask: the completion up to and with its first stop token.
        commit_step: step of the sampler that decided each position.
        texts: of the completions, without the stop token.
        stopped: which completions have a stop token.
    """

    tokens: Int[np.ndarray, "b t"]
    attention_mask: Bool[np.ndarray, "b t"]
    completion_mask: Bool[np.ndarray, "b c"]
    commit_step: Int[np.ndarray, "b c"]
    texts: tuple[str, ...]
    stopped: Bool[np.ndarray, "b"]

    ARRAYS: ClassVar = ("tokens", "attention_mask", "completion_mask", "commit_step", "stopped")

    @property
    def lengths(self) -> Int[np.ndarray, "b"]:
        """Tokens of each completion, the stop token among them."""
        return self.completion_mask.sum(axis=1)

    def of_rows(self, rows: Sequence[int]) -> "Completions":
        """Pick rows."""
        texts, kept = tuple(self.texts[row] for row in rows), list(rows)
        return Completions(texts=texts, **{name: getattr(self, name)[kept] for name in self.ARRAYS})

    def ids(self, row: int) -> list[int]:
        """List the ids of a completion, up to and with its stop token."""
        start = self.tokens.shape[1] - self.completion_mask.shape[1]
        return self.tokens[row, start : start + self.lengths[row]].tolist()


@dataclass(frozen=True)
class Rollout:
    """Completions of prompts, and what they are worth; the completions of a prompt are consecutive rows."""

    prompts: tuple[Prompt, ...]
    completions: Completions
    scored: Scored

    @classmethod
    def joined(cls, parts: Sequence["Rollout"]) -> "Rollout":
        """Put rollouts one after the other."""
        arrays = {
            name: np.concatenate([getattr(part.completions, name) for part in parts]) for name in Completions.ARRAYS
        }
        texts = tuple(text for part in parts for text in part.completions.texts)
        totals = [total for part in parts for total in part.scored.totals]
        by_name = {name: [s for part in parts for s in part.scored.parts[name]] for name in parts[0].scored.parts}
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        return cls(prompts, Completions(texts=texts, **arrays), Scored(totals, by_name))

    def of_rows(self, rows: Sequence[int]) -> "Rollout":
        """Pick rows."""
        parts = {name: [scores[row] for row in rows] for name, scores in self.scored.parts.items()}
        scored = Scored([self.scored.totals[row] for row in rows], parts)
        return Rollout(tuple(self.prompts[row] for row in rows), self.completions.of_rows(rows), scored)


def sample_completions(
    sampler: Sampler,
    tokenizer: DiffuCoderTokenizer,
    prompts: Sequence[Prompt],
    options: GenerationOptions,
    *,
    keys: Key[jax.Array, "b"],
    width: int,
    batch_size: int | None = None,
) -> Completions:
    """Complete each prompt once.

    Args:
        sampler: with the policy's weights.
        keys: one per prompt, so that a completion does not depend on the batch in which it is sampled.
        width: columns for prompts.
        batch_size: rows sampled together; None is all. Must divide their number.
    """
    batch_size = len(prompts) if batch_size is None else batch_size
    if len(prompts) % batch_size:
        raise ValueError(f"generation_batch_size={batch_size}: must divide the {len(prompts)} completions of a rollout")
    ids, mask = pad_left([prompt.ids for prompt in prompts], tokenizer.pad_id, multiple_of=width)
    canvas = Canvas.after(ids, mask, options.max_new_tokens)
    # Rows that a mesh cannot split would be computed on every device; so some are sampled twice, once for nothing.
    whole = batch_size + -batch_size % row_devices(sampler.mesh)
    parts = []
    for first in range(0, len(prompts), batch_size):
        rows = first + np.arange(whole) % batch_size
        part = Canvas.after(ids[rows], mask[rows], options.max_new_tokens)
        state = sampler.generate(part, options, seed=keys[rows], stop_ids=tokenizer.stop_ids)
        parts.append([np.asarray(part)[:batch_size] for part in (state.tokens, state.commit_step)])
    tokens, commit_step = map(np.concatenate, zip(*parts, strict=True))
    return ended(tokens, commit_step, canvas.attention_mask, width, tokenizer)


def ended(
    tokens: Int[np.ndarray, "b t"],
    commit_step: Int[np.ndarray, "b t"],
    attention_mask: Bool[np.ndarray, "b t"],
    width: int,
    tokenizer: DiffuCoderTokenizer,
) -> Completions:
    """Cut rows at the first stop token after column `width`."""
    tokens = tokens.copy()
    completions = tokens[:, width:]
    is_stop = np.isin(completions, tokenizer.stop_ids)
    stopped = np.any(is_stop, axis=1)
    last = np.where(stopped, is_stop.argmax(axis=1), completions.shape[1] - 1)
    completion_mask = np.arange(completions.shape[1]) <= last[:, None]
    completions[~completion_mask] = tokenizer.pad_id
    texts = tuple(tokenizer.decode_until_stop(row.tolist()) for row in completions)
    return Completions(tokens, attention_mask, completion_mask, commit_step[:, width:], texts, stopped)


def reward_completions(
    rewards: WeightedSum, prompts: Sequence[Prompt], completions: Completions, rows: Sequence[int] | None = None
) -> Scored:
    """Reward completions, all or some rows of them.

    A reward sees the prompts' contents, the texts, the prompts' columns and `completion_ids`.
    """
    rows = range(len(prompts)) if rows is None else rows
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    columns = {name: [prompts[row].columns.get(name) for row in rows] for name in names}
    columns["completion_ids"] = [completions.ids(row) for row in rows]
    return rewards.score([prompts[row].content for row in rows], [completions.texts[row] for row in rows], **columns)


def reward_by_process(rewards: WeightedSum, prompts: Sequence[Prompt], completions: Completions, group: int) -> Scored:
    """Reward all completions, each process its own groups: no program runs twice, and all hold the same rewards."""
    if jax.process_count() == 1:
        return reward_completions(rewards, prompts, completions)
    owner = np.arange(len(prompts)) // group % jax.process_count()
    mine = np.flatnonzero(owner == jax.process_index()).tolist()
    names = tuple(rewards.rewards)
    table = np.full((1 + len(names), len(prompts)), np.nan, np.float32)
    if mine:
        scored = reward_completions(rewards, prompts, completions, mine)
        table[:, mine] = [rewards_of(scores) for scores in (scored.totals, *(scored.parts[name] for name in names))]
    everyone = np.asarray(multihost_utils.process_allgather(table))
    owned = everyone[owner, :, np.arange(len(prompts))].T.tolist()
    totals, *parts = [[None if math.isnan(score) else score for score in line] for line in owned]
    return Scored(totals, dict(zip(names, parts, strict=True)))


def has_variance(rewards: Float[np.ndarray, "b"], num_generations: int) -> Bool[np.ndarray, "g"]:
    """Tell for each group whether its judged completions are worth different amounts: only such a group teaches."""
    groups = rewards.reshape(-1, num_generations)
    return np.array([len(np.unique(group[np.isfinite(group)])) > 1 for group in groups])


def rewards_of(scores: Scores) -> Float[np.ndarray, "b"]:
    """Turn scores into an array, NaN where there is none."""
    return np.array([math.nan if score is None else score for score in scores], np.float32)


def reward_metrics(scored: Scored, completions: Completions, num_generations: int) -> dict[str, float]:
    """Summarise a rollout: means over judged completions, shares of groups and completions; NaN of none judged."""
    rewards = rewards_of(scored.totals)
    judged = np.isfinite(rewards)
    groups = rewards.reshape(-1, num_generations)
    spread = [
        np.std(group[np.isfinite(group)], ddof=1, dtype=np.float64) for group in groups if np.isfinite(group).sum() > 1
    ]
    metrics = {
        "reward": float(rewards[judged].mean()) if judged.any() else math.nan,
        "reward_std": float(np.mean(spread)) if spread else 0.0,
        # Such a group has no advantages: it trains on the divergence alone.
        "zero_variance_groups": 1 - float(has_variance(rewards, num_generations).mean()),
        "excluded_completions": float(scored.excluded),
        "completion_tokens": float(completions.lengths.mean()),
        "unfinished_completions": 1 - float(completions.stopped.mean()),
    }
    parts = {name: [score for score in scores if score is not None] for name, scores in scored.parts.items()}
    return metrics | {f"reward_{name}": float(np.mean(scores or [math.nan])) for name, scores in parts.items()}

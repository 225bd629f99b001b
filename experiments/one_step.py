"""What one update does: the evaluation after one step of Adam, for each way to weigh a rollout.

    python experiments/one_step.py docs/results/one_step/counts.json

One batch per seed: groups with variance of the built-in model on four-step pipelines, which it was
never trained on. Each arm starts from the shipped weights, takes one step on this batch, and answers
the same prompts with the same random numbers. Arms that are done are not done again; `--table`
prints the table of the counts that are there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jax_lm.data.prompts import open_prompts
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.rewards import weighted_sum
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import Estimator, PolicyLoss
from jax_lm.training.policy_loss import policy_loss
from jax_lm.training.prompt_set import Prompts, PromptSet
from jax_lm.training.rollout_source import MaskedRows, policy_scores
from jax_lm.training.rollouts import (
    Completions,
    advantages,
    has_variance,
    reward_completions,
    sample_completions,
    sample_keys,
)
from jax_lm.training.update import LossTerms, gradient

GROUP, TOGETHER, PART = 16, 16, 16
"""Completions of a prompt, completions sampled at once, and rows of a part of the gradient."""
EVALUATION = 1000
"""Number of the rollout whose random numbers evaluations have."""
SAMPLING = GenerationOptions(
    max_new_tokens=96, num_steps=12, temperature=1.0, decoding=Decoding(preset="fast")
)
SEGMENTS = 4
WHOLE = replace(SAMPLING, num_steps=SEGMENTS, decoding=Decoding())
"""One block of four steps without a cache: how `trace` scored before it followed the steps."""
STEPS, COUPLED = Estimator(estimator="trace"), Estimator()
CLIP = PolicyLoss(beta=0.0)
SCALED, BY_P, DROPPED = (
    replace(CLIP, negative_scale=0.3),
    replace(CLIP, negative_power=1.0),
    replace(CLIP, negative_floor=0.1),
)


@dataclass(frozen=True)
class Arm:
    """How a batch is weighed.

    Attributes:
        masks: estimator of the scores.
        merged: whether steps are merged to four, and the cache of sampling ignored.
        loss: form of the loss.
        rows: all, positive or negative: the rows whose advantages are kept.
        shuffled: whether rewards are handed out at random.
    """

    masks: Estimator
    merged: bool = False
    loss: PolicyLoss = CLIP
    rows: str = "all"
    shuffled: bool = False


ARMS = {
    "merged": Arm(STEPS, merged=True),
    "merged, negatives alone": Arm(STEPS, merged=True, rows="negative"),
    "merged, positives alone": Arm(STEPS, merged=True, rows="positive"),
    "steps": Arm(STEPS),
    "steps, x p": Arm(STEPS, loss=BY_P),
    "steps, x 0.3": Arm(STEPS, loss=SCALED),
    "steps, drop": Arm(STEPS, loss=DROPPED),
    "steps, shuffled": Arm(STEPS, shuffled=True),
    "coupled": Arm(COUPLED),
    "coupled, x p": Arm(COUPLED, loss=BY_P),
    "coupled, x 0.3": Arm(COUPLED, loss=SCALED),
    "merged, x p": Arm(STEPS, merged=True, loss=BY_P),
    "merged, x 0.3": Arm(STEPS, merged=True, loss=SCALED),
    "merged, drop": Arm(STEPS, merged=True, loss=DROPPED),
    "merged, shuffled": Arm(STEPS, merged=True, shuffled=True),
}
"""A dual clip has no arm: in the first update of a rollout every ratio is 1, below any delta."""


class Task:
    """The built-in model, its prompts and their rewards."""

    def __init__(self, folder: Path, evaluated: int) -> None:
        self.tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
        self.model = DreamForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=jnp.float32)
        self.sampler = Sampler(self.model)
        self.rewards = weighted_sum({"completed_code": 1.0})
        self.train, held_out = (
            PromptSet.of([*open_prompts(folder / f"{name}-4.jsonl").values()], self.tokenizer, 96)
            for name in ("train", "dev")
        )
        self.width = max(self.train.width, held_out.width)
        self.held_out = held_out.prompts[:evaluated]

    def complete(
        self,
        params: Any,
        prompts: Prompts,
        seed: int,
        number: int,
        options: GenerationOptions = SAMPLING,
    ) -> tuple[Completions, np.ndarray]:
        """Sample a completion per prompt; returns them and their rewards."""
        count = len(prompts)
        completions = sample_completions(
            self.sampler.changed(params=params),
            self.tokenizer,
            np.array(prompts, object),
            options,
            keys=sample_keys(seed, number, 0, jnp.arange(count)),
            width=self.width,
            batch_size=min(TOGETHER, count),
        )
        totals = reward_completions(self.rewards, prompts, completions).totals
        return completions, np.array(totals, np.float32)

    @cache  # noqa: B019 (one task per process)
    def batch(self, seed: int, groups: int) -> tuple[Completions, np.ndarray, dict[str, Any]]:
        """Draw prompts until so many groups have variance; returns their rows and rewards."""
        kept, tried, rewards = [], 0, []
        while len(kept) < groups:
            prompt = self.train.select(seed, tried, 1)[0]
            drawn, totals = self.complete(self.sampler.params, [prompt] * GROUP, seed, tried)
            tried += 1
            rewards.append(float(totals.mean()))
            if has_variance(totals, GROUP)[0]:
                kept.append((drawn, totals))
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)
        return (*joined, {"groups tried": tried, "mean reward": float(np.mean(rewards))})

    def evaluate(self, params: Any, samples: int) -> dict[str, Any]:
        """Return how many of all samples pass, and their mean reward."""
        prompts = [prompt for prompt in self.held_out for _ in range(samples)]
        _, totals = self.complete(params, prompts, 0, EVALUATION)
        passed = (totals == 1).reshape(-1, samples).sum(axis=1)
        return {"passed": passed.tolist(), "samples": samples, "reward": float(totals.mean())}


def merged(steps: np.ndarray) -> np.ndarray:
    """Merge the steps of a row to four of about equally many."""
    distinct, rank = np.unique(steps, return_inverse=True)
    return (rank * min(SEGMENTS, len(distinct)) // len(distinct)).astype(np.int32)


def one_step(task: Task, arm: Arm, seed: int, groups: int, rate: float) -> tuple[Any, dict]:
    """Take one step; returns the weights, and what the scores of the batch were."""
    completions, rewards, _ = task.batch(seed, groups)
    if arm.shuffled:
        rewards = np.random.default_rng(seed).permutation(rewards)
    advantage = advantages(rewards, GROUP, scale_rewards=True)
    signs = {"all": advantage != 0, "positive": advantage > 0, "negative": advantage < 0}
    advantage = np.where(signs[arm.rows], advantage, 0).astype(np.float32)
    steps, follows = completions.commit_step, arm.masks.reads_steps and not arm.merged
    if arm.merged:
        steps = np.array([merged(row) for row in steps])
    keys = jax.random.key_data(sample_keys(seed, 0, 1, jnp.arange(len(rewards))))
    rows = MaskedRows(
        # Padding after the stop token, as coupled has it and merged had it.
        tokens=jnp.asarray(completions.sampled if follows else completions.tokens),
        attention_mask=jnp.asarray(completions.attention_mask),
        completion_mask=jnp.asarray(completions.completion_mask),
        keys=keys,
        commit_step=jnp.asarray(steps) if arm.masks.reads_steps else None,
    )
    score = partial(
        policy_scores,
        task.sampler.graph,
        mask_id=task.sampler.mask_id,
        generation=WHOLE if arm.merged else SAMPLING,
        masks=arm.masks,
        chunk=PART,
    )

    def loss(params: Any, batch: tuple[MaskedRows, Array], key: Array) -> LossTerms:
        rows, advantage = batch
        scores = score(params, rows)
        terms = policy_loss(scores, None, None, advantage, rows.completion_mask, arm.loss)
        return terms._replace(metrics={})

    params, parts = task.sampler.params, len(rewards) // PART
    differentiate = jax.jit(partial(gradient, loss, frozen={}, key=jax.random.key(0), parts=parts))
    gradients, _ = differentiate(params=params, batch=(rows, jnp.asarray(advantage)))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.99))
    updates, _ = optimizer.update(gradients, optimizer.init(params))
    scores = np.asarray(score(params, rows))[completions.completion_mask]
    described = {
        "mean score": float(scores.mean()),
        "under 0.1": float(np.mean(scores < np.log(0.1))),
        "under 0.001": float(np.mean(scores < np.log(0.001))),
    }
    return optax.apply_updates(params, updates), described


def table(counts: dict[str, Any], seeds: Sequence[int]) -> str:
    """Write a line per arm: pass rate by seed, its mean, and the change from the start."""

    def rate(name: str) -> float | None:
        done = counts["runs"].get(name)
        return done and sum(done["passed"]) / (len(done["passed"]) * done["samples"])

    start = rate("start")
    if start is None:
        return ""
    lines = [
        "| one step | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | change |",
        "|---|" + "---|" * (len(seeds) + 2),
        f"| start | {' | '.join(f'{start:.1%}' for _ in seeds)} | {start:.1%} | |",
    ]
    for name in ARMS:
        rates = [rate(f"{name}-{seed}") for seed in seeds]
        done = [one for one in rates if one is not None]
        if done:
            cells = " | ".join("" if one is None else f"{one:.1%}" for one in rates)
            mean = float(np.mean(done))
            lines.append(f"| {name} | {cells} | {mean:.1%} | {mean - start:+.1%} |")
    return "\n".join(lines)


def main(
    out: Positional[Path],
    prompts: Path = Path("experiments/pipelines"),
    seeds: tuple[int, ...] = (0, 1, 2),
    groups: int = 4,
    evaluated: int = 96,
    samples: int = 1,
    rate: float = 3e-5,
    only: tuple[str, ...] = (),
    only_table: bool = False,
) -> None:
    """Take the steps that are not done yet, and print the table.

    Args:
        out: JSON file of the counts.
        prompts: folder of builtin_model.pipelines.
        seeds: of the batches.
        groups: groups with variance in a batch.
        evaluated: prompts of the evaluation; times samples, a multiple of 16.
        samples: completions of each.
        rate: of Adam, whose moments start at 0.
        only: names of arms; all by default.
        only_table: take no step.
    """
    settings = {"groups": groups, "evaluated": evaluated, "samples": samples, "rate": rate}
    counts: dict[str, Any] = {"settings": settings, "batches": {}, "runs": {}}
    if out.is_file():
        counts = json.loads(out.read_text(encoding="utf-8"))
        if counts["settings"] != settings:
            raise ValueError(f"out={out}: holds counts of {counts['settings']}, not {settings}")

    def record(name: str, found: dict[str, Any]) -> None:
        counts["runs"][name] = found
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_suffix(".tmp")
        temporary.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
        temporary.replace(out)
        passed, total = sum(found["passed"]), len(found["passed"]) * found["samples"]
        print(f"{name}: {passed} of {total}", flush=True)

    if not only_table:
        task = Task(prompts, evaluated)
        if "start" not in counts["runs"]:
            record("start", task.evaluate(task.sampler.params, samples))
        for seed in seeds:
            for name, arm in ARMS.items():
                run = f"{name}-{seed}"
                if run in counts["runs"] or (only and name not in only):
                    continue
                counts["batches"][str(seed)] = task.batch(seed, groups)[2]
                params, described = one_step(task, arm, seed, groups, rate)
                record(run, described | task.evaluate(params, samples))
    print(table(counts, seeds))


if __name__ == "__main__":
    run_main(main)

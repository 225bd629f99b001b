"""How far scores are from the likelihood of a decoding: bias, variance, and the policy gradient.

    python experiments/estimators.py docs/results/estimators/counts.json

Along its own decoding, the sampler's likelihood of a completion is exact (`jax_lm.diffusion.trace`):
the sum of the log-probabilities of its tokens on the canvases that they were drawn from. Each
estimator is compared with it on the same completions: groups with variance of the built-in model on
four-step pipelines, decoded in 12 steps (several tokens at once) and in 96 (one at a time). What is
done is not done again.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from experiments.one_step import SAMPLING, WHOLE, Task, merged
from jax_lm.diffusion.trace import decoded_blocks, trace_log_probs
from jax_lm.host.declared import Positional, run_main
from jax_lm.options import Decoding
from jax_lm.training.grpo_config import Estimator
from jax_lm.training.policy_loss import Copies, completion_scores, forward_process, score_in_chunks
from jax_lm.training.rollouts import Completions, advantages, has_variance, sample_keys

GROUP = 8
LENGTH = SAMPLING.max_new_tokens
LEFT_TO_RIGHT = replace(SAMPLING, num_steps=LENGTH, decoding=Decoding())

# Scores of completions under a model, for keys of the masks: (model, rows, keys) -> [b, c].
Scores = Callable[[Any, Any, Array], Array]


def exact(options: Any, mask_id: int) -> Scores:
    """Score along the decoding."""

    def scores(model: Any, rows: Any, keys: Array) -> Array:
        blocks = decoded_blocks(rows.tokens.shape[1], options, mask_id)
        return trace_log_probs(
            model, rows.sampled, rows.attention_mask, rows.commit_step, blocks, mask_id
        )

    return scores


def along(steps: Callable[[np.ndarray], np.ndarray], options: Any, mask_id: int) -> Scores:
    """Score along other steps, without a cache and with padding after the stop token."""

    def scores(model: Any, rows: Any, keys: Array) -> Array:
        blocks = decoded_blocks(rows.tokens.shape[1], options, mask_id)
        other = np.array([steps(row) for row in rows.commit_step], np.int32)

        def score(part: tuple[Array, Array, Array]) -> Array:
            return trace_log_probs(model, *part, blocks, mask_id)

        # A row at a time: left to right, it has 96 canvases.
        parts = jax.tree.map(jnp.asarray, (rows.tokens, rows.attention_mask, other))
        return score_in_chunks(score, parts, 1, None)

    return scores


def masks(estimator: Estimator, mask_id: int) -> Scores:
    """Score with the masks of an estimator of the trainer."""

    def scores(model: Any, rows: Any, keys: Array) -> Array:
        copies = forward_process(keys, jnp.asarray(rows.tokens), LENGTH, mask_id, estimator)
        return completion_scores(model, jnp.asarray(rows.tokens), rows.attention_mask, copies, 4)

    return scores


def evidence(pairs: int, mask_id: int) -> Scores:
    """Score by the evidence bound with coupled masks, t ~ U(0, 1), as ESPO sums it per sequence."""
    drawn = Estimator(num_mask_pairs=pairs, min_mask_ratio=0.02, max_mask_ratio=0.98)

    def scores(model: Any, rows: Any, keys: Array) -> Array:
        tokens = jnp.asarray(rows.tokens)
        copies = forward_process(keys, tokens, LENGTH, mask_id, drawn)
        # without the fully masked copy: each pair is two estimates
        terms = jnp.full(len(tokens), 2.0 * pairs)
        halves = Copies(copies.tokens[:, 1:], copies.scored[:, 1:], copies.weights[:, 1:], terms)
        # m1 l / t is an estimate of the sum over all tokens, and so is m2 l / (1 - t)
        return completion_scores(model, tokens, rows.attention_mask, halves, 4)

    return scores


def estimators(mask_id: int) -> dict[str, tuple[int, Scores, bool]]:
    """Return each estimator: its forward passes, its scores, and whether its masks are drawn."""
    left_to_right = along(lambda row: np.arange(len(row)), LEFT_TO_RIGHT, mask_id)
    four = along(merged, WHOLE, mask_id)
    found: dict[str, tuple[int, Scores, bool]] = {"four segments": (4, four, False)}
    drawn = {
        "full_mask": [Estimator(estimator="full_mask")],
        "coupled": [Estimator(num_mask_pairs=pairs) for pairs in (1, 2, 4)],
        "decoupled": [Estimator(estimator="decoupled", num_mask_pairs=pairs) for pairs in (1, 4)],
        "stratified": [Estimator(estimator="stratified", num_segments=n) for n in (4, 8)],
    }
    for name, settings in drawn.items():
        for one in settings:
            found[f"{name} {one.copies}"] = one.copies, masks(one, mask_id), name != "full_mask"
    for pairs in (1, 2, 4):
        found[f"evidence bound (ESPO) {2 * pairs}"] = 2 * pairs, evidence(pairs, mask_id), True
    found["left to right (JustGRPO)"] = LENGTH, left_to_right, False
    return found


def sample(task: Task, options: Any, groups: int) -> tuple[Completions, np.ndarray]:
    """Draw prompts until so many groups have variance; returns their rows and advantages."""
    kept, number = [], 0
    while len(kept) < groups:
        prompt = task.train.select(0, number, 1)[0]
        rows, rewards = task.complete(task.sampler.params, [prompt] * GROUP, 0, number, options)
        number += 1
        if has_variance(rewards, GROUP)[0]:
            kept.append((rows, advantages(rewards, GROUP, scale_rewards=True)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)


def gradient_and_sums(
    task: Task, scores: Scores, rows: Any, advantage: np.ndarray, keys: Array
) -> tuple[Any, np.ndarray]:
    """Return the policy gradient of rows, and the summed score of each, eight rows at a time."""

    def surrogate(params: Any, part: tuple) -> tuple[Array, Array]:
        rows, advantage, keys = part
        model = task.sampler.graph.merge(params)
        sums = jnp.sum(jnp.where(rows.completion_mask, scores(model, rows, keys), 0.0), axis=1)
        return jnp.sum(advantage * sums), sums

    differentiate, total, sums = jax.grad(surrogate, has_aux=True), None, []
    for first in range(0, len(advantage), GROUP):
        part = jax.tree.map(lambda leaf, at=first: leaf[at : at + GROUP], (rows, advantage, keys))
        shown = part[0]._replace(texts=None)
        gradients, each = jax.jit(partial(differentiate, part=(shown, *part[1:])))(
            task.sampler.params
        )
        total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
        sums.append(np.asarray(each))
    return total, np.concatenate(sums)


def cosine(first: Any, second: Any) -> float:
    """Return the cosine of two gradients."""
    product = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, first, second)))
    return float(product / (optax.tree.norm(first) * optax.tree.norm(second)))


def main(
    out: Positional[Path],
    prompts: Path = Path("experiments/pipelines"),
    groups: int = 2,
    draws: int = 3,
    steps: tuple[int, ...] = (12, 96),
) -> None:
    """Compare the estimators that are not compared yet, and print the table.

    Args:
        out: JSON file of the results.
        prompts: folder of builtin_model.pipelines.
        groups: groups of eight completions.
        draws: draws of the masks.
        steps: decoding steps of 96 tokens.
    """
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    task = Task(prompts, 16)
    for count in steps:
        options = replace(SAMPLING, num_steps=count)
        rows, advantage = sample(task, options, groups)
        tokens, mask_id = int(rows.completion_mask.sum()), task.sampler.mask_id
        keys = [sample_keys(0, 0, draw, jnp.arange(len(advantage))) for draw in range(1, draws + 1)]
        true, likelihood = gradient_and_sums(
            task, exact(options, mask_id), rows, advantage, keys[0]
        )
        for name, (passes, scores, is_drawn) in estimators(mask_id).items():
            run = f"{name}, {count} steps"
            if run in found:
                continue
            results = [
                gradient_and_sums(task, scores, rows, advantage, each)
                for each in keys[: draws if is_drawn else 1]
            ]
            sums = np.array([each for _, each in results])
            found[run] = {
                "passes": passes,
                "likelihood per token": float(likelihood.sum() / tokens),
                "bias per token": float((sums.mean(axis=0) - likelihood).sum() / tokens),
                "deviation per row": float(sums.std(axis=0, ddof=1).mean()) if is_drawn else 0.0,
                "cosines": [cosine(gradients, true) for gradients, _ in results],
            }
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(run, found[run], flush=True)
    print(
        "| estimator | passes | bias per token | deviation per row | cosine |\n|---|---|---|---|---|"
    )
    for name, one in found.items():
        cosines = np.array(one["cosines"])
        print(
            f"| {name} | {one['passes']} | {one['bias per token']:+.3f} "
            f"| {one['deviation per row']:.2f} | {cosines.mean():.2f} |"
        )


if __name__ == "__main__":
    run_main(main)

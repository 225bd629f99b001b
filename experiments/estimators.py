"""How far scores are from the likelihood of a decoding: bias, variance, and the policy gradient.

    python experiments/estimators.py docs/results/estimators/counts.json

The built-in model completes list pipelines at temperature 1 without filters, so that the sampler's
likelihood of a completion along its own decoding is exact: the sum of the log-probabilities of its
tokens on the canvases that they were drawn from. Order and number of the tokens of a step follow
from the canvas alone, so its gradient times the advantage is the policy gradient. Estimators score
the same completions. They are functions from masked copies to scores, and all gradients are those
of one compiled function: an estimator only chooses canvases and the weight of each log-probability.

With 16 steps, four tokens of 64 are decided at once (ties); with 64 steps, one at a time. What is
done is not done again.
"""

import json
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jax_lm.data.prompts import builtin_prompts
from jax_lm.diffusion.masking import align_rows
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.options import GenerationOptions
from jax_lm.rewards import weighted_sum
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.grpo_config import Estimator
from jax_lm.training.policy_loss import (
    Copies,
    draw_ranks,
    forward_process,
    noisy_rows,
    weighted_scores,
)
from jax_lm.training.prompt_set import PromptSet
from jax_lm.training.rollouts import (
    Completions,
    advantages,
    has_variance,
    reward_completions,
    sample_completions,
    sample_keys,
)

GROUP, PROMPT, LENGTH = 8, 48, 64
"""Completions of a prompt, and most tokens of a prompt and of a completion."""
CHUNK = 32
"""Canvases that go through the model at a time."""
EUBO_BETA, EUBO_SHARE = 1.5, 0.5
"""Of SPG: power of the probabilities in the upper bound, and its share in the mix."""
PROMPT_MASKS = 0.15
"""Share of the prompt that wd1 masks."""


class Rows(NamedTuple):
    """Completions of groups with variance.

    Attributes:
        drawn: the completions.
        advantage: leave-one-out, divided by the group's deviation.
        centred: reward minus the group's mean.
    """

    drawn: Completions
    advantage: np.ndarray
    centred: np.ndarray


# Masked copies of rows, from keys of the rows: [b] -> [b n t].
Draw = Callable[[Rows, Array], Copies]
# Scores of tokens, from their log-probabilities in the copies: [b n c] -> [b c].
Score = Callable[[Array, Copies, Rows], Array]
# What a method maximises, from the scores' sums: [b] -> a number.
Surrogate = Callable[[Array, Rows], Array]


def weighted(log_probs: Array, copies: Copies, rows: Rows) -> Array:
    """Score as the trainer does: the weighted sum over copies."""
    return weighted_scores(log_probs, copies.scored, copies.weights, copies.divisor)


def sandwiched(log_probs: Array, copies: Copies, rows: Rows) -> Array:
    """Score by a lower bound where the advantage is positive, else by a mix with an upper bound.

    SPG (arXiv 2510.09541, `_get_per_seq_logps` with `logp_estimation` mix): the lower bound is
    the evidence bound; the upper one of a token is log(mean over copies of w p^beta) / beta, where
    w is 1 / t in copies that mask it, else 0. Tokens that no copy masks count like the mean of
    the others.
    """
    lower = weighted(log_probs, copies, rows)
    masses = jnp.where(copies.scored, jnp.exp(EUBO_BETA * log_probs) * copies.weights[..., None], 0)
    seen = jnp.any(copies.scored, axis=1)
    upper = jnp.log(jnp.where(seen, jnp.mean(masses, axis=1), 1.0)) / EUBO_BETA
    share = jnp.sum(rows.drawn.completion_mask, axis=1) / jnp.sum(seen, axis=1)
    mixed = EUBO_SHARE * upper * share[:, None] + (1 - EUBO_SHARE) * lower
    return jnp.where(rows.advantage[:, None] < 0, mixed, lower)


def gain(sums: Array, rows: Rows) -> Array:
    """The policy gradient's surrogate: advantage times score."""
    return jnp.sum(rows.advantage * sums)


def weighted_likelihood(sums: Array, rows: Rows) -> Array:
    """wd1 (arXiv 2507.08838): softmax(A) - softmax(-A) in each group instead of an advantage."""
    groups = jnp.asarray(rows.centred).reshape(-1, GROUP)
    weights = jax.nn.softmax(groups, axis=1) - jax.nn.softmax(-groups, axis=1)
    return jnp.sum(weights.reshape(-1) * sums)


def squared_match(sums: Array, rows: Rows) -> Array:
    """GDSD (arXiv 2605.29398): minus the square of the mean change of a score minus A (psi 1)."""
    change = (sums - jax.lax.stop_gradient(sums)) / LENGTH
    return -jnp.sum((change - rows.advantage) ** 2)


def draw_masks(rows: Rows, keys: Array, estimator: Estimator, mask_id: int) -> Copies:
    """Draw the copies of an estimator of the trainer."""
    return forward_process(keys, jnp.asarray(rows.drawn.tokens), LENGTH, mask_id, estimator)


def draw_unweighted(rows: Rows, keys: Array, estimator: Estimator, mask_id: int) -> Copies:
    """Draw pairs whose log-probabilities all weigh the same, as GDSD sums them."""
    copies = draw_masks(rows, keys, estimator, mask_id)
    return copies._replace(weights=jnp.ones_like(copies.weights), divisor=copies.divisor / 2)


def draw_counts(rows: Rows, keys: Array, count: int, mask_id: int) -> Copies:
    """Draw copies that mask l of a completion's L tokens, l uniform in 1 to L, with weight L / l.

    What follows the stop token is always masked and never scored, as in SPG.
    """
    counted = jnp.asarray(rows.drawn.completion_mask)

    def draw(key: Array, counted: Array) -> tuple[Array, Array]:
        key_count, key_order = jax.random.split(key)
        length = jnp.sum(counted)
        hidden = jax.random.randint(key_count, (count, 1), 1, length + 1)
        # A completion's tokens come before all others, in a random order.
        order = draw_ranks(key_order, (count, LENGTH)) + jnp.where(counted, 0, LENGTH)
        first = jnp.argsort(jnp.argsort(order)) < hidden
        return first, length / hidden[:, 0]

    scored, weights = jax.vmap(draw)(keys, counted)
    tokens = noisy_rows(jnp.asarray(rows.drawn.tokens), scored | ~counted[:, None], mask_id)
    return Copies(tokens, scored, weights, jnp.full(len(counted), float(count)))


def draw_prompt_masks(rows: Rows, keys: Array, mask_id: int) -> Copies:
    """Mask the completion and some tokens of the prompt, as d1 and wd1 do."""
    copies = draw_masks(rows, keys, Estimator(estimator="full_mask"), mask_id)
    hidden = jax.vmap(lambda key: jax.random.uniform(key, (PROMPT,)))(keys) < PROMPT_MASKS
    hidden = jnp.pad(hidden, ((0, 0), (0, LENGTH)))[:, None]
    return copies._replace(tokens=jnp.where(hidden, mask_id, copies.tokens))


def follow(steps: np.ndarray, tokens: np.ndarray, mask_id: int) -> Copies:
    """Make one canvas per step, on which its tokens are scored and those of later steps masked."""
    # steps 3 7 3 are canvases 0 1 0
    number = np.array([np.unique(row, return_inverse=True)[1] for row in steps])
    canvas = np.arange(number.max() + 1)[None, :, None]
    hidden, scored = number[:, None] >= canvas, jnp.asarray(number[:, None] == canvas)
    copies = noisy_rows(jnp.asarray(tokens), jnp.asarray(hidden), mask_id)
    return Copies(copies, scored, jnp.ones(scored.shape[:2]), jnp.ones(len(steps)))


def merge(steps: np.ndarray, count: int = 4) -> np.ndarray:
    """Merge the steps of each row to some of about equally many, as TraceRL's shrink does."""
    ranks = np.array([np.unique(row, return_inverse=True)[1] for row in steps])
    return ranks * count // (ranks.max(axis=1, keepdims=True) + 1)


class Method(NamedTuple):
    """How an estimator scores; `draws` is 1 where masks are not random."""

    draw: Draw
    draws: int
    score: Score = weighted
    surrogate: Surrogate = gain


def methods(draws: int, mask_id: int) -> dict[str, Method]:
    """Return every estimator, by name and number of forward passes."""

    def merged(rows: Rows, keys: Array) -> Copies:
        return follow(merge(rows.drawn.commit_step), rows.drawn.tokens, mask_id)

    def left_to_right(rows: Rows, keys: Array) -> Copies:
        order = np.broadcast_to(np.arange(LENGTH), rows.drawn.commit_step.shape)
        return follow(order, rows.drawn.tokens, mask_id)

    def of_trainer(draw: Callable[..., Copies] = draw_masks, **settings: Any) -> Draw:
        return partial(draw, estimator=Estimator(**settings), mask_id=mask_id)

    prompt_masks = partial(draw_prompt_masks, mask_id=mask_id)
    found = {
        "full_mask, 1": Method(of_trainer(estimator="full_mask"), 1),
        f"left_to_right (JustGRPO), {LENGTH}": Method(left_to_right, 1),
        "merged steps, 4": Method(merged, 1),
        "wd1, 1": Method(prompt_masks, draws, weighted, weighted_likelihood),
    }
    for pairs in (1, 4, 2):
        names = ("coupled", "evidence", "decoupled") if pairs != 2 else ("coupled", "evidence")
        for name in names:
            masks = of_trainer(estimator=name, num_mask_pairs=pairs)
            passes = 2 * pairs + (name != "evidence")
            found[f"{name}, {passes}".replace("evidence", "evidence (ESPO)")] = Method(masks, draws)
    for passes in (2, 8):
        counts = partial(draw_counts, count=passes, mask_id=mask_id)
        found[f"SPG, {passes}"] = Method(counts, draws, sandwiched)
        pairs = of_trainer(draw_unweighted, estimator="evidence", num_mask_pairs=passes // 2)
        found[f"GDSD, {passes}"] = Method(pairs, draws, weighted, squared_match)
    for passes in (4, 8):
        parts = of_trainer(estimator="stratified", num_segments=passes)
        found[f"stratified, {passes}"] = Method(parts, draws)
    return found


class Task:
    """The built-in model, and pipelines of two and three list steps from its training tasks."""

    def __init__(self) -> None:
        self.tokenizer = DiffuCoderTokenizer.from_pretrained(BUILTIN_MODEL)
        self.model = DreamForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=jnp.float32)
        self.graph, self.params = nnx.split(self.model)
        # "composition|skip:1|sort|count": at least two steps before the last
        longest = [row for row in builtin_prompts(1400) if row["key"].count("|") >= 3]
        self.prompts = PromptSet.of(longest, self.tokenizer, PROMPT)

    def sample(self, steps: int, groups: int) -> Rows:
        """Draw prompts until so many groups have variance."""
        sampler, rewards = Sampler(self.model), weighted_sum({"completed_code": 1.0})
        options = GenerationOptions(
            max_new_tokens=LENGTH, num_steps=steps, temperature=1.0, top_p=None, top_k=None
        )
        kept, number = [], 0
        while len(kept) < groups:
            prompts = np.array(self.prompts.select(0, number, 1) * GROUP, object)
            keys = sample_keys(0, number, 0, jnp.arange(GROUP))
            drawn = sample_completions(
                sampler, self.tokenizer, prompts, options, keys=keys, width=PROMPT
            )
            totals = np.array(reward_completions(rewards, prompts, drawn).totals, np.float32)
            number += 1
            if has_variance(totals, GROUP)[0]:
                scaled = advantages(totals, GROUP, scale_rewards=True)
                kept.append(Rows(drawn._replace(texts=None), scaled, totals - totals.mean()))
        print(f"{steps} steps: {number} groups for {groups} with variance", flush=True)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *kept)

    @cached_property
    def functions(self) -> tuple[Callable[..., Array], Callable[..., Array]]:
        """Compiled log-probabilities of completions on canvases, and the gradient of their sum."""

        def log_probs(params: Any, canvas: Array, tokens: Array, present: Array) -> Array:
            model = nnx.merge(self.graph, params)
            hidden = align_rows(model.model(canvas, present), model.config)[:, -LENGTH:]
            return token_log_probs(model, hidden, tokens[:, -LENGTH:])

        def total(params: Any, weights: Array, *part: Array) -> Array:
            return jnp.sum(weights * log_probs(params, *part))

        def gradient(*arguments: Any) -> Array:
            return ravel_pytree(jax.grad(total)(*arguments))[0]

        return jax.jit(log_probs), jax.jit(gradient)

    def measure(self, method: Method, rows: Rows, keys: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the policy gradient, and the summed score of each row."""
        copies, drawn = method.draw(rows, keys), rows.drawn
        b, n, t = copies.tokens.shape
        canvases = np.asarray(copies.tokens).reshape(-1, t)
        # canvases of a row follow each other
        row = np.repeat(np.arange(b), n)
        scored = np.asarray(copies.scored & jnp.asarray(drawn.completion_mask)[:, None])
        used = np.flatnonzero(scored.any(axis=2))
        score, gradient = self.functions

        def chunks(used: np.ndarray) -> list[np.ndarray]:
            return [np.resize(used[at : at + CHUNK], CHUNK) for at in range(0, len(used), CHUNK)]

        def arrays(part: np.ndarray) -> tuple[np.ndarray, ...]:
            # Log-probabilities are read where tokens are masked, and the tokens of both agree there.
            return canvases[part], drawn.sampled[row[part]], drawn.attention_mask[row[part]]

        log_probs = np.zeros((b * n, LENGTH), np.float32)
        for part in chunks(used):
            log_probs[part] = score(self.params, *arrays(part))

        def surrogate(log_probs: Array) -> tuple[Array, Array]:
            scores = method.score(log_probs.reshape(b, n, LENGTH), copies, rows)
            sums = jnp.sum(jnp.where(drawn.completion_mask, scores, 0.0), axis=1)
            return method.surrogate(sums, rows), sums

        weights, sums = jax.grad(surrogate, has_aux=True)(jnp.asarray(log_probs))
        weights, total = np.array(weights), 0.0
        for part in chunks(used):
            # The last chunk is filled up with canvases that were counted before.
            own = np.where(np.arange(CHUNK)[:, None] < len(np.unique(part)), weights[part], 0)
            total = total + np.asarray(gradient(self.params, own, *arrays(part)))
        return np.asarray(total), np.asarray(sums)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of two gradients."""
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def compare(task: Task, method: Method, rows: Rows, exact: tuple[np.ndarray, np.ndarray]) -> dict:
    """Compare the scores and gradients of an estimator with the exact ones."""
    true, likelihood = exact
    tokens = float(rows.drawn.lengths.sum())
    gradients, sums = zip(
        *(
            task.measure(method, rows, sample_keys(0, 0, draw, jnp.arange(len(likelihood))))
            for draw in range(1, method.draws + 1)
        ),
        strict=True,
    )
    sums, mean = np.array(sums), np.mean(gradients, axis=0)
    return {
        "draws": method.draws,
        "bias per token": float((sums.mean(axis=0) - likelihood).sum() / tokens),
        "deviation per row": float(sums.std(axis=0, ddof=1).mean()) if method.draws > 1 else 0.0,
        "cosines": [cosine(each, true) for each in gradients],
        "cosine of the mean": cosine(mean, true),
        "norm": float(np.mean([np.linalg.norm(each) for each in gradients]))
        / float(np.linalg.norm(true)),
    }


def table(runs: dict[str, Any], steps: tuple[int, ...]) -> str:
    """Write a line per estimator: its passes, then the columns of each number of steps."""
    columns = ("bias", "deviation", "cosine", "of the mean")
    head = [f"{column}, {count} steps" for count in steps for column in columns]
    lines = ["| estimator, passes | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    names = {name.rpartition(", ")[0] for name in runs}
    for name in sorted(names):
        cells = []
        for count in steps:
            one = runs.get(f"{name}, {count} steps")
            cells += [""] * 4 if one is None else [
                f"{one['bias per token']:+.3f}",
                f"{one['deviation per row']:.2f}",
                f"{np.mean(one['cosines']):.2f}",
                f"{one['cosine of the mean']:.2f}",
            ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    out: Positional[Path], groups: int = 3, draws: int = 3, steps: tuple[int, ...] = (16, 64)
) -> None:
    """Compare the estimators that are not compared yet, and print the table.

    Args:
        out: JSON file of the results.
        groups: groups of eight completions.
        draws: draws of the masks.
        steps: decoding steps of 64 tokens.
    """
    settings = {"groups": groups, "draws": draws}
    found: dict[str, Any] = {"settings": settings, "decodings": {}, "runs": {}}
    if out.is_file():
        found = json.loads(out.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            raise ValueError(f"out={out}: holds results of {found['settings']}, not {settings}")
    task = Task()
    mask_id, runs = task.tokenizer.mask_id, found["runs"]
    for count in steps:
        missing = {
            f"{name}, {count} steps": method
            for name, method in methods(draws, mask_id).items()
            if f"{name}, {count} steps" not in runs
        }
        if not missing:
            continue
        rows = task.sample(count, groups)
        drawn = rows.drawn
        truth = follow(drawn.commit_step, drawn.sampled, mask_id)
        exact = task.measure(Method(lambda rows, keys, truth=truth: truth, 1), rows, jnp.zeros(0))
        recorded = np.where(drawn.completion_mask, np.log(drawn.confidence), 0).sum(axis=1)
        found["decodings"][str(count)] = {
            "tokens per row": float(drawn.lengths.mean()),
            "canvases": truth.tokens.shape[1],
            "likelihood per token": float(exact[1].sum() / drawn.lengths.sum()),
            "largest difference to the recorded": float(np.abs(exact[1] - recorded).max()),
        }
        print(count, found["decodings"][str(count)], flush=True)
        for run, method in missing.items():
            runs[run] = compare(task, method, rows, exact)
            out.parent.mkdir(parents=True, exist_ok=True)
            temporary = out.with_suffix(".tmp")
            temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            temporary.replace(out)
            print(run, runs[run], flush=True)
    print(table(runs, steps))


if __name__ == "__main__":
    run_main(main)

"""From completions to the loss of an update: masked copies, scores, clipped ratios, penalty.

The functions are in the order of an update (DiffuCoder, arXiv 2506.20639, section 4). A score
stands for the policy's log-probability of a completion token (Apple's `selective_log_softmax`):

    s = [l0 + sum over pairs of (m1 l1 / t + m2 l2 / (1 - t))] / (pairs + 1)

l0, l1 and l2 are log-probabilities of the token: with the whole completion masked, with m1 masked,
and with the rest of the completion (m2) masked. A score is a proxy, not a normalised
log-probability. This is the estimator `coupled`; the others differ from it:

- `stratified`: one copy masks the token, and the score is its log-probability there.
- `trace`: the log-probability on the canvas that the token was drawn from, and `left_to_right`: the
  log-probability given the tokens before it (both in `jax_lm.diffusion.trace`).
- `evidence`: pairs without the fully masked copy, with other weights.

The loss of a token with ratio r = e^(s - s_old), advantage A and probability p = e^(s_old) is

    -w min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta KL
    w = 1 if A >= 0, else negative_scale * p^negative_power, and 0 if p < negative_floor
    r is at most delta if A < 0

A loss is returned as a sum and its divisor, so that a batch can be cut into parts without changing
its loss. Knows the model and masks, not where completions and rewards come from.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jax_lm.diffusion.masking import align_rows
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.shapes import BatchKeys, BatchValues, ColumnInts, Mask, Scalar, Shape, Tokens
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.sharding import AnyMesh, shard_rows
from jax_lm.training.grpo_config import Estimator, PolicyLoss
from jax_lm.training.update import RATE_SCALE, LossTerms, Mean, split_rows

# Letters of the shapes: b rows, n copies of a row, t columns of prompt and completion, c columns of
# the completion alone.
TokenScores = Float[Array, "b c"]
CompletionMask = Bool[Array, "b c"]
CopyMasks = Bool[Array, "b n c"]

# Log ratios are clipped here, far beyond `epsilon` and far below float32 overflow. A ratio beyond
# it has no gradient.
MAX_LOG_RATIO = 20.0


class Copies(NamedTuple):
    """Masked copies of rows, n of each row.

    `coupled` has the fully masked copy, and then m1 and m2 of each pair. For one pair on a
    completion A B C D, with t = 0.25 and m1 masking B alone, there are three:

        tokens          scored    weights
        M M M M         A B C D   1
        A M C D         B         1/t = 4
        M B M M         A C D     1/(1 - t) = 4/3

    Every token is scored in two copies: the fully masked one and one of the pair. So the divisor of
    its score is 1 + pairs = 2. With `stratified`, one copy scores each token, and the divisor is 1.

    Attributes:
        tokens: rows with MASK where a copy is masked; the prompt never is.
        scored: the completion positions that a copy scores, all of them masked there.
        weights: 1, then 1/t and 1/(1 - t) of each pair; 1 for strata.
        divisor: number of estimates that the weighted log-probabilities of a token add up to.
    """

    tokens: Int[Array, "b n t"]
    scored: CopyMasks
    weights: Float[Array, "b n"]
    divisor: BatchValues


# The masks of one row's copies, and their weights.
WeightedMasks = tuple[Bool[Array, "n c"], Float[Array, "n"]]


def forward_process(
    keys: BatchKeys, tokens: Tokens, completion_length: int, mask_id: int, estimator: Estimator
) -> Copies:
    """Make the masked copies of rows.

    Args:
        keys: one per row.
        tokens: prompts and completions.
        completion_length: number of columns at the end that hold the completion.
        mask_id: id of MASK.
        estimator: which copies to make.

    Raises:
        ValueError: the estimator takes its canvases from an order (`jax_lm.diffusion.trace`), and
            draws no masks.
    """
    if estimator.reads_steps:
        raise ValueError(
            f"estimator={estimator.estimator!r}: has no random masks, see jax_lm.diffusion.trace"
        )
    others = {"stratified": draw_strata, "evidence": draw_evidence_masks}
    draw = others.get(estimator.estimator, draw_masks)
    masked, weights = jax.vmap(partial(draw, length=completion_length, estimator=estimator))(keys)
    divisor = jnp.full(len(tokens), estimator.divisor)
    return Copies(noisy_rows(tokens, masked, mask_id), masked, weights, divisor)


def draw_masks(key: PRNGKeyArray, length: int, estimator: Estimator) -> WeightedMasks:
    """Draw the full mask and pairs of masks for a row, and their weights.

    The level is t ~ U(min, max), and m1 masks a token where u ~ U(0, 1) is below t. Source: section
    4 of the paper, and Apple's `forward_process`, which masks where u <= t and shares t in a batch.
    """
    pairs = estimator.num_mask_pairs
    key_level, key_first, key_second = jax.random.split(key, 3)
    shape = (pairs, length)
    t = jax.random.uniform(
        key_level, (pairs, 1), minval=estimator.min_mask_ratio, maxval=estimator.max_mask_ratio
    )
    first = jax.random.uniform(key_first, shape) < t
    # With the exact complement, one of the two copies predicts every token, which has less variance
    # than two independent draws.
    is_coupled = estimator.estimator == "coupled"
    second = ~first if is_coupled else jax.random.uniform(key_second, shape) < 1 - t
    # Two pairs: [first 0, second 0, first 1, second 1], and the full mask before them. `full_mask`
    # keeps that one alone.
    pair_masks = jnp.stack([first, second], axis=1).reshape(-1, length)
    masked = jnp.concatenate([jnp.ones((1, length), bool), pair_masks])[: estimator.copies]
    # m1 masks a token with probability t, so the weight 1/t keeps the mean of its log-probability;
    # likewise 1/(1 - t) for m2.
    weights = jnp.concatenate([jnp.ones(1), jnp.concatenate([1 / t, 1 / (1 - t)], axis=1).ravel()])
    return masked, weights[: estimator.copies]


def draw_evidence_masks(key: PRNGKeyArray, length: int, estimator: Estimator) -> WeightedMasks:
    """Draw pairs of masks for a row of L tokens: l random tokens, and the other L - l.

    l is uniform on 0 to L. A copy with l masks has weight (L + 1) / l, because each l has
    probability 1 / (L + 1), and the copy sums l log-probabilities. The mean over all draws is then
    the evidence bound: the mean over l from 1 to L, and over masks of l tokens (ESPO,
    arXiv 2512.03759, `_get_elbo` of its code).
    """
    key_count, key_order = jax.random.split(key)
    shape = (estimator.num_mask_pairs, length)
    count = jax.random.randint(key_count, (shape[0], 1), 0, length + 1)
    first = draw_ranks(key_order, shape) < count
    masked = jnp.stack([first, ~first], axis=1).reshape(-1, length)
    # A copy without masks scores nothing; the maximum keeps its weight finite.
    return masked, (length + 1) / jnp.maximum(jnp.sum(masked, axis=1), 1)


def draw_ranks(key: PRNGKeyArray, shape: Shape) -> Int[Array, "..."]:
    """Draw a random order of the positions along the last axis. Returns the rank of each."""
    # The numbers [.9, .1, .5, .3, .7] have the ranks [4, 0, 2, 1, 3].
    return jnp.argsort(jnp.argsort(jax.random.uniform(key, shape)))


def draw_strata(key: PRNGKeyArray, length: int, estimator: Estimator) -> WeightedMasks:
    """Divide the positions of a row at random into strata; copy j masks stratum j.

    The strata are as equal in size as possible: 5 positions in 2 strata are 3 and 2.
    """
    count = estimator.num_segments
    # 2 strata of 5 positions: ranks [4, 0, 2, 1, 3] times 2 // 5 are strata [1, 0, 0, 0, 1].
    stratum = draw_ranks(key, (length,)) * count // length
    return stratum == jnp.arange(count)[:, None], jnp.ones(count)


def noisy_rows(tokens: Tokens, masked: CopyMasks, mask_id: int) -> Int[Array, "b n t"]:
    """Repeat each row once per copy, with MASK at the masked positions of its completion.

    Prompt P Q and completion A B, with copies that mask both and B: P Q M M and P Q A M.
    """
    # The prompt is never masked: pad the completion's masks by its columns.
    start = tokens.shape[1] - masked.shape[2]
    masked = jnp.pad(masked, ((0, 0), (0, 0), (start, 0)))
    return jnp.where(masked, mask_id, tokens[:, None])


def weighted_scores(
    log_probs: Float[Array, "b n c"],
    scored: CopyMasks,
    weights: Float[Array, "b n"],
    divisor: BatchValues,
) -> TokenScores:
    """Compute the score s of each token from its log-probabilities in all copies."""
    return (
        jnp.sum(jnp.where(scored, log_probs * weights[..., None], 0.0), axis=1) / divisor[:, None]
    )


def selective_log_softmax(
    logits: Float[Array, "nb c v"],
    index: ColumnInts,
    weights: Float[Array, "3"] | Float[Array, "3 b"],
    mask: CompletionMask | ColumnInts,
) -> TokenScores:
    """Compute scores from the logits of the three copies of one pair.

    Name and arguments are those of the reference.

    Args:
        logits: aligned with the tokens that they predict. First come those of the whole batch fully
            masked, then those with m1 masked, then those with the complement masked.
        index: the tokens to score.
        weights: weights of the three copies, the same for all samples or for each sample.
        mask: m1.

    Raises:
        ValueError: not three rows of logits per sample.
    """
    if len(logits) != 3 * len(index):
        raise ValueError(
            f"logits has {len(logits)} rows: must have 3 for each of the {len(index)} rows of index"
        )
    first = mask.astype(bool)
    masked = jnp.stack([jnp.ones_like(first), first, ~first], axis=1)
    per_sample = jnp.broadcast_to(weights.reshape(3, -1), (3, len(index))).T
    # Two samples: the rows full 0, full 1, m1 0, m1 1, rest 0, rest 1 become [full 0, m1 0, rest 0]
    # and [full 1, m1 1, rest 1].
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(3, *index.shape, -1)
    selected = jnp.take_along_axis(log_probs, index[None, ..., None], axis=-1)
    return weighted_scores(
        selected[..., 0].swapaxes(0, 1), masked, per_sample, jnp.full(len(index), 2.0)
    )


def completion_scores(
    model: DreamForCausalLM,
    tokens: Tokens,
    attention_mask: Mask,
    copies: Copies,
    chunk: int | None = None,
    *,
    remat: bool = False,
    temperature: float = 1.0,
) -> TokenScores:
    """Score the completion tokens under the model.

    Attention mask and positions are those of sampling, so left padding changes nothing. The head
    runs on the hidden states of the completion alone.

    Args:
        model: the policy.
        tokens: prompts and completions.
        attention_mask: attention mask of sampling.
        copies: masked copies of the rows.
        chunk: number of samples per pass, as in `score_in_chunks`.
        remat: keep only the inputs of layers, and recompute the other activations.
        temperature: divisor of the logits.
    """
    completion_length = copies.scored.shape[2]

    def score(part):
        tokens, attention_mask, copies = part
        k, n, t = copies.tokens.shape
        # k samples with n copies each are k * n rows of the model.
        hidden = model.model(
            copies.tokens.reshape(-1, t), jnp.repeat(attention_mask, n, axis=0), remat=remat
        )
        index = jnp.repeat(tokens[:, -completion_length:], n, axis=0)
        # [k * n, t, d] -> [k * n, c, d] -> [k * n, c]
        hidden = align_rows(hidden, model.config)[:, -completion_length:]
        log_probs = token_log_probs(model, hidden / temperature, index)
        log_probs = log_probs.reshape(k, n, -1)
        return weighted_scores(log_probs, copies.scored, copies.weights, copies.divisor)

    return score_in_chunks(score, (tokens, attention_mask, copies), chunk, model.mesh)


def score_in_chunks(
    score: Callable[[Any], Array], rows, chunk: int | None, mesh: AnyMesh | None
) -> TokenScores:
    """Score rows in chunks.

    Args:
        score: maps a chunk of the rows to its scores.
        rows: a tree of arrays whose first axis is the samples.
        chunk: number of samples that go through model and head at a time. A chunk is recomputed in
            the backward pass, so memory holds the activations and logits of one chunk. None is a
            single chunk of all samples, which is not recomputed, as that would save nothing. The
            last chunk is filled up with samples that are scored twice; the second score is dropped.
        mesh: mesh whose devices split the samples; None is a single device.
    """
    count = len(jax.tree.leaves(rows)[0])
    chunk = chunk or count
    padded = count + -count % chunk
    if padded > count:
        # 5 samples in chunks of 2 become samples 0 1 2 3 4 0.
        rows = jax.tree.map(lambda leaf: leaf[jnp.arange(padded) % count], rows)

    # 6 samples in chunks of 2 are [0 3], [1 4], [2 5]: each has a sample of every device of a mesh.
    parts = split_rows(jax.tree.map(lambda leaf: shard_rows(leaf, mesh), rows), padded // chunk)
    score = score if chunk == padded else jax.checkpoint(score)
    # Undo the split: [[0 3], [1 4], [2 5]] becomes 0 1 2 3 4 5.
    return jax.lax.map(score, parts).swapaxes(0, 1).reshape(padded, -1)[:count]


def row_weights(loss_type: str, completion_mask: CompletionMask) -> tuple[BatchValues, Scalar]:
    """Return the weight of each row's sum of token losses, and the divisor of the weighted sum.

    Rows without tokens do not count.
    """
    # Rows of 2 and 4 tokens of at most 8, whose token losses have the sums A and B:
    #   bnpo, dapo   (A + B) / 6
    #   dr_grpo      (A + B) / 16
    #   grpo, gspo   (A / 2 + B / 4) / 2
    lengths = jnp.sum(completion_mask, axis=1).astype(jnp.float32)
    rows = jnp.sum(lengths > 0).astype(jnp.float32)
    ones = jnp.ones_like(lengths)
    if loss_type in ("bnpo", "dapo"):
        return ones, jnp.sum(lengths)
    if loss_type == "dr_grpo":
        return ones, rows * completion_mask.shape[1]
    return ones / jnp.maximum(lengths, 1.0), rows


def divergence(scores: TokenScores, reference_scores: TokenScores, clamp: float) -> TokenScores:
    """Estimate the KL divergence from the reference per token: e^d - d - 1 with d = s_ref - s.

    The estimate is never negative, and 0 only where both agree. With true log-probabilities its
    mean is the divergence (Schulman's k3). Beyond |d| = clamp it continues as its tangent: e^d of a
    score, a sum with large weights, would explode, but a token that has drifted that far must still
    be pulled back. A clamp of infinity is the published form.
    """
    # clamp 5 and d = 7: e^5 - 5 - 1 + (e^5 - 1) * 2, the tangent at 5
    d = reference_scores - scores
    near = jnp.clip(d, -clamp, clamp)
    return jnp.exp(near) - near - 1 + (jnp.exp(near) - 1) * (d - near)


def policy_loss(
    scores: TokenScores,
    old_scores: TokenScores | None,
    reference_scores: TokenScores | None,
    advantages: BatchValues,
    completion_mask: CompletionMask,
    form: PolicyLoss,
    *,
    tolerance: float = 0.0,
) -> LossTerms:
    """Sum the clipped surrogate, and the KL penalty if there is a reference.

    Metrics:
        logprob: mean score of completion tokens.
        rewarded_logprob: mean score of completion tokens in rows with a positive advantage.
        rate_scale: share of the rows that have tokens; the trainer scales the step by it.
        clipped_share: share of completion tokens whose ratio is clipped.
        kl: mean estimate of `divergence` over completion tokens.
        max_log_ratio: largest |s - s_old|.
        unequal_share: share of completion tokens whose |s - s_old| exceeds `tolerance`. This and
            `max_log_ratio` are 0 before a rollout's first update, except for rounding.

    Args:
        scores: scores of the current policy.
        old_scores: scores of the policy that sampled; None if it is the current one, so that all
            ratios are 1.
        reference_scores: scores of the reference; None without a penalty.
        advantages: one per row.
        completion_mask: the tokens that count.
        form: clipping, penalty and normalisation.
        tolerance: largest |s - s_old| of equal scores, for `unequal_share`.
    """
    # ratio of the current to the sampling policy
    mask = completion_mask.astype(jnp.float32)
    old_scores = jax.lax.stop_gradient(scores) if old_scores is None else old_scores
    token_log_ratio = jnp.where(completion_mask, scores - old_scores, 0.0)
    log_ratio = token_log_ratio
    # One ratio per row, the geometric mean: log ratios [0.2, 0.4] become [0.3, 0.3].
    if form.loss_type == "gspo":
        lengths = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1.0)
        mean = jnp.sum(log_ratio, axis=1, keepdims=True) / lengths
        log_ratio = jnp.broadcast_to(mean, mask.shape)
    # Weights such as 1/t make scores large. Without the clip, a ratio could be infinite, and
    # infinity times 0 in the loss or its gradient would be NaN.
    ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    # clipped surrogate
    advantage = advantages[:, None]
    clipped = jnp.clip(ratio, 1 - form.epsilon, form.upper)
    # For A < 0 nothing else bounds the ratio from above.
    bounded = ratio if form.delta is None else jnp.minimum(ratio, form.delta)
    surrogate = jnp.where(advantage < 0, bounded, ratio) * advantage
    # The minimum removes the gain of a ratio beyond the clip in the direction of its advantage, and
    # keeps the loss of one in the other direction.
    token_losses = -jnp.minimum(surrogate, clipped * advantage)
    # The gradient of log p grows as p falls: unlikely tokens of bad rows would dominate the update.
    probability = jnp.exp(old_scores)
    negative_weight = form.negative_scale * probability**form.negative_power
    negative_weight = jnp.where(probability < form.negative_floor, 0.0, negative_weight)
    token_losses = token_losses * jnp.where(advantage < 0, negative_weight, 1.0)
    too_low = ratio < 1 - form.epsilon
    is_clipped = (too_low & (advantage < 0)) | ((ratio > form.upper) & (advantage > 0))

    # metrics
    def over_tokens(values, mask=mask):
        return Mean(jnp.sum(jnp.where(mask > 0, values, 0.0)), jnp.sum(mask))

    has_tokens = jnp.any(completion_mask, axis=1).astype(jnp.float32)
    metrics = {
        "logprob": over_tokens(scores),
        "rewarded_logprob": over_tokens(scores, mask * (advantage > 0)),
        # Adam's steps do not shrink with the gradient, so few rows with tokens must shrink them.
        RATE_SCALE: Mean(jnp.sum(has_tokens), jnp.float32(len(scores))),
        "clipped_share": over_tokens(is_clipped),
        "max_log_ratio": jnp.max(jnp.abs(token_log_ratio)),
        "unequal_share": over_tokens(jnp.abs(token_log_ratio) > tolerance),
    }
    # penalty
    if reference_scores is not None:
        # Outside the completion, d is set to 0: e^d may be infinite there, and infinity * 0 is NaN.
        compared = jnp.where(completion_mask, scores, reference_scores)
        kl = divergence(compared, reference_scores, form.kl_clamp)
        token_losses = token_losses + form.beta * kl
        metrics["kl"] = over_tokens(kl)
    # normalisation
    weights, divisor = row_weights(form.loss_type, completion_mask)
    return LossTerms(jnp.sum(jnp.sum(token_losses * mask, axis=1) * weights), divisor, metrics)

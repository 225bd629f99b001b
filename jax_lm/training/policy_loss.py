"""From rewards to the loss of an update: advantages, masked copies, scores, clipped ratios, penalty for drifting away.

The order of this file is that of an update (DiffuCoder, arXiv 2506.20639, section 4). A score stands for the policy's
log-probability of a completion token (Apple's `selective_log_softmax`):

    s = [l0 + sum over pairs of (m1 l1 / t + m2 l2 / (1 - t))] / (pairs + 1)

l0, l1, l2 are log-probabilities of the token with the whole completion masked, with m1 masked, and with the rest (m2)
masked. A proxy, not a normalised log-probability. With `trace` and `stratified` a token has one copy, and its score is
its log-probability there, which for `trace` comes near to what the sampler drew from. A loss comes as a sum and what to
divide it by, so that a batch may be cut into parts without changing its loss. Knows the model and masks; not where
completions and rewards come from.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.masking import shift_right
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.sharding import shard_rows
from jax_lm.training.grpo_config import Estimator, PolicyLoss
from jax_lm.training.update import LossTerms, Mean

MAX_LOG_RATIO = 20.0
"""Far beyond any clip, and far from what float32 cannot hold; what lies beyond it pulls no more."""


class Copies(NamedTuple):
    """Masked copies of rows, n of each: the fully masked one first, then m1 and m2 of each pair; or one per segment.

    Attributes:
        tokens: rows with MASK where a copy is masked; the prompt never is.
        scored: the completion positions that a copy scores, all of them masked there.
        weights: 1, then 1/t and 1/(1 - t) of each pair; 1 for segments.
        terms: what a score is divided by: 1 + pairs; 1 for segments, as each token has one copy.
    """

    tokens: Int[Array, "b n t"]
    scored: Bool[Array, "b n c"]
    weights: Float[Array, "b n"]
    terms: Float[Array, "b"]


def forward_process(
    keys: Key[Array, "b"],
    tokens: Int[Array, "b t"],
    completion_length: int,
    mask_id: int,
    estimator: Estimator,
    *,
    commit_step: Int[Array, "b c"] | None = None,
    completion_mask: Bool[Array, "b c"] | None = None,
) -> Copies:
    """Noise rows whose last `completion_length` columns are the completion.

    Args:
        commit_step: steps in which the completion was decoded, for `trace`; with which positions count.

    Raises:
        ValueError: `trace` without the steps of the decoding.
    """
    if estimator.estimator == "trace":
        if commit_step is None or completion_mask is None:
            raise ValueError("commit_step=None: estimator='trace' needs the steps in which completions were decoded")
        segment = segments(commit_step, completion_mask, estimator.num_segments)
        return segment_copies(tokens, mask_id, segment, estimator.num_segments)
    if estimator.estimator == "stratified":
        return stratum_copies(keys, tokens, completion_length, mask_id, estimator.num_segments)
    masked, weights = jax.vmap(partial(drawn_masks, length=completion_length, estimator=estimator))(keys)
    terms = jnp.full(len(tokens), (estimator.copies + 1) / 2)
    return Copies(noisy_rows(tokens, masked, mask_id), masked, weights, terms)


def drawn_masks(key: Key[Array, ""], length: int, estimator: Estimator) -> tuple[Bool[Array, "n c"], Float[Array, "n"]]:
    """Draw the masks of a row, the full one first, and their weights: t ~ U(min, max), and u < t masks.

    Source: section 4 of the paper; Apple's `forward_process`, which masks where u <= t and shares t among a batch.
    """
    pairs = estimator.num_mask_pairs
    key_level, key_first, key_second = jax.random.split(key, 3)
    shape = (pairs, length)
    t = jax.random.uniform(key_level, (pairs, 1), minval=estimator.min_mask_ratio, maxval=estimator.max_mask_ratio)
    first = jax.random.uniform(key_first, shape) < t
    # The exact complement predicts every token in one of the two copies: less variance than two draws have.
    coupled = estimator.estimator == "coupled"
    second = ~first if coupled else jax.random.uniform(key_second, shape) < 1 - t
    both = jnp.stack([first, second], axis=1).reshape(-1, length)
    masked = jnp.concatenate([jnp.ones((1, length), bool), both])[: estimator.copies]
    # A token is masked with probability t, so 1/t keeps the mean of its term; likewise 1/(1 - t).
    weights = jnp.concatenate([jnp.ones(1), jnp.concatenate([1 / t, 1 / (1 - t)], axis=1).ravel()])
    return masked, weights[: estimator.copies]


def segments(commit_step: Int[Array, "b c"], completion_mask: Bool[Array, "b c"], count: int) -> Int[Array, "b c"]:
    """Cut the decoding of each completion into `count` segments of about as many tokens; no step is cut in two.

    The segment of a position follows from how many counted tokens were decoded before it; those after the end of the
    completion, which are not counted, have theirs in the same way.
    """

    def of_row(steps: Int[Array, "c"], counted: Bool[Array, "c"]) -> Int[Array, "c"]:
        before = jnp.sum((steps[None, :] < steps[:, None]) & counted[None, :], axis=1)
        return jnp.minimum(count * before // jnp.maximum(jnp.sum(counted), 1), count - 1)

    return jax.vmap(of_row)(commit_step, completion_mask)


def segment_copies(tokens: Int[Array, "b t"], mask_id: int, segment: Int[Array, "b c"], count: int) -> Copies:
    """Mask in copy j segment j, which it scores, and all later ones."""
    number = jnp.arange(count)[None, :, None]
    masked, scored = segment[:, None] >= number, segment[:, None] == number
    return Copies(noisy_rows(tokens, masked, mask_id), scored, jnp.ones(scored.shape[:2]), jnp.ones(len(tokens)))


def stratum_copies(keys: Key[Array, "b"], tokens: Int[Array, "b t"], length: int, mask_id: int, count: int) -> Copies:
    """Part the positions of each completion at random into `count` strata as equal as can be; copy j masks the j-th."""
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (length,)))(keys)
    stratum = jnp.argsort(jnp.argsort(uniform, axis=1), axis=1) * count // length
    masked = stratum[:, None] == jnp.arange(count)[None, :, None]
    return Copies(noisy_rows(tokens, masked, mask_id), masked, jnp.ones(masked.shape[:2]), jnp.ones(len(tokens)))


def noisy_rows(tokens: Int[Array, "b t"], masked: Bool[Array, "b n c"], mask_id: int) -> Int[Array, "b n t"]:
    """Repeat each row once per copy, with MASK at the masked positions of its completion."""
    start = tokens.shape[1] - masked.shape[2]
    masked = jnp.pad(masked, ((0, 0), (0, 0), (start, 0)))
    return jnp.where(masked, mask_id, tokens[:, None])


def token_scores(
    logits: Float[Array, "b n c v"],
    index: Int[Array, "b c"],
    scored: Bool[Array, "b n c"],
    weights: Float[Array, "b n"],
) -> Float[Array, "b c"]:
    """Compute the score s of each token from aligned logits of the copies of pairs, in float32."""
    logits = logits.astype(jnp.float32)
    index = jnp.broadcast_to(index[:, None], logits.shape[:-1])
    own = jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
    # 1 + 2 pairs copies: half of one more is pairs + 1, what the formula divides by; one copy (full_mask) by 1.
    terms = jnp.full(len(weights), (weights.shape[1] + 1) / 2)
    return weighted_scores(own - jax.nn.logsumexp(logits, axis=-1), scored, weights, terms)


def weighted_scores(
    log_probs: Float[Array, "b n c"],
    scored: Bool[Array, "b n c"],
    weights: Float[Array, "b n"],
    terms: Float[Array, "b"],
) -> Float[Array, "b c"]:
    """Compute the score s of each token from its log-probability in all copies."""
    return jnp.sum(jnp.where(scored, log_probs * weights[..., None], 0.0), axis=1) / terms[:, None]


def selective_log_softmax(
    logits: Float[Array, "nb c v"],
    index: Int[Array, "b c"],
    weights: Float[Array, "3"] | Float[Array, "3 b"],
    mask: Bool[Array, "b c"] | Int[Array, "b c"],
) -> Float[Array, "b c"]:
    """Gather weighted log-probabilities as the reference does, for one pair: scores from the logits of three copies.

    Args:
        logits: aligned; of the whole batch fully masked, then with m1 masked, then with the complement masked.
        index: the tokens.
        weights: of the three copies, or of the three copies of each sample.
        mask: m1.

    Raises:
        ValueError: not three rows of logits per sample.
    """
    if len(logits) != 3 * len(index):
        raise ValueError(f"logits has {len(logits)} rows: must have 3 for each of the {len(index)} rows of index")
    first = mask.astype(bool)
    masked = jnp.stack([jnp.ones_like(first), first, ~first], axis=1)
    per_sample = jnp.broadcast_to(weights.reshape(3, -1), (3, len(index))).T
    by_sample = logits.reshape(3, *index.shape, -1).swapaxes(0, 1)
    return token_scores(by_sample, index, masked, per_sample)


def completion_scores(
    model: DreamForCausalLM,
    tokens: Int[Array, "b t"],
    attention_mask: Bool[Array, "b t"],
    copies: Copies,
    chunk: int | None = None,
    *,
    remat: bool = False,
) -> Float[Array, "b c"]:
    """Score the completion tokens under the model.

    Attention mask and positions are those of sampling, so that left padding changes nothing. Hidden states are cut to
    the completion before the head. `chunk` samples at a time go through model and head, and are computed again in
    the backward pass, so that memory holds the activations and logits of one chunk only. One chunk of all samples would
    save nothing by that, and keeps its activations. With `remat` those are the inputs of layers alone, in each case.
    Where a chunk is not full, samples are scored twice, once for nothing.
    """
    count, completion_length = len(tokens), copies.scored.shape[2]
    chunk = count if chunk is None else chunk
    whole = count + -count % chunk
    rows = tokens, attention_mask, copies
    if whole > count:
        rows = jax.tree.map(lambda leaf: leaf[jnp.arange(whole) % count], rows)

    def score(part: tuple[Array, Array, Copies]) -> Float[Array, "k c"]:
        tokens, attention_mask, copies = part
        k, n, t = copies.tokens.shape
        hidden = model.model(copies.tokens.reshape(-1, t), jnp.repeat(attention_mask, n, axis=0), remat=remat)
        index = jnp.repeat(tokens[:, -completion_length:], n, axis=0)
        log_probs = token_log_probs(model, shift_right(hidden)[:, -completion_length:], index)
        return weighted_scores(log_probs.reshape(k, n, -1), copies.scored, copies.weights, copies.terms)

    def split(leaf: Array) -> Array:
        # Part i takes samples i, i + parts, …, so that every part has samples of every device of a mesh.
        return shard_rows(leaf, model.mesh).reshape(chunk, -1, *leaf.shape[1:]).swapaxes(0, 1)

    score = score if chunk == whole else jax.checkpoint(score)
    scores = jax.lax.map(score, jax.tree.map(split, rows))
    return scores.swapaxes(0, 1).reshape(whole, completion_length)[:count]


def row_weights(loss_type: str, completion_mask: Bool[Array, "b c"]) -> tuple[Float[Array, "b"], Float[Array, ""]]:
    """Weigh each row's summed token terms; also the divisor of the sum of all rows.

    Rows without tokens count for nothing.
    """
    lengths = jnp.sum(completion_mask, axis=1).astype(jnp.float32)
    rows, each = jnp.sum(lengths > 0).astype(jnp.float32), jnp.ones_like(lengths)
    if loss_type in ("bnpo", "dapo"):
        return each, jnp.sum(lengths)
    if loss_type == "dr_grpo":
        return each, rows * completion_mask.shape[1]
    return each / jnp.maximum(lengths, 1.0), rows


def divergence(scores: Float[Array, "b c"], reference_scores: Float[Array, "b c"], clamp: float) -> Float[Array, "b c"]:
    """Estimate the KL divergence from the reference per token: e^d - d - 1 with d = s_ref - s.

    Never negative, and 0 only where both agree; with true log-probabilities its mean is the divergence (Schulman's k3).
    Beyond |d| = clamp it goes on as its tangent there: e^d of a composite score explodes, but a token that has drifted
    that far must still be drawn back. A clamp of infinity is the published form.
    """
    d = reference_scores - scores
    near = jnp.clip(d, -clamp, clamp)
    return jnp.exp(near) - near - 1 + (jnp.exp(near) - 1) * (d - near)


def policy_loss(
    scores: Float[Array, "b c"],
    old_scores: Float[Array, "b c"] | None,
    reference_scores: Float[Array, "b c"] | None,
    advantages: Float[Array, "b"],
    completion_mask: Bool[Array, "b c"],
    form: PolicyLoss,
    *,
    tolerance: float = 0.0,
) -> LossTerms:
    """Sum up the clipped surrogate, and the penalty if there is a reference.

    Without old scores the policy that sampled is the present one, and each ratio is 1.

    Its metrics: `kl` and `clipped_share` are means over completion tokens; `max_log_ratio` is the largest |s - s_old|,
    and `unequal_share` the share of completion tokens with more than `tolerance` of it. Both are 0 before a rollout's
    first update, but for rounding.
    """
    mask = completion_mask.astype(jnp.float32)
    old_scores = jax.lax.stop_gradient(scores) if old_scores is None else old_scores
    token_log_ratio = jnp.where(completion_mask, scores - old_scores, 0.0)
    log_ratio = token_log_ratio
    if form.loss_type == "gspo":
        lengths = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1.0)
        log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=1, keepdims=True) / lengths, mask.shape)
    # Scores are steep (1/t), and infinity times 0, in the loss or in its gradient, is no number.
    ratio, advantage = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)), advantages[:, None]
    # The minimum takes away the gain of a ratio beyond the clip, and keeps the loss of one on its wrong end.
    clipped = jnp.clip(ratio, 1 - form.epsilon, form.upper)
    terms = -jnp.minimum(ratio * advantage, clipped * advantage)
    is_clipped = ((ratio < 1 - form.epsilon) & (advantage < 0)) | ((ratio > form.upper) & (advantage > 0))

    def over_tokens(values: Array) -> Mean:
        return Mean(jnp.sum(values * mask), jnp.sum(mask))

    metrics: dict[str, Mean | Array] = {
        "clipped_share": over_tokens(is_clipped),
        "max_log_ratio": jnp.max(jnp.abs(token_log_ratio)),
        "unequal_share": over_tokens(jnp.abs(token_log_ratio) > tolerance),
    }
    if reference_scores is not None:
        # Outside the completion both agree: e^d of what does not count may be infinite, and infinity times 0 is none.
        kl = divergence(jnp.where(completion_mask, scores, reference_scores), reference_scores, form.kl_clamp)
        terms = terms + form.beta * kl
        metrics["kl"] = over_tokens(kl)
    weights, weight = row_weights(form.loss_type, completion_mask)
    return LossTerms(jnp.sum(jnp.sum(terms * mask, axis=1) * weights), weight, metrics)

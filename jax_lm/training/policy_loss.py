"""The policy-gradient loss of group-relative optimisation: advantages, clipped ratios, the penalty for drifting away.

Pure functions of scores, rewards and masks; knows neither models nor where scores come from. A loss comes as a sum and
what to divide it by, so that a batch may be cut into parts without changing its loss.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jax_lm.training.grpo_config import BASELINES, PolicyLoss

STD_EPSILON = 1e-4


def advantages(
    rewards: Float[np.ndarray, "b"],
    num_generations: int,
    *,
    baseline: str = "leave_one_out",
    scale_rewards: bool = False,
) -> Float[np.ndarray, "b"]:
    """How much better each completion is than the others of its group; groups are consecutive rows.

    Rewards that are NaN were not judged: they belong to no baseline, and get advantage 0, as does a completion without
    another judged one beside it.

    Args:
        baseline: the mean of the other completions of the group (RLOO), or of all of them.
        scale_rewards: divide by the group's standard deviation (plus 1e-4).

    Raises:
        ValueError: rows that do not fill groups of at least 2, or an unknown baseline.
    """
    if num_generations < 2 or len(rewards) % num_generations:
        raise ValueError(f"num_generations={num_generations}: must be at least 2 and divide {len(rewards)} completions")
    if baseline not in BASELINES:
        raise ValueError(f"baseline={baseline!r}: must be one of {', '.join(BASELINES)}")
    groups = rewards.astype(np.float64).reshape(-1, num_generations)
    judged = np.isfinite(groups)
    count = judged.sum(axis=1, keepdims=True)
    values = np.where(judged, groups, 0.0)
    centred = np.where(judged, groups - values.sum(axis=1, keepdims=True) / np.maximum(count, 1), 0.0)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
    result = centred
    if baseline == "leave_one_out":
        # r - mean of the others = n / (n - 1) * (r - mean of all).
        result = centred * count / np.maximum(count - 1, 1)
    if scale_rewards:
        result = result / (spread + STD_EPSILON)
    return result.ravel().astype(np.float32)


def row_weights(loss_type: str, completion_mask: Bool[Array, "b c"]) -> tuple[Float[Array, "b"], Float[Array, ""]]:
    """What each row's summed token terms count, and what the sum of all rows is divided by.

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
    """Estimate of the KL divergence from the reference per token: e^d - d - 1 with d = s_ref - s, |d| <= clamp."""
    difference = jnp.clip(reference_scores - scores, -clamp, clamp)
    return jnp.exp(difference) - difference - 1


def policy_loss(
    scores: Float[Array, "b c"],
    old_scores: Float[Array, "b c"],
    reference_scores: Float[Array, "b c"] | None,
    advantages: Float[Array, "b"],
    completion_mask: Bool[Array, "b c"],
    form: PolicyLoss,
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The clipped surrogate, and the penalty if there is a reference.

    Returns:
        A sum over these rows, and what to divide it by once all rows are summed up. Metrics: `kl` and `clipped_share`
        are means over completion tokens; `max_log_ratio` is the largest |s - s_old|, 0 before a rollout's first update.
    """
    mask = completion_mask.astype(jnp.float32)
    tokens = jnp.maximum(jnp.sum(mask), 1.0)
    token_log_ratio = jnp.where(completion_mask, scores - old_scores, 0.0)
    log_ratio = token_log_ratio
    if form.loss_type == "gspo":
        lengths = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1.0)
        log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=1, keepdims=True) / lengths, mask.shape)
    ratio, advantage = jnp.exp(log_ratio), advantages[:, None]
    clipped = jnp.clip(ratio, 1 - form.epsilon, form.upper)
    terms = -jnp.minimum(ratio * advantage, clipped * advantage)
    is_clipped = ((ratio < 1 - form.epsilon) & (advantage < 0)) | ((ratio > form.upper) & (advantage > 0))
    metrics = {
        "clipped_share": jnp.sum(is_clipped * mask) / tokens,
        "max_log_ratio": jnp.max(jnp.abs(token_log_ratio)),
    }
    if reference_scores is not None:
        kl = divergence(scores, reference_scores, form.kl_clamp)
        terms = terms + form.beta * kl
        metrics["kl"] = jnp.sum(kl * mask) / tokens
    weights, weight = row_weights(form.loss_type, completion_mask)
    return jnp.sum(jnp.sum(terms * mask, axis=1) * weights), weight, metrics

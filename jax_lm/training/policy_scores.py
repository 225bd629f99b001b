"""What a policy says of its own completions: masked copies of a row, and the score per completion token.

The score of coupled-GRPO (DiffuCoder, arXiv 2506.20639, section 4; Apple's `selective_log_softmax`):

    s = [l0 + sum over pairs of (m1 l1 / t + m2 l2 / (1 - t))] / (pairs + 1)

l0, l1, l2 are log-probabilities of the token with the whole completion masked, with m1 masked, and with the rest (m2)
masked. A proxy, not a normalised log-probability. Knows the model and masks, no rewards and no loss.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.masking import shift_right
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.sharding import shard_rows
from jax_lm.training.grpo_config import Estimator


class Copies(NamedTuple):
    """Masked copies of rows; n copies, the fully masked one first, then m1 and m2 of each pair.

    Attributes:
        tokens: rows with MASK where a copy is masked; the prompt never is.
        masked: which completion positions those are.
        weights: 1, then 1/t and 1/(1 - t) of each pair.
    """

    tokens: Int[Array, "b n t"]
    masked: Bool[Array, "b n c"]
    weights: Float[Array, "b n"]


def sample_keys(
    seed: int, rollout: Int[Array, ""] | int, iteration: Int[Array, ""] | int, sample_ids: Int[Array, "b"]
) -> Key[Array, "b"]:
    """One key per sample, by its global id: masks do not depend on what else is in a batch, nor on how it is cut."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), rollout), iteration)
    return jax.vmap(lambda sample: jax.random.fold_in(key, sample))(sample_ids)


def forward_process(
    keys: Key[Array, "b"], tokens: Int[Array, "b t"], completion_length: int, mask_id: int, estimator: Estimator
) -> Copies:
    """Noise rows whose last `completion_length` columns are the completion: t ~ U(min, max) per sample, u < t masks.

    Source: section 4 of the paper; Apple's `forward_process`, which masks where u <= t and shares t among a batch.
    """

    def draw(key: Key[Array, ""]) -> tuple[Bool[Array, "n c"], Float[Array, "n"]]:
        key_level, key_first, key_second = jax.random.split(key, 3)
        shape = (estimator.pairs, completion_length)
        t = jax.random.uniform(key_level, (estimator.pairs, 1), minval=estimator.min_ratio, maxval=estimator.max_ratio)
        first = jax.random.uniform(key_first, shape) < t
        second = ~first if estimator.kind == "coupled" else jax.random.uniform(key_second, shape) < 1 - t
        pairs = jnp.stack([first, second], axis=1).reshape(-1, completion_length)
        masked = jnp.concatenate([jnp.ones((1, completion_length), bool), pairs])
        return masked, jnp.concatenate([jnp.ones(1), jnp.concatenate([1 / t, 1 / (1 - t)], axis=1).ravel()])

    masked, weights = jax.vmap(draw)(keys)
    masked, weights = masked[:, : estimator.copies], weights[:, : estimator.copies]
    return Copies(noisy_rows(tokens, masked, mask_id), masked, weights)


def noisy_rows(tokens: Int[Array, "b t"], masked: Bool[Array, "b n c"], mask_id: int) -> Int[Array, "b n t"]:
    """Each row once per copy, with MASK at the masked positions of its completion."""
    start = tokens.shape[1] - masked.shape[2]
    masked = jnp.pad(masked, ((0, 0), (0, 0), (start, 0)))
    return jnp.where(masked, mask_id, tokens[:, None])


def token_scores(
    logits: Float[Array, "b n c v"],
    index: Int[Array, "b c"],
    masked: Bool[Array, "b n c"],
    weights: Float[Array, "b n"],
) -> Float[Array, "b c"]:
    """The score s of each token from aligned logits of all copies, in float32."""
    logits = logits.astype(jnp.float32)
    index = jnp.broadcast_to(index[:, None], logits.shape[:-1])
    own = jnp.take_along_axis(logits, index[..., None], axis=-1)[..., 0]
    log_probs = own - jax.nn.logsumexp(logits, axis=-1)
    weighted = jnp.where(masked, log_probs * weights[..., None], 0.0)
    return jnp.sum(weighted, axis=1) / ((logits.shape[1] + 1) / 2)


def selective_log_softmax(
    logits: Float[Array, "nb c v"],
    index: Int[Array, "b c"],
    weights: Float[Array, "3"] | Float[Array, "3 b"],
    mask: Bool[Array, "b c"] | Int[Array, "b c"],
) -> Float[Array, "b c"]:
    """The weighted gather of the reference, for one pair: scores from the logits of three copies.

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
) -> Float[Array, "b c"]:
    """Scores of the completion tokens under the model.

    Attention mask and positions are those of sampling, so that left padding changes nothing. Hidden states are cut to
    the completion before the head. `chunk` samples at a time go through model and head, and are computed again in
    the backward pass, so that memory holds the activations and logits of one chunk only. One chunk of all samples would
    save nothing by that, and keeps its activations.

    Raises:
        ValueError: `chunk` does not divide the number of samples.
    """
    count, completion_length = len(tokens), copies.masked.shape[2]
    chunk = count if chunk is None else chunk
    if chunk < 1 or count % chunk:
        raise ValueError(f"score_chunk={chunk}: must divide the {count} samples of a batch")

    def score(part: tuple[Array, Array, Copies]) -> Float[Array, "k c"]:
        tokens, attention_mask, copies = part
        k, n, t = copies.tokens.shape
        hidden = model.model(copies.tokens.reshape(-1, t), jnp.repeat(attention_mask, n, axis=0))
        logits = model.logits(shift_right(hidden)[:, -completion_length:])
        logits = logits.reshape(k, n, completion_length, -1)
        return token_scores(logits, tokens[:, -completion_length:], copies.masked, copies.weights)

    def split(leaf: Array) -> Array:
        # Part i takes samples i, i + parts, …, so that every part has samples of every device of a mesh.
        return shard_rows(leaf, model.mesh).reshape(chunk, -1, *leaf.shape[1:]).swapaxes(0, 1)

    score = score if chunk == count else jax.checkpoint(score)
    scores = jax.lax.map(score, jax.tree.map(split, (tokens, attention_mask, copies)))
    return scores.swapaxes(0, 1).reshape(count, completion_length)

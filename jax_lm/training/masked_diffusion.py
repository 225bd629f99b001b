"""The loss of masked diffusion in its variants, and training a model on it.

    L = sum(m * q * w) / normaliser,

with q the negative log-likelihood of a canvas token in float32, m whether it was masked, and w its weight. With
w = 1/t and t ~ U(0, 1) this is the evidence bound of masked diffusion, DiffuCoder's objective in adaptation and SFT.
`plain` weights with levels t = 1 - u^2 (a third of the samples have nine of ten positions masked) bound nothing, but
practise what generation starts from, the nearly empty canvas. Decoding by confidence then sees other canvases than
masks at random leave: a beginning, and of the rest the likeliest tokens, the end of the text before its middle. A
`confident_share` of the samples is masked so.

Knows batches, no files.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jax_lm.data.batches import Batch, filled_up
from jax_lm.diffusion import masking
from jax_lm.models.attention import OwnSample
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.planning.memory import training_flops
from jax_lm.sharding import on_mesh, row_devices, row_spec
from jax_lm.training.config import LossConfig, TrainerConfig
from jax_lm.training.run_defaults import log_setup, resolve_remat, resolve_trainer, weight_count
from jax_lm.training.trainer import BatchSource, Evaluate, State, Trainer
from jax_lm.training.update import Loss, LossTerms, Params, compute_copy, in_dtype, merged, partition


def token_weights(
    config: LossConfig,
    masked: Bool[Array, "b t"],
    samples: Int[Array, "b t"],
    levels: Float[Array, "b t"],
    sizes: Float[Array, "b t"],
) -> Float[Array, "b t"]:
    """Weigh masked tokens. `sizes` are the canvas positions of each token's sample."""
    if config.weighting == "plain":
        return jnp.ones_like(levels)
    if config.weighting == "cart":
        # A visible token at distance d counts p/2 (1 - p)^(d - 1): all of them, on both sides, sum up to 1.
        distance = jnp.abs(jnp.arange(samples.shape[1])[:, None] - jnp.arange(samples.shape[1])[None])
        nearness = 0.5 * config.cart_p * (1 - config.cart_p) ** (distance - 1.0)
        visible = (samples[:, :, None] == samples[:, None, :]) & ~masked[:, None, :] & (distance > 0)
        weights = jnp.sum(nearness * visible, axis=-1)
    else:
        weights = 1 / levels if config.weighting == "1/t" else 1 - levels
    # Every sample has a mask, forced if need be: which these objectives do not know.
    counts = masking.over_samples("sum", masked.astype(jnp.float32), samples)
    weights = weights * masking.unforced_ratio(levels, sizes, counts)
    if config.max_weight is None or config.weighting == "cart":
        return weights
    return jnp.minimum(weights, config.max_weight)


def loss_terms(
    config: LossConfig,
    losses: Float[Array, "b t"],
    masked: Bool[Array, "b t"],
    canvas: Bool[Array, "b t"],
    samples: Int[Array, "b t"],
    levels: Float[Array, "b t"],
) -> LossTerms:
    """Sum up the weighted negative log-likelihoods of all tokens; the sum comes with its normaliser."""
    sizes = masking.over_samples("sum", canvas.astype(jnp.float32), samples)
    weights = token_weights(config, masked, samples, levels, sizes)
    shares = canvas / jnp.maximum(sizes, 1)
    if config.normalisation == "sequence":
        weights = weights * shares
    # `sequence` and `batch` divide by the number of samples.
    counted = {"token": canvas, "masked": masked}.get(config.normalisation, shares)
    # Chosen, not multiplied by 0: the loss of a position that does not count may be infinite.
    total = jnp.sum(jnp.where(masked, losses * weights, 0.0))
    return LossTerms(total, jnp.sum(counted, dtype=jnp.float32), {})


def drawn_loss_terms(
    config: LossConfig,
    losses: Float[Array, "b t"],
    masked: Bool[Array, "b t"],
    levels: Float[Array, "b t"],
    shares: Float[Array, "b t"],
) -> LossTerms:
    """Sum up the negative log-likelihoods where masks are drawn already, over all shares.

    A token counts by its share, and by 1 - t (DreamLM/DreamOn, src/trainer/fsdp_sft_expand_trainer.py) unless it is
    to count plainly: 1 - t hardly teaches full holes, which is what decoding begins with.
    """
    weights = shares if config.weighting == "plain" else (1 - levels) * shares
    return LossTerms(jnp.sum(jnp.where(masked, losses * weights, 0.0)), jnp.sum(shares), {})


def diffusion_loss(graph: nnx.GraphDef, config: LossConfig, mask_id: int) -> Loss:
    """Make the loss of a model (its graph) on a `Batch`."""

    def loss(params: Params, batch: Batch, key: PRNGKeyArray) -> LossTerms:
        model = nnx.merge(graph, params)
        tokens, canvas, samples, openness, drawn = jax.tree.map(jnp.asarray, batch)
        key_level, key_mask, key_attention = jax.random.split(key, 3)
        levels = masking.noise_levels(key_level, samples, config.level_draws, config.minimum_level)
        if openness is not None:
            seen = masking.attention_mask(samples, openness, key_attention)
        else:
            seen = OwnSample(samples) if config.masks_per_query else samples >= 0

        def log_probs(model: DreamForCausalLM, noisy: Int[Array, "b t"]) -> Float[Array, "b t"]:
            hidden = model.model(noisy, seen, masking.sample_positions(samples), remat=bool(config.remat))
            return token_log_probs(model, masking.shift_right(hidden, masking.sample_starts(samples)), tokens)

        empty, ranks = jnp.where(canvas, mask_id, tokens), None
        if config.confident_share:
            if drawn is not None:
                raise ValueError(f"confident_share={config.confident_share}: must be 0 where masks are drawn already")
            key_ranked, key_begun = jax.random.split(jax.random.fold_in(key_mask, 0))
            begun = masking.begun(key_begun, canvas, samples, levels)
            likely = log_probs(nnx.merge(graph, jax.lax.stop_gradient(params)), jnp.where(begun, tokens, empty))
            likely = jnp.where(begun, jnp.inf, likely)
            ranks = masking.confident_ranks(key_ranked, likely, canvas, samples, config.confident_share)
        if config.high_levels:
            # 1 - u is as uniform as u: t = 1 - (1 - u)^2 has its mass near 1. Masked by rank, most of a canvas is ends.
            high = 1 - (1 - levels) ** 2
            levels = high if ranks is None else jnp.where(jnp.isnan(ranks), high, levels)
        noisy, masked = masking.mask_tokens(key_mask, tokens, canvas, samples, levels, mask_id, ranks)
        losses = -log_probs(model, noisy if drawn is None else empty)
        if drawn is not None:
            return drawn_loss_terms(config, losses, canvas, *drawn)
        return loss_terms(config, losses, masked, canvas, samples, levels)

    return loss


class ByStep:
    """A source whose batches follow from the step alone: there is nothing to save."""

    arrays: Any = ()

    def __init__(self, batch: Callable[[int], Batch]) -> None:
        self.batch = batch

    def draw(self, state: State) -> tuple[Batch, dict[str, float]]:
        return self.batch(state.step), {}

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: dict[str, Any]) -> None: ...


def train(
    model: DreamForCausalLM,
    source: BatchSource,
    loss: LossConfig,
    config: TrainerConfig,
    out: Path,
    *,
    trained: Callable[[str], bool] = lambda name: True,
    held_out: Sequence[Batch] = (),
    identity: Mapping[str, Any] | None = None,
) -> bool:
    """Minimise a masked-diffusion loss; `model` holds the trained weights afterwards. Whether the end was reached.

    Args:
        trained: which parameters are trained, by their checkpoint name; the others stay as they are.
        held_out: batches that are evaluated, always under the same masks.
        identity: further settings that a resumed run must agree on.

    Raises:
        ValueError: the model has no mask token, or `out` holds another run; or a row holds several samples where
            attention does not keep them apart.
        FloatingPointError: the loss is not finite.
    """
    if model.config.mask_token_id is None:
        raise ValueError("config mask_token_id=None: masked-diffusion training needs a mask token")
    graph, state = nnx.split(model)
    weights, parameters = on_mesh(nnx.to_pure_dict(state), model.config, model.mesh), weight_count(state)
    config, loss = resolve_trainer(config, parameters), resolve_remat(loss, parameters)
    dtype, where = config.dtype, log_setup(model.mesh, compute_dtype=config.compute_dtype, remat=loss.remat)
    ours, others = partition(weights, trained), partition(weights, lambda name: not trained(name))
    frozen = in_dtype(others, dtype)
    objective = diffusion_loss(graph, loss, model.config.mask_token_id)
    identity = where | {"loss": dataclasses.asdict(loss)} | dict(identity or {})
    parts = config.gradient_accumulation_steps
    spreading = partial(spread, model.mesh, parts) if model.mesh else partial(filled_up, multiple=parts)

    def place(batch: Batch) -> Any:
        if not loss.masks_per_query:
            require_rows_of_one_sample(batch)
        return spreading(batch)

    trainer = Trainer(
        objective,
        ours,
        config,
        out=out,
        frozen=frozen,
        identity=identity,
        place=place,
        token_flops=lambda length: training_flops(model.config, length, length, all_weights=not others),
    )
    held_out = [filled_up(batch, row_devices(model.mesh)) for batch in held_out]
    # Masks chosen by confidence would follow the weights.
    fixed = diffusion_loss(graph, dataclasses.replace(loss, confident_share=0.0), model.config.mask_token_id)
    evaluate = held_out_loss(fixed, frozen, held_out, dtype) if held_out else None
    finished = trainer.run(source, evaluate=evaluate)
    nnx.update(model, merged(others, trainer.state.params))
    return finished


def require_rows_of_one_sample(batch: Batch) -> None:
    """Raise ValueError if samples stand side by side in a row: under one mask for all queries they see each other."""
    before, behind = batch.samples[:, :-1], batch.samples[:, 1:]
    if batch.openness is None and np.any((before != behind) & (before >= 0) & (behind >= 0)):
        raise ValueError(
            "masks_per_query=False: must be True where a row holds several samples, or they see each other"
        )


def spread(mesh: Mesh, parts: int, batch: Batch) -> Any:
    """Join the rows that each process holds to one batch over the mesh, filled up so that each part of it is even."""
    rows, processes = parts * row_devices(mesh), jax.process_count()
    batch = filled_up(batch, math.lcm(rows, processes) // processes)

    def put(rows: np.ndarray) -> Array:
        count = len(rows) * jax.process_count()
        sharding = NamedSharding(mesh, row_spec(count, mesh))
        return jax.make_array_from_process_local_data(sharding, rows, (count, *rows.shape[1:]))

    return jax.tree.map(put, batch)


def held_out_loss(objective: Loss, frozen: Params, batches: Sequence[Batch], dtype: DTypeLike) -> Evaluate:
    """Make the evaluation of the loss on held-out batches, with masks that never change."""

    @jax.jit
    def terms_of(params: Params, frozen: Params, batch: Batch, number: Int[Array, ""]) -> LossTerms:
        weights = merged(frozen, compute_copy(params, dtype))
        return objective(weights, batch, jax.random.fold_in(jax.random.key(0), number))

    def evaluate(params: Params) -> dict[str, float]:
        terms = [terms_of(params, frozen, batch, jnp.int32(i)) for i, batch in enumerate(batches)]
        return {"loss": sum(float(t.total) for t in terms) / sum(float(t.weight) for t in terms)}

    return evaluate

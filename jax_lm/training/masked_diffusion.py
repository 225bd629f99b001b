"""The variants of the masked-diffusion loss, and training a model on them.

    L = sum(m * q * w) / normaliser

q is the negative log-likelihood of a canvas token in float32, m whether it was masked, and w its
weight. t is the masking level: the probability that a token is masked.

- With w = 1/t and t ~ U(0, 1) this is the evidence bound of masked diffusion, DiffuCoder's
  objective in adaptation and SFT.
- `plain` weights (w = 1) with levels t = 1 - u^2 are no bound, but train on the nearly empty canvas
  that generation starts from: a third of the samples have nine of ten positions masked.
- With a `block_length`, each block of a sample has its own level and masks, and attends to the
  clean blocks before it (`jax_lm.models.attention.attends_by_blocks`). With blocks of one token,
  this is the autoregressive loss.
- Decoding by confidence meets canvases that random masks rarely produce: the beginning of the text
  and the most likely of the other tokens are visible, the end often before the middle. A
  `confident_share` of the samples is masked like that.

Knows batches, but no files.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jax_lm.config import Fields
from jax_lm.data.batches import Batch, fill_rows
from jax_lm.diffusion import masking
from jax_lm.models.attention import SampleMask, attends_by_blocks
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import Hidden
from jax_lm.models.products import tie_operands
from jax_lm.models.shapes import Mask, Tokens, TokenValues
from jax_lm.models.token_likelihood import token_log_probs
from jax_lm.planning.memory import training_flops
from jax_lm.sharding import on_mesh, row_devices, row_spec
from jax_lm.training.config import LossConfig, TrainerConfig
from jax_lm.training.metrics import Metrics
from jax_lm.training.run_defaults import log_setup, resolve_remat, resolve_trainer, weight_count
from jax_lm.training.trainer import BatchSource, State, Trainer
from jax_lm.training.update import (
    Loss,
    LossTerms,
    NameTest,
    compute_copy,
    in_dtype,
    merge_params,
    partition,
    split_rows,
)


def token_weights(
    config: LossConfig, masked: Mask, samples: Tokens, levels: TokenValues, sizes: TokenValues
) -> TokenValues:
    """Compute the weight of each masked token.

    Args:
        config: settings of the loss.
        masked: the masked positions.
        samples: number of each token's sample, or of its pair of sample and block.
        levels: masking level of that sample or pair.
        sizes: number of its canvas positions.
    """
    if config.weighting == "plain":
        return jnp.ones_like(levels)
    if config.weighting == "cart":
        # A visible token at distance d adds p/2 (1 - p)^(d - 1), which sums to 1 over both sides.
        columns = jnp.arange(samples.shape[1])
        distance = jnp.abs(columns[:, None] - columns[None])
        nearness = 0.5 * config.cart_p * (1 - config.cart_p) ** (distance - 1.0)
        same_sample = samples[:, :, None] == samples[:, None, :]
        visible = same_sample & ~masked[:, None, :] & (distance > 0)
        weights = jnp.sum(nearness * visible, axis=-1)
    else:
        weights = 1 / levels if config.weighting == "1/t" else 1 - levels
    # A sample without a mask is given one, which these objectives do not account for.
    counts = masking.over_samples("sum", masked.astype(jnp.float32), samples)
    weights = weights * masking.unforced_ratio(levels, sizes, counts)
    if config.max_weight is None or config.weighting == "cart":
        return weights
    return jnp.minimum(weights, config.max_weight)


def loss_terms(
    config: LossConfig,
    losses: TokenValues,
    masked: Mask,
    canvas: Mask,
    samples: Tokens,
    levels: TokenValues,
    pairs: Tokens | None = None,
) -> LossTerms:
    """Sum the weighted negative log-likelihoods of all masked tokens. Returns sum and normaliser.

    Args:
        config: settings of the loss.
        losses: negative log-likelihood of each token.
        masked: the masked positions.
        canvas: the positions that may be masked.
        samples: number of each token's sample.
        levels: masking level of each token's sample or block.
        pairs: number of each token's pair of sample and block, if blocks have their own levels.
    """
    level_ids = samples if pairs is None else pairs
    level_sizes = masking.over_samples("sum", canvas.astype(jnp.float32), level_ids)
    weights = token_weights(config, masked, level_ids, levels, level_sizes)
    sizes = masking.over_samples("sum", canvas.astype(jnp.float32), samples)
    # Each of the 4 canvas positions of a sample is 1/4 of it.
    shares = canvas / jnp.maximum(sizes, 1)
    if config.normalisation == "sequence":
        weights = weights * shares
    # `sequence` and `batch` divide by the number of samples.
    counts = {"token": canvas, "masked": masked}.get(config.normalisation, shares)
    # `where` selects, because the loss of any other position may be infinite, and inf * 0 is NaN.
    total = jnp.sum(jnp.where(masked, losses * weights, 0.0))
    return LossTerms(total, jnp.sum(counts, dtype=jnp.float32), {})


def drawn_loss_terms(
    config: LossConfig, losses: TokenValues, masked: Mask, levels: TokenValues, shares: TokenValues
) -> LossTerms:
    """Sum the negative log-likelihoods where masks come with the batch. Returns sum and normaliser.

    The weight of a token is (1 - t) times its share (DreamLM/DreamOn,
    src/trainer/fsdp_sft_expand_trainer.py). With plain weighting it is the share alone: 1 - t is
    small for fully masked holes, which decoding starts from.
    """
    weights = shares if config.weighting == "plain" else (1 - levels) * shares
    return LossTerms(jnp.sum(jnp.where(masked, losses * weights, 0.0)), jnp.sum(shares), {})


def diffusion_loss(graph: nnx.GraphDef, config: LossConfig, mask_id: int) -> Loss:
    """Return the loss of a model as a function of parameters, batch and key."""

    def loss(params, batch, key):
        model = nnx.merge(graph, params)
        tokens, canvas, samples, openness, drawn = jax.tree.map(jnp.asarray, batch)
        # Levels and attention. Each sample, or each pair of sample and block, has its own level.
        key_level, key_mask, key_attention = jax.random.split(key, 3)
        pairs = samples
        remat = bool(config.remat)
        if config.block_length is not None:
            pairs = masking.number_blocks(samples, config.block_length)
        levels = masking.noise_levels(key_level, pairs, config.level_draws, config.minimum_level)
        if openness is not None:
            attention = masking.attention_mask(samples, openness, key_attention)
        else:
            attention = SampleMask(samples) if config.masks_per_query else samples >= 0

        def log_probs(model, noisy):
            if config.block_length is not None:
                hidden = predict_blocks(model, noisy, tokens, samples, config.block_length, remat)
            else:
                hidden = model.model(
                    noisy, attention, masking.sample_positions(samples), remat=remat
                )
                hidden = masking.align_rows(hidden, model.config, masking.sample_starts(samples))
            return token_log_probs(model, hidden, tokens)

        # Masks by confidence: a forward pass without gradient ranks the tokens.
        empty = jnp.where(canvas, mask_id, tokens)
        ranks = None
        if config.confident_share:
            if drawn is not None:
                raise ValueError(
                    f"confident_share={config.confident_share}: "
                    f"must be 0 where masks are drawn already"
                )
            key_ranked, key_prefix = jax.random.split(jax.random.fold_in(key_mask, 0))
            prefix = masking.visible_prefix(key_prefix, canvas, pairs, levels)
            constant = nnx.merge(graph, jax.lax.stop_gradient(params))
            confidence = log_probs(constant, jnp.where(prefix, tokens, empty))
            confidence = jnp.where(prefix, jnp.inf, confidence)
            ranks = masking.confident_ranks(
                key_ranked, confidence, canvas, pairs, config.confident_share
            )
        if config.high_levels:
            # 1 - u is uniform like u, so t = 1 - (1 - u)^2 is mostly near 1. Samples masked by
            # confidence keep their level: at a high one, mostly ends of texts would stay visible.
            high = 1 - (1 - levels) ** 2
            levels = high if ranks is None else jnp.where(jnp.isnan(ranks), high, levels)
        # masks
        noisy, masked = masking.mask_tokens(key_mask, tokens, canvas, pairs, levels, mask_id, ranks)
        # loss
        losses = -log_probs(model, noisy if drawn is None else empty)
        if drawn is not None:
            return drawn_loss_terms(config, losses, canvas, *drawn)
        if config.complementary_masks:
            # If [1, 0, 0, 1] of a canvas of 4 are masked, the other copy masks [0, 1, 1, 0].
            others = -log_probs(model, jnp.where(canvas & ~masked, mask_id, tokens))
            losses = jnp.where(masked, losses, others)
            masked = canvas
        return loss_terms(config, losses, masked, canvas, samples, levels, pairs)

    return loss


def predict_blocks(
    model: DreamForCausalLM, noisy: Tokens, clean: Tokens, samples: Tokens, length: int, remat: bool
) -> Hidden:
    """Return the hidden states that predict each position from its block and the clean ones before.

    A row of twice the length holds the noisy tokens and then the clean ones, so that one forward
    pass computes all blocks. `length` is that of a block.
    """
    positions = masking.sample_positions(samples)
    blocks, both_samples, both_positions = (
        jnp.concatenate([values, values], axis=1)
        for values in (positions // length, samples, positions)
    )
    is_noisy = jnp.arange(blocks.shape[1])[None] < noisy.shape[1]
    mask = attends_by_blocks(
        blocks[:, :, None], blocks[:, None], is_noisy[:, :, None], is_noisy[:, None]
    )
    mask &= both_samples[:, :, None] == both_samples[:, None]
    both = jnp.concatenate([noisy, clean], axis=1)
    noisy_rows, clean_rows = jnp.split(
        model.model(both, mask, both_positions, remat=remat), 2, axis=1
    )
    if not model.config.family.shifts:
        return noisy_rows
    # The row before a position predicts it. For the first position of a block, this is the clean
    # row before the block: blocks of 2, noisy rows [n0, n1, n2, n3] and clean rows [c0, c1, c2, c3]
    # give [n0, n0, c1, n2]. The first position of a sample has no row before it, and keeps its own.
    starts = masking.sample_starts(samples)
    follows_block = (positions % length == 0) & ~starts
    shifted = masking.shift_right(noisy_rows, starts)
    return jnp.where(follows_block[..., None], masking.shift_right(clean_rows), shifted)


class ByStep:
    """A source whose batches depend on the step alone, so it has nothing to save."""

    arrays: Any = ()

    def __init__(self, batch: Callable[[int], Batch]):
        self.batch = batch

    def draw(self, state: State) -> tuple[Batch, Metrics]:
        return self.batch(state.step), {}

    def save(self) -> Fields:
        return {}

    def load(self, saved: Fields): ...


def train(
    model: DreamForCausalLM,
    source: BatchSource,
    loss: LossConfig,
    config: TrainerConfig,
    out: Path,
    *,
    trained: NameTest = lambda name: True,
    held_out: Sequence[Batch] = (),
    identity: Fields | None = None,
) -> bool:
    """Minimise a masked-diffusion loss. Returns whether the run reached its end.

    Args:
        model: the model; it has the trained weights afterwards.
        source: draws the batches.
        loss: settings of the loss.
        config: settings of the run.
        out: folder of the run; a run that it holds is continued.
        trained: whether to train a parameter, by its checkpoint name.
        held_out: batches to evaluate, always under the same masks.
        identity: further settings that a resumed run must share.

    Raises:
        ValueError: the model has no mask token, its blocks differ from those of the loss, `out`
            holds another run, or a row holds several samples that attention does not separate.
        FloatingPointError: the loss is not finite.
    """
    if model.config.mask_token_id is None:
        raise ValueError("config mask_token_id=None: masked-diffusion training needs a mask token")
    # The loss is the only result of an evaluation.
    if config.metric_for_best_model not in (None, "loss", "eval_loss"):
        raise ValueError(f"metric_for_best_model={config.metric_for_best_model!r}: must be loss")
    # settings that depend on the model and its size
    loss = resolve_blocks(loss, model)
    graph, state = nnx.split(model)
    parameters = weight_count(state)
    config = resolve_trainer(config, parameters)
    loss = resolve_remat(loss, parameters)
    where = log_setup(model.mesh, compute_dtype=config.dtype, remat=loss.remat)
    # trained weights, and the others in the compute dtype
    weights = on_mesh(nnx.to_pure_dict(state), model.config, model.mesh)
    params, others = partition(weights, trained)
    frozen = in_dtype(others, config.dtype)
    parts = config.gradient_accumulation_steps
    place = partial(
        place_rows,
        mesh=model.mesh,
        parts=parts,
        masks_per_query=bool(loss.masks_per_query) or loss.block_length is not None,
    )
    # train
    trainer = Trainer(
        diffusion_loss(graph, loss, model.config.mask_token_id),
        params,
        config,
        out=out,
        frozen=frozen,
        identity=where | {"loss": asdict(loss)} | (identity or {}),
        place=place,
        token_flops=lambda length: (
            loss.row_factor
            * (1 + loss.complementary_masks)
            * training_flops(model.config, loss.row_factor * length, length, all_weights=not others)
        ),
    )
    # evaluation
    held_out = [fill_rows(batch, parts * row_devices(model.mesh)) for batch in held_out]
    # Held-out masks must not change with the weights, as masks by confidence would.
    objective = diffusion_loss(
        graph, replace(loss, confident_share=0.0), model.config.mask_token_id
    )
    terms = held_out_terms(objective, config.dtype, parts)

    def evaluate(params):
        results = [
            terms(params, frozen, batch, jnp.int32(number)) for number, batch in enumerate(held_out)
        ]
        total, weight = (sum(map(float, each)) for each in zip(*results, strict=True))
        return {"loss": total / weight}

    finished = trainer.run(source, evaluate=evaluate if held_out else None)
    # `others`, not `frozen`: the model keeps the weights that were not trained in their own dtype.
    nnx.update(model, merge_params(others, trainer.state.params))
    return finished


def resolve_blocks(
    loss: LossConfig, model: DreamForCausalLM, is_causal: bool | None = None
) -> LossConfig:
    """Make model and loss agree on a block length. Returns the loss with that length.

    A model without a block length gets that of the loss, and `is_causal` says how it attends then.

    Raises:
        ValueError: both have one and they differ, or the model cannot attend by blocks.
    """
    if loss.block_length is not None:
        model.become(model.config.with_blocks(loss.block_length, is_causal))
    return replace(loss, block_length=model.config.block_size)


def place_rows(batch: Batch, *, mesh: Mesh | None, parts: int, masks_per_query: bool) -> Any:
    """Check a batch, fill it up so that `parts` divides its rows, and put it on the devices."""
    if not masks_per_query:
        require_rows_of_one_sample(batch)
    return spread(mesh, parts, batch) if mesh else fill_rows(batch, parts)


def require_rows_of_one_sample(batch: Batch):
    """Raise ValueError if a row holds several samples, which would attend to each other.

    Padding (-1) is no sample: a row with samples 0 0 -1 passes, one with 0 0 1 fails.
    """
    left = batch.samples[:, :-1]
    right = batch.samples[:, 1:]
    if batch.openness is None and np.any((left != right) & (left >= 0) & (right >= 0)):
        raise ValueError(
            "masks_per_query=False: must be True where a row holds several samples, or they attend "
            "to each other"
        )


def spread(mesh: Mesh, parts: int, batch: Batch) -> Any:
    """Join the rows of all processes into one batch over the mesh, filled up to equal parts."""
    divisor = parts * row_devices(mesh)
    processes = jax.process_count()
    # 1 part, 8 devices that split rows, 2 processes: each process fills its rows up to a multiple
    # of lcm(8, 2) / 2 = 4.
    batch = fill_rows(batch, math.lcm(divisor, processes) // processes)

    def put(rows):
        count = len(rows) * processes
        sharding = NamedSharding(mesh, row_spec(count, mesh))
        return jax.make_array_from_process_local_data(sharding, rows, (count, *rows.shape[1:]))

    return jax.tree.map(put, batch)


def held_out_terms(objective: Loss, dtype: DTypeLike, parts: int) -> Callable:
    """Return a compiled function for the loss of a held-out batch.

    It cuts the batch into parts as training does, so that it needs no more memory.

    Args:
        objective: the loss.
        dtype: compute dtype of the loss.
        parts: number of parts of a batch, computed one after the other.

    Returns:
        A function of params, frozen weights, batch and its number. It returns the total and the
        weight of the loss.
    """

    @jax.jit
    def compute_terms(params, frozen, batch, number):
        key = jax.random.fold_in(jax.random.key(0), number)

        def part(params, rows):
            terms = objective(merge_params(frozen, compute_copy(params, dtype)), rows, key)
            return terms.total, terms.weight

        if parts == 1:
            return part(params, batch)
        # The params are tied to the rows, as in an update. Otherwise, a TPU would make the compute
        # copy before the loop, and keep it.
        terms_of_parts = jax.lax.map(
            lambda rows: part(*tie_operands("tpu", params, rows)), split_rows(batch, parts)
        )
        return jax.tree.map(jnp.sum, terms_of_parts)

    return compute_terms

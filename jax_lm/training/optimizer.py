"""The optimizer of every stage: clipped AdamW or Adafactor on float32 weights, or Muon for the layers' matrices.

Knows parameter trees and their paths, no loss and no loop.
"""

import jax
import optax
import optax.contrib
from jaxtyping import Array

from jax_lm.models.lora import is_lora
from jax_lm.training.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int, peak: float) -> optax.Schedule:
    """Rise from 0 to `peak` in a line, then fall along a cosine to the floor, reached at `steps`."""
    return optax.warmup_cosine_decay_schedule(0.0, peak, config.warmup(steps), steps, config.min_lr_ratio * peak)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clip, then update by AdamW or Adafactor, or by Muon for the matrices of the layers; see `decays`."""
    rate = schedule(config, steps, config.learning_rate)
    betas, decay = (config.adam_beta1, config.adam_beta2), config.weight_decay
    if config.optim == "adafactor":
        # As in T5X and Hugging Face with a learning rate of one's own: updates of RMS 1 at most, not scaled by weights.
        parts = (optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.add_decayed_weights(decay, decays))
        base = optax.chain(*parts, optax.scale_by_learning_rate(rate))
    else:
        base = optax.adamw(rate, *betas, config.adam_epsilon, weight_decay=decay, mask=decays)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, base)
    muon_rate = schedule(config, steps, config.muon_learning_rate)
    muon = optax.contrib.muon(
        muon_rate, weight_decay=decay, weight_decay_mask=decays, muon_weight_dimension_numbers=out_in_matrices
    )
    return optax.chain(clip, optax.multi_transform({"muon": muon, "adamw": base}, muon_or_adamw))


def muon_or_adamw(params: optax.Params) -> optax.Params:
    """Label leaves: Muon for matrices inside decoder layers; embedding and head map no activations to activations."""

    def label(path: tuple, leaf: Array) -> str:
        return "muon" if leaf.ndim == 2 and "layers" in jax.tree_util.keystr(path) else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def out_in_matrices(params: optax.Params) -> optax.Params:
    """Tell optax that matrices are [out, in], as PyTorch's are; it assumes [in, out]."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0), params)


def decays(params: optax.Params) -> optax.Params:
    """Mark the leaves that weight decay acts on: the model's matrices, no biases, norms and adapters.

    The factors of an adapter are no weights: to make both smaller pulls the model back to where it started.
    """

    def marked(path: tuple, leaf: Array) -> bool:
        return leaf.ndim > 1 and not is_lora(str(path[-1].key))

    return jax.tree_util.tree_map_with_path(marked, params)

"""The optimizer of every stage: clipped AdamW or Adafactor, or Muon for the layers' matrices.

Knows parameter trees and their paths, but neither loss nor loop.
"""

import jax
import optax
import optax.contrib
from jaxtyping import Array

from jax_lm.models.lora import is_lora
from jax_lm.training.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int, peak: float) -> optax.Schedule:
    """Make a linear warm-up to `peak`, and a cosine decay that reaches its minimum at `steps`.

    The rate of the first update is not 0: with w warm-up steps it is peak / w, and update w has the
    peak.
    """
    # 100 steps, 10 of warm-up, peak 1e-3, ratio 0.1: 1e-4 at step 0, 1e-3 at 9, 1e-4 at 100
    warmup = max(config.warmup(steps), 1)
    end = config.min_lr_ratio * peak
    return optax.warmup_cosine_decay_schedule(peak / warmup, peak, warmup - 1, steps, end)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Make the optimizer: clipping, then AdamW or Adafactor, or Muon for the layers' matrices."""
    rate = schedule(config, steps, config.learning_rate)
    betas = (config.adam_beta1, config.adam_beta2)
    decay = config.weight_decay
    if config.optim == "adafactor":
        # As in T5X, and in Hugging Face with an explicit learning rate: updates have an RMS of at
        # most 1 and are not scaled by the weights.
        base = optax.chain(
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            optax.add_decayed_weights(decay, decays),
            optax.scale_by_learning_rate(rate),
        )
    else:
        base = optax.adamw(rate, *betas, config.adam_epsilon, weight_decay=decay, mask=decays)
    # The norm is that of all gradients together, before they are split between Muon and AdamW.
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, base)
    muon_rate = schedule(config, steps, config.muon_learning_rate)
    muon = optax.contrib.muon(
        muon_rate,
        weight_decay=decay,
        weight_decay_mask=decays,
        # [out, in], as in PyTorch; optax assumes [in, out]
        muon_weight_dimension_numbers=lambda params: jax.tree.map(
            lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0), params
        ),
    )
    return optax.chain(clip, optax.multi_transform({"muon": muon, "adamw": base}, muon_or_adamw))


def muon_or_adamw(params: optax.Params) -> optax.Params:
    """Label the leaves: muon for matrices inside decoder layers, adamw for everything else.

    Embedding and head get adamw, because they do not map activations to activations.
    """

    def label(path: tuple, leaf: Array):
        return "muon" if leaf.ndim == 2 and "layers" in jax.tree_util.keystr(path) else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def decays(params: optax.Params) -> optax.Params:
    """Mark the leaves that weight decay acts on: matrices, but not biases, norms and adapters.

    The factors of an adapter are not weights: shrinking both pulls the model back to its start.
    """

    def is_decayed(path: tuple, leaf: Array):
        return leaf.ndim > 1 and not is_lora(str(path[-1].key))

    return jax.tree_util.tree_map_with_path(is_decayed, params)

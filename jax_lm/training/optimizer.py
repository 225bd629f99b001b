"""The optimizer of every kind of training: AdamW, Adafactor or Muon, after clipping.

Muon updates the matrices of the layers, and leaves the rest to one of the others. Knows parameter
trees and their paths, but neither the loss nor the training loop.
"""

import jax
import optax
import optax.contrib

from jax_lm.models.lora import is_lora
from jax_lm.training.config import OptimizerConfig


def schedule(config: OptimizerConfig, steps: int, peak: float) -> optax.Schedule:
    """Return a schedule with a linear warm-up to `peak`, then a cosine decay until `steps`.

    With w warm-up steps, the rate of the first update is peak / w, not 0, and that of update w is
    the peak.
    """
    # 100 steps, 10 of warm-up, peak 1e-3, min_lr_ratio 0.1: 1e-4 at step 0, 1e-3 at step 9, and
    # 1e-4 at step 100.
    warmup = max(config.warmup(steps), 1)
    return optax.warmup_cosine_decay_schedule(
        peak / warmup, peak, warmup - 1, steps, config.min_lr_ratio * peak
    )


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Return the optimizer that the config asks for, for a run of `steps` updates."""
    rate = schedule(config, steps, config.learning_rate)
    decay = config.weight_decay
    if config.optim == "adafactor":
        # Updates have an RMS of at most 1 and are not scaled by the weights, as in T5X, and as in
        # Hugging Face with an explicit learning rate.
        optimizer = optax.chain(
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            optax.add_decayed_weights(decay, mask_decayed),
            optax.scale_by_learning_rate(rate),
        )
    else:
        optimizer = optax.adamw(
            rate,
            config.adam_beta1,
            config.adam_beta2,
            config.adam_epsilon,
            weight_decay=decay,
            mask=mask_decayed,
        )
    # The norm is that of all gradients together, before they are split between the two optimizers.
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, optimizer)
    muon = optax.contrib.muon(
        schedule(config, steps, config.muon_learning_rate),
        weight_decay=decay,
        weight_decay_mask=mask_decayed,
        # Kernels are [out, in], as in PyTorch, while optax assumes [in, out].
        muon_weight_dimension_numbers=lambda params: jax.tree.map(
            lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0), params
        ),
    )
    return optax.chain(
        clip, optax.multi_transform({"muon": muon, "adamw": optimizer}, muon_or_adamw)
    )


def muon_or_adamw(params: optax.Params) -> optax.Params:
    """Label each leaf with its optimizer: muon for matrices of decoder layers, adamw for the rest.

    Embedding and head get adamw, because they do not map activations to activations.
    """

    def label(path, leaf):
        return "muon" if leaf.ndim == 2 and "layers" in jax.tree_util.keystr(path) else "adamw"

    return jax.tree_util.tree_map_with_path(label, params)


def mask_decayed(params: optax.Params) -> optax.Params:
    """Mark the leaves that weight decay acts on: matrices, but not biases, norms and adapters.

    Decay would pull a model with an adapter back to its base, as it shrinks the adapter's factors.
    """

    def is_decayed(path, leaf):
        return leaf.ndim > 1 and not is_lora(str(path[-1].key))

    return jax.tree_util.tree_map_with_path(is_decayed, params)

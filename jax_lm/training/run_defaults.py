"""Defaults of training settings that depend on the size of the model and on the devices.

From `LARGE_MODEL` parameters on, updates compute in bfloat16, and the backward pass recomputes the
layers from their inputs (remat). On several devices the mesh takes all of them. Knows settings, but
neither losses nor the loop.
"""

import logging
from dataclasses import replace
from typing import TypeVar

import jax
from jax.sharding import Mesh

from jax_lm.config import DreamConfig, Fields
from jax_lm.sharding import AnyMesh, MeshShape, choose_mesh, row_devices
from jax_lm.training.config import LossConfig, TrainerConfig
from jax_lm.training.grpo_config import GRPOConfig

logger = logging.getLogger(__name__)

# Number of parameters from which a model is large.
LARGE_MODEL = 250_000_000
# The settings of runs that have `remat`.
HasRemat = TypeVar("HasRemat", LossConfig, GRPOConfig)


def training_mesh(config: DreamConfig, text: str | None) -> Mesh | None:
    """Make the requested mesh, or one over all devices of all hosts; None if there is only one."""
    if text is None and jax.device_count() == 1:
        return None
    return choose_mesh(config, text, MeshShape.for_training, jax.device_count()).mesh()


def weight_count(*trees) -> int:
    """Count the numbers in trees of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(trees))


def resolve_trainer(config: TrainerConfig, parameters: int) -> TrainerConfig:
    """Choose the compute dtype for a model of `parameters` numbers, unless it is set."""
    # A small model is cheap in float32, whose updates need no stochastic rounding.
    dtype = "bfloat16" if parameters >= LARGE_MODEL else "float32"
    return replace(config, compute_dtype=config.compute_dtype or dtype)


def resolve_remat(config: HasRemat, parameters: int) -> HasRemat:
    """Choose whether the backward pass recomputes layers, unless it is set."""
    if config.remat is not None:
        return config
    return replace(config, remat=parameters >= LARGE_MODEL)


def resolve_masks(config: LossConfig, is_packed: bool) -> LossConfig:
    """Choose whether each token of a row has its own attention mask, unless it is set.

    In a packed row, a token attends only to its own document.
    """
    if config.masks_per_query is not None:
        return config
    return replace(config, masks_per_query=is_packed)


def resolve_grpo(config: GRPOConfig, parameters: int, mesh: AnyMesh | None) -> GRPOConfig:
    """Choose dtype, remat and `score_chunk`, unless they are set.

    Raises:
        ValueError: `score_chunk` is not divisible by the devices that split rows. Each of them would
            compute all of it.
    """
    rows = row_devices(mesh)
    # One completion per device that splits rows, the least that keeps all of them busy.
    chunk = config.score_chunk or rows
    # It scores a completion on as many canvases as the completion has tokens. One completion fills a
    # device, so a larger chunk, as the recipes of other estimators have it, would only take memory.
    if config.masks.estimator == "left_to_right" and chunk > rows:
        logger.warning(
            "score_chunk %d becomes %d: left_to_right scores %d canvases per completion",
            chunk,
            rows,
            config.generation.max_new_tokens,
        )
        chunk = rows
    if chunk % rows:
        raise ValueError(
            f"score_chunk={chunk}: "
            f"must be a multiple of {rows}, the devices of the mesh that split rows"
        )
    training = resolve_trainer(config.training, parameters)
    return replace(resolve_remat(config, parameters), score_chunk=chunk, training=training)


def log_setup(mesh: AnyMesh | None, **settings) -> Fields:
    """Log the mesh and the settings of a run; returns the mesh, for the record of the run."""
    devices = str(MeshShape.of(mesh))
    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    logger.info("training on %s: %s", devices, text)
    return {"mesh": devices}

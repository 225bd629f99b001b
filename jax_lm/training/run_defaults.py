"""Settings that a run leaves open, chosen by the size of its model and by its devices.

From `LARGE_MODEL` parameters on, updates compute in bfloat16 and keep only the inputs of layers
for the gradient. On several devices the mesh takes all of them. Knows settings, but neither losses
nor the loop.
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
    """Choose the compute dtype for a model of that size, unless it is set."""
    # A small model is cheap in float32, whose updates need no stochastic rounding.
    dtype = "bfloat16" if parameters >= LARGE_MODEL else "float32"
    return replace(config, compute_dtype=config.compute_dtype or dtype)


def resolve_remat(config: HasRemat, parameters: int) -> HasRemat:
    """Choose whether the backward pass recomputes layers, unless it is set."""
    remat = parameters >= LARGE_MODEL if config.remat is None else config.remat
    return replace(config, remat=remat)


def resolve_masks(config: LossConfig, is_packed: bool) -> LossConfig:
    """Choose whether attention differs between the tokens of a row, unless it is set."""
    if config.masks_per_query is not None:
        return config
    return replace(config, masks_per_query=is_packed)


def resolve_grpo(config: GRPOConfig, parameters: int, mesh: AnyMesh | None) -> GRPOConfig:
    """Choose dtype, remat and `score_chunk`: one completion per device that splits rows.

    `left_to_right` scores a completion on as many canvases as it has tokens, which fill a device by
    themselves: its chunk is never larger, whatever the recipe of another estimator says.

    Raises:
        ValueError: these devices cannot split `score_chunk`, so each would compute all of it.
    """
    rows = row_devices(mesh)
    # One completion per device that splits rows, the least that keeps all of them busy.
    chunk = config.score_chunk or rows
    if config.masks.estimator == "left_to_right" and chunk > rows:
        logger.warning(
            "score_chunk %d becomes %d: left_to_right scores %d canvases per completion",
            *(chunk, rows, config.generation.max_new_tokens),
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
    """Log on which mesh and how a run computes; returns the mesh for the run's record."""
    devices = str(MeshShape.of(mesh))
    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    logger.info("training on %s: %s", devices, text)
    return {"mesh": devices}

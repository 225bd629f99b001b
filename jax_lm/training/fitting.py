"""What the settings of a run leave open, chosen by the size of its model and by its devices.

From `LARGE_MODEL` parameters on, updates compute in bfloat16 and keep the inputs of layers alone for the gradient; on
several devices the mesh takes all of them. Knows settings, no loss and no loop.
"""

import logging
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from jax_lm.config import DreamConfig
from jax_lm.sharding import AnyMesh, MeshShape, row_devices
from jax_lm.training.config import LossConfig, TrainerConfig
from jax_lm.training.grpo_config import GRPOConfig

logger = logging.getLogger(__name__)

LARGE_MODEL = 250_000_000


def training_mesh(config: DreamConfig, text: str | None) -> Mesh | None:
    """Make the mesh that was asked for, or one over all devices (of all hosts); None where there is only one."""
    if text is None and jax.device_count() == 1:
        return None
    shape = MeshShape.parse(text) if text else MeshShape.for_training(config, jax.device_count())
    shape.require(config)
    return shape.mesh()


def weight_count(*trees: Any) -> int:
    """Count the numbers in trees of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(trees))


def fitted_trainer(config: TrainerConfig, parameters: int) -> TrainerConfig:
    """Choose the dtype that a model of so many parameters computes in, where the settings do not."""
    chosen = "bfloat16" if parameters >= LARGE_MODEL else "float32"
    return replace(config, compute_dtype=config.compute_dtype or chosen)


def chosen_dtype(config: TrainerConfig) -> str:
    """Tell what updates compute in; ValueError as long as nothing was chosen."""
    if config.compute_dtype is None:
        raise ValueError("compute_dtype=None: must be given, or chosen by the size of a model")
    return config.compute_dtype


def fitted_loss(config: LossConfig, parameters: int) -> LossConfig:
    """Choose whether layers are computed again, where the settings do not."""
    return replace(config, remat=parameters >= LARGE_MODEL if config.remat is None else config.remat)


def fitted_grpo(config: GRPOConfig, parameters: int, mesh: AnyMesh | None) -> GRPOConfig:
    """Choose dtype, remat, and the completions that are scored at once: one for each device that splits rows.

    Raises:
        ValueError: a `score_chunk` that these devices cannot split, so that each of them would compute all of it.
    """
    rows = row_devices(mesh)
    chunk = config.score_chunk or rows
    if chunk % rows:
        raise ValueError(f"score_chunk={chunk}: must be a multiple of {rows}, the devices of the mesh that split rows")
    remat = parameters >= LARGE_MODEL if config.remat is None else config.remat
    return replace(config, score_chunk=chunk, remat=remat, training=fitted_trainer(config.training, parameters))


def announced(mesh: AnyMesh | None, **chosen: Any) -> dict[str, Any]:
    """Log on which mesh and how a run computes; returns the mesh for the record of the run."""
    where = str(MeshShape.of(mesh)) if mesh else "one device"
    logger.info("training on %s: %s", where, ", ".join(f"{name} {value}" for name, value in chosen.items()))
    return {"mesh": where}

"""Where the weights lie that a rollout samples with: a copy in the compute dtype, placed once per rollout.

Training stores weights in parts and gathers each layer where it is used, once for thousands of tokens. A denoising loop
would gather all of them again at every step.
"""

import logging
import math
from typing import Any

import jax
from jax.sharding import Mesh

from jax_lm.config import DreamConfig
from jax_lm.diffusion.sampler import Sampler
from jax_lm.planning.rollouts import HELD_PER_WEIGHT, rollout_shape
from jax_lm.sharding import MeshShape, remeshed, tree_shardings
from jax_lm.training.update import Params

logger = logging.getLogger(__name__)


class RolloutWeights:
    """Gives samplers of a model the weights of each rollout, on a mesh of their own.

    Args:
        sampler: of the model, with weights, which are not kept.
        asked: mesh for sampling, such as tensor=4; None splits the weights as little as memory allows.
        trained: the weights that have masters and moments.
        policy: shapes and dtypes of all weights as rollouts see them.

    Attributes:
        mesh: on which rollouts sample; None is one device.

    Raises:
        ValueError: a mesh that takes other devices than the training's, or does not split the model evenly.
    """

    def __init__(self, sampler: Sampler, asked: str | None, *, trained: Params, policy: Params) -> None:
        self.config, self.mesh = sampler.config, sampler.mesh
        if sampler.mesh is not None:
            training = MeshShape.of(sampler.mesh)
            shape = training_sized(asked, training) if asked else chosen(self.config, sampler.mesh, trained, policy)
            shape.require(self.config)
            if shape != training:
                self.mesh = remeshed(sampler.mesh, shape)
                sampler = sampler.on_mesh(self.mesh)
        elif asked is not None:
            training_sized(asked, MeshShape())
        self.sampler = sampler.with_params({})

    def with_weights(self, params: Params) -> Sampler:
        """Copy weights to where rollouts sample; they take memory for as long as this sampler is held."""
        if self.mesh is not None:
            params = jax.device_put(params, tree_shardings(params, self.config, self.mesh))
        return self.sampler.with_params(params)


def training_sized(asked: str, training: MeshShape) -> MeshShape:
    """Read a mesh over the devices of the training; ValueError if it takes others."""
    shape = MeshShape.parse(asked)
    if shape.size != training.size:
        raise ValueError(f"rollout_mesh={asked!r}: takes {shape.size} devices, training takes {training.size}")
    return shape


def chosen(config: DreamConfig, mesh: Mesh, trained: Params, policy: Params) -> MeshShape:
    """Choose a mesh for sampling by what memory there is beside the training, and say which."""
    training = MeshShape.of(mesh)
    held = split_bytes(trained, config, mesh, HELD_PER_WEIGHT) + split_bytes(policy, config, mesh)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")

    def copy_bytes(shape: MeshShape) -> int:
        return split_bytes(policy, config, remeshed(mesh, shape))

    shape = rollout_shape(config, training, copy_bytes, None if limit is None else limit - held)
    if shape is None:
        logger.warning("rollouts sample on %s: no copy of the weights fits beside the training", training)
        return training
    logger.info("rollouts sample on %s", shape)
    return shape


def split_bytes(tree: Any, config: DreamConfig, mesh: Mesh, item: int | None = None) -> int:
    """Count the bytes that arrays, or shapes, take on each device of a mesh; `item` of them a number, if given."""

    def here(leaf: Any, sharding: Any) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * (item or leaf.dtype.itemsize)

    return sum(jax.tree.leaves(jax.tree.map(here, tree, tree_shardings(tree, config, mesh))))

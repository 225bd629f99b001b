"""The mesh that rollouts sample on.

Training stores weights in parts and gathers each layer where it is used, once for thousands of
tokens. A denoising loop would gather all of them again at every step, so rollouts sample with a
copy of the weights in the compute dtype, which is split as little as memory allows and placed
once per rollout.
"""

import logging
import math

import jax
from jax.sharding import Mesh

from jax_lm.config import DreamConfig
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.memory import device_memory
from jax_lm.planning.rollouts import HELD_PER_WEIGHT, rollout_shape
from jax_lm.sharding import MeshShape, tree_shardings
from jax_lm.training.update import Params

logger = logging.getLogger(__name__)


def place_sampler(
    sampler: Sampler, requested: str | None, *, trained: Params, policy: Params
) -> tuple[Sampler, Params | None]:
    """Return the sampler on the mesh that rollouts use, and the shardings of its weights there.

    Args:
        sampler: sampler of the policy, on the mesh of the training.
        requested: mesh for sampling, such as tensor=4; None chooses one.
        trained: the weights that have masters and moments.
        policy: shapes and dtypes of all weights as rollouts use them.

    Raises:
        ValueError: the mesh takes other devices than training, or does not split the model evenly.
    """
    # check the request
    config = sampler.config
    mesh = sampler.mesh
    training = MeshShape.of(mesh)
    shape = MeshShape.parse(requested) if requested else None
    if shape and shape.size != training.size:
        raise ValueError(
            f"rollout_mesh={requested!r}: "
            f"takes {shape.size} devices, training takes {training.size}"
        )
    if mesh is None:
        return sampler, None
    # choose a mesh, and move the sampler there
    shape = shape or choose_shape(config, mesh, trained, policy)
    shape.require(config)
    if shape != training:
        mesh = shape.arrange(mesh.devices)
        sampler = sampler.on_mesh(mesh)
    return sampler, tree_shardings(policy, config, mesh)


def choose_shape(config: DreamConfig, mesh: Mesh, trained: Params, policy: Params) -> MeshShape:
    """Choose a mesh for sampling by the memory that training leaves free, and log it."""
    training = MeshShape.of(mesh)
    # memory that training holds: masters and moments of trained weights, and the compute copy
    held = bytes_on_device(trained, config, mesh, HELD_PER_WEIGHT)
    held += bytes_on_device(policy, config, mesh)
    # Unknown on a CPU, whose devices share the memory of the host.
    limit = device_memory().get("bytes_limit")

    def copy_bytes(shape):
        return bytes_on_device(policy, config, shape.arrange(mesh.devices))

    shape = rollout_shape(config, training, copy_bytes, None if limit is None else limit - held)
    if shape is None:
        logger.warning(
            "rollouts sample on %s: no copy of the weights fits beside the training", training
        )
        return training
    logger.info("rollouts sample on %s", shape)
    return shape


def bytes_on_device(tree, config: DreamConfig, mesh: Mesh, itemsize: int | None = None) -> int:
    """Count the bytes that arrays, or shapes, take on each device of a mesh.

    Args:
        itemsize: bytes per number; None is that of each array's dtype.
    """

    def count(leaf, sharding):
        # [8, 6] split in 4 along the first axis, float32: 2 * 6 * 4 bytes
        return math.prod(sharding.shard_shape(leaf.shape)) * (itemsize or leaf.dtype.itemsize)

    return sum(jax.tree.leaves(jax.tree.map(count, tree, tree_shardings(tree, config, mesh))))

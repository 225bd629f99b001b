"""The Orbax layout: config.json and one Orbax checkpoint of a flat dict, tensor name to array.

Orbax lets each device write and read its own slices, commits a checkpoint atomically, and restores
it onto any mesh.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array
from orbax.checkpoint import v1 as ocp

from jax_lm.checkpoints.stored import (
    CheckpointError,
    StoredTensor,
    StoredTensors,
    TensorRequest,
    first_line,
)
from jax_lm.host import terminal

terminal.silence_orbax()


def save(path: Path, tensors: Mapping[str, Array | np.ndarray]):
    """Write a checkpoint atomically; each process writes the slices of its devices.

    Raises:
        ValueError: the path exists.
    """
    ocp.save(str(path.absolute()), dict(tensors))


def list_tensors(path: Path) -> StoredTensors:
    """Return the tensors of a checkpoint by name.

    Raises:
        CheckpointError: the checkpoint is damaged, incomplete, or not a flat dict of arrays.
    """
    try:
        entries = ocp.metadata(str(path.absolute())).metadata
    except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
        raise CheckpointError(
            f"{path} is damaged or not a finished Orbax checkpoint: {summary(error)}"
        ) from error
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{path} holds no named tensors")
    # From the metadata alone; no array is read.
    tensors = {}
    for name, entry in entries.items():
        if not isinstance(name, str) or not hasattr(entry, "shape") or entry.dtype is None:
            raise CheckpointError(f"{path} holds {name!r}, which is not a tensor")
        tensors[name] = StoredTensor(path, name, tuple(entry.shape), np.dtype(entry.dtype))
    return tensors


def read_arrays(requests: Sequence[TensorRequest]) -> list[Array]:
    """Read tensors; each device reads its own slices."""
    # Shape, dtype and sharding: Orbax casts and places while it reads.
    wanted = {
        request.tensor.name: jax.ShapeDtypeStruct(
            request.tensor.shape, request.dtype, sharding=request.sharding
        )
        for request in requests
    }
    path = requests[0].tensor.path
    # By default, Orbax refuses to restore a subset of the checkpoint.
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        with context:
            arrays = ocp.load(str(path.absolute()), wanted)
    except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
        raise CheckpointError(f"{path} cannot be read: {summary(error)}") from error
    return [arrays[name] for name in wanted]


def summary(error: Exception) -> str:
    """Return the type of an error and the beginning of its message."""
    return f"{type(error).__name__}: {first_line(error)[:300]}"

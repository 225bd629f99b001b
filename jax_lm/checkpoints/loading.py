"""Tensors from a checkpoint folder into their final dtype, precision and sharding, a few at a time.

A device reads only the slices that it will hold. With int8, a kernel is quantised as soon as it is there, so that
neither host nor devices ever hold the unquantised model. Knows formats and names, but no model.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from jax.typing import DTypeLike
from jaxtyping import Array

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.stored import (
    CheckpointError,
    StoredTensor,
    TensorRequest,
    group_by_size,
    is_kernel,
    quantize,
    read_views,
    scale_name,
)

Progress = Callable[[int, int], None]
"""Called with the bytes read so far, and the bytes in all."""
ORBAX_FOLDER = "weights.orbax"
PICKLE = "params.pkl"
GROUP_BYTES = 2**28
"""Tensors are read in groups of at most so many bytes (or one): Orbax opens the checkpoint once per group."""


@dataclass(frozen=True)
class CheckpointTensors:
    """The tensors of a checkpoint in any format, and how they are read."""

    folder: Path
    stored: Mapping[str, StoredTensor]
    read: Callable[[Sequence[TensorRequest]], list[Array]] = read_views


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """The tensors that a model wants of a checkpoint, and what they should become.

    Attributes:
        shapes: names and shapes that the checkpoint must hold, no more and no less.
        ignored: tensors that may be there but are not read.
        dtype: of the floating-point tensors; None keeps what is stored.
        quantize: turn floating-point kernels into int8 and scales.
        shardings: by name, scales included; others go to the first device.
    """

    shapes: Mapping[str, tuple[int, ...]]
    ignored: Collection[str] = ()
    dtype: DTypeLike | None = None
    quantize: bool = False
    shardings: Mapping[str, Sharding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype is not None and not jnp.issubdtype(jnp.dtype(self.dtype), jnp.floating):
            raise CheckpointError(f"dtype={self.dtype!r}: must be a float dtype, or None for that of the checkpoint")

    def sharding(self, name: str) -> Sharding:
        return self.shardings.get(name) or SingleDeviceSharding(jax.local_devices()[0])

    def holds_int8(self, name: str) -> bool:
        """Tell whether the checkpoint should hold this tensor quantised."""
        return is_kernel(name) and scale_name(name) in self.shapes

    def becomes_int8(self, name: str) -> bool:
        """Tell whether this tensor is quantised on the way."""
        return self.quantize and is_kernel(name) and not self.holds_int8(name)

    def request(self, name: str, tensor: StoredTensor) -> TensorRequest:
        """Say how to read a tensor; CheckpointError if its shape or dtype is not what the config asks for."""
        asked = tuple(self.shapes[name])
        if tensor.shape != asked:
            raise CheckpointError(f"{name!r} in {tensor.path} has shape {tensor.shape}, the config asks for {asked}")
        is_scale = name.endswith(".scale")
        if self.holds_int8(name):
            expected, fits = "int8", tensor.dtype == np.int8
        elif is_scale:
            expected, fits = "float32", tensor.dtype == np.float32
        else:
            expected, fits = "a float dtype", jnp.issubdtype(tensor.dtype, jnp.floating)
        if not fits:
            raise CheckpointError(f"{name!r} in {tensor.path} has dtype {tensor.dtype}, expected {expected}")
        keeps = self.dtype is None or is_scale or self.holds_int8(name) or self.becomes_int8(name)
        return TensorRequest(tensor, tensor.dtype if keeps else jnp.dtype(self.dtype), self.sharding(name))

    def requests(self, checkpoint: CheckpointTensors) -> dict[str, TensorRequest]:
        """Say how to read each tensor; CheckpointError if one is missing, unknown, misshapen, or of a wrong dtype."""
        stored = checkpoint.stored
        missing = sorted(self.shapes.keys() - stored.keys())
        unknown = sorted(stored.keys() - self.shapes.keys() - set(self.ignored))
        for kind, names in (("lacks", missing), ("holds the unknown", unknown)):
            if names:
                others = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise CheckpointError(f"{checkpoint.folder} {kind} tensor {names[0]!r}{others}")
        return {name: self.request(name, tensor) for name, tensor in stored.items() if name in self.shapes}


def open_checkpoint(folder: Path) -> CheckpointTensors:
    """Find the tensors of a folder in the Hugging Face or Orbax layout; CheckpointError if it is damaged or neither."""
    if (folder / ORBAX_FOLDER).is_dir():
        from jax_lm.checkpoints import orbax  # takes half a second, and few need it

        return CheckpointTensors(folder, orbax.list_tensors(folder / ORBAX_FOLDER), orbax.read_arrays)
    weights = (huggingface.WEIGHTS, huggingface.INDEX)
    # Only `conversion` reads a pickle.
    if (folder / PICKLE).is_file() and not any((folder / name).is_file() for name in weights):
        raise CheckpointError(f"{folder / PICKLE} is a pickle of an old port: `diffucoder convert` reads it, with care")
    return CheckpointTensors(folder, huggingface.list_tensors(folder))


def load_tensors(
    checkpoint: CheckpointTensors, wanted: LoadSpec, *, on_progress: Progress | None = None
) -> dict[str, Array]:
    """Read exactly the tensors that are wanted; CheckpointError as `LoadSpec.requests`, or at a damaged file."""
    requests = wanted.requests(checkpoint)
    sizes = {name: request.tensor.nbytes for name, request in requests.items()}
    read = 0
    tensors: dict[str, Array] = {}
    for names in group_by_size(sizes, GROUP_BYTES):
        arrays = checkpoint.read([requests[name] for name in names])
        for name in names:
            # Off the list first: what is quantised must not stay.
            tensors |= convert_tensor(name, arrays.pop(0), wanted)
            read += sizes[name]
            if on_progress:
                on_progress(read, sum(sizes.values()))
    return tensors


def convert_tensor(name: str, tensor: Array, wanted: LoadSpec) -> dict[str, Array]:
    """Turn a tensor into what the model wants: itself, or int8 and scales."""
    if not wanted.becomes_int8(name):
        return {name: tensor}
    weight, scale = jit_quantize(wanted.sharding(name), wanted.sharding(scale_name(name)))(tensor)
    # Else the next tensors would be read while this one still waits to be quantised.
    jax.block_until_ready(weight)
    return {name: weight, scale_name(name): scale}


@functools.cache
def jit_quantize(*shardings: Sharding) -> Callable:
    return jax.jit(quantize, out_shardings=shardings)

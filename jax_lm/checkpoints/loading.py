"""Loading tensors from a checkpoint folder into their final dtype, precision and sharding.

Tensors are read in small groups, and a device reads only its own slices. When quantizing, a
kernel is quantized as soon as it has been read, so neither host nor devices ever hold the unquantized model.
Knows formats and names, but not the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from jax.typing import DTypeLike
from jaxtyping import Array

from jax_lm.checkpoints import huggingface
from jax_lm.checkpoints.stored import (
    GGUF_LINK,
    Arrays,
    CheckpointError,
    StoredTensor,
    StoredTensors,
    TensorRequest,
    group_by_size,
    precision_of,
    quantize,
    read_views,
)
from jax_lm.config import Ints, Names, translate

# Called with the bytes read so far and the total number of bytes.
Progress = Callable[[int, int], None]
ORBAX_FOLDER = "weights.orbax"
PICKLE = "params.pkl"
# Largest size of a group of tensors that is read at once, 256 MiB; a larger tensor is a group of
# its own. Orbax opens the checkpoint once per group.
GROUP_BYTES = 2**28


@dataclass(frozen=True)
class CheckpointTensors:
    """The tensors of a checkpoint, and the function that reads them.

    Attributes:
        folder: folder of the checkpoint.
        stored: the tensors by our names.
        read: reads some of them.
        format: `huggingface`, `orbax`, `gguf` or `pickle`.
    """

    folder: Path
    stored: StoredTensors
    read: Callable[[Sequence[TensorRequest]], list[Array]] = read_views
    format: str = "huggingface"

    def fetch(self, tensor: StoredTensor) -> np.ndarray:
        """Return the values of one tensor, mapped into memory if its format allows it."""
        if tensor.view is not None:
            return tensor.view()
        # Orbax reads onto a device.
        sharding = SingleDeviceSharding(jax.local_devices()[0])
        return np.asarray(self.read([TensorRequest(tensor, tensor.dtype, sharding)])[0])


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """The tensors that a model loads from a checkpoint, with their dtypes and shardings.

    Attributes:
        shapes: names and shapes of exactly the tensors that the checkpoint must hold.
        tied: tensors that the checkpoint may also hold, with the tensor that each must equal; they
            are not loaded.
        dtype: dtype of the floating-point tensors; None keeps the stored dtype.
        quantization: quantize floating-point kernels to int8, int4 or fp8, with scales.
        shardings: shardings by name, including those of scales; other tensors go to the first
            device.
        allow_nonfinite: accept tensors that hold NaN or infinity.
    """

    shapes: Mapping[str, Ints]
    tied: Names = field(default_factory=dict)
    dtype: DTypeLike | None = None
    quantization: str | None = None
    shardings: Mapping[str, Sharding] = field(default_factory=dict)
    allow_nonfinite: bool = False

    def __post_init__(self):
        if self.dtype is not None and not jnp.issubdtype(jnp.dtype(self.dtype), jnp.floating):
            raise CheckpointError(
                f"dtype={self.dtype!r}: must be a float dtype, or None to keep the checkpoint's"
            )

    def sharding(self, name: str) -> Sharding:
        return self.shardings.get(name) or SingleDeviceSharding(jax.local_devices()[0])

    def holds_int8(self, name: str) -> bool:
        """Whether the checkpoint must hold this tensor as int8: it does if there is a scale."""
        return f"{name.removesuffix('weight')}scale" in self.shapes

    def becomes(self, name: str) -> str | None:
        """Return the precision to which this tensor is quantized during loading, if it is."""
        return None if self.holds_int8(name) else precision_of(name, self.quantization)

    def request(self, name: str, tensor: StoredTensor) -> TensorRequest:
        """Return the read request for a tensor.

        Raises:
            CheckpointError: its shape or dtype does not match the configuration.
        """
        shape = tuple(self.shapes[name])
        if tensor.shape != shape:
            raise CheckpointError(
                f"{name!r} in {tensor.path} has shape {tensor.shape}, the config asks for {shape}"
            )
        # int8 kernels and scales have a fixed dtype, all others any float dtype.
        fixed = "int8" if self.holds_int8(name) else "float32" if name.endswith(".scale") else None
        if not (tensor.dtype == fixed if fixed else jnp.issubdtype(tensor.dtype, jnp.floating)):
            raise CheckpointError(
                f"{name!r} in {tensor.path} has dtype {tensor.dtype}, "
                f"expected {fixed or 'a float dtype'}"
            )
        # A kernel is quantized from its stored dtype.
        keeps = self.dtype is None or fixed or self.becomes(name)
        dtype = tensor.dtype if keeps else jnp.dtype(self.dtype)
        return TensorRequest(tensor, dtype, self.sharding(name))

    def requests(self, checkpoint: CheckpointTensors) -> dict[str, TensorRequest]:
        """Return the read request of each tensor.

        Raises:
            CheckpointError: a tensor is missing, unknown, or of the wrong shape or dtype.
        """
        # Names first: a wrong set of names explains more than the first wrong shape.
        stored = checkpoint.stored
        missing = sorted(self.shapes.keys() - stored.keys())
        unknown = sorted(stored.keys() - self.shapes.keys() - self.tied.keys())
        for kind, names in (("lacks", missing), ("holds the unknown", unknown)):
            if names:
                others = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise CheckpointError(f"{checkpoint.folder} {kind} tensor {names[0]!r}{others}")
        return {
            name: self.request(name, tensor)
            for name, tensor in stored.items()
            if name in self.shapes
        }


def open_checkpoint(folder: Path, names: Mapping[str, str] = {}) -> CheckpointTensors:
    """Open a folder in the Hugging Face or Orbax layout.

    Args:
        folder: the folder.
        names: names of tensors that differ from ours.

    Raises:
        CheckpointError: the folder has neither layout, or is damaged.
    """
    if (folder / ORBAX_FOLDER).is_dir():
        from jax_lm.checkpoints import orbax  # imports in 0.5 s, and is rarely needed

        stored = orbax.list_tensors(folder / ORBAX_FOLDER)
        return CheckpointTensors(folder, rename(stored, names), orbax.read_arrays, "orbax")
    weights = (huggingface.WEIGHTS, huggingface.INDEX)
    has_weights = any((folder / name).is_file() for name in weights)
    # Only `jax_lm.conversion` reads pickles.
    if (folder / PICKLE).is_file() and not has_weights:
        raise CheckpointError(
            f"{folder / PICKLE} is a pickle of an old port: convert it with `diffucoder convert`, "
            "which executes none of it"
        )
    if (folder / GGUF_LINK).exists() and not has_weights:
        return CheckpointTensors(
            folder, huggingface.require_gguf().list_tensors(folder), format="gguf"
        )
    return CheckpointTensors(folder, rename(huggingface.list_tensors(folder), names))


def rename(stored: StoredTensors, names: Names) -> StoredTensors:
    """Return stored tensors under our names."""
    return {translate(name, names): tensor for name, tensor in stored.items()}


def load_tensors(
    checkpoint: CheckpointTensors, spec: LoadSpec, *, on_progress: Progress | None = None
) -> Arrays:
    """Read the tensors of a specification.

    Args:
        checkpoint: an open checkpoint.
        spec: the tensors to load, with their dtypes and shardings.
        on_progress: called with the bytes read so far and the total number of bytes.

    Returns:
        The tensors by name; a quantized kernel has its scales as a further entry.

    Raises:
        CheckpointError: a tensor is missing, unknown, damaged, of the wrong shape or dtype, holds
            NaN or infinity, or differs from the one that it should equal.
    """
    tensors = {}
    for name, tensor in check_tensors(checkpoint, spec, on_progress=on_progress):
        tensors |= convert_tensor(name, tensor, spec)
    return tensors


def check_tensors(
    checkpoint: CheckpointTensors, spec: LoadSpec, *, on_progress: Progress | None = None
) -> Iterator[tuple[str, Array]]:
    """Read the tensors of a specification in small groups, and yield them with their names.

    Raises CheckpointError as `load_tensors` does.
    """
    requests = spec.requests(checkpoint)
    require_ties(checkpoint, spec)
    sizes = {name: request.tensor.nbytes for name, request in requests.items()}
    read = 0
    for names in group_by_size(sizes, GROUP_BYTES):
        arrays = checkpoint.read([requests[name] for name in names])
        for name in names:
            if not spec.allow_nonfinite:
                require_finite(name, requests[name].tensor.path, arrays[0])
            # `pop` drops the last reference, so the memory of a quantized kernel is freed.
            yield name, arrays.pop(0)
            read += sizes[name]
            if on_progress:
                on_progress(read, sum(sizes.values()))


def require_finite(name: str, path: Path, array: Array):
    """Raise CheckpointError if a tensor holds NaN or infinity."""
    # Fetched at once: a CPU has a thread per core, and as many sums over split tensors in parallel
    # would wait for each other for ever.
    if jnp.issubdtype(array.dtype, jnp.floating) and (count := int(count_nonfinite(array))):
        raise CheckpointError(
            f"{name!r} in {path} holds {count} numbers that are NaN or infinite in {array.dtype}: "
            "every output would be wrong. `generate` and `convert` load it with --allow-nonfinite"
        )


@jax.jit
def count_nonfinite(tensor: Array) -> Array:
    return jnp.sum(~jnp.isfinite(tensor))


def require_ties(checkpoint: CheckpointTensors, spec: LoadSpec):
    """Raise CheckpointError if a tensor differs from the one that it is tied to."""
    stored = checkpoint.stored
    for name, twin in spec.tied.items():
        if name not in stored or twin not in stored:
            continue
        own, other = checkpoint.fetch(stored[name]), checkpoint.fetch(stored[twin])
        if own.dtype != other.dtype or not np.array_equal(own, other, equal_nan=True):
            raise CheckpointError(
                f"config.json ties {name!r} to {twin!r}, but {stored[name].path} holds another: "
                "set tie_word_embeddings to false to use it, or remove it"
            )


def convert_tensor(name: str, tensor: Array, spec: LoadSpec) -> Arrays:
    """Return the entries of a tensor in the model: itself, or its integers and scales."""
    precision = spec.becomes(name)
    if precision is None:
        return {name: tensor}
    layer = name.removesuffix("weight")
    kinds = ("weight", "scale", "group_scale")[: 3 if precision == "int4" else 2]
    shardings = tuple((kind, spec.sharding(f"{layer}{kind}")) for kind in kinds)
    parts = jit_quantize(precision, shardings)(tensor)
    # Without waiting, the next tensors would be read while this one is still unquantized in memory.
    jax.block_until_ready(parts)
    return {f"{layer}{kind}": part for kind, part in parts.items()}


@cache
def jit_quantize(precision: str, shardings: tuple[tuple[str, Sharding], ...]) -> Callable:
    return jax.jit(partial(quantize, precision=precision), out_shardings=dict(shardings))

"""What the checkpoint formats share: stored tensors, read requests, and int8 kernels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array, Float, Int8
from safetensors.numpy import save_file

# The link to a GGUF file, in a folder that presents it.
GGUF_LINK = "model.gguf"


class CheckpointError(ValueError):
    """Raised when a checkpoint cannot be loaded; the message names the file or tensor."""


def save_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Write contiguous arrays as a safetensors file."""
    # From version 0.8 on, safetensors creates files that only the owner can read. Creating the file
    # first gives it the permissions of the user's umask.
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=metadata)
    path.chmod(mode)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint that has not been read yet.

    Attributes:
        path: its file, or the folder of its checkpoint.
        name: its name.
        shape: its shape.
        dtype: dtype of its values.
        view: returns its values, mapped into host memory where the format allows it; None if only
            the reader of the whole checkpoint can read it.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    view: Callable[[], np.ndarray] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class TensorRequest:
    """A stored tensor, and the dtype and sharding to read it into."""

    tensor: StoredTensor
    dtype: np.dtype
    sharding: Sharding


def read_views(requests: Sequence[TensorRequest]) -> list[Array]:
    """Read tensors through their views; each device reads its own slices.

    Host memory holds the result, but no second copy.
    """

    def read_one(request: TensorRequest) -> Array:
        assert request.tensor.view is not None
        view = request.tensor.view()
        # np.array copies: the result must not depend on the file, which may be replaced.
        return jax.make_array_from_callback(
            request.tensor.shape,
            request.sharding,
            lambda index: np.array(view[index], request.dtype, order="C"),
        )

    return [read_one(request) for request in requests]


def group_by_size(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Split names, in order, into groups of at most `limit` bytes, or of one larger name."""
    # limit = 10: {"a": 4, "b": 5, "c": 3, "d": 12} -> [["a", "b"], ["c"], ["d"]]
    groups = []
    total = limit
    for name, size in sizes.items():
        if not groups or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# The `quantization_config` in the config.json of a checkpoint with int8 weights.
QUANTIZATION = {"quant_method": "diffucoder_int8"}

# Largest absolute value of an int8 weight; -128 is not used, so that the range is symmetric.
LIMIT = 127
# Layers whose weights are quantized. Embeddings, norms and biases stay floating-point.
KERNELS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def is_kernel(name: str) -> bool:
    """Whether the parameter of this name is a matrix that int8 quantization applies to."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and layer.rpartition(".")[2] in KERNELS


def scale_name(kernel: str) -> str:
    """Return the name of the scales of a kernel."""
    return f"{kernel.removesuffix('weight')}scale"


def quantize(weight: Float[Array, "o i"]) -> tuple[Int8[Array, "o i"], Float[Array, "o"]]:
    """Quantize a kernel to int8, with one scale per row that maps its largest value to 127.

    Returns:
        The int8 weights, and the scales in float32.
    """
    weight = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(weight), axis=1) / LIMIT
    # Any scale is right for a row of zeros, except 0, which would make it 0 / 0.
    scale = jnp.where(scale == 0, 1, scale)
    return jnp.round(weight / scale[:, None]).astype(jnp.int8), scale

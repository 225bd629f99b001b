"""The parts that checkpoint formats share: a tensor that is stored somewhere, a request to read it, the file that holds
many, and the error."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array, Float, Int8
from safetensors.numpy import save_file


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded as it is; the message names the file or tensor and the reason."""


def save_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write contiguous arrays as a safetensors file."""
    # The library makes files that nobody else can read (from 0.8 on); the umask decides, as with any other file.
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=dict(metadata) if metadata else None)
    path.chmod(mode)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint, not yet read."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ViewedTensor(StoredTensor, ABC):
    """A tensor that its format can map into host memory."""

    @abstractmethod
    def view(self) -> np.ndarray: ...


@dataclass(frozen=True)
class TensorRequest:
    """A stored tensor, and the dtype and sharding that it is read into."""

    tensor: StoredTensor
    dtype: np.dtype
    sharding: Sharding


def read_views(requests: Sequence[TensorRequest]) -> list[Array]:
    """Read tensors that have a view, each device its slices of them; host memory holds the result and no more."""

    def read_one(request: TensorRequest) -> Array:
        assert isinstance(request.tensor, ViewedTensor)
        view = request.tensor.view()
        # A copy: the array must not hang on the file, which may be replaced.
        return jax.make_array_from_callback(
            request.tensor.shape, request.sharding, lambda index: np.array(view[index], request.dtype, order="C")
        )

    return [read_one(request) for request in requests]


def group_by_size(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Group names in their order, so that a group has no more bytes than the limit, or one name."""
    groups: list[list[str]] = []
    total = limit
    for name, size in sizes.items():
        if not groups or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def first_line(error: Exception) -> str:
    """Take the first line of what an error says; its class if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


QUANTIZATION = {"quant_method": "diffucoder_int8"}
"""The `quantization_config` in the config.json of a checkpoint that holds int8 weights."""

LIMIT = 127
KERNELS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def is_kernel(name: str) -> bool:
    """Tell whether the parameter of this name is a matrix that int8 applies to."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and layer.rpartition(".")[2] in KERNELS


def scale_name(kernel: str) -> str:
    """Name the scales of a kernel."""
    return f"{kernel.removesuffix('weight')}scale"


def quantize(weight: Float[Array, "o i"]) -> tuple[Int8[Array, "o i"], Float[Array, "o"]]:
    """Round weight / scale to int8, with the scale that lets the largest of each row be 127."""
    weight = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(weight), axis=1) / LIMIT
    # A row of zeros has any scale; 0 would make it 0 / 0.
    scale = jnp.where(scale == 0, 1, scale)
    return jnp.round(weight / scale[:, None]).astype(jnp.int8), scale


def widen(x: Float[Array, "*b i"], weight: Int8[Array, "o i"]) -> tuple[Array, Array]:
    """Widen the kernel of a product to the dtype of `x`; returns both operands.

    The barrier ties the conversion to its use: else XLA may convert the kernels of all layers ahead of time, and hold
    the copy that int8 is there to save.
    """
    x, weight = jax.lax.optimization_barrier((x, weight))
    return x, weight.astype(x.dtype)

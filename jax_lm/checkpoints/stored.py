"""What the checkpoint formats share: stored tensors, read requests, and quantized kernels."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array, Float, Int8, UInt8
from safetensors.numpy import save_file

from jax_lm.config import Ints, Names

# Arrays by name, on devices and on the host.
Arrays = dict[str, Array]
HostArrays = Mapping[str, np.ndarray]
# A matrix [out, in].
Kernel = Float[Array, "o i"]
Int8Kernel = Int8[Array, "o i"]
# The link to the GGUF file in a folder that `gguf_file.as_folder` made.
GGUF_LINK = "model.gguf"


class CheckpointError(ValueError):
    """Raised when a checkpoint cannot be loaded; the message names the file or tensor."""


def save_tensors(path: Path, tensors: HostArrays, metadata: Names):
    """Write contiguous arrays as a safetensors file."""
    # From version 0.8 on, safetensors creates files that only the owner can read. Creating the file
    # first gives it the permissions of the user's umask.
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=dict(metadata))
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
    shape: Ints
    dtype: np.dtype
    view: Callable[[], np.ndarray] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


# By name.
StoredTensors = dict[str, StoredTensor]


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

    def read_one(request):
        assert request.tensor.view
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

# Precisions of quantized models.
QUANTIZED = ("int8", "int4", "fp8")
# Largest absolute value of an int8 weight; -128 is not used, so that the range is symmetric.
LIMIT = 127
# Neighbouring inputs of an output that share a group scale in int4.
GROUP = 32
# Largest group scale: -8 * 15 = -120 is an int8.
GROUP_LIMIT = 15
# Floats of 4 significant bits, and the largest of them.
FP8 = jnp.float8_e4m3fn
FP8_LIMIT = 448.0
# Layers whose weights are quantized. Embeddings, norms and biases stay floating-point.
KERNELS = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head".split()  # noqa: SIM905
# Tables that a model of another precision has in int8, whose error is smaller.
INT8_TABLES = {"int4": ("embed_tokens", "lm_head"), "fp8": ("lm_head",)}


def is_kernel(name: str, layers: Collection[str] = KERNELS) -> bool:
    """Whether the parameter of this name is the matrix of a layer that quantization applies to."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and layer.rpartition(".")[2] in layers


def precision_of(name: str, quantization: str | None) -> str | None:
    """Return how a parameter is quantized in a model that is quantized so; None if it is not."""
    if is_kernel(name, INT8_TABLES.get(quantization or "", ())):
        return "int8"
    return quantization if is_kernel(name) else None


def quantize(weight: Kernel, precision: str = "int8") -> Arrays:
    """Quantize a kernel, with one float scale per row.

    int8 and fp8: the scale maps the largest value of a row to 127 or 448. int4: each group of
    `GROUP` inputs has a small integer as a further scale, so weight and group scale multiply to an
    int8 kernel.

    Returns:
        The numbers as `weight` (int4: two to a byte), float32 scales as `scale`, and for int4 the
        `group_scale` [o, i / GROUP].

    Raises:
        ValueError: two groups of inputs do not divide a row of an int4 kernel.
    """
    if precision == "int4" and weight.shape[1] % (2 * GROUP):
        raise ValueError(
            f"dtype='int4': a kernel has {weight.shape[1]} inputs, which must be a multiple of "
            f"{2 * GROUP}; int8 takes any number"
        )
    weight = weight.astype(jnp.float32)
    largest = jnp.max(jnp.abs(weight), axis=1)
    scale = largest / {"int8": LIMIT, "int4": 8 * GROUP_LIMIT, "fp8": FP8_LIMIT}[precision]
    # Any scale is right for a row of zeros, except 0, which would make it 0 / 0.
    scale = jnp.where(scale == 0, 1, scale)
    steps = weight / scale[:, None]
    if precision == "int8":
        return {"weight": jnp.round(steps).astype(jnp.int8), "scale": scale}
    if precision == "fp8":
        return {"weight": steps.astype(FP8), "scale": scale}
    weights, group_scale = quantize_groups(steps)
    return {"weight": pack_int4(weights), "scale": scale, "group_scale": group_scale}


def quantize_groups(steps: Kernel) -> tuple[Int8Kernel, Int8[Array, "o g"]]:
    """Find int4 weights and group scales whose products are nearest to `steps`, within ±120.

    The entry of a group that is largest in absolute value becomes -8, whatever its sign. A smaller
    group scale clips it, but rounds the others more finely; the best of four is taken.
    """
    groups = steps.reshape(len(steps), -1, GROUP)
    low = jnp.min(groups, axis=2, keepdims=True)
    high = jnp.max(groups, axis=2, keepdims=True)
    # largest -60: scale 7.5, so 8, 7, 6 and 5 are tried; largest 60: -8 to -5
    least = jnp.ceil(jnp.maximum(-low, high) / 8)
    sign = jnp.where(high > -low, -1, 1)
    scales = [sign * jnp.clip(least - smaller, 1, GROUP_LIMIT) for smaller in range(4)]

    def nearest(scale):
        return jnp.clip(jnp.round(groups / scale), -8, 7)

    errors = [jnp.sum((nearest(scale) * scale - groups) ** 2, axis=2) for scale in scales]
    best = jnp.argmin(jnp.stack(errors), axis=0)[..., None]
    scale = jnp.select([best == number for number in range(4)], scales)
    return nearest(scale).reshape(steps.shape).astype(jnp.int8), scale[..., 0].astype(jnp.int8)


def pack_int4(weights: Int8Kernel) -> UInt8[Array, "o h"]:
    """Pack two weights of a row to a byte: the one of its first half in the lower four bits."""
    # [-8, -7, 6, 7] -> [0, 1, 14, 15] -> [0 + 16 * 14, 1 + 16 * 15]
    low, high = jnp.split((weights + 8).astype(jnp.uint8), 2, axis=1)
    return low | high << 4


def unpack_int4(packed: UInt8[Array, "o h"], group_scale: Int8[Array, "o g"]) -> Int8Kernel:
    """Invert `pack_int4`, and multiply each weight by its group scale."""
    halves = [(packed & 15).astype(jnp.int8), (packed >> 4).astype(jnp.int8)]
    weights = jnp.concatenate(halves, axis=1) - jnp.int8(8)
    groups = weights.reshape(*group_scale.shape, GROUP) * group_scale[..., None]
    return groups.reshape(weights.shape)

"""The parts that checkpoint formats share: a tensor that is stored somewhere, a request to read it, and the error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded as it is; the message names the file or tensor and the reason."""


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

    def view(self) -> np.ndarray:
        """Map the tensor into host memory, for formats that can."""
        raise NotImplementedError(f"{self.path} is read by its own library")


@dataclass(frozen=True)
class TensorRequest:
    """A stored tensor, and the dtype and sharding that it is read into."""

    tensor: StoredTensor
    dtype: np.dtype
    sharding: Sharding


def read_views(requests: Sequence[TensorRequest]) -> list[Array]:
    """Read tensors that have a view, each device its slices of them; host memory holds the result and no more."""

    def read_one(request: TensorRequest) -> Array:
        view = request.tensor.view()
        # A copy: the array must not hang on the file, which may be replaced.
        return jax.make_array_from_callback(
            request.tensor.shape, request.sharding, lambda index: np.array(view[index], request.dtype, order="C")
        )

    return [read_one(request) for request in requests]


def grouped(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
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

"""What every checkpoint format shares: a tensor that is stored somewhere, the wish to read it, and the error."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jax.sharding import Sharding


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded as it is; the message names the file or tensor and the reason."""


@runtime_checkable
class Stored(Protocol):
    """A tensor in a checkpoint, not yet read."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Request:
    """A stored tensor, and the dtype and sharding that it is read into."""

    tensor: Stored
    dtype: np.dtype
    sharding: Sharding

"""Meshes of devices, and where each parameter lies on them.

    mesh = MeshShape.parse("data=2,tensor=4").mesh()
    shardings = tree_shardings(params, config, mesh)     # of parameters, gradients, optimizer moments

Three axes: `data` splits rows of a batch; `fsdp` splits rows and also stores each weight in parts, gathered when used;
`tensor` splits the work of each layer by heads, feed-forward channels and vocabulary. XLA inserts the communication
(AxisType.Auto); the placement of parameters and of hidden states (`shard_rows`) is all that it is told. Knows names and
sizes of parameters, no model.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jax_lm.config import DreamConfig

AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")
SPLIT_OUTPUTS, SPLIT_INPUTS = PartitionSpec("tensor", "fsdp"), PartitionSpec("fsdp", "tensor")
"""Kernels are [out, in]: what a layer begins with is split by its outputs, what it ends with by its inputs."""

BEGINNING = ("embed_tokens", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
ENDING = ("o_proj", "down_proj")
KERNELS: dict[str, PartitionSpec] = {**dict.fromkeys(BEGINNING, SPLIT_OUTPUTS), **dict.fromkeys(ENDING, SPLIT_INPUTS)}
KEY_VALUE = ("k_proj", "v_proj")
LAST_NAMES = re.compile(r"(\w+?)(?:\W+base)?\W+(weight|bias|scale|lora_a|lora_b)\W*$")

AnyMesh = Mesh | AbstractMesh
Leaf = TypeVar("Leaf")


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each axis.

    Attributes:
        data: groups that hold the whole model and share the rows.
        fsdp: groups that share the rows, and the storage of the weights.
        tensor: devices that share the work of each layer.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, value in self.sizes.items():
            if value < 1:
                raise ValueError(f"mesh {name}={value}: must be at least 1")

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """Read a shape from `data=2,tensor=4`; axes that are not named are 1. ValueError if it is no such list."""
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = part.strip().partition("=")
            if name not in AXES or name in sizes or not size.isdecimal():
                raise ValueError(f"mesh={text!r}: must be like data=2,tensor=4 with axes of {', '.join(AXES)}")
            sizes[name] = int(size)
        return cls(**sizes)

    @classmethod
    def of(cls, mesh: AnyMesh) -> "MeshShape":
        """Take the shape of a mesh with these axes."""
        return cls(**{name: mesh.shape[name] for name in AXES})

    @classmethod
    def for_generation(cls, config: DreamConfig, devices: int) -> "MeshShape":
        """Put as many devices on `tensor` as can share the key/value heads (each token sooner), the rest on `data`."""
        sizes = (tensor for tensor in divisors(devices) if config.num_key_value_heads % tensor == 0)
        shapes = (cls(tensor=tensor, data=devices // tensor) for tensor in sizes)
        return next(shape for shape in shapes if not shape.obstacles(config))

    @classmethod
    def for_training(cls, config: DreamConfig, devices: int) -> "MeshShape":
        """Put as many devices on `fsdp` as divide the model evenly, the rest on `data`."""
        shapes = (cls(fsdp=fsdp, data=devices // fsdp) for fsdp in divisors(devices))
        return next(shape for shape in shapes if not shape.obstacles(config))

    @property
    def sizes(self) -> dict[str, int]:
        return asdict(self)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.sizes.items() if value > 1) or "one device"

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Make the mesh over these devices, all there are (on all hosts) if not given; ValueError if not that many."""
        devices = jax.devices() if devices is None else devices
        if self.size != len(devices):
            raise ValueError(f"mesh {self}: takes {self.size} devices, there are {len(devices)}")
        sizes = tuple(self.sizes.values())
        return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)

    def require(self, config: DreamConfig) -> None:
        """Raise ValueError, naming axis and size, unless every parameter splits evenly."""
        if obstacles := self.obstacles(config):
            raise ValueError(f"mesh {obstacles[0]}")

    def obstacles(self, config: DreamConfig) -> list[str]:
        """List what does not split evenly."""
        split = {"fsdp": ("hidden_size",), "tensor": ("hidden_size", "intermediate_size", "vocab_size")}
        return [
            f"{axis}={getattr(self, axis)}: does not divide {name}={getattr(config, name)}"
            for axis, names in split.items()
            for name in names
            if getattr(config, name) % getattr(self, axis)
        ]


def reshape_mesh(mesh: Mesh, shape: MeshShape) -> Mesh:
    """Arrange the devices of a mesh, in their order, along other axes."""
    return Mesh(mesh.devices.reshape(list(shape.sizes.values())), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def divisors(number: int) -> list[int]:
    """List the divisors of a number, the largest first."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def partition_spec(path: str, config: DreamConfig, shape: MeshShape) -> PartitionSpec:
    """Split a parameter by the last two names of its path; what is no matrix of the model lies everywhere.

    An adapter is split as its layer is: A [rank, in] by inputs, B [out, rank] by outputs. The rule also holds for
    gradients and for moments of an optimizer. With more devices on `tensor` than can share the key/value heads evenly,
    each of them holds all keys and values.
    """
    names = LAST_NAMES.search(path)
    if names is None or names[1] not in KERNELS:
        return PartitionSpec()
    spec = KERNELS[names[1]]
    # A head is never cut: attention over half a head would need another sum over devices in each layer.
    if names[1] in KEY_VALUE and config.num_key_value_heads % shape.tensor:
        spec = PartitionSpec(None, "fsdp")
    by_kind = {"weight": spec, "lora_a": PartitionSpec(None, spec[1]), "lora_b": PartitionSpec(spec[0], None)}
    return by_kind.get(names[2], PartitionSpec(spec[0]))


def tree_shardings(tree: Any, config: DreamConfig, mesh: AnyMesh) -> Any:
    """Give each leaf of parameters, or of anything with paths that end in their names, its sharding; see `require`."""
    shape = MeshShape.of(mesh)
    shape.require(config)

    def of(path: tuple, leaf: Any) -> NamedSharding:
        spec = partition_spec(jax.tree_util.keystr(path), config, shape)
        # Some optimizers keep less than one number per weight; that little lies everywhere.
        return NamedSharding(mesh, spec if len(spec) == len(leaf.shape) else PartitionSpec())

    return jax.tree_util.tree_map_with_path(of, tree)


def row_axes(rows: int, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Choose the axes that split so many rows: `data` and `fsdp`, or one of them or none if they are uneven."""
    parts = {axes: math.prod(sizes[axis] for axis in axes) for axes in (ROW_AXES, ROW_AXES[:1], ROW_AXES[1:])}
    even = [axes for axes in parts if rows % parts[axes] == 0]
    return max(even, key=parts.__getitem__, default=None)


def row_devices(mesh: AnyMesh | None) -> int:
    """Count the parts into which a mesh splits rows, if they are even."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in ROW_AXES)


def row_spec(rows: int, mesh: AnyMesh) -> PartitionSpec:
    """Split a batch of that many rows over the devices of a mesh (see `row_axes`)."""
    return PartitionSpec(row_axes(rows, mesh.shape))


def shard_rows(x: Array, mesh: AnyMesh | None, *others: str | None) -> Array:
    """Split `x`, inside a compiled function, by rows (its first axis), and by `others` along the axes after it."""
    return x if mesh is None else constrain(x, mesh, *row_spec(len(x), mesh), *others)


def constrain(tree: Leaf, mesh: AnyMesh | None, *axes: str | tuple[str, ...] | None) -> Leaf:
    """Split leaves, inside a compiled function, along their axes by these axes of the mesh."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(*axes)))


def on_mesh(tree: Leaf, config: DreamConfig, mesh: Mesh | None) -> Leaf:
    """Put leaves on a mesh by their names that are not there yet, as new adapters are; leave the others."""
    if mesh is None:
        return tree

    def placed(leaf: Array, sharding: NamedSharding) -> Array:
        return leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, sharding)

    return jax.tree.map(placed, tree, tree_shardings(tree, config, mesh))


def gather_to_host(leaf: Array) -> Array | np.ndarray:
    """Fetch all of an array, also where other hosts hold parts of it; then every host must ask at once."""
    return leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True)


def replicate(tree: Leaf, mesh: AnyMesh | None) -> Leaf:
    """Give every device (of every host), inside a compiled function, the whole of each leaf."""
    return constrain(tree, mesh)


def choose_mesh(config: DreamConfig, mesh: str | None) -> MeshShape:
    """The mesh that was asked for, or one over all devices; ValueError if it fits neither devices nor model."""
    devices = len(jax.devices())
    if mesh is None:
        return MeshShape.for_generation(config, devices)
    shape = MeshShape.parse(mesh)
    shape.require(config)
    if shape.size != devices:
        raise ValueError(f"mesh={mesh!r}: takes {shape.size} devices, there are {devices}")
    return shape

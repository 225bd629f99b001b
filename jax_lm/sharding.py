"""Device meshes and the sharding of parameters.

    mesh = MeshShape.parse("data=2,tensor=4").mesh()
    shardings = tree_shardings(params, config, mesh)  # of parameters, gradients, moments

A mesh has three axes. `data` splits the rows of a batch. `fsdp` splits rows too, and also stores
each weight in parts, which are gathered when it is used. `tensor` splits the work of each layer by
heads, feed-forward channels and vocabulary. Only the shardings of parameters and hidden states
(`shard_rows`) are specified; XLA derives all others and inserts the communication (AxisType.Auto).
Knows names and sizes of parameters, but not the model.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jax_lm.config import DreamConfig, Texts

AXES = ("data", "fsdp", "tensor")
# Type of all axes: XLA derives the shardings that are not specified.
DERIVED = (AxisType.Auto,) * len(AXES)
ROW_AXES = ("data", "fsdp")
# Kernels are [out, in]. As in Megatron-LM, `tensor` splits the first kernels of attention and
# feed-forward network by outputs and the last ones by inputs. So a device computes its heads and
# channels alone, and each of the two blocks needs one sum over devices.
SPLIT_OUTPUTS = ("tensor", "fsdp")
SPLIT_INPUTS = ("fsdp", "tensor")

FIRST_KERNELS = """
    embed_tokens q_proj k_proj v_proj qkv_proj gate_proj up_proj gate_up_proj lm_head
""".split()  # noqa: SIM905 (a table, not a list)
LAST_KERNELS = ("o_proj", "down_proj")
KERNELS = {
    **dict.fromkeys(FIRST_KERNELS, SPLIT_OUTPUTS),
    **dict.fromkeys(LAST_KERNELS, SPLIT_INPUTS),
}
KEY_VALUE_KERNELS = ("k_proj", "v_proj")
# Sizes of a model that each axis divides.
DIVIDED = {"fsdp": ("hidden_size",), "tensor": ("hidden_size", "intermediate_size", "vocab_size")}
# The layer and the parameter at the end of a path in either notation:
# model.layers.0.mlp.up_proj.weight or ['layers'][0]['mlp']['up_proj']['weight']. In a layer with an
# adapter, `base` comes between them.
LAST_NAMES = re.compile(r"(\w+?)(?:\W+base)?\W+(weight|bias|scale|group_scale|lora_a|lora_b)\W*$")

AnyMesh = Mesh | AbstractMesh
Leaf = TypeVar("Leaf")


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Number of devices along each axis of a mesh.

    Attributes:
        data: groups of devices that hold the whole model and split the rows.
        fsdp: groups of devices that split the rows and the storage of the weights.
        tensor: devices that split the work of each layer.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self):
        for name, value in self.sizes.items():
            if value < 1:
                raise ValueError(f"mesh {name}={value}: must be at least 1")

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """Parse a shape such as `data=2,tensor=4`. Axes that are not named have size 1.

        Raises:
            ValueError: the text is not such a list.
        """
        sizes = {}
        for item in text.split(","):
            name, _, size = item.strip().partition("=")
            if name not in AXES or name in sizes or not size.isdecimal():
                raise ValueError(
                    f"mesh={text!r}: must be like data=2,tensor=4 with axes of {', '.join(AXES)}"
                )
            sizes[name] = int(size)
        return cls(**sizes)

    @classmethod
    def of(cls, mesh: AnyMesh | None) -> "MeshShape":
        """Return the shape of a mesh; None is a single device."""
        return cls(**mesh.shape) if mesh else cls()

    @classmethod
    def for_generation(cls, config: DreamConfig, devices: int) -> "MeshShape":
        """Return the default shape for generation.

        For a low latency per token, `tensor` gets as many devices as can split the key/value heads
        evenly. `data` gets the others.
        """
        return cls.generation_shapes(config, devices)[0]

    @classmethod
    def generation_shapes(cls, config: DreamConfig, devices: int) -> list["MeshShape"]:
        """Return the shapes that generation can use, beginning with the largest `tensor`.

        `tensor` must divide the key/value heads, as a head is never split. There is a shape for any
        number of devices, because tensor=1 is always possible.
        """
        # 8 devices and 4 key/value heads: tensor=4,data=2, then tensor=2,data=4, then data=8
        shapes = (cls(tensor=tensor, data=devices // tensor) for tensor in divisors(devices))
        return [
            shape
            for shape in shapes
            if config.num_key_value_heads % shape.tensor == 0 and not shape.obstacles(config)
        ]

    @classmethod
    def for_training(cls, config: DreamConfig, devices: int) -> "MeshShape":
        """Return the default shape for training.

        `fsdp` gets as many devices as can split the model evenly. `data` gets the others.
        """
        shapes = (cls(fsdp=fsdp, data=devices // fsdp) for fsdp in divisors(devices))
        return next(shape for shape in shapes if not shape.obstacles(config))

    @property
    def sizes(self) -> dict[str, int]:
        return asdict(self)

    @property
    def size(self) -> int:
        """Total number of devices."""
        return prod(self.sizes.values())

    def __str__(self) -> str:
        return (
            ",".join(f"{name}={value}" for name, value in self.sizes.items() if value > 1)
            or "one device"
        )

    def parts(self, axes: Iterable[str | None]) -> int:
        """Return the number of parts into which these axes split an array."""
        return prod(self.sizes[axis] for axis in axes if axis)

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Create the mesh.

        Args:
            devices: devices of the mesh; None is all devices of all hosts.

        Raises:
            ValueError: the number of devices differs from the size of this shape.
        """
        devices = jax.devices() if devices is None else devices
        if self.size != len(devices):
            raise ValueError(f"mesh {self}: takes {self.size} devices, there are {len(devices)}")
        return jax.make_mesh(tuple(self.sizes.values()), AXES, axis_types=DERIVED, devices=devices)

    def arrange(self, devices: Sequence[Any] | np.ndarray) -> Mesh:
        """Create a mesh of devices in the given order; `mesh` may choose a better order."""
        return Mesh(np.reshape(devices, tuple(self.sizes.values())), AXES, axis_types=DERIVED)

    def require(self, config: DreamConfig):
        """Raise ValueError, naming an axis and a size, unless every parameter splits evenly."""
        if obstacles := self.obstacles(config):
            raise ValueError(f"mesh {obstacles[0]}")

    def obstacles(self, config: DreamConfig) -> list[str]:
        """Return a message for each size of the model that an axis does not divide."""
        return [
            f"{axis}={getattr(self, axis)}: does not divide {name}={getattr(config, name)}"
            for axis, names in DIVIDED.items()
            for name in names
            if getattr(config, name) % getattr(self, axis)
        ]


ONE_DEVICE = MeshShape()


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, largest first."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def partition_spec(path: str, config: DreamConfig, shape: MeshShape) -> PartitionSpec:
    """Return the sharding of a parameter, by the layer and the parameter at the end of its path.

    The rule also applies to gradients and optimizer moments. Parameters of layers that are not in
    `KERNELS`, such as norms, are replicated. An adapter is split like its layer: A [rank, in] by
    inputs, B [out, rank] by outputs. If the devices on `tensor` cannot split the key/value heads
    evenly, each of them holds all keys and values.

    Args:
        path: path of the parameter, such as model.layers.0.mlp.up_proj.weight.
        config: shape of the model.
        shape: shape of the mesh.
    """
    names = LAST_NAMES.search(path)
    if names is None or names[1] not in KERNELS:
        return PartitionSpec()
    outputs, inputs = KERNELS[names[1]]
    # A head is never split: attention with half a head per device would need a further sum over
    # devices in each layer.
    if names[1] in KEY_VALUE_KERNELS and config.num_key_value_heads % shape.tensor:
        outputs = None
    axes = {
        "weight": (outputs, inputs),
        "group_scale": (outputs, None),
        "lora_a": (None, inputs),
        "lora_b": (outputs, None),
    }
    # A bias or a scale has one number per output, so it is split like the first axis of the kernel.
    return PartitionSpec(*axes.get(names[2], (outputs,)))


def tree_shardings(tree, config: DreamConfig, mesh: AnyMesh) -> Any:
    """Return the sharding of each leaf of a tree, by its path.

    Args:
        tree: parameters, or another tree whose paths end in the names of parameters.
        config: shape of the model.
        mesh: the mesh.

    Raises:
        ValueError: the mesh does not split the model evenly.
    """
    shape = MeshShape.of(mesh)
    shape.require(config)

    def sharding_of(path, leaf):
        spec = partition_spec(jax.tree_util.keystr(path), config, shape)
        # Some optimizers keep less than one number per weight, such as one per row. These small
        # arrays have another rank than the parameter, and are replicated.
        return NamedSharding(mesh, spec if len(spec) == len(leaf.shape) else PartitionSpec())

    return jax.tree_util.tree_map_with_path(sharding_of, tree)


def row_axes(rows: int, sizes: Mapping[str, int]) -> Texts | None:
    """Return the axes that split a batch of rows into the largest number of equal parts.

    Args:
        rows: number of rows.
        sizes: size of each axis of the mesh.

    Returns:
        `data` and `fsdp`, one of them, or None.
    """
    # 4 rows on data=2, fsdp=4: 8 parts are too many, so `fsdp` alone splits them into 4.
    parts = {
        axes: prod(sizes[axis] for axis in axes) for axes in (ROW_AXES, ROW_AXES[:1], ROW_AXES[1:])
    }
    even = [axes for axes in parts if rows % parts[axes] == 0]
    return max(even, key=parts.__getitem__, default=None)


def first_device(mesh: Mesh | None) -> Any:
    """Return the first device of a mesh; without a mesh, JAX's first device."""
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def row_devices(mesh: AnyMesh | None) -> int:
    """Return the number of devices that split the rows of a batch, if it divides their number."""
    return MeshShape.of(mesh).parts(ROW_AXES)


def row_spec(rows: int, mesh: AnyMesh) -> PartitionSpec:
    """Return the sharding of a batch of `rows` rows (see `row_axes`)."""
    return PartitionSpec(row_axes(rows, mesh.shape))


def shard_rows(x: Array, mesh: AnyMesh | None, *others: str | None) -> Array:
    """Constrain the sharding of `x` by rows inside a compiled function.

    Args:
        x: an array whose first axis is the rows of a batch.
        mesh: the mesh; None returns `x` unchanged.
        *others: mesh axes that split the further axes of `x`.
    """
    return x if mesh is None else constrain(x, mesh, *row_spec(len(x), mesh), *others)


def constrain(tree: Leaf, mesh: AnyMesh | None, *axes: str | Texts | None) -> Leaf:
    """Constrain the sharding of all leaves of a tree inside a compiled function.

    Args:
        tree: the leaves.
        mesh: the mesh; None returns the tree unchanged.
        *axes: mesh axes that split the first, second, … axis of each leaf. An axis with None or
            without an entry is not split. Without any, every device gets the whole leaf.
    """
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec(*axes)))


def on_mesh(tree: Leaf, config: DreamConfig, mesh: Mesh | None) -> Leaf:
    """Move leaves that are not on a mesh yet, such as new adapters, onto it (`tree_shardings`)."""
    if mesh is None:
        return tree

    def place(leaf, sharding):
        return leaf if isinstance(leaf.sharding, NamedSharding) else jax.device_put(leaf, sharding)

    return jax.tree.map(place, tree, tree_shardings(tree, config, mesh))


def gather_to_host(leaf: Array) -> Array | np.ndarray:
    """Return the whole array, even if other hosts hold parts of it.

    If they do, every host must call this at the same time.
    """
    return (
        leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True)
    )


def choose_mesh(
    config: DreamConfig,
    mesh: str | None,
    default: Callable[[DreamConfig, int], MeshShape],
    devices: int,
) -> MeshShape:
    """Return the shape of the mesh that the user names, or the default.

    Args:
        config: shape of the model.
        mesh: shape as given by the user, such as data=2,tensor=4; None chooses one.
        default: returns the default shape for a model and a number of devices.
        devices: number of devices, all of which the mesh takes.

    Raises:
        ValueError: the given shape does not match the devices or the model.
    """
    shape = default(config, devices) if mesh is None else MeshShape.parse(mesh)
    shape.require(config)
    if shape.size != devices:
        raise ValueError(f"mesh={mesh!r}: takes {shape.size} devices, there are {devices}")
    return shape


def choose_replicas(config: DreamConfig, mesh: str | None, replicas: int) -> MeshShape:
    """Return the shape of the mesh for generation, with all replicas along `data`.

    Args:
        config: shape of the model.
        mesh: shape of one replica as given by the user; None chooses one.
        replicas: number of groups of devices, each of which holds the whole model.

    Raises:
        ValueError: the given shape does not match the devices or the model.
    """
    devices = len(jax.devices())
    if replicas < 1 or devices % replicas:
        raise ValueError(f"replicas={replicas}: must divide the number of devices, {devices}")
    # 8 devices, 4 replicas, mesh tensor=2: data=4,tensor=2
    shape = choose_mesh(config, mesh, MeshShape.for_generation, devices // replicas)
    return replace(shape, data=shape.data * replicas)


def split_data(tree: Leaf, mesh: Mesh, count: int) -> list[tuple[Mesh, Leaf]]:
    """Split a mesh along `data` into `count` meshes, each with the leaves on its devices.

    The leaves must not be split along `data`. Nothing is copied.
    """

    def take(leaf, part):
        spec = leaf.sharding.spec if isinstance(leaf.sharding, NamedSharding) else PartitionSpec()
        own = set(part.devices.flat)
        shards = [shard.data for shard in leaf.addressable_shards if shard.device in own]
        return jax.make_array_from_single_device_arrays(
            leaf.shape, NamedSharding(part, spec), shards
        )

    meshes = [Mesh(part, AXES, axis_types=DERIVED) for part in np.split(mesh.devices, count)]
    return [(part, jax.tree.map(partial(take, part=part), tree)) for part in meshes]

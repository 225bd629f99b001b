"""Limits of accelerators, and the least time of work on them. Knows no model.

Figures of TPUs are from Google Cloud's documentation, figures of GPUs from NVIDIA's data sheets
(dense bfloat16, SXM where there is a choice). The memory of GPUs is what CUDA's `deviceQuery` or
PyTorch report, which is less than the advertised size (error correction, the driver).
"""

import math
import re
from dataclasses import dataclass

from jax_lm.host.memory import host_memory

GIB = 2**30


def gib(size: int | float) -> str:
    return f"{size / GIB:.2f} GiB"


@dataclass(frozen=True)
class MachineLimits:
    """Peak rates of a machine.

    Attributes:
        matmul_flops: floating-point operations per second of large products in the model's dtype.
        copy_bytes: bytes read and written per second.
    """

    matmul_flops: float
    copy_bytes: float


@dataclass(frozen=True)
class Cost:
    """Least cost of a forward pass: operations, and bytes of weights, keys and values."""

    flops: int
    bytes: int

    def seconds(self, limits: MachineLimits) -> float:
        """Return the roofline: no implementation is faster on this machine."""
        # At best, compute and memory traffic overlap fully, so that only the slower one counts.
        return max(self.flops / limits.matmul_flops, self.bytes / limits.copy_bytes)

    def __floordiv__(self, parts: int) -> "Cost":
        return Cost(self.flops // parts, self.bytes // parts)

    def limit(self, limits: MachineLimits) -> str:
        """Return what bounds the time: compute or memory."""
        return (
            "compute"
            if self.flops / limits.matmul_flops >= self.bytes / limits.copy_bytes
            else "memory"
        )


@dataclass(frozen=True)
class Chip:
    """A kind of chip.

    Attributes:
        memory: bytes available to programs, per device.
        limits: peak rates of one device, with bfloat16 operands; None if they are not known.
        topologies: available topologies, smallest first.
        cores: devices per chip, as the compiler counts them.
    """

    memory: int
    limits: MachineLimits | None
    topologies: tuple[str, ...]
    cores: int = 1


# Shapes in chips: v5e and v6e are connected in two dimensions, v4 and v5p in three.
SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")
# GPUs of one host.
COUNTS = ("1", "2", "4", "8")
# Bytes of memory, operations per second, bytes per second.
CHIPS = {
    # per core: a v4 chip has two, which share 32 GiB and 275 TFLOP/s
    "v4": Chip(16 * GIB, MachineLimits(275e12 / 2, 1228e9 / 2), CUBES, cores=2),
    "v5e": Chip(16 * GIB, MachineLimits(197e12, 819e9), SQUARES),
    "v5p": Chip(95 * GIB, MachineLimits(459e12, 2765e9), CUBES),
    "v6e": Chip(32 * GIB, MachineLimits(918e12, 1640e9), SQUARES),
    "a100": Chip(85_100_068_864, MachineLimits(312e12, 2039e9), COUNTS),
    "h100": Chip(84_942_979_072, MachineLimits(989e12, 3350e9), COUNTS),
    "h200": Chip(150_109_945_856, MachineLimits(989e12, 4800e9), COUNTS),
    "l4": Chip(23_583_784_960, MachineLimits(121e12, 300e9), COUNTS),
    "rtx4090": Chip(25_250_627_584, MachineLimits(165e12, 1008e9), COUNTS),
}
# Chips by their name in JAX. A v4 is missing, because its two cores may be one device or two.
KINDS = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA H200": "h200",
    "NVIDIA L4": "l4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
TPUS = ("v4", "v5e", "v5p", "v6e")
# The family of the machine on which the plan is made.
CPU = "cpu"


def peak_flops(kind: str) -> float | None:
    """Return the peak bfloat16 operations per second of a device kind of JAX; None if unknown."""
    limits = CHIPS[KINDS[kind]].limits if kind in KINDS else None
    return limits and limits.matmul_flops


# More than any pod has. Bounds the loops over meshes.
MOST_CHIPS = 2**16


@dataclass(frozen=True)
class Topology:
    """Chips of one kind, and the shape in which they are connected."""

    family: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Parse a topology such as v5e:2x2, v4:2x2x1 or h100:8; cpu is this machine.

        Raises:
            ValueError: an unknown chip, or a shape that the chip cannot have.
        """
        if text == CPU:
            return cls(CPU, (1,))
        family, _, shape = text.partition(":")
        if family not in CHIPS:
            raise ValueError(
                f"topology={text!r}: must be one of {', '.join(CHIPS)}, a colon and a shape like "
                "v5e:2x2, or cpu"
            )
        # v5e is 2-D, "2x2"; v5p is 3-D, "2x2x1"; GPUs are a count, "8"
        axes = CHIPS[family].topologies[0].count("x") + 1
        known = ", ".join(f"{family}:{shape}" for shape in CHIPS[family].topologies)
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 != axes:
            raise ValueError(f"topology={text!r}: must be like {known}")
        sizes = tuple(map(int, shape.split("x")))
        # Slices of two dimensions have powers of two on their sides, those of three multiples of 4.
        if family in TPUS and not all(
            size & (size - 1) == 0 or (axes == 3 and size % 4 == 0) for size in sizes
        ):
            raise ValueError(
                f"topology={text!r}: there is no such slice; there are {known} and larger"
            )
        if math.prod(sizes) > MOST_CHIPS:
            raise ValueError(f"topology={text!r}: must have at most {MOST_CHIPS} chips")
        return cls(family, sizes)

    @property
    def chip(self) -> Chip:
        return host_chip() if self.is_cpu else CHIPS[self.family]

    @property
    def is_cpu(self) -> bool:
        return self.family == CPU

    @property
    def devices(self) -> int:
        return math.prod(self.shape) * self.chip.cores

    @property
    def is_tpu(self) -> bool:
        return self.family in TPUS

    def __str__(self) -> str:
        return CPU if self.is_cpu else f"{self.family}:{'x'.join(map(str, self.shape))}"

    def same_family(self) -> list["Topology"]:
        """List the topologies of the same chips, smallest first."""
        if self.is_cpu:
            return [self]
        return [Topology.parse(f"{self.family}:{shape}") for shape in self.chip.topologies]


def host_chip() -> Chip:
    """Return the processor of this machine. Raises ValueError if it does not say its memory."""
    memory = host_memory()
    if memory is None:
        raise ValueError(f"topology={CPU!r}: the memory of this machine is not known")
    return Chip(memory, None, (CPU,))

"""Limits of accelerators, and the least time of work on them. Knows no model.

The figures of each chip are in chips.toml, with their sources.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jax_lm.config import Ints, read_table
from jax_lm.host.memory import host_memory
from jax_lm.host.precision import require_fp8

GIB = 2**30


def gib(size: int | float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


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


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of chip.

    Attributes:
        memory: bytes available to programs, per device.
        limits: peak rates of one device, with bfloat16 operands; None if they are not known.
        topologies: available topologies, smallest first.
        cores: devices per chip, as the compiler counts them.
        link: bytes per second that a device receives from others.
        names: names of the device in JAX.
        card: what XLA must know of an NVIDIA GPU to compile for it; empty for others.
    """

    memory: int
    limits: MachineLimits | None
    topologies: Sequence[str]
    cores: int = 1
    link: float = 0.0
    names: Sequence[str] = ()
    card: Mapping[str, Any] = field(default_factory=dict)


def read_chips() -> dict[str, Chip]:
    """Read the table of chips by family."""
    chips = {}
    for family, row in read_table(__file__, "chips.toml").items():
        limits = MachineLimits(row.pop("matmul_flops"), row.pop("copy_bytes"))
        chips[family] = Chip(limits=limits, **row)
    return chips


CHIPS = read_chips()
# The family of the machine on which the plan is made.
CPU = "cpu"


def peak_flops(kind: str) -> float | None:
    """Return the peak bfloat16 operations per second of a device kind of JAX; None if unknown."""
    limits = next((chip.limits for chip in CHIPS.values() if kind in chip.names), None)
    return limits and limits.matmul_flops


# More than any pod has. Bounds the loops over meshes.
MOST_CHIPS = 2**16


@dataclass(frozen=True)
class Topology:
    """Chips of one kind, and the shape in which they are connected."""

    family: str
    shape: Ints

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
        chip = CHIPS[family]
        # v5e is 2-D, "2x2"; v5p is 3-D, "2x2x1"; GPUs are a count, "8"
        more_axes = chip.topologies[0].count("x")
        known = ", ".join(f"{family}:{shape}" for shape in chip.topologies)
        if not re.fullmatch(rf"[1-9]\d*(x[1-9]\d*){{{more_axes}}}", shape):
            raise ValueError(f"topology={text!r}: must be like {known}")
        sizes = tuple(map(int, shape.split("x")))
        # of three dimensions, there are also larger slices, of cubes with four chips on a side
        is_of_cubes = more_axes == 2 and not any(size % 4 for size in sizes)
        if not (chip.card or is_of_cubes or shape in chip.topologies):
            cubes = " and multiples of 4x4x4" * (more_axes == 2)
            raise ValueError(f"topology={text!r}: there is no such slice; there are {known}{cubes}")
        if prod(sizes) > MOST_CHIPS:
            raise ValueError(f"topology={text!r}: must have at most {MOST_CHIPS} chips")
        return cls(family, sizes)

    @property
    def chip(self) -> Chip:
        """Figures of one chip. Raises ValueError if this machine does not say its memory."""
        if not self.is_cpu:
            return CHIPS[self.family]
        if (memory := host_memory()) is None:
            raise ValueError(f"topology={CPU!r}: the memory of this machine is not known")
        return Chip(memory=memory, limits=None, topologies=(CPU,))

    @property
    def is_cpu(self) -> bool:
        return self.family == CPU

    @property
    def devices(self) -> int:
        return prod(self.shape) * self.chip.cores

    @property
    def is_tpu(self) -> bool:
        return not (self.is_cpu or self.chip.card)

    def require_precision(self, precision: str):
        """Raise ValueError if the chip cannot compute in a precision."""
        if precision == "fp8" and not self.is_cpu:
            require_fp8(self.family, self.chip.card.get("capability", ()))

    def __str__(self) -> str:
        return CPU if self.is_cpu else f"{self.family}:{'x'.join(map(str, self.shape))}"

    def same_family(self) -> list["Topology"]:
        """List the topologies of the same chips, smallest first."""
        if self.is_cpu:
            return [self]
        return [Topology.parse(f"{self.family}:{shape}") for shape in self.chip.topologies]

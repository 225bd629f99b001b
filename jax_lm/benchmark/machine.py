"""This machine: its limits, its memory, its versions. A measurement means nothing without them. Knows no model."""

import datetime
import os
import platform
import resource
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from jax_lm.benchmark.timer import time_call
from jax_lm.models.products import product
from jax_lm.planning.roofline import MachineLimits

COPY_BYTES = 2**30
"""Array over which the bandwidth is measured: above the shared cache of a large server."""

LIMIT_REPEATS = 10
RESET_PEAK = "5"
"""Written to /proc/self/clear_refs, this sets the peak of resident memory back to its present size."""


def largest_resident_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_bytes() -> int:
    """Return the memory that this process has now, where the system tells; else the most it has had."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return largest_resident_bytes()
    return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def device_memory() -> dict[str, int]:
    """Return what the first device counts of its memory; nothing on a CPU."""
    return jax.devices()[0].memory_stats() or {}


class PeakMemory:
    """Largest memory in use: of the device where it counts, else of the process, which includes the program itself."""

    def __init__(self) -> None:
        self.on_device = "peak_bytes_in_use" in device_memory()
        self.resettable = not self.on_device and os.access("/proc/self/clear_refs", os.W_OK)

    def start(self) -> None:
        """Forget earlier peaks, where the system can."""
        if self.resettable:
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")

    def read(self) -> int:
        """Return the largest use in bytes."""
        return device_memory()["peak_bytes_in_use"] if self.on_device else largest_resident_bytes()

    @property
    def source(self) -> str:
        """Say in words where the number comes from."""
        if self.on_device:
            return "device, peak_bytes_in_use since the start of the process"
        return f"process, peak resident memory {'per row' if self.resettable else 'since its start'}"


def typed_command(words: Sequence[str]) -> str:
    """Write a command as it can be typed again."""
    name = Path(words[0]).name
    return shlex.join(["diffucoder" if name == "__main__.py" else name, *words[1:]])


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Date, versions, device and command: a number means nothing without them."""

    date: str
    command: str
    python: str
    jax: str
    jaxlib: str
    flax: str
    platform: str
    device: str
    devices: int
    machine: str
    cpu_count: int | None
    load_average: float

    @classmethod
    def here(cls) -> "Machine":
        """Describe the machine that this process runs on."""
        device = jax.devices()[0]
        return cls(
            date=datetime.date.today().isoformat(),
            command=typed_command(sys.argv),
            python=platform.python_version(),
            jax=jax.__version__,
            jaxlib=version("jaxlib"),
            flax=flax.__version__,
            platform=device.platform,
            device=device.device_kind,
            devices=len(jax.devices()),
            machine=platform.machine(),
            cpu_count=os.cpu_count(),
            load_average=round(os.getloadavg()[0], 2),
        )

    @property
    def accelerator(self) -> str:
        """Devices and platform in words."""
        return f"{self.devices} x {self.device} ({self.platform})"

    @property
    def metadata(self) -> dict[str, str]:
        """Lines of a report: what its numbers depend on."""
        return {
            "device": self.accelerator,
            "host": f"{self.machine}, {self.cpu_count} CPU cores, load {self.load_average:g}",
            "software": f"jax {self.jax}, jaxlib {self.jaxlib}, flax {self.flax}, python {self.python}",
            "date": self.date,
            "command": self.command,
        }


def about() -> dict[str, Any]:
    """Describe this machine as plain data."""
    return asdict(Machine.here())


def machine_limits(dtype: DTypeLike, *, copy_bytes: int = COPY_BYTES) -> MachineLimits:
    """Measure the rate of a large square product and of a copy, by the same compiler that runs the model.

    The fastest of several calls, no median: a limit must not be one that a busy moment has lowered. Operands of the
    product are of that dtype, the array that is copied of that size.
    """

    def fastest(call: Callable[[], Array]) -> float:
        return min(time_call(call, LIMIT_REPEATS).all_seconds)

    size = 2048 if jax.default_backend() == "cpu" else 8192
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.float32).astype(dtype) for i in range(2))
    multiply = jax.jit(lambda a, b: product(a, b).astype(dtype))
    matmul = fastest(lambda: multiply(a, b))
    # In place: a fresh result would measure how fast the system hands out pages.
    add = jax.jit(lambda values: values + 1, donate_argnums=0)
    values = jnp.zeros(copy_bytes // 4, jnp.float32)

    def copy() -> Array:
        nonlocal values
        values = add(values)
        return values

    return MachineLimits(2 * size**3 / matmul, 2 * copy_bytes / fastest(copy))

"""Describe and measure this machine: device, versions, memory and limits. Knows no model."""

import datetime
import os
import platform
import resource
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jax_lm.benchmark.timer import time_call
from jax_lm.host.memory import device_memory
from jax_lm.models.products import product
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.tables import Row

# Size of the array for measuring the bandwidth: larger than the shared cache of a large server.
COPY_BYTES = 2**30

# Number of timed calls; the fastest counts.
LIMIT_REPEATS = 10
# Number of products or copies that a call chains, by platform. On an H200, a single one measured
# 648 TFLOP/s and 3.4 TB/s, and a chain 788 and 4.3, as the call itself takes time too.
CHAIN = {"cpu": 1}
ACCELERATOR_CHAIN = 24
# Writing this to /proc/self/clear_refs resets the peak resident memory to the current size.
RESET_PEAK = "5"


def largest_resident_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    # ru_maxrss is in bytes on macOS, in KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or its peak on systems without /proc."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return largest_resident_bytes()
    # The second number of statm is the number of resident pages.
    return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


class PeakMemory:
    """Peak memory: of the device if JAX reports it, otherwise of the process as a whole."""

    def __init__(self):
        self.on_device = "peak_bytes_in_use" in device_memory()
        self.resettable = not self.on_device and os.access("/proc/self/clear_refs", os.W_OK)

    def start(self):
        """Reset the peak, if the system supports it."""
        if self.resettable:
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")

    def read(self) -> int:
        """Return the peak in bytes."""
        return device_memory()["peak_bytes_in_use"] if self.on_device else largest_resident_bytes()

    @property
    def source(self) -> str:
        """Describe in words how the peak was measured."""
        if self.on_device:
            return "device, peak_bytes_in_use since the start of the process"
        return (
            f"process, peak resident memory {'per row' if self.resettable else 'since its start'}"
        )


def command_line(words: Sequence[str]) -> str:
    """Return a command line that can be typed again."""
    name = Path(words[0]).name
    return shlex.join(["diffucoder" if name == "__main__.py" else name, *words[1:]])


def about() -> Row:
    """Describe what a measurement depends on: date, command, versions, device and host."""
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "command": command_line(sys.argv),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "flax": flax.__version__,
        "platform": device.platform,
        "device": device.device_kind,
        "devices": len(jax.devices()),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


MACHINE_LINES = {
    "device": "{devices} x {device} ({platform})",
    "host": "{machine}, {cpu_count} CPU cores, load {load_average:g}",
    "software": "jax {jax}, jaxlib {jaxlib}, flax {flax}, python {python}",
    "date": "{date}",
    "command": "{command}",
}


def machine_lines(machine: Row) -> dict[str, str]:
    """Format a machine, as returned by `about`, for a report."""
    return {name: text.format_map(machine) for name, text in MACHINE_LINES.items()}


def limits_text(limits: Mapping[str, float], dtype: str) -> str:
    """Format measured limits for a report."""
    return (
        f"{limits['matmul_flops'] / 1e9:,.0f} GFLOP/s in {dtype}, "
        f"{limits['copy_bytes'] / 1e9:,.1f} GB/s copied"
    )


def machine_limits(dtype: DTypeLike, *, copy_bytes: int = COPY_BYTES) -> MachineLimits:
    """Measure the rate of a large square product and the bandwidth of a copy.

    XLA compiles both, as it compiles the model. A call chains several of them (`CHAIN`). The
    fastest of several calls counts, not the median, as a moment in which the machine is busy must
    not lower a limit.

    Args:
        dtype: dtype of the operands of the product.
        copy_bytes: size of the array that is copied.
    """

    def fastest(call):
        return min(time_call(call, LIMIT_REPEATS).row["all_seconds"])

    # The product is large enough for full speed, and small enough for a CPU.
    backend = jax.default_backend()
    size = 2048 if backend == "cpu" else 8192
    rounds = CHAIN.get(backend, ACCELERATOR_CHAIN)
    a, b = (
        (jax.random.normal(jax.random.key(i), (size, size)) / size**0.5).astype(dtype)
        for i in range(2)
    )

    def chain(function):
        # The barrier keeps XLA from merging the rounds of a chain into one.
        return lambda _, values: lax.optimization_barrier(function(values))

    @jax.jit
    def multiply(a, b):
        return lax.fori_loop(0, rounds, chain(lambda b: product(a, b, dtype)), b)

    # It works in place: with a new result, this would measure how fast the system provides pages.
    @partial(jax.jit, donate_argnums=0)
    def add(values):
        return lax.fori_loop(0, rounds, chain(lambda values: values + 1), values)

    matmul = fastest(lambda: multiply(a, b))
    values = jnp.zeros(copy_bytes // 4, jnp.float32)

    def copy():
        nonlocal values
        values = add(values)
        return values

    # 2 * n**3 operations per product; a copy reads and writes every byte.
    return MachineLimits(2 * size**3 * rounds / matmul, 2 * copy_bytes * rounds / fastest(copy))

"""What this machine does: its limits, clock, peak memory, compilations, versions. Knows no model.

A measurement means nothing without these; `evaluation.speed` and the benchmarks use them.
"""

import datetime
import functools
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.typing import DTypeLike
from jaxtyping import Array

from jax_lm.models.products import product
from jax_lm.roofline import MachineLimits

COPY_BYTES = 2**30
"""Array over which the bandwidth is measured: above the shared cache of a large server."""

LIMIT_REPEATS = 10
CACHE_SWITCH = "jax_enable_compilation_cache"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
RESET_PEAK = "5"
"""Written to /proc/self/clear_refs, this sets the peak of resident memory back to its present size."""


class Compilations:
    """Counts what XLA compiles in this process. One listener for good: JAX cannot be relied on to take it back."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self.hear)

    def hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == COMPILE_EVENT


@functools.cache
def compilations() -> Compilations:
    """The counter of this process."""
    return Compilations()


@contextmanager
def without_stored_compilations() -> Iterator[None]:
    """Compile for real: a result from the cache on disk would say nothing about compile time."""
    before = getattr(jax.config, CACHE_SWITCH)
    jax.config.update(CACHE_SWITCH, False)
    # The switch is read once, at the first compilation; after a reset, again.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update(CACHE_SWITCH, before)
        compilation_cache.reset_cache()


def largest_resident_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_bytes() -> int:
    """What it has now, where the system tells; else the most it has had."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return largest_resident_bytes()
    return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


class PeakMemory:
    """Largest memory in use: of the device where it counts, else of the process, which includes the program itself."""

    def __init__(self) -> None:
        self.on_device = "peak_bytes_in_use" in (jax.devices()[0].memory_stats() or {})
        self.resettable = not self.on_device and os.access("/proc/self/clear_refs", os.W_OK)

    def start(self) -> None:
        """Forget earlier peaks, where the system can."""
        if self.resettable:
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")

    def read(self) -> int:
        """Bytes."""
        if self.on_device:
            stats = jax.devices()[0].memory_stats()
            assert stats is not None
            return int(stats["peak_bytes_in_use"])
        return largest_resident_bytes()

    @property
    def source(self) -> str:
        """What the number is, in words."""
        if self.on_device:
            return "device, peak_bytes_in_use since the start of the process"
        return f"process, peak resident memory {'per row' if self.resettable else 'since its start'}"


def about() -> dict[str, Any]:
    """Date, versions, machine and command: what a number means nothing without."""
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
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


def seconds_of(call: Callable[[], Any]) -> float:
    """Wall time of one call, until its result is there."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median wall time after one call that does not count."""
    seconds_of(call)
    return statistics.median(seconds_of(call) for _ in range(repeats))


def fastest_seconds(call: Callable[[], Any]) -> float:
    """Shortest wall time after one call that does not count."""
    seconds_of(call)
    return min(seconds_of(call) for _ in range(LIMIT_REPEATS))


def machine_limits(dtype: DTypeLike, *, copy_bytes: int = COPY_BYTES) -> MachineLimits:
    """Rate of a large square product and of a copy, by the same compiler that runs the model.

    The fastest of several calls, no median: a limit must not be one that a busy moment has lowered.
    """
    size = 2048 if jax.default_backend() == "cpu" else 8192
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.float32).astype(dtype) for i in range(2))
    multiply = jax.jit(lambda a, b: product(a, b).astype(dtype))
    matmul = fastest_seconds(lambda: multiply(a, b))
    # In place: a fresh result would measure how fast the system hands out pages.
    add = jax.jit(lambda values: values + 1, donate_argnums=0)
    values = jnp.zeros(copy_bytes // 4, jnp.float32)

    def copy() -> Array:
        nonlocal values
        values = add(values)
        return values

    return MachineLimits(2 * size**3 / matmul, 2 * copy_bytes / fastest_seconds(copy))

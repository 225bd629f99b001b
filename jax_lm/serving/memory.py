"""Memory of the device and of the process."""

import ctypes

import jax


def return_freed_memory() -> None:
    """Hand back to the system what a compilation has freed, which glibc keeps: most of what the process would hold."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def bytes_in_use() -> float:
    """Memory in use on the device; 0 where it does not say, as on a CPU."""
    return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use", 0))

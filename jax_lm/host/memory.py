"""The memory of this machine's devices: how much there is, and how much is free."""

import re
from pathlib import Path

import jax

MEMINFO = Path("/proc/meminfo")
# Limit and use of a container, in versions 2 and 1 of control groups.
GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def device_memory() -> dict[str, int]:
    """Return the memory statistics of this host's first device; empty on a CPU."""
    return jax.local_devices()[0].memory_stats() or {}


def free_memory() -> int | None:
    """Return the free bytes of a device; None if the system does not report them.

    The devices of a CPU share what the host has.
    """
    if jax.default_backend() != "cpu":
        found = device_memory()
        return found["bytes_limit"] - found["bytes_in_use"] if "bytes_limit" in found else None
    free = host_memory("MemAvailable")
    return None if free is None else free // jax.local_device_count()


def host_memory(name: str = "MemTotal") -> int | None:
    """Return a size of /proc/meminfo in bytes, at most what a container allows; None without one."""
    # "MemTotal:       24640000 kB"
    try:
        match = re.search(rf"^{name}:\s+(\d+)", MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        return None
    size = int(match[1]) * 1024
    for limit, used in GROUPS:
        # "max" is no limit
        if Path(limit).is_file() and (text := Path(limit).read_text().strip()).isdigit():
            taken = 0
            if name != "MemTotal":
                # What caches files is given back when memory is needed.
                cached = cached_bytes(Path(used).with_name("memory.stat"))
                taken = max(int(Path(used).read_text()) - cached, 0)
            size = min(size, max(int(text) - taken, 0))
    return size


def cached_bytes(statistics: Path) -> int:
    """Return the bytes by which a container caches files; 0 if they are not known."""
    # "active_file 4096"
    try:
        sizes = dict(line.split() for line in statistics.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(int(sizes.get(name, 0)) for name in ("active_file", "inactive_file"))

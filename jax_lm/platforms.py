"""Keep accelerators' libraries quiet on machines that have no such accelerator. Standard library only.

The compilers of `diffucoder plan` are whole runtimes: where one is installed without its device, JAX tries it at every
start, and it complains of missing metadata, drivers and libraries. Called before JAX is imported.
"""

import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

GOOGLE = "0x1ae0"
NO_CHIP = ("0x01", "0x02")
"""Classes of Google's other devices on the bus of a virtual machine: disks and networks."""
NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""The last is that of Windows' subsystem for Linux."""
CUDA_PLUGINS = ("xla_cuda12", "xla_cuda13")
QUIET_TPU = {"TPU_STDERR_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3"}
DECIDED = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_FORCE_TPU_INIT", "PJRT_NAMES_AND_LIBRARY_PATHS")
"""Variables by which a user has said which platform is meant."""


def silence_absent(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Set variables so that no library of an absent accelerator speaks; what the user has set stays.

    A machine of whose platforms one is here, or is not known to us, keeps all of them, and libtpu is only told to
    print less where there is no TPU.

    Args:
        environment: of this process, before JAX is imported.
        root: of the file system with the machine's devices.
    """
    if any(name in environment for name in DECIDED):
        return
    plugins = plugin_names()
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    has_nvidia = any((root / path.lstrip("/")).exists() for path in NVIDIA_DEVICES)
    if not (has_libtpu or plugins) or has_tpu(root):
        return
    if not has_nvidia and plugins <= set(CUDA_PLUGINS):
        environment["JAX_PLATFORMS"] = "cpu"
        for name in plugins:
            sys.modules.setdefault(f"jax_plugins.{name}", idle_plugin(name))
    elif has_libtpu:
        for name, value in QUIET_TPU.items():
            environment.setdefault(name, value)


def idle_plugin(name: str) -> ModuleType:
    """Make a plugin that does nothing: JAX loads each, also for a platform that is not asked for, and it prints."""
    module = ModuleType(f"jax_plugins.{name}")
    vars(module)["initialize"] = lambda: None
    return module


def admit_cuda_compiler() -> None:
    """Let JAX load the plugin of NVIDIA GPUs after all, which also compiles for those that are not here."""
    for name in CUDA_PLUGINS:
        module = sys.modules.get(f"jax_plugins.{name}")
        if module is not None and module.__spec__ is None:
            del sys.modules[f"jax_plugins.{name}"]


def plugin_names() -> set[str]:
    """Name JAX's plugins that are installed: modules of the package `jax_plugins`, and declared entry points."""
    found = importlib.util.find_spec("jax_plugins")
    places = found.submodule_search_locations if found else None
    declared = {
        point.value.removeprefix("jax_plugins.") for point in importlib.metadata.entry_points(group="jax_plugins")
    }
    return {module.name for module in pkgutil.iter_modules(places or [])} | declared


def has_tpu(root: Path) -> bool:
    """Tell whether the bus has a device of Google's that is neither a disk nor a network: a TPU of any version."""
    for vendor in (root / "sys" / "bus" / "pci" / "devices").glob("*/vendor"):
        if read(vendor) == GOOGLE and not read(vendor.with_name("class")).startswith(NO_CHIP):
            return True
    return False


def read(path: Path) -> str:
    """Read a line of the system's; nothing if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

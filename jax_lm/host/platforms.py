"""Keep accelerators' libraries quiet on machines that have no such accelerator. Standard library only.

The compilers of `diffucoder plan` are whole runtimes: where one is installed without its device, JAX tries it at every
start, and it complains of missing metadata, drivers and libraries. Called before JAX is imported.
"""

import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

GOOGLE = "0x1ae0"
NO_CHIP = ("0x01", "0x02")
"""Classes of Google's other devices on the bus of a virtual machine: disks and networks."""
NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
"""The last is that of Windows' subsystem for Linux."""
CUDA_PLUGINS = ("xla_cuda12", "xla_cuda13")
CUDA_LIBRARIES = ("jax_cuda12_plugin", "jax_cuda13_plugin")
"""Their kernels, which jaxlib loads with itself where they are installed."""
STDERR = 2
DRIVER_NOTES = re.compile(rb"absl::InitializeLog|Could not find cuda drivers")
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
        if plugins and not any(isinstance(finder, QuietFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, QuietFinder())
    elif has_libtpu:
        for name, value in QUIET_TPU.items():
            environment.setdefault(name, value)


@contextmanager
def without_driver_notes() -> Iterator[None]:
    """Drop what libraries of GPUs print of drivers that are not here; all else that is printed comes at the end."""
    sys.stderr.flush()
    kept = os.dup(STDERR)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, STDERR)
            os.close(kept)
            printed.seek(0)
            for line in printed:
                if not DRIVER_NOTES.search(line):
                    os.write(STDERR, line)


class QuietFinder(MetaPathFinder):
    """Finds the kernels of NVIDIA GPUs as ever; loading them says nothing of drivers."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in CUDA_LIBRARIES:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, ExtensionFileLoader):
            found.loader = QuietLoader(fullname, found.loader.path)
        return found


class QuietLoader(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with without_driver_notes():
            return super().create_module(spec)


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

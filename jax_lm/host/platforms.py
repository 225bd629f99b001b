"""Silences the libraries of accelerators on machines without such an accelerator.

The compilers that `diffucoder plan` uses are complete runtimes. If one is installed without its
device, JAX tries it at every start, and it prints warnings about missing metadata, drivers and
libraries. This module runs before JAX is imported, and uses only the standard library.
"""

import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

# PCI vendor id of Google.
GOOGLE = "0x1ae0"
# PCI classes of Google's other devices in a virtual machine: disks and network adapters.
NO_CHIP = ("0x01", "0x02")
# /dev/dxg is the GPU in the Windows Subsystem for Linux.
NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
CUDA_PLUGINS = ("xla_cuda12", "xla_cuda13")
# Packages with the kernels of these plugins; jaxlib imports them if they are installed.
CUDA_LIBRARIES = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# File descriptor of standard error.
STDERR = 2
DRIVER_NOTES = re.compile(rb"absl::InitializeLog|Could not find cuda drivers")
QUIET_TPU = {"TPU_STDERR_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3"}
# Variables with which a user selects a platform.
DECIDED = (
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_FORCE_TPU_INIT",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
)


def silence_absent(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Set variables that keep the libraries of absent accelerators from printing.

    Variables set by the user are kept. If an accelerator is present, or a plugin is unknown to us,
    no platform is disabled; libtpu is only made to print less if there is no TPU.

    Args:
        environment: environment of this process, before JAX is imported.
        root: root of the file system with the machine's devices.
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
    """Discard messages of GPU libraries about missing drivers.

    All other output to standard error is written when the block ends.
    """
    # The libraries write to the file descriptor, so replacing `sys.stderr` would not be enough.
    sys.stderr.flush()
    original = os.dup(STDERR)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, STDERR)
            os.close(original)
            printed.seek(0)
            for line in printed:
                if not DRIVER_NOTES.search(line):
                    os.write(STDERR, line)


class QuietFinder(MetaPathFinder):
    """Finds the kernels of NVIDIA GPUs, and loads them without messages about drivers."""

    def find_spec(self, fullname: str, path, target: ModuleType | None = None) -> ModuleSpec | None:
        # The path of a namespace package is iterable, but no Sequence.
        if fullname.partition(".")[0] not in CUDA_LIBRARIES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
            spec.loader = QuietLoader(fullname, spec.loader.path)
        return spec


class QuietLoader(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with without_driver_notes():
            return super().create_module(spec)


def idle_plugin(name: str) -> ModuleType:
    """Return a JAX plugin that does nothing.

    JAX loads every installed plugin, even for a platform that is not selected, and the real one
    would print warnings.
    """
    module = ModuleType(f"jax_plugins.{name}")
    vars(module)["initialize"] = lambda: None
    return module


def admit_cuda_compiler() -> None:
    """Let JAX load the plugin of NVIDIA GPUs after all, to compile for GPUs that are absent."""
    for name in CUDA_PLUGINS:
        module = sys.modules.get(f"jax_plugins.{name}")
        # Modules of `idle_plugin` have no spec.
        if module is not None and module.__spec__ is None:
            del sys.modules[f"jax_plugins.{name}"]


def plugin_names() -> set[str]:
    """Return the installed JAX plugins: modules of the package `jax_plugins`, and entry points."""
    spec = importlib.util.find_spec("jax_plugins")
    places = spec.submodule_search_locations if spec else None
    declared = {
        point.value.removeprefix("jax_plugins.")
        for point in importlib.metadata.entry_points(group="jax_plugins")
    }
    return {module.name for module in pkgutil.iter_modules(places or [])} | declared


def has_tpu(root: Path) -> bool:
    """Whether the machine has a TPU: a PCI device of Google that is neither disk nor network."""
    for vendor in (root / "sys" / "bus" / "pci" / "devices").glob("*/vendor"):
        if read(vendor) == GOOGLE and not read(vendor.with_name("class")).startswith(NO_CHIP):
            return True
    return False


def read(path: Path) -> str:
    """Return the text of a system file, or an empty string if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

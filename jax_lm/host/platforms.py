"""Silences the libraries of accelerators on machines without such an accelerator.

The compilers that `diffucoder plan` uses are complete runtimes. JAX initialises every installed
runtime when it starts. One without its device then prints warnings about missing metadata, drivers
and libraries. This module runs before JAX is imported, and uses only the standard library.
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
# PCI classes of Google's devices in a virtual machine that are no TPU: disks and network adapters.
OTHER_CLASSES = ("0x01", "0x02")
# /dev/dxg is the GPU in the Windows Subsystem for Linux.
NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
CUDA_PLUGINS = ("xla_cuda12", "xla_cuda13")
# Packages with the kernels of these plugins. jaxlib imports those that are installed.
CUDA_LIBRARIES = ("jax_cuda12_plugin", "jax_cuda13_plugin")
# File descriptor of standard error.
STDERR = 2
# Lines about missing drivers, to be discarded.
DRIVER_NOTES = re.compile(rb"absl::InitializeLog|Could not find cuda drivers")
QUIET_TPU = {"TPU_STDERR_LOG_LEVEL": "3", "TPU_MIN_LOG_LEVEL": "3"}
# Variables with which a user selects a platform.
PLATFORM_VARIABLES = (
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_FORCE_TPU_INIT",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
)


def silence_absent(environment: MutableMapping[str, str], root: Path = Path("/")):
    """Keep the libraries of absent accelerators from printing, by variables and idle plugins.

    Nothing changes if the user has selected a platform, or if the machine has a TPU. Without any
    accelerator, JAX is restricted to the CPU. With an NVIDIA GPU or an unknown plugin, no platform
    is disabled, and an installed libtpu is only made to print less.

    Args:
        environment: environment of this process, before JAX is imported; it is changed.
        root: root of the file system with the machine's devices.
    """
    if any(name in environment for name in PLATFORM_VARIABLES):
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
    """Discard what GPU libraries print about missing drivers.

    Everything else that is written to standard error appears when the block ends.
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
        # The path of a namespace package is iterable, but not a Sequence.
        if fullname.partition(".")[0] not in CUDA_LIBRARIES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, ExtensionFileLoader):
            spec.loader = QuietLoader(fullname, spec.loader.path)
        return spec


class QuietLoader(ExtensionFileLoader):
    """Loads an extension module without messages about drivers."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with without_driver_notes():
            return super().create_module(spec)


def idle_plugin(name: str) -> ModuleType:
    """Return a JAX plugin that does nothing.

    It takes the place of an installed one, which would print warnings: JAX loads every installed
    plugin, even for a platform that is not selected.
    """
    module = ModuleType(f"jax_plugins.{name}")
    vars(module)["initialize"] = lambda: None
    return module


def admit_cuda_compiler():
    """Remove the idle plugins, so that JAX loads the real ones and can compile for absent GPUs."""
    for name in CUDA_PLUGINS:
        module = sys.modules.get(f"jax_plugins.{name}")
        # Only a module made by `idle_plugin` has no spec.
        if module and module.__spec__ is None:
            del sys.modules[f"jax_plugins.{name}"]


def plugin_names() -> set[str]:
    """Return the installed JAX plugins: modules of the package `jax_plugins`, and entry points."""
    spec = importlib.util.find_spec("jax_plugins")
    folders = spec.submodule_search_locations if spec else None
    entry_points = {
        point.value.removeprefix("jax_plugins.")
        for point in importlib.metadata.entry_points(group="jax_plugins")
    }
    return {module.name for module in pkgutil.iter_modules(folders or [])} | entry_points


def has_tpu(root: Path) -> bool:
    """Whether the machine has a TPU: a PCI device of Google that is neither disk nor network."""
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        if read(vendor) == GOOGLE and not read(vendor.with_name("class")).startswith(OTHER_CLASSES):
            return True
    return False


def read(path: Path) -> str:
    """Return the text of a system file, or an empty string if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

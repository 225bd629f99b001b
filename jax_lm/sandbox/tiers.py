"""How a process is contained on this host: bubblewrap, Landlock, or, if one insists, not at all."""

import functools
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Literal

Tier = Literal["bubblewrap", "landlock", "unsafe"]
ExecutorName = Literal["auto", "bubblewrap", "landlock", "unsafe"]
SAFE: tuple[Tier, ...] = ("bubblewrap", "landlock")
PACKAGES = tuple(name for name in ("numpy",) if importlib.util.find_spec(name))
"""What programs may import beside the standard library unless told otherwise: the package that most of them know."""
HARNESS = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
WORK_BYTES = 64 * 2**20
"""Bytes that the files of a program may have together."""

INSIDE = Path(__file__).parent / "inside"

BOOTSTRAP = """
import json, sys, types
folder, control, tier, readable, work, packages = sys.argv[1:]
# The packages above are not imported: the sandbox has no use for what they bring.
for name in ("jax_lm", "jax_lm.sandbox", "jax_lm.sandbox.inside"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder] if name.endswith("inside") else []
from jax_lm.sandbox.inside import zygote
zygote.main(int(control), tier, json.loads(readable), work, json.loads(packages))
"""


class SandboxUnavailableError(OSError):
    """A host that cannot contain a program in the way that was asked for."""


def interpreter() -> str:
    """Find the Python that a virtual environment was made from: it finds its library without one."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def readable(folders: dict[str, str]) -> list[str]:
    """List what a program may read: the interpreter with its library, the system's libraries, time zones, packages."""
    paths = [
        sys.base_prefix,
        sys.base_exec_prefix,
        interpreter(),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        str(INSIDE),
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime"),
    ]
    venv = Path(sys.prefix) if sys.prefix != sys.base_prefix else None
    paths = [path for path in paths if venv is None or Path(path) == INSIDE or venv not in Path(path).parents]
    # Beside a package lie the shared libraries that its wheel brings.
    paths += [path for folder in folders.values() for path in (folder, f"{folder}.libs") if os.path.exists(path)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@functools.cache
def package_folders(names: tuple[str, ...]) -> dict[str, str]:
    """Find where this interpreter would import packages from; ValueError names the first that it has not."""
    folders = {}
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.submodule_search_locations or not spec.origin:
            raise ValueError(f"packages={names}: no package {name!r} is installed")
        folders[name] = os.path.dirname(spec.origin)
    return folders


@functools.cache
def harness_folders() -> dict[str, str]:
    """Find the packages with which tests are run; one is a single file."""
    specs = [spec for name in HARNESS if (spec := importlib.util.find_spec(name)) and spec.origin]
    return {s.name: os.path.dirname(str(s.origin)) if s.submodule_search_locations else str(s.origin) for s in specs}


def work_folder(packages: tuple[str, ...]) -> str:
    """Name the folder in which programs may write in bubblewrap; what they may read must not lie in it."""
    paths = readable(package_folders(packages) | harness_folders())
    return "/tmp/work" if any(path.startswith("/tmp/") for path in paths) else "/tmp"


def command(tier: Tier, control: int, packages: tuple[str, ...], work: str) -> list[str]:
    """Make the command line that starts the zygote in a tier.

    Args:
        control: the descriptor of its socket.
        work: the folder in which programs may write; in bubblewrap it is made there.
    """
    folders = package_folders(packages) | harness_folders()
    paths = readable(folders)
    arguments = [BOOTSTRAP, str(INSIDE), str(control), tier, json.dumps(paths), work, json.dumps(folders)]
    python = [interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", *arguments]
    if tier != "bubblewrap":
        return python
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailableError("bubblewrap: the program bwrap is not installed")
    binds = [word for path in sorted(paths, key=len) for word in ("--ro-bind", path, path)]
    return [
        program,
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        # The zygote is process 1: nothing inside can signal it, and no helper of bubblewrap's outlives it.
        "--as-pid-1",
        *("--cap-drop", "ALL"),
        # First, as what follows may lie in a folder of that name.
        *("--perms", "0700", "--size", str(WORK_BYTES), "--tmpfs", work),
        *binds,
        *("--dev-bind", os.devnull, os.devnull),
        *("--remount-ro", "/", "--chdir", "/", "--"),
        *python,
    ]

"""How a process is contained on this host: by bubblewrap, Landlock, or, on request, not at all."""

import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Literal

from untrusted.inside.broker import HOST
from untrusted.inside.usage import WORK_BYTES

Tier = Literal["bubblewrap", "landlock", "unsafe"]
ExecutorName = Literal["auto", "bubblewrap", "landlock", "unsafe"]
# In order of preference.
SAFE: tuple[Tier, ...] = ("bubblewrap", "landlock")
# Names of packages that programs may import.
Packages = tuple[str, ...]
# Packages that programs may import by default in addition to the standard library, if installed.
PACKAGES = tuple(name for name in ("numpy",) if importlib.util.find_spec(name))
# Packages that run tests: pytest and what it imports.
HARNESS = "pytest _pytest pluggy iniconfig packaging pygments py".split()  # noqa: SIM905
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
# Where packages are installed below a folder that programs may read.
PACKAGE_FOLDERS = (
    "site-packages",
    "dist-packages",
    "python*/site-packages",
    "python*/dist-packages",
)

INSIDE = Path(__file__).parent / "inside"

# Started with `python -c`: the folder `inside` is importable, and nothing else of this package.
BOOTSTRAP = """
import json, sys, types
folder, settings = sys.argv[1:]
# The parent packages are not imported: the sandbox does not need their code.
for name in ("untrusted", "untrusted.inside"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder] if name.endswith("inside") else []
from untrusted.inside import zygote
zygote.main(*json.loads(settings))
"""


class SandboxUnavailableError(OSError):
    """Raised when the host does not support the requested isolation tier."""


def interpreter() -> str:
    """Return the Python behind a virtual environment, which finds its standard library alone."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def library() -> tuple[str, ...]:
    """List the files and folders of the interpreter that every program needs."""
    # The paths of the real interpreter: a virtual environment has no library.
    base = {"platbase": sys.base_exec_prefix}
    parts = [
        interpreter(),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib", vars=base),
    ]
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        parts.append("/".join(map(str, sysconfig.get_config_vars("LIBDIR", "INSTSONAME"))))
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        folder = os.path.join(prefix, "lib")
        # Shared libraries that the interpreter was built with lie next to its own library. The
        # system's folders are readable anyway (`system_libraries`).
        if folder not in SYSTEM_LIBRARIES:
            parts += sorted(glob.glob(f"{glob.escape(folder)}/lib*.so*"))
    # Each path as it is and with links resolved: the interpreter is started by the resolved one, and
    # looks for its library from there.
    return tuple(dict.fromkeys(name for part in parts for name in (part, os.path.realpath(part))))


@cache
def system_libraries() -> tuple[str, ...]:
    """List the system's folders of shared libraries, only this machine's architecture if possible.

    /usr/lib -> /usr/lib/x86_64-linux-gnu and the loader /usr/lib/ld-*.so*
    """
    folders = []
    for folder in SYSTEM_LIBRARIES:
        machine_folder = f"{folder}/{platform.machine()}-linux-gnu"
        if os.path.isdir(machine_folder):
            folders += [machine_folder, *glob.glob(f"{folder}/ld-*.so*")]
        else:
            folders.append(folder)
    return tuple(folders)


def readable(folders: dict[str, str]) -> list[str]:
    """List paths that a program may read: standard and system libraries, time zones, packages."""
    paths = [
        *library(),
        str(INSIDE),
        *system_libraries(),
        *("/etc/ld.so.cache", "/usr/share/zoneinfo", "/etc/localtime"),
    ]
    paths += [path for item in folders.items() for path in (item[1], shared_libraries(*item))]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@cache
def shared_libraries(name: str, folder: str) -> str:
    """Return the folder of a package's shared libraries, as wheels install them; it may not exist.

    numpy -> numpy.libs; PIL, of the distribution Pillow -> pillow.libs
    """
    site = os.path.dirname(folder)
    if os.path.isdir(f"{folder}.libs") or not glob.glob(f"{glob.escape(site)}/*.libs"):
        return f"{folder}.libs"
    owners = importlib.metadata.packages_distributions().get(name, [name])
    return f"{site}/{owners[0].lower().replace('-', '_')}.libs"


@cache
def hidden_in(path: str) -> list[str]:
    """List the folders of installed packages within a folder."""
    return [
        folder
        for pattern in PACKAGE_FOLDERS
        for folder in glob.glob(f"{glob.escape(path)}/{pattern}")
        if os.path.isdir(folder) and not os.path.islink(folder)
    ]


def hidden(paths: list[str]) -> list[str]:
    """List the folders of installed packages below readable folders.

    A program may read nothing in them except what is listed explicitly.
    """
    return sorted({folder for path in paths for folder in hidden_in(path)})


@cache
def package_folders(names: Packages) -> dict[str, str]:
    """Return the folder of each installed package, or the file of a single module, by name."""
    folders = {}
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            is_package = spec.submodule_search_locations
            folders[name] = os.path.dirname(spec.origin) if is_package else spec.origin
    return folders


def work_folder(packages: Packages) -> str:
    """Return the folder in which programs may write in bubblewrap.

    Nothing readable may lie in it, as it starts empty and is emptied after each program: /tmp, or
    /tmp/work if packages or the interpreter lie below /tmp.
    """
    paths = readable(package_folders((*packages, *HARNESS)))
    return "/tmp/work" if any(path.startswith("/tmp/") for path in paths) else "/tmp"


def command(tier: Tier, control: int, packages: Packages, work: str) -> list[str]:
    """Return the command line that starts the zygote in a tier.

    Args:
        tier: how to contain it.
        control: descriptor of its socket.
        packages: packages that programs may import.
        work: folder in which programs may write; bubblewrap creates it inside the sandbox.
    """
    folders = package_folders((*packages, *HARNESS))
    paths = readable(folders)
    hidden_folders = hidden(paths)
    settings = json.dumps([control, tier, paths, hidden_folders, work, folders])
    # -I: ignore the environment and the user's folder; -S: no site packages; -B: write no bytecode.
    options = ("-I", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP)
    python = [interpreter(), *options, str(INSIDE), settings]
    if tier != "bubblewrap":
        return python
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailableError("bubblewrap: the program bwrap is not installed")
    mounts = {path: ("--ro-bind", path, path) for path in paths}
    # An empty folder hides the installed packages; the allowed ones are mounted into it.
    mounts |= {
        path: ("--perms", "0755", "--tmpfs", path) for path in hidden_folders if path not in mounts
    }
    return [
        program,
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        *("--hostname", HOST),
        # The zygote is process 1: nothing inside can signal it, and no helper process of
        # bubblewrap outlives it.
        "--as-pid-1",
        *("--cap-drop", "ALL"),
        # The work folder first, as later mounts may lie in a folder of that name.
        *("--perms", "0700", "--size", str(WORK_BYTES), "--tmpfs", work),
        # Shorter paths first: a folder is mounted before what lies in it.
        *(word for path in sorted(mounts, key=len) for word in mounts[path]),
        *("--dev-bind", os.devnull, os.devnull),
        # Made read-only last, after everything has been mounted into them.
        *(word for path in hidden_folders for word in ("--remount-ro", path)),
        *("--remount-ro", "/", "--chdir", "/", "--"),
        *python,
    ]

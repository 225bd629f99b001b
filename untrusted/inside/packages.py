"""The packages that a session may import in addition to the standard library.

Imports the standard library only.
"""

import sys
import types
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any


class Packages:
    """Finds these packages by their folders and nothing else.

    The folder that contains them (site-packages) is closed to a program.

    Args:
        folders: by package name, its folder, or its file if it is a single module.
    """

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a package, as `sys.meta_path` asks."""
        folder = self.folders.get(name)
        if folder is None:
            return None
        if folder.endswith(".py"):
            return spec_from_file_location(name, folder)
        return spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def is_genuine(module: Any) -> bool:
    """Whether a module's name means the same at both ends: a standard module or allowed package."""
    if not isinstance(module, str):
        return False
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    allowed = any(
        isinstance(finder, Packages) and top in finder.folders for finder in sys.meta_path
    )
    return allowed or top in sys.stdlib_module_names


# Classes that only the module `types` has a name for, such as the type of functions.
NAMELESS = {kind: name for name, kind in vars(types).items() if isinstance(kind, type)}


def genuine_name(kind: type) -> list[str] | None:
    """Return module and qualified name if the other end finds the same class by them; else None."""
    module = getattr(kind, "__module__", None)
    if not is_genuine(module) or module == "__main__":
        return None
    if kind in NAMELESS:
        return ["types", NAMELESS[kind]]
    # Follow the name from the module: it must lead to this very class.
    found: Any = sys.modules.get(str(module))
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return [str(module), kind.__qualname__] if found is kind else None


# Modules of C functions that only compute, and their members that do more: run code, reach other
# objects, or change their arguments.
PURE_MODULES = ("math", "cmath", "_operator", "builtins")
IMPURE = {
    "__build_class__", "__import__", "breakpoint", "compile", "delattr", "delitem", "dir", "eval", "exec", "getattr",
    "globals", "id", "input", "locals", "next", "open", "print", "setattr", "setitem", "vars",
    "aiter", "anext", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
    "irshift", "isub", "itruediv", "ixor",
}  # fmt: skip


def pure_name(function: Any) -> list[str] | None:
    """Return module and name of a C function that only computes; None for any other.

    Both ends may then use their own copy of it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", None)
    return [str(module), str(name)] if pure_function(module, name) is function else None


def pure_function(module: Any, name: Any) -> Any:
    """Return the function that `pure_name` has named; None if it is not a pure one."""
    if module not in PURE_MODULES or name in IMPURE:
        return None
    found = getattr(sys.modules.get(module), str(name), None)
    return found if isinstance(found, types.BuiltinFunctionType) else None

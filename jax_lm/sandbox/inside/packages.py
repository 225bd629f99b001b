"""The packages that a session may import beside the standard library. Imports the standard library only."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any


class Packages:
    """Finds these packages by their folders, and nothing beside them: the folder above is closed to a program."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As `sys.meta_path` asks for it."""
        folder = self.folders.get(name)
        if folder is None:
            return None
        return spec_from_file_location(name, f"{folder}/__init__.py", submodule_search_locations=[folder])


def is_genuine(module: Any) -> bool:
    """Tell whether a module's name means the same to everybody: the standard library's, or an allowed package's."""
    if not isinstance(module, str):
        return False
    top = module.partition(".")[0]
    allowed = any(isinstance(finder, Packages) and top in finder.folders for finder in sys.meta_path)
    return allowed or top in sys.stdlib_module_names

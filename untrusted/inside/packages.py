"""Find the packages that a session allows, and the names that mean the same in test and program.

Imports the standard library only.
"""

import builtins
import importlib
import operator
import sys
import types
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

from untrusted.inside import wire
from untrusted.inside.containers import CONTAINERS


class Packages:
    """Finds packages in their own folders, because programs cannot read site-packages above them.

    Args:
        folders: by package name, its folder, or its file if it is a single module.
    """

    def __init__(self, folders: dict[str, str]):
        self.folders = folders

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        """Find a package; the import system calls this for entries of `sys.meta_path`."""
        folder = self.folders.get(name)
        if folder is None:
            return None
        is_file = folder.endswith(".py")
        path, inner = (folder, None) if is_file else (f"{folder}/__init__.py", [folder])
        return spec_from_file_location(name, path, submodule_search_locations=inner)


def top_of(module) -> str:
    """Return the package of a module: "os.path" -> "os"."""
    # str(), because a class may have any object as its `__module__`.
    return str(module).partition(".")[0]


def is_genuine(module) -> bool:
    """Whether a name means the same module at both ends: a standard module or allowed package."""
    if not isinstance(module, str):
        return False
    top = top_of(module)
    return top in sys.stdlib_module_names or any(
        isinstance(finder, Packages) and top in finder.folders for finder in sys.meta_path
    )


def is_of_package(kind) -> bool:
    """Whether a class is one of an installed package that the session allows."""
    # A tuple of classes has no module.
    module = top_of(getattr(kind, "__module__", ""))
    return module not in sys.stdlib_module_names and is_genuine(module)


# Classes that only have a name in the module `types`, such as the type of functions.
NAMELESS = {kind: name for name, kind in vars(types).items() if isinstance(kind, type)}


def genuine_name(value) -> str | None:
    """Return the name by which both ends find the same module, class or builtin function.

    math -> "math:", OrderedDict -> "collections:OrderedDict", len -> "builtins:len"; None for any
    other value.
    """
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:" if is_genuine(value.__name__) else None
    if not isinstance(value, type | types.BuiltinFunctionType):
        return None
    module = value.__module__
    name = value.__qualname__
    if isinstance(value, type) and value in NAMELESS:
        module = "types"
        name = NAMELESS[value]
    if not is_genuine(module):
        return None
    # Compare identities, because any class may claim the name "int" and the module "builtins".
    with suppress(AttributeError):
        if operator.attrgetter(name)(sys.modules.get(module)) is value:
            return f"{module}:{name}"
    return None


# Types that a program may name

# Library modules whose exception classes a program may raise in the test. All other classes,
# especially those of test frameworks, arrive as classes of the program.
LIBRARY = """
    _csv _lzma _pickle _queue _struct argparse asyncio.exceptions asyncio.queues binascii calendar
    concurrent.futures._base configparser copy dataclasses decimal getopt graphlib http.client ipaddress
    json.decoder numpy numpy.exceptions numpy.linalg pickle queue re shutil socket sqlite3
    statistics struct subprocess tarfile threading tomllib urllib.error xml.etree.ElementTree
    zipfile zlib zoneinfo._common
"""
PLAIN_TYPES = (*wire.FORMS, *CONTAINERS.values(), types.FunctionType, types.MethodType)
# Built-in types and those of plain data, which a program may name, too.
BUILTIN = [kind for kind in (type(None), *vars(builtins).values()) if isinstance(kind, type)]
TYPES = {genuine_name(kind): kind for kind in (*PLAIN_TYPES, *BUILTIN)}


def find_type(name: str) -> type | None:
    """Return the type that a program may refer to by this name; None if there is none."""
    module, _, member = name.partition(":")
    if name in TYPES or module not in LIBRARY.split():
        return TYPES.get(name)
    with suppress(ImportError):
        found = getattr(importlib.import_module(module), member, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None

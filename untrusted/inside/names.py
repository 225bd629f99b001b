"""The names that a test sees.

They are the program's, those that the program imports from the library, builtins, and the test's
own. Imports the standard library only.
"""

import ast
import builtins
import importlib
import importlib.util
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from untrusted.inside import checks
from untrusted.inside.handles import (
    NOTHING,
    Handle,
    Valued,
    ask,
    content_of,
    facts_of,
    is_plain_data,
    mark,
    native,
    no_verdict,
    unless_tainted,
)
from untrusted.inside.packages import is_genuine

# Modules that a test may receive under the program's names. None of them runs what a file contains,
# as runpy, shelve and pickle do.
IMPORTED = {
    "abc", "array", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "ipaddress", "itertools",
    "json", "math", "numbers", "numpy", "operator", "os", "pathlib", "random", "re", "statistics", "string", "sys",
    "textwrap", "time", "types", "typing", "uuid", "zoneinfo",
}  # fmt: skip
# Of these a test receives no members: exit, for one, would end the test as its own.
CLOSED = {"contextlib", "io", "os", "sys", "time", "types"}
# Functions that decide, with the module they come from if a test uses them without an import.
HELPERS = {"isclose": "math", "approx": "pytest", "raises": "pytest"}
# Methods that compare with their argument, as operators do.
SET_METHODS = ("intersection", "union", "difference", "symmetric_difference")
VIEWS = ("keys", "values", "items")
# Returns one name of the program, from its process.
Fetch = Callable[[str], Any]


def genuine_imports(code: str) -> dict[str, Any]:
    """Import the library names that a program imports, by its text and not by its word.

    "import numpy as np; from math import isclose" -> {"np": numpy, "isclose": math.isclose}
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    # Name in the program -> module, and attribute or "" for the module itself
    found: dict[str, tuple[str, str]] = {}
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = (alias.name if alias.asname else name, "")
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                found[alias.asname or alias.name] = (statement.module, alias.name)
        else:
            # A later definition of the name hides the import.
            for name in checks.names_of(checks.nodes_of(statement))[1]:
                found.pop(name, None)
    values = {name: genuine(*place) for name, place in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def genuine(module: str, name: str = "") -> Any:
    """Import a name of the library; None unless it is in IMPORTED and exists."""
    top = module.partition(".")[0]
    if top not in IMPORTED or (name and top in CLOSED):
        return None
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(found, name, None) if name else found


class TestModule(types.ModuleType):
    """The module `__main__` of a test, and the program as a module that a test imports.

    A program's name that the test replaces here (`mock.patch`) is replaced in the program too.
    """

    def __init__(self, name: str, fetch: Fetch, theirs: set[str]) -> None:
        super().__init__(name)
        # Directly: `__setattr__` below needs them.
        self.__dict__.update(_fetch=fetch, _theirs=theirs, _originals={})

    @property
    def __all__(self) -> list[str]:
        return sorted(name for name in self.__dict__["_theirs"] if not name.startswith("_"))

    def __getattr__(self, name: str) -> Any:
        # Names of the program are fetched when they are used.
        if name in self.__dict__["_theirs"]:
            return self.__dict__["_fetch"](name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__["_theirs"]:
            self.__dict__["_originals"].setdefault(name, self.__dict__["_fetch"](name))
            ask("set name", name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        # Undoing a patch deletes the name: the program's original comes back.
        if name in self.__dict__["_originals"]:
            ask("set name", name, self.__dict__["_originals"].pop(name))
        self.__dict__.pop(name, None)


class GenuineFinder:
    """Finds modules by `sys.path` as it was at the start."""

    def __init__(self, path: list[str]) -> None:
        self.path = path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.path if path is None else path, target)


class ProgramFinder:
    """Finds the program for every module name that is found nowhere else."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if "." in name or name.startswith("_") or name in ("pytest", "numpy") or is_genuine(name):
            return None
        # No base class from importlib.abc: importing that makes every process slower.
        return importlib.util.spec_from_loader(name, self)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is: its names are fetched when they are used."""


def namespace(
    fetch: Fetch,
    nodes: list[Any],
    read: set[str],
    defined: set[str],
    theirs: set[str],
    imported: dict[str, Any],
    submodules: list[str],
) -> dict[str, Any]:
    """Return the names of the program, and of modules, that the test sees.

    A builtin keeps its meaning unless it is the only name of the program in the test:
    `abs(f(1) - 2) < 1e-6` means Python's abs, `sum(10, 15) == 25` the program's sum. The same holds
    for modules, and for functions that decide.

    Args:
        fetch: returns one name of the program.
        read: names that the test reads.
        defined: names that it defines.
        theirs: names of the program.
        imported: what the program imports from the library.
        submodules: modules that it imports by their dotted names.
    """
    free = read - defined
    # Evaluates annotations, in which any name of the program may stand.
    if any(getattr(node, "attr", getattr(node, "id", "")) == "get_type_hints" for node in nodes):
        free |= theirs - defined
    # Modules that the test uses without an import
    meant = checks.modules_meant(nodes, free - imported.keys())
    found = {name: importlib.import_module(name) for name in meant - {"np"}}
    if "np" in meant and importlib.util.find_spec("numpy"):
        found["np"] = importlib.import_module("numpy")
    # `http.server` means the module that the program imports by this name.
    for name in submodules:
        if name.partition(".")[0] in found and "__" not in name:
            importlib.import_module(name)
    # Names with a meaning of their own: builtins, helpers, modules
    known = {name for name in theirs if hasattr(builtins, name) or name in HELPERS} | found.keys()
    # Names that can only be the program's; if there is none, those with another meaning, too
    chosen = free & (theirs - known)
    if not chosen and all(is_genuine(module) for module, _ in checks.imports_of(nodes)):
        chosen = only_target(nodes, (free & theirs) - found.keys())
    for name in (free & theirs & HELPERS.keys()) - chosen:
        found[name] = getattr(importlib.import_module(HELPERS[name]), name)
    # A name that the test both reads and defines may mean the program's where it is read first.
    chosen |= read & defined & (theirs - known)
    return found | {name: fetch(name) for name in sorted(chosen)}


def only_target(nodes: list[Any], names: set[str]) -> set[str]:
    """Return the name that a test can only mean as the program's; none if it could mean several.

    abs(sum(1.5, 2.5) - 4) < 1e-6, with `abs` and `sum` in the program -> {"sum"}: the inner one.
    """
    if len(names) < 2:
        return names
    inner = set()
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in names:
            below = {
                getattr(part, "id", "")
                for part in checks.nodes_of(node)[1:]
                if part is not node.func
            }
            inner |= set() if below & names else {checks.name_of(node.func)}
    return {name for name in names if not hasattr(builtins, name)} if len(inner) > 1 else inner


# Functions that a prepared test calls in the place of Python's own (`checks.ask_for_classes`)


class Typed:
    """Has the class of a value, in the program if the value is there."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type_of(self.value) if isinstance(self.value, Handle) else self.value.__class__


def type_of(value: Any) -> Any:
    """Return the class of a value, in the program if the value is there."""
    return ask("type", value) if isinstance(value, Handle) else type(value)


def method_call(subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a method; with a single message if the object is the program's."""
    if not isinstance(subject, Handle) or facts_of(subject)["kind"] == "coroutine":
        return getattr(subject, name)(*arguments, **keywords)
    # The content of a dictionary is that of the plain type, unless the test has made the object.
    is_view = name in VIEWS and not arguments and not facts_of(subject).get("made")
    if is_view and (content := content_of(subject)) is not NOTHING:
        return getattr(content, name)()
    made = unless_tainted(subject, ask("call method", subject, name, *arguments, **keywords))
    if name in SET_METHODS and not facts_of(subject).get("made"):
        mark(made, subject, tainted=True)
    # A method of a plain type that has seen the operand: result.startswith("Hello")
    if isinstance(subject, Valued) and arguments and not isinstance(made, Handle):
        method = native(subject, name)
        if all(map(is_plain_data, arguments)) and method and method(*arguments, **keywords) != made:
            raise no_verdict(subject, name)
    # Stack.Node(...): the test has made this object by the name of its class.
    if name[:1].isupper() and "_" not in name and isinstance(made, Handle):
        facts_of(made)["made"] = True
    return made


def is_callable(value: Any) -> bool:
    return ask("callable", value) if isinstance(value, Handle) else callable(value)

"""The names that a test sees.

They are the program's, those that the program imports from the library, builtins, and the test's
own. Imports the standard library only.
"""

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from untrusted.inside import checks
from untrusted.inside.channel import Fields
from untrusted.inside.handles import (
    NOTHING,
    Handle,
    TestSide,
    ask,
    content_of,
    facts_of,
    is_plain_data,
    mark,
    no_verdict,
    unless_tainted,
)
from untrusted.inside.packages import is_genuine

# Modules that a test may receive under the program's names. None of them runs what a file contains,
# as runpy, shelve and pickle do.
IMPORTED = """
    abc array bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal
    email enum fractions functools hashlib heapq html http io ipaddress itertools json math
    numbers numpy operator os pathlib random re statistics string sys textwrap time types typing
    urllib uuid xml zoneinfo
"""
# Of these a test receives no members: exit, for one, would end the test as its own.
CLOSED = {"contextlib", "io", "os", "sys", "time", "types"}
# Functions that decide, with the module they come from if a test uses them without an import.
HELPERS = {"isclose": "math", "approx": "pytest", "raises": "pytest"}
# Methods that compare with their argument, as operators do.
SET_METHODS = ("intersection", "union", "difference", "symmetric_difference")
VIEWS = ("keys", "values", "items")
# Returns one name of the program, from its process.
Fetch = Callable[[str], Any]


def genuine_imports(code: str) -> Fields:
    """Import the library names that a program imports, by its text and not by its word.

    "import numpy as np; from math import isclose" -> {"np": numpy, "isclose": math.isclose}
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: Fields = {}
    for statement in body:
        # A later definition of a name hides the import.
        for name in checks.names_of(checks.nodes_of(statement))[1]:
            found.pop(name, None)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                found |= genuine(alias.name, "", alias.asname)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                found |= genuine(statement.module, alias.name, alias.asname)
    return found


def genuine(module: str, name: str, bound: str | None) -> Fields:
    """Import a module, or a name of one, as it is bound; empty if it is not in IMPORTED."""
    top = module.partition(".")[0]
    if top not in IMPORTED.split() or (name and top in CLOSED):
        return {}
    try:
        found = importlib.import_module(module)
    except ImportError:
        return {}
    if name:
        return {bound or name: getattr(found, name)} if hasattr(found, name) else {}
    # `import http.server` binds "http".
    return {bound: found} if bound else {top: importlib.import_module(top)}


class TestModule(types.ModuleType):
    """The module `__main__` of a test, and the program as a module that a test imports.

    A program's name that the test replaces here (`mock.patch`) is replaced in the program too.
    """

    def __init__(self, name: str, fetch: Fetch, theirs: set[str]) -> None:
        super().__init__(name)
        # Directly: `__setattr__` below needs them.
        self.__dict__.update(_fetch=fetch, _theirs=theirs)

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
            ask("patch", TestSide.peer.main, name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        # Undoing a patch deletes the name: the program's original comes back.
        if name in self.__dict__["_theirs"]:
            ask("unpatch", TestSide.peer.main, name)
        self.__dict__.pop(name, None)


class ProgramFinder:
    """Finds modules by `sys.path` as it was at the start.

    Every name of a module in the test that is found nowhere else means the program. What a library
    tries to import besides is not there.
    """

    def __init__(self, module: types.ModuleType, source: str) -> None:
        self.module, self.source, self.path = module, source, [*sys.path]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, self.path if path is None else path, target)
        is_ours = "." in name or name.startswith("_") or name in ("pytest", "numpy")
        if found or is_ours or name not in self.source or is_genuine(name):
            return found
        # No base class from importlib.abc: importing that makes every process slower.
        return importlib.util.spec_from_loader(name, self)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is: its names are fetched when they are used."""


def namespace(fetch: Fetch, nodes: list[Any], theirs: set[str], imported: Fields) -> Fields:
    """Return the names of the program, and of modules, that the test sees.

    A builtin keeps its meaning unless it is the only name of the program in the test:
    `abs(f(1) - 2) < 1e-6` means Python's abs, `sum(10, 15) == 25` the program's sum. The same holds
    for modules, and for functions that decide.

    Args:
        fetch: returns one name of the program.
        nodes: the test's syntax tree.
        theirs: names of the program.
        imported: what the program imports from the library.
    """
    read, defined = checks.names_of(nodes)
    free = read - defined
    # Modules that the test uses without an import
    meant = checks.modules_meant(nodes, free - imported.keys())
    found = {name: importlib.import_module(name) for name in meant}
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
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    inner = {
        checks.name_of(call.func)
        for call in calls
        if not names & checks.names_in(*call.args, *call.keywords)
    }
    inner &= names
    return names if len(names) < 2 else inner if len(inner) < 2 else set()


# Functions that a prepared test calls in the place of Python's own (`checks.ask_for_classes`)


def typed(value: Any) -> types.SimpleNamespace:
    """Return what has the class of a value as `kind`."""
    return types.SimpleNamespace(kind=type_of(value))


def type_of(value: Any) -> Any:
    """Return the class of a value, in the program if the value is there."""
    return ask("type", value) if isinstance(value, Handle) else type(value)


def method_call(subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a method; with a single message if the object is the program's."""
    if not isinstance(subject, Handle):
        return getattr(subject, name)(*arguments, **keywords)
    # The content of a dictionary is that of the plain type, unless the test has made the object.
    is_view = name in VIEWS and not arguments and not facts_of(subject).get("made")
    if is_view and (content := content_of(subject)) is not NOTHING:
        return getattr(content, name)()
    made = unless_tainted(subject, ask("call method", subject, name, *arguments, **keywords))
    if name in SET_METHODS and not facts_of(subject).get("made"):
        mark(made, subject, tainted=True)
    # A method of a plain type that has seen the operand: result.startswith("Hello")
    if arguments and not isinstance(made, Handle) and all(map(is_plain_data, arguments)):
        method = getattr(facts_of(subject).get("content", NOTHING), name, None)
        if method and method(*arguments, **keywords) != made:
            raise no_verdict(subject, name)
    # Stack.Node(...): the test has made this object by the name of its class.
    if name[:1].isupper() and "_" not in name and isinstance(made, Handle):
        facts_of(made)["made"] = True
    return made

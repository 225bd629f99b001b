"""Decide what each name in a test means: the program's object, a library module, or a builtin.

Imports the standard library only.
"""

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from untrusted.inside import checks
from untrusted.inside.channel import Fields
from untrusted.inside.handles import TestSide, ask, cannot_judge
from untrusted.inside.packages import is_genuine, top_of

# Modules that a test can use by the program's imports. Unlike runpy, shelve and pickle, none of
# them executes the content of a file, but for members that `checks.REFUSED` names.
LIBRARY = """
    abc array bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal
    email enum fractions functools hashlib heapq html http io ipaddress itertools json math
    numbers numpy operator os pandas pathlib random re statistics string sys textwrap time types typing
    urllib uuid xml zoneinfo
"""
IMPORTED = frozenset(LIBRARY.split())
# Modules whose members are not shared: `from sys import exit as f` would let the program end a test.
CLOSED = {"contextlib", "io", "os", "sys", "time", "types"}
# Functions whose result decides a test, with the module that they are taken from if a test does not
# import them.
HELPERS = {"isclose": "math", "approx": "pytest", "raises": "pytest"}


def genuine_imports(code: str) -> Fields:
    """Import the library names that a program imports, read from its source, which cannot lie.

    "import numpy as np; from math import isclose" -> {"np": numpy, "isclose": math.isclose}
    """
    names = {}
    # A program that cannot be parsed fails by itself.
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for statement in ast.parse(code).body:
            # A later definition of a name hides the import.
            for name in checks.names_of(checks.nodes_of(statement))[1]:
                names.pop(name, None)
            # What would execute a file of the program: `from pandas import read_pickle as load`
            if is_import_of_library(statement) and not checks.REFUSED.search(
                ast.unparse(statement)
            ):
                with suppress(ImportError):
                    exec(compile(ast.Module([statement], []), "<import>", "exec"), names)
    return names


def is_import_of_library(statement) -> bool:
    """Whether a statement only imports modules of `IMPORTED`, or members of those that compute."""
    if isinstance(statement, ast.Import):
        return IMPORTED.issuperset(top_of(alias.name) for alias in statement.names)
    # `from . import x` has no module.
    return isinstance(statement, ast.ImportFrom) and top_of(statement.module) in IMPORTED - CLOSED


class TestModule(types.ModuleType):
    """The test's module `__main__`, or the program as a module that the test imports.

    Names of the program are fetched when they are used. If the test replaces one (`mock.patch`), it
    is replaced in the program, too.
    """

    @property
    def __all__(self) -> list[str]:
        return sorted(n for n in TestSide.peer.program_names if n[0] != "_" and not is_shared(n))

    def __getattr__(self, name: str):
        if name in TestSide.peer.program_names:
            return TestSide.peer.fetch(name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value):
        if name in TestSide.peer.program_names:
            ask("patch", TestSide.peer.main, name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str):
        # `mock.patch` deletes a name to undo a patch; the program then restores the original.
        if name in TestSide.peer.program_names:
            ask("patch", TestSide.peer.main, name)
        self.__dict__.pop(name, None)


class ProgramFinder:
    """Finds modules on the initial `sys.path`, and the program under any other name.

    `from solution import f` imports the program if the test's text mentions "solution" and no such
    module is installed. Modules that a library tries to import are not replaced.
    """

    def __init__(self, module: types.ModuleType):
        self.module = module
        self.path = [*sys.path]

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, self.path if path is None else path, target)
        is_ours = "." in name or name.startswith("_") or name in ("pytest", "numpy")
        if spec or is_ours or name not in TestSide.source or is_genuine(name):
            return spec
        # Without a base class from importlib.abc, whose import would slow down every process.
        return importlib.util.spec_from_loader(name, self)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType):
        """Do nothing: the module fetches its names when they are used."""


def namespace(nodes: list[Any]) -> tuple[Fields, set[str]]:
    """Return the names of the program and of library modules that a test uses, and the program's.

    A name that is also a builtin, a module or one of HELPERS keeps that meaning, unless it is the
    only name of the program in the test: `abs(f(1) - 2) < 1e-6` calls Python's `abs`, and
    `sum(10, 15) == 25` calls the program's `sum`.
    """
    peer = TestSide.peer
    available = peer.program_names
    read, defined = checks.names_of(nodes)
    free = read - defined
    # Modules that the test uses without an import
    modules = checks.modules_meant(nodes, free - peer.imported.keys())
    names = {name: importlib.import_module(name) for name in modules}
    # Names that only the program has: no builtins, helpers or modules
    unique = {name for name in available - names.keys() if not is_shared(name)}
    program_names = free & unique
    # If there are none, a name with two meanings
    imports = checks.imports_of(nodes)
    if not program_names and all(name == "*" or is_genuine(module) for module, name in imports):
        program_names = only_target(nodes, (free & available) - names.keys())
    for name in (free & available & HELPERS.keys()) - program_names:
        names[name] = getattr(importlib.import_module(HELPERS[name]), name)
    # A name that the test also defines means the program's object until then.
    program_names |= read & defined & unique
    names |= {name: peer.fetch(name) for name in sorted(program_names)}
    # What the test calls by other names: import solution as s
    imported = {name for module, name in imports if not is_genuine(module)}
    return names, program_names - defined - peer.imported.keys() | imported


def is_shared(name: str) -> bool:
    """Whether a name of the program also means a builtin or one of HELPERS."""
    return hasattr(builtins, name) or name in HELPERS


def only_target(nodes: list[Any], names: set[str]) -> set[str]:
    """Return the name, as a set, that must mean the program's function. Raises if it is unclear.

    If the program defines `abs` and `sum`, `abs(sum(1.5, 2.5) - 4) < 1e-6` is a test of `sum`: the
    innermost call.
    """
    inner = names & {
        checks.name_of(call.func)
        for call in checks.calls_in(nodes)
        if not names & checks.names_in(checks.nodes_of(*call.args, *call.keywords))
    }
    if len(names) > 1 and len(inner) != 1:
        raise cannot_judge(f"which of {', '.join(sorted(names))} the test means is not clear")
    return inner if len(names) > 1 else names

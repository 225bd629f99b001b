"""Repeats in the program's process what a test does to the library for its whole process.

That is: `mock.patch` and `monkeypatch` on modules, seeds, the recursion limit, the log. Library
functions that inspect an object are carried out where the object is. Imports the standard library
only.
"""

import abc
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside.deferred import logging
from untrusted.inside.handles import Handle, TestSide, ask
from untrusted.inside.packages import is_genuine

# Prefixes of environment variables that frameworks and Python read: the program's have no effect.
OPTIONS = ("PYTEST", "PYTHON", "UNITTEST")
# Functions that inspect the objects they are given, by module.
FORWARDED = {
    "dataclasses": ("asdict", "astuple", "fields", "replace", "is_dataclass"),
    "inspect": (
        *(
            "signature",
            "getfullargspec",
            "getdoc",
            "getmembers",
            "isclass",
            "isfunction",
            "ismethod",
        ),
        *("iscoroutinefunction", "isgeneratorfunction", "isabstract", "isgenerator", "isawaitable"),
    ),
    "json": ("dumps",),
    "typing": ("get_type_hints", "get_origin", "get_args"),
}


def follow_test(source: str) -> None:
    """Install the repetitions for what a test's text mentions."""
    abc.ABCMeta.__instancecheck__ = looking_at_protocols(abc.ABCMeta.__instancecheck__)
    for module, names in FORWARDED.items():
        if module in source:
            for name in names:
                replace(module, name, looking_there)
    # State that program and test would share in one process.
    repeated = [("random", "seed"), ("random", "setstate"), ("sys", "setrecursionlimit")]
    for module, name in repeated:
        if name in source:
            replace(module, name, doing_both)
    if "numpy" in sys.modules and "seed" in source:
        replace("numpy.random", "seed", doing_both)
    if "log" in source:
        ask("follow logging")
    if "mock" in source:
        follow_mock(importlib.import_module("unittest.mock")._patch)


def looking_at_protocols(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the check of abstract classes: a handle would seem to have every protocol's methods."""

    def check(kind: Any, value: Any) -> bool:
        return ask("isinstance", value, kind) if type(value) is Handle else function(kind, value)

    return check


def replace(module: str, name: str, make: Callable[..., Any]) -> None:
    found = importlib.import_module(module)
    setattr(found, name, make(module, name, getattr(found, name)))


def looking_there(module: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that the program carries out if any argument is an object of the program."""

    def look(*arguments: Any, **keywords: Any) -> Any:
        if any(isinstance(value, Handle) for value in (*arguments, *keywords.values())):
            return ask("library", module, name, *arguments, **keywords)
        return function(*arguments, **keywords)

    return look


def doing_both(module: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **keywords: Any) -> None:
        # Here first: an argument that the library refuses fails in the test, as it should.
        function(*arguments, **keywords)
        ask("library", module, name, *arguments, **keywords)

    return both


def is_patchable(target: Any) -> bool:
    """Whether an object exists at both ends under the same name: a library module or a logger."""
    # Not `sys`: argv and the streams have ways of their own (`Tester.extras`).
    is_module = (
        isinstance(target, types.ModuleType) and is_genuine(target.__name__) and target is not sys
    )
    return is_module or isinstance(target, logging.Logger)


def patch_there(target: Any, name: str) -> bool:
    """Have the program repeat a patch that the test has just made; returns whether to undo it."""
    if TestSide.peer is not None and is_patchable(target):
        ask("patch", target, name, getattr(target, name))
        return True
    return False


def follow_mock(kind: Any) -> None:
    """Repeat in the program what `mock.patch` replaces in a module."""
    entering, leaving = kind.__enter__, kind.__exit__

    def enter_both(self: Any) -> Any:
        result = entering(self)
        patch_there(self.target, self.attribute)
        return result

    def leave_both(self: Any, *error: Any) -> Any:
        # Read before leaving: mock deletes the attribute on exit.
        target = self.target
        result = leaving(self, *error)
        if is_patchable(target):
            ask("unpatch", target, self.attribute)
        return result

    kind.__enter__, kind.__exit__ = enter_both, leave_both

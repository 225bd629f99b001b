"""Repeats in the program's process what a test does to the library for its whole process.

That is: `mock.patch` on modules, seeds, the recursion limit, the working directory, the log.
Library functions that inspect an object are carried out where the object is. Imports the standard
library only.
"""

import abc
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside.deferred import logging, mock
from untrusted.inside.handles import Handle, ask
from untrusted.inside.packages import is_genuine

# Functions that inspect the objects they are given, by module.
FORWARDED = {
    "dataclasses": ("asdict", "astuple", "fields", "replace", "is_dataclass"),
    "inspect": (
        *("signature", "getfullargspec", "getdoc", "getmembers", "isclass", "isfunction", "ismethod", "isabstract"),
        *("iscoroutinefunction", "isgeneratorfunction", "isgenerator", "isawaitable"),
    ),
    "json": ("dumps",),
    "typing": ("get_type_hints", "get_origin", "get_args"),
}  # fmt: skip
# Functions that set what program and test would share in one process.
REPEATED = {
    "random": ("seed", "setstate"), "numpy.random": ("seed",), "os": ("chdir",),
    "sys": ("setrecursionlimit",),
}  # fmt: skip


def follow_test(source: str) -> None:
    """Install the repetitions for what a test's text mentions."""
    abc.ABCMeta.__instancecheck__ = looking_at_protocols(abc.ABCMeta.__instancecheck__)
    for module, names in FORWARDED.items():
        for name in names if module in source else ():
            carry(module, name, everywhere=False)
    for module, names in REPEATED.items():
        for name in names:
            if name in source and module.partition(".")[0] in sys.modules:
                carry(module, name, everywhere=True)
    if "log" in source:
        ask("follow logging")
    if "mock" in source or "monkeypatch" in source:
        follow_mock(mock._patch)


def looking_at_protocols(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the check of abstract classes: a handle would seem to have every protocol's methods."""

    def check(kind: Any, value: Any) -> bool:
        return ask("isinstance", value, kind) if type(value) is Handle else function(kind, value)

    return check


def carry(module: str, name: str, *, everywhere: bool) -> None:
    """Have the program carry out a library function, too, or instead for its own objects."""
    found = importlib.import_module(module)
    function = getattr(found, name)

    def carry(*arguments: Any, **keywords: Any) -> Any:
        if everywhere:
            # Here first: an argument that the library refuses fails in the test, as it should.
            function(*arguments, **keywords)
        elif not any(isinstance(value, Handle) for value in (*arguments, *keywords.values())):
            return function(*arguments, **keywords)
        return ask("library", module, name, *arguments, **keywords)

    setattr(found, name, carry)


def is_patchable(target: Any) -> bool:
    """Whether an object exists at both ends under the same name: a library module or a logger."""
    if isinstance(target, types.ModuleType):
        # Not `sys`: argv and the streams have ways of their own (`Tester.extras`).
        return is_genuine(target.__name__) and target is not sys
    return isinstance(target, logging.Logger)


def follow_mock(kind: Any) -> None:
    """Repeat in the program what `mock.patch` replaces in a module."""
    entering, leaving = kind.__enter__, kind.__exit__

    def enter_both(self: Any) -> Any:
        result = entering(self)
        if is_patchable(self.target):
            ask("patch", self.target, self.attribute, getattr(self.target, self.attribute))
        return result

    def leave_both(self: Any, *error: Any) -> Any:
        # Read before leaving: mock deletes the attribute on exit.
        target = self.target
        result = leaving(self, *error)
        if is_patchable(target):
            ask("unpatch", target, self.attribute)
        return result

    kind.__enter__, kind.__exit__ = enter_both, leave_both

"""Keep the state of the library equal in the processes of a test and its program.

Patches of modules, seeds, the recursion limit and the working directory of the test are repeated in
the program. Library functions that inspect an object run in the process of the object. Imports the
standard library only.
"""

import abc
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside.deferred import mock
from untrusted.inside.handles import Handle, TestSide, ask
from untrusted.inside.packages import is_genuine, top_of

# Functions that inspect their arguments, by module; called in the process of the argument.
FORWARDED = {
    "dataclasses": "asdict astuple fields replace is_dataclass",
    "inspect": "signature getfullargspec getdoc getmembers isclass isfunction ismethod isabstract "
    "iscoroutinefunction isgeneratorfunction isgenerator isawaitable",
    "json": "dumps",
    "typing": "get_type_hints get_origin get_args",
}
# Functions that change global state, which a program and its test would share in one process;
# called in both processes.
REPEATED = {
    "random": "seed setstate",
    "numpy.random": "seed",
    "os": "chdir",
    "sys": "setrecursionlimit",
}


def follow_test():
    """Prepare the library functions and modules that a test's text mentions."""
    abc.ABCMeta.__instancecheck__ = looking_at_protocols(abc.ABCMeta.__instancecheck__)
    for module, names in (FORWARDED | REPEATED).items():
        for name in names.split():
            if name in TestSide.source and top_of(module) in sys.modules:
                carry(module, name, everywhere=module in REPEATED)
    if "mock" in TestSide.source or "monkeypatch" in TestSide.source:
        follow_mock(mock._patch)


def looking_at_protocols(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the program check its objects against protocols, whose methods every handle has."""

    def check(kind, value):
        return ask("isinstance", value, kind) if type(value) is Handle else function(kind, value)

    return check


def carry(module: str, name: str, *, everywhere: bool):
    """Let the program call a library function for its own objects, or always, if `everywhere`."""
    found = importlib.import_module(module)
    function = getattr(found, name)

    def carry(*arguments, **keywords):
        if everywhere:
            # Here first, so that an invalid argument is an error of the test.
            function(*arguments, **keywords)
        elif not any(isinstance(value, Handle) for value in (*arguments, *keywords.values())):
            return function(*arguments, **keywords)
        return ask("library", module, name, *arguments, **keywords)

    setattr(found, name, carry)


def follow_mock(kind):
    """Let `mock.patch` replace attributes of library modules in the program, too."""
    entering = kind.__enter__

    def enter(self):
        result = entering(self)
        target = self.target
        if isinstance(target, types.ModuleType) and is_genuine(target.__name__):
            TestSide.peer.follow(target, self.attribute, self.temp_original)
        return result

    kind.__enter__ = enter

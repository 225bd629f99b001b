"""Stand-ins in the program for objects of the test: calls go to the test, and so do attributes.

All of this runs in the program's process, which nobody trusts; `tester` decides what the test
serves. Imports the standard library only.
"""

from collections.abc import Callable
from typing import Any

from untrusted.inside.peer import Peer

# The program's end of the channel; at most one.
PEERS: list[Peer] = []


def make_special(name: str) -> Any:
    """Make a special method that the test carries out."""

    def method(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        return PEERS[0].do("special", name, self, *arguments, **keywords)

    return method


class ForeignClass(type):
    """Metaclass of the stand-ins for classes of the test."""

    __iter__, __len__ = make_special("__iter__"), make_special("__len__")

    def __call__(cls, /, *arguments: Any, **keywords: Any) -> Any:
        if not PEERS[0].is_theirs(cls):
            # A class of the program that derives from one of the test.
            return super().__call__(*arguments, **keywords)
        return PEERS[0].do("call", cls, *arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        # The test would refuse it anyway (`Tester.check_attribute`).
        if name.startswith("__"):
            raise AttributeError(name)
        return PEERS[0].do("get", cls, name)

    def __bool__(cls) -> bool:
        # Otherwise `bool` would ask `__len__`, in the test.
        return True


class Foreign(metaclass=ForeignClass):
    """Stand-in for an object of the test."""

    __str__, __repr__, __format__ = (
        make_special("__str__"),
        make_special("__repr__"),
        make_special("__format__"),
    )

    def __getattr__(self, name: str) -> Any:
        return PEERS[0].do("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # An exception has attributes of its own here: arguments, traceback, cause and context.
        if isinstance(self, BaseException) and (name.startswith("__") or name == "args"):
            object.__setattr__(self, name, value)
        else:
            PEERS[0].do("set", self, name, value)


def build_class(name: str, bases: list[Any], specials: list[str]) -> type:
    """Make the stand-in for a class of the test.

    Args:
        specials: names of its special methods: only these are defined, so that, for example, an
            object without `__len__` has none here.
    """
    own = [base for base in bases if base is not object]
    if not any(isinstance(base, ForeignClass) for base in own):
        own = [Foreign, *own]
    members: dict[str, Any] = {method: make_special(method) for method in specials}
    return ForeignClass(name, tuple(own), members | {"__module__": "__main__"})


def build(form: dict[str, Any], decode: Callable[[Any], Any]) -> Any:
    """Build the stand-in for an object of the test from its description (`Tester.describe`)."""
    if form["k"] == "function":
        return function(form)
    if form["k"] == "class":
        return build_class(form["n"], [decode(base) for base in form["b"]], form["s"])
    cls = decode(form["class"]) if "class" in form else build_class(form["n"], [], form["s"])
    return object.__new__(cls)


def function(form: dict[str, Any]) -> Any:
    """Make a function that calls one of the test; a real function, as it may become a method."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return PEERS[0].do("call", call, *arguments, **keywords)

    call.__name__, call.__qualname__, call.__doc__ = form["n"], form["q"], form["d"]
    return call

"""Stand-ins in the program for objects of the test; they forward calls and attribute accesses.

They run in the program's process, which is not trusted: `tester` decides which requests it carries
out. Imports the standard library only.
"""

import functools
from typing import Any

from untrusted.inside.channel import Convert, Fields
from untrusted.inside.peer import Peer

# Holds the program's end of the channel.
PEERS: list[Peer] = []


def make_special(name: str) -> Any:
    """Return a special method that the test carries out."""

    def method(self, /, *arguments, **keywords):
        return PEERS[0].do("special", self, name, *arguments, **keywords)

    return method


class Foreign:
    """Stand-in for an object of the test."""

    __str__, __repr__, __format__ = map(make_special, ("__str__", "__repr__", "__format__"))

    def __getattr__(self, name: str):
        return PEERS[0].do("get", self, name)

    def __setattr__(self, name: str, value):
        PEERS[0].do("set", self, name, value)


@functools.cache
def foreign_class(name: str, *specials: str) -> type:
    """Make the class of stand-ins for objects of a class of the test.

    Args:
        specials: names of the special methods that the class has, so that the stand-in of an object
            without `__len__` has none either.
    """
    members = {method: make_special(method) for method in specials}
    return type(name, (Foreign,), members | {"__module__": "__main__"})


def build(form: Fields, decode: Convert):
    """Build the stand-in for an object of the test from its description (`Tester.describe`)."""
    if form["k"] == "function":
        return function(form)
    if form["k"] == "error class":
        bases = tuple(map(decode, form["b"]))
        return type(form["n"], bases, {"__module__": "__main__", "__doc__": form["d"]})
    return object.__new__(foreign_class(form["n"], *form["s"]))


def function(form: Fields):
    """Return a function that calls a function of the test. It can become a method of a class."""

    def call(*arguments, **keywords):
        return PEERS[0].do("special", call, "__call__", *arguments, **keywords)

    call.__name__ = form["n"]
    call.__qualname__ = form["n"]
    call.__doc__ = form["d"]
    return call

"""Lists, dictionaries and sets that both ends of a conversation share, and which have changed here.

Imports the standard library only.
"""

import array
import collections
import itertools
import sys
from collections.abc import Iterator
from operator import is_
from typing import Any

from untrusted.inside import wire

# How many of the latest containers, and of their items in total, are checked for changes with every
# message.
WATCHED, WATCHED_ITEMS = 64, 2048
# Types whose values may be compared by ==, as nobody can override it.
SIMPLE = (type(None), bool, int, float, str, wire.ArrayParts)

CONTAINERS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(
            list,
            dict,
            set,
            bytearray,
            collections.deque,
            collections.Counter,
            collections.OrderedDict,
        ),
        collections.defaultdict,
        array.array,
    )
}

# References to a container while it is being checked, if nobody else has any: the entry's, a local
# variable's, an argument's.
OUR_REFERENCES = 3

# Subclasses before their bases, so that `in BASES` finds the nearest along the MRO.
BASES = (list, collections.OrderedDict, dict, set, collections.deque, bytearray, array.array)


def base_of(container: Any) -> type:
    """Return the built-in type that holds a container's items, whatever its class."""
    kind = type(container)
    return kind if kind in BASES else next(kind for kind in kind.__mro__ if kind in BASES)


def items_of(container: Any) -> list:
    """List a container's items, for a dictionary its keys and values in turn.

    {"a": 1, "b": 2} -> ["a", 1, "b", 2]. Methods that its class overrides are not used.
    """
    if wire.is_array(container):
        return [wire.array_parts(container)]
    base = base_of(container)
    if issubclass(base, dict):
        return [part for pair in base.items(container) for part in pair]
    return list(base.__iter__(container))


def fill(container: Any, items: list) -> None:
    """Replace the content of a container in place."""
    if wire.is_array(container):
        container[...] = wire.build_array(*items[0])
        return
    base = base_of(container)
    if base is array.array:
        # `array.array` has no `clear`.
        del container[:]
    else:
        base.clear(container)
    if issubclass(base, dict):
        # ["a", 1, "b", 2] -> ("a", 1), ("b", 2)
        for key, value in zip(items[::2], items[1::2], strict=True):
            base.__setitem__(container, key, value)
    elif base is set:
        set.update(container, items)
    else:
        base.extend(container, items)


def hold_same(items: list, others: list) -> bool:
    """Whether two lists hold the same objects; for plain values, equal ones."""
    return len(items) == len(others) and all(
        one is other or (type(one) is type(other) and type(one) in SIMPLE and one == other)
        for one, other in zip(items, others, strict=True)
    )


class Shared:
    """A container that both ends have, with its content when they last agreed."""

    def __init__(self, key: str, container: Any) -> None:
        self.key, self.container, self.agreed = key, container, items_of(container)


class SharedContainers:
    """The containers that both ends have.

    Attributes:
        entries: all of them, by key; they live as long as the conversation.
        watched: those that may change here, latest last; the others rest.
        inside: number of references from resting entries to a container, by its identity.
    """

    def __init__(self, side: str) -> None:
        self.side = side
        self.entries: dict[str, Shared] = {}
        self.watched: dict[str, Shared] = {}
        self.keys: dict[int, str] = {}
        self.inside: collections.Counter[int] = collections.Counter()

    def __contains__(self, container: Any) -> bool:
        return id(container) in self.keys

    def add(self, key: str, container: Any) -> Shared:
        entry = self.entries[key] = self.watched[key] = Shared(key, container)
        self.keys[id(container)] = key
        return entry

    def find(self, container: Any) -> Shared:
        """Return the entry of a container, registering it if it is new, and make it the latest."""
        if container not in self:
            return self.add(f"{self.side}{len(self.entries)}", container)
        return self.watch(self.entries[self.keys[id(container)]])

    def watch(self, entry: Shared) -> Shared:
        """Make a container the latest: somebody here holds it again."""
        if self.watched.pop(entry.key, None) is None:
            # It rested until now: its references no longer count as those of a resting entry.
            self.inside.subtract(self.references(entry))
        self.watched[entry.key] = entry
        return entry

    def rest(self, entry: Shared) -> None:
        """Stop checking a container until the other end mentions it again."""
        del self.watched[entry.key]
        self.inside.update(self.references(entry))

    def references(self, entry: Shared) -> list[int]:
        """List the containers that an entry refers to, once per reference.

        Twice each: the container refers to its items, and so does `agreed`.
        """
        return [id(item) for item in entry.agreed if id(item) in self.keys] * 2

    def changed(self, sent: set[str]) -> Iterator[Shared]:
        """Yield the latest containers that have changed here since both ends agreed.

        A container that nothing here refers to any more is checked a last time, and then rests
        until the other end mentions it.

        Args:
            sent: keys of containers that are checked in any case.
        """
        left = WATCHED_ITEMS
        for entry in [*itertools.islice(reversed(self.watched.values()), WATCHED)]:
            container, agreed = entry.container, entry.agreed
            left -= len(agreed)
            if left < 0 and entry.key not in sent:
                break
            # Runs with every message for many containers: `map` compares a list of the very same
            # objects without a loop in Python.
            if (
                type(container) is not list
                or len(container) != len(agreed)
                or not all(map(is_, container, agreed))
            ):
                if not hold_same(items_of(container), agreed):
                    yield entry
                # An array that views another's memory changes with it, without a reference of its
                # own.
                if wire.is_array(container) and getattr(container, "base", None) is not None:
                    continue
            # Only we refer to it: nothing here can change it.
            if sys.getrefcount(container) <= OUR_REFERENCES + self.inside.get(id(container), 0):
                self.rest(entry)

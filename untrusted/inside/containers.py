"""Track the lists, dictionaries and sets that the processes of a test and its program share.

Finds those that have changed since both ends of their channel agreed. Imports `wire` and the
standard library only.
"""

import argparse
import array
import collections
import sys
import types
from collections.abc import Iterator
from itertools import islice
from operator import is_

from untrusted.inside import wire

# With every message, at most this many of the latest containers are checked for changes, with at
# most this many items in total.
MAX_WATCHED = 2048
WATCHED_ITEMS = 100_000
# Types whose values may be compared by ==, because it cannot be overridden.
SIMPLE = wire.PLAIN | {int}
# The attribute of a container that is not among its items, and that its constructor takes.
EXTRAS = {collections.deque: "maxlen", collections.defaultdict: "default_factory", array.array: "typecode"}  # fmt: skip
# Types whose objects consist of their attributes.
SPACES = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList)
MAPPINGS = (dict, collections.Counter, collections.OrderedDict)
KINDS = (list, set, bytearray, *MAPPINGS, *EXTRAS, *SPACES)
CONTAINERS = {kind.__name__: kind for kind in KINDS}

# References to a container while it is checked, if there are no others: by the entry, a local
# variable and an argument. Holds for CPython 3.11 to 3.13; check it for another version.
OUR_REFERENCES = 3


def empty_container(kind: type, extra):
    if kind is collections.deque:
        return collections.deque(maxlen=extra)
    return kind(extra) if kind in EXTRAS else kind()


def held_by(container):
    """Return a container, or the dictionary of attributes of an object that consists of them."""
    return vars(container) if type(container) in SPACES else container


def items_of(container) -> list:
    """List a container's items; of a dictionary, or of attributes, names and values in turn.

    {"a": 1, "b": 2} -> ["a", 1, "b", 2]. An array is one text, a data frame one copy.
    """
    if wire.is_array(container):
        return [wire.array_text(container)]
    if wire.can_change(container):
        return [container.copy()]
    container = held_by(container)
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    return list(container)


def fill(container, items: list):
    """Replace the content of a container in place."""
    # The other end sends the attributes of a UserDict or UserList: ["data", [1, 2]]. Only `data` is
    # accepted, as another could replace a method, such as `_UserList__cast`, which == calls, and only a
    # container: its methods ask `data`.
    if type(container) in SPACES[2:] and (items[::2] != ["data"] or type(items[1]) not in KINDS):
        raise ValueError("a container with other attributes than its data")
    container = held_by(container)
    if wire.is_array(container):
        container[...] = wire.read_array(*items)
    elif wire.can_change(container):
        # Unchanged if what it has become does not cross
        if wire.can_change(*items):
            type(container).__init__(container, *items)
    elif isinstance(container, dict):
        container.clear()
        # ["a", 1, "b", 2] -> ("a", 1), ("b", 2)
        for key, value in zip(items[::2], items[1::2], strict=True):
            container[key] = value
    else:
        if hasattr(container, "clear"):
            container.clear()
        else:  # an `array.array`
            del container[:]
        (container.update if type(container) is set else container.extend)(items)


def hold_same(items: list, others: list) -> bool:
    """Whether two lists hold the same objects; for plain values, equal ones."""
    # Runs with every message for many containers: `map` compares a list of the very same objects
    # without a loop in Python.
    return len(items) == len(others) and (
        all(map(is_, items, others))
        or all(
            one is other
            or (type(one) is type(other) and type(one) in SIMPLE and one == other)
            or (wire.can_change(one) and one.equals(other))
            for one, other in zip(items, others, strict=True)
        )
    )


class Shared:
    """A container that both ends have, with its content when they last agreed."""

    def __init__(self, key: str, container):
        self.key = key
        self.container = container
        self.agreed = items_of(container)


class SharedContainers:
    """The containers that both ends have.

    Attributes:
        side: prefix of the keys of containers that this end sends first.
        entries: all containers by key; they live as long as the channel.
        watched: containers that may change at this end, most recently used last.
        count: containers that this end has sent first.
        by_identity: entries by `id`. Entries keep their containers alive, so no id is used again.
    """

    def __init__(self, side: str):
        self.side = side
        self.count = 0
        self.entries = {}
        self.watched = {}
        self.by_identity = {}

    def add(self, key: str, container) -> Shared:
        """Register a container under a key, and watch it."""
        entry = self.entries[key] = self.by_identity[id(container)] = Shared(key, container)
        return self.watch(entry)

    def find(self, container) -> Shared:
        """Return the entry of a container, new if necessary, and mark it as recently used."""
        if entry := self.by_identity.get(id(container)):
            return self.watch(entry)
        self.count += 1
        return self.add(f"{self.side}{self.count}", container)

    def watch(self, entry: Shared) -> Shared:
        """Mark a container as recently used, so that it is checked for changes."""
        self.watched.pop(entry.key, None)
        self.watched[entry.key] = entry
        return entry

    def take_changes(self) -> Iterator[Shared]:
        """Yield the recently used containers that have changed here since both ends agreed.

        A container that nothing else at this end refers to is checked one last time. It is watched
        again when the other end mentions it.
        """
        # The most recently used come first. A container that exceeds what is left is skipped: its
        # changes do not reach the other end with this message. A copy of the entries, as those who
        # encode one add to `watched`.
        left = WATCHED_ITEMS
        for entry in [*islice(reversed(self.watched.values()), MAX_WATCHED)]:
            container = entry.container
            if len(entry.agreed) > left:
                continue
            left -= len(entry.agreed)
            if not hold_same(items_of(container), entry.agreed):
                yield entry
            # Without other references nothing can change it, unless it is a view of an array.
            is_view = getattr(container, "base", None) is not None
            if sys.getrefcount(container) <= OUR_REFERENCES and not is_view:
                del self.watched[entry.key]

"""Lists, dictionaries and sets that both ends of a conversation have, and which of them have
changed here.

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

# How many of the latest containers, and of their items, are looked at for changes with every
# message.
WATCHED, WATCHED_ITEMS = 64, 2048
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

# Those to a container that is being looked at, if nobody else has any: an entry's, a variable's,
# an argument's.
OUR_REFERENCES = 3

BASES = (list, collections.OrderedDict, dict, set, collections.deque, bytearray, array.array)


def base_of(container: Any) -> type:
    """Find the type that holds the items of a container, whatever class it has."""
    kind = type(container)
    return kind if kind in BASES else next(kind for kind in kind.__mro__ if kind in BASES)


def items_of(container: Any) -> list:
    """List what a container holds, pair by pair for a dictionary, whatever the methods of its class
    say.
    """
    if wire.is_array(container):
        return [wire.array_parts(container)]
    base = base_of(container)
    if issubclass(base, dict):
        return [part for pair in base.items(container) for part in pair]
    return list(base.__iter__(container))


def fill(container: Any, items: list) -> None:
    """Give a container new content in place."""
    if wire.is_array(container):
        container[...] = wire.build_array(*items[0])
        return
    base = base_of(container)
    if base is array.array:
        del container[:]
    else:
        base.clear(container)
    if issubclass(base, dict):
        for key, value in zip(items[::2], items[1::2], strict=True):
            base.__setitem__(container, key, value)
    elif base is set:
        set.update(container, items)
    else:
        base.extend(container, items)


def hold_same(items: list, others: list) -> bool:
    """Tell whether two lists hold the same objects; numbers and texts are the same if they are
    equal.
    """
    return len(items) == len(others) and all(
        one is other or (type(one) is type(other) and type(one) in SIMPLE and one == other)
        for one, other in zip(items, others, strict=True)
    )


class Shared:
    """A container that both ends have, and what it held when they last agreed."""

    def __init__(self, key: str, container: Any) -> None:
        self.key, self.container, self.agreed = key, container, items_of(container)


class SharedContainers:
    """The containers that both ends have.

    Attributes:
        entries: all of them, by key; so they live as long as the conversation.
        watched: those that may change here, the latest last; the others rest.
        inside: by the identity of a container, how many references to it are in those that rest.
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
        """Find a container, or register it, and make it the latest."""
        if container not in self:
            return self.add(f"{self.side}{len(self.entries)}", container)
        return self.watch(self.entries[self.keys[id(container)]])

    def watch(self, entry: Shared) -> Shared:
        """Make a container the latest: somebody here has it, again."""
        if self.watched.pop(entry.key, None) is None:
            self.inside.subtract(self.references(entry))
        self.watched[entry.key] = entry
        return entry

    def rest(self, entry: Shared) -> None:
        """Look at a container no longer, until the other end speaks of it."""
        del self.watched[entry.key]
        self.inside.update(self.references(entry))

    def references(self, entry: Shared) -> list[int]:
        """List which containers an entry leads to, for each time that it does: by itself, and by
        what was agreed.
        """
        return [id(item) for item in entry.agreed if id(item) in self.keys] * 2

    def changed(self, sent: set[str]) -> Iterator[Shared]:
        """Yield those among the latest that were changed here since both ends agreed.

        What nothing here leads to any more is looked at for the last time, unless the other end
        speaks of it again.

        Args:
            sent: keys of containers that are looked at in any case.
        """
        left = WATCHED_ITEMS
        for entry in [*itertools.islice(reversed(self.watched.values()), WATCHED)]:
            container, agreed = entry.container, entry.agreed
            left -= len(agreed)
            if left < 0 and entry.key not in sent:
                break
            # With every message, for many of them: a list of the very same objects takes no loop of
            # Python's.
            if (
                type(container) is not list
                or len(container) != len(agreed)
                or not all(map(is_, container, agreed))
            ):
                if not hold_same(items_of(container), agreed):
                    yield entry
                if wire.is_array(container) and getattr(container, "base", None) is not None:
                    continue
            if sys.getrefcount(container) <= OUR_REFERENCES + self.inside.get(id(container), 0):
                self.rest(entry)

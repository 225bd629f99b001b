"""The special methods of mirrored classes: operators, comparisons, conversions, and whose word counts in them.

At the test's end they are strict: an object of the program never decides what it is compared with. It equals no plain
value, has no order with one, and what it makes of a plain operand is no plain value: else `abs(f(x) - 1.5) < 1e-6`
would be passed by an object whose `__sub__` gives 0. Objects whose class derives from a plain type, as in
`class Celsius(float)`, are that plain value, whatever their methods say. Only an object that a test has made itself,
by a class that it names, may be trusted. Imports the standard library only.
"""

import collections
import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.conversation import Conversation
from untrusted.inside.operations import BINARY, COMPARISONS, IN_PLACE
from untrusted.inside.remotes import Remote

MUTABLE = (list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set, collections.deque)
IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, Decimal, Fraction)
NUMBERS = (int, float, complex, Decimal, Fraction)
COMPARING = {"sub", "truediv", "floordiv", "mod", "divmod", "xor"}
"""Operators by which a result may be compared with a plain operand: `abs(f(x) - 1.5) < 1e-6`."""
CONVERSIONS = {
    f"__{name}__"
    for name in (
        "abs",
        "int",
        "float",
        "complex",
        "index",
        "round",
        "trunc",
        "floor",
        "ceil",
        "bool",
        "len",
        "neg",
        "pos",
    )
}
Special = Callable[..., Any]


def special_methods(peer: Conversation, specials: dict[str, bool], plain: type | None) -> dict[str, Any]:
    """Make the special methods that a class has."""
    made: dict[str, Any] = {}
    for name, is_present in specials.items():
        bare = name.strip("_")
        if not is_present:
            made[name] = None
        elif bare in COMPARISONS:
            made[name] = comparison(peer, bare, plain)
        elif bare in BINARY or bare in IN_PLACE:
            made[name] = arithmetic(peer, bare, plain, reflected=False)
        elif bare.startswith("r") and bare[1:] in BINARY:
            made[name] = arithmetic(peer, bare[1:], plain, reflected=True)
        elif name == "__contains__":
            made[name] = contains(peer, plain, "__iter__" in specials or "__getitem__" in specials)
        elif name == "__hash__" and plain is not None:
            continue
        elif plain not in NUMBERS or name not in CONVERSIONS or not peer.is_strict:
            made[name] = ordinary(peer, name)
    if plain is not None and ("__eq__" in made or "__hash__" in specials):
        made["__hash__"] = plain.__hash__
    return made


def ordinary(peer: Conversation, name: str) -> Special:
    """Make a special method that is carried out at the other end."""

    def method(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        return peer.do("special", name, self, *arguments, **keywords)

    return method


def comparison(peer: Conversation, name: str, plain: type | None) -> Special:
    """Make a comparison: by the program's own method with its own objects, else by plain values or not at all."""

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Remote) or peer.is_free(self):
            return peer.do("operator", name, self, other)
        return NotImplemented if plain is None else native(plain, name)(self, other)

    return method


def arithmetic(peer: Conversation, name: str, plain: type | None, *, reflected: bool) -> Special:
    """Make an operator; with a plain operand it gives an object, or what the plain types give."""

    def method(self: Any, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        result = peer.do("operator", name, *operands)
        if peer.is_free(self):
            return peer.declare(result)
        if isinstance(other, Remote):
            return result
        if plain is not None:
            expected = native(plain, f"{'r' if reflected else ''}{name}")(self, other)
            if not isinstance(result, Remote) or isinstance(result, plain):
                if expected is NotImplemented or not bool(plain_equal(result, expected, plain)):
                    raise TypeError(f"{name}: the program's object disagrees with the plain value that it is")
                return result
        if not isinstance(result, Remote):
            raise TypeError(f"{name}: the program's object has made a plain value of the test's operand")
        if name in COMPARING:
            peer.taint(result)
        return result

    return method


def native(plain: type, name: str) -> Callable[..., Any]:
    """Find the special method of a plain type; one that says NotImplemented if it has none."""
    return getattr(plain, f"__{name}__", lambda *_: NotImplemented)


def plain_equal(one: Any, other: Any, plain: type) -> bool:
    return (native(plain, "eq")(one, other) if isinstance(one, plain) else one == other) is True


def contains(peer: Conversation, plain: type | None, is_iterable: bool) -> Special:
    """Make a test of membership: by going through, where that can be done."""

    def method(self: Any, item: Any) -> bool:
        if isinstance(item, Remote) or not peer.is_strict:
            return peer.do("special", "__contains__", self, item)
        if peer.is_free(self):
            return knows_strangers(peer, self, item) or peer.do("special", "__contains__", self, item)
        if plain is not None and plain in IMMUTABLE:
            return bool(native(plain, "contains")(self, item))
        if is_iterable and plain is None:
            return any(item is other or item == other for other in self)
        knows_strangers(peer, self, item)
        return peer.do("special", "__contains__", self, item)

    return method


def knows_strangers(peer: Conversation, subject: Any, item: Any) -> bool:
    """Ask an object for what nobody has put into it; raises TypeError if it contains that, as it would everything."""
    number = int.from_bytes(os.urandom(8))
    strangers: list[Any] = [number | 2**63, f"{number:x}", (number / 2**64,)]
    if any(peer.do("special", "__contains__", subject, thing) for thing in strangers if type(thing) is type(item)):
        raise TypeError("the program's object contains everything")
    return False

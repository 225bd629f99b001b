"""Classes that mirror the classes of the other end of a conversation.

A mirror has the name, the bases, the methods and the special methods of its class, so that `type(x) is C`,
`isinstance`, `len(x)`, `x + y` and `except E` mean here what they mean there. Imports the standard library only.
"""

import abc
import dataclasses
import inspect
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.conversation import Conversation
from untrusted.inside.packages import genuine_name
from untrusted.inside.remotes import LOCAL, Mirror, Remote
from untrusted.inside.signatures import describe_function, describe_signature, name_function, restore_signature
from untrusted.inside.specials import IMMUTABLE, MUTABLE, special_methods


def data_base(kind: type) -> type | None:
    """Find the plain type that a class derives from."""
    return next((base for base in kind.__mro__ if base in MUTABLE or base in IMMUTABLE), None)


TAKE: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__pos__,
    complex: complex.__pos__,
    Fraction: Fraction.__pos__,
    Decimal: Decimal,
}
"""How to take the plain value out of an object of a class that derives from a plain type."""


# Descriptions


def describe_class(peer: Conversation, kind: type) -> dict[str, Any]:
    """Describe a class, with the genuine classes above it that are no plain types folded into it."""
    bases = [base for base in kind.__bases__ if genuine_name(base) is None or peer.is_theirs(base)]
    inherited = {above for base in bases for above in base.__mro__}
    inherited |= {object, type, abc.ABCMeta}
    folded = [kind, *(b for b in kind.__mro__[1:] if b not in inherited and not is_plain_base(b))]
    plain = next((base for base in kind.__mro__ if is_plain_base(base)), None)
    specials: dict[str, bool] = {}
    methods: dict[str, Any] = {}
    for part in folded:
        for name, value in vars(part).items():
            if name == "__init__" and isinstance(value, types.FunctionType):
                methods.setdefault(name, value)
            elif is_special(name):
                if callable(value) or hasattr(type(value), "__get__") or value is None:
                    specials.setdefault(name, value is not None)
            elif isinstance(value, types.FunctionType):
                methods.setdefault(name, value)
    annotations = vars(kind).get("__annotations__")
    return {
        "name": kind.__name__,
        "qualname": kind.__qualname__,
        "doc": kind.__doc__ if isinstance(kind.__doc__, str) else None,
        "bases": [peer.encode_class(base) for base in bases],
        "makes classes": issubclass(kind, type),
        "metaclass": peer.encode_class(type(kind)) if genuine_name(type(kind)) is None else None,
        "plain": peer.encode(plain),
        "specials": [[name, present] for name, present in specials.items()],
        "methods": [[name, describe_function(peer, function)] for name, function in methods.items()],
        "fields": fields_of(peer, kind),
        "signature": describe_signature(peer, kind),
        "annotations": peer.encode(annotations if isinstance(annotations, dict) else {}),
    }


def is_special(name: str) -> bool:
    """Tell whether a name is that of a special method which is mirrored."""
    return name.startswith("__") and name.endswith("__") and name not in LOCAL


def is_plain_base(kind: type) -> bool:
    return kind in MUTABLE or kind in IMMUTABLE or (issubclass(kind, BaseException) and kind.__module__ == "builtins")


def build_class(peer: Conversation, number: int, form: dict[str, Any]) -> type:
    """Build the mirror of a class of the other end."""
    bases = [peer.decode(base) for base in form["bases"]]
    plain = peer.decode(form["plain"])
    if not all(isinstance(base, Mirror) for base in bases) or not (plain is None or is_plain_base(plain)):
        raise TypeError("a class of unknown bases")
    root, metaclass = Mirror if form["makes classes"] else Remote, peer.decode(form["metaclass"]) or Mirror
    if not issubclass(metaclass, Mirror):
        raise TypeError("a class of an unknown metaclass")
    parents = [*(bases or [root]), *([plain] if plain and not any(issubclass(base, plain) for base in bases) else [])]
    # What the other end says is checked: a method called __eq__ would decide comparisons.
    specials = {str(name): present for name, present in form["specials"] if is_special(str(name))}
    if root is Mirror:
        specials.pop("__call__", None)
    described = {str(n): function for n, function in form["methods"] if n == "__init__" or not str(n).startswith("__")}
    methods = {"__init__", *described} if root is Remote else described.keys() - {"__init__"}
    namespace: dict[str, Any] = {
        "__doc__": form["doc"],
        "__module__": "__main__",
        "__qualname__": str(form["qualname"]),
    }
    forwarded = {name: forwarding(peer, name) for name in methods}
    namespace |= {name: method for name, (method, _) in forwarded.items()}
    namespace |= special_methods(peer, specials, plain if plain in (*MUTABLE, *IMMUTABLE) else None)
    mirror = (abc.ABCMeta if root is Remote else type).__new__(metaclass, str(form["name"]), tuple(parents), namespace)
    type.__setattr__(mirror, "_peer", peer)
    # What follows may speak of the class itself, and is read in the order in which it was written.
    peer.adopt(number, mirror)
    for _, owner in forwarded.values():
        owner.append(mirror)
    for name in methods & described.keys():
        name_function(peer, namespace[name], described[name])
    if form["fields"] is not None:
        type.__setattr__(mirror, "__dataclass_fields__", build_fields(peer, form["fields"]))
    if form["signature"] is not None:
        type.__setattr__(mirror, "__signature__", restore_signature(peer, form["signature"]))
    type.__setattr__(mirror, "__annotations__", dict(peer.decode(form["annotations"])))
    return mirror


def forwarding(peer: Conversation, name: str) -> tuple[Any, list[type]]:
    """Make a method that has the other end's called, and the place for the class that it is a method of."""

    owner: list[type] = []

    def method(self: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(self, Remote):
            return peer.do("super", owner[0], self, name, *arguments, **keywords)
        if inspect.getattr_static(type(self), name, None) is method:
            return peer.do("get and call", self, name, *arguments, **keywords)
        # Called by `super()` from a class below: this very method is meant.
        return peer.do("super", owner[0], self, name, *arguments, **keywords)

    method.__name__ = method.__qualname__ = name
    return method, owner


def fields_of(peer: Conversation, kind: type) -> list | None:
    """Describe the fields of a dataclass; None for another class."""
    if not dataclasses.is_dataclass(kind):
        return None
    missing = dataclasses.MISSING
    return [
        [
            f.name,
            [f.init, f.repr, f.compare],
            peer.encode(f.type),
            [] if f.default is missing else [peer.encode(f.default)],
        ]
        for f in dataclasses.fields(kind)
    ]


def build_fields(peer: Conversation, described: list) -> dict[str, Any]:
    """Make the fields of a dataclass, for `dataclasses.asdict` and its like."""
    fields = []
    for name, (init, shown, compared), kind, default in described:
        value = peer.decode(default[0]) if default else dataclasses.MISSING
        field = dataclasses.field(init=init, repr=shown, compare=compared, default=value, kw_only=True)
        fields.append((name, peer.decode(kind), field))
    return dict(dataclasses.make_dataclass("Fields", fields).__dataclass_fields__)

"""Classes that mirror the classes of the other end of a conversation, and their instances.

At the test's end they are strict: an object of the program never decides what it is compared with. It equals no plain
value, has no order with one, and what it makes of a plain operand is no plain value: else `abs(f(x) - 1.5) < 1e-6` would
be passed by an object whose `__sub__` gives 0. Objects whose class derives from a plain type (`class Celsius(float)`)
are that plain value here, whatever their methods say. Imports the standard library only.
"""

import abc
import collections
import dataclasses
import inspect
import random
import types
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from jax_lm.sandbox.inside.operations import BINARY, COMPARISONS, IN_PLACE
from jax_lm.sandbox.inside.packages import genuine_name
from jax_lm.sandbox.inside.signatures import describe_function, describe_signature, name_function, restore_signature

if TYPE_CHECKING:
    from jax_lm.sandbox.inside.peer import Peer

MUTABLE = (list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set, collections.deque)
IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, Decimal, Fraction)
NUMBERS = (int, float, complex, Decimal, Fraction)
COMPARING = {"sub", "truediv", "floordiv", "mod", "divmod", "xor"}
"""Operators by which a result may be compared with a plain operand: `abs(f(x) - 1.5) < 1e-6`."""
CONVERSIONS = {
    f"__{name}__"
    for name in ("abs", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "bool", "len", "neg", "pos")
}
LOCAL = {
    "__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__getattribute__", "__getattr__",
    "__setattr__", "__delattr__", "__dict__", "__weakref__", "__slots__", "__module__", "__doc__", "__qualname__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__sizeof__", "__dir__", "__del__", "__prepare__",
    "__set_name__", "__mro_entries__", "__instancecheck__", "__subclasscheck__", "__copy__", "__deepcopy__", "__getnewargs__",
    "__getnewargs_ex__", "__class_getitem__", "__abstractmethods__", "__annotations__", "__orig_bases__", "__parameters__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__static_attributes__", "__firstlineno__",
    "__array_ufunc__", "__array_function__", "__array_priority__", "__array_wrap__", "__array_finalize__",
    "__array_interface__", "__array_struct__", "__array_prepare__", "__array_namespace__",
}  # fmt: skip
"""Special methods that are not mirrored: Python's own machinery, and numpy's ways to hand a comparison to an operand."""
Special = Callable[..., Any]


class Remote:
    """An object of the other end."""

    @staticmethod
    def make(mirror: type, peer: "Peer", number: int, *content: Any) -> Any:
        """Make the stand-in for an object, which is no call of its class."""
        new = next(kind.__new__ for kind in mirror.__mro__ if not issubclass(kind, Remote) and "__new__" in vars(kind))
        made = new(mirror, *content) if new is not object.__new__ else object.__new__(mirror)
        object.__setattr__(made, "_peer", peer)
        object.__setattr__(made, "_number", number)
        peer.adopt(number, made)
        return made

    def __getattr__(self, name: str) -> Any:
        if name in LOCAL:
            raise AttributeError(name)
        return do("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__traceback__", "__context__", "__cause__", "args", "__suppress_context__", "__notes__"):
            object.__setattr__(self, name, value)
        else:
            do("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        do("delete", self, name)

    @property
    def __dict__(self) -> dict[str, Any]:
        return do("get", self, "__dict__")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return do("call", self, *arguments, **keywords)

    def __copy__(self) -> Any:
        return do("copy", self, False)

    def __deepcopy__(self, _: Any) -> Any:
        return do("copy", self, True)

    def __reduce_ex__(self, _: Any) -> Any:
        return unpickle, (object.__getattribute__(self, "_peer").side, do("pickle", self))

    def __str__(self) -> str:
        return do("special", "__str__", self)

    def __repr__(self) -> str:
        return do("special", "__repr__", self)

    def __format__(self, form: str) -> str:
        return do("special", "__format__", self, form)

    def __dir__(self) -> Any:
        return do("special", "__dir__", self)


PEERS: dict[str, "Peer"] = {}
"""The ends of a conversation in this process, which is one."""


def unpickle(side: str, data: bytes) -> Any:
    return PEERS[side].do("unpickle", data)


class FunctionRemote(Remote):
    """A function of the other end that has attributes of its own."""


FunctionRemote.__name__ = FunctionRemote.__qualname__ = "function"


class GeneratorRemote(Remote):
    """A generator of the other end."""

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return do("special", "__next__", self)

    def send(self, value: Any) -> Any:
        return do("get and call", self, "send", value)

    def throw(self, *error: Any) -> Any:
        return do("get and call", self, "throw", *error)

    def close(self) -> Any:
        return do("get and call", self, "close")


def do(operation: str, *arguments: Any, **keywords: Any) -> Any:
    """Have an operation carried out at the other end; the first stand-in among the arguments says where."""
    for argument in arguments:
        if isinstance(argument, Remote):
            return object.__getattribute__(argument, "_peer").do(operation, *arguments, **keywords)
        if isinstance(argument, Mirror):
            return type.__getattribute__(argument, "_peer").do(operation, *arguments, **keywords)
    raise TypeError("no object of the other end")


class Mirror(abc.ABCMeta):
    """The class of mirrors. A class of this end that derives from a mirror gets one of its own at the other end."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> Any:
        peer = next(type.__getattribute__(base, "_peer") for base in bases if isinstance(base, Mirror))
        made = super().__new__(mcs, name, bases, namespace)
        number, _ = peer.number(made)
        attributes = {key: sendable(value) for key, value in namespace.items() if key not in LOCAL and key != "__classcell__"}
        twin = peer.do("subclass", number, name, list(bases), attributes)
        if twin is not made:
            raise TypeError(f"{name}: the program has made another class of it")
        return made

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        made = do("call", cls, *arguments, **keywords)
        # A name in CapWords is a class's, and a test that calls it is about its objects.
        is_class_name = cls.__name__[:1].isupper() and "_" not in cls.__name__
        return type.__getattribute__(cls, "_peer").declare(made) if is_class_name else made

    @property
    def __mro__(cls) -> tuple[type, ...]:
        return tuple(kind for kind in type.__dict__["__mro__"].__get__(cls) if kind is not Remote)

    @property
    def __bases__(cls) -> tuple[type, ...]:
        return tuple(kind for kind in type.__dict__["__bases__"].__get__(cls) if kind is not Remote) or (object,)

    @property
    def __abstractmethods__(cls) -> Any:
        return do("get", cls, "__abstractmethods__")

    @__abstractmethods__.setter
    def __abstractmethods__(cls, names: Any) -> None:
        """Keep none here: what cannot be made is for the other end to say."""

    @property
    def __base__(cls) -> type:
        return cls.__bases__[0]

    def __dir__(cls) -> Any:
        return do("special", "__dir__", cls)

    def __getattr__(cls, name: str) -> Any:
        if name in ("_peer", "__abstractmethods__") or name.startswith("__array"):
            raise AttributeError(name)
        return do("get", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if not name.startswith("_abc_") and name not in LOCAL:
            do("set", cls, name, value)
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        do("delete", cls, name)
        if name in cls.__dict__:
            super().__delattr__(name)

    def __instancecheck__(cls, value: Any) -> bool:
        crosses = isinstance(type(value), Mirror) or type(value).__module__ == "__main__"
        return type.__instancecheck__(cls, value) or (crosses and do("isinstance", value, cls))

    def __subclasscheck__(cls, kind: type) -> bool:
        return type.__subclasscheck__(cls, kind) or (isinstance(kind, Mirror) and do("issubclass", kind, cls))

    def __iter__(cls) -> Any:
        return do("special", "__iter__", cls)

    def __len__(cls) -> int:
        return do("special", "__len__", cls)

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return do("item", cls, key)

    def __contains__(cls, item: Any) -> bool:
        return isinstance(item, Remote) and do("special", "__contains__", cls, item)


def sendable(value: Any) -> Any:
    """Put an attribute of a class into a form that can cross."""
    if isinstance(value, staticmethod):
        return ("static", value.__func__)
    if isinstance(value, classmethod):
        return ("class", value.__func__)
    if isinstance(value, property):
        return ("property", value.fget, value.fset, value.fdel)
    return value


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


def describe_class(peer: "Peer", kind: type) -> dict[str, Any]:
    """Describe a class, with the genuine classes above it that are no plain types folded into it."""
    bases = [base for base in kind.__bases__ if genuine_name(base) is None or peer.is_theirs(base)]
    inherited = {above for base in bases for above in base.__mro__}
    folded = [kind, *(b for b in kind.__mro__[1:] if b not in inherited and b is not object and not is_plain_base(b))]
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
    return {
        "name": kind.__name__,
        "qualname": kind.__qualname__,
        "doc": kind.__doc__ if isinstance(kind.__doc__, str) else None,
        "bases": [peer.encode_class(base) for base in bases],
        "plain": peer.encode(plain),
        "specials": [[name, present] for name, present in specials.items()],
        "methods": [[name, describe_function(peer, function)] for name, function in methods.items()],
        "fields": fields_of(peer, kind),
        "signature": describe_signature(peer, kind),
        "annotations": peer.encode(dict(vars(kind).get("__annotations__") or {})),
    }


def is_special(name: str) -> bool:
    """Tell whether a name is that of a special method which is mirrored."""
    return name.startswith("__") and name.endswith("__") and name not in LOCAL


def is_plain_base(kind: type) -> bool:
    return kind in MUTABLE or kind in IMMUTABLE or (issubclass(kind, BaseException) and kind.__module__ == "builtins")


def build_class(peer: "Peer", number: int, form: dict[str, Any]) -> type:
    """Build the mirror of a class of the other end."""
    bases = [peer.decode(base) for base in form["bases"]]
    plain = peer.decode(form["plain"])
    if not all(isinstance(base, Mirror) for base in bases) or not (plain is None or is_plain_base(plain)):
        raise TypeError("a class of unknown bases")
    parents = [*(bases or [Remote]), *([plain] if plain and not any(issubclass(base, plain) for base in bases) else [])]
    # What the other end says is checked: a method called __eq__ would decide comparisons.
    specials = {str(name): present for name, present in form["specials"] if is_special(str(name))}
    described = {str(n): function for n, function in form["methods"] if n == "__init__" or not str(n).startswith("__")}
    methods = {"__init__", *described}
    namespace: dict[str, Any] = {"__doc__": form["doc"], "__module__": "__main__", "__qualname__": str(form["qualname"])}
    namespace |= {name: forwarding(peer, name) for name in methods}
    namespace |= special_methods(peer, specials, plain if plain in (*MUTABLE, *IMMUTABLE) else None)
    mirror = abc.ABCMeta.__new__(Mirror, str(form["name"]), tuple(parents), namespace)
    type.__setattr__(mirror, "_peer", peer)
    # What follows may speak of the class itself, and is read in the order in which it was written.
    peer.adopt(number, mirror)
    for name in methods:
        namespace[name].owner = mirror
    for name, function in described.items():
        name_function(peer, namespace[name], function)
    if form["fields"] is not None:
        type.__setattr__(mirror, "__dataclass_fields__", build_fields(peer, form["fields"]))
    if form["signature"] is not None:
        type.__setattr__(mirror, "__signature__", restore_signature(peer, form["signature"]))
    type.__setattr__(mirror, "__annotations__", dict(peer.decode(form["annotations"])))
    return mirror


def forwarding(peer: "Peer", name: str) -> Any:
    """Make a method that has the other end's called."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(self, Remote):
            return peer.do("super", method.owner, self, name, *arguments, **keywords)
        if inspect.getattr_static(type(self), name, None) is method:
            return peer.do("get and call", self, name, *arguments, **keywords)
        # Called by `super()` from a class below: this very method is meant.
        return peer.do("super", method.owner, self, name, *arguments, **keywords)

    method.__name__ = method.__qualname__ = name
    return method


def fields_of(peer: "Peer", kind: type) -> list | None:
    """Describe the fields of a dataclass; None for another class."""
    if not dataclasses.is_dataclass(kind):
        return None
    missing = dataclasses.MISSING
    return [
        [f.name, [f.init, f.repr, f.compare], peer.encode(f.type), [] if f.default is missing else [peer.encode(f.default)]]
        for f in dataclasses.fields(kind)
    ]


def build_fields(peer: "Peer", described: list) -> dict[str, Any]:
    """Make the fields of a dataclass, for `dataclasses.asdict` and its like."""
    fields = []
    for name, (init, shown, compared), kind, default in described:
        value = peer.decode(default[0]) if default else dataclasses.MISSING
        field = dataclasses.field(init=init, repr=shown, compare=compared, default=value, kw_only=True)
        fields.append((name, peer.decode(kind), field))
    return dict(dataclasses.make_dataclass("Fields", fields).__dataclass_fields__)


# Special methods


def special_methods(peer: "Peer", specials: dict[str, bool], plain: type | None) -> dict[str, Any]:
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


def ordinary(peer: "Peer", name: str) -> Special:
    """Make a special method that is carried out at the other end."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return peer.do("special", name, self, *arguments, **keywords)

    return method


def comparison(peer: "Peer", name: str, plain: type | None) -> Special:
    """Make a comparison: by the program's own method with its own objects, else by plain values or not at all."""

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Remote) or peer.is_free(self):
            return peer.do("operator", name, self, other)
        return NotImplemented if plain is None else getattr(plain, f"__{name}__")(self, other)

    return method


def arithmetic(peer: "Peer", name: str, plain: type | None, *, reflected: bool) -> Special:
    """Make an operator; with a plain operand it gives an object, or what the plain types give."""

    def method(self: Any, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        result = peer.do("operator", name, *operands)
        if peer.is_free(self):
            return peer.declare(result)
        if isinstance(other, Remote):
            return result
        if plain is not None:
            native = getattr(plain, f"__{'r' if reflected else ''}{name}__", None)
            expected = NotImplemented if native is None else native(self, other)
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


def plain_equal(one: Any, other: Any, plain: type) -> bool:
    return (plain.__eq__(one, other) if isinstance(one, plain) else one == other) is True


def contains(peer: "Peer", plain: type | None, is_iterable: bool) -> Special:
    """Make a test of membership: by going through, where that can be done."""

    def method(self: Any, item: Any) -> bool:
        if isinstance(item, Remote) or not peer.is_strict:
            return peer.do("special", "__contains__", self, item)
        if peer.is_free(self):
            return knows_strangers(peer, self, item) or peer.do("special", "__contains__", self, item)
        if plain is not None and plain in IMMUTABLE:
            return getattr(plain, "__contains__")(self, item)
        if is_iterable and plain is None:
            return any(item is other or item == other for other in self)
        knows_strangers(peer, self, item)
        return peer.do("special", "__contains__", self, item)

    return method


def knows_strangers(peer: "Peer", subject: Any, item: Any) -> bool:
    """Ask an object for what nobody has put into it; raises TypeError if it contains that, as it would everything."""
    strangers: list[Any] = [random.getrandbits(62) + 2**62, f"{random.getrandbits(62):x}", (random.random(),)]
    if any(peer.do("special", "__contains__", subject, thing) for thing in strangers if type(thing) is type(item)):
        raise TypeError("the program's object contains everything")
    return False

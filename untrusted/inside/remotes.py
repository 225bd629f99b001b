"""Objects and classes of the other end of a conversation: what is done to them is done there.

Imports the standard library only.
"""

import abc
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside.conversation import Conversation

LOCAL = {
    "__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__", "__getattribute__", "__getattr__",
    "__setattr__", "__delattr__", "__dict__", "__weakref__", "__slots__", "__module__", "__doc__", "__qualname__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__sizeof__", "__dir__", "__del__", "__prepare__",
    "__set_name__", "__mro_entries__", "__instancecheck__", "__subclasscheck__", "__copy__", "__deepcopy__",
    "__getnewargs__", "__getnewargs_ex__", "__class_getitem__", "__abstractmethods__", "__annotations__",
    "__orig_bases__", "__parameters__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__static_attributes__", "__firstlineno__",
    "__array_ufunc__", "__array_function__", "__array_priority__", "__array_wrap__", "__array_finalize__",
    "__array_interface__", "__array_struct__", "__array_prepare__", "__array_namespace__",
}  # fmt: skip
"""Special methods that are not mirrored: Python's machinery, and numpy's ways to leave a comparison to an operand."""


class Slot:
    """A special method that every class has: `inspect` takes it for no function of the class's own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self.function, instance)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)


def slot(function: Callable[..., Any]) -> Any:
    return Slot(function)


class Remote:
    """An object of the other end."""

    @staticmethod
    def make(mirror: type, peer: Conversation, number: int, *content: Any) -> Any:
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

    @slot
    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("__traceback__", "__context__", "__cause__", "args", "__suppress_context__", "__notes__"):
            object.__setattr__(self, name, value)
        else:
            do("set", self, name, value)

    @slot
    def __delattr__(self, name: str) -> None:
        do("delete", self, name)

    @property
    def __dict__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return do("get", self, "__dict__")

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return do("call", self, *arguments, **keywords)

    def __copy__(self) -> Any:
        return do("copy", self, False)

    def __deepcopy__(self, _: Any) -> Any:
        return do("copy", self, True)

    @slot
    def __reduce_ex__(self, _: Any) -> Any:
        # What is pickled is a copy at the other end, which stays there.
        peer = object.__getattribute__(self, "_peer")
        return restore_copy, (peer.side, object.__getattribute__(do("copy", self, True), "_number"))

    @slot
    def __str__(self) -> str:
        return do("special", "__str__", self)

    @slot
    def __repr__(self) -> str:
        return do("special", "__repr__", self)

    @slot
    def __format__(self, form: str) -> str:
        return do("special", "__format__", self, form)

    @slot
    def __dir__(self) -> Any:
        return do("special", "__dir__", self)


PEERS: dict[str, Conversation] = {}
"""The ends of a conversation in this process, which is one."""


def restore_copy(side: str, number: int) -> Any:
    return do("copy", PEERS[side].theirs[number], True)


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


def do(operation: str, /, *arguments: Any, **keywords: Any) -> Any:
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
        made = super().__new__(
            mcs, name, bases if any(isinstance(base, Mirror) for base in bases) else (Remote, *bases), namespace
        )
        metaclass = None if mcs is Mirror else mcs
        peer = type.__getattribute__(metaclass or made, "_peer")
        number, _ = peer.number(made)
        attributes = {
            key: sendable(value) for key, value in namespace.items() if key not in LOCAL and key != "__classcell__"
        }
        twin = peer.do("subclass", number, name, list(bases), attributes, metaclass)
        if twin is not made:
            raise TypeError(f"{name}: the program has made another class of it")
        return made

    def __call__(cls, /, *arguments: Any, **keywords: Any) -> Any:
        made = do("call", cls, *arguments, **keywords)
        # A name in CapWords is a class's, and a test that calls it is about its objects.
        is_class_name = cls.__name__[:1].isupper() and "_" not in cls.__name__
        return type.__getattribute__(cls, "_peer").declare(made) if is_class_name else made

    @property
    def __mro__(cls) -> tuple[type, ...]:
        return tuple(kind for kind in type.__dict__["__mro__"].__get__(cls) if kind is not Remote)

    @property
    def __bases__(cls) -> tuple[type, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(kind for kind in type.__dict__["__bases__"].__get__(cls) if kind is not Remote) or (object,)

    @property  # pyright: ignore[reportIncompatibleVariableOverride]
    def __abstractmethods__(cls) -> Any:
        return do("get", cls, "__abstractmethods__")

    @__abstractmethods__.setter
    def __abstractmethods__(cls, names: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
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

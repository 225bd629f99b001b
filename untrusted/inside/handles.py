"""Handles: a test's stand-ins for the program's objects; the program does what is done to them.

A handle never decides what it is compared with. It equals plain data only if its class derives from
a plain type: then it *is* that plain value, whatever the methods of its class say. An object's own
`__eq__` counts only among objects of the program.

Python demands real classes in two places: in an `except` clause, and where C code wants a text or a
number. So there is one class per exception class of the program, and one per plain type. Imports
the standard library only.
"""

import collections
import types
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside import wire
from untrusted.inside.deferred import asyncio

# Names of special methods without their underscores.
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
# Operators whose result may stand for a comparison with the operand: `abs(f(x) - 1.5) < 1e-6`. An
# object that has seen 1.5 could answer the comparison by itself, so the result is "tainted".
LEARNING = {"sub", "truediv", "floordiv", "mod", "divmod", "xor"}
CONVERSIONS = (
    *("abs", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "bool"),
    *("neg", "pos", "invert"),
)
OTHERS = (
    *("len", "getitem", "setitem", "delitem", "reversed", "length_hint", "enter", "aenter"),
    *("aiter", "anext", "fspath", "dir", "bytes"),
)
# A text is only shown or formatted, so it may come from the program's own method.
TEXTS = ("str", "repr", "format")
IMMUTABLE: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset, Decimal)
# Plain types whose content is fetched when it is needed, because it changes or is kept in
# attributes (Fraction).
MUTABLE: tuple[Any, ...] = (
    *(list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set),
    *(collections.deque, bytearray, Fraction),
)
PLAIN = {*wire.SCALARS, *wire.PARTS, *wire.PLAIN, *MUTABLE, int}
# The class that `isinstance` sees for a handle, by the kind that the program reports.
KINDS: dict[str, type] = {
    "class": type,
    "map": map,
    "filter": filter,
    **{
        name: getattr(types, f"{name.capitalize()}Type")
        for name in ("function", "method", "generator", "coroutine", "module")
    },
    "builtin": types.BuiltinFunctionType,
    **{kind.__name__: kind for kind in MUTABLE},
}
# Beginnings of names that handles do not have: numpy and classes would probe for them.
MISSING = ("__array", "__set_name__", "__sizeof__")
# Attributes that are never the program's, even if a test names them.
HERE = {"__reduce_ex__", *(f"__{name}__" for name in COMPARISONS)}
# How an event loop advances a coroutine.
STEPS = ("send", "throw", "close")
# Seconds for which an awaited object of the program runs before the test's other tasks get a turn.
SLICE = 0.005
# Marks "no content": None is a content.
NOTHING = object()


class CannotJudgeError(BaseException):
    """Raised if a test does what the border cannot carry: neither the program nor it has failed."""


class TestSide:
    """Holds the test's end of the channel, which all handles use; there is one per process."""

    # `reason`: why the test cannot be judged; empty if it can.
    peer: Any = None
    reason = ""


def ask(operation: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Have the program carry out an operation."""
    return TestSide.peer.do(operation, *arguments, **keywords)


def cannot_judge(reason: str) -> CannotJudgeError:
    """Record that this test cannot be judged, and return the error to raise.

    The record stays even if the test catches the error.
    """
    TestSide.reason = TestSide.reason or reason
    return CannotJudgeError(reason)


def is_theirs(value: Any) -> bool:
    """Whether a value stands for an object of the program."""
    return TestSide.peer is not None and id(value) in TestSide.peer.their_numbers


def is_plain_data(value: Any) -> bool:
    """Whether a value is plain data of the test."""
    return type(value) in PLAIN or wire.is_array(value) or wire.is_number(value)


def is_any_number(value: Any) -> bool:
    return (
        isinstance(value, int | float | complex | Decimal)
        or wire.is_array(value)
        or wire.is_number(value)
    )


def facts_of(handle: Any) -> dict[str, Any]:
    """Return what the border knows about a handle's object.

    The keys:
        kind: a key of KINDS, or "object".
        named: the test calls it by a name in CapWords, so it is a class.
        made: the test has made it by calling such a name.
        tainted: it has seen an operand that it might be compared with.
    """
    return object.__getattribute__(handle, "__dict__")


def content_of(handle: Any) -> Any:
    """Return an object's plain value if its class derives from a plain type, else NOTHING.

    The program sends it without knowing what it will be compared with.
    """
    facts = facts_of(handle)
    # An immutable value is already here (the handle itself), a mutable one is fetched now.
    if isinstance(handle, Valued) or facts["kind"] in CONTENTS:
        if facts.get("tainted"):
            raise no_verdict(handle, "a comparison with what an operator has made")
        return handle if isinstance(handle, Valued) else ask("content", handle)
    return NOTHING


CONTENTS = {kind.__name__ for kind in MUTABLE}


def no_verdict(handle: Any, action: str) -> BaseException:
    """Return the error for letting an object of the program decide.

    For an object that the test itself has made from the program's class, plain Python might decide
    otherwise; so the test cannot be judged. For any other object it is a TypeError.
    """
    if facts_of(handle).get("made"):
        return cannot_judge(f"{action}: an object of the program would decide it")
    return TypeError(f"{action}: an object of the program does not decide it")


class Handle:
    """Stands for an object of the program."""

    def __getattribute__(self, name: str) -> Any:
        # Every attribute access comes here first, also `__class__`, which `isinstance` asks for.
        facts = facts_of(self)
        if name == "__class__":
            return KINDS.get(facts["kind"], type(self))
        if name == "__mro_entries__":
            raise cannot_judge("a class of the test derives from one of the program's")
        if name.startswith(MISSING):
            if name == "__array__" and facts.get("made"):
                raise cannot_judge("an object of the program is to be an array of numpy")
            raise AttributeError(name)
        if name in HERE:
            return object.__getattribute__(self, name)
        if name in STEPS and facts["kind"] == "coroutine":
            return getattr(driver(self), name)
        # Everything else is the program's; what comes from a tainted object is tainted.
        made = ask("get", self, name)
        return mark(made, self, tainted=True) if facts.get("tainted") else made

    def __setattr__(self, name: str, value: Any) -> None:
        ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        ask("delete", self, name)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        made = unless_learnt(self, ask("call", self, *arguments, **keywords))
        # A call of a CapWords name makes an object of the test's own making.
        if facts_of(self).get("named") and isinstance(made, Handle):
            facts_of(made)["made"] = True
        return made

    def __contains__(self, item: Any) -> bool:
        if is_theirs(item):
            return ask("contains", self, item)
        if (content := content_of(self)) is not NOTHING:
            return item in content
        try:
            items = iter(self)
        except TypeError:
            items = iter(())
        # An object does not contain what it only claims to contain: look at what it yields.
        if any(item is other or item == other for other in items):
            return True
        if facts_of(self).get("made") and ask("contains", self, item):
            raise cannot_judge("an object of the program contains what it does not yield")
        return False

    def __iter__(self) -> Any:
        return unless_learnt(self, ask("iter", self))

    def __next__(self) -> Any:
        made = next(driver(self)) if facts_of(self)["kind"] == "coroutine" else ask("next", self)
        return unless_learnt(self, made)

    def __await__(self) -> Any:
        return driver(self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        # An object may suppress exceptions, as in Python, but never the test's own verdict.
        return ask("exit", self, kind, error) and not isinstance(error, AssertionError)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return await ask("aexit", self, kind, error, None) and not isinstance(error, AssertionError)

    def __hash__(self) -> int:
        return ask("hash", self)

    def __instancecheck__(self, value: Any) -> bool:
        # Plain data is never an instance of the program's class, whatever its metaclass says.
        return not is_plain_data(value) and ask("isinstance", value, self)

    def __subclasscheck__(self, kind: type) -> bool:
        return ask("issubclass", kind, self)

    def __copy__(self) -> Any:
        return ask("copy", self, False)

    def __deepcopy__(self, _: Any) -> Any:
        return ask("copy", self, True)

    def __reduce_ex__(self, _: Any) -> Any:
        # A pickle holds only the number of a copy, which stays in the program.
        return restored, (TestSide.peer.their_numbers[id(ask("copy", self, True))],)


def restored(number: int) -> Any:
    # Unpickling makes another copy each time.
    return ask("copy", TestSide.peer.theirs[number], True)


class Valued(Handle):
    """Stands for an object whose class derives from an immutable plain type; C code accepts it."""

    __iter__ = __contains__ = __next__ = __hash__ = None  # type: ignore[assignment]  # the plain type's


def driver(handle: Any) -> Iterator[Any]:
    """Return the iterator by which the test's event loop drives an awaited object."""
    facts = facts_of(handle)
    # One per handle: an awaited object is awaited once.
    if "driver" not in facts:
        facts["driver"] = drive(handle).__await__()
    return facts["driver"]


async def drive(handle: Any) -> Any:
    """Await an object within the program in slices, between which the test's tasks get a turn."""
    task = ask("start task", handle)
    try:
        # None: not ended within the slice. Else a tuple of one: the result may be None.
        while not (ended := ask("run task", task, SLICE)):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        ask("cancel task", task)
        raise
    return ended[0]


# Special methods


def forwarded(name: str) -> Callable[..., Any]:
    """Make a special method that the program carries out."""

    def method(self: Any, /, *arguments: Any) -> Any:
        return unless_learnt(self, ask(name, self, *arguments))

    return method


def conversion(name: str) -> Callable[..., Any]:
    """Make a conversion to a number or a truth value; refused for a tainted object."""

    def method(self: Any, /, *arguments: Any) -> Any:
        made = ask(name, self, *arguments)
        if not facts_of(self).get("tainted"):
            return mark(made, self, tainted=False)
        # A tainted object may only make another object, which stays tainted.
        if not is_theirs(made) or isinstance(made, Valued):
            raise no_verdict(self, name)
        return mark(made, self, tainted=True)

    return method


def mark(made: Any, source: Any, *, tainted: bool) -> Any:
    """Pass on what the border knows from the operand of an operation to its result.

    `tainted=True` taints the result; False leaves it as it is.
    """
    if isinstance(made, Handle):
        facts_of(made)["made"] = facts_of(source).get("made")
        if tainted:
            facts_of(made)["tainted"] = True
    return made


def unless_learnt(source: Any, made: Any) -> Any:
    """Refuse a number that comes, in any way, from an object that has seen an operand."""
    facts = facts_of(source)
    if facts.get("tainted") and not facts.get("made"):
        if is_any_number(made):
            raise no_verdict(source, "a number from what an operator has made")
        return mark(made, source, tainted=True)
    return made


def comparison(name: str) -> Callable[..., Any]:
    """Make a comparison: by the program among its own objects, else by content or not at all."""

    def method(self: Any, other: Any) -> Any:
        # two objects of the program
        if is_theirs(other):
            return ask("operator", name, self, other)
        # an object with plain content: the plain type compares
        if (content := content_of(self)) is not NOTHING:
            return native(content, name)(other)
        # NotImplemented: Python falls back to identity, so the object equals no plain data.
        if not is_plain_data(other) or not facts_of(self).get("made"):
            return NotImplemented
        # The object is of the test's making, and plain Python would let it decide: if it would
        # decide otherwise than "not equal", there is no verdict.
        if name not in ("eq", "ne") or ask("operator", name, self, other) is not (name == "ne"):
            # Only == and != have a safe answer here; an order never has one.
            raise no_verdict(self, f"{name} with plain data")
        return NotImplemented

    return method


def native(value: Any, name: str) -> Callable[..., Any]:
    """Return the special method of a value's plain type, bound to the value."""
    kind = next(kind for kind in type(value).__mro__ if kind in IMMUTABLE or kind in MUTABLE)
    method = getattr(kind, f"__{name}__", None)
    return (lambda *_: NotImplemented) if method is None else types.MethodType(method, value)


def arithmetic(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    """Make an operator: with plain data, its result is an object or what the plain types make."""

    def method(self: Any, other: Any, *modulo: Any) -> Any:
        # "isub" and "sub" reveal the same.
        tainted = facts_of(self).get("tainted") or name.removeprefix("i") in LEARNING
        operands = (other, self) if reflected else (self, other)
        made = ask("operator", name, *operands, *modulo)
        # Among the program's own objects, or with objects of the test, anything goes.
        if is_theirs(other) or not is_plain_data(other):
            return mark(made, self, tainted=False)
        # With plain content, check the program's result against that of the plain type.
        if (content := content_of(self)) is not NOTHING:
            bare = f"r{name}" if reflected else name.removeprefix("i")
            expected = native(content, bare)(other, *modulo)
            if expected is NotImplemented or not (made == expected):
                raise no_verdict(self, name)
            return mark(made, self, tainted=False)
        # A plain result from an object without plain content would be its own word.
        if not is_theirs(made) or isinstance(made, Valued):
            raise no_verdict(self, name)
        return mark(made, self, tainted=bool(tainted))

    return method


for _name in COMPARISONS:
    setattr(Handle, f"__{_name}__", comparison(_name))
for _name in (*BINARY, "divmod"):
    setattr(Handle, f"__{_name}__", arithmetic(_name))
    setattr(Handle, f"__r{_name}__", arithmetic(_name, reflected=True))
    if _name != "divmod":
        setattr(Handle, f"__i{_name}__", arithmetic(f"i{_name}"))
for _name in CONVERSIONS:
    setattr(Handle, f"__{_name}__", conversion(_name))
for _name in (*OTHERS, *TEXTS):
    setattr(Handle, f"__{_name}__", forwarded(_name))


def valued_class(kind: type) -> type:
    """Make the class of handles for objects that derive from a plain type.

    Attributes, copies, comparisons, operators and texts go through the handle; everything else is
    the plain type's own.
    """
    kept = {
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__copy__",
        "__deepcopy__",
        "__reduce_ex__",
    }
    kept |= {f"__{name}__" for name in (*COMPARISONS, *TEXTS)}
    # Operators that the plain type has: a `str` has no `__sub__`, so neither has its handle.
    kept |= {
        f"__{prefix}{name}__"
        for name in (*BINARY, "divmod")
        for prefix in ("", "r")
        if hasattr(kind, f"__{prefix}{name}__")
    }
    members = {name: vars(Handle)[name] for name in kept}
    # Restore what `Handle` would hide: `len`, iteration, item access.
    members |= {
        name: getattr(kind, name) for name in dir(kind) if name not in kept and name in vars(Handle)
    }
    return type(f"Valued{kind.__name__}", (Valued, kind), members | {"__hash__": kind.__hash__})


VALUED = {kind.__name__: valued_class(kind) for kind in IMMUTABLE}


# Exceptions


class ErrorClass(type):
    """Metaclass of the classes that stand for the program's exception classes.

    They must be real classes, because Python's `except` accepts nothing else.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        # A `class` statement of the test comes here, too, without this member.
        if "__number__" not in members:
            raise cannot_judge("a class of the test derives from one of the program's")
        return super().__new__(mcs, name, bases, {"__module__": "__main__"})

    def __call__(cls, /, *arguments: Any, **keywords: Any) -> Any:
        return ask("call", cls, *arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        return ask("get", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        ask("set", cls, name, value)

    def __delattr__(cls, name: str) -> None:
        ask("delete", cls, name)


class Error(BaseException):
    """An exception of the program's own class; its text and attributes are fetched from there."""

    def __getattribute__(self, name: str) -> Any:
        # Python itself uses these: traceback, cause, context, notes.
        if name.startswith("__") or name in ("with_traceback", "add_note"):
            return object.__getattribute__(self, name)
        return ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            ask("set", self, name, value)

    def __str__(self) -> str:
        return ask("str", self)

    def __repr__(self) -> str:
        return ask("repr", self)

    def __eq__(self, other: Any) -> Any:
        return ask("operator", "eq", self, other) if is_theirs(other) else NotImplemented

    __hash__ = BaseException.__hash__


def error_class(name: str, bases: list[Any]) -> type:
    """Make the class that stands for an exception class of the program.

    Args:
        bases: the classes that stand for its bases, or built-in exception classes.
    """
    if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
        raise TypeError("an exception class of unknown bases")
    # `Error` once per line of descent, before everything built in.
    own = [] if any(isinstance(base, ErrorClass) for base in bases) else [Error]
    return ErrorClass(name, (*own, *bases), {"__number__": 0})


def build_handle(form: dict[str, Any]) -> Any:
    """Build the handle of an object that the program has described (`ProgramPeer.describe`)."""
    kind, content = form.get("k"), form.get("c")
    cls = VALUED[form["b"]] if form.get("b") in VALUED else Handle
    if cls is Handle:
        made = object.__new__(Handle)
    else:
        plain = next(plain for plain in IMMUTABLE if plain.__name__ == form["b"])
        value = TestSide.peer.decode(content)
        # Exactly this type: a subclass could not come from here.
        if type(value) is not plain:
            raise TypeError("the content of an object is of another type")
        made = plain.__new__(cls, value)
    facts_of(made)["kind"] = kind if isinstance(kind, str) else "object"
    return made

"""Handles: what a test has of the objects of the program. What is done to a handle is done in the
program.

A handle never decides what it is compared with. It equals plain data only if its class derives from
a plain type: then it *is* that plain value, whatever the methods of its class say. An object's own
word counts among objects of the program alone. Python demands real classes in two places: an
`except` clause, and where C code wants a text or a number; there is one class per exception class
of the program, and one per plain type. Standard library only.
"""

import collections
import types
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside import wire
from untrusted.inside.deferred import asyncio

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
# Operators whose result may stand for a comparison with the operand: `abs(f(x) - 1.5) < 1e-6`.
LEARNING = {"sub", "truediv", "floordiv", "mod", "divmod", "xor"}
CONVERSIONS = (
    *("abs", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "bool"),
    *("neg", "pos", "invert"),
)
OTHERS = (
    *("len", "getitem", "setitem", "delitem", "reversed", "length_hint", "enter", "aenter"),
    *("aiter", "anext", "fspath", "dir", "bytes"),
)
TEXTS = ("str", "repr", "format")
IMMUTABLE: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset, Decimal)
# Plain types whose content is asked for when it is needed: it changes, or is kept in attributes
# (Fraction).
MUTABLE: tuple[Any, ...] = (
    *(list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set),
    *(collections.deque, bytearray, Fraction),
)
PLAIN = {*wire.SCALARS, *wire.PARTS, *wire.PLAIN, *MUTABLE, int}
# What `isinstance` says of a handle, by what the program says of its object.
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
MISSING = ("__array", "__set_name__", "__sizeof__")
# What is no attribute of the program's object, also where a test names it.
HERE = {"__reduce_ex__", *(f"__{name}__" for name in COMPARISONS)}
STEPS = ("send", "throw", "close")
# Seconds for which what a test awaits goes on in the program before other tasks of the test have
# their turn.
SLICE = 0.005
NOTHING = object()


class CannotJudgeError(BaseException):
    """Raised where a test does what the border cannot carry; neither program nor test has failed."""


class TestSide:
    """The test's end of the channel, which all handles use; there is one."""

    peer: Any = None
    reason = ""


def ask(operation: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Have the program carry out an operation."""
    return TestSide.peer.do(operation, *arguments, **keywords)


def cannot_judge(reason: str) -> CannotJudgeError:
    """Note for good that this test cannot be judged."""
    TestSide.reason = TestSide.reason or reason
    return CannotJudgeError(reason)


def is_theirs(value: Any) -> bool:
    """Whether a value stands for an object of the program."""
    return TestSide.peer is not None and id(value) in TestSide.peer.their_numbers


def is_plain_data(value: Any) -> bool:
    """Whether a value is plain data of the test's."""
    return type(value) in PLAIN or wire.is_array(value) or wire.is_number(value)


def is_any_number(value: Any) -> bool:
    return (
        isinstance(value, int | float | complex | Decimal)
        or wire.is_array(value)
        or wire.is_number(value)
    )


def facts_of(handle: Any) -> dict[str, Any]:
    """Return what the border knows of a handle's object.

    kind: a key of KINDS, or "object"; named: a test calls it by the name of a class; made: a test
    has made it by such a name; tainted: it has seen an operand that it might be compared with.
    """
    return object.__getattribute__(handle, "__dict__")


def content_of(handle: Any) -> Any:
    """Return the plain value that an object is whose class derives from a plain type, else NOTHING.

    The program says it without knowing what it is compared with.
    """
    facts = facts_of(handle)
    if isinstance(handle, Valued) or facts["kind"] in CONTENTS:
        if facts.get("tainted"):
            raise no_verdict(handle, "a comparison with what an operator has made")
        return handle if isinstance(handle, Valued) else ask("content", handle)
    return NOTHING


CONTENTS = {kind.__name__ for kind in MUTABLE}


def no_verdict(handle: Any, action: str) -> BaseException:
    """Refuse to let an object decide: of one that the test has made by the name of its class, that
    is no verdict.
    """
    if facts_of(handle).get("made"):
        return cannot_judge(f"{action}: an object of the program would decide it")
    return TypeError(f"{action}: an object of the program does not decide it")


class Handle:
    """An object of the program."""

    def __getattribute__(self, name: str) -> Any:
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
        made = ask("get", self, name)
        return mark(made, self, tainted=True) if facts.get("tainted") else made

    def __setattr__(self, name: str, value: Any) -> None:
        ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        ask("delete", self, name)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        made = unless_learnt(self, ask("call", self, *arguments, **keywords))
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
        # What an object only says to contain, it does not.
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
        return ask("exit", self, kind, error) and not isinstance(error, AssertionError)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return await ask("aexit", self, kind, error, None) and not isinstance(error, AssertionError)

    def __hash__(self) -> int:
        return ask("hash", self)

    def __instancecheck__(self, value: Any) -> bool:
        return not is_plain_data(value) and ask("isinstance", value, self)

    def __subclasscheck__(self, kind: type) -> bool:
        return ask("issubclass", kind, self)

    def __copy__(self) -> Any:
        return ask("copy", self, False)

    def __deepcopy__(self, _: Any) -> Any:
        return ask("copy", self, True)

    def __reduce_ex__(self, _: Any) -> Any:
        # What is pickled is a copy in the program, which stays there.
        return restored, (TestSide.peer.their_numbers[id(ask("copy", self, True))],)


def restored(number: int) -> Any:
    return ask("copy", TestSide.peer.theirs[number], True)


class Valued(Handle):
    """An object of the program whose class derives from an immutable plain type: real, so that C
    code takes it.
    """

    __iter__ = __contains__ = __next__ = __hash__ = None  # type: ignore[assignment]  # the plain type's


def driver(handle: Any) -> Iterator[Any]:
    """Return the iterator by which an event loop of the test's drives what the program awaits."""
    facts = facts_of(handle)
    if "driver" not in facts:
        facts["driver"] = drive(handle).__await__()
    return facts["driver"]


async def drive(handle: Any) -> Any:
    """Await an object within the program, slice by slice, so that tasks of the test have their
    turn.
    """
    task = ask("start task", handle)
    try:
        while not (ended := ask("run task", task, SLICE)):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        ask("cancel task", task)
        raise
    return ended[0]


# Special methods


def forwarded(name: str) -> Callable[..., Any]:
    """Make a special method that is carried out in the program."""

    def method(self: Any, /, *arguments: Any) -> Any:
        return unless_learnt(self, ask(name, self, *arguments))

    return method


def conversion(name: str) -> Callable[..., Any]:
    """Make a conversion to a number or a truth value; refused for what has seen an operand."""

    def method(self: Any, /, *arguments: Any) -> Any:
        made = ask(name, self, *arguments)
        if not facts_of(self).get("tainted"):
            return mark(made, self, tainted=False)
        if not is_theirs(made) or isinstance(made, Valued):
            raise no_verdict(self, name)
        return mark(made, self, tainted=True)

    return method


def mark(made: Any, source: Any, *, tainted: bool) -> Any:
    """Let what an operation has made inherit from its operand what the border knows."""
    if isinstance(made, Handle):
        facts_of(made)["made"] = facts_of(source).get("made")
        if tainted:
            facts_of(made)["tainted"] = True
    return made


def unless_learnt(source: Any, made: Any) -> Any:
    """Let no number pass that comes from an object which has seen an operand, in whatever way."""
    facts = facts_of(source)
    if facts.get("tainted") and not facts.get("made"):
        if is_any_number(made):
            raise no_verdict(source, "a number from what an operator has made")
        return mark(made, source, tainted=True)
    return made


def comparison(name: str) -> Callable[..., Any]:
    """Make a comparison: by the program among its own objects, else by content or not at all."""

    def method(self: Any, other: Any) -> Any:
        if is_theirs(other):
            return ask("operator", name, self, other)
        if (content := content_of(self)) is not NOTHING:
            return native(content, name)(other)
        if not is_plain_data(other) or not facts_of(self).get("made"):
            return NotImplemented
        # Plain Python might say otherwise of an object that the test has made; then neither is a
        # verdict.
        if name not in ("eq", "ne") or ask("operator", name, self, other) is not (name == "ne"):
            raise no_verdict(self, f"{name} with plain data")
        return NotImplemented

    return method


def native(value: Any, name: str) -> Callable[..., Any]:
    """Find the special method of the plain type of a value, bound to it."""
    kind = next(kind for kind in type(value).__mro__ if kind in IMMUTABLE or kind in MUTABLE)
    method = getattr(kind, f"__{name}__", None)
    return (lambda *_: NotImplemented) if method is None else types.MethodType(method, value)


def arithmetic(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    """Make an operator: what it makes of plain data is an object, or what the plain types make."""

    def method(self: Any, other: Any, *modulo: Any) -> Any:
        tainted = facts_of(self).get("tainted") or name.removeprefix("i") in LEARNING
        operands = (other, self) if reflected else (self, other)
        made = ask("operator", name, *operands, *modulo)
        if is_theirs(other) or not is_plain_data(other):
            return mark(made, self, tainted=False)
        if (content := content_of(self)) is not NOTHING:
            bare = f"r{name}" if reflected else name.removeprefix("i")
            expected = native(content, bare)(other, *modulo)
            if expected is NotImplemented or not (made == expected):
                raise no_verdict(self, name)
            return mark(made, self, tainted=False)
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
    """Make the class of handles whose objects are of a plain type; only what asks the program is
    the handle's.
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
    kept |= {
        f"__{prefix}{name}__"
        for name in (*BINARY, "divmod")
        for prefix in ("", "r")
        if hasattr(kind, f"__{prefix}{name}__")
    }
    members = {name: vars(Handle)[name] for name in kept}
    members |= {
        name: getattr(kind, name) for name in dir(kind) if name not in kept and name in vars(Handle)
    }
    return type(f"Valued{kind.__name__}", (Valued, kind), members | {"__hash__": kind.__hash__})


VALUED = {kind.__name__: valued_class(kind) for kind in IMMUTABLE}


# Exceptions


class ErrorClass(type):
    """The class of the classes that stand for exception classes of the program; Python wants real
    ones to catch.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
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
    """An exception of the program's own class: its text and its attributes are asked for."""

    def __getattribute__(self, name: str) -> Any:
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
    """Make the class that stands for an exception class of the program."""
    if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
        raise TypeError("an exception class of unknown bases")
    own = [] if any(isinstance(base, ErrorClass) for base in bases) else [Error]
    return ErrorClass(name, (*own, *bases), {"__number__": 0})


def build_handle(form: dict[str, Any]) -> Any:
    """Make the handle of an object that the program has described."""
    kind, content = form.get("k"), form.get("c")
    cls = VALUED[form["b"]] if form.get("b") in VALUED else Handle
    if cls is Handle:
        made = object.__new__(Handle)
    else:
        plain = next(plain for plain in IMMUTABLE if plain.__name__ == form["b"])
        value = TestSide.peer.decode(content)
        if type(value) is not plain:
            raise TypeError("the content of an object is of another type")
        made = plain.__new__(cls, value)
    facts_of(made)["kind"] = kind if isinstance(kind, str) else "object"
    return made

"""Handles: the test's stand-ins for objects of the program, which carries out all operations.

An object of the program never decides whether it equals plain data. If its class derives from a
plain type (`class Name(str)`), its plain value is compared, whatever methods the class has;
otherwise it is not equal. Its own `__eq__` only decides comparisons with other objects of the
program.

Python's `except` accepts only classes, so each exception class of the program has a class here
(`ErrorClass`). Imports the standard library only.
"""

import functools
import importlib
import re
import types
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

from untrusted.inside import operations, wire
from untrusted.inside.channel import Fields
from untrusted.inside.containers import CONTAINERS
from untrusted.inside.deferred import asyncio
from untrusted.inside.operations import IMMUTABLE, MUTABLE, OPERATORS, Function
from untrusted.inside.packages import is_of_package

# Special methods that use the plain value of such an object instead of the object's own methods.
BY_CONTENT = {f"__{name}__" for name in (*operations.COMPARISONS, "contains", "len", "iter")}
PLAIN = {*wire.FORMS, *wire.PLAIN, *CONTAINERS.values(), int}
# Attributes of numbers, of differences of dates and of data frames.
NUMBER_NAMES = "real imag numerator denominator days seconds microseconds empty size".split()  # noqa: SIM905
# The class that `isinstance` sees for a handle, by the kind that the program reports.
KINDS: dict[Any, Any] = {
    kind.__name__: kind for kind in (
        *IMMUTABLE, *MUTABLE, type, map, filter, property, re.Match, types.BuiltinFunctionType,
        types.FunctionType, types.MethodType, types.GeneratorType, types.CoroutineType, types.ModuleType,
    )
}  # fmt: skip
# Prefixes of attributes that handles lack, because numpy and `class` statements probe for them.
MISSING = ("__array", "__set_name__", "__sizeof__")
# Attributes that are always those of the handle, even if a test names them explicitly.
LOCAL_ATTRIBUTES = {f"__{name}__" for name in (*operations.COMPARISONS, "copy", "deepcopy")}
# Methods of plain types and arrays that judge a value, or list what is in it.
QUESTIONS = """
    startswith endswith issubset issuperset isdisjoint equals count index all any exists is_dir is_file
    is_integer isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable
    isspace istitle isupper intersection union difference symmetric_difference keys values items
    isin between eq ne lt le gt ge compare corrwith merge sub subtract
"""
# Seconds that an awaited object of the program runs before other tasks of the test get a turn.
SLICE = 0.005
# Marks a missing plain value, because None is a plain value.
NOTHING = object()


class CannotJudgeError(BaseException):
    """Raised if a test does what the border does not support. It says nothing about the program."""


class TestSide:
    """The test's end of the channel, which all handles use. There is one per process.

    Attributes:
        reason: why the test cannot be judged; empty if it can.
        calls: number of calls and changes of attributes so far.
        names_class: whether the test has used a class of the program by its name.
        source: the text of the test.
    """

    peer: Any = None
    reason = ""
    calls = 0
    names_class = False
    source = ""


def ask(operation: str, /, *arguments, **keywords):
    """Have the program carry out an operation."""
    TestSide.calls += operation in ("call", "call method", "set", "delete") or (
        operation == "special" and arguments[0] in ("__setitem__", "__delitem__", "__iadd__")
    )
    return TestSide.peer.do(operation, *arguments, **keywords)


def cannot_judge(reason: str) -> CannotJudgeError:
    """Record that this test cannot be judged, even if it catches the returned error."""
    TestSide.reason = TestSide.reason or reason
    return CannotJudgeError(reason)


def is_theirs(value) -> bool:
    """Whether a value stands for an object of the program."""
    return TestSide.peer is not None and id(value) in TestSide.peer.their_numbers


def is_plain_data(value) -> bool:
    """Whether a value is plain data of the test."""
    is_many = wire.is_array(value) or wire.is_frame(value)
    return is_many or type(value) in PLAIN or wire.numpy_kind(value) == "number"


def facts_of(handle) -> Fields:
    """Return what the border knows about a handle's object.

    The keys:
        kind: a key of KINDS, or "object".
        content: its plain value, if its class derives from an immutable plain type; else NOTHING.
        named: whether the test knows the object by a name in CapWords, so that it is a class.
        made: whether the test itself has created the object by calling such a class.
        strict: if the object is the context of a `with` block, the line of the last check in it, or 0.
        tainted: whether the object may know the expected value: `f(x) - 1.5` has seen 1.5.
    """
    return object.__getattribute__(handle, "__dict__")


def is_made(handle) -> bool:
    """Whether the test itself has created an object, by calling a class of the program."""
    return facts_of(handle).get("made", False)


def content_of(handle, name: str = "__eq__") -> Any:
    """Return the plain value of an object for a special method; NOTHING unless there is one.

    There is one if the object's class derives from a plain type. The program sends the value
    without knowing what it will be compared with: an immutable one with the object, another when
    it is needed.
    """
    facts = facts_of(handle)
    content = facts["content"]
    is_own_method = name in ("__len__", "__iter__") and is_made(handle)
    is_fetched = KINDS.get(facts["kind"]) in MUTABLE and name in BY_CONTENT and not is_own_method
    if content is NOTHING and not is_fetched:
        return NOTHING
    if facts.get("tainted"):
        raise no_verdict(handle, "a comparison with the result of an operator")
    return ask("content", handle) if content is NOTHING else content


def no_verdict(handle, action: str) -> BaseException:
    """Return the error for an operation whose result an object of the program would decide.

    If the test itself has created the object from the program's class, plain Python might accept
    the operation, so the test cannot be judged. Otherwise the operation fails with a TypeError.
    """
    message = f"{action}: an object of the program does not decide it"
    return cannot_judge(message) if is_made(handle) else TypeError(message)


def copy_facts(result, source, *, tainted: bool = False):
    """Copy the facts about an operand to the result of an operation."""
    if isinstance(result, Handle):
        facts_of(result)["made"] = is_made(source)
        facts_of(result)["tainted"] = tainted or facts_of(result).get("tainted")
    return result


def note_made(result):
    """Record that the test has created an object, if it called a class by its name."""
    if isinstance(result, Handle):
        facts_of(result)["made"] = True
    return result


def unless_tainted(source, result, *, strict: bool = False) -> Any:
    """Return the result of an operation. Raises if it is a number from a tainted object.

    Args:
        source: the operand.
        result: its result.
        strict: also raise for objects that the test has created.
    """
    if not facts_of(source).get("tainted") or (is_made(source) and not strict):
        return result
    if isinstance(result, int | float | complex | Decimal) or (
        is_plain_data(result) and hasattr(result, "size")
    ):
        raise no_verdict(source, "a number from the result of an operator")
    return copy_facts(result, source, tainted=True)


def be_strict(value, line: int):
    """Record the last line of the `with` block of this context that contains checks, or 0."""
    if isinstance(value, Handle):
        facts_of(value)["strict"] = line
    return value


def may_suppress(handle, error, requested) -> bool:
    """Whether `__exit__` may suppress an exception: no AssertionError, and none before a check."""
    if not requested or error is None or isinstance(error, AssertionError):
        return False
    # Entered by an ExitStack or the like
    if "strict" not in facts_of(handle):
        raise no_verdict(handle, "suppressing an exception in an unknown block")
    return error.__traceback__.tb_lineno > facts_of(handle)["strict"]


class Handle:
    """Stands for an object of the program."""

    def __getattribute__(self, name: str):
        # Every attribute access comes here first, also `__class__`, which `isinstance` asks for.
        facts = facts_of(self)
        if name == "__class__":
            return KINDS.get(facts["kind"], type(self))
        if name == "__mro_entries__":
            raise cannot_judge("a class of the test derives from a class of the program")
        if name.startswith(MISSING):
            if name == "__array__" and is_made(self):
                raise cannot_judge("an object of the program is converted to a numpy array")
            raise AttributeError(name)
        if name in LOCAL_ATTRIBUTES:
            return object.__getattribute__(self, name)
        # Every other attribute belongs to the program's object.
        result = ask("get", self, name)
        # `(f(x) - date).days` has seen the expected value
        result = unless_tainted(self, result) if name in NUMBER_NAMES else result
        return copy_facts(result, self, tainted=True) if facts.get("tainted") else result

    def __setattr__(self, name: str, value):
        ask("set", self, name, value)

    def __delattr__(self, name: str):
        ask("delete", self, name)

    def __get__(self, instance, owner):
        # A function of the program that replaces a method of a test's class, as a decorator returns.
        is_method = instance is not None and facts_of(self)["kind"] == "function"
        return types.MethodType(self, instance) if is_method else self

    def __call__(self, /, *arguments, **keywords):
        result = unless_tainted(self, ask("call", self, *arguments, **keywords))
        return note_made(result) if facts_of(self).get("named") else result

    def __contains__(self, item) -> bool:
        if is_theirs(item):
            return ask("special", "__contains__", self, item)
        if (content := content_of(self)) is not NOTHING:
            return item in content
        # `__contains__` of the program could lie, so search the items that it yields, if any.
        with suppress(TypeError):
            if any(item is other or item == other for other in self):
                return True
        if is_made(self) and ask("special", "__contains__", self, item):
            raise cannot_judge("an object of the program contains an item that it does not yield")
        return False

    def __len__(self) -> int:
        content = content_of(self, "__len__")
        asked = content is NOTHING
        length = unless_tainted(self, ask("special", "__len__", self)) if asked else len(content)
        return check_number(self, "length", length)

    def __iter__(self) -> Any:
        if (content := content_of(self, "__iter__")) is not NOTHING:
            return yield_items(self, content)
        # An empty one would be no number, but is an answer: list(f(x) - {1, 2}) == []
        if facts_of(self).get("tainted") and not is_made(self):
            raise no_verdict(self, "a loop over the result of an operator")
        result = unless_tainted(self, ask("special", "__iter__", self))
        if result is not self:
            return yield_items(self, result)
        # Its own iterator: counted if the test was told a length
        is_counted = "length" in facts_of(self) and not is_made(self)
        steps = functools.partial(OPERATORS["__next__"], self)
        return yield_items(self, iter(steps, NOTHING)) if is_counted else self

    def __await__(self):
        return drive([self]).__await__()

    def __exit__(self, kind, error, trace):
        return may_suppress(self, error, ask("special", "__exit__", self, kind, error, None))

    async def __aexit__(self, kind, error, trace):
        requested = await ask("special", "__aexit__", self, kind, error, None)
        return may_suppress(self, error, requested)

    def __instancecheck__(self, value) -> bool:
        # Plain data is never an instance of the program's class, whatever its metaclass says.
        return not is_plain_data(value) and ask("isinstance", value, self)

    def __subclasscheck__(self, kind: type) -> bool:
        return ask("issubclass", kind, self)

    def __copy__(self):
        return ask("library", "copy", "copy", self)

    def __deepcopy__(self, _):
        return ask("library", "copy", "deepcopy", self)


def check_number(handle, name: str, number: int) -> int:
    """Return a number of items. Raises if a loop yielded fewer items than `len` promised.

    Otherwise an object of length 2 that yields nothing would pass `assert len(result) == 2` and
    `for x, y in zip(result, [1, 2]): assert x == y`.

    Args:
        name: "length", or "items" at the end of a loop.
    """
    facts = facts_of(handle)
    facts[name] = number, TestSide.calls
    (length, measured), (items, looped) = (facts.get(key, (0, -1)) for key in ("length", "items"))
    # The object may have changed if the test has called the program in between.
    if measured == looped and items < length:
        raise no_verdict(handle, "a length that differs from the number of items")
    return number


def yield_items(handle, iterator) -> Iterator[Any]:
    number = 0
    for number, item in enumerate(iterator, 1):  # noqa: B007 (used below)
        yield item
    check_number(handle, "items", number)


async def drive(awaited: list[Any]):
    """Await an object in the program, in slices between which other tasks of the test run."""
    task = ask("start task", *awaited)
    # None while it runs, then a tuple of its result, which may be None itself.
    while not (ended := ask("run task", task, SLICE)):
        await asyncio.sleep(0)
    return ended[0]


# Special methods


def special(name: str) -> Function:
    """Make a special method: it uses the object's plain value if there is one, else the program."""
    operator = f"__{name}__"

    def method(self, /, *arguments):
        # The program makes texts: a test only shows or formats them.
        content = NOTHING if name in operations.TEXTS else content_of(self, operator)
        if content is not NOTHING and operator in OPERATORS:
            return OPERATORS[operator](content, *arguments)
        result = ask("special", operator, self, *arguments)
        return unless_tainted(self, result, strict=name in operations.CONVERSIONS)

    return method


def decided(name: str, one, other):
    """Have the program compare two of its objects, if a test that names no class can trust a yes."""
    answer = ask("special", name, one, other)
    if answer and name != "__ne__" and not (TestSide.names_class or one is other):
        raise cannot_judge("objects of the program decide whether they are equal or in order")
    return answer


def comparison(name: str) -> Function:
    """Make a comparison: the program compares its own objects; with others, only content counts."""

    def method(self, other):
        # A test that names no class of the program may mean plain data: f(1) == f(2), f(1) < f(2)
        is_open = TestSide.names_class or self is other
        content = NOTHING if is_theirs(other) and is_open else content_of(self)
        if content is not NOTHING:
            return OPERATORS[name](content, other)
        # two objects of the program
        if is_theirs(other):
            return decided(name, self, other)
        # The test has created this object, so plain Python would let it decide. "Not equal" is the
        # only answer that can be trusted.
        if is_plain_data(other) and is_made(self):
            trusted = {"__eq__": False, "__ne__": True}.get(name, NOTHING)
            if trusted is NOTHING or ask("special", name, self, other) is not trusted:
                raise no_verdict(self, f"{name} with plain data")
        # After NotImplemented, Python compares identities: the object equals no plain data.
        return NotImplemented

    return method


def arithmetic(name: str, *, reflected: bool = False) -> Function:
    """Make an operator. With plain data, its result is an object, or that of the plain types."""
    operator = f"__{name}__"

    def method(self, other, *modulo):
        operands = (other, self) if reflected else (self, other)
        # Before the program sees the other operand
        content = content_of(self) if is_plain_data(other) else NOTHING
        result = ask("special", operator, *operands, *modulo)
        # With other objects, of the program or of the test, any result is accepted, unless one of
        # them has seen the expected value.
        if not is_plain_data(other):
            for operand in operands:
                if isinstance(operand, Handle):
                    unless_tainted(operand, result)
            return copy_facts(result, self)
        # With plain content, check the program's result against that of the plain type.
        if content is not NOTHING:
            operands = (other, content) if reflected else (content, other)
            try:
                expected = OPERATORS[operator](*operands, *modulo)
            except TypeError:
                expected = NOTHING
            if expected is NOTHING or not (result == expected):
                raise no_verdict(self, name)
            return copy_facts(result, self)
        # An object without a plain value could return any plain result. If the result is an object,
        # it has now seen the expected value, as in `abs(f(x) - 1.5) < 1e-6`.
        if not is_theirs(result) or isinstance(result, tuple(VALUED.values())):
            raise no_verdict(self, name)
        return copy_facts(result, self, tainted=True)

    return method


for _name in (*operations.CONVERSIONS, *operations.TEXTS, *operations.OTHERS, "enter", "aenter"):
    if f"__{_name}__" not in vars(Handle):
        setattr(Handle, f"__{_name}__", special(_name))
for _name in operations.COMPARISONS:
    setattr(Handle, f"__{_name}__", comparison(f"__{_name}__"))
for _name in (*operations.BINARY, "divmod"):
    setattr(Handle, f"__{_name}__", arithmetic(_name))
    setattr(Handle, f"__r{_name}__", arithmetic(_name, reflected=True))
    setattr(Handle, f"__i{_name}__", arithmetic(f"i{_name}"))


# Handles of objects whose class derives from an immutable plain type. They derive from it, too, so
# that functions in C accept them.
VALUED = {kind.__name__: type(f"Valued{kind.__name__}", (Handle, kind), {}) for kind in IMMUTABLE}


def build_handle(form: Fields):
    """Build the handle of an object that the program has described (`ProgramPeer.describe`)."""
    kind = str(form.get("k"))
    if kind == "coroutine":
        # Event loops need a real coroutine, which then awaits the program's one.
        awaited = []
        awaited.append(drive(awaited))
        return awaited[0]
    if kind not in VALUED:
        handle = object.__new__(Handle)
        content = NOTHING
    else:
        content = TestSide.peer.decode(form.get("c"))
        # Exactly this type, because plain content is never of a subclass.
        if type(content) is not KINDS[kind]:
            raise TypeError("the content of an object is of another type")
        is_date = KINDS[kind] in operations.DATES
        parts = wire.pickled_arguments(content) if is_date else [content]
        handle = KINDS[kind].__new__(VALUED[kind], *parts)
    facts_of(handle).update(kind=kind, content=content)
    return handle


# What a prepared test calls instead of `type` and methods (`checks.ask_for_classes`)


def type_of(value):
    """Return the class of a value; for a handle, a handle of its class."""
    return ask("type", value) if isinstance(value, Handle) else type(value)


def is_instance(value, kinds) -> bool:
    """Whether a value is an instance of a class. If that is of a package, the program says so.

    Only where the test asks: functions of packages find a handle.
    """
    answer = isinstance(value, kinds)
    if answer or not isinstance(value, Handle):
        return answer
    parts = kinds if isinstance(kinds, tuple) else (kinds,)
    asked = tuple(kind for kind in parts if not is_theirs(kind) and is_of_package(kind))
    return asked != () and ask("isinstance", value, asked)


def is_callable(value) -> bool:
    """Whether a value can be called. Every handle can, so the program's object is asked."""
    if not isinstance(value, Handle):
        return callable(value)
    try:
        return ask("get", value, "__call__") is not None
    except AttributeError:
        return False


@functools.cache
def empty_array_class() -> Any:
    """Make the class of empty arrays that are not compared with what is not empty.

    Numpy would stretch the other side: `(np.array([]) == np.array([1])).all()` is True.
    """
    numpy: Any = importlib.import_module("numpy")

    class Empty(numpy.ndarray):
        def __array_ufunc__(self, ufunc, method, *operands, **options):
            if any(map(numpy.size, operands)):
                raise cannot_judge("an empty array is compared with what is not empty")
            return getattr(ufunc, method)(*map(numpy.asarray, operands), **options)

    return Empty


def measure(value: Any, is_close: bool = False):
    """Return an operand, but of an empty array, or a list that is used as one, a guarded view."""
    is_frame = wire.is_frame(value) and not value.size
    is_empty = is_close and (is_frame or (type(value) is list and value in ([], [[]])))
    array: Any = importlib.import_module("numpy").asarray(value) if is_empty else value
    return array.view(empty_array_class()) if wire.is_array(array) and not array.size else array


def method_call(subject, name: str, /, *arguments, **keywords):
    """Call a method, with a single message if it is an object of the program."""
    is_question = name in QUESTIONS.split()
    if not isinstance(subject, Handle):
        method = getattr(subject, name)
        # A namespace may have a function of the program in the place of a method.
        if is_question and isinstance(method, Handle):
            raise cannot_judge(f"an object of the program decides {name}")
        return method(*arguments, **keywords)
    # Questions about a plain value are answered by it, unless the test has made the object, or calls
    # a function of a class that it names: Text.count("a", "banana").
    asks = is_question and not (is_made(subject) or facts_of(subject).get("named"))
    if asks and hasattr(content := content_of(subject), name):
        return getattr(content, name)(*arguments, **keywords)
    result = unless_tainted(subject, ask("call method", name, subject, *arguments, **keywords))
    if asks and (arguments or isinstance(result, bool)):
        if not isinstance(result, Handle):
            raise cannot_judge(f"an object of the program decides {name}")
        copy_facts(result, subject, tainted=True)
    # A method that has seen the expected value must agree with the plain type's own:
    # result.replace("Hello", "")
    method = getattr(facts_of(subject)["content"], name, None)
    is_answer = not isinstance(result, Handle) and all(map(is_plain_data, arguments))
    if arguments and method and is_answer and method(*arguments, **keywords) != result:
        raise no_verdict(subject, name)
    # Calling a class by its name, here Stack.Node(...), makes an object of the test's own.
    return note_made(result) if name[:1].isupper() and "_" not in name else result


# Exceptions


def catching(kinds):
    """Return classes that the program has chosen. Raises if `except` would catch assertions by them."""
    if isinstance(kinds, tuple):
        return tuple(map(catching, kinds))
    if isinstance(kinds, type) and kinds in AssertionError.__mro__[:-1]:
        raise cannot_judge(f"the program's value is {kinds.__name__}")
    return kinds


class ErrorClass(type):
    """Metaclass of the classes that stand for the program's exception classes.

    They must be real classes, because Python's `except` accepts nothing else.
    """

    def __new__(mcs, *_):
        # Reached by `class` statements of the test only: see `error_class`.
        raise cannot_judge("a class of the test derives from a class of the program")

    def __call__(cls, /, *arguments, **keywords):
        return ask("call", cls, *arguments, **keywords)

    def __getattr__(cls, name: str):
        return ask("get", cls, name)

    # Without `Error`, which stands above the bases here.
    __bases__: Any = property(lambda cls: ask("get", cls, "__bases__"))


class Error(BaseException):
    """An exception of the program's own class; its text and attributes are fetched from there."""

    def __getattribute__(self, name: str):
        # Python itself uses these: traceback, cause, context, notes.
        if name.startswith("__") or name in ("with_traceback", "add_note"):
            return object.__getattribute__(self, name)
        return ask("get", self, name)

    def __str__(self) -> str:
        return ask("special", "__str__", self)

    def __eq__(self, other):
        return decided("__eq__", self, other) if is_theirs(other) else NotImplemented

    __hash__ = BaseException.__hash__


def error_class(name: str, doc, bases: list[Any]) -> type:
    """Make the class that stands for an exception class of the program.

    Args:
        bases: the classes that stand for its bases, or built-in exception classes.
    """
    if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
        raise TypeError("an exception class with unknown bases")
    # `Error` must be a base once, and before built-in classes.
    first = [] if any(isinstance(base, ErrorClass) for base in bases) else [Error]
    members = {"__module__": "__main__", "__doc__": doc if isinstance(doc, str) else None}
    return type.__new__(ErrorClass, name, (*first, *bases), members)

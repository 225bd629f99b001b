"""The operations on the program's objects that a test can ask for.

One fixed list, carried out in the program's process. Imports the standard library only.
"""

import collections
import copy
import importlib
import math
import operator
import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.deferred import asyncio, threading
from untrusted.inside.handles import BINARY, COMPARISONS, IMMUTABLE, MUTABLE

# By the name in a message: "add", "eq", and "iadd" for +=.
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, f"__{name}__") for name in (*BINARY, *COMPARISONS)},
    **{f"i{name}": getattr(operator, f"__i{name}__") for name in BINARY},
    "divmod": divmod,
    "pow": pow,
}
# How to take the plain value out of an object whose class derives from a plain type, by the plain
# type's own methods: a subclass may override any of them.
TAKE: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__pos__,
    complex: complex.__pos__,
    Fraction: lambda value: Fraction(value._numerator, value._denominator),
    Decimal: Decimal,
    list: lambda value: list(list.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    collections.deque: lambda value: collections.deque(
        collections.deque.__iter__(value), value.maxlen
    ),
    bytearray: lambda value: bytearray(bytearray.__iter__(value)),
    **{
        kind: lambda value, kind=kind: kind(dict.items(value))
        for kind in (dict, collections.OrderedDict)
    },
    collections.Counter: lambda value: collections.Counter(dict(dict.items(value))),
    collections.defaultdict: lambda value: collections.defaultdict(
        value.default_factory, dict.items(value)
    ),
}


def content(subject: Any) -> Any:
    """Return the plain value of an object whose class derives from a plain type."""
    base = next(base for base in type(subject).__mro__ if base in IMMUTABLE or base in MUTABLE)
    return TAKE[base](subject)


def call(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


def call_attribute(subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(subject, name)(*arguments, **keywords)


def call_library(module: str, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a library function that inspects its arguments, such as `dataclasses.asdict`."""
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


def on_class(name: str) -> Callable[..., Any]:
    """Make an operation that calls a special method as Python does: on the class."""

    def method(subject: Any, /, *arguments: Any) -> Any:
        return getattr(type(subject), name)(subject, *arguments)

    return method


def exit_context(subject: Any, kind: Any, error: Any) -> bool:
    return bool(type(subject).__exit__(subject, kind, error, None))


def apply(name: str, left: Any, right: Any, *modulo: Any) -> Any:
    return OPERATORS[name](left, right, *modulo)


# Patches

# What was there before the first patch, by target and attribute.
ORIGINALS: dict[tuple[int, str], Any] = {}


def patch(target: Any, name: str, value: Any) -> None:
    """Replace an attribute of a module or a logger, as the test has just done at its end."""
    # Only the first: a second patch must not make the first one the original.
    ORIGINALS.setdefault((id(target), name), getattr(target, name))
    setattr(target, name, value)


def unpatch(target: Any, name: str) -> None:
    if (id(target), name) in ORIGINALS:
        setattr(target, name, ORIGINALS.pop((id(target), name)))


# Awaiting


# The event loop in which the program's objects are awaited for the test; empty before the first.
LOOP: list[Any] = []
# The tasks in it; the index is the number that the test knows.
TASKS: list[Any] = []


async def settle(awaitable: Any) -> Any:
    return await awaitable


def start_task(awaitable: Any) -> int:
    """Begin to await an object; returns the task's number."""
    if not LOOP:
        # One loop for good: locks and tasks that an object creates belong to the loop they are
        # created in.
        LOOP.append(asyncio.new_event_loop())
    TASKS.append(LOOP[0].create_task(settle(awaitable)))
    return len(TASKS) - 1


def run_task(number: int, seconds: float) -> tuple[Any] | None:
    """Let all tasks run until the given one ends or `seconds` have passed.

    Returns its result as a tuple of one, or None if it has not ended.
    """
    in_own_loop(asyncio.wait([TASKS[number]], timeout=seconds))
    return (TASKS[number].result(),) if TASKS[number].done() else None


def cancel_task(number: int) -> None:
    TASKS[number].cancel()
    in_own_loop(asyncio.wait([TASKS[number]], timeout=1))


def in_own_loop(coroutine: Any) -> None:
    """Run a coroutine in our loop; in another thread if this one is already running a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        LOOP[0].run_until_complete(coroutine)
        return
    thread = threading.Thread(target=LOOP[0].run_until_complete, args=(coroutine,))
    thread.start()
    thread.join()


# All operations by name; `ProgramPeer` adds those that concern the program's own names.
OPERATIONS: dict[str, Callable[..., Any]] = {
    # What a test writes as syntax.
    "get": getattr, "set": setattr, "delete": delattr, "call": call, "call method": call_attribute,
    "operator": apply, "contains": lambda subject, item: item in subject,
    "getitem": operator.getitem, "setitem": operator.setitem, "delitem": operator.delitem,
    "len": len, "iter": iter, "next": next, "reversed": reversed, "length_hint": operator.length_hint,
    "enter": on_class("__enter__"), "exit": exit_context, "aenter": on_class("__aenter__"),
    "aexit": on_class("__aexit__"), "aiter": aiter, "anext": anext,
    "isinstance": isinstance, "issubclass": issubclass, "type": type, "callable": callable,
    # Texts and numbers.
    "str": str, "repr": repr, "format": format, "bytes": bytes, "dir": dir, "hash": hash, "fspath": os.fspath,
    "bool": bool, "int": int, "float": float, "complex": complex, "index": operator.index, "abs": abs,
    "round": round, "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
    "neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "content": content,
    # Whole objects; what a test does to the whole process; awaiting.
    "copy": lambda subject, deep: copy.deepcopy(subject) if deep else copy.copy(subject),
    "library": call_library, "patch": patch, "unpatch": unpatch,
    "start task": start_task, "run task": run_task, "cancel task": cancel_task,
}  # fmt: skip

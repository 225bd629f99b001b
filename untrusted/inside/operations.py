"""The operations on the program's objects that a test can ask for.

One fixed list, carried out in the program's process. Imports the standard library only.
"""

import builtins
import collections
import copy
import functools
import importlib
import inspect
import math
import operator
import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.deferred import asyncio

# Plain types from which a class of the program may derive. The values of the first never change, so
# they come with the object; the content of the others is fetched when it is needed.
IMMUTABLE: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset, Decimal)
MUTABLE: tuple[Any, ...] = (
    *(list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set),
    *(collections.deque, bytearray, Fraction),
)
# Names of special methods without their underscores, where Python has a function that calls them:
# comparisons, operators of two values, conversions to a number or a truth value and signs, texts
# (which are only shown or formatted), others.
SPECIAL = """
    eq ne lt le gt ge
    add sub mul truediv floordiv mod pow matmul and or xor lshift rshift
    abs int float complex index round trunc floor ceil bool neg pos invert
    str repr format
    len iter next reversed length_hint getitem setitem delitem contains hash fspath dir bytes aiter anext
"""
COMPARISONS, BINARY, CONVERSIONS, TEXTS, OTHERS = map(str.split, SPECIAL.strip().splitlines())
NAMES = (*COMPARISONS, *BINARY, *CONVERSIONS, *TEXTS, *OTHERS, "divmod", *(f"i{n}" for n in BINARY))
# By the name of the special method: "__add__", and "__iadd__" for +=.
OPERATORS: dict[str, Callable[..., Any]] = {
    f"__{name}__": next(
        vars(module)[key]
        for module in (builtins, operator, math, os)
        # "and" is a word of the language: the operator's name is `__and__`.
        for key in (name, f"__{name}__")
        if key in vars(module)
    )
    for name in NAMES
}


def method_of(subject: Any, name: str) -> Any:
    """Look a special method up as Python does: on the class, bound to the object."""
    found = inspect.getattr_static(type(subject), name)
    # A mock as a special method is no descriptor, and gets no subject.
    return found.__get__(subject, type(subject)) if hasattr(type(found), "__get__") else found


def apply(name: str, subject: Any, /, *arguments: Any) -> Any:
    """Call a special method."""
    if name in OPERATORS:
        return OPERATORS[name](subject, *arguments)
    return method_of(subject, name)(*arguments)


def plain_base(kind: type) -> Any:
    """Return the nearest plain type from which a class derives; None if there is none."""
    return next((base for base in kind.__mro__ if base in IMMUTABLE or base in MUTABLE), None)


def content(subject: Any) -> Any:
    """Return the plain value of an object whose class derives from a plain type.

    By the plain type's own methods: a subclass may override any of them.
    """
    base = plain_base(type(subject))
    if base is collections.defaultdict:
        return base(subject.default_factory, dict.items(subject))
    if issubclass(base, dict):
        return base(dict(dict.items(subject)))
    if base is str:
        return str.__str__(subject)
    if base is Decimal:
        return Decimal(subject)
    if hasattr(base, "__iter__"):
        return base(base.__iter__(subject))
    return base.__pos__(subject)


def call(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


def call_method(subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(subject, name)(*arguments, **keywords)


def call_library(module: str, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a library function that inspects its arguments, such as `dataclasses.asdict`."""
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


# What was there before the first patch, by target and attribute.
ORIGINALS: dict[tuple[int, str], Any] = {}


def patch(target: Any, name: str, value: Any) -> None:
    """Replace an attribute of a module or a logger, as the test has just done at its end."""
    # Only the first: a second patch must not make the first one the original.
    ORIGINALS.setdefault((id(target), name), getattr(target, name, None))
    setattr(target, name, value)


def unpatch(target: Any, name: str) -> None:
    if (id(target), name) in ORIGINALS:
        setattr(target, name, ORIGINALS.pop((id(target), name)))


@functools.cache
def event_loop() -> Any:
    """Return the loop in which the program's objects are awaited for the test.

    One for good: locks and tasks that an object creates belong to the loop they are created in.
    """
    return asyncio.new_event_loop()


def start_task(awaitable: Any) -> Any:
    """Begin to await an object; returns the task."""
    return asyncio.ensure_future(awaitable, loop=event_loop())


def run_task(task: Any, seconds: float, cancelled: bool) -> tuple[Any] | None:
    """Let all tasks run until the given one ends or `seconds` have passed.

    Returns its result as a tuple of one, or None if it has not ended.
    """
    if cancelled:
        task.cancel()
    event_loop().run_until_complete(asyncio.wait([task], timeout=seconds))
    return (task.result(),) if task.done() and not cancelled else None


# All operations by name; `ProgramPeer` adds those that concern the program's own names.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "get": getattr, "set": setattr, "delete": delattr, "call": call, "call method": call_method,
    "special": apply, "isinstance": isinstance, "issubclass": issubclass, "type": type,
    "content": content, "copy": lambda subject, deep: copy.deepcopy(subject) if deep else copy.copy(subject),
    "library": call_library, "patch": patch, "unpatch": unpatch, "start task": start_task, "run task": run_task,
}  # fmt: skip

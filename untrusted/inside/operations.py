"""The operations on the program's objects that a test may request; runs in the program's process.

Imports the standard library only.
"""

import builtins
import collections
import datetime
import functools
import importlib
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.deferred import asyncio

Function = Callable[..., Any]

# Plain types from which a class of the program may derive (`content`). Immutable values are sent with
# the description of the object.
DATES = datetime.date, datetime.datetime, datetime.timedelta
IMMUTABLE: tuple[Any, ...] = (int, float, complex, str, bytes, tuple, frozenset, Decimal, *DATES)
MUTABLE = (
    *(list, collections.OrderedDict, collections.Counter, collections.defaultdict, dict, set),
    *(collections.deque, bytearray, Fraction),
)
# Names of special methods without underscores, for which Python has a function. By line: comparisons;
# operators of two values; conversions to a number or truth value, and signs; texts; others.
SPECIAL = """
    eq ne lt le gt ge
    add sub mul truediv floordiv mod pow matmul and or xor lshift rshift
    abs int float complex index round trunc floor ceil bool neg pos invert
    str repr format
    len iter next reversed length_hint getitem setitem delitem contains hash fspath dir bytes aiter anext
"""
COMPARISONS, BINARY, CONVERSIONS, TEXTS, OTHERS = map(str.split, SPECIAL.strip().splitlines())
NAMES = (*COMPARISONS, *BINARY, *CONVERSIONS, *TEXTS, *OTHERS, "divmod", *(f"i{n}" for n in BINARY))
# Functions by special method: "__add__" -> operator.add, "__len__" -> len
OPERATORS: dict[str, Function] = {}
# From the last of these modules that has one.
for _module in (os, math, operator, builtins):
    for _name in NAMES:
        # "and" is a keyword, so its function is `operator.__and__`.
        if function := vars(_module).get(_name) or vars(_module).get(f"__{_name}__"):
            OPERATORS[f"__{_name}__"] = function


def call_special(subject, name: str, /, *arguments, **keywords):
    """Call a special method that is looked up as Python does: on the class."""
    method = inspect.getattr_static(type(subject), name)
    # A mock as a special method is not a descriptor, so it is called without the object.
    if hasattr(type(method), "__get__"):
        method = method.__get__(subject, type(subject))
    return method(*arguments, **keywords)


def apply(name: str, subject, /, *arguments):
    """Call a special method."""
    if name in OPERATORS:
        return OPERATORS[name](subject, *arguments)
    return call_special(subject, name, *arguments)


def plain_base(kind: type) -> Any:
    """Return the nearest plain type from which a class derives; None if there is none."""
    return next((base for base in kind.__mro__ if base in IMMUTABLE or base in MUTABLE), None)


def content(subject):
    """Return the plain value of an object, using only methods of the plain type it derives from."""
    base = plain_base(type(subject))
    if base is collections.defaultdict:
        return base(subject.default_factory, dict.items(subject))
    if issubclass(base, dict):
        return base(dict(dict.items(subject)))
    if base in (str, Decimal):
        return base(base.__str__(subject))
    if hasattr(base, "__iter__"):
        return base(base.__iter__(subject))
    if hasattr(base, "isoformat"):
        return base.fromisoformat(base.isoformat(subject))
    return base.__pos__(subject)


def call_method(name: str, subject, /, *arguments, **keywords):
    return getattr(subject, name)(*arguments, **keywords)


def call_library(module: str, name: str, /, *arguments, **keywords):
    """Call a library function that inspects its arguments, such as `dataclasses.asdict`."""
    return getattr(importlib.import_module(module), name)(*arguments, **keywords)


# Original values of patched attributes, by the target's identity and the attribute.
ORIGINALS = {}


def patch(target, name: str, *value):
    """Replace an attribute of a module, as the test has done; without a value, restore it."""
    key = id(target), name
    # Only the first patch records the original.
    ORIGINALS.setdefault(key, getattr(target, name, None))
    setattr(target, name, *(value or [ORIGINALS.pop(key)]))


@functools.cache
def event_loop():
    """Return the event loop in which the program's objects are awaited for the test.

    Always the same one, because locks and tasks belong to the loop that created them.
    """
    return asyncio.new_event_loop()


def run_task(task, seconds: float) -> tuple[Any] | None:
    """Run the event loop until the task ends or `seconds` have passed.

    Returns the task's result in a tuple, or None if it has not ended.
    """
    event_loop().run_until_complete(asyncio.wait([task], timeout=seconds))
    return (task.result(),) if task.done() else None


# All operations by name.
OPERATIONS: dict[str, Function] = {
    "get": getattr, "set": setattr, "delete": delattr, "call": operator.call, "call method": call_method,
    "special": apply, "isinstance": isinstance, "issubclass": issubclass, "type": type,
    "content": content,
    "library": call_library, "patch": patch,
    "start task": lambda awaitable: asyncio.ensure_future(awaitable, loop=event_loop()), "run task": run_task,
    "main": lambda: sys.modules["__main__"],
}  # fmt: skip

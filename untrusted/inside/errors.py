"""How exceptions, and the types that a program may name, cross between test and program.

Imports the standard library only.
"""

import builtins
import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside import wire
from untrusted.inside.containers import CONTAINERS

# Library exceptions that a program may raise as themselves, by module. All others arrive as classes
# of the program.
LIBRARY: dict[str, tuple[str, ...]] = {
    "asyncio.exceptions": ("CancelledError", "InvalidStateError", "IncompleteReadError", "LimitOverrunError"),
    "_csv": ("Error",), "_queue": ("Empty",), "_struct": ("error",), "binascii": ("Error",),
    "concurrent.futures._base": ("CancelledError", "InvalidStateError"),
    "configparser": ("Error", "NoSectionError", "NoOptionError", "DuplicateSectionError", "ParsingError"),
    "copy": ("Error",), "dataclasses": ("FrozenInstanceError",),
    "decimal": ("DecimalException", "InvalidOperation", "DivisionByZero", "Overflow", "Inexact", "Rounded"),
    "ipaddress": ("AddressValueError", "NetmaskValueError"), "json.decoder": ("JSONDecodeError",),
    "pickle": ("PickleError", "PicklingError", "UnpicklingError"), "queue": ("Empty", "Full"), "re": ("error",),
    "shutil": ("Error", "SameFileError"), "socket": ("herror", "gaierror"), "threading": ("BrokenBarrierError",),
    "sqlite3": ("Error", "DatabaseError", "IntegrityError", "OperationalError", "ProgrammingError"),
    "statistics": ("StatisticsError",), "subprocess": ("CalledProcessError", "TimeoutExpired"),
    "xml.etree.ElementTree": ("ParseError",),
    "zipfile": ("BadZipFile", "LargeZipFile"), "zoneinfo._common": ("ZoneInfoNotFoundError",),
    "numpy.linalg": ("LinAlgError",), "numpy": ("AxisError",),
}  # fmt: skip

PLAIN_TYPES = (
    *wire.SCALARS,
    *wire.PARTS,
    *CONTAINERS.values(),
    types.FunctionType,
    types.MethodType,
)
# Types that a program may name to a test: built-in ones and those of plain data.
TYPES: dict[str, type] = {
    **{f"{kind.__module__}.{kind.__qualname__}": kind for kind in PLAIN_TYPES},
    **{f"builtins.{name}": kind for name, kind in vars(builtins).items() if isinstance(kind, type)},
    "builtins.NoneType": type(None),
}


def type_name(kind: type) -> str | None:
    """Return the name by which the test finds the same type; None if it may not be named."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    # By identity: any class can call itself "builtins.int".
    if TYPES.get(name) is kind:
        return name
    known = kind.__qualname__ in LIBRARY.get(kind.__module__, ())
    return (
        name
        if known and getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
        else None
    )


def named_type(name: str) -> type | None:
    """Return the type that `type_name` has named; None if there is none."""
    module, _, member = name.rpartition(".")
    if member in LIBRARY.get(module, ()):
        return getattr(importlib.import_module(module), member)
    return TYPES.get(name)


def state_of(error: BaseException) -> dict[str, Any]:
    """Collect the plain attributes of an exception: from its dictionary and from members in C."""
    found = dict(vars(error))
    # Such members are `errno` of an OSError, `start` of a UnicodeDecodeError.
    for kind in type(error).__mro__:
        if kind not in (BaseException, object):
            members = [
                name for name, part in vars(kind).items() if inspect.ismemberdescriptor(part)
            ]
            found |= {name: getattr(error, name, None) for name in members}
    # Without None: an OSError shows a number that is None in its text, a missing one it does not.
    plain = (str, int, float, bool, bytes, list)
    return {name: value for name, value in found.items() if isinstance(value, plain)}


def describe_error(error: BaseException, encode: Callable[[Any], Any], kind: Any) -> dict[str, Any]:
    """Describe an exception as data.

    Args:
        encode: encodes its parts.
        kind: its class, already encoded.
    """
    return {
        "k": "error",
        "class": kind,
        # The slot itself: a class may override `args`.
        "args": encode(tuple(BaseException.args.__get__(error))),  # pyright: ignore[reportAttributeAccessIssue]
        "state": encode(state_of(error)),
        # Cause, context, whether the context is hidden ("raise ... from None").
        "chain": [encode(error.__cause__), encode(error.__context__), error.__suppress_context__],
    }


def build_error(
    form: dict[str, Any], decode: Callable[[Any], Any], adopt: Callable[[Any], Any]
) -> BaseException:
    """Build the exception that `describe_error` has described.

    `adopt` receives it before its cause and context are built, as these may refer to it.
    """
    kind, arguments = decode(form["class"]), decode(form["args"])
    if not (
        isinstance(kind, type) and issubclass(kind, BaseException) and isinstance(arguments, tuple)
    ):
        raise TypeError("no exception")
    # Built-in classes are called, so that C members are set; the program's own must not run code.
    try:
        error = kind(*arguments) if type(kind) is type else kind.__new__(kind, *arguments)
    except Exception:  # its constructor takes other arguments than it keeps
        error = kind.__new__(kind)
    adopt(error)
    # The constructor of a class of the program has not run, so set the arguments directly.
    if type(kind) is not type or not error.args:
        BaseException.args.__set__(error, arguments)  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in decode(form["state"]).items():
        # Attributes of exceptions of the program stay there and are fetched when they are read.
        if name == "__notes__" or (type(kind) is type and not name.startswith("__")):
            with contextlib.suppress(
                AttributeError, TypeError
            ):  # some members are for reading only
                object.__setattr__(error, name, value)
    error.__cause__, error.__context__ = decode(form["chain"][0]), decode(form["chain"][1])
    error.__suppress_context__ = bool(form["chain"][2])
    return error

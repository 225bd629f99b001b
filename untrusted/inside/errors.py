"""How exceptions, and the types that a program may name, cross between test and program.

Imports the standard library only.
"""

import builtins
import contextlib
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside import wire
from untrusted.inside.containers import CONTAINERS

# Library modules whose exceptions a program may raise as themselves. All others arrive as classes
# of the program: none that frameworks raise is among these.
LIBRARY = {
    "_csv", "_lzma", "_pickle", "_queue", "_struct", "argparse", "asyncio.exceptions", "binascii",
    "concurrent.futures._base", "configparser", "copy", "dataclasses", "decimal", "getopt", "http.client", "ipaddress",
    "json.decoder", "numpy", "numpy.exceptions", "numpy.linalg", "pickle", "queue", "re", "shutil", "socket", "sqlite3",
    "statistics", "struct", "subprocess", "tarfile", "threading", "tomllib", "urllib.error", "xml.etree.ElementTree",
    "zipfile", "zlib", "zoneinfo._common",
}  # fmt: skip
PLAIN_TYPES = (*wire.FORMS, *CONTAINERS.values(), types.FunctionType, types.MethodType)
# Types that a program may name to a test: built-in ones and those of plain data.
TYPES: dict[str, type] = {
    **{f"{kind.__module__}.{kind.__qualname__}": kind for kind in PLAIN_TYPES},
    **{f"builtins.{name}": kind for name, kind in vars(builtins).items() if isinstance(kind, type)},
    "builtins.NoneType": type(None),
}


def find_type(name: str) -> type | None:
    """Return the type that a program may call by this name; None if there is none."""
    module, _, member = name.rpartition(".")
    if name in TYPES or module not in LIBRARY:
        return TYPES.get(name)
    try:
        found = getattr(importlib.import_module(module), member, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def type_name(kind: type) -> str | None:
    """Return the name by which the test finds the same type; None if it may not be named."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    # By identity: any class can call itself "builtins.int".
    return name if find_type(name) is kind else None


def state_of(error: BaseException) -> dict[str, Any]:
    """Collect the plain attributes of an exception: from its dictionary and from members in C."""
    found = dict(vars(error))
    # Such members are `errno` of an OSError, `start` of a UnicodeDecodeError.
    for kind in type(error).__mro__[:-2]:
        names = [name for name, part in vars(kind).items() if inspect.ismemberdescriptor(part)]
        found |= {name: getattr(error, name, None) for name in names}
    # Without None: an OSError shows a number that is None in its text, a missing one it does not.
    plain = (str, int, float, bool, bytes, list)
    return {name: value for name, value in found.items() if isinstance(value, plain)}


def describe_error(error: BaseException, encode: Callable[[Any], Any]) -> dict[str, Any]:
    """Describe an exception as data; `encode` encodes its parts."""
    return {
        "k": "error",
        "class": encode(type(error)),
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
    if not (issubclass(kind, BaseException) and isinstance(arguments, tuple)):
        raise TypeError("no exception")
    # Built-in classes are called, so that C members are set; the program's own must not run code.
    is_own = type(kind) is not type
    try:
        error = kind.__new__(kind, *arguments) if is_own else kind(*arguments)
    except Exception:  # its constructor takes other arguments than it keeps
        error = kind.__new__(kind)
    adopt(error)
    if is_own or not error.args:
        BaseException.args.__set__(error, arguments)  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in decode(form["state"]).items():
        # Attributes of exceptions of the program stay there and are fetched when they are read.
        if name == "__notes__" or not (is_own or name.startswith("__")):
            # Some members are for reading only.
            with contextlib.suppress(AttributeError, TypeError):
                object.__setattr__(error, name, value)
    error.__cause__, error.__context__ = decode(form["chain"][0]), decode(form["chain"][1])
    error.__suppress_context__ = bool(form["chain"][2])
    return error

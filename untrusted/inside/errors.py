"""How exceptions, and the types that a program may name, cross between test and program.

Imports the standard library only.
"""

import builtins
import contextlib
import importlib
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside import wire
from untrusted.inside.channel import Fields
from untrusted.inside.containers import CONTAINERS
from untrusted.inside.packages import genuine_name

# Library modules whose exceptions a program may raise as themselves. All others arrive as classes
# of the program: none that frameworks raise is among these.
LIBRARY = """
    _csv _lzma _pickle _queue _struct argparse asyncio.exceptions binascii
    concurrent.futures._base configparser copy dataclasses decimal getopt http.client ipaddress
    json.decoder numpy numpy.exceptions numpy.linalg pickle queue re shutil socket sqlite3
    statistics struct subprocess tarfile threading tomllib urllib.error xml.etree.ElementTree
    zipfile zlib zoneinfo._common
"""
PLAIN_TYPES = (*wire.FORMS, *CONTAINERS.values(), types.FunctionType, types.MethodType)
# Types that a program may name to a test: built-in ones and those of plain data.
BUILTIN = [kind for kind in (type(None), *vars(builtins).values()) if isinstance(kind, type)]
TYPES = {genuine_name(kind): kind for kind in (*PLAIN_TYPES, *BUILTIN)}


def find_type(name: str) -> type | None:
    """Return the type that a program may call by this name; None if there is none."""
    module, _, member = name.partition(":")
    if name in TYPES or module not in LIBRARY.split():
        return TYPES.get(name)
    with contextlib.suppress(ImportError):
        found = getattr(importlib.import_module(module), member, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None


def describe_class(kind: type, encode: Callable[[Any], Any]) -> Fields:
    """Describe an exception class that only one end has: `except` needs a class at the other."""
    bases = [encode(base) for base in kind.__bases__ if issubclass(base, BaseException)]
    return {"k": "error class", "n": kind.__name__, "d": kind.__doc__, "b": bases}


def describe_error(error: BaseException, encode: Callable[[Any], Any]) -> Fields:
    """Describe an exception as data; `encode` encodes its parts."""
    # As pickle takes it apart: the constructor's arguments (also the file of an OSError), attributes.
    _, arguments, *state = error.__reduce__()
    attributes = dict(*state)
    if isinstance(error, AttributeError | NameError):
        attributes["name"] = error.name
    plain = (str, int, float, bytes, list)
    attributes = {name: value for name, value in attributes.items() if isinstance(value, plain)}
    parts = [type(error), arguments, attributes]
    chain = [error.__cause__, error.__context__, error.__suppress_context__]
    return {"k": "error", "parts": list(map(encode, parts + chain))}


def build_error(
    form: Fields, decode: Callable[[Any], Any], adopt: Callable[[Any], Any]
) -> BaseException:
    """Build the exception that `describe_error` has described.

    `adopt` receives it before its cause and context are built, as these may refer to it.
    """
    kind, arguments, state = map(decode, form["parts"][:3])
    if not (issubclass(kind, BaseException) and isinstance(arguments, tuple)):
        raise TypeError("no exception")
    # Built-in classes are called, so that C members are set; the other end's must not run code.
    is_theirs = type(kind) is not type
    try:
        error = kind.__new__(kind, *arguments) if is_theirs else kind(*arguments)
    except Exception:  # its constructor takes other arguments than it keeps
        error = kind.__new__(kind)
    adopt(error)
    if is_theirs or not error.args:
        BaseException.args.__set__(error, arguments)  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in state.items():
        # Attributes of exceptions of the other end stay there and are fetched when they are read.
        if name == "__notes__" or not (is_theirs or name.startswith("__")):
            # Some members are for reading only.
            with contextlib.suppress(AttributeError, TypeError):
                object.__setattr__(error, name, value)
    # In this order: a cause, also None, hides the context.
    error.__cause__, error.__context__, error.__suppress_context__ = map(decode, form["parts"][3:])
    return error

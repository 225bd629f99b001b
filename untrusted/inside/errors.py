"""Send exceptions between test and program, and define which types a program may name.

Imports the standard library only.
"""

import builtins
import importlib
import types
from contextlib import suppress

from untrusted.inside import wire
from untrusted.inside.channel import Convert, Fields
from untrusted.inside.containers import CONTAINERS
from untrusted.inside.packages import genuine_name

# Library modules whose exception classes a program may raise in the test. All other classes,
# especially those of test frameworks, arrive as classes of the program.
LIBRARY = """
    _csv _lzma _pickle _queue _struct argparse asyncio.exceptions asyncio.queues binascii calendar
    concurrent.futures._base configparser copy dataclasses decimal getopt graphlib http.client ipaddress
    json.decoder numpy numpy.exceptions numpy.linalg pickle queue re shutil socket sqlite3
    statistics struct subprocess tarfile threading tomllib urllib.error xml.etree.ElementTree
    zipfile zlib zoneinfo._common
"""
# Attributes that lead to other exceptions.
CHAIN = ("__cause__", "__context__", "__suppress_context__")
PLAIN_TYPES = (*wire.FORMS, *CONTAINERS.values(), types.FunctionType, types.MethodType)
# Built-in types and those of plain data, which a program may name, too.
BUILTIN = [kind for kind in (type(None), *vars(builtins).values()) if isinstance(kind, type)]
TYPES = {genuine_name(kind): kind for kind in (*PLAIN_TYPES, *BUILTIN)}


def find_type(name: str) -> type | None:
    """Return the type that a program may refer to by this name; None if there is none."""
    module, _, member = name.partition(":")
    if name in TYPES or module not in LIBRARY.split():
        return TYPES.get(name)
    with suppress(ImportError):
        found = getattr(importlib.import_module(module), member, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None


def describe_class(kind: type, encode: Convert) -> Fields:
    """Describe an exception class of this end: the other end builds one for its `except`."""
    bases = [encode(base) for base in kind.__bases__ if issubclass(base, BaseException)]
    return {"k": "error class", "n": kind.__name__, "d": kind.__doc__, "b": bases}


def describe_error(error: BaseException, encode: Convert) -> Fields:
    """Describe an exception by its class, arguments and attributes, encoded by `encode`."""
    # Like pickle: arguments of the constructor, with the file name of an OSError, and attributes.
    _, arguments, *state = error.__reduce__()
    attributes = dict(*state)
    if isinstance(error, AttributeError | NameError):
        attributes["name"] = error.name
    plain = (str, int, float, bytes, list)
    attributes = {name: value for name, value in attributes.items() if isinstance(value, plain)}
    # Last, as setting a cause, even None, also sets __suppress_context__.
    chain = {name: getattr(error, name) for name in CHAIN}
    return {"k": "error", "parts": list(map(encode, [type(error), arguments, attributes | chain]))}


def decode_kind(form: Fields, decode: Convert):
    """Read the class of an exception or a base of one, which is no value that a test could catch."""
    return find_type(str(form.get("v"))) or decode(form)


def build_error(form: Fields, decode: Convert, adopt: Convert) -> BaseException:
    """Build the exception that `describe_error` has described.

    `adopt` registers it before its cause and context are built, because these may refer to it.
    """
    kind = decode_kind(form["parts"][0], decode)
    arguments = decode(form["parts"][1])
    if not (issubclass(kind, BaseException) and isinstance(arguments, tuple)):
        raise TypeError("no exception")
    # A built-in class is called, which sets its members in C. A class of the other end runs no code.
    is_theirs = type(kind) is not type
    try:
        error = kind.__new__(kind, *arguments) if is_theirs else kind(*arguments)
    except Exception:  # the constructor takes other arguments than those in `args`
        error = kind.__new__(kind)
    adopt(error)
    if is_theirs or not error.args:
        BaseException.args.__set__(error, arguments)  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in decode(form["parts"][2]).items():
        # Other attributes of the other end's exceptions are fetched when they are read.
        if name in ("__notes__", *CHAIN) or not (is_theirs or name.startswith("__")):
            # Some members are read-only.
            with suppress(AttributeError, TypeError):
                object.__setattr__(error, name, value)
    return error

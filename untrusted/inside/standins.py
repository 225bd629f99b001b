"""Stand-ins: objects, classes, functions and exceptions that live at the other end of a conversation.

A class of the other end is mirrored by a class here that has its name, its bases, its methods and its special methods,
so that `type(x) is C`, `isinstance`, `len(x)`, `x + y` and `except E` mean here what they mean there. Every object has
one stand-in, so that `is` does too. Imports the standard library only.
"""

import contextlib
import inspect
import types
from typing import Any, NamedTuple

from untrusted.inside import mirrors
from untrusted.inside.conversation import Conversation
from untrusted.inside.deferred import asyncio
from untrusted.inside.packages import genuine_name, is_genuine
from untrusted.inside.remotes import FunctionRemote, GeneratorRemote, Remote
from untrusted.inside.signatures import annotations_of, describe_function, name_function, restore_signature
from untrusted.inside.specials import MUTABLE

# Exceptions


def state_of(error: BaseException) -> dict[str, Any]:
    """Collect the attributes of a genuine exception that are plain: in its dictionary, and of its class in C."""
    found = dict(vars(error))
    for kind in type(error).__mro__:
        if kind not in (BaseException, object):
            found |= {
                name: getattr(error, name, None)
                for name, part in vars(kind).items()
                if inspect.ismemberdescriptor(part)
            }
    # Not None: an OSError whose number is None, and not missing, says so in its text.
    plain = (str, int, float, bool, bytes, list)
    return {name: value for name, value in found.items() if isinstance(value, plain)}


def describe_error(peer: Conversation, error: BaseException) -> dict[str, Any]:
    """Describe an exception: of a genuine class it is one at the other end too."""
    is_genuine_class = genuine_name(type(error)) is not None
    described: dict[str, Any] = {"class": (peer.encode if is_genuine_class else peer.encode_class)(type(error))}
    described["arguments"] = peer.encode(tuple(error.args))
    notes = {"__notes__": error.__notes__} if hasattr(error, "__notes__") else {}
    described["state"] = peer.encode(state_of(error) if is_genuine_class else notes)
    described["chain"] = [peer.encode(error.__cause__), peer.encode(error.__context__), error.__suppress_context__]
    return described


def build_error(peer: Conversation, number: int, form: dict[str, Any]) -> BaseException:
    kind, arguments = peer.decode(form["class"]), peer.decode(form["arguments"])
    if not (isinstance(kind, type) and issubclass(kind, BaseException) and isinstance(arguments, tuple)):
        raise TypeError("no exception")
    error = Remote.make(kind, peer, number, *arguments) if issubclass(kind, Remote) else make_error(kind, arguments)
    peer.adopt(number, error)
    for name, value in peer.decode(form["state"]).items():
        with contextlib.suppress(AttributeError, TypeError):  # some members are for reading only
            object.__setattr__(error, name, value)
    error.__cause__, error.__context__ = peer.decode(form["chain"][0]), peer.decode(form["chain"][1])
    error.__suppress_context__ = bool(form["chain"][2])
    return error


def make_error(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    try:
        return kind(*arguments)
    except Exception:  # its constructor takes other things than it keeps
        error = kind.__new__(kind, *arguments)
        error.args = arguments
        return error


# Descriptions


def describe(peer: Conversation, value: Any) -> dict[str, Any]:
    """Describe an object that stays here, so that the other end can build a stand-in."""
    if isinstance(value, type):
        return {"kind": "class", **mirrors.describe_class(peer, value)}
    if isinstance(value, types.FunctionType):
        is_plain = not set(vars(value)) - {"__wrapped__"}
        return {"kind": "function" if is_plain else "callable", **describe_function(peer, value)}
    if isinstance(value, types.GeneratorType):
        return {"kind": "generator"}
    if inspect.isawaitable(value):
        return {"kind": "awaitable"}
    if isinstance(value, map | filter):
        return {"kind": type(value).__name__}
    if isinstance(value, BaseException):
        return {"kind": "error", **describe_error(peer, value)}
    description = {"kind": "object", "class": peer.encode_class(type(value))}
    if isinstance(value, types.BuiltinFunctionType) or (
        isinstance(getattr(value, "__name__", None), str) and is_genuine(getattr(value, "__module__", None))
    ):
        description["home"] = getattr(value, "__module__", None)
    if callable(value) and isinstance(getattr(value, "__name__", None), str):
        description["named"] = [value.__name__, getattr(value, "__doc__", None)]
    base = mirrors.data_base(type(value))
    if base is None:
        return description
    if base in MUTABLE:
        key, items = peer.share_items(value)
        return description | {"id": key, "items": items}
    return description | {"content": peer.encode(mirrors.TAKE[base](value))}


# Stand-ins


def build(peer: Conversation, number: int, form: dict[str, Any]) -> Any:
    """Build the stand-in for an object of the other end."""
    kind = form["kind"]
    if kind == "class":
        return mirrors.build_class(peer, number, form)
    if kind == "function":
        return build_function(peer, number, form)
    if kind == "generator":
        return peer.adopt(number, delegate(Remote.make(GeneratorRemote, peer, number)))
    if kind == "awaitable":
        handle = Remote.make(Remote, peer, number)
        return peer.adopt(number, wait_for(peer, number, handle))
    if kind in ("map", "filter"):
        items = delegate(Remote.make(GeneratorRemote, peer, number))
        return peer.adopt(number, map(same, items) if kind == "map" else filter(always, items))
    if kind == "error":
        return build_error(peer, number, form)
    if kind == "callable":
        return build_callable(peer, number, form)
    mirror = peer.decode(form["class"])
    if not isinstance(mirror, type) or not issubclass(mirror, Remote):
        raise TypeError("no class of the other end")
    if "items" in form:
        return peer.adopt_container(number, Remote.make(mirror, peer, number), form)
    made = peer.adopt(
        number, Remote.make(mirror, peer, number, *([peer.decode(form["content"])] if "content" in form else ()))
    )
    if "named" in form:
        for name, value in zip(("__name__", "__doc__"), form["named"], strict=True):
            object.__setattr__(made, name, value)
    return made


def same(item: Any) -> Any:
    return item


def always(_: Any) -> bool:
    return True


def delegate(remote: Any) -> Any:
    """Make a generator of this end that goes on with one of the other."""
    return (yield from remote)


class Waiting(NamedTuple):
    """What is awaited of the other end, and the future that hears of it."""

    handle: Any
    future: Any


SLICE_SECONDS = 0.01
"""How long the other end's loop runs before this end's has its turn: timeouts and cancellations are decided here."""


async def wait_for(peer: Conversation, number: int, handle: Any) -> Any:
    """Await an object of the other end, beside all others that are awaited."""
    loop = asyncio.get_running_loop()
    if any(waiting.future.get_loop() is not loop for waiting in peer.waiting.values()):
        peer.waiting.clear()
    is_first = not peer.waiting
    waiting = peer.waiting[number] = Waiting(handle, loop.create_future())
    if is_first:
        # After the others that begin to wait in this turn of the loop.
        loop.call_soon(loop.call_soon, drive, peer, loop, set())
    try:
        return await waiting.future
    except asyncio.CancelledError:
        if peer.waiting.pop(number, None):
            peer.do("run tasks", {}, [number], SLICE_SECONDS)
        raise


def drive(peer: Conversation, loop: Any, known: set[int]) -> None:
    """Have the other end's loop run for a while, hand out what is done, and come again."""
    new = {number: waiting.handle for number, waiting in peer.waiting.items() if number not in known}
    try:
        outcomes = peer.do("run tasks", new, [], SLICE_SECONDS)
    except BaseException as error:  # each of those who wait hears of it
        outcomes = [(number, False, error) for number in peer.waiting]
    for number, succeeded, value in outcomes:
        waiting = peer.waiting.pop(number, None)
        if waiting is None or waiting.future.done():
            continue
        if succeeded:
            waiting.future.set_result(value)
        elif isinstance(value, asyncio.CancelledError):
            waiting.future.cancel()
        else:
            error = value if isinstance(value, BaseException) else TypeError("no exception")
            waiting.future.set_exception(peer.checked_error(error, "run tasks", ()))
    if peer.waiting and not loop.is_closed():
        loop.call_soon(drive, peer, loop, known | set(new))


def build_callable(peer: Conversation, number: int, form: dict[str, Any]) -> Any:
    """Make the stand-in of a function that has attributes of its own."""
    made = peer.adopt(number, Remote.make(FunctionRemote, peer, number))
    for name in ("name", "qualname", "doc"):
        object.__setattr__(made, f"__{name}__", form[name])
    object.__setattr__(made, "__annotations__", annotations_of(peer, form["signature"]))
    if form["signature"] is not None:
        object.__setattr__(made, "__signature__", restore_signature(peer, form["signature"]))
    return made


def build_function(peer: Conversation, number: int, form: dict[str, Any]) -> Any:
    """Make a function that has the other one called."""
    handle = Remote.make(Remote, peer, number)
    caller: Any = asynchronous(peer, handle) if form["asynchronous"] else synchronous(peer, handle)
    # Where `typing.get_type_hints` looks for the names that annotations are written in.
    made = types.FunctionType(caller.__code__, peer.scope, closure=caller.__closure__)
    peer.adopt(number, made)
    name_function(peer, made, form)
    return made


def started(peer: Conversation, value: Any) -> Any:
    """Begin a coroutine of the other end's that has only been made here; every other value is left as it is."""
    if not inspect.iscoroutine(value) or value.cr_code.co_name != "call_and_await" or value.cr_frame is None:
        return value
    given = value.cr_frame.f_locals
    value.close()
    return peer.do("call", given["handle"], *given["arguments"], **given["keywords"])


def synchronous(peer: Conversation, handle: Any) -> Any:
    def function(*arguments: Any, **keywords: Any) -> Any:
        return peer.do("call", handle, *arguments, **keywords)

    return function


def asynchronous(peer: Conversation, handle: Any) -> Any:
    async def call_and_await(*arguments: Any, **keywords: Any) -> Any:
        return await peer.do("call", handle, *arguments, **keywords)

    return call_and_await

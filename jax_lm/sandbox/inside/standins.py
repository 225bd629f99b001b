"""Stand-ins: objects, classes, functions and exceptions that live at the other end of a conversation.

A class of the other end is mirrored by a class here that has its name, its bases, its methods and its special methods,
so that `type(x) is C`, `isinstance`, `len(x)`, `x + y` and `except E` mean here what they mean there. Every object has
one stand-in, so that `is` does too. Imports the standard library only.
"""

import inspect
import types
from typing import TYPE_CHECKING, Any

from jax_lm.sandbox.inside import mirrors
from jax_lm.sandbox.inside.mirrors import Remote
from jax_lm.sandbox.inside.packages import genuine_name, is_genuine

if TYPE_CHECKING:
    from jax_lm.sandbox.inside.peer import Peer


# Exceptions


def state_of(error: BaseException) -> dict[str, Any]:
    """Collect the attributes of an exception that are plain data."""
    return {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | bool | list)}


def describe_error(peer: "Peer", error: BaseException) -> dict[str, Any]:
    """Describe an exception of a genuine class: it crosses as data."""
    return {
        "class": peer.encode(type(error)),
        "arguments": peer.encode(tuple(error.args)),
        "state": peer.encode(state_of(error)),
        "cause": peer.encode(error.__cause__),
    }


def restore_error(peer: "Peer", content: dict[str, Any]) -> BaseException:
    kind, arguments = peer.decode(content["class"]), peer.decode(content["arguments"])
    if not (isinstance(kind, type) and issubclass(kind, BaseException) and isinstance(arguments, tuple)):
        raise TypeError("no exception")
    try:
        error = kind(*arguments)
    except Exception:  # its constructor takes other things than it keeps
        error = kind.__new__(kind, *arguments)
        error.args = arguments
    vars(error).update(peer.decode(content["state"]))
    error.__cause__ = peer.decode(content["cause"])
    return error


# Descriptions


def describe(peer: "Peer", value: Any) -> dict[str, Any]:
    """Describe an object that stays here, so that the other end can build a stand-in."""
    if isinstance(value, type):
        return {"kind": "class", **mirrors.describe_class(peer, value)}
    if isinstance(value, types.FunctionType) and not set(vars(value)) - {"__wrapped__"}:
        return {"kind": "function", **describe_function(peer, value)}
    if isinstance(value, types.GeneratorType):
        return {"kind": "generator"}
    if inspect.isawaitable(value):
        return {"kind": "awaitable"}
    description = {"kind": "object", "class": peer.encode_class(type(value))}
    if isinstance(value, types.BuiltinFunctionType) or (
        isinstance(getattr(value, "__name__", None), str) and is_genuine(getattr(value, "__module__", None))
    ):
        description["home"] = getattr(value, "__module__", None)
    if isinstance(value, BaseException):
        return description | {"arguments": peer.encode(tuple(value.args)), "cause": peer.encode(value.__cause__)}
    base = mirrors.data_base(type(value))
    if base is None:
        return description
    if base in mirrors.MUTABLE:
        entry = peer.share(value)
        return description | {"id": entry.key, "items": peer.encode_items(entry)}
    return description | {"content": peer.encode(mirrors.TAKE[base](value))}


def describe_function(peer: "Peer", function: Any) -> dict[str, Any]:
    """Describe a function: its names, its documentation, its signature."""
    try:
        signature = inspect.signature(function)
        parameters = [
            [p.name, int(p.kind), p.default is not p.empty and [peer.encode(p.default)], annotation(peer, p.annotation)]
            for p in signature.parameters.values()
        ]
        described: Any = [parameters, annotation(peer, signature.return_annotation)]
    except (ValueError, TypeError):
        described = None
    return {
        "home": function.__module__,
        "name": function.__name__,
        "qualname": function.__qualname__,
        "doc": function.__doc__ if isinstance(function.__doc__, str) else None,
        "signature": described,
        "asynchronous": inspect.iscoroutinefunction(function),
    }


def annotation(peer: "Peer", value: Any) -> Any:
    """Encode an annotation; None if there is none."""
    return None if value is inspect.Parameter.empty else [peer.encode(value)]


# Stand-ins


def build(peer: "Peer", number: int, form: dict[str, Any]) -> Any:
    """Build the stand-in for an object of the other end."""
    kind = form["kind"]
    if kind == "class":
        return mirrors.build_class(peer, number, form)
    if kind == "function":
        return build_function(peer, number, form)
    if kind == "generator":
        return peer.adopt(number, delegate(Remote.make(mirrors.GeneratorRemote, peer, number)))
    if kind == "awaitable":
        handle = Remote.make(mirrors.Remote, peer, number)
        return peer.adopt(number, wait_for(peer, handle))
    mirror = peer.decode(form["class"])
    if not isinstance(mirror, type) or not issubclass(mirror, Remote):
        raise TypeError("no class of the other end")
    if "arguments" in form:
        arguments = peer.decode(form["arguments"])
        error = peer.adopt(number, Remote.make(mirror, peer, number, *arguments))
        error.args = arguments
        error.__cause__ = peer.decode(form["cause"])
        return error
    if "items" in form:
        return peer.adopt_container(number, Remote.make(mirror, peer, number), form)
    return peer.adopt(number, Remote.make(mirror, peer, number, *([peer.decode(form["content"])] if "content" in form else ())))


def delegate(remote: Any) -> Any:
    """Make a generator of this end that goes on with one of the other."""
    return (yield from remote)


async def wait_for(peer: "Peer", handle: Any) -> Any:
    """Await an object of the other end, together with all others that are awaited in this turn of the loop."""
    import asyncio  # slow, and few tests need it

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    peer.awaited.append((handle, future))
    if len(peer.awaited) == 1:
        loop.call_soon(loop.call_soon, settle, peer)
    return await future


def settle(peer: "Peer") -> None:
    """Await what has come together, at the other end."""
    batch, peer.awaited = peer.awaited, []
    try:
        outcomes = peer.do("gather", *[handle for handle, _ in batch])
    except BaseException as error:  # each of those who wait hears of it
        outcomes = [(False, error)] * len(batch)
    for (_, future), (succeeded, value) in zip(batch, outcomes, strict=True):
        if future.done():
            continue
        if succeeded:
            future.set_result(value)
        elif isinstance(value, BaseException):
            future.set_exception(peer.checked_error(value, "gather", ()))
        else:
            future.set_exception(TypeError("no exception"))


def build_function(peer: "Peer", number: int, form: dict[str, Any]) -> Any:
    """Make a function that has the other one called."""
    handle = Remote.make(mirrors.Remote, peer, number)

    def function(*arguments: Any, **keywords: Any) -> Any:
        return peer.do("call", handle, *arguments, **keywords)

    async def coroutine_function(*arguments: Any, **keywords: Any) -> Any:
        return await peer.do("call", handle, *arguments, **keywords)

    made: Any = coroutine_function if form["asynchronous"] else function
    made.__name__, made.__qualname__, made.__module__ = str(form["name"]), str(form["qualname"]), "__main__"
    made.__doc__ = form["doc"]
    peer.adopt(number, made)
    if form["signature"] is not None:
        made.__signature__ = restore_signature(peer, form["signature"])
        parameters = [*made.__signature__.parameters.values()]
        annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
        returned = made.__signature__.return_annotation
        made.__annotations__ = annotations | ({} if returned is inspect.Signature.empty else {"return": returned})
    return made


def restore_signature(peer: "Peer", described: list) -> inspect.Signature:
    def given(form: Any) -> Any:
        return peer.decode(form[0]) if form else inspect.Parameter.empty

    parameters = [
        inspect.Parameter(name, inspect._ParameterKind(kind), default=given(default), annotation=given(form))
        for name, kind, default, form in described[0]
    ]
    return inspect.Signature(parameters, return_annotation=given(described[1]), __validate_parameters__=False)

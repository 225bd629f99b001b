"""What one end of a conversation can have done to the objects of the other. Imports the standard library only."""

import copy
import importlib
import operator
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside.conversation import Conversation
from untrusted.inside.deferred import asyncio, threading

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, f"__{name}__")
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
} | {"divmod": divmod}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    f"i{name}": getattr(operator, f"__i{name}__") for name in BINARY if name != "divmod"
}
FUNCTIONS: dict[str, Callable[..., Any]] = {**BINARY, **COMPARISONS, **IN_PLACE}


def special(_: Conversation, name: str, subject: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a special method as Python would: on the class of the object."""
    return getattr(type(subject), name)(subject, *arguments, **keywords)


def apply_operator(_: Conversation, name: str, left: Any, right: Any) -> Any:
    return FUNCTIONS[name](left, right)


def call(_: Conversation, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


def get_attribute(_: Conversation, subject: Any, name: str) -> Any:
    return getattr(subject, name)


def get_super(_: Conversation, kind: type, subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Call the method of a class on an object of a class below it."""
    return getattr(kind, name)(subject, *arguments, **keywords)


def get_and_call(_: Conversation, subject: Any, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    return getattr(subject, name)(*arguments, **keywords)


def get_item(_: Conversation, subject: Any, key: Any) -> Any:
    return subject[key]


def set_attribute(_: Conversation, subject: Any, name: str, value: Any) -> None:
    setattr(subject, name, value)


def delete_attribute(_: Conversation, subject: Any, name: str) -> None:
    delattr(subject, name)


def is_instance(_: Conversation, subject: Any, kind: Any) -> bool:
    return isinstance(subject, kind)


def is_subclass(_: Conversation, subject: Any, kind: Any) -> bool:
    return issubclass(subject, kind)


def copied(_: Conversation, subject: Any, deep: bool) -> Any:
    return copy.deepcopy(subject) if deep else copy.copy(subject)


ORIGINALS: dict[tuple[int, str], Any] = {}


def patch(_: Conversation, target: Any, name: str, value: Any) -> None:
    """Replace an attribute of a module or a logger, as the other end has just done with its own."""
    ORIGINALS.setdefault((id(target), name), getattr(target, name))
    setattr(target, name, value)


def unpatch(_: Conversation, target: Any, name: str) -> None:
    if (id(target), name) in ORIGINALS:
        setattr(target, name, ORIGINALS.pop((id(target), name)))


def repeat(_: Conversation, module: str, function: str, /, *arguments: Any, **keywords: Any) -> None:
    """Call a function of a module, as the other end has just done for itself."""
    getattr(importlib.import_module(module), function)(*arguments, **keywords)


async def settle(awaitable: Any) -> tuple[bool, Any]:
    """Await an object; returns whether it succeeded, and its value or exception."""
    try:
        return True, await awaitable
    except BaseException as error:  # the exception is the outcome
        return False, error


async def first_of(tasks: list[Any], seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(0)


def run_tasks(
    peer: Conversation, started: dict[int, Any], cancelled: list[int], seconds: float
) -> list[tuple[int, bool, Any]]:
    """Let awaited objects go on until one is done or the time has passed; returns those that are done.

    Args:
        started: what is awaited anew, by number.
        cancelled: what is awaited no more.
    """
    # One loop for good: what an object has made of it, a lock or a task, belongs to it.
    loop = peer.loop = peer.loop or asyncio.new_event_loop()
    peer.tasks |= {number: loop.create_task(settle(awaitable)) for number, awaitable in started.items()}
    for number in cancelled:
        if number in peer.tasks:
            peer.tasks[number].cancel()
    tasks = list(peer.tasks.values())
    in_own_loop(loop, first_of(tasks, seconds))
    done = [number for number, task in peer.tasks.items() if task.done()]
    return [(number, *outcome(peer.tasks.pop(number))) for number in done]


def outcome(task: Any) -> tuple[bool, Any]:
    return (False, asyncio.CancelledError()) if task.cancelled() else task.result()


def in_own_loop(loop: Any, coroutine: Any) -> None:
    """Run a coroutine, in a thread of its own where another loop is running in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.run_until_complete(coroutine)
        return
    thread = threading.Thread(target=loop.run_until_complete, args=(coroutine,))
    thread.start()
    thread.join()


WRAPPERS: dict[str, Callable[..., Any]] = {"static": staticmethod, "class": classmethod, "property": property}


def subclass(
    peer: Conversation, number: int, name: str, bases: list[type], attributes: dict[str, Any], metaclass: type | None
) -> type:
    """Make a class whose methods are the other end's; it stands for the class `number` of that end."""
    namespace = {
        key: WRAPPERS[value[0]](*value[1:]) if isinstance(value, tuple) and value and value[0] in WRAPPERS else value
        for key, value in attributes.items()
    }
    namespace |= {"__module__": "__main__"}
    keywords = {"metaclass": metaclass} if metaclass else {}
    return peer.adopt(number, types.new_class(name, tuple(bases), keywords, lambda scope: scope.update(namespace)))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "special": special,
    "operator": apply_operator,
    "call": call,
    "get": get_attribute,
    "get and call": get_and_call,
    "super": get_super,
    "item": get_item,
    "set": set_attribute,
    "delete": delete_attribute,
    "isinstance": is_instance,
    "issubclass": is_subclass,
    "copy": copied,
    "patch": patch,
    "unpatch": unpatch,
    "repeat": repeat,
    "run tasks": run_tasks,
    "subclass": subclass,
}

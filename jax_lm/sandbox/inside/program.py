"""The candidate's process: runs its program, then answers calls with data.

It holds no test, no expected value and nothing that compares: whoever takes this process over, and a program can,
has won nothing but the right to answer. Imports the standard library only.
"""

import builtins
import contextlib
import io
import operator
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from jax_lm.sandbox.inside.channel import Channel
from jax_lm.sandbox.inside.wire import decode, encode

FILE = "<program>"
PRINTED_LENGTH = 2**16


class Tee(io.TextIOBase):
    """Writes through, and keeps the beginning for a test that looks at what was printed."""

    def __init__(self, below: Any) -> None:
        self.below, self.kept, self.length = below, [], 0

    def write(self, text: str, /) -> int:
        if self.length < PRINTED_LENGTH:
            self.kept.append(text)
            self.length += len(text)
        return self.below.write(text)

    def flush(self) -> None:
        self.below.flush()

    def take(self) -> str:
        text, self.kept, self.length = "".join(self.kept)[:PRINTED_LENGTH], [], 0
        return text


def load_program(code: str) -> dict[str, Any]:
    """Run the program as `__main__`; returns its namespace."""
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = FILE
    sys.modules["__main__"] = module
    exec(compile(code, FILE, "exec"), module.__dict__)
    return module.__dict__


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception as data: its class, the nearest built-in class, its message."""
    kind = type(error)
    base = next((c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c), "Exception")
    try:
        message = str(error)[:1000]
    except Exception:  # the program's own __str__ may raise anything
        message = ""
    return {"raised": kind.__name__, "base": base, "message": message}


def report_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception, and write its traceback for a person, without our own frames."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != FILE:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))
    return describe_exception(error)


def answer_once(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program and, if the job names a function, call it once."""
    try:
        namespace = load_program(job["code"])
        if "function" not in job:
            return {"ended": True}
        arguments = [decode(argument) for argument in job["arguments"]]
        keywords = {name: decode(value) for name, value in job["keywords"].items()}
        if job["function"] not in namespace:
            raise NameError(f"name {job['function']!r} is not defined")
        return {"value": encode(namespace[job["function"]](*arguments, **keywords))}
    except BaseException as error:  # SystemExit too: whatever the program raised is its answer
        return report_exception(error)


class ProgramServer:
    """Answers a tester: names, calls, and operations on the objects that it handed out."""

    def __init__(self, channel: Channel, namespace: dict[str, Any], output: Tee) -> None:
        self.channel, self.namespace, self.output = channel, namespace, output
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.exceptions: dict[type, int] = {}

    def export(self, value: Any) -> dict[str, Any]:
        """Make a handle for an object that stays here; the same object has the same."""
        if isinstance(value, types.ModuleType):
            return {"t": "module", "v": value.__name__}
        number = self.numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        handle: dict[str, Any] = {"t": "object", "v": number}
        if isinstance(value, type) and issubclass(value, BaseException):
            self.exceptions[value] = handle["v"]
            base = next(c.__name__ for c in value.__mro__ if getattr(builtins, c.__name__, None) is c)
            handle |= {"t": "exception", "name": value.__name__, "base": base}
        elif (home := getattr(value, "__module__", None)) != "__main__" and isinstance(home, str):
            handle |= {"home": home}
        return handle

    def load(self, wire: dict[str, Any]) -> Any:
        """Find what a handle of the tester stands for: a built-in class, an object of ours, a function of the test."""
        if wire["t"] == "class":
            return getattr(builtins, wire["v"])
        if wire["t"] != "function":
            return self.objects[wire["v"]]

        def function(*arguments: Any) -> Any:
            self.channel.send({"callback": wire["v"], "arguments": [self.encode(value) for value in arguments]})
            reply = self.channel.receive()
            if "raised" in reply:
                raise getattr(builtins, reply["base"])(reply["message"])
            return decode(reply["value"], self.load)

        return function

    def encode(self, value: Any) -> Any:
        return encode(value, self.export)

    def operate(self, request: dict[str, Any]) -> Any:
        """Carry out one operation of the tester; see `tester.Remote` for their names."""
        arguments = [decode(value, self.load) for value in request.get("arguments", [])]
        keywords = {name: decode(value, self.load) for name, value in request.get("keywords", {}).items()}
        before = self.encode(mutable(arguments))
        result = OPERATIONS[request["do"]](*arguments, **keywords)
        after = self.encode(mutable(arguments))
        changed = [[new] if new != old else None for new, old in zip(after, before, strict=True)]
        return {"value": self.encode(result), "changed": changed}

    def serve(self) -> None:
        """Answer until the tester has ended."""
        while True:
            request = self.channel.receive()
            try:
                if request["do"] == "names":
                    reply: dict[str, Any] = {"value": list(self.namespace)}
                elif request["do"] == "get":
                    reply = {"value": self.encode(self.namespace[request["name"]])}
                else:
                    reply = self.operate(request)
            except BaseException as error:  # SystemExit too: whatever the program raised is its answer
                reply = describe_exception(error)
                known = [self.exceptions[kind] for kind in type(error).__mro__ if kind in self.exceptions]
                reply["known"] = known[:1]
            self.output.flush()
            reply["printed"] = self.output.take()
            self.channel.send(reply)


def mutable(arguments: list[Any]) -> list[Any]:
    """Pick the arguments that a call may change in place; None for the others."""
    return [argument if isinstance(argument, list | dict | set) else None for argument in arguments]


def call_function(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call_function,
    "attribute": getattr,
    "set": setattr,
    "item": operator.getitem,
    "set item": operator.setitem,
    "delete item": operator.delitem,
    "length": len,
    "iterate": iter,
    "next": next,
    "text": str,
    "representation": repr,
    "truth": bool,
    "enter": lambda manager: type(manager).__enter__(manager),
    "leave": lambda manager: type(manager).__exit__(manager, None, None, None),
    "instance": isinstance,
    "equal": lambda left, right: bool(left == right),
    "less": lambda left, right: bool(left < right),
    "at most": lambda left, right: bool(left <= right),
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
}


def run(job: dict[str, Any], results: Channel, peer: int | None) -> None:
    """Do one job: answer a single call, or serve a tester at `peer`."""
    if peer is None:
        answer = answer_once(job)
        # Before the answer: after it, this process is ended.
        with contextlib.suppress(Exception):  # the program may have put anything in the place of stdout
            sys.stdout.flush()
        results.send(answer)
        return
    output = Tee(sys.stdout)
    sys.stdout = output
    channel = Channel(peer)
    try:
        namespace = load_program(job["code"])
    except BaseException as error:  # SystemExit too: the program did not reach its end
        results.send(report_exception(error))
        return
    channel.send({"ready": True})
    output.take()
    ProgramServer(channel, namespace, output).serve()

"""The test's process: runs a test's own code, while the program lives in another process.

Names of the program are stand-ins here: calling one sends the arguments as data and returns data. So no object
of the program is ever compared, no patched builtin is ever used, and the frames and the memory of the test
are out of the program's reach. Objects that are no data stay with the program and are reached by handle
(`Remote`). Imports the standard library only.
"""

import ast
import builtins
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from jax_lm.sandbox.inside.channel import Channel
from jax_lm.sandbox.inside.packages import is_genuine
from jax_lm.sandbox.inside.program import describe_exception
from jax_lm.sandbox.inside.wire import decode, encode

FILE = "<test>"


class ProgramError(BaseException):
    """The program left (SystemExit and the like) where it should have returned; `except Exception` lets it pass."""


class Client:
    """The tester's end of the conversation with the program."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.functions: list[Callable[..., Any]] = []
        self.exceptions: dict[int, type[BaseException]] = {}
        self.remotes: dict[int, Remote] = {}

    def export(self, value: Any) -> dict[str, Any]:
        """Make a handle: the program's go back as they came; functions of the test can be called from the program."""
        if isinstance(value, Remote):
            return {"t": "object", "v": object.__getattribute__(value, "_handle")["v"]}
        for number, known in self.exceptions.items():
            if value is known:
                return {"t": "object", "v": number}
        if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
            return {"t": "class", "v": value.__name__}
        if callable(value):
            self.functions.append(value)
            return {"t": "function", "v": len(self.functions) - 1}
        raise TypeError(f"a test cannot hand a {type(value).__name__} to the program")

    def load(self, wire: dict[str, Any]) -> Any:
        if wire["t"] == "exception":
            if wire["v"] in self.exceptions:
                return self.exceptions[wire["v"]]
            base = getattr(builtins, wire["base"])
            bases = (base if issubclass(base, Exception) else ProgramError,)
            kind = types.new_class(str(wire["name"]), bases)
            self.exceptions[wire["v"]] = kind
            return kind
        if wire["t"] != "object":
            raise TypeError(f"the program answered with a {wire['t']}")
        # One stand-in per object, so that `is` means what it says.
        return self.remotes.setdefault(int(wire["v"]), Remote(self, wire))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request; serve callbacks until its reply is there."""
        self.channel.send(request)
        while "callback" in (reply := self.channel.receive()):
            self.channel.send(self.called_back(reply))
        if reply.get("printed"):
            sys.stdout.write(reply["printed"])
        if "raised" in reply:
            raise self.error(reply)
        return reply

    def called_back(self, request: dict[str, Any]) -> dict[str, Any]:
        arguments = [decode(value, self.load) for value in request["arguments"]]
        try:
            return {"value": encode(self.functions[request["callback"]](*arguments), self.export)}
        except Exception as error:  # the test's function may raise anything, and its caller is the program
            return describe_exception(error)

    def error(self, reply: dict[str, Any]) -> BaseException:
        """Make the exception that the program raised, as one of the test's own classes."""
        kind = next((self.exceptions[number] for number in reply.get("known", []) if number in self.exceptions), None)
        kind = kind or getattr(builtins, reply["base"], None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            return ProgramError(f"{reply['raised']}: {reply['message']}")
        error = kind.__new__(kind)
        error.args = (reply["message"],)
        return error

    def do(self, operation: str, *arguments: Any, **keywords: Any) -> Any:
        """Carry out an operation in the program.

        Lists and the like that a call changed change here too, if it returned None, as functions do that are
        meant to change them: emptying the data would otherwise pass `assert f(data) == sorted(data)`.
        """
        request = {
            "do": operation,
            "arguments": [encode(argument, self.export) for argument in arguments],
            "keywords": {name: encode(value, self.export) for name, value in keywords.items()},
        }
        reply = self.ask(request)
        for argument, changed in zip(arguments, reply.get("changed", []), strict=False):
            if changed and reply["value"] is None:
                replace(argument, decode(changed[0], self.load))
        return decode(reply["value"], self.load)


def replace(container: Any, content: Any) -> None:
    """Give a list, dictionary or set new content in place."""
    if isinstance(container, list):
        container[:] = content
    elif isinstance(container, dict | set):
        container.clear()
        container.update(content)


class Remote:
    """An object of the program.

    It equals nothing but objects of the program, and has no order with and no arithmetic with plain values: an
    object that says yes to everything would otherwise pass `abs(f(x) - 1.5) < 1e-6`.
    """

    def __init__(self, client: Client, handle: dict[str, Any]) -> None:
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "_handle", handle)

    def __getattr__(self, name: str) -> Any:
        return do("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        do("set", self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return do("call", self, *arguments, **keywords)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and do("equal", self, other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __iter__(self) -> Any:
        return do("iterate", self)

    def __contains__(self, item: object) -> bool:
        return any(item == other for other in self)

    def __exit__(self, *_: object) -> None:
        do("leave", self)

    def __instancecheck__(self, value: object) -> bool:
        return object.__getattribute__(self, "_client").do("instance", value, self)

    def __mro_entries__(self, _: Any) -> Any:
        raise TypeError("a test cannot inherit from a class of the program")


def do(operation: str, subject: Remote, *arguments: Any, **keywords: Any) -> Any:
    """Carry out an operation on an object of the program."""
    return object.__getattribute__(subject, "_client").do(operation, subject, *arguments, **keywords)


def unary(operation: str) -> Callable[..., Any]:
    return lambda self, *arguments: do(operation, self, *arguments)


def binary(operation: str) -> Callable[[Remote, Any], Any]:
    return lambda self, other: do(operation, self, other) if isinstance(other, Remote) else NotImplemented


for method, name in {
    "len": "length",
    "next": "next",
    "str": "text",
    "repr": "representation",
    "bool": "truth",
    "enter": "enter",
    "getitem": "item",
    "setitem": "set item",
    "delitem": "delete item",
}.items():
    setattr(Remote, f"__{method}__", unary(name))
for method, name in {"lt": "less", "le": "at most", "add": "add", "sub": "subtract", "mul": "multiply"}.items():
    setattr(Remote, f"__{method}__", binary(name))


def names_of(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Collect the names that a test reads, and those that it defines itself."""
    read, defined = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return read, defined


def fetch_name(client: Client, name: str) -> Any:
    """Fetch one name of the program: data, a stand-in, or what it imported from elsewhere, imported anew."""
    wire = client.ask({"do": "get", "name": name})["value"]
    if isinstance(wire, dict) and wire["t"] == "module":
        if not is_genuine(wire["v"]):
            raise NameError(f"{name} is a module of the program")
        return importlib.import_module(wire["v"])
    if isinstance(wire, dict) and is_genuine(wire.get("home")):
        genuine = getattr(importlib.import_module(wire["home"]), name, None)
        if genuine is not None:
            return genuine
    return decode(wire, client.load)


def namespace(client: Client, tree: ast.Module) -> dict[str, Any]:
    """Collect the names of the program that the test sees.

    A builtin keeps its meaning unless it is the only name of the program in the test: `abs(f(1) - 2) < 1e-6` means
    Python's abs, `sum(10, 15) == 25` the program's sum.
    """
    read, defined = names_of(tree)
    theirs = {name for name in client.ask({"do": "names"})["value"] if not name.startswith("__")}
    named_like_builtins = {name for name in theirs if hasattr(builtins, name)}
    chosen = (read - defined) & (theirs - named_like_builtins) or (read - defined) & named_like_builtins
    # A name that the test both reads and defines may be the program's where it is read first.
    chosen |= read & defined & (theirs - named_like_builtins)
    return {name: fetch_name(client, name) for name in sorted(chosen)}


def run(job: dict[str, Any], results: Channel, peer: int) -> None:
    """Run one test; the word that it passed is said here, where no code of the program runs."""
    client = Client(Channel(peer))
    # A test that ends with `if __name__ == "__main__": check(f)` must not pass by doing nothing.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        client.channel.receive()
        tree = ast.parse(job["test"], FILE)
        module.__dict__.update(namespace(client, tree))
        exec(compile(tree, FILE, "exec"), module.__dict__)
    except BaseException as error:  # a test may raise anything, and leaving is not passing
        results.send(describe_exception(error))
    else:
        results.send({"ended": job["sentinel"]})

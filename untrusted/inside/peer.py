"""One end of the conversation between a test and a program, which live in processes of their own.

Data crosses as data. A list, dictionary or set crosses whole and stays one object for both: what either end changes
in it reaches the other with its next message. What is no data stays where it is, and the other end gets a stand-in
(`standins`), whose operations are carried out here (`operations`). Imports the standard library only.
"""

import _thread
import array
import collections
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from untrusted.inside import operations, remotes, standins, wire
from untrusted.inside.channel import Channel, ChannelEndError
from untrusted.inside.containers import CONTAINERS, Shared, SharedContainers, fill, hold_same, items_of
from untrusted.inside.conversation import Conversation
from untrusted.inside.packages import genuine_name, is_genuine, pure_function, pure_name

DEEPEST = 20_000
"""Levels of calls while a message is written or read: values may be nested as deeply as a program can make them."""
set_limit = sys.setrecursionlimit


class Deep:
    """Context in which calls may be as deep as that. A class, as a generator would cost as much as what is inside."""

    def __enter__(self) -> None:
        self.limit = sys.getrecursionlimit()
        set_limit(max(self.limit, DEEPEST))

    def __exit__(self, *_: object) -> None:
        set_limit(self.limit)


def environment() -> dict[Any, Any]:
    """Copy the environment as Python keeps it: to decode it takes longer than the rest of a message."""
    return dict(getattr(os.environ, "_data", os.environ))


class ConversationError(BaseException):
    """A message that makes no sense, or asks for what it may not have; no test may take it for an answer."""


class Peer(Conversation):
    """One end of the conversation.

    Attributes:
        side: a letter for the keys of containers that this end was the first to send.
        is_strict: whether stand-ins here must not decide what they are compared with (the test's end).
    """

    side, is_strict = "p", False

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.scope: dict[str, Any] = {}
        self.lock = _thread.RLock()
        self.own: list[Any] = []
        self.own_numbers: dict[int, int] = {}
        self.theirs: dict[int, Any] = {}
        self.their_numbers: dict[int, int] = {}
        self.shared = SharedContainers(self.side)
        self.message_keys: set[str] = set()
        self.new_numbers: list[int] = []
        self.environ = environment()
        self.broken: BaseException | None = None
        self.loop: Any = None
        self.tasks: dict[int, Any] = {}
        self.waiting: dict[int, standins.Waiting] = {}
        self.tainted: set[int] = set()
        self.declared: set[int] = set()
        remotes.PEERS[self.side] = self

    # Objects that stay

    def number(self, value: Any) -> tuple[int, bool]:
        """Return the number of an object of this end, and whether it is new."""
        number = self.own_numbers.setdefault(id(value), len(self.own))
        if number < len(self.own):
            return number, False
        self.own.append(value)
        self.new_numbers.append(id(value))
        return number, True

    def adopt(self, number: int, stand_in: Any) -> Any:
        """Take an object as what stands here for one of the other end."""
        self.theirs[number] = stand_in
        self.their_numbers[id(stand_in)] = number
        return stand_in

    def adopt_container(self, number: int, stand_in: Any, form: dict[str, Any]) -> Any:
        """Take a container as what stands here for an object whose class derives from a container type."""
        self.adopt(number, stand_in)
        self.refill(self.shared.add(form["id"], stand_in), form["items"])
        return stand_in

    def taint(self, stand_in: Any) -> None:
        """Remember that an object of the other end has seen an operand that it might be compared with."""
        self.tainted.add(self.their_numbers[id(stand_in)])

    def is_tainted(self, stand_in: Any) -> bool:
        return self.their_numbers.get(id(stand_in)) in self.tainted

    def declare(self, stand_in: Any) -> Any:
        """Remember that a test has made an object itself, by calling its class: its methods are what is tested."""
        if id(stand_in) in self.their_numbers:
            self.declared.add(self.their_numbers[id(stand_in)])
        return stand_in

    def is_free(self, stand_in: Any) -> bool:
        """Tell whether an object's own methods may decide what it equals."""
        return not self.is_strict or self.their_numbers[id(stand_in)] in self.declared

    def is_theirs(self, value: Any) -> bool:
        """Tell whether an object stands for one of the other end."""
        return id(value) in self.their_numbers

    # Values

    def encode(self, value: Any) -> Any:
        return wire.encode(value, self.convert)

    def convert(self, value: Any) -> Any:
        """Encode what is no plain data: a container, a stand-in that goes back, or an object that stays here."""
        if id(value) in self.their_numbers:
            form: dict[str, Any] = {"t": "yours", "v": self.their_numbers[id(value)]}
            if value in self.shared:
                self.shared.find(value)
            return form
        if CONTAINERS.get(type(value).__name__) is type(value) or wire.is_array(value):
            return self.encode_container(value)
        if isinstance(value, types.ModuleType) and is_genuine(value.__name__):
            return {"t": "module", "v": value.__name__}
        if isinstance(value, type) and (name := genuine_name(value)):
            return {"t": "class", "v": name}
        if isinstance(value, types.BuiltinFunctionType) and (name := pure_name(value)):
            return {"t": "function", "v": name}
        if isinstance(value, types.TracebackType):
            return None
        self.check_export(value)
        number, is_new = self.number(value)
        if value in self.shared:
            self.shared.find(value)
        return {"t": "mine", "v": number, **(standins.describe(self, value) if is_new else {})}

    def check_export(self, value: Any) -> None:
        """Refuse to let the other end have an object; the program has nothing to hide."""

    def encode_class(self, kind: type) -> Any:
        """Encode the class of an object that stays here: as one to mirror, even where both ends have it."""
        if self.is_theirs(kind):
            return self.encode(kind)
        number, is_new = self.number(kind)
        return {"t": "mine", "v": number, **(standins.describe(self, kind) if is_new else {})}

    def checked_error(self, error: BaseException, operation: str, arguments: tuple[Any, ...]) -> BaseException:
        """Look at an exception of the other end before it is raised here."""
        return error

    def decode(self, form: Any) -> Any:
        if not isinstance(form, dict | list):
            return form
        with Deep():
            return wire.decode(form, self.restore)

    def restore(self, form: Any) -> Any:
        """Decode what is no plain data."""
        if isinstance(form, list):
            return [self.decode(item) for item in form]
        tag, content = form.get("t"), form.get("v")
        if tag == "yours":
            return self.own[content]
        if tag == "mine":
            known = self.theirs.get(content)
            return standins.build(self, content, form) if known is None and content not in self.theirs else known
        if tag in ("container", "same"):
            return self.decode_container(form)
        if tag == "class":
            return self.genuine(*content)
        if tag == "function" and (function := pure_function(*content)) is not None:
            return function
        if tag == "module" and is_genuine(content):
            return importlib.import_module(content)
        raise ConversationError(f"a value of unknown type {tag!r:.40}")

    def genuine(self, module: str, name: str) -> type:
        """Find a class of the standard library or of an allowed package."""
        if not is_genuine(module):
            raise ConversationError(f"a class of the module {module!r:.40}")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise ConversationError(f"{module}.{name} is no class")
        return found

    # Containers

    def share_items(self, container: Any) -> tuple[str, list]:
        """Register a container that both ends have from now on; returns its key and its items, encoded."""
        entry = self.shared.find(container)
        return entry.key, self.encode_items(entry)

    def encode_container(self, container: Any) -> dict[str, Any]:
        entry = self.shared.find(container)
        if entry.key in self.message_keys:
            return {"t": "same", "id": entry.key}
        self.message_keys.add(entry.key)
        form: dict[str, Any] = {"t": "container", "id": entry.key, "kind": type(container).__name__}
        if isinstance(container, collections.deque):
            form["maxlen"] = container.maxlen
        if isinstance(container, array.array):
            form["typecode"] = container.typecode
        if isinstance(container, collections.defaultdict):
            form["factory"] = self.encode(container.default_factory)
        return form | {"v": self.encode_items(entry)}

    def encode_items(self, entry: Shared) -> list:
        entry.agreed = items = items_of(entry.container)
        return list(items) if wire.is_plain(items) else [self.encode(item) for item in items]

    def decode_container(self, form: dict[str, Any]) -> Any:
        key = form["id"]
        entry = self.shared.entries.get(key)
        entry = self.shared.add(key, self.empty_container(form)) if entry is None else self.shared.watch(entry)
        if form["t"] == "container":
            self.refill(entry, form["v"])
        return entry.container

    def empty_container(self, form: dict[str, Any]) -> Any:
        match form["kind"]:
            case "ndarray":
                return wire.build_array(*form["v"][0]["v"])
            case "deque":
                return collections.deque(maxlen=form["maxlen"])
            case "defaultdict":
                return collections.defaultdict(self.decode(form["factory"]))
            case "array":
                return array.array(form["typecode"])
            case kind:
                return CONTAINERS[kind]()

    def refill(self, entry: Shared, forms: list) -> None:
        """Take the content of a container from the other end."""
        items = forms if wire.is_plain(forms) else [self.decode(form) for form in forms]
        if not hold_same(items_of(entry.container), items):
            self.before_change(entry.container)
            fill(entry.container, items)
        entry.agreed = items_of(entry.container)

    def before_change(self, container: Any) -> None:
        """Hear that the other end has changed a container."""

    def changes(self) -> list:
        """Encode the containers that were changed here since both ends agreed."""
        return [[entry.key, self.encode_items(entry)] for entry in self.shared.changed(self.message_keys)]

    # Messages

    def extras(self) -> dict[str, Any]:
        """Add what this end tells with every message: the environment, if it has changed here."""
        if (environ := environment()) == self.environ:
            return {}
        self.environ = environ
        return {"environ": dict(os.environ)}

    def take_extras(self, message: dict[str, Any]) -> None:
        """Take what the other end tells with every message."""
        if "environ" in message:
            os.environ.clear()
            os.environ.update(message["environ"])
            self.environ = environment()

    def send(self, make: Callable[[], dict[str, Any]]) -> None:
        self.message_keys, self.new_numbers = set(), []
        try:
            with Deep():
                message = {**make(), "changes": self.changes(), **self.extras()}
                self.channel.send(message)
        except ChannelEndError as problem:
            self.broken = problem
            raise
        except BaseException:  # whatever it was, the other end will never have heard of these
            for key in self.new_numbers:
                del self.own_numbers[key]
            raise

    def receive(self) -> dict[str, Any]:
        try:
            with Deep():
                message = self.channel.receive()
            for key, forms in message.get("changes", ()):
                if key in self.shared.entries:
                    self.refill(self.shared.watch(self.shared.entries[key]), forms)
            self.take_extras(message)
        except (ChannelEndError, ConversationError) as problem:
            self.broken = problem
            raise
        except Exception as problem:  # what the other end has sent may fail in any way
            self.broken = ConversationError(f"{type(problem).__name__}: {problem}")
            raise self.broken from problem
        return message

    def do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Have the other end carry out an operation; raises what it raised."""
        arguments = tuple(standins.started(self, argument) for argument in arguments)
        with self.lock:
            self.send(
                lambda: {
                    "do": operation,
                    "arguments": [self.encode(argument) for argument in arguments],
                    "keywords": {name: self.encode(value) for name, value in keywords.items()},
                }
            )
            while "do" in (reply := self.receive()):
                self.answer(reply)
            result, error = self.read_reply(reply)
        if error is not None:
            raise self.checked_error(error, operation, arguments)
        return result

    def read_reply(self, reply: dict[str, Any]) -> tuple[Any, BaseException | None]:
        """Read the result of an operation, or the exception that it raised."""
        if "problem" in reply:
            self.broken = ConversationError(f"an answer that cannot cross: {reply['problem']!s:.300}")
            raise self.broken
        try:
            if "raised" not in reply:
                return self.decode(reply["value"]), None
            error = self.decode(reply["raised"])
            if isinstance(error, BaseException):
                return None, error
        except (Exception, ConversationError) as problem:
            self.broken = ConversationError(f"{type(problem).__name__}: {problem}")
            raise self.broken from problem
        self.broken = ConversationError("an exception that is none")
        raise self.broken

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out an operation for the other end, and say what came of it."""
        try:
            arguments = [self.decode(form) for form in request["arguments"]]
            keywords = {name: self.decode(form) for name, form in request["keywords"].items()}
        except Exception as problem:  # what the other end has sent may fail in any way
            self.send_problem(problem)
            return
        try:
            name, outcome = "value", self.carry_out(request["do"], arguments, keywords)
        except ChannelEndError:
            raise
        except BaseException as error:  # SystemExit too: whatever was raised is the answer
            name, outcome = "raised", error
        try:
            with self.lock:
                self.send(lambda: {name: self.encode(outcome)})
        except Exception as problem:  # an answer that is too deep to be said is no exception of the operation's
            self.send_problem(problem)

    def send_problem(self, problem: Exception) -> None:
        """Say that an operation, or what came of it, cannot cross."""
        with self.lock:
            self.send(lambda: {"problem": f"{type(problem).__name__}: {problem!s:.200}"})

    def carry_out(self, operation: str, arguments: list, keywords: dict[str, Any]) -> Any:
        return operations.OPERATIONS[operation](self, *arguments, **keywords)

    def serve(self) -> None:
        """Answer until the other end has ended."""
        while True:
            self.answer(self.receive())

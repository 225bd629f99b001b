"""One end of the channel between a test and a program, which run in separate processes.

Plain data crosses as data (`wire`). A list, dictionary or set crosses with its content, and both
ends keep a copy: a change of one copy is sent with the next message. Every other object stays in
its process, and the other end gets its number. `tester` and `program`, not this module, decide what
one end may request of the other. Imports the standard library only.

The messages of `assert total([1, 2]) == 3`, without their empty fields. The program's end has
number 0 for its module and 1 for its function; the list gets the key "t1":

    test     {"do": "main"}
    program  {"do": "return", "values": [{"t": "mine", "v": 0, "k": "module"}]}
    test     {"do": "get", "values": [{"t": "yours", "v": 0}, "total"]}
    program  {"do": "return", "values": [{"t": "mine", "v": 1, "k": "function"}]}
    test     {"do": "call", "values": [{"t": "yours", "v": 1},
              {"t": "container", "id": "t1", "kind": "list", "with": null, "v": [1, 2]}]}
    program  {"do": "return", "values": [3]}

If `total` had appended 9 to its list, the last message would also have
`"changes": [["t1", [1, 2, 9]]]`.
"""

import _thread
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from untrusted.inside import containers, wire
from untrusted.inside.channel import Channel, ChannelEndError, Fields
from untrusted.inside.containers import CONTAINERS, EXTRAS, Shared, SharedContainers
from untrusted.inside.packages import find_type

# Recursion limit while a message is encoded or decoded, for deeply nested values.
DEEPEST = 20_000
# Attributes of exceptions that lead to other exceptions.
CHAIN = ("__cause__", "__context__", "__suppress_context__")
# Messages that end a request.
ENDS = ("return", "raise")
# Bound now: a program may replace `sys.setrecursionlimit`.
SET_LIMIT = sys.setrecursionlimit


class Deep:
    """Context in which calls may nest `DEEPEST` deep."""

    def __enter__(self):
        self.limit = sys.getrecursionlimit()
        SET_LIMIT(max(self.limit, DEEPEST))

    def __exit__(self, *_: object):
        SET_LIMIT(self.limit)


class BorderError(BaseException):
    """Raised for a message that is malformed or asks for something forbidden.

    It is not an `Exception`, so that no test can expect it.
    """


class Peer:
    """One end of the channel.

    Attributes:
        side: prefix of the keys of containers that this end sends first ("p" or "t").
        own: objects of this end that the other end knows; the index is the number.
        theirs: stand-ins here for objects of the other end, by number.
        broken: the latest problem with the channel or a message; no test passes after one.
    """

    side = "p"

    def __init__(self, channel: Channel):
        self.channel = channel
        # Reentrant, because answering a request may send requests to the other end.
        self.lock = _thread.RLock()
        self.own = []
        # Numbers by identity (`id`): equal objects are not the same object.
        self.own_numbers = {}
        self.theirs = {}
        self.their_numbers = {}
        self.shared = SharedContainers(self.side)
        # Containers in the message being written so far.
        self.message_keys = set()
        self.broken = None

    # What each end decides

    def describe(self, value) -> Any:
        """Describe an object of this end, so that the other end can build its stand-in."""

    def build(self, form: Fields) -> Any:
        """Build the stand-in for an object of the other end."""

    def name_of(self, value) -> Any:
        """Return the name under which both ends know a value (a library function); else None."""

    def named_value(self, name) -> Any:
        """Return the value for such a name. Raises BorderError if it may not cross."""

    def carry_out(self, operation: str, arguments: list, keywords: Fields) -> Any:
        """Carry out an operation that the other end requests."""

    def before_change(self, entry: Shared):
        """Hook that runs before a change by the other end is applied to a container."""

    # Shared state other than objects

    def share_environment(self):
        """Share the environment with the other end, in Python's internal form."""
        self.shared.add("environ", vars(os.environ)["_data"])

    # Values

    def adopt(self, number: int, stand_in):
        """Register a value as the stand-in for an object of the other end."""
        # A second one would free the first, whose identity a value of this end may then get.
        if number in self.theirs:
            raise BorderError("an object of the other end is described twice")
        self.theirs[number] = stand_in
        self.their_numbers[id(stand_in)] = number
        return stand_in

    def encode(self, value, by_value=False):
        """Write a value as JSON: plain data (`wire`), a container, an object of either end, a name.

        An object of the other end is {"t": "yours", "v": 3}; one of this end {"t": "mine", "v": 3},
        with its description the first time. Containers: see `encode_container`.
        """
        if wire.are_plain((value,)):
            return value
        tag = wire.tag_of(value)
        if tag and (by_value or not wire.can_change(value)):
            return {"t": tag, "v": wire.convert_all(wire.TAGS[tag][0](value), self.encode)}
        if (number := self.their_numbers.get(id(value))) is not None:
            return {"t": "yours", "v": number}
        if tag or CONTAINERS.get(type(value).__name__) is type(value) or wire.is_array(value):
            return self.encode_container(value)
        if name := self.name_of(value):
            return {"t": "named", "v": name}
        # The next free number, unless the object has one already.
        number = self.own_numbers.setdefault(id(value), len(self.own))
        if number < len(self.own):
            return {"t": "mine", "v": number}
        # Registered before it is described, because its description may contain the object itself.
        self.own.append(value)
        if isinstance(value, BaseException):
            form = self.describe_error(value)
        elif isinstance(value, type) and issubclass(value, BaseException):
            bases = [self.encode(b) for b in value.__bases__ if issubclass(b, BaseException)]
            form = {"k": "error class", "n": value.__name__, "d": value.__doc__, "b": bases}
        else:
            form = self.describe(value)
        return {"t": "mine", "v": number, **form}

    def encode_container(self, container) -> Fields:
        """Write a container with its content, or only its key if the message has it already."""
        entry = self.shared.find(container)
        # A container's content is sent once per message; this also ends cycles:
        #   a = []; a.append(a)
        #   -> {"t": "container", "id": "p0", "kind": "list", "v": [{"t": "same", "id": "p0"}]}
        if entry.key in self.message_keys:
            return {"t": "same", "id": entry.key}
        kind = type(container)
        extra = self.encode(getattr(container, EXTRAS[kind])) if kind in EXTRAS else None
        form = {"t": "container", "id": entry.key, "kind": kind.__name__, "with": extra}
        return form | {"v": self.encode_items(entry)}

    def encode_items(self, entry: Shared) -> list:
        self.message_keys.add(entry.key)
        # Both ends agree on this content from now on.
        entry.agreed = items = containers.items_of(entry.container)
        if wire.can_change(entry.container):
            return [self.encode(*items, by_value=True)]
        return wire.convert_all(items, self.encode)

    def decode(self, form) -> Any:
        """Read what the other end's `encode` has written; "mine" is an object of the other end."""
        if not isinstance(form, dict):
            return wire.convert_all(form, self.decode) if isinstance(form, list) else form
        tag: str = form["t"]
        content: Any = form.get("v")
        if tag in wire.TAGS:
            return wire.TAGS[tag][1](*wire.convert_all(content, self.decode))
        if tag == "yours":
            return self.own[content]
        if tag == "mine":
            if (known := self.theirs.get(content)) is not None:
                return known
            if form["k"] == "error":
                return self.build_error(content, form)
            return self.adopt(content, self.build(form))
        if tag == "named":
            return self.named_value(content)
        if tag not in ("container", "same"):
            raise BorderError(f"a value of unknown type {tag!r:.40}")
        entry = self.shared.entries.get(form["id"])
        # Else a later container of this end would get the key of one of the other end.
        if not entry and form["id"].startswith(self.side):
            raise BorderError("a container with a key of this end")
        # Registered while still empty, because its items may contain the container itself.
        entry = self.shared.watch(entry) if entry else self.shared.add(form["id"], self.begin(form))
        if tag == "container":
            self.refill(entry, content)
        return entry.container

    def begin(self, form: Fields):
        """Build an empty container; an array needs its shape, so it is built with its content."""
        if form["kind"] == "ndarray":
            return wire.read_array(*form["v"])
        if form["kind"] in wire.CHANGING:
            return wire.of_pandas(form["kind"])()
        return containers.empty_container(CONTAINERS[form["kind"]], self.decode(form["with"]))

    def refill(self, entry: Shared, forms: list):
        """Replace the content of a container by what the other end has sent."""
        items = wire.convert_all(forms, self.decode)
        # Equal content is not replaced, so that the items keep their identity; of data frames and series
        # the names may differ.
        if wire.can_change(entry.container) or not containers.hold_same(
            containers.items_of(entry.container), items
        ):
            self.before_change(entry)
            containers.fill(entry.container, items)
        entry.agreed = containers.items_of(entry.container)

    # Exceptions

    def describe_error(self, error: BaseException) -> Fields:
        """Describe an exception by its class, arguments and attributes."""
        # Like pickle: arguments of the constructor, with the file name of an OSError, and attributes.
        _, arguments, *state = error.__reduce__()
        attributes = dict(*state)
        if isinstance(error, AttributeError | NameError):
            attributes["name"] = error.name
        plain = (str, int, float, bytes, list)
        attributes = {name: value for name, value in attributes.items() if isinstance(value, plain)}
        # Last, as setting a cause, even None, also sets __suppress_context__.
        chain = {name: getattr(error, name) for name in CHAIN}
        parts = [type(error), arguments, attributes | chain]
        return {"k": "error", "parts": list(map(self.encode, parts))}

    def decode_kind(self, form: Fields) -> Any:
        """Read the class of an exception or a base of one, which is no value that a test could catch."""
        return find_type(str(form.get("v"))) or self.decode(form)

    def build_error(self, number: int, form: Fields) -> BaseException:
        """Build the exception that `describe_error` has described."""
        kind = self.decode_kind(form["parts"][0])
        arguments = self.decode(form["parts"][1])
        if not (issubclass(kind, BaseException) and isinstance(arguments, tuple)):
            raise TypeError("no exception")
        # A built-in class is called, which sets its members in C. A class of the other end runs no
        # code.
        is_theirs = type(kind) is not type
        try:
            error = kind.__new__(kind, *arguments) if is_theirs else kind(*arguments)
        except Exception:  # the constructor takes other arguments than those in `args`
            error = kind.__new__(kind)
        # Before its cause and context are built, because these may refer to it.
        self.adopt(number, error)
        if is_theirs or not error.args:
            BaseException.args.__set__(error, arguments)  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in self.decode(form["parts"][2]).items():
            # Other attributes of the other end's exceptions are fetched when they are read.
            if name in ("__notes__", *CHAIN) or not (is_theirs or name.startswith("__")):
                # Some members are read-only.
                with suppress(AttributeError, TypeError):
                    object.__setattr__(error, name, value)
        return error

    # Messages

    def send(self, what: str, values: Sequence[Any], keywords: Fields):
        """Send a request, or the end of one, with the changes of shared containers."""
        self.message_keys = set()
        # Encode first, then send: a value that cannot be encoded leaves the channel usable.
        with Deep():
            message = {
                "do": what,
                "values": list(map(self.encode, values)),
                "keywords": {name: self.encode(value) for name, value in keywords.items()},
                # Last, without the containers that the values above contain.
                "changes": [[e.key, self.encode_items(e)] for e in self.shared.take_changes()],
            }
            self.channel.send(message)

    def receive(self) -> tuple[str, list, Fields]:
        """Wait for a message; returns what `send` was given. Raises BorderError if it is malformed."""
        try:
            with Deep():
                message = self.channel.receive()
                values = list(map(self.decode, message["values"]))
                keywords = {name: self.decode(form) for name, form in message["keywords"].items()}
                for key, forms in message["changes"]:
                    if key in self.shared.entries:
                        self.refill(self.shared.watch(self.shared.entries[key]), forms)
            return message["do"], values, keywords
        except Exception as problem:  # what the other end has sent may fail in any way
            raise BorderError(f"{type(problem).__name__}: {problem!s:.300}") from problem

    def do(self, operation: str, /, *arguments, **keywords):
        """Have the other end carry out an operation; raises what the operation raised."""
        try:
            with self.lock:
                self.send(operation, arguments, keywords)
                # The other end may call back any number of times before it replies.
                while (reply := self.receive())[0] not in ENDS:
                    self.answer(*reply)
            [value] = reply[1]
        except (ChannelEndError, BorderError) as problem:
            self.broken = problem
            raise
        if reply[0] == "return":
            return value
        if not isinstance(value, BaseException):
            raise TypeError("an exception that is not one")
        raise value

    def answer(self, operation: str, arguments: list, keywords: Fields):
        """Carry out an operation for the other end and send the result."""
        try:
            what, result = "return", self.carry_out(operation, arguments, keywords)
        except ChannelEndError:
            raise
        except BaseException as error:  # SystemExit too: whatever was raised is the answer
            what, result = "raise", error
        # A result that is nested too deeply to be sent ends this process, or the test.
        with self.lock:
            self.send(what, [result], {})

"""The candidate's process: runs its program, then answers calls with data.

It holds no test, no expected value and no comparison. A program can take this process over, but
gains nothing by it except the right to answer. Imports the standard library only.
"""

import builtins
import contextlib
import functools
import io
import linecache
import os
import sys
import traceback
import types
import warnings
from importlib import import_module
from typing import Any

from untrusted.inside import foreign
from untrusted.inside.channel import Channel
from untrusted.inside.errors import type_name
from untrusted.inside.handles import KINDS
from untrusted.inside.operations import IMMUTABLE, OPERATIONS, content, plain_base
from untrusted.inside.peer import Peer
from untrusted.inside.wire import decode_literal, encode_literal

FILE = "program.py"
# Bytes of output that are kept for the test with every message; the rest is only written.
PRINTED_LENGTH = 2**16


class Kept(io.RawIOBase):
    """Output that writes through, and keeps the beginning for a test that inspects the output."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.kept = descriptor, bytearray()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def write(self, data: Any, /) -> int:
        self.kept += data[: PRINTED_LENGTH - len(self.kept)]
        return os.write(self.descriptor, data)

    def take(self) -> bytes:
        # Taken output is kept anew: the limit is per message.
        kept, self.kept = self.kept, bytearray()
        return bytes(kept)


class Asked(io.RawIOBase):
    """Standard input, read line by line from the test's process, as the test may replace it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        line = self.peer.do("input", len(buffer))
        buffer[: len(line)] = line
        return len(line)


def text_stream(raw: Any, *, reading: bool = False) -> io.TextIOWrapper:
    buffer: Any = io.BufferedReader(raw) if reading else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, "utf-8", "surrogateescape")


class ProgramPeer(Peer):
    """The program's end of the channel: it withholds nothing from the test."""

    side = "p"

    def __init__(
        self, channel: Channel, namespace: dict[str, Any], outputs: dict[str, Any]
    ) -> None:
        super().__init__(channel)
        # `outputs`: by name, the stream and what it keeps.
        self.namespace, self.outputs = namespace, outputs
        # Library objects that the test has handed over by name, so that they go back by name.
        self.named: dict[int, list[str]] = {}
        foreign.PEERS[:] = [self]
        sys.stdin = text_stream(Asked(self), reading=True)
        builtins.input = lambda prompt="", /: self.do("ask", str(prompt))
        # The test's filters decide, so none may drop a warning here.
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: self.do("warn", message)

    # Objects

    def describe(self, value: Any) -> dict[str, Any]:
        """Describe an object; of its class the test learns only the plain type it derives from."""
        kind = type(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
            form = {"k": "error class", "n": value.__name__, "d": value.__doc__}
            return form | {"b": [self.encode(base) for base in bases]}
        if isinstance(value, type):
            return {"k": "class"}
        base = plain_base(kind)
        if base in IMMUTABLE:
            # Immutable: the content crosses now. Mutable: only the kind, as the content may change.
            return {"k": "object", "b": base.__name__, "c": self.encode(content(value))}
        if base is not None:
            return {"k": base.__name__}
        # Functions, generators and the like; all else is an "object".
        return {"k": next((name for name, known in KINDS.items() if known is kind), "object")}

    def build(self, form: dict[str, Any]) -> Any:
        return foreign.build(form, self.decode)

    def encode_name(self, value: Any) -> dict[str, Any] | None:
        if id(value) in self.named:
            return {"t": "named", "v": self.named[id(value)]}
        name = type_name(value) if isinstance(value, type) else None
        return {"t": "type", "v": name} if name else None

    def decode_name(self, tag: Any, content: Any) -> Any:
        found: Any = import_module(content[0])
        # `Outer.Inner` is found part by part.
        if content[1]:
            found = functools.reduce(getattr, content[1].split("."), found)
        self.named[id(found)] = content
        return found

    # Messages

    def extras(self) -> dict[str, Any]:
        said = super().extras()
        for name, (stream, raw) in self.outputs.items():
            stream.flush()
            if raw.kept:
                said[name] = self.encode(raw.take())
        return said

    def take_extras(self, message: dict[str, Any]) -> None:
        super().take_extras(message)
        sys.argv[:] = message.get("argv", sys.argv)

    def carry_out(self, operation: str, arguments: list, keywords: dict[str, Any]) -> Any:
        # Operations that work on any object, else a method below: "set name" -> `set_name`.
        if operation in OPERATIONS:
            return OPERATIONS[operation](*arguments, **keywords)
        return getattr(self, operation.replace(" ", "_"))(*arguments)

    # Operations that need this end

    def name(self, name: str) -> Any:
        return self.namespace[name]

    def set_name(self, name: str, value: Any) -> None:
        self.namespace[name] = value

    def main_function(self) -> Any:
        """Return the function for a test that calls none by name: the program's last public one."""
        return [value for name, value in self.namespace.items() if is_main(name, value)][-1]

    def follow_logging(self) -> None:
        """Hand what the program logs to the test's loggers, whose levels and handlers decide."""
        import logging  # few programs log

        class Forward(logging.Handler):
            def emit(handler, record: logging.LogRecord) -> None:  # noqa: N805  # pyright: ignore[reportSelfClsParameterName]
                self.do("log", record.name, record.levelno, record.getMessage())

        root = logging.getLogger()
        root.setLevel(1)
        root.handlers[:] = [Forward(1)]

    def serve(self) -> None:
        """Answer requests until the test has ended."""
        # Ends by ChannelEndError.
        while True:
            self.answer(self.receive())


def is_main(name: str, value: Any) -> bool:
    """Whether a name is one of the program's own public functions, neither imported nor private."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__ == "__main__"
        and not name.startswith("_")
    )


def load_program(code: str, prelude: str = "") -> dict[str, Any]:
    """Run the program as `__main__`, after a prelude of imports; returns its namespace."""
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = FILE
    sys.modules["__main__"] = module
    sys.argv = [FILE]
    # Tracebacks take the lines of the source from this cache: there is no such file.
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    exec(prelude, module.__dict__)
    # Python reads a file that begins with this mark, too.
    exec(compile(code.removeprefix("\ufeff"), FILE, "exec"), module.__dict__)
    return module.__dict__


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception as data: its class, its nearest built-in class, its message."""
    kind = type(error)
    # A class of the program means nothing elsewhere: `class E(KeyError)` -> base "KeyError".
    base = next(
        (c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c), "Exception"
    )
    try:
        message = str(error)[:1000]
    except Exception:  # the program's own __str__ may raise anything
        message = ""
    return {"raised": kind.__name__, "base": base, "message": message}


def report_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception, after printing its traceback without our own frames."""
    # The outermost frames are ours: skip to the first one of the program.
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != FILE:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))
    return describe_exception(error)


def answer_once(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program and, if the job names a function, call it once."""
    try:
        namespace = load_program(job["code"], job.get("prelude", ""))
        if "function" not in job:
            return {"ended": True}
        # No test here: arguments and result are literals.
        arguments = [decode_literal(argument) for argument in job["arguments"]]
        keywords = {name: decode_literal(value) for name, value in job["keywords"].items()}
        function = find_function(namespace, job["function"], is_method=job["is_method"])
        return {"value": encode_literal(function(*arguments, **keywords))}
    except BaseException as error:  # SystemExit too: whatever the program raised is its answer
        return report_exception(error)


def find_function(namespace: dict[str, Any], name: str, *, is_method: bool) -> Any:
    """Return a function of the program, or a method of a new object of its class Solution."""
    if is_method:
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


def run_script(code: str, results: Channel) -> SystemExit:
    """Run the program as Python runs a file; returns how it leaves the interpreter.

    Only an exception is reported. The value of a script is judged by its status and its output, not
    by its own word.
    """
    # The interpreter's own stream was opened on another file than the job's.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    try:
        load_program(code)
    except SystemExit as error:
        return error
    except BaseException as error:  # the interpreter would report it too, and leave with 1
        results.send(report_exception(error))
        return SystemExit(1)
    return SystemExit(0)


def run(job: dict[str, Any], results: Channel, peer: int | None) -> None:
    """Do one job: answer a single call, or serve a tester at `peer`."""
    if peer is None:
        answer = answer_once(job)
        # Flush before the answer: after it, this process is killed.
        with contextlib.suppress(
            Exception
        ):  # the program may have put anything in the place of stdout
            sys.stdout.flush()
        results.send(answer)
        return
    # From here on, a test runs in another process and uses this program over `peer`.
    outputs = {}
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = Kept(descriptor)
        outputs[name] = text_stream(raw), raw
        setattr(sys, name, outputs[name][0])
    channel = Channel(peer)
    try:
        namespace = load_program(job["code"], job.get("prelude", ""))
    except BaseException as error:  # SystemExit too: the program did not reach its end
        results.send(report_exception(error))
        return
    # The tester waits for these names before it runs the test.
    channel.send({"names": [name for name in namespace if isinstance(name, str)]})
    # What the program printed while it was loaded is no output of the test.
    for stream, raw in outputs.values():
        stream.flush()
        raw.take()
    ProgramPeer(channel, namespace, outputs).serve()

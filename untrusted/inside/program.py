"""The candidate's process: runs its program, then answers calls with data.

It holds no test, no expected value and nothing that compares: whoever takes this process over, and
a program can, has won nothing but the right to answer. Imports the standard library only.
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
from untrusted.inside.errors import build_error, describe_error, type_name
from untrusted.inside.handles import IMMUTABLE, KINDS, MUTABLE
from untrusted.inside.operations import OPERATIONS, TAKE
from untrusted.inside.peer import Peer, environment
from untrusted.inside.wire import decode_literal, encode_literal

FILE = "program.py"
PRINTED_LENGTH = 2**16


class Tee(io.TextIOBase):
    """Writes through, and keeps the beginning for a test that looks at what was printed.

    Attributes:
        kept: texts, and bytes in hexadecimal as lists of one.
    """

    def __init__(self, below: Any) -> None:
        self.below, self.kept, self.length = below, [], 0

    def keep(self, part: Any, length: int) -> None:
        if self.length < PRINTED_LENGTH:
            self.kept.append(part)
            self.length += length

    def write(self, text: str, /) -> int:
        self.keep(text[:PRINTED_LENGTH], len(text))
        return self.below.write(text)

    def flush(self) -> None:
        self.below.flush()

    def fileno(self) -> int:
        return self.below.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.below.encoding

    @property
    def buffer(self) -> "BinaryTee":
        return BinaryTee(self)

    def take(self) -> list[Any]:
        kept, self.kept, self.length = self.kept, [], 0
        return kept


class BinaryTee(io.RawIOBase):
    """The bytes of a `Tee`."""

    def __init__(self, text: Tee) -> None:
        self.text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.text.flush()
        self.text.keep([bytes(data[:PRINTED_LENGTH]).hex()], len(data))
        return self.text.below.buffer.write(data)

    def flush(self) -> None:
        self.text.below.buffer.flush()


def write_parts(stream: Any, parts: Any) -> None:
    """Write what the program has written: texts, and bytes in hexadecimal."""
    for part in parts:
        if isinstance(part, list):
            stream.flush()
            stream.buffer.write(bytes.fromhex(part[0]))
        else:
            stream.write(str(part))


class TestInput(io.TextIOBase):
    """Standard input as the test has it at the moment."""

    def __init__(self, peer: "ProgramPeer") -> None:
        self.peer = peer

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        return self.peer.do("input", "read", size)

    def readline(self, size: int = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.peer.do("input", "readline", size)

    @property
    def buffer(self) -> io.BytesIO:
        return io.BytesIO(self.peer.do("input", "bytes"))


class ProgramPeer(Peer):
    """The program's end of the channel: it keeps nothing from the test."""

    side = "p"

    def __init__(
        self, channel: Channel, namespace: dict[str, Any], outputs: dict[str, Tee]
    ) -> None:
        super().__init__(channel)
        self.namespace, self.outputs = namespace, outputs
        self.warned: list[Warning] = []
        self.named: dict[int, list[str]] = {}
        foreign.PEERS[:] = [self]
        sys.stdin = TestInput(self)
        builtins.input = self.ask_input
        warnings.simplefilter("always")
        warnings.showwarning = self.keep_warning

    def keep_warning(self, message: Any, *_: Any, **__: Any) -> None:
        """Leave it to the test's filters what becomes of a warning."""
        self.warned.append(message)

    def ask_input(self, prompt: object = "", /) -> str:
        return self.do("input", "input", str(prompt))

    # Objects

    def describe(self, value: Any) -> dict[str, Any]:
        """Describe an object; the test learns of its class only what it derives from."""
        kind = type(value)
        if isinstance(value, BaseException):
            return describe_error(value, self.encode, self.encode(kind))
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
            return {"k": "error class", "n": value.__name__, "b": [self.encode(b) for b in bases]}
        if isinstance(value, type):
            return {"k": "class"}
        base = next((base for base in kind.__mro__ if base in IMMUTABLE or base in MUTABLE), None)
        if base is not None and base in IMMUTABLE:
            return {"k": "object", "b": base.__name__, "c": self.encode(TAKE[base](value))}
        if base is not None:
            return {"k": base.__name__}
        return {"k": next((name for name, known in KINDS.items() if known is kind), "object")}

    def build(self, number: int, form: dict[str, Any]) -> Any:
        if form["k"] == "error":
            return build_error(form, self.decode, lambda error: self.adopt(number, error))
        return foreign.build(self, number, form)

    def encode_name(self, value: Any) -> dict[str, Any] | None:
        if id(value) in self.named:
            return {"t": "named", "v": self.named[id(value)]}
        name = type_name(value) if isinstance(value, type) else None
        return {"t": "type", "v": name} if name else None

    def decode_name(self, tag: Any, content: Any) -> Any:
        if tag != "named":
            return super().decode_name(tag, content)
        found: Any = import_module(content[0])
        if content[1]:
            found = functools.reduce(getattr, content[1].split("."), found)
        self.named[id(found)] = content
        return found

    # Messages

    def extras(self) -> dict[str, Any]:
        for output in self.outputs.values():
            output.flush()
        said: dict[str, Any] = {
            name: parts for name, output in self.outputs.items() if (parts := output.take())
        }
        if self.warned:
            warned, self.warned = self.warned, []
            said["warnings"] = [self.encode(warning) for warning in warned]
        if (environ := environment()) != self.environ:
            self.environ, said["environ"] = environ, dict(os.environ)
        return said

    def take_extras(self, message: dict[str, Any]) -> None:
        if "argv" in message:
            sys.argv[:] = message["argv"]
        if "environ" in message:
            os.environ.clear()
            os.environ.update(message["environ"])
            self.environ = environment()

    def carry_out(self, operation: str, arguments: list, keywords: dict[str, Any]) -> Any:
        if operation in OPERATIONS:
            return OPERATIONS[operation](*arguments, **keywords)
        return getattr(self, operation.replace(" ", "_"))(*arguments)

    # Operations that need this end

    def name(self, name: str) -> Any:
        return self.namespace[name]

    def set_name(self, name: str, value: Any) -> None:
        self.namespace[name] = value

    def main_function(self) -> Any:
        """Find the function that a test means which calls none: the last of the program's own."""
        return [value for name, value in self.namespace.items() if is_main(name, value)][-1]

    def follow_logging(self) -> None:
        follow_logging(self)

    def serve(self) -> None:
        """Answer until the test has ended."""
        while True:
            self.answer(self.receive())


def follow_logging(peer: ProgramPeer) -> None:
    """Hand what the program logs to the test's loggers, whose levels and handlers decide."""
    import logging  # few programs log

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            peer.do(
                "log",
                record.name,
                record.levelno,
                str(record.msg),
                record.args or (),
                record.funcName,
            )

    root = logging.getLogger()
    root.setLevel(1)
    root.handlers[:] = [Forward(1)]


def is_main(name: str, value: Any) -> bool:
    """Tell whether a name is one of the program's own functions for others."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__ == "__main__"
        and not name.startswith("_")
    )


def load_program(code: str, prelude: str = "") -> dict[str, Any]:
    """Run the program as `__main__`, with the names that a prelude imports; returns its namespace."""
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = FILE
    sys.modules["__main__"] = module
    sys.argv = [FILE]
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    exec(prelude, module.__dict__)
    exec(compile(code, FILE, "exec"), module.__dict__)
    return module.__dict__


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception as data: its class, the nearest built-in class, its message."""
    kind = type(error)
    base = next(
        (c.__name__ for c in kind.__mro__ if getattr(builtins, c.__name__, None) is c), "Exception"
    )
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
        namespace = load_program(job["code"], job.get("prelude", ""))
        if "function" not in job:
            return {"ended": True}
        arguments = [decode_literal(argument) for argument in job["arguments"]]
        keywords = {name: decode_literal(value) for name, value in job["keywords"].items()}
        function = find_function(namespace, job["function"], is_method=job["is_method"])
        return {"value": encode_literal(function(*arguments, **keywords))}
    except BaseException as error:  # SystemExit too: whatever the program raised is its answer
        return report_exception(error)


def find_function(namespace: dict[str, Any], name: str, *, is_method: bool) -> Any:
    """Find a function of the program, or a method of an object of its class Solution."""
    if is_method:
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


def run_script(code: str, results: Channel) -> SystemExit:
    """Run the program as Python runs a file; returns how it leaves the interpreter.

    Only an exception is reported: what a script is worth is said by its status and its output, not
    by itself.
    """
    # What the interpreter was started with was opened on another file.
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
        # Before the answer: after it, this process is ended.
        with contextlib.suppress(
            Exception
        ):  # the program may have put anything in the place of stdout
            sys.stdout.flush()
        results.send(answer)
        return
    outputs = {"stdout": Tee(sys.stdout), "stderr": Tee(sys.stderr)}
    sys.stdout, sys.stderr = outputs["stdout"], outputs["stderr"]
    channel = Channel(peer)
    try:
        namespace = load_program(job["code"], job.get("prelude", ""))
    except BaseException as error:  # SystemExit too: the program did not reach its end
        results.send(report_exception(error))
        return
    channel.send({"names": [name for name in namespace if isinstance(name, str)]})
    for output in outputs.values():
        output.take()
    ProgramPeer(channel, namespace, outputs).serve()

"""The program's process: runs the untrusted program, then answers requests.

It contains no test, no expected value and no comparison. A program that takes over this process can
only send wrong answers. Imports the standard library only.
"""

import functools
import linecache
import marshal
import sys
import traceback
import types
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any

from untrusted.inside.channel import Channel, Fields
from untrusted.inside.handles import KINDS
from untrusted.inside.operations import IMMUTABLE, OPERATIONS, content, plain_base
from untrusted.inside.packages import find_type, genuine_name
from untrusted.inside.peer import BorderError, Peer
from untrusted.inside.wire import UnknownValueError, canonical

FILE = "program.py"


class ProgramPeer(Peer):
    """The program's end of the channel. It carries out every operation that the test requests."""

    side = "p"

    def __init__(self, channel: Channel):
        super().__init__(channel)
        # Names of the library objects that the test has sent by name, by identity.
        self.named = {}
        PEERS[:] = [self]
        self.share_environment()

    # Objects

    def describe(self, value) -> Fields:
        """Describe an object: the plain type that its class derives from, or its kind."""
        base = plain_base(type(value))
        kind = type if isinstance(value, type) else base or type(value)
        form = {"k": kind.__name__ if KINDS.get(kind.__name__) is kind else "object"}
        # An immutable value crosses now; a mutable one is fetched when it is needed.
        return form | {"c": self.encode(content(value))} if base in IMMUTABLE else form

    def build(self, form):
        """Build the stand-in for an object of the test from its description (`Tester.describe`)."""
        if form["k"] == "function":
            return foreign_function(form)
        if form["k"] == "error class":
            bases: Any = tuple(map(self.decode, form["b"]))
            return type(form["n"], bases, {"__module__": "__main__", "__doc__": form["d"]})
        return object.__new__(foreign_class(form["n"], *form["s"]))

    def name_of(self, value) -> str | None:
        name = genuine_name(value) or ""
        return self.named.get(id(value)) or (name if find_type(name) is value else None)

    def named_value(self, name: str):
        module, _, member = name.partition(":")
        value = import_module(module)
        value = attrgetter(member)(value) if member else value
        self.named[id(value)] = name
        return value

    # Messages

    def send(self, what, values, keywords):
        # This process may be killed as soon as the test has its answer.
        flush_output()
        super().send(what, values, keywords)

    def carry_out(self, operation, arguments, keywords):
        return OPERATIONS[operation](*arguments, **keywords)

    def serve(self):
        """Answer requests until the test has ended."""
        # Ends by ChannelEndError.
        while True:
            try:
                request = self.receive()
            except BorderError as error:
                # A value that cannot be built here, as a date with a time zone of the test's own.
                self.send("raise", [TypeError(str(error))], {})
            else:
                self.answer(*request)


# Stand-ins for objects of the test


# Holds the program's end of the channel.
PEERS: list[ProgramPeer] = []


def make_special(name: str) -> Any:
    """Return a special method that the test carries out."""

    def method(self, /, *arguments, **keywords):
        return PEERS[0].do("special", self, name, *arguments, **keywords)

    return method


class Foreign:
    """Stand-in for an object of the test. `tester` decides which requests it carries out."""

    __str__, __repr__, __format__ = map(make_special, ("__str__", "__repr__", "__format__"))

    def __getattr__(self, name: str):
        return PEERS[0].do("get", self, name)

    def __setattr__(self, name: str, value):
        PEERS[0].do("set", self, name, value)


@functools.cache
def foreign_class(name: str, *specials: str) -> type:
    """Make the class of stand-ins for objects of a class of the test.

    Args:
        specials: names of the special methods that the class has, so that the stand-in of an object
            without `__len__` has none either.
    """
    members = {method: make_special(method) for method in specials}
    return type(name, (Foreign,), members | {"__module__": "__main__"})


def foreign_function(form: Fields):
    """Return a function that calls a function of the test. It can become a method of a class."""

    def call(*arguments, **keywords):
        return PEERS[0].do("special", call, "__call__", *arguments, **keywords)

    call.__name__ = form["n"]
    call.__qualname__ = form["n"]
    call.__doc__ = form["d"]
    return call


# Programs


def flush_output():
    """Flush the streams of this process; stand-ins for the test's streams have no buffer."""
    for stream in (sys.__stdout__, sys.__stderr__):
        # The program may have replaced them by anything.
        with suppress(Exception):
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]


def show_lines(file: str, source: str):
    """Let tracebacks show the lines of a file that does not exist."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)


def load_program(code: str, prelude: str = "", name: str = "__main__") -> Fields:
    """Run the program as a module, after a prelude of imports; returns its namespace."""
    module = types.ModuleType(name)
    module.__dict__["__file__"] = FILE
    sys.modules[name] = sys.modules["__main__"] = module
    sys.argv = [FILE]
    show_lines(FILE, code)
    exec(prelude, module.__dict__)
    # Python accepts a byte order mark at the beginning of a file, but `compile` does not.
    exec(compile(code.removeprefix("\ufeff"), FILE, "exec"), module.__dict__)
    return module.__dict__


def describe_exception(error: BaseException) -> Fields:
    """Describe an exception by its class, a base class with a meaning of its own, and its message."""
    # What the parent tells apart
    kinds = (SystemExit, MemoryError)
    base = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "")
    try:
        message = str(error)[:1000]
    except Exception:  # the program's own __str__ may raise anything
        message = ""
    return {"raised": type(error).__name__, "base": base, "message": message}


def report_exception(error: BaseException) -> Fields:
    """Print the traceback of an exception without frames of the sandbox, and describe it."""
    # Skip the outermost frames, up to the first one of the program.
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != FILE:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))
    return describe_exception(error)


def answer_once(job: Fields) -> Fields:
    """Run the program and, if the job names a function, call it once."""
    try:
        # `if __name__ == "__main__":` is for programs that are run, not for those that are called.
        namespace = load_program(job["code"], job.get("prelude", ""), "program")
        if "function" not in job:
            return {"ended": True}
        # Arguments and result are literals.
        arguments, keywords = marshal.loads(bytes.fromhex(job["arguments"]))
        function = find_function(namespace, job["function"], is_method=job["is_method"])
        value = function(*arguments, **keywords)
        try:
            return {"value": canonical(value)}
        except UnknownValueError as problem:
            return {"object": str(problem)}
    except BaseException as error:  # SystemExit too: whatever the program raised is its answer
        return report_exception(error)


def find_function(namespace: Fields, name: str, *, is_method: bool):
    """Return a function of the program, or a method of a new object of its class Solution."""
    if is_method:
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name]


def run_script(code: str, results: Channel) -> SystemExit:
    """Run the program as Python runs a file; returns the exception with which to exit.

    Only an exception is reported to the parent, which judges a script by its exit status and its
    output.
    """
    # Opened again, because the interpreter's stream belongs to the zygote's standard input.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    try:
        load_program(code)
    except SystemExit as error:
        return error
    except BaseException as error:  # as the interpreter does: report it, exit with status 1
        results.send(report_exception(error))
        return SystemExit(1)
    return SystemExit(0)


def run(job: Fields, results: Channel, peer: int | None):
    """Do one job: answer a single call, or serve a tester at `peer`."""
    answer = answer_once(job)
    # Before sending the answer, because this process is killed after it.
    flush_output()
    if peer is None or "ended" not in answer:
        results.send(answer)
        return
    # From here on the test, in another process, uses the program over `peer`. It waits for the names.
    channel = Channel(peer)
    names = [name for name in vars(sys.modules["__main__"]) if isinstance(name, str)]
    channel.send({"names": names})
    ProgramPeer(channel).serve()

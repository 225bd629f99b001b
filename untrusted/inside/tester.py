"""The test's process: runs a test's own code, while the program lives in another process.

Names of the program are handles here (`handles`): what the test does to them is done in the
program. So an object of the program is never compared by its own word, no builtin that the program
patched is used, and the test's frames and memory are out of the program's reach. The program can
ask for little in return: see `Tester.carry_out`. Imports the standard library only.
"""

import ast
import builtins
import dataclasses
import functools
import inspect
import linecache
import os
import sys
import traceback
import types
import warnings
from typing import Any

from untrusted.inside import checks, frameworks, patches
from untrusted.inside.channel import Channel
from untrusted.inside.containers import CONTAINERS, items_of
from untrusted.inside.deferred import logging
from untrusted.inside.errors import build_error, describe_error, named_type
from untrusted.inside.handles import (
    BINARY,
    COMPARISONS,
    CONVERSIONS,
    Handle,
    TestSide,
    ask,
    build_handle,
    error_class,
    facts_of,
    is_theirs,
)
from untrusted.inside.names import (
    ProgramFinder,
    ProgramModule,
    TestModule,
    genuine_imports,
    is_callable,
    method_call,
    modules_of,
    namespace,
    type_of,
)
from untrusted.inside.packages import genuine_name, is_genuine, pure_name
from untrusted.inside.peer import BorderError, Peer, environment
from untrusted.inside.program import FILE as PROGRAM_FILE
from untrusted.inside.program import describe_exception, load_program, write_parts

FILE = "test.py"
# Modules whose classes speak for the test: they equal anything, skip, or fail.
VERDICTS = {"unittest", "test", "doctest", "pytest", "_pytest", "untrusted"}
# Types of the test's objects that may only be called: their attributes and texts lead further.
CLOSED = (types.FunctionType, types.MethodType, types.ModuleType, functools.partial)
TEXTS = {"__str__", "__repr__", "__format__"}
# Methods of text that read any attribute of their arguments: "{0.__class__}".format(x).
FORMATS = {"format", "format_map"}
# Special methods that operators and statements call: "__add__", "__radd__", "__iadd__", ...
SPECIALS = {f"__{prefix}{name}__" for name in BINARY for prefix in ("", "r", "i")} | {
    f"__{name}__" for name in (
        *COMPARISONS, *CONVERSIONS, "divmod", "rdivmod", "len", "call", "getitem", "setitem", "delitem", "contains",
        "iter", "next", "reversed", "missing", "length_hint", "enter", "exit", "aenter", "aexit", "aiter", "anext",
        "hash", "str", "repr", "format", "bytes", "fspath",
    )
}  # fmt: skip
# Names that frameworks look for in a module; the program's own must have no effect.
PREPARATIONS = {"setUpModule", "tearDownModule", "load_tests", "pytestmark"}
# Exceptions that end a loop or a generator, and the steps that may raise them.
ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
STEPS = {"next", "anext", "send", "throw", "asend", "athrow", "aclose"}
# Modules that look at objects in ways that the border does not carry. A test that imports one may
# fail for that reason.
DOUBTFUL = {
    "inspect": "looks into functions and classes",
    "gc": "counts references", "weakref": "waits for the end of objects", "traceback": "reads tracebacks",
    "threading": "takes turns with the program in threads", "concurrent": "calls the program in threads",
}  # fmt: skip


class Tester(Peer):
    """The test's end of the channel: it gives nothing away and believes no object.

    Attributes:
        named: library objects that the test has handed out, which the program may hand back.
        doubts: actions of the test that the border carries only in part. Only the test decides
            them, so no program can cause one. If the test then fails, it is not judged.
        checked: number of checks that were executed.
        entered: names of the test functions that were entered.
        complaint: the latest failed assertion that the test raised during a call from the program,
            as long as the program has not passed it on.
    """

    side = "t"

    def __init__(self, channel: Channel, source: str) -> None:
        super().__init__(channel)
        TestSide.peer, TestSide.reason = self, ""
        # The streams as they are now: a test that replaces them inspects the output.
        self.output, self.errors = sys.stdout, sys.stderr
        self.argv = [PROGRAM_FILE]
        self.reads_environment = "environ" in source or "getenv" in source
        self.doubts: list[str] = []
        self.warned: list[Warning] = []
        self.named: dict[tuple[str, ...], Any] = {}
        # Containers by identity, with the items that they had before the program first changed
        # them.
        self.original: dict[int, tuple[Any, list]] = {}
        self.changed: set[int] = set()
        self.checked = 0
        self.entered: set[str] = set()
        self.complaint: AssertionError | None = None

    # What crosses

    def doubt(self, reason: str) -> None:
        """Note an action that the border carries only in part."""
        if reason not in self.doubts:
            self.doubts.append(reason)

    def describe(self, value: Any) -> dict[str, Any]:
        # Frames and code lead to the expected values.
        if isinstance(value, types.FrameType | types.CodeType | types.TracebackType):
            raise TypeError(f"a test cannot hand a {type(value).__name__} to the program")
        if isinstance(value, BaseException):
            return describe_error(value, self.encode, self.encode(type(value)))
        if isinstance(value, types.FunctionType):
            # Awaiting would cross the border in the other direction, which it does not carry.
            if inspect.iscoroutinefunction(value):
                self.doubt("hands a coroutine function to the program")
            if any(
                isinstance(kind, type) and is_own(kind) for kind in value.__annotations__.values()
            ):
                self.doubt("hands a function with its own annotations to the program")
            return {
                "k": "function",
                "n": value.__name__,
                "q": value.__qualname__,
                "d": value.__doc__,
            }
        if isinstance(value, type):
            # A class on its own; one that arrives with its object is no doubt.
            if self.whole is not value:
                self.doubt(f"hands its class {value.__name__} to the program")
            return self.describe_class(value)
        kind = self.whole = type(value)
        if (
            isinstance(value, types.CoroutineType)
            or kind.__module__.startswith("asyncio")
            or "Async" in kind.__name__
        ):
            self.doubt("hands an awaitable to the program")
        if is_own(kind):
            # The program may expect such an object to be plain data, or to have its fields.
            if dataclasses.is_dataclass(value) or any(base in BORN for base in kind.__mro__):
                self.doubt(f"hands an object of its class {kind.__name__} to the program")
            return {"k": "object", "class": self.encode(kind)}
        # A library object: the program gets its class name and its special methods.
        specials = [name for name in SPECIALS if getattr(kind, name, None) is not None]
        return {"k": "object", "n": kind.__name__, "s": specials}

    def describe_class(self, kind: type) -> dict[str, Any]:
        """Describe a class of the test: its bases and the special methods that it defines."""
        bases = [base for base in kind.__bases__ if is_own(base) or issubclass(base, BaseException)]
        # Bases that do not cross are folded into the class: their methods count as its own.
        folded = [
            part
            for part in kind.__mro__
            if part is not object and not any(issubclass(b, part) for b in bases)
        ]
        specials = {
            name for part in folded for name in vars(part) if name in SPECIALS and vars(part)[name]
        }
        # BaseException's own texts are there already, unless the class overrides them.
        if issubclass(kind, BaseException):
            specials -= {"__str__", "__repr__"} - set(vars(kind))
        return {
            "k": "class",
            "n": kind.__name__,
            "b": [self.encode(b) for b in bases],
            "s": [*specials],
        }

    def encode_name(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, types.ModuleType) and is_genuine(value.__name__):
            name: Any = [value.__name__, ""]
        elif isinstance(value, type):
            name = genuine_name(value)
        else:
            name = pure_name(value) if isinstance(value, types.BuiltinFunctionType) else None
        # Remembered, so that the program can hand back only what it was given.
        if name:
            self.named[tuple(name)] = value
        return {"t": "named", "v": name} if name else None

    def build(self, number: int, form: dict[str, Any]) -> Any:
        if form["k"] == "error":
            return build_error(form, self.decode, lambda error: self.adopt(number, error))
        if form["k"] == "error class":
            return self.adopt(
                number, error_class(str(form["n"]), [self.decode(base) for base in form["b"]])
            )
        return self.adopt(number, build_handle(form))

    def decode_name(self, tag: Any, content: Any) -> Any:
        if tag == "named" and tuple(content) in self.named:
            return self.named[tuple(content)]
        kind = named_type(content) if tag == "type" and isinstance(content, str) else None
        return super().decode_name(tag, content) if kind is None else kind

    # What the program may ask for
    # Requests of the program that are allowed
    def carry_out(self, operation: str, arguments: list, keywords: dict[str, Any]) -> Any:
        """Serve the program: standard input, the log, and objects that the test has handed out.

        Of these it may call objects, read and set attributes of instances, and use the special
        methods that operators and statements call.
        """
        if operation == "input":
            return read_input(*arguments)
        if operation == "log":
            return take_log(*arguments)
        # "special" carries the method's name first, then its subject; the others begin with the
        # subject.
        subject_at = 1 if operation == "special" else 0
        if operation not in ("call", "get", "set", "special") or len(arguments) <= subject_at:
            raise BorderError(f"operation {operation!r:.40}")
        subject = arguments[subject_at]
        # Only objects that crossed from here by number.
        if id(subject) not in self.own_numbers:
            raise BorderError(f"{operation}: no object of the test")
        # A format string of the program would read any attribute of the test's objects.
        if subject is str.format or subject is str.format_map:
            raise BorderError("formatting by a text of the program's")
        try:
            if operation == "call":
                return subject(*arguments[1:], **keywords)
            name = arguments[1 - subject_at]
            if type(name) is not str:
                raise BorderError("the name of an attribute is no text")
            # Looked up on the class, as Python does; the instance cannot override it.
            if operation == "special":
                if name not in SPECIALS or (name in TEXTS and isinstance(subject, CLOSED)):
                    raise BorderError("a special method that no operator calls")
                return getattr(type(subject), name)(subject, *arguments[2:], **keywords)
            self.check_attribute(operation, subject, name)
            return (
                getattr(subject, name)
                if operation == "get"
                else setattr(subject, name, arguments[2])
            )
        # The program may catch it: remembered until it comes back through the border.
        except AssertionError as error:
            self.complaint = error
            raise

    def check_attribute(self, operation: str, subject: Any, name: str) -> None:
        """Raise for attributes that lead to the test's frames or replace its checks."""
        # The classes that define the attribute, nearest first.
        kinds = (subject if isinstance(subject, type) else type(subject)).__mro__
        owners = [kind for kind in kinds if name in vars(kind)]
        if any(str(kind.__module__).partition(".")[0] in VERDICTS for kind in owners):
            raise AttributeError(f"the attribute {name!r:.40} of what checks")
        # Of a generator, only the steps and `close`: `gi_frame` leads to the test.
        closed = isinstance(subject, CLOSED)
        closed |= isinstance(subject, types.GeneratorType) and name not in STEPS | {"close"}
        if name.startswith("_") or closed or (name in FORMATS and str in kinds):
            raise AttributeError(f"the attribute {name!r:.40} of an object of the test")
        if isinstance(subject, type) and not any(is_own(owner) for owner in owners):
            raise AttributeError(f"{name!r} of a class of the test")
        # Set only data attributes of instances of the test's own classes.
        if operation == "set":
            if isinstance(subject, type) or not is_own(type(subject)):
                raise AttributeError(
                    f"a program cannot set {name!r:.40} of an object that is not the test's own"
                )
            if callable(getattr(type(subject), name, None)):
                raise AttributeError(
                    f"a program cannot replace the method {name!r:.40} of the test"
                )

    def checked_error(self, error: BaseException, operation: str) -> BaseException:
        """Let StopIteration end a loop only if an iterator was asked for its next item."""
        # The assertion has come back to the test: the program did not hide it.
        if isinstance(error, AssertionError):
            self.complaint = None
        is_step = (
            operation in STEPS
            or (operation == "call method" and self.step in STEPS)
            or operation == "run task"
        )
        # Otherwise a program could end the test's `for` loop, and its checks, early.
        if isinstance(error, ENDS_LOOPS) and not is_step:
            return RuntimeError(f"the program raised {type(error).__name__}")
        return error

    # What both ends share; `step` is the latest method called, `whole` the object being described.

    step = ""
    whole: Any = None

    def before_change(self, container: Any) -> None:
        # Only the first change: the original is what the test wrote.
        self.original.setdefault(id(container), (container, items_of(container)))
        self.changed.add(id(container))

    def do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Have the program carry out an operation.

        A function that returns nothing is meant to change its arguments; their new content is then
        what the test means, so the original is dropped.
        """
        self.changed = set()
        # "__next__" -> "next"
        if operation == "call method":
            self.step = arguments[1].strip("_")
        try:
            result = super().do(operation, *arguments, **keywords)
        finally:
            warned, self.warned = self.warned, []
        # Here, so that the test's own filters and contexts see them.
        for warning in warned:
            warnings.warn(warning, stacklevel=3)
        if result is None:
            for key in self.changed:
                self.original.pop(key, None)
        return result

    def as_written(self, value: Any) -> Any:
        """Return data as they were before the program changed them; containers are copied."""
        if not self.original or not isinstance(value, list | dict | set | tuple):
            return value
        if type(value) is tuple:
            return tuple(self.as_written(item) for item in value)
        items = [
            self.as_written(item)
            for item in self.original.get(id(value), (value, items_of(value)))[1]
        ]
        # Items of a dictionary are keys and values in turn: ["a", 1] -> {"a": 1}.
        if isinstance(value, dict):
            return dict(zip(items[::2], items[1::2], strict=True))
        return type(value)(items) if type(value) in (list, set) else value

    def extras(self) -> dict[str, Any]:
        news: dict[str, Any] = {}
        # Sent only if the test has changed it since the last message.
        if (environ := environment()) != self.environ:
            self.environ, news["environ"] = environ, dict(os.environ)
        if sys.argv != self.argv:
            self.argv = news["argv"] = [str(word) for word in sys.argv]
        return news

    def take_extras(self, message: dict[str, Any]) -> None:
        # The program's environment, except for options that frameworks read.
        if self.reads_environment and isinstance(environ := message.get("environ"), dict):
            kept = {
                name: value
                for name, value in os.environ.items()
                if name.startswith(patches.OPTIONS)
            }
            os.environ.clear()
            os.environ.update(
                {
                    name: value
                    for name, value in environ.items()
                    if not name.startswith(patches.OPTIONS)
                }
                | kept
            )
            self.environ = environment()
        self.warned += [self.decode(form) for form in message.get("warnings", ())]
        # The program has already written its output. Only a test that inspects output, and has
        # replaced the stream for that, gets it again.
        if sys.stdout is not self.output:
            write_parts(sys.stdout, message.get("stdout", ()))
        if sys.stderr is not self.errors:
            write_parts(sys.stderr, message.get("stderr", ()))

    # Names of the program

    def names(self) -> set[str]:
        """Wait until the program is loaded; returns its public names, which it then sends."""
        names = self.channel.receive()["names"]
        return {str(name) for name in names if not str(name).startswith("__")} - PREPARATIONS

    def fetch(self, name: str) -> Any:
        """Return a handle or value for one name of the program."""
        # What the program imports from the library is genuine here, by its text.
        if name in self.imported:
            return self.imported[name]
        try:
            value = self.do("name", name)
        except KeyError:
            raise NameError(f"name {name!r} is not defined") from None
        if isinstance(value, Handle):
            # A name in CapWords is a class: a test that calls it makes objects of its own.
            facts_of(value)["named"] = name[:1].isupper() and "_" not in name
        return value

    imported: dict[str, Any]

    def note_check(self) -> None:
        self.checked += 1


# Built-in types: an object of a class derived from one has content that does not cross.
BORN = {*CONTAINERS.values(), int, str, float, tuple, bytes, frozenset, complex}


def is_own(kind: type) -> bool:
    """Whether a class is defined by the test."""
    return getattr(kind, "__module__", None) == "__main__" and not is_theirs(kind)


def take_log(name: str, level: int, message: str, arguments: Any, function: str) -> None:
    """Pass a record that the program has logged to the test's logger of that name."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        record = logger.makeRecord(
            name, level, PROGRAM_FILE, 0, message, tuple(arguments), None, function
        )
        logger.handle(record)


def read_input(kind: str, *arguments: Any) -> Any:
    """Read standard input as the test has set it: the test may have replaced it."""
    if kind == "input":
        return builtins.input(*arguments)
    if kind == "bytes":
        return sys.stdin.buffer.read()
    return sys.stdin.readline(*arguments) if kind == "readline" else sys.stdin.read(*arguments)


def run_source(tester: Tester, source: str, code: str) -> None:
    """Run one test as Python would, then what it defines for a framework; raises if it fails."""
    # The source, for tracebacks and for the failing line
    sys.argv = [PROGRAM_FILE]
    tree = ast.parse(source, FILE)
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    # The program's names; waits until it is loaded
    theirs = tester.names()
    tester.imported = genuine_imports(code)
    # As `__main__`: a test that ends with `if __name__ == "__main__": check(f)` must not pass by
    # doing nothing.
    module = sys.modules["__main__"] = TestModule("__main__", tester.fetch, theirs)
    sys.meta_path.append(ProgramFinder(ProgramModule("program", tester.fetch, theirs)))
    scope = module.__dict__
    # Functions that the prepared test calls (`checks.prepare`)
    scope |= {"__file__": FILE, checks.CHECKED: tester.note_check, checks.GIVEN: tester.as_written}
    scope |= {
        checks.TYPE_OF: type_of,
        checks.CALL_METHOD: method_call,
        checks.CALLABLE: is_callable,
    }
    # What the test reads, defines and imports
    nodes = checks.nodes_of(tree)
    read, defined = names = checks.names_of(nodes)
    modules = modules_of(nodes, read - defined)
    for name in sorted(checks.modules_imported(nodes) & set(DOUBTFUL)):
        tester.doubt(f"{DOUBTFUL[name]} ({name})")
    if checks.asks_for_identity(nodes):
        tester.doubt(
            "asks for identity with an object of the library, matches classes, or looks into arrays"
        )
    # Repetitions and frameworks, then the program's names
    patches.follow_test(source)
    by_pytest = frameworks.make_fit(source, nodes)
    scope |= {
        checks.ENTERED: tester.entered.add,
        **namespace(tester.fetch, nodes, names, theirs, modules),
    }
    # Run the file itself
    tests = checks.test_names(tree)
    program = (theirs & read) - defined - set(modules)
    try:
        exec(compile(checks.prepare(tree, nodes, program, tests), FILE, "exec"), scope)
    except SystemExit as end:
        # `sys.exit(0)` at the end of a test is no failure if the test said it itself.
        if end.code not in (None, 0) or not is_own_end(end):
            raise
    # Run what is defined for a framework and has not run yet
    if tests - tester.entered:
        if by_pytest:
            frameworks.run(module, tests, defined)
        else:
            frameworks.run_ourselves(scope, tests, defined)
    # HumanEval's form: a function `check(candidate)` that nobody has called.
    if not tester.checked and not tests and callable(check := scope.get("check")):
        check(ask("main function"))
    # Verdict: a broken channel or an assertion that the program swallowed is a failure
    if problem := tester.broken or tester.complaint:
        raise problem
    if not tester.checked:
        raise NoCheckError("no assertion was executed")


def is_own_end(error: SystemExit) -> bool:
    """Whether the test itself raised this, neither the program nor a callback that it called."""
    border = Peer.do.__code__.co_filename
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not is_theirs(error) and border not in frames


class NoCheckError(Exception):
    """Raised if a test has ended without having checked anything."""


def failing_line(error: BaseException, source: str) -> str:
    """Return the line of the test at which it failed; empty if unknown."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == FILE
    ]
    return source.splitlines()[lines[-1] - 1].strip() if lines and lines[-1] else ""


def run(job: dict[str, Any], results: Channel, peer: int) -> None:
    """Run one test and report the outcome, here where no code of the program runs."""
    tester = Tester(Channel(peer), job["test"])
    try:
        run_source(tester, job["test"], job["code"])
    except BaseException as error:  # a test may raise anything, and leaving is not passing
        # A reason for "cannot judge" goes first, then the failure itself.
        reason = TestSide.reason or (
            tester.doubts[0] if tester.doubts and not tester.broken else ""
        )
        if reason:
            results.send({"cannot": f"the test {reason}" if not TestSide.reason else reason})
        results.send(describe_exception(error) | {"line": failing_line(error, job["test"])})
    else:
        results.send({"cannot": TestSide.reason} if TestSide.reason else {"ended": job["sentinel"]})


def run_in_one(job: dict[str, Any], results: Channel) -> None:
    """Run a program and its test in this one process, as plain Python would.

    The process is confined like any other, but the program can fake the verdict.
    """
    source = job["test"]
    try:
        scope = load_program(job["code"], job.get("prelude", ""))
        sys.meta_path.append(ProgramFinder(sys.modules["__main__"]))
        tree = ast.parse(source, FILE)
        nodes, tests = checks.nodes_of(tree), checks.test_names(tree)
        by_pytest = frameworks.make_fit(source, nodes)
        exec(compile(tree, FILE, "exec"), scope)
        if by_pytest and tests:
            frameworks.run(sys.modules["__main__"], tests, checks.names_of(nodes)[1])
        elif tests:
            frameworks.run_ourselves(scope, tests, checks.names_of(nodes)[1])
    except BaseException as error:  # whatever was raised, the test has not passed
        cannot = {"cannot": TestSide.reason} if TestSide.reason else {}
        results.send(describe_exception(error) | {"line": failing_line(error, source)} | cannot)
    else:
        results.send({"ended": job["sentinel"]})

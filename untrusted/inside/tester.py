"""The test's process: runs a test's own code, while the program lives in another process.

Names of the program are stand-ins here: calling one sends the arguments and returns what came back. So no object
of the program is ever compared by its own word, no patched builtin is ever used, and the frames and the memory of the
test are out of the program's reach. Imports the standard library only.
"""

import abc
import ast
import builtins
import importlib
import importlib.util
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from decimal import Decimal
from importlib.machinery import ModuleSpec
from typing import Any

from untrusted.inside import checks, frameworks
from untrusted.inside.channel import Channel
from untrusted.inside.containers import items_of
from untrusted.inside.deferred import logging
from untrusted.inside.operations import FUNCTIONS
from untrusted.inside.packages import genuine_name, is_genuine
from untrusted.inside.peer import ConversationError, Peer
from untrusted.inside.program import FILE as PROGRAM_FILE
from untrusted.inside.program import describe_exception
from untrusted.inside.remotes import Remote
from untrusted.inside.specials import CONVERSIONS
from untrusted.inside.wire import is_array, is_number

FILE = "test.py"
VERDICTS = {"unittest", "test", "doctest", "pytest", "_pytest"}
"""Modules whose classes would speak for the test: what equals everything, what skips, what fails."""
INNARDS = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""How the names begin by which an object leads to frames, globals and code."""
SERVED: dict[str, slice] = {
    **dict.fromkeys(("call", "get", "get and call", "item", "set", "delete", "copy"), slice(1)),
    **dict.fromkeys(("special", "isinstance", "issubclass"), slice(1, 2)),
    "operator": slice(1, 3),
}
"""What a program may have done to objects of the test, and which of the arguments must be one."""
FORMATS = {"format", "format_map"}
"""Methods of text that read any attribute of what they are given."""
SPECIALS = {f"__{prefix}{name}__" for name in FUNCTIONS for prefix in ("", "r")} | CONVERSIONS | {
    f"__{name}__" for name in (
        "call", "getitem", "setitem", "delitem", "contains", "iter", "next", "reversed", "missing", "length_hint",
        "enter", "exit", "aenter", "aexit", "aiter", "anext", "await", "hash", "str", "repr", "format", "bytes",
        "fspath", "post_init", "invert",
    )
}  # fmt: skip
"""Special methods that operators and statements call."""
ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
STEPS = {"__next__", "__anext__", "send", "throw", "asend", "athrow", "aclose"}
HELPERS = {"isclose": "math", "approx": "pytest", "raises": "pytest"}
"""Functions that decide, and where they come from if a test uses them without saying so."""


class Tester(Peer):
    """The test's end of the conversation: it gives nothing away and believes no object."""

    side, is_strict = "t", True

    def __init__(self, channel: Channel, declares: bool) -> None:
        super().__init__(channel)
        self.output, self.errors = sys.stdout, sys.stderr
        self.argv = [PROGRAM_FILE]
        self.declares = declares
        self.warned: list[Warning] = []
        self.original: dict[int, tuple[Any, list]] = {}
        self.changed: set[int] = set()
        self.checked = 0
        self.entered: set[str] = set()
        self.complaint: AssertionError | None = None

    # What the program must not have

    def check_export(self, value: Any) -> None:
        if isinstance(value, types.FrameType | types.CodeType | types.TracebackType):
            raise TypeError(f"a test cannot hand a {type(value).__name__} to the program")

    def carry_out(self, operation: str, arguments: list, keywords: dict[str, Any]) -> Any:
        if operation == "input":
            return read_input(*arguments)
        if operation == "log":
            return take_log(*arguments)
        self.check_subject(operation, arguments)
        if operation in ("get", "get and call", "set", "delete"):
            self.check_attribute(operation, arguments[0], arguments[1])
        if operation == "special" and (type(arguments[0]) is not str or arguments[0] not in SPECIALS):
            raise ConversationError("a special method that no operator calls")
        try:
            return super().carry_out(operation, arguments, keywords)
        except AssertionError as error:
            self.complaint = error
            raise

    def check_subject(self, operation: str, arguments: list) -> None:
        """Refuse to carry out an operation on anything but what the test has handed out itself.

        A class, function or module that the program has named is none of that, nor is what is made of these; and a
        genuine class that only came along with an object of it would make more.
        """
        if operation == "run tasks":
            subjects = list(arguments[0].values())
        elif operation in SERVED:
            subjects = arguments[SERVED[operation]]
        else:
            raise ConversationError(f"operation {operation!r:.40}")
        own = [subject for subject in subjects if id(subject) in self.own_numbers]
        if not own or (operation == "run tasks" and len(own) < len(subjects)):
            raise ConversationError(f"{operation}: no object of the test")
        if operation in ("isinstance", "issubclass"):
            return
        for subject in own:
            if isinstance(subject, type) and is_genuine(subject.__module__):
                raise ConversationError(f"{operation}: a class that is not the test's own")
            if subject is str.format or subject is str.format_map:
                raise ConversationError("formatting by a text of the program's")

    def check_attribute(self, operation: str, subject: Any, name: Any) -> None:
        """Refuse ways into the test's frames, and the replacement of what checks."""
        if type(name) is not str:
            raise ConversationError("the name of an attribute is no text")
        kinds = (subject if isinstance(subject, type) else type(subject)).__mro__
        if isinstance(subject, type) and hasattr(abc.ABCMeta, name) and not any(name in vars(kind) for kind in kinds):
            raise AttributeError(f"{name!r} of the class of a class")
        if name in FORMATS and str in kinds:
            raise AttributeError(f"{name!r} of a text of the test")
        if any(name in vars(kind) for kind in kinds if str(kind.__module__).partition(".")[0] in VERDICTS):
            raise AttributeError(f"the attribute {name!r:.40} of what checks")
        if name.startswith(INNARDS) or isinstance(subject, types.FunctionType | types.MethodType | types.ModuleType):
            raise AttributeError(f"the attribute {name!r:.40} of an object of the test")
        if operation in ("set", "delete"):
            if isinstance(subject, type) and subject.__module__ == "__main__" and not hasattr(subject, name):
                return
            if isinstance(subject, type) or is_genuine(type(subject).__module__):
                raise AttributeError(f"a program cannot set {name!r:.40} of an object that is not the test's own")
            if callable(getattr(type(subject), name, None)):
                raise AttributeError(f"a program cannot replace the method {name!r:.40} of the test")

    def genuine(self, module: str, name: str) -> type:
        if module.partition(".")[0] in VERDICTS:
            raise ConversationError(f"the program answered with {module}.{name}")
        found = super().genuine(module, name)
        # By another module's name it might be one of those, and code objects make functions.
        if genuine_name(found) != [module, name] or found is types.CodeType:
            raise ConversationError(f"the program answered with {module}.{name}")
        return found

    def checked_error(self, error: BaseException, operation: str, arguments: tuple[Any, ...]) -> BaseException:
        """Let StopIteration end a loop only where an iterator was asked for its next item."""
        if isinstance(error, AssertionError):
            self.complaint = None
        # Not by the text of an argument: an object of the program says what that is.
        names = arguments[:1] if operation == "special" else arguments[1:2] if operation == "get and call" else ()
        is_step = bool(names) and type(names[0]) is str and names[0] in STEPS
        if isinstance(error, ENDS_LOOPS) and operation != "run tasks" and not is_step:
            return RuntimeError(f"the program raised {type(error).__name__}")
        return error

    # What both ends share

    def declare(self, stand_in: Any) -> Any:
        return super().declare(stand_in) if self.declares else stand_in

    def before_change(self, container: Any) -> None:
        self.original.setdefault(id(container), (container, items_of(container)))
        self.changed.add(id(container))

    def do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Have the program carry out an operation.

        A function that returns nothing is meant to change its arguments, and then there is no other original.
        """
        self.changed = set()
        try:
            result = super().do(operation, *arguments, **keywords)
        finally:
            warned, self.warned = self.warned, []
        for warning in warned:
            warnings.warn(warning, stacklevel=3)
        if any(isinstance(argument, Remote) and self.is_tainted(argument) for argument in arguments[:2]):
            self.spread_taint(result)
        if result is None:
            for key in self.changed:
                self.original.pop(key, None)
        return result

    def spread_taint(self, result: Any) -> None:
        """Refuse a number from an object that has seen the operand it would be compared with, in whatever way."""
        if self.is_theirs(result):
            self.taint(result)
        elif isinstance(result, int | float | complex | Decimal) or is_array(result) or is_number(result):
            raise TypeError("the program's object has made a plain value of the test's operand")

    def as_written(self, value: Any) -> Any:
        """Return data as they were before the program changed them."""
        if not self.original or not isinstance(value, list | dict | set | tuple):
            return value
        if type(value) is tuple:
            return tuple(self.as_written(item) for item in value)
        items = [self.as_written(item) for item in self.original.get(id(value), (value, items_of(value)))[1]]
        if isinstance(value, dict):
            return dict(zip(items[::2], items[1::2], strict=True))
        return type(value)(items) if type(value) in (list, set) else value

    def extras(self) -> dict[str, Any]:
        news = super().extras()
        if sys.argv != self.argv:
            self.argv = news["argv"] = [str(word) for word in sys.argv]
        return news

    def take_extras(self, message: dict[str, Any]) -> None:
        super().take_extras(message)
        self.warned += [self.decode(form) for form in message.get("warnings", ())]
        # The program has written it already; only a test that looks at what is printed needs it again.
        if sys.stdout is not self.output:
            write_parts(sys.stdout, message.get("stdout", ()))
        if sys.stderr is not self.errors:
            write_parts(sys.stderr, message.get("stderr", ()))

    # Names of the program

    def names(self) -> set[str]:
        """Wait for the program to have been loaded; returns its names, which it says then."""
        names = self.channel.receive()["names"]
        return {str(name) for name in names if not str(name).startswith("__")}

    def fetch(self, name: str) -> Any:
        """Fetch one name of the program; what it imported under that name is imported anew."""
        with self.lock:
            self.send(lambda: {"do": "name", "arguments": [name], "keywords": {}})
            while "do" in (reply := self.receive()):
                self.answer(reply)
        if "raised" in reply:
            raise NameError(f"name {name!r} is not defined")
        form = reply["value"]
        tag = form.get("t") if isinstance(form, dict) else None
        if tag == "module" and not is_genuine(form["v"]):
            raise NameError(f"{name} is a module of the program")
        if tag == "mine" and (genuine := genuine_function(name, form)) is not None:
            return genuine
        return self.decode(form)

    def note_check(self) -> None:
        self.checked += 1


def genuine_function(name: str, form: dict[str, Any]) -> Any:
    """Find the function of the standard library that the program has imported under its own name."""
    home = form.get("home")
    if not is_genuine(home) or str(home).partition(".")[0] in VERDICTS:
        return None
    found = getattr(importlib.import_module(str(home)), name, None)
    return found if getattr(found, "__module__", None) == home else None


def write_parts(stream: Any, parts: Any) -> None:
    """Write what the program has written: texts, and bytes in hexadecimal."""
    for part in parts:
        if isinstance(part, list):
            stream.flush()
            stream.buffer.write(bytes.fromhex(part[0]))
        else:
            stream.write(str(part))


def take_log(name: str, level: int, message: str, arguments: Any, function: str) -> None:
    """Log what the program has logged."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(name, level, PROGRAM_FILE, 0, message, tuple(arguments), None, function))


def read_input(kind: str, *arguments: Any) -> Any:
    """Read standard input as the test has it: it may have put something in its place."""
    if kind == "input":
        return builtins.input(*arguments)
    if kind == "bytes":
        return sys.stdin.buffer.read()
    return sys.stdin.readline(*arguments) if kind == "readline" else sys.stdin.read(*arguments)


class TestModule(types.ModuleType):
    """The module `__main__` of a test: what a test sets there by name (`mock.patch`) is set in the program too."""

    def __init__(self, name: str, tester: Tester, theirs: set[str]) -> None:
        super().__init__(name)
        object.__setattr__(self, "_tester", tester)
        object.__setattr__(self, "_theirs", theirs)
        object.__setattr__(self, "_originals", {})

    def __getattr__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "_theirs"):
            return object.__getattribute__(self, "_tester").fetch(name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in object.__getattribute__(self, "_theirs"):
            tester = object.__getattribute__(self, "_tester")
            object.__getattribute__(self, "_originals").setdefault(name, tester.fetch(name))
            tester.do("set name", name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        originals = object.__getattribute__(self, "_originals")
        if name in originals:
            object.__getattribute__(self, "_tester").do("set name", name, originals.pop(name))
        if name in self.__dict__:
            super().__delattr__(name)


class ProgramModule(TestModule):
    """The program, imported by a test under whatever name it has there."""

    @property
    def __all__(self) -> list[str]:
        return sorted(name for name in object.__getattribute__(self, "_theirs") if not name.startswith("_"))


class ProgramFinder:
    """Takes every module that is not found elsewhere for the program."""

    def __init__(self, tester: Tester, theirs: set[str]) -> None:
        self.tester, self.theirs = tester, theirs

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if "." in name or name.startswith("_") or is_genuine(name):
            return None
        # No class of importlib.abc's: importing that makes every process dearer.
        return importlib.util.spec_from_loader(name, self)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return ProgramModule(spec.name, self.tester, self.theirs)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is: its names are fetched when they are used."""


def modules_of(nodes: list[ast.AST], free: set[str]) -> dict[str, Any]:
    """Import the modules that a test uses without saying so: it means the genuine ones."""
    found = {name: importlib.import_module(name) for name in free if checks.is_module_name(nodes, name)}
    if "np" in free and checks.attributes_of(nodes, "np") and importlib.util.find_spec("numpy"):
        found["np"] = importlib.import_module("numpy")
    return found


def namespace(
    tester: Tester, nodes: list[ast.AST], names: tuple[set[str], set[str]], theirs: set[str], found: dict[str, Any]
) -> dict[str, Any]:
    """Collect the names of the program that the test sees.

    A builtin keeps its meaning unless it is the only name of the program in the test: `abs(f(1) - 2) < 1e-6` means
    Python's abs, `sum(10, 15) == 25` the program's sum. So do modules, and functions that decide.
    """
    read, defined = names
    free = read - defined
    if checks.reads_annotations(nodes):
        free |= theirs - defined
    known = {name for name in theirs if checks.is_builtin(name) or name in HELPERS} | set(found)
    imports = any(not is_genuine(module) for module in checks.modules_imported(nodes))
    chosen = free & (theirs - known)
    if not chosen and not imports:
        chosen = (free & theirs) - set(found)
    found = found | {
        name: getattr(importlib.import_module(HELPERS[name]), name)
        for name in free & theirs & set(HELPERS)
        if name not in chosen
    }
    # A name that the test both reads and defines may be the program's where it is read first.
    chosen |= read & defined & (theirs - known)
    return found | {name: tester.fetch(name) for name in sorted(chosen)}


def repeat_there(tester: Tester, module: Any, *names: str) -> None:
    """Have the program do what a test does for the whole process, such as to seed random numbers."""
    for name in names:
        setattr(module, name, repeated(tester, module.__name__, name, getattr(module, name)))


def repeated(tester: Tester, module: str, name: str, function: Callable[..., Any]) -> Callable[..., None]:
    def both(*arguments: Any, **keywords: Any) -> None:
        function(*arguments, **keywords)
        tester.do("repeat", module, name, *arguments, **keywords)

    return both


def run_source(tester: Tester, source: str) -> None:
    """Run one test as Python would, and then what it defines for a framework, as that would; raises if it fails."""
    sys.argv = [PROGRAM_FILE]
    tree = ast.parse(source, FILE)
    theirs = tester.names()
    # A test that ends with `if __name__ == "__main__": check(f)` must not pass by doing nothing.
    module = sys.modules["__main__"] = TestModule("__main__", tester, theirs)
    sys.meta_path.append(ProgramFinder(tester, theirs))
    scope = tester.scope = module.__dict__
    scope |= {"__file__": FILE, checks.CHECKED: tester.note_check, checks.GIVEN: tester.as_written}
    nodes = checks.nodes_of(tree)
    read, defined = names = checks.names_of(nodes)
    modules = modules_of(nodes, read - defined)
    scope |= {checks.ENTERED: tester.entered.add, **namespace(tester, nodes, names, theirs, modules)}
    if "log" in source:
        tester.do("follow logging")
    if "random" in source:
        repeat_there(tester, importlib.import_module("random"), "seed", "setstate")
    repeat_there(tester, sys, "setrecursionlimit")
    if "numpy" in sys.modules:
        repeat_there(tester, sys.modules["numpy"].random, "seed")
    tests = checks.test_names(tree)
    frameworks.make_fit(tester, source)
    program = (theirs & read) - defined - set(modules)
    exec(compile(checks.prepare(tree, nodes, program, tests), FILE, "exec"), scope)
    if tests - tester.entered:
        frameworks.run(tester, module, tests, defined)
    if not tester.checked and not tests and callable(check := scope.get("check")):
        check(tester.do("main function"))
    if problem := tester.broken or tester.complaint:
        raise problem
    if not tester.checked:
        raise NoCheckError("no assertion was executed")


class NoCheckError(Exception):
    """A test that has come to its end without having checked anything."""


def failing_line(error: BaseException, source: str) -> str:
    """Find the line of the test at which it failed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    return source.splitlines()[lines[-1] - 1].strip() if lines and lines[-1] else ""


def run(job: dict[str, Any], results: Channel, peer: int) -> None:
    """Run one test; the word that it passed is said here, where no code of the program runs."""
    try:
        run_source(Tester(Channel(peer), job["trusts_objects"]), job["test"])
    except BaseException as error:  # a test may raise anything, and leaving is not passing
        results.send(describe_exception(error) | {"line": failing_line(error, job["test"])})
    else:
        results.send({"ended": job["sentinel"]})

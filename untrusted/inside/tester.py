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
import re
import sys
import traceback
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from untrusted.inside import checks, frameworks, patches
from untrusted.inside.channel import Channel, Fields
from untrusted.inside.containers import CONTAINERS, Shared, fill, items_of
from untrusted.inside.errors import find_type
from untrusted.inside.handles import (
    Handle,
    TestSide,
    be_strict,
    build_handle,
    cannot_judge,
    error_class,
    facts_of,
    is_theirs,
)
from untrusted.inside.names import (
    ProgramFinder,
    TestModule,
    genuine_imports,
    method_call,
    namespace,
    type_of,
    typed,
)
from untrusted.inside.operations import BINARY, OPERATORS, method_of
from untrusted.inside.packages import genuine_name, is_genuine
from untrusted.inside.peer import BorderError, Deep, Peer
from untrusted.inside.program import FILE as PROGRAM_FILE
from untrusted.inside.program import describe_exception

FILE = "test.py"
# Modules whose classes speak for the test: they equal anything, skip, or fail.
VERDICTS = {"unittest", "test", "doctest", "pytest", "_pytest", "untrusted"}
# Types of the test's objects that may only be called: their attributes and texts lead further.
CLOSED = (type, types.FunctionType, types.MethodType, types.ModuleType, functools.partial)
TEXTS = {"__str__", "__repr__", "__format__"}
# Methods of text that read any attribute of their arguments: "{0.__class__}".format(x).
FORMATS = {"format", "format_map"}
# Special methods that operators and statements call: "__add__", "__radd__", "__iadd__", ...
SPECIALS = {*OPERATORS, *(f"__r{name}__" for name in (*BINARY, "divmod"))} | {
    f"__{name}__" for name in ("call", "missing", "enter", "exit", "aenter", "aexit")
}
# What a test may replace by an assignment.
FOLLOWED = (*((sys, name) for name in ("stdin", "stdout", "stderr", "argv")), (builtins, "input"))
# Names that frameworks look for in a module; the program's own must have no effect.
PREPARATIONS = {"setUpModule", "tearDownModule", "load_tests", "pytestmark"}
# Attributes of a stream that a program may only write to.
WRITING = {"write", "writelines", "flush", "buffer", "encoding", "errors", "closed", "isatty", "fileno"}  # fmt: skip
# Exceptions that end a loop or a generator, and the steps that may raise them.
ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
STEPS = {"__next__", "__anext__"}
GENERATOR_STEPS = {"send", "throw", "close"}
# Modules that look at objects in ways that the border does not carry. A test that imports one may
# fail for that reason.
DOUBTFUL = {"inspect", "gc", "weakref", "traceback", "threading", "concurrent"}
# Packages whose objects cross as data, or run tests.
CARRIED = {"numpy", "pytest"}
# Names, and attributes and keywords with a dot, of what would run code of the program here: by what it
# has written, pickled or returned.
REFUSED = re.compile(
    r"\.?(\w*pickle\w*|run_path|load_source|spec_from_file_location|SourceFileLoader|exec_module)"
    r"|dill|shelve|dbm|marshal|joblib|copyreg|yaml|doctest|runpy|eval|exec"
)
# Built-in types: an object of a class derived from one has content that does not cross.
BORN = {*CONTAINERS.values(), int, str, float, tuple, bytes, frozenset, complex}


class Tester(Peer):
    """The test's end of the channel: it gives nothing away and believes no object.

    Attributes:
        followed: by object and attribute, what was there at first, and what the program has there.
        outputs: what the test has put in the place of standard output and errors, and its buffers.
        imported: what the program imports from the library, genuine here, by its text.
        packages: installed packages that the test uses, besides `CARRIED`, until an object crosses.
        named: library objects that the test has handed out, which the program may hand back.
        doubts: actions of the test that the border carries only in part. Only the test decides
            them, so no program can cause one. If the test then fails, it is not judged.
        original: containers of the test by key, with the items that they had before the program first
            changed them.
        changed: keys of the containers that the latest operation has changed.
        checked: number of checks that were executed.
        caught, held, fixed: numbers of changed assertions that failed, as they must, and of those that
            held; number of assertions that nothing can change (`checks.change_assertions`).
        complaint: the latest failed assertion that the test raised during a call from the program,
            as long as the program has not passed it on.
    """

    side = "t"

    def __init__(self, channel: Channel, source: str, code: str) -> None:
        super().__init__(channel)
        TestSide.peer, TestSide.reason = self, ""
        sys.argv = [PROGRAM_FILE]
        self.followed: dict[tuple[Any, str], list[Any]] = {}
        self.outputs: list[Any] = []
        for module, name in FOLLOWED:
            self.follow(module, name, getattr(module, name))
        # A generator's `send` may end it where the test says so.
        self.expects_ends = "StopIteration" in source
        if "env" in source:
            self.share_environment()
        self.code, self.imported = code, genuine_imports(code)
        self.doubts: list[str] = []
        self.packages: set[str] = set()
        self.named: Fields = {}
        self.original: dict[str, tuple[Any, list]] = {}
        self.changed: set[str] = set()
        self.checked = self.caught = self.held = self.fixed = 0
        self.complaint: AssertionError | None = None

    # What crosses

    def describe(self, value: Any) -> Fields:
        kind = type(value)
        # Frames and code lead to the expected values.
        if isinstance(value, types.FrameType | types.CodeType):
            raise TypeError(f"a test cannot hand a {kind.__name__} to the program")
        is_function = isinstance(value, types.FunctionType)
        module = kind.__module__
        # What the border carries in part only
        handed = {
            # Awaiting would cross the border in the other direction.
            "a coroutine function, or one with its own annotations": is_function
            and (
                inspect.iscoroutinefunction(value)
                or any(map(is_own, value.__annotations__.values()))
            ),
            "an awaitable": kind is types.CoroutineType
            or module.startswith("asyncio")
            or "Async" in kind.__name__,
            "a class of its own": isinstance(value, type),
            # The program may expect it to be plain data, or to have its fields.
            f"an object of its class {kind.__name__}": is_own(kind)
            and (dataclasses.is_dataclass(value) or not BORN.isdisjoint(kind.__mro__)),
        }
        self.doubts += [f"hands {what} to the program" for what, is_so in handed.items() if is_so]
        if module.partition(".")[0] in self.packages:
            self.doubt_packages()
        if is_function:
            name, long_name, doc = value.__name__, value.__qualname__, value.__doc__
            return {"k": "function", "n": name, "q": long_name, "d": doc}
        # The program gets its class name and its special methods.
        found = {n for part in kind.__mro__[:-1] for n in SPECIALS if vars(part).get(n)}
        return {"k": "object", "n": kind.__name__, "s": sorted(found)}

    def name_of(self, value: Any) -> str | None:
        # Remembered, so that the program can hand back only what it was given.
        if name := genuine_name(value):
            self.named[name] = value
        return name

    def named_value(self, name: Any) -> Any:
        found = self.named.get(name) or find_type(name)
        if found is None:
            raise BorderError(f"the program names {name!r:.40}, which the test has not handed out")
        return found

    def build(self, form: Fields) -> Any:
        if form["k"] == "error class":
            bases = [self.decode(base) for base in form["b"]]
            return error_class(str(form["n"]), form["d"], bases)
        if form["k"] == "object":
            self.doubt_packages()
        return build_handle(form)

    def doubt_packages(self) -> None:
        """Note that an object has crossed in a test that uses packages: theirs cross in part."""
        self.doubts += [
            f"uses {name}, whose objects the border carries only in part" for name in self.packages
        ]
        self.packages = set()

    # Requests of the program that are allowed

    def carry_out(self, operation: str, arguments: list, keywords: Fields) -> Any:
        """Serve the program: what it does to objects that the test has handed out.

        It may call them, read and set attributes of instances, and use the special methods that
        operators and statements call.
        """
        if operation not in ("call", "get", "set", "special"):
            raise BorderError(f"operation {operation!r:.40}")
        # "special" carries the method's name first, then its subject; the others begin with the
        # subject.
        name, subject, *rest = arguments if operation == "special" else ("", *arguments)
        # Only objects that crossed from here by number.
        if id(subject) not in self.own_numbers:
            raise BorderError(f"{operation}: no object of the test")
        is_output = any(subject is output for output in self.outputs)
        # A format string of the program would read any attribute of the test's objects.
        if subject is str.format or subject is str.format_map:
            raise BorderError("formatting by a text of the program's")
        try:
            if operation == "call":
                return subject(*rest, **keywords)
            if operation == "special":
                closed = isinstance(subject, CLOSED)
                if name not in SPECIALS or (name in TEXTS and closed) or is_output:
                    raise BorderError("a special method that no operator calls")
                return method_of(subject, name)(*rest, **keywords)
            self.check_attribute(operation, subject, rest[0], is_output=is_output)
            return getattr(subject, *rest) if operation == "get" else setattr(subject, *rest)
        # The program may catch it: remembered until it comes back through the border.
        except AssertionError as error:
            self.complaint = error
            raise

    def check_attribute(self, operation: str, subject: Any, name: Any, *, is_output: bool) -> None:
        """Raise for attributes that lead to the test's frames or replace its checks."""
        if type(name) is not str:
            raise BorderError("the name of an attribute is no text")
        kinds = type(subject).__mro__
        # The classes that define the attribute, nearest first.
        owners = [kind for kind in kinds if name in vars(kind)]
        refused = any(str(kind.__module__).partition(".")[0] in VERDICTS for kind in owners)
        refused |= name.startswith("_") or isinstance(subject, CLOSED)
        refused |= name in FORMATS and str in kinds
        # Of a generator, only the steps: `gi_frame` leads to the test.
        refused |= kinds[0] is types.GeneratorType and name not in GENERATOR_STEPS
        # What is printed goes to the test, what the test has printed does not go to the program.
        refused |= is_output and name not in WRITING
        # Set only data attributes of instances of the test's own classes.
        if operation == "set":
            refused |= not is_own(kinds[0]) or callable(getattr(kinds[0], name, None))
        if refused:
            raise AttributeError(
                f"a program cannot {operation} {name!r:.40} of this object of the test"
            )

    def checked_error(
        self, error: BaseException, operation: str, arguments: tuple
    ) -> BaseException:
        """Let StopIteration end a loop only if an iterator was asked for its next item."""
        # The assertion has come back to the test: the program did not hide it.
        if isinstance(error, AssertionError):
            self.complaint = None
        # "special" carries the name of the method first, "call method" second.
        is_step = operation == "run task" or (operation == "special" and arguments[0] in STEPS)
        if operation == "call method":
            is_step = arguments[1] in (STEPS | GENERATOR_STEPS if self.expects_ends else STEPS)
        # Otherwise a program could end the test's `for` loop, and its checks, early.
        if isinstance(error, ENDS_LOOPS) and not is_step:
            return RuntimeError(f"the program raised {type(error).__name__}")
        return error

    # What both ends share

    def before_change(self, entry: Shared) -> None:
        # Only of data that come from the test, and only the first change: what the test wrote.
        if entry.key.startswith(self.side):
            self.original.setdefault(entry.key, (entry.container, items_of(entry.container)))
            self.changed.add(entry.key)

    def follow(self, target: Any, name: str, original: Any) -> None:
        """Have the program's attribute of the same object follow the test's from now on."""
        self.followed.setdefault((target, name), [original, original])

    def do(self, operation: str, /, *arguments: Any, **keywords: Any) -> Any:
        """Have the program carry out an operation.

        A function that returns nothing is meant to change its arguments; their new content is then
        what the test means, so the original is dropped.
        """
        for (target, name), known in [*self.followed.items()]:
            original, latest = known
            if (now := getattr(target, name, original)) is not latest:
                known[1] = now
                if name in ("stdout", "stderr"):
                    self.outputs += [now, getattr(now, "buffer", None)]
                value = () if now is original else (now,)
                super().do("patch" if value else "unpatch", target, name, *value)
        self.changed = set()
        result = super().do(operation, *arguments, **keywords)
        if result is None:
            for key in self.changed:
                self.original.pop(key, None)
        return result

    def as_written(self, compute: Callable[[], Any]) -> Any:
        """Compute a value from the test's data as it wrote them, whatever the program did since."""
        if not self.original:
            return compute()
        self.swap()
        try:
            return copy_containers(compute())
        finally:
            self.swap()

    def swap(self) -> None:
        """Exchange what containers hold now for what they held before the program changed them."""
        for key, (container, items) in self.original.items():
            self.original[key] = container, items_of(container)
            fill(container, items)

    # Names of the program

    def names(self) -> set[str]:
        """Wait until the program is loaded; returns its public names, which it then sends."""
        names = self.channel.receive()["names"]
        return {str(name) for name in names if not str(name).startswith("__")} - PREPARATIONS

    @functools.cached_property
    def main(self) -> Any:
        """The program as a module."""
        return self.do("main")

    def fetch(self, name: str) -> Any:
        """Return a handle or value for one name of the program."""
        if name in self.imported:
            return self.imported[name]
        try:
            value = self.do("get", self.main, name)
        except AttributeError:
            raise NameError(f"name {name!r} is not defined") from None
        if isinstance(value, Handle):
            # A name in CapWords is a class: a test that calls it makes objects of its own.
            facts_of(value)["named"] = name[:1].isupper() and "_" not in name
        return value

    def note_check(self) -> None:
        self.checked += 1

    def note_changed(self, holds: Any, is_changed: int) -> bool:
        """Note whether a changed assertion holds. The test goes on as if it were unchanged."""
        self.held += is_changed and bool(holds)
        self.caught += is_changed and not holds
        self.fixed += not is_changed
        return True

    def passes_changed(self) -> bool:
        """Whether a test whose assertions were changed has passed all the same."""
        return self.held > 0 or (not self.caught and self.fixed == self.checked)


def copy_containers(value: Any) -> Any:
    """Copy containers of the test: their content is about to change."""
    kind = type(value)
    if kind is dict:
        return {key: copy_containers(item) for key, item in value.items()}
    return kind(map(copy_containers, value)) if kind in (list, set, tuple) else value


def is_own(kind: Any) -> bool:
    """Whether a class is defined by the test."""
    return isinstance(kind, type) and kind.__module__ == "__main__" and not is_theirs(kind)


def look_for_limits(tester: Tester, source: str, nodes: list[Any]) -> None:
    """Refuse a test that the border cannot carry, and note what it carries in part."""
    read, defined = checks.names_of(nodes)
    imports = checks.imports_of(nodes)
    # An import that is never used does nothing, and a variable is no module of the same name.
    used = [module for module, name in imports if name == "*" or name.partition(".")[0] in read]
    modules = {part for module in used for part in module.split(".")}
    words = checks.words_of(nodes) - (defined - {name for _, name in imports}) | modules
    if runs := {word for word in words if REFUSED.fullmatch(word)}:
        said = f"the test may run code of the program in its own process: {min(runs)}"
        raise cannot_judge(said)
    tester.packages = {m for m in modules if is_genuine(m)} - {*sys.stdlib_module_names, *CARRIED}
    looking = sorted(modules & DOUBTFUL)
    tester.doubts += [f"uses {name}, which the border carries only in part" for name in looking]
    # `x is math.inf`: a handle is never the library's object.
    if any(not name or name in modules for name in checks.IDENTITY.findall(source)):
        tester.doubts.append(
            "asks for identity with an object of the library, matches classes, or looks into arrays"
        )


def run_source(tester: Tester, source: str, *, changed: bool = False) -> None:
    """Run one test as Python would, then what it defines for a framework; raises if it fails.

    Args:
        changed: run it with changed assertions, which `tester` counts.
    """
    # The source, for tracebacks and for the failing line
    tree = ast.parse(source, FILE)
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    # The program's names; waits until it is loaded
    theirs = tester.names()
    # As `__main__`: a test that ends with `if __name__ == "__main__": check(f)` must not pass by
    # doing nothing.
    module = sys.modules["__main__"] = TestModule("__main__", tester.fetch, theirs)
    # No file of the program's folder is ever imported, whatever the test does to sys.path.
    finder = ProgramFinder(TestModule("program", tester.fetch, theirs), source)
    sys.meta_path[:] = [finder if f is PathFinder else f for f in sys.meta_path]
    scope = module.__dict__
    # Functions that the prepared test calls (`checks.prepare`)
    scope |= {
        "__file__": FILE,
        checks.CHECKED: tester.note_check,
        checks.GIVEN: tester.as_written,
        checks.CHANGED: tester.note_changed,
        checks.STRICT: be_strict,
        checks.CALL_METHOD: method_call,
        checks.TYPED: typed,
        checks.TYPE: type_of,
    }
    if changed:
        checks.change_assertions(checks.nodes_of(tree))
    nodes = checks.nodes_of(tree)
    look_for_limits(tester, source, nodes)
    # Repetitions and frameworks, then the program's names
    patches.follow_test(source)
    frameworks.make_fit(source)
    scope |= namespace(tester.fetch, nodes, theirs, tester.imported)
    # Run the file itself
    tests, called = checks.test_names(tree), checks.called_names(tree)
    read, defined = checks.names_of(nodes)
    program = {n for n in (theirs & read) - defined if type(scope.get(n)) is not types.ModuleType}
    program |= {name for module, name in checks.imports_of(nodes) if not is_genuine(module)}
    # A sum of a thousand terms is as deep
    with Deep():
        checks.prepare(nodes, program)
    try:
        exec(compile(tree, FILE, "exec"), scope)
    except SystemExit as end:
        # `sys.exit(0)` at the end of a test is no failure if the test said it itself.
        if end.code not in (None, 0) or not is_own_end(end):
            raise
    # Run what is defined for a framework and is not called by the file itself
    if tests - called:
        frameworks.Runner(scope, defined).run(tests)
    # HumanEval's form: `check(candidate)` that nobody calls means the program's last function.
    if not tester.checked and not tests and callable(check := scope.get("check")):
        functions = [s for s in ast.parse(tester.code).body if isinstance(s, checks.FUNCTIONS)]
        check(tester.fetch([s.name for s in functions if not s.name.startswith("_")][-1]))
    # Verdict: a broken channel or an assertion that the program swallowed is a failure
    if problem := tester.broken or tester.complaint:
        raise problem
    if not tester.checked:
        raise NoCheckError("no assertion was executed")


def is_own_end(error: SystemExit) -> bool:
    """Whether the test itself raised this: neither the program, nor a callback, nor the library."""
    border = Peer.do.__code__.co_filename
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    # `exit()` is a function of _sitebuiltins; `sys.exit()` has no frame, but our `method_call`.
    ours = (FILE, method_call.__code__.co_filename)
    raised_here = files[-1] in ours or "_sitebuiltins" in files[-1]
    return raised_here and not is_theirs(error) and border not in files


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


def run(job: Fields, results: Channel, peer: int) -> None:
    """Run one test and report the outcome, here where no code of the program runs."""
    tester = Tester(Channel(peer), job["test"], job["code"])
    changed = job.get("changed", False)
    try:
        run_source(tester, job["test"].removeprefix("\ufeff"), changed=changed)
        if changed and not tester.passes_changed():
            raise AssertionError("a changed assertion failed, as it must")
    except BaseException as error:  # a test may raise anything, and leaving is not passing
        # A reason for "cannot judge" goes first, then the failure itself.
        reason = TestSide.reason or (
            f"the test {tester.doubts[0]}" if tester.doubts and not tester.broken else ""
        )
        if reason:
            results.send({"cannot": reason})
        results.send(describe_exception(error) | {"line": failing_line(error, job["test"])})
    else:
        results.send({"cannot": TestSide.reason} if TestSide.reason else {"ended": job["sentinel"]})

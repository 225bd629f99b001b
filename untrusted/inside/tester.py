"""The test's process: runs the test's code, while the program runs in another process.

In this process, the program's objects are handles (`handles`); operations on a handle are carried
out in the program's process. So no object of the program decides a comparison, no builtin that the
program has patched is used, and the program cannot reach the frames and the memory of the test.
`Tester.carry_out` limits what the program may request in return. Imports the standard library only.
"""

import ast
import builtins
import copy
import dataclasses
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterator, ValuesView
from contextlib import suppress
from datetime import tzinfo
from functools import cached_property, partial
from importlib.machinery import PathFinder
from itertools import islice
from typing import Any

from untrusted.inside import checks, frameworks, handles, patches, wire
from untrusted.inside.channel import Channel, Fields
from untrusted.inside.containers import CONTAINERS, fill, items_of
from untrusted.inside.frameworks import FILE
from untrusted.inside.handles import NOTHING, Handle, TestSide, cannot_judge, facts_of, is_theirs
from untrusted.inside.names import ProgramFinder, TestModule, genuine_imports, namespace
from untrusted.inside.operations import BINARY, OPERATORS, call_special
from untrusted.inside.packages import find_type, genuine_name, is_genuine, top_of
from untrusted.inside.peer import BorderError, Deep, Peer
from untrusted.inside.program import FILE as PROGRAM_FILE
from untrusted.inside.program import describe_exception

# Modules whose objects can decide a test: they equal anything, skip, or fail.
VERDICTS = {"unittest", "test", "doctest", "pytest", "_pytest", "untrusted"}
# Types of the test's objects that the program may only call, as their attributes lead to other objects.
# Frames and code contain the expected values.
CLOSED = (type, types.FunctionType, types.MethodType, types.ModuleType, partial,
          types.FrameType, types.CodeType, types.TracebackType)  # fmt: skip
# Compared with what the program sends: no method of that may be called, as it could lie.
TEXTS = {"__str__", "__repr__", "__format__"}
# Methods of text that read attributes of their arguments: "{0.__class__}".format(x).
FORMATS = {"format", "format_map"}
# Special methods that operators and statements call: "__add__", "__radd__", "__iadd__", ...
SPECIALS = {*OPERATORS, *(f"__r{name}__" for name in (*BINARY, "divmod"))} | {
    f"__{name}__" for name in ("call", "missing", "enter", "exit", "aenter", "aexit")
}
# What the program may do with objects of the test.
REQUESTS: dict[str, Callable[..., Any]] = {"get": getattr, "set": setattr, "special": call_special}
# Attributes that a test may replace by assignment; the program's process gets the same value.
FOLLOWED = (*((sys, name) for name in ("stdin", "stdout", "stderr", "argv")), (builtins, "input"))
# Names with a meaning for test frameworks, which the program's objects must not have.
PREPARATIONS = {"setUpModule", "tearDownModule", "load_tests", "pytestmark"}
# Attributes of a stream that a program may only write to.
WRITING = {"write", "writelines", "flush", "buffer", "encoding", "errors", "closed", "isatty", "fileno"}  # fmt: skip
# Exceptions that end a loop or a generator, and the methods of generators that may raise them.
ENDS_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)
GENERATOR_STEPS = ("send", "throw", "close")
# Packages that need no doubt: their objects cross as data, or they run tests.
CARRIED = {"numpy", "pytest"}


class Tester(Peer):
    """The test's end of the channel; it reveals no expected value and trusts no program object.

    Attributes:
        followed: attributes that the program's process copies: by object and name, the original
            value and the latest one that the program has.
        outputs: the test's replacements of standard output and error, and their buffers.
        imported: library objects that the program imports, imported again in this process.
        packages: installed packages that the test uses, without `CARRIED`.
        has_crossed: whether an object has crossed that may belong to one of the `packages`.
        named: library objects that the test has passed to the program, which it may name.
        doubts: actions of the test that the border supports only in part. If a test with doubts
            fails, it cannot be judged. All but those about changed data depend on the test alone.
        is_restored: whether the original content of changed containers is being read.
        original: containers of the test by key, with the items that they had before the program
            first changed them.
        changed: keys of the containers that the latest operation has changed.
        identified: values of plain types that the test has compared by `is`.
        checked: number of executed checks.
        held: number of changed assertions that held (`checks.change_assertions`).
        complaint: the latest failed assertion in a function of the test that the program has
            called, until the program passes it on.
    """

    side = "t"

    def __init__(self, channel: Channel, source: str, code: str):
        super().__init__(channel)
        TestSide.peer = self
        TestSide.source = source.removeprefix("\ufeff")
        sys.argv = [PROGRAM_FILE]
        self.followed = {key: [getattr(*key), getattr(*key)] for key in FOLLOWED}
        self.outputs = []
        # The methods that may end a loop; if the test expects it, also `send`.
        self.steps = checks.STEPS + GENERATOR_STEPS * ("StopIteration" in source)
        if "env" in source:
            self.share_environment()
        self.code = code.removeprefix("\ufeff")
        self.imported = genuine_imports(code)
        self.doubts = []
        self.packages = set()
        self.has_crossed = False
        self.named = {}
        self.original = {}
        self.changed = set()
        self.is_restored = False
        self.identified = {}
        self.checked = self.held = 0
        self.complaint = None

    # What crosses

    def describe(self, value) -> Fields:
        kind = type(value)
        is_function = isinstance(value, types.FunctionType)
        module = kind.__module__
        # What the border supports only in part
        is_data = dataclasses.is_dataclass(value) or not handles.PLAIN.isdisjoint(kind.__mro__)
        if (
            # The program may await them, or need their fields, plain value or type; or a date needs
            # its time zone.
            module.startswith(("asyncio", "typing"))
            or "Async" in kind.__name__
            or isinstance(value, type | types.CoroutineType | tzinfo)
            or inspect.iscoroutinefunction(value)
            or (is_function and any(map(is_own, value.__annotations__.values())))
            or (is_own(kind) and is_data)
        ):
            self.doubts.append(f"hands a {kind.__name__} of its own to the program")
        self.has_crossed |= top_of(module) in self.packages
        # In the program, a stand-in has the name of a function, or that and the special methods of the
        # class.
        if is_function:
            return {"k": "function", "n": value.__name__, "d": value.__doc__}
        specials = {n for part in kind.__mro__[:-1] for n in SPECIALS if vars(part).get(n)}
        return {"k": "object", "n": kind.__name__, "s": sorted(specials)}

    def name_of(self, value) -> str | None:
        # The program may name only what it was given.
        if name := genuine_name(value):
            self.named[name] = value
        return name

    def named_value(self, name):
        value = self.named.get(name) or find_type(name)
        if value is None:
            raise BorderError(f"the program names {name!r:.40}, which the test has not handed out")
        return value if name in self.named else handles.catching(value)

    def build(self, form):
        if form["k"] == "error class":
            bases = [self.decode_kind(base) for base in form["b"]]
            return handles.error_class(str(form["n"]), form["d"], bases)
        self.has_crossed |= form["k"] == "object"
        return handles.build_handle(form)

    # Requests of the program

    def carry_out(self, operation, arguments, keywords):
        """Carry out an operation of the program on an object that the test has handed out.

        The program may call it, read and set its attributes, and use the special methods that
        operators and statements call.
        """
        subject, name, *rest = arguments
        if operation not in REQUESTS or self.is_refused(operation, subject, name):
            raise AttributeError(
                f"a program cannot {operation} {name!r:.40} of this object of the test"
            )
        # Its attributes are data of the test, too.
        if operation == "set" and hasattr(subject, "__dict__"):
            key = f"{self.side} {id(subject)}"
            self.original.setdefault(key, (vars(subject), items_of(vars(subject))))
            self.changed.add(key)
        try:
            return REQUESTS[operation](subject, name, *rest, **keywords)
        # The program may catch it: `complaint` is reset when the program passes it on.
        except AssertionError as error:
            self.complaint = error
            raise

    def is_refused(self, operation: str, subject, name) -> bool:
        """Whether an operation leads to the test's frames or values, or replaces its checks."""
        # Only objects that have crossed by number.
        if id(subject) not in self.own_numbers or type(name) is not str:
            return True
        is_output = any(subject is output for output in self.outputs)
        is_closed = isinstance(subject, CLOSED)
        if operation == "special":
            # A format string of the program could read any attribute of the test's objects.
            formats = subject is str.format or subject is str.format_map
            return name not in SPECIALS or (name in TEXTS and is_closed) or formats or is_output
        kinds = type(subject).__mro__
        # The classes that define the attribute, nearest first.
        owners = [kind for kind in kinds if name in vars(kind)]
        return (
            any(top_of(kind.__module__) in VERDICTS for kind in owners)
            or name.startswith("_")
            or is_closed
            or (name in FORMATS and str in kinds)
            # An ExitStack calls what it is given with an exception, and drops that if the result is true.
            or (name.startswith("push") and any(kind.__module__ == "contextlib" for kind in owners))
            # Of a generator, only the steps: `gi_frame` leads to the test.
            or (kinds[0] is types.GeneratorType and name not in GENERATOR_STEPS)
            # The program can write into the test's streams, and read nothing from them.
            or (is_output and name not in WRITING)
            # Set only data attributes of instances of the test's own classes.
            or (
                operation == "set"
                and (not is_own(kinds[0]) or callable(getattr(kinds[0], name, None)))
            )
        )

    # What both ends share

    def before_change(self, entry):
        # Keep the original items of the test's own containers before their first change.
        if entry.key.startswith(self.side):
            self.original.setdefault(entry.key, (entry.container, items_of(entry.container)))
            self.changed.add(entry.key)

    def follow(self, target, name: str, original):
        """Watch an attribute: `do` copies it to the program whenever the test has changed it."""
        self.followed.setdefault((target, name), [original, original])

    def do(self, operation: str, /, *arguments, **keywords):
        """Have the program carry out an operation."""
        for (target, name), known in [*self.followed.items()]:
            original, latest = known
            if (now := getattr(target, name, original)) is not latest:
                known[1] = now
                if name in ("stdout", "stderr"):
                    self.outputs += [now, getattr(now, "buffer", None)]
                super().do("patch", target, name, *(() if now is original else (now,)))
                # The module itself has not been handed out: `sys` has an `exit`.
                self.named.pop(genuine_name(target), None)
        self.changed = set()
        try:
            result = super().do(operation, *arguments, **keywords)
        # The program has passed the assertion on to the test.
        except AssertionError:
            self.complaint = None
            raise
        # Otherwise a program could end the test's `for` loop, and its checks, early, or be taken by a
        # TaskGroup for a task that the test has cancelled.
        except BaseException as error:  # these are no Exceptions
            # In one script, the program would have it: class ListNode
            if type(error) is NameError and error.name in vars(sys.modules["__main__"]):
                self.doubts.append(f"defines {error.name}, which the program uses")
            by_name = operation in ("special", "call method") and arguments[0] in self.steps
            is_end = isinstance(error, ENDS_LOOPS) and not by_name and operation != "run task"
            cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", ())
            if is_end or isinstance(error, cancelled):
                raise RuntimeError(f"the program raised {type(error).__name__}") from error
            raise
        return result

    def forget(self):
        """Drop the original content of what the latest operation was meant to change."""
        for key in self.changed:
            self.original.pop(key, None)

    def as_written(self, compute: Callable[[], Any], only_reads: bool):
        """Compute a value from the test's containers without the program's changes.

        For example, after `data = [2, 1]; result = f(data)`, where `f` empties its list,
        sorted(data) is [1, 2]. But `k = dedupe(data); assert len(data) == k` means the changed data:
        if these give another value, a failure proves nothing.

        Args:
            compute: computes the value.
            only_reads: whether it can be computed twice.
        """
        if not self.original or self.is_restored:
            return compute()
        self.is_restored = True
        written = now = NOTHING
        self.swap()
        try:
            written = copy_containers(compute())
            return written
        finally:
            self.swap()
            if only_reads:
                with suppress(BaseException):
                    now = copy_containers(compute())
            self.is_restored = False
            if written is NOTHING or not are_same(written, now):
                self.doubts.append(changed := "compares with data that the program has changed")
                # Even a comparison that holds may hold for the data as written alone.
                if now is not NOTHING:
                    cannot_judge(f"the test {changed}")

    def swap(self):
        """Exchange the current content of changed containers for their original content."""
        for key, (container, items) in self.original.items():
            self.original[key] = container, items_of(container)
            fill(container, items)

    # Names of the program

    @cached_property
    def program_names(self) -> set[str]:
        """The names that a test may use, which the program sends as soon as it is loaded."""
        names = self.channel.receive()["names"]
        return {str(name) for name in names if not str(name).startswith("__")} - PREPARATIONS

    @cached_property
    def main(self):
        """The program as a module."""
        return self.do("main")

    def fetch(self, name: str):
        """Return a handle or value for one name of the program."""
        if name in self.imported:
            return self.imported[name]
        value = self.do("get", self.main, name)
        # A name in CapWords is a class, other names are not: `class f` may stand for a function.
        is_named = name[:1].isupper() and "_" not in name
        TestSide.names_class |= is_named and isinstance(value, type)
        if isinstance(value, Handle):
            facts_of(value)["named"] = is_named
        return value

    def reason(self) -> str:
        """Return why a failed test cannot be judged; empty if it can."""
        part = "the border carries only in part"
        packages = self.packages if self.has_crossed else ()
        doubts = [*self.doubts, *(f"uses {name}, whose objects {part}" for name in packages)]
        return TestSide.reason or (f"the test {doubts[0]}" if doubts and not self.broken else "")

    # Other methods that a prepared test calls (`checks.prepare`)

    def identify(self, value):
        """Return an operand of `is`. Raises if another one is its equal, maybe as a copy."""
        # Not what cannot be hashed: containers are the same object at both ends.
        with suppress(TypeError):
            same = self.identified.setdefault((type(value), value), value)
            if type(value) in handles.PLAIN and same is not value:
                raise cannot_judge("the test asks whether a value is the same object as its equal")
        return value

    def note_check(self):
        self.checked += 1

    def note_changed(self, holds) -> bool:
        """Count a changed assertion that holds. Returns True, so that the test continues."""
        self.held += bool(holds)
        return True


def copy_containers(value):
    """Copy the containers in a value; list what iterators and views of values yield."""
    kind = type(value)
    if isinstance(value, Handle) or is_own(kind):
        return value
    if issubclass(kind, Iterator | ValuesView):
        return [*map(copy_containers, islice(value, 100_000))]
    if tag := wire.tag_of(value):
        parts, build = wire.TAGS[tag]
        return build(*wire.convert_all(parts(value), copy_containers))
    if kind in CONTAINERS.values() or wire.is_array(value):
        copied = copy.copy(value)
        fill(copied, wire.convert_all(items_of(value), copy_containers))
        return copied
    return value


def are_same(one, other) -> bool:
    """Whether two values are known to be equal; arrays, if all of their elements are."""
    with suppress(Exception):
        if wire.is_frame(one):
            return one.equals(other)
        return one.tobytes() == other.tobytes() if wire.is_array(one) else bool(one == other)
    return False


def is_own(kind) -> bool:
    """Whether a class is defined by the test."""
    return isinstance(kind, type) and kind.__module__ == "__main__" and not is_theirs(kind)


def look_for_limits(tester: Tester, nodes: list[Any]):
    """Raise if the border cannot support a test; record doubts if it does so only in part."""
    if found := checks.REFUSED.search(TestSide.source):
        raise cannot_judge(f"the test may run code of the program in its process: {found[0]:.60}")
    modules = {part for module, _ in checks.imports_of(nodes) for part in module.split(".")}
    tester.packages = {m for m in modules if is_genuine(m)} - {*sys.stdlib_module_names, *CARRIED}
    for part in checks.DOUBTFUL.findall(TestSide.source):
        tester.doubts.append(f"uses `{part}`, which the border carries only in part")


def run_source(tester: Tester, *, changed: bool):
    """Run a test file, then the tests that it defines for a framework; raises if one fails.

    Args:
        changed: run it with changed assertions, which `tester` counts.
    """
    tree = ast.parse(TestSide.source, FILE)
    # Waits until the program is loaded
    _ = tester.program_names
    # The module is `__main__`, so that `if __name__ == "__main__": check(f)` runs.
    module = sys.modules["__main__"] = TestModule("__main__")
    # Never import a file that the program has written, even if the test adds its folder to
    # sys.path.
    finder = ProgramFinder(TestModule("program"))
    sys.meta_path[:] = [finder if f is PathFinder else f for f in sys.meta_path]
    scope = module.__dict__
    scope |= {"__file__": FILE, checks.TESTER: tester, checks.HANDLES: handles}
    if changed:
        checks.change_assertions(checks.nodes_of(tree))
    nodes = checks.nodes_of(tree)
    look_for_limits(tester, nodes)
    # Repetitions and frameworks, then the program's names
    patches.follow_test()
    frameworks.make_fit()
    found, names = namespace(nodes)
    scope |= found
    lend_imports(tester)
    # Run the file itself
    tests = checks.test_names(tree)
    called = checks.called_tests(tree)
    # A sum of a thousand terms is a tree of that depth.
    with Deep():
        checks.prepare(nodes, names)
    try:
        exec(compile(tree, FILE, "exec"), scope)
    except SystemExit as end:
        # A test may end itself by `sys.exit(0)`.
        if end.code not in (None, 0) or not is_own_end(end):
            raise
    # Tests for a framework, unless the file itself has called them
    if tests - called:
        frameworks.Runner(scope, checks.names_of(nodes)[1]).run(tests)
    # HumanEval's tests define `check(candidate)`; the candidate is the program's last function.
    if not tester.checked and not tests and callable(check := scope.get("check")):
        functions = [s for s in ast.parse(tester.code).body if isinstance(s, checks.FUNCTIONS)]
        check(tester.fetch([s.name for s in functions if not s.name.startswith("_")][-1]))
    # Verdict: a broken channel or an assertion that the program swallowed is a failure
    if problem := tester.broken or tester.complaint:
        raise problem
    if not tester.checked and not changed:
        raise AssertionError("no assertion was executed")


def lend_imports(tester: Tester):
    """Give the program the library names that it uses and only the test imports, as in one script."""
    if imported := genuine_imports(TestSide.source):
        read, defined = checks.names_of(checks.nodes_of(ast.parse(tester.code)))
        for name in imported.keys() & read - defined - vars(builtins).keys():
            if genuine_name(imported[name]) or handles.is_plain_data(imported[name]):
                tester.do("patch", tester.main, name, imported[name])


def is_own_end(error: SystemExit) -> bool:
    """Whether the test itself has raised this, not the program, a callback or the library."""
    # `exit()` is defined in _sitebuiltins. `sys.exit()` has no frame of its own, so the last one is
    # that of the test or of `method_call`.
    ours = (FILE, handles.method_call.__code__.co_filename)
    files = [f.f_code.co_filename for f, _ in traceback.walk_tb(error.__traceback__)]
    raised_here = files[-1] in ours or "_sitebuiltins" in files[-1]
    return raised_here and Peer.do.__code__.co_filename not in files and not is_theirs(error)


def describe_failure(error: BaseException) -> Fields:
    """Describe an exception, with the line of the test at which it failed, if known."""
    return describe_exception(error) | {"line": frameworks.line_of(error)}


def run(job: Fields, results: Channel, peer: int):
    """Run one test and report its outcome to the parent."""
    tester = Tester(Channel(peer), job["test"], job["code"])
    changed = job.get("changed", False)
    answer = {"ended": job["sentinel"]}
    try:
        run_source(tester, changed=changed)
        # A test without an assertion that can be changed proves nothing.
        if changed and tester.checked and not tester.held:
            raise AssertionError("a changed assertion failed, as it must")
    except BaseException as error:  # a test may raise anything, and leaving is not passing
        answer = describe_failure(error)
        TestSide.reason = tester.reason()
    results.send({"cannot": TestSide.reason} if TestSide.reason else answer)

"""Run the tests that a file defines for pytest or unittest, after the file itself has run.

Functions and classes of pytest are run here, without pytest; TestCases by unittest. The calls
`unittest.main()` and `pytest.main()` in the file do nothing, as its tests are run anyway. Imports
the standard library only.
"""

import importlib
import inspect
import itertools
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from untrusted.inside import handles, shim
from untrusted.inside.channel import ChannelEndError, Fields
from untrusted.inside.deferred import asyncio, mock, unittest
from untrusted.inside.handles import CannotJudgeError, TestSide, cannot_judge, is_theirs
from untrusted.inside.peer import BorderError

# The name of the test's file.
FILE = "test.py"
# Marks of pytest on a function or class.
Marks = list[Any]


def make_fit():
    """Prepare the frameworks that a test mentions."""
    if "unittest" in TestSide.source:
        module: Any = importlib.import_module("unittest")
        module.main = shim.main
        # For assertIsInstance
        module.case.isinstance = handles.is_instance
    shim.install_shim()


class Runner:
    """Runs the tests of a file.

    Attributes:
        module: holds what the test defines, without objects of the program.
        kept: values of the fixtures of the file that are kept until its end.
        passed: number of tests that have passed.
        xfailed: whether a test has failed that was expected to.
    """

    def __init__(self, scope: Fields, defined: set[str]):
        own = {n: v for n, v in scope.items() if n in defined and not is_theirs(v)}
        self.module = types.ModuleType("test")
        vars(self.module).update(own)
        self.fixtures = shim.FIXTURES | fixtures_in(own.values())
        self.kept = FixtureValues({}, self.fixtures, None)
        self.passed = 0
        self.xfailed = False

    def run(self, tests: set[str]):
        """Run test functions and classes; raises AssertionError if one fails or none passes."""
        with self.kept.stack:
            self.run_members(self.module, vars(self.module), tests, [])
        if not self.passed:
            expected = self.xfailed and cannot_judge("the test expects to fail")
            raise expected or AssertionError("no test was run")

    def run_members(self, holder, members: Fields, tests: set[str], marks: Marks):
        """Run the tests among the members of `holder`, which is a class, or a module for the file.

        Args:
            tests: their names.
            marks: marks of what contains it.
        """
        marks = [*marks, *shim.marks_of(members.get("pytestmark"))]
        is_class = isinstance(holder, type)
        with surround(holder, "class" if is_class else "module", holder):
            # In the order of their definition.
            for name, value in [(n, v) for n, v in members.items() if n in tests]:
                if isinstance(value, type) and is_case(value):
                    self.passed += run_testcase(value)
                elif isinstance(value, type):
                    # Inherited members first
                    bases = reversed(value.__mro__[:-1])
                    inner = {n: getattr(value, n) for base in bases for n in vars(base)}
                    inner_tests = {n for n, v in inner.items() if is_test(n, v)}
                    self.run_members(value, inner, inner_tests, marks)
                elif callable(value):
                    # Each test of a class gets a new object.
                    self.run_function(name, holder() if is_class else holder, members, marks)

    def run_function(self, name: str, holder, members: Fields, marks: Marks):
        """Run a test function for each of its cases.

        Args:
            holder: the object that it is a method of, or the module.
            members: where fixtures are looked up.
        """
        function = getattr(holder, name)
        kind = "function" if isinstance(holder, types.ModuleType) else "method"
        fixtures = self.fixtures | fixtures_in(members.values())
        marks = [*marks, *shim.marks_of(getattr(function, "pytestmark", None))]
        used = [n for m in marks if m.name == "usefixtures" for n in m.arguments]
        used += [fixture.name for fixture in fixtures.values() if fixture.autouse]
        for given, case_marks in cases_of(marks):
            if any(m.name == "skip" or (m.name == "skipif" and m.arguments[0]) for m in case_marks):
                continue
            values = FixtureValues({"self": holder, **given}, fixtures, self.kept)
            try:
                with surround(holder, kind, function), values.stack:
                    needed = parameters_of(function)
                    found = {n: values[n] for n in (*used, *needed)}
                    outcome = function(**given | {n: found[n] for n in needed})
                    if inspect.iscoroutine(outcome):
                        asyncio.run(outcome)
            # No failures of the test: the channel is broken, or the test cannot be judged.
            except (CannotJudgeError, ChannelEndError, BorderError):
                raise
            except (shim.SkippedError, unittest.SkipTest):
                continue
            except BaseException as error:  # a test may raise anything
                expected = [mark.arguments for mark in case_marks if mark.name == "xfail"]
                if not expected:
                    raise failure_of(name, error) from None
                # a condition, `raises` or `strict`, beside a reason
                if any(not isinstance(each, str) for arguments in expected for each in arguments):
                    shim.needs_pytest("the arguments of xfail")
                self.xfailed = True
                continue
            self.passed += 1


class FixtureValues(dict[str, Any]):
    """Values by name, of parameters and of fixtures, which are computed when they are looked up.

    Attributes:
        fixtures: fixtures by name.
        kept: values of the fixtures with a scope larger than a function, for all tests of a file.
        stack: cleans up after the fixtures.
    """

    def __init__(self, values: Fields, fixtures: Fields, kept: "FixtureValues | None"):
        super().__init__(values)
        self.fixtures = fixtures
        self.kept = kept
        self.stack = ExitStack()

    def __missing__(self, name: str):
        if name not in self.fixtures:
            shim.needs_pytest(f"the fixture {name!r}")
        fixture = self.fixtures[name]
        if fixture.is_kept and self.kept is not None:
            return self.kept[name]
        value = fixture.function(**{n: self[n] for n in parameters_of(fixture.function)})
        if inspect.isgenerator(value):
            self.stack.callback(next, value, None)
            value = next(value)
        self[name] = value
        return value


def line_of(error: BaseException) -> str:
    """Return the line of the test at which it failed; empty if it is unknown.

    Read from its text, which `linecache` does not have: objects of the library, such as a Logger, would
    show the program the lines of the stack.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == FILE]
    return TestSide.source.splitlines()[lines[-1] - 1].strip() if lines else ""


def failure_of(name: str, error: BaseException) -> AssertionError:
    """Return the error of a failed test, with the test's name and the reason in one line."""
    text = " ".join(str(error).split()) or line_of(error)
    failure = AssertionError(f"{name}: {type(error).__name__}{': ' * bool(text)}{text}")
    return failure.with_traceback(error.__traceback__)


def is_test(name: str, value) -> bool:
    """Whether a member of a test class is a test."""
    return name.startswith("Test" if isinstance(value, type) else "test")


def is_case(kind: type) -> bool:
    return "unittest" in sys.modules and issubclass(kind, unittest.TestCase)


def run_testcase(kind) -> int:
    """Run a TestCase; returns the number of its tests that have passed."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    result = unittest.TestResult()
    wanted = suite.countTestCases()
    suite.run(result)
    # Report the first problem by its last line: "AssertionError: 3 != 4".
    for test, text in (*result.errors, *result.failures):
        name = getattr(test, "_testMethodName", test)
        raise AssertionError(f"{name}: {text.rstrip().splitlines()[-1]}")
    if result.unexpectedSuccesses or result.testsRun != wanted:
        raise AssertionError(f"{kind.__name__}: not all tests passed")
    return wanted - len(result.skipped)


@contextmanager
def surround(holder, kind: str, argument) -> Iterator[None]:
    """Call the test's `setup_<kind>` and `teardown_<kind>`, with as many arguments as they take."""
    for name in (f"setup_{kind}", f"teardown_{kind}"):
        if name.startswith("teardown"):
            yield
        if callable(function := getattr(holder, name, None)):
            function(*[argument][: len(inspect.signature(function).parameters)])


def parameters_of(function) -> list[str]:
    """List the names of the parameters of a function that have no default."""
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    # Without the first ones, if `mock.patch` as a decorator passes mocks for them.
    patches = getattr(function, "patchings", ())
    return names[sum(p.new is mock.DEFAULT and not p.attribute_name for p in patches) :]


def fixtures_in(values) -> dict[str, shim.Fixture]:
    return {value.name: value for value in values if isinstance(value, shim.Fixture)}


def cases_of(marks) -> Iterator[tuple[Fields, Marks]]:
    """Yield each case of the `parametrize` marks: its arguments by name, and all marks of the case.

    Every row of a table is combined with every row of the others:
    ("a", [1, 2]) and ("b", [3]) -> {"a": 1, "b": 3}, {"a": 2, "b": 3}
    """
    tables = [m.arguments[:2] for m in marks if m.name == "parametrize"]
    for rows in itertools.product(*(rows for _, rows in tables)):
        given = {}
        case_marks = [*marks]
        for (names, _), row in zip(tables, rows, strict=True):
            columns = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
            if isinstance(row, shim.Param):
                case_marks += row.marks
                row = row.values
            elif len(columns) == 1:
                row = (row,)
            given |= dict(zip(columns, row, strict=True))
        yield given, case_marks

"""Run the tests that a file defines for pytest or unittest, after the file itself has run.

Functions and classes of pytest are run here, without pytest; TestCases by unittest. The calls
`unittest.main()` and `pytest.main()` in the file do nothing, as its tests are run anyway. Imports
the standard library only.
"""

import contextlib
import inspect
import itertools
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

from untrusted.inside import shim
from untrusted.inside.channel import ChannelEndError, Fields
from untrusted.inside.deferred import asyncio, mock, unittest
from untrusted.inside.handles import CannotJudgeError, cannot_judge, is_theirs
from untrusted.inside.peer import BorderError


def make_fit(source: str) -> None:
    """Prepare the frameworks that a test mentions."""
    if "unittest" in source:
        unittest.main = shim.main
        asserting = unittest.TestCase.assertSetEqual
        # The original calls methods of the first set, which may be an object of the program.
        unittest.TestCase.assertSetEqual = lambda self, first, second, msg=None: asserting(
            self, set(first), set(second), msg
        )
    shim.install_shim()


class Runner:
    """Runs the tests of a file.

    Attributes:
        own: objects that the test defines, by name, without objects of the program.
        values: values of fixtures with a scope larger than a function, kept until the end of the
            file.
        stack: cleans up after these fixtures.
        passed: number of tests that have passed.
    """

    def __init__(self, scope: Fields, defined: set[str]) -> None:
        self.own = {n: v for n, v in scope.items() if n in defined and not is_theirs(v)}
        self.fixtures = shim.FIXTURES | fixtures_in(self.own.values())
        self.values: dict[Any, Any] = {}
        self.stack = contextlib.ExitStack()
        self.passed = 0

    def run(self, tests: set[str]) -> None:
        """Run test functions and classes; raises AssertionError if one fails or none passes."""
        module = types.ModuleType("test")
        with self.stack, surround(self.own, "module", module):
            # In the order of their definition.
            for name, value in [(n, v) for n, v in self.own.items() if n in tests]:
                if isinstance(value, type) and is_case(value):
                    self.passed += run_testcase(value)
                elif isinstance(value, type):
                    self.run_class(name, value)
                elif callable(value):
                    self.run_function(name, value, self.own, marks_of(self.own.get("pytestmark")))
        if not self.passed:
            raise AssertionError("no test was run")

    def run_class(self, name: str, kind: type) -> None:
        """Run the tests of a class, each on a new object."""
        # Inherited members first, in the order of their definition
        parts = [part for base in reversed(kind.__mro__[:-1]) for part in vars(base)]
        members = {part: getattr(kind, part) for part in parts}
        with surround(members, "class", kind):
            for part, value in members.items():
                # A nested class: name "TestA::TestB"
                if isinstance(value, type) and part.startswith("Test"):
                    self.run_class(f"{name}::{part}", value)
                elif part.startswith("test") and callable(value):
                    instance = kind()
                    methods = {other: getattr(instance, other) for other in members}
                    marks = marks_of(getattr(kind, "pytestmark", None))
                    self.run_function(f"{name}::{part}", methods[part], methods, marks, instance)

    def run_function(
        self, name: str, function: Any, scope: Fields, marks: list[Any], owner: Any = None
    ) -> None:
        """Run a test function for each of its cases.

        Args:
            scope: where `setup_function` and the like are looked up.
            marks: marks of its class.
            owner: the object that it is a method of.
        """
        fixtures = self.fixtures | fixtures_in(scope.values())
        marks = [*marks, *marks_of(getattr(function, "pytestmark", None))]
        used = [n for m in marks if m.name == "usefixtures" for n in m.arguments]
        used += [fixture.name for fixture in fixtures.values() if fixture.autouse]
        # The list grows while the loop reads it, because fixtures need other fixtures.
        needed = list(dict.fromkeys([*used, *parameters_of(function)]))
        for wanted in needed:
            if fixture := fixtures.get(wanted):
                needed += [n for n in parameters_of(fixture.function) if n not in needed]
                # The parameters of a fixture become another table, under ".name".
                if fixture.params is not None:
                    marks.append(shim.Mark("parametrize", (f".{wanted}", fixture.params)))
        for given, case_marks in cases_of(marks):
            if any(m.name == "skip" or (m.name == "skipif" and m.arguments[0]) for m in case_marks):
                continue
            may_fail = any(mark.name == "xfail" for mark in case_marks)
            call = FunctionRun(self, fixtures, owner, given)
            if call.run(name, function, scope, used, may_fail=may_fail):
                self.passed += 1


class FunctionRun:
    """One call of a test function, with its fixtures.

    Attributes:
        given: parameters of this call by name; ".name" is the parameter of the fixture `name`.
        values: values of the fixtures so far.
    """

    def __init__(
        self, runner: Runner, fixtures: dict[str, shim.Fixture], owner: Any, given: dict
    ) -> None:
        self.runner, self.fixtures, self.owner, self.given = runner, fixtures, owner, given
        self.stack = contextlib.ExitStack()
        self.values: dict[Any, Any] = {}

    def value_of(self, name: str) -> Any:
        """Return the value of a fixture, which is computed on first use."""
        if name not in self.fixtures:
            raise cannot_judge(f"the test needs the fixture {name!r:.60} of pytest")
        fixture = self.fixtures[name]
        keeper = self.runner if fixture.is_kept else self
        if fixture not in keeper.values:
            keeper.values[fixture] = self.make(fixture, keeper.stack)
        return keeper.values[fixture]

    def make(self, fixture: shim.Fixture, stack: contextlib.ExitStack) -> Any:
        """Compute the value of a fixture; `stack` runs the code after its `yield`."""
        names = parameters_of(fixture.function)
        request = types.SimpleNamespace(param=self.given.get(f".{fixture.name}"))
        special = {"request": request, "self": self.owner}
        arguments = {n: special[n] if n in special else self.value_of(n) for n in names}
        value = fixture.function(**arguments)
        if not inspect.isgenerator(value):
            return value
        stack.callback(next, value, None)
        return next(value)

    def run(
        self, name: str, function: Any, scope: dict, used: list[str], *, may_fail: bool
    ) -> bool:
        """Call the function; returns whether it has passed, or has failed as expected."""
        kind = "method" if self.owner is not None else "function"
        values = {n: v for n, v in self.given.items() if n.isidentifier()}
        try:
            with surround(scope, kind, function), self.stack:
                for fixture in used:
                    self.value_of(fixture)
                names = [n for n in parameters_of(function) if n not in values]
                outcome = function(**values, **{n: self.value_of(n) for n in names})
                if inspect.iscoroutine(outcome):
                    asyncio.run(outcome)
        # These are not failures of the test: the channel is broken, or the test cannot be judged.
        except (CannotJudgeError, ChannelEndError, BorderError):
            raise
        except (shim.SkippedError, unittest.SkipTest):
            return False
        except BaseException as error:  # a test may raise anything
            if not may_fail:
                raise failure_of(name, error) from None
        return True


def failure_of(name: str, error: BaseException) -> AssertionError:
    """Return the error of a failed test, with the test's name and the reason in one line."""
    text = " ".join(str(error).split()) or traceback.extract_tb(error.__traceback__)[-1].line or ""
    failure = AssertionError(f"{name}: {type(error).__name__}{': ' * bool(text)}{text}")
    return failure.with_traceback(error.__traceback__)


def is_case(kind: type) -> bool:
    return "unittest" in sys.modules and issubclass(kind, unittest.TestCase)


def run_testcase(kind: Any) -> int:
    """Run a TestCase; returns the number of its tests that have passed."""
    suite, result = unittest.defaultTestLoader.loadTestsFromTestCase(kind), unittest.TestResult()
    wanted = suite.countTestCases()
    suite.run(result)
    # Report the first problem by its last line: "AssertionError: 3 != 4".
    for test, text in (*result.errors, *result.failures):
        lines = [line for line in text.splitlines() if line.strip()]
        name = getattr(test, "_testMethodName", test)
        raise AssertionError(f"{name}: {lines[-1] if lines else 'failed'}")
    if result.unexpectedSuccesses or result.testsRun != wanted:
        raise AssertionError(f"{kind.__name__}: not all tests passed")
    return wanted - len(result.skipped)


@contextlib.contextmanager
def surround(scope: Fields, kind: str, argument: Any) -> Iterator[None]:
    """Call the test's `setup_<kind>` and `teardown_<kind>`, with as many arguments as they take."""
    for name in (f"setup_{kind}", f"teardown_{kind}"):
        if name.startswith("teardown"):
            yield
        if callable(function := scope.get(name)):
            function(*[argument][: len(inspect.signature(function).parameters)])


def parameters_of(function: Any) -> list[str]:
    """List the names of the parameters of a function that have no default."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
    # Without the first ones, if `mock.patch` as a decorator passes mocks for them.
    patches = [p for p in getattr(function, "patchings", ()) if not p.attribute_name]
    return names[sum(patch.new is mock.DEFAULT for patch in patches) :]


def marks_of(marks: Any) -> list[Any]:
    """Return the value of `pytestmark` as a list; it is a mark, several, or None."""
    return list(marks) if isinstance(marks, list | tuple) else [marks] * (marks is not None)


def fixtures_in(values: Any) -> dict[str, shim.Fixture]:
    return {value.name: value for value in values if isinstance(value, shim.Fixture)}


def cases_of(marks: Any) -> Iterator[tuple[Fields, list[Any]]]:
    """Yield each case of the `parametrize` marks: its arguments by name, and all marks of the case.

    Every row of a table is combined with every row of the others:
    ("a", [1, 2]) and ("b", [3]) -> {"a": 1, "b": 3}, {"a": 2, "b": 3}
    """
    tables = [m.arguments[:2] for m in marks if m.name == "parametrize"]
    for rows in itertools.product(*(list(rows) for _, rows in tables)):
        given: Fields = {}
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

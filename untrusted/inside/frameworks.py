"""Run what a test file defines for a framework.

Our own runner runs functions, unittest runs TestCases, pytest the rest. The file itself has already
run. `unittest.main()` and `pytest.main()` in it do nothing: their work is done here, once. Only the
standard library is imported at the top of this module.
"""

import ast
import importlib
import importlib.util
import inspect
import os
import traceback
import types
from typing import Any

from untrusted.inside import shim
from untrusted.inside.channel import ChannelEndError
from untrusted.inside.deferred import asyncio, tempfile, unittest
from untrusted.inside.handles import CannotJudgeError, ask, cannot_judge, is_theirs
from untrusted.inside.patches import patch_there
from untrusted.inside.peer import BorderError

# pytest without plugins, caches, configuration files or rewritten assertions.
OPTIONS = (
    "--assert=plain", "--capture=sys", "--noconftest", "--disable-plugin-autoload", "--import-mode=importlib",
    *("-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:terminal", "-p", "no:doctest", "-c", "/dev/null"),
)  # fmt: skip


def needs_pytest(nodes: list[ast.AST]) -> bool:
    """Whether a test uses more of pytest than `shim` provides."""
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "pytest"
        ):
            if node.attr not in shim.NAMES:
                return True
        elif isinstance(node, ast.Attribute) and node.attr in ("usefixtures", "pytestmark"):
            return True
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pytest":
            if any(alias.name not in shim.NAMES for alias in node.names):
                return True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            known = any("parametrize" in mark for mark in marks) or any(
                "patch" in mark for mark in marks
            )
            # What remains are fixtures that `shim` does not have.
            names = {argument.arg for argument in node.args.args} - {"self", "cls", *shim.FIXTURES}
            # Arguments may come from a decorator of the function or of its class.
            if (
                names
                and not known
                and not any("parametrize" in m for m in class_marks(nodes, node))
            ):
                return True
    return False


def class_marks(nodes: list[ast.AST], function: ast.AST) -> list[str]:
    owners = [node for node in nodes if isinstance(node, ast.ClassDef) and function in node.body]
    return [ast.unparse(mark) for owner in owners for mark in owner.decorator_list]


def make_fit(source: str, nodes: list[ast.AST]) -> bool:
    """Prepare the frameworks that a test mentions; returns whether it needs pytest itself.

    Raises CannotJudgeError if it needs pytest and pytest is not installed.
    """
    if "unittest" in source:
        unittest.main = shim.main
    if not needs_pytest(nodes):
        shim.install_shim()
        return False
    if not importlib.util.find_spec("pytest"):
        raise cannot_judge("the test needs pytest, which is not installed: pip install pytest")
    importlib.import_module("pytest").main = shim.main  # pyright: ignore[reportAttributeAccessIssue]
    return True


# Our own runner


def run_ourselves(scope: dict[str, Any], tests: set[str], defined: set[str]) -> None:
    """Run test functions and classes; raises AssertionError unless one passed and none failed."""
    # Preparations are the test's own: the program may have functions of the same names.
    own = {name: value for name, value in scope.items() if name in defined and not is_theirs(value)}
    passed = 0
    call_preparation(own, "setup_module", types.ModuleType("test"))
    # In the order of their definition, as frameworks run them.
    for name in [name for name in scope if name in tests]:
        value = scope[name]
        if isinstance(value, type) and is_case(value):
            passed += run_testcase(value)
        elif isinstance(value, type):
            passed += run_class(name, value)
        elif callable(value):
            passed += run_function(name, value, own, value, [])
    call_preparation(own, "teardown_module", types.ModuleType("test"))
    if not passed:
        raise AssertionError("no test was run")


def is_case(kind: type) -> bool:
    return any(
        base.__name__ == "TestCase" and base.__module__ == "unittest.case" for base in kind.__mro__
    )


def run_testcase(kind: Any) -> int:
    """Run a TestCase; returns the number of its tests that passed."""
    suite, result = unittest.defaultTestLoader.loadTestsFromTestCase(kind), unittest.TestResult()
    wanted = suite.countTestCases()
    suite.run(result)
    # The first problem ends it, reported by its last line: "AssertionError: 3 != 4".
    for test, text in (*result.errors, *result.failures):
        said = [line for line in text.splitlines() if line.strip()]
        raise AssertionError(
            f"{getattr(test, '_testMethodName', test)}: {said[-1] if said else 'failed'}"
        )
    if result.unexpectedSuccesses or result.testsRun != wanted:
        raise AssertionError(f"{kind.__name__}: not all tests passed")
    return wanted - len(result.skipped)


def run_class(name: str, kind: type) -> int:
    """Run the tests of a class, each on a new object; returns the number that passed."""
    members = {part: getattr(kind, part) for part in order_of(kind)}
    call_preparation(members, "setup_class")
    passed = 0
    for part, value in members.items():
        # A nested class: name "TestA::TestB"
        if isinstance(value, type) and part.startswith("Test"):
            passed += run_class(f"{name}::{part}", value)
        elif part.startswith("test") and callable(value):
            made = kind()
            methods = {other: getattr(made, other) for other in members}
            marks = [*getattr(kind, "pytestmark", ())]
            passed += run_function(f"{name}::{part}", methods[part], methods, value, marks)
    call_preparation(members, "teardown_class")
    return passed


def order_of(kind: type) -> list[str]:
    """List the members of a class, inherited ones first, in the order of their definition."""
    return list(dict.fromkeys(name for part in reversed(kind.__mro__[:-1]) for name in vars(part)))


def call_preparation(scope: dict[str, Any], name: str, *arguments: Any) -> None:
    """Call a preparation if the test defines it, with as many arguments as it takes."""
    function = scope.get(name)
    if callable(function):
        wanted = len(inspect.signature(function).parameters)
        function(*arguments[:wanted])


def run_function(
    name: str, function: Any, scope: dict[str, Any], marked: Any, marks: list[Any]
) -> int:
    """Run a test function for each of its cases; returns the number that passed.

    Args:
        scope: where `setup_function` and the like are looked up.
        marked: object that carries the marks; `marks` come from its class.
    """
    marks = [*marks, *getattr(marked, "pytestmark", ())]
    kind = "method" if inspect.ismethod(function) else "function"
    passed = 0
    for given, own in shim.cases_of(marks):
        if shim.reason_to_skip([*marks, *own]):
            continue
        # Fixtures that the function takes, without the parameters of the case
        wanted = [part for part in inspect.signature(function).parameters if part in shim.FIXTURES]
        may_fail = any(mark.name == "xfail" for mark in [*marks, *own])
        try:
            call_preparation(scope, f"setup_{kind}", function)
            with shim.fixtures([part for part in wanted if part not in given]) as made:
                outcome = function(**given, **made)
                if inspect.iscoroutine(outcome):
                    asyncio.run(outcome)
            call_preparation(scope, f"teardown_{kind}", function)
        # These are no failures of the test: the channel is broken, or there is no verdict.
        except (CannotJudgeError, ChannelEndError, BorderError):
            raise
        except shim.SkippedError:
            continue
        except BaseException as error:  # a test may raise anything
            # xfail: a failure counts as passed, and so does a pass.
            if not may_fail:
                text = (
                    " ".join(str(error).split())
                    or traceback.extract_tb(error.__traceback__)[-1].line
                    or ""
                )
                failure = AssertionError(f"{name}: {type(error).__name__}{': ' * bool(text)}{text}")
                raise failure.with_traceback(error.__traceback__) from None
        passed += 1
    return passed


# pytest itself


def run(module: Any, tests: set[str], defined: set[str]) -> None:
    """Run the tests of a module with pytest; raises AssertionError unless all of them passed.

    Args:
        tests: names of the functions and classes to run.
        defined: names that the test defines: only these can be fixtures, preparations and marks.
    """
    import pytest
    from _pytest.monkeypatch import MonkeyPatch

    follow_monkeypatch(MonkeyPatch)
    failures: list[str] = []
    passed: list[str] = []
    # Collected and not run yet: pytest may be made to stop early and still exit with 0.
    missing: set[str] = set()
    # A module with the test's own names only
    own = types.ModuleType(module.__name__)
    named = {name: value for name, value in vars(module).items() if name in defined}
    own.__dict__.update((name, value) for name, value in named.items() if not is_theirs(value))

    class Prepared(pytest.Module):
        def _getobj(self) -> Any:
            return own

    class Plugin:
        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
            return Prepared.from_parent(parent, path=module_path)

        def pytest_pycollect_makeitem(self, collector: Any, name: str, obj: Any) -> Any:
            # An object that the program calls a test is none.
            return [] if isinstance(collector, Prepared) and name not in tests else None

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
            # pytest itself does not await.
            if not inspect.iscoroutinefunction(pyfuncitem.obj):
                return None
            names = pyfuncitem._fixtureinfo.argnames
            asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
            return True

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                # "test_program.py::test_a" -> "test_a"
                failures.append(f"{report.nodeid.partition('::')[2]}: {reason(report)}")
            elif report.passed and report.when == "call":
                passed.append(report.nodeid)
            if report.when == "call" or report.skipped:
                missing.discard(report.nodeid)

        @pytest.hookimpl(trylast=True)
        def pytest_itemcollected(self, item: Any) -> None:
            missing.add(item.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                failures.append(reason(report))

    status = run_pytest(Plugin())
    if failures:
        raise AssertionError(failures[0])
    if status != pytest.ExitCode.OK or missing:
        raise AssertionError(f"not all tests were run (pytest ended with {status})")
    if not passed:
        raise AssertionError(f"no test was run (pytest ended with {status})")


def run_pytest(plugin: Any) -> int:
    """Run pytest on an empty file, whose content the plugin provides; returns the exit status."""
    from _pytest.config import main

    # The options are ours alone, and the environment may come from the program.
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/test_program.py"
        open(path, "x").close()
        places = (f"--rootdir={folder}", f"--confcutdir={folder}", f"--basetemp={folder}/tmp")
        return int(main([*OPTIONS, *places, path], plugins=[plugin]))


def reason(report: Any) -> str:
    """Return in one line why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line for line in text.splitlines() if line.strip()), "failed")


def follow_monkeypatch(kind: Any) -> None:
    """Repeat in the program what `monkeypatch` sets in a module."""
    set_here, undo_here = kind.setattr, kind.undo
    patched: list[tuple[Any, str]] = []

    def set_both(self: Any, target: Any, name: Any, *value: Any, **keywords: Any) -> None:
        set_here(self, target, name, *value, **keywords)
        # setattr("os.path.exists", f): the target is the module, the name the last part.
        if isinstance(target, str):
            path, _, name = target.rpartition(".")
            target = shim.dotted(path)
        if patch_there(target, name):
            patched.append((target, name))

    def undo_both(self: Any) -> None:
        undo_here(self)
        while patched:
            ask("unpatch", *patched.pop())

    kind.setattr, kind.undo = set_both, undo_both

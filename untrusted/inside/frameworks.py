"""Run what a test defines for pytest and unittest, by pytest itself. Imports the standard library at its top only.

A test is a file for its framework: its functions `test_*`, its classes and its fixtures are collected from the module
that has run already. `unittest.main()` and `pytest.main()` in it do nothing: their work is done here, once.
"""

import importlib.util
import inspect
import os
import sys
import types
from typing import Any

from untrusted.inside.deferred import asyncio, tempfile
from untrusted.inside.handles import ask, is_theirs
from untrusted.inside.patches import patch_there

OPTIONS = (
    "--assert=plain", "--capture=sys", "--noconftest", "--disable-plugin-autoload", "--import-mode=importlib",
    *("-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:terminal", "-p", "no:doctest", "-c", "/dev/null"),
)  # fmt: skip


def do_nothing(*_: Any, **__: Any) -> None:
    """Stand in for the `main` of a framework."""


def make_fit(source: str) -> None:
    """Take the `main` from the frameworks that a test mentions: what it would run is run afterwards."""
    if "unittest" in source:
        import unittest

        unittest.main = do_nothing  # pyright: ignore[reportAttributeAccessIssue]
    if "pytest" in source and importlib.util.find_spec("pytest"):
        import pytest

        pytest.main = do_nothing  # pyright: ignore[reportAttributeAccessIssue]


def run(module: Any, tests: set[str], defined: set[str]) -> None:
    """Run the tests of a module by pytest; raises AssertionError unless all of them passed.

    Args:
        defined: names that the test defines: fixtures, preparations and marks are looked for among these alone.
    """
    import pytest
    from _pytest.monkeypatch import MonkeyPatch

    follow_monkeypatch(MonkeyPatch)
    failures: list[str] = []
    passed: list[str] = []
    missing: set[str] = set()
    own = part_of(module, defined)

    class Prepared(pytest.Module):
        def _getobj(self) -> Any:
            return own

    class Plugin:
        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
            return Prepared.from_parent(parent, path=module_path)

        def pytest_pycollect_makeitem(self, collector: Any, name: str, obj: Any) -> Any:
            # What the program calls a test is none.
            return [] if isinstance(collector, Prepared) and name not in tests else None

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
            if not inspect.iscoroutinefunction(pyfuncitem.obj):
                return None
            names = pyfuncitem._fixtureinfo.argnames
            asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
            return True

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
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


def part_of(module: Any, defined: set[str]) -> types.ModuleType:
    """Return a module that has of another one only what the test defines."""
    part = types.ModuleType(module.__name__)
    named = {name: value for name, value in vars(module).items() if name in defined}
    part.__dict__.update((name, value) for name, value in named.items() if not is_theirs(value))
    return part


def run_pytest(plugin: Any) -> int:
    """Run pytest on an empty file, whose content a plugin provides; returns its exit status."""
    from _pytest.config import main

    # Options are ours, and the environment may be the program's.
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/test_program.py"
        open(path, "x").close()
        places = (f"--rootdir={folder}", f"--confcutdir={folder}", f"--basetemp={folder}/tmp")
        return int(main([*OPTIONS, *places, path], plugins=[plugin]))


def reason(report: Any) -> str:
    """Say in one line why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line for line in text.splitlines() if line.strip()), "failed")


def follow_monkeypatch(kind: Any) -> None:
    """Have what `monkeypatch` sets in a module of the standard library set for the program too."""
    set_here, undo_here = kind.setattr, kind.undo
    patched: list[tuple[Any, str]] = []

    def set_both(self: Any, target: Any, name: Any, *value: Any, **keywords: Any) -> None:
        set_here(self, target, name, *value, **keywords)
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            target, name = sys.modules.get(module), attribute
        if patch_there(target, name):
            patched.append((target, name))

    def undo_both(self: Any) -> None:
        undo_here(self)
        while patched:
            ask("unpatch", *patched.pop())

    kind.setattr, kind.undo = set_both, undo_both

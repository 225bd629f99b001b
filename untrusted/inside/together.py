"""Run a program and its test in one process, as plain Python does, without a border.

The process is confined, but the program can fake the verdict. Imports the standard library, and
pytest if it is installed.
"""

import ast
import importlib.util
import sys

from untrusted.inside import checks, frameworks, shim
from untrusted.inside.channel import Channel, Fields
from untrusted.inside.deferred import tempfile
from untrusted.inside.handles import TestSide
from untrusted.inside.names import ProgramFinder
from untrusted.inside.program import load_program, show_lines
from untrusted.inside.tester import FILE, describe_failure

# pytest without plugins, caches, configuration files, metadata of packages or rewritten assertions.
OPTIONS = """
    --assert=plain --noconftest --disable-plugin-autoload --import-mode=importlib --no-header
    -c /dev/null -p no:cacheprovider -p no:faulthandler -p no:doctest
""".split()  # noqa: SIM905 (a table, not a list)


def run_in_one(job: Fields, results: Channel):
    """Run a program and its test, and report the outcome to the parent."""
    TestSide.source = job["test"]
    try:
        scope = load_program(job["code"], job.get("prelude", ""), "program")
        # the test's own `if __name__ == "__main__":` runs
        scope["__name__"] = "__main__"
        sys.meta_path.append(ProgramFinder(sys.modules["__main__"]))
        show_lines(FILE, job["test"])
        tree = ast.parse(job["test"], FILE)
        by_pytest = importlib.util.find_spec("pytest") is not None
        frameworks.make_fit()
        if by_pytest:
            del sys.modules["pytest"]
            importlib.import_module("pytest").main = shim.main  # pyright: ignore[reportAttributeAccessIssue]
        exec(compile(tree, FILE, "exec"), scope)
        own = checks.names_of(checks.nodes_of(tree))[1] & scope.keys()
        if tests := checks.test_names(tree):
            run_pytest(own) if by_pytest else frameworks.Runner(scope, own).run(tests)
    except BaseException as error:  # whatever was raised, the test has not passed
        cannot = {"cannot": TestSide.reason} if TestSide.reason else {}
        results.send(describe_failure(error) | cannot)
    else:
        results.send({"ended": job["sentinel"]})


def run_pytest(own: set[str]):
    """Run tests of `__main__` with pytest; raises AssertionError unless all of them passed.

    Args:
        own: names that the test defines, because objects of the program are never tests.
    """
    from _pytest.config import main

    failures = []

    class Plugin:
        def pytest_runtest_logreport(self, report):
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                failures.append(crash.message if crash is not None else str(report.longrepr))

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/test_program.py"
        with open(path, "x") as file:
            file.write(f"from __main__ import {', '.join(own)}\n")
        # The folders above must not be listed.
        where = [f"--rootdir={folder}", f"--confcutdir={folder}", f"--basetemp={folder}/tmp"]
        status = main([*OPTIONS, *where, path], [Plugin()])
    if status:
        raise AssertionError(failures[0] if failures else f"pytest ended with {status}")

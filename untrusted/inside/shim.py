"""The part of pytest that most tests use: raises, approx, marks, fixtures.

A test that uses more of pytest cannot be judged. Imports the standard library only.
"""

import contextlib
import importlib
import io
import os
import re
import sys
import types
from collections import deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from untrusted.inside.channel import Fields
from untrusted.inside.deferred import cmath, mock, tempfile
from untrusted.inside.handles import cannot_judge
from untrusted.inside.wire import is_array, numpy_kind

MISSING = object()
NUMBERS = (int, float, complex, Decimal, Fraction)
SEQUENCES = (list, tuple, range, deque)
Captured = namedtuple("Captured", "out err")
Param = namedtuple("Param", "values marks")


class FailedError(AssertionError):
    """Raised by `fail`, and by `raises` if no exception was raised."""


class SkippedError(BaseException):
    """Raised by `skip`."""


def fail(reason: str = "", pytrace: bool = True):
    raise FailedError(reason)


def skip(reason: str = "", **_):
    raise SkippedError(reason)


# Tests catch these as `pytest.fail.Exception`.
fail.Exception, skip.Exception = FailedError, SkippedError  # type: ignore[attr-defined]


def needs_pytest(*names: Any):
    """Refuse an attribute: the `__getattr__` of the module, or of a class, which comes first."""
    if names[-1].startswith("__"):
        raise AttributeError(names[-1])
    raise cannot_judge(f"the test needs pytest itself, for {names[-1]:.60}")


def main(*_, **__):
    """Do nothing: the tests of the file are run afterwards."""


class ExceptionInfo:
    """Holds the exception that `raises` has caught."""

    value: Any = None
    type = property(lambda self: type(self.value))
    typename = property(lambda self: type(self.value).__name__)
    tb = property(lambda self: self.value.__traceback__)

    def match(self, pattern) -> bool:
        """Raise FailedError unless the pattern matches somewhere in the exception's text."""
        if not re.search(pattern, str(self.value)):
            raise FailedError(f"{str(self.value)!r} does not match {pattern!r}")
        return True


@contextlib.contextmanager
def expecting(expected, pattern=None) -> Iterator[ExceptionInfo]:
    info = ExceptionInfo()
    try:
        yield info
    except expected as error:
        info.value = error
    else:
        raise FailedError(f"did not raise {expected}")
    if pattern is not None:
        info.match(pattern)


def raises(expected_exception, *call, match=None, **keywords):
    """Expect an exception from a block, or from a call: `raises(E)`, `raises(E, f, 1)`."""
    if not call:
        return expecting(expected_exception, match)
    with expecting(expected_exception) as info:
        call[0](*call[1:], **keywords)
    return info


@dataclass(eq=False, repr=False)
class Approx:
    """Equals numbers that are close to the expected ones, also in lists, tuples, dictionaries."""

    expected: Any
    rel: Any = None
    abs: Any = None
    nan_ok: bool = False

    def __eq__(self, actual) -> bool:
        return self.near(actual, self.expected)

    # numpy leaves the comparison of its arrays to `__eq__`.
    __hash__ = __array_ufunc__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def near(self, actual, expected) -> bool:
        """Whether values are equal, or numbers within the tolerance; containers item by item."""
        expected = without_numpy(expected)
        # A number is compared with every item of an array.
        if is_array(actual) and isinstance(expected, NUMBERS):
            return actual.size > 0 and all(self.near(item, expected) for item in actual.flat)
        actual = without_numpy(actual)
        if isinstance(expected, dict):
            same = isinstance(actual, dict) and actual.keys() == expected.keys()
            return same and all(self.near(actual[key], value) for key, value in expected.items())
        if isinstance(expected, SEQUENCES):
            same = isinstance(actual, SEQUENCES) and len(actual) == len(expected)
            return same and all(map(self.near, actual, expected))
        if actual == expected or isinstance(expected, bool):
            return actual == expected
        if not (isinstance(expected, NUMBERS) and isinstance(actual, NUMBERS)):
            return False
        if expected != expected:
            return self.nan_ok and actual != actual
        # pytest's defaults: 1e-6 of the expected value, at least 1e-12; with `abs` alone, there is
        # no relative tolerance.
        relative = self.rel if self.rel is not None else 1e-6 if self.abs is None else 0
        smallest = 1e-12 if self.abs is None else self.abs
        # `rel_tol` would be relative to the larger of the two numbers.
        tolerance = max(float(relative) * abs(complex(expected)), smallest)
        return cmath.isclose(actual, expected, rel_tol=0, abs_tol=tolerance)


approx = Approx


def without_numpy(value):
    """Return an array as lists, and a number of numpy as one of Python."""
    return value.tolist() if is_array(value) or numpy_kind(value) == "number" else value


# Marks


def marks_of(marks) -> list[Any]:
    """Return the value of `pytestmark` as a list; it is a mark, several, or None."""
    return list(marks) if isinstance(marks, list | tuple) else [marks] * (marks is not None)


def param(*values, id=None, marks=()) -> Param:
    return Param(values, marks_of(marks))


@dataclass
class Mark:
    """A decorator that adds itself to the `pytestmark` of a test; it may have arguments."""

    name: str
    arguments: tuple = ()

    def __call__(self, *arguments, **keywords):
        if keywords.get("indirect"):
            needs_pytest("indirect parameters")
        marked = arguments[0] if len(arguments) == 1 and not keywords else None
        # `mark.skip` may decorate directly, `mark.parametrize` is always called with arguments first.
        needs_arguments = not self.arguments and self.name == "parametrize"
        if needs_arguments or not isinstance(marked, types.FunctionType | type):
            # `parametrize(argnames="a", argvalues=[1])`, `skipif(condition=True, reason="")`
            return Mark(self.name, (*arguments, *keywords.values()))
        setattr(marked, "pytestmark", [*vars(marked).get("pytestmark", ()), self])  # noqa: B010 pyright knows no such attribute
        return marked


class Marks:
    """`pytest.mark`: any name is a mark."""

    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


mark = Marks()


# Fixtures


class Fixture:
    """A fixture: a function that returns a value, or yields one and then cleans up."""

    def __init__(self, function, settings: Fields):
        if "params" in settings or settings.get("scope") == "class":
            needs_pytest("a fixture with params or of a class")
        self.function = function
        self.name = settings.get("name") or function.__name__
        self.autouse = settings.get("autouse", False)
        self.is_kept = settings.get("scope", "function") != "function"


def fixture(function=None, **settings) -> Any:
    return Fixture(function, settings) if function else partial(Fixture, settings=settings)


class Capsys:
    """Holds what is printed while a test runs."""

    def __init__(self):
        self.out = io.StringIO()
        self.err = io.StringIO()

    __getattr__ = needs_pytest

    def readouterr(self) -> Captured:
        """Return what has been printed since the previous call."""
        captured = Captured(self.out.getvalue(), self.err.getvalue())
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return captured


class MonkeyPatch(contextlib.ExitStack):
    """Makes changes that are undone after the test, with `mock.patch`, so the program follows."""

    def setattr(self, target, name, value=MISSING, raising: bool = True):
        # setattr("os.path.exists", f)
        if value is MISSING:
            self.enter_context(mock.patch(target, name, create=not raising))
        else:
            self.enter_context(mock.patch.object(target, name, value, create=not raising))

    def setitem(self, mapping, key, value):
        self.enter_context(mock.patch.dict(mapping, {key: value}))

    def delitem(self, mapping, key, raising: bool = True):
        self.enter_context(mock.patch.dict(mapping))
        if key in mapping or raising:
            del mapping[key]

    def setenv(self, name: str, value, prepend: str | None = None):
        if prepend:
            needs_pytest("setenv(prepend)")
        self.setitem(os.environ, name, str(value))

    def delenv(self, name: str, raising: bool = True):
        self.delitem(os.environ, name, raising)

    def chdir(self, path):
        self.enter_context(contextlib.chdir(path))

    @staticmethod
    def context() -> "MonkeyPatch":
        return MonkeyPatch()

    __getattr__ = needs_pytest
    undo = contextlib.ExitStack.close


@fixture
def tmp_path():
    return importlib.import_module("pathlib").Path(tempfile.mkdtemp())


@fixture
def monkeypatch() -> Iterator[MonkeyPatch]:
    with MonkeyPatch() as patch:
        yield patch


@fixture
def capsys() -> Iterator[Capsys]:
    captured = Capsys()
    with contextlib.redirect_stdout(captured.out), contextlib.redirect_stderr(captured.err):
        yield captured


# Built-in fixtures.
FIXTURES = {each.name: each for each in (tmp_path, monkeypatch, capsys)}


def install_shim():
    """Install a module `pytest` with the names of this module."""
    module = types.ModuleType("pytest")
    names = "raises approx param mark fixture fail skip main MonkeyPatch"
    module.__dict__.update({name: globals()[name] for name in names.split()})
    # Called for every other name of `pytest` that a test uses.
    module.__dict__["__getattr__"] = needs_pytest
    sys.modules["pytest"] = module

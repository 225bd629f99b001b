"""The part of pytest that most tests use, for machines without pytest.

It has raises, approx, marks, and three fixtures. Imports the standard library only.
"""

import contextlib
import importlib
import io
import math
import os
import re
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from untrusted.inside.deferred import tempfile
from untrusted.inside.handles import ask
from untrusted.inside.patches import patch_there

MISSING = object()
Captured = namedtuple("Captured", "out err")
Param = namedtuple("Param", "values marks")


class FailedError(AssertionError):
    """Raised by `fail`, and if an expected exception was not raised."""


class SkippedError(BaseException):
    """Raised by `skip`."""


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise FailedError(reason)


def skip(reason: str = "", **_: Any) -> None:
    raise SkippedError(reason)


# Tests catch them as `pytest.fail.Exception`.
fail.Exception, skip.Exception = FailedError, SkippedError  # type: ignore[attr-defined]


class ExceptionInfo:
    """The exception that `raises` has caught."""

    value: Any = None

    @property
    def type(self) -> type:
        return type(self.value)

    @property
    def typename(self) -> str:
        return type(self.value).__name__

    @property
    def tb(self) -> Any:
        return self.value.__traceback__

    def match(self, pattern: Any) -> bool:
        """Raise FailedError unless the pattern matches somewhere in the exception's text."""
        if not re.search(pattern, str(self.value)):
            raise FailedError(f"{str(self.value)!r} does not match {pattern!r}")
        return True


class Raises:
    """Context that expects an exception."""

    def __init__(self, expected: Any, match: Any = None) -> None:
        self.expected, self.pattern, self.info = expected, match, ExceptionInfo()

    def __enter__(self) -> ExceptionInfo:
        return self.info

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if kind is None:
            raise FailedError(f"did not raise {self.expected}")
        if not issubclass(kind, self.expected):
            return False
        self.info.value = error
        return self.pattern is None or self.info.match(self.pattern)


def raises(expected: Any, *call: Any, match: Any = None, **keywords: Any) -> Any:
    """Expect an exception from a block, or from a call: `raises(E)`, `raises(E, f, 1)`."""
    if not call:
        return Raises(expected, match)
    with Raises(expected) as info:
        call[0](*call[1:], **keywords)
    return info


class Approx:
    """Equals numbers close to the expected ones, alone or in lists, tuples and dictionaries."""

    def __init__(
        self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False
    ) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, actual: Any) -> bool:
        return self.near(actual, self.expected)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    # Element by element for containers, then exact equality, then the tolerance.
    def near(self, actual: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            same = isinstance(actual, dict) and actual.keys() == expected.keys()
            return same and all(self.near(actual[key], value) for key, value in expected.items())
        if isinstance(expected, list | tuple):
            same = isinstance(actual, list | tuple) and len(actual) == len(expected)
            return same and all(map(self.near, actual, expected))
        numbers = (int, float, complex, Decimal, Fraction)
        if (
            not isinstance(expected, numbers)
            or isinstance(expected, bool)
            or not isinstance(actual, numbers)
        ):
            return actual == expected
        # nan: equal only to nan, and only if asked for.
        if actual == expected or (actual != actual and expected != expected):
            return actual == expected or self.nan_ok
        if not math.isfinite(builtin_abs(expected)) or not math.isfinite(builtin_abs(actual)):
            return False
        # pytest's defaults: 1e-6 of the expected value, at least 1e-12; `abs` alone turns the first
        # off.
        relative = self.rel if self.rel is not None else 1e-6 if self.abs is None else 0
        smallest = self.abs if self.abs is not None else 1e-12
        tolerance = max(float(relative) * builtin_abs(float_of(expected)), float(smallest))
        return builtin_abs(float_of(actual) - float_of(expected)) <= tolerance


# `approx` has a parameter named `abs`.
builtin_abs = abs
approx = Approx


def float_of(number: Any) -> Any:
    return number if isinstance(number, complex) else float(number)


# Marks


def param(*values: Any, id: Any = None, marks: Any = ()) -> Param:
    return Param(values, marks if isinstance(marks, list | tuple) else (marks,))


class Mark:
    """A mark, with or without arguments: a decorator that attaches itself to its target."""

    def __init__(
        self, name: str, arguments: tuple = (), keywords: dict[str, Any] | None = None
    ) -> None:
        self.name, self.arguments, self.keywords = name, arguments, keywords or {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        marked = arguments[0] if len(arguments) == 1 and not keywords else None
        # `mark.skip` decorates directly, `mark.parametrize` is always called with arguments first.
        is_bare = not self.arguments and self.name == "parametrize"
        if is_bare or not isinstance(marked, types.FunctionType | type):
            return Mark(self.name, arguments, keywords)
        setattr(marked, "pytestmark", [*vars(marked).get("pytestmark", ()), self])  # noqa: B010 pyright knows no such attribute
        return marked


class Marks:
    """`pytest.mark`: any name is a mark."""

    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


mark = Marks()


def reason_to_skip(marks: Any) -> bool:
    return any(m.name == "skip" or (m.name == "skipif" and m.arguments[0]) for m in marks)


def cases_of(marks: Any) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield the arguments of each case that the marks ask for, with the case's own marks."""
    tables = [m.arguments for m in marks if m.name == "parametrize"]
    cases: list[tuple[dict[str, Any], list[Any]]] = [({}, [])]
    # Several tables multiply: ("a", [1, 2]) and ("b", [3, 4])
    #  -> {a: 1, b: 3}, {a: 1, b: 4}, {a: 2, b: 3}, {a: 2, b: 4}
    for names, rows, *_ in tables:
        columns = (
            [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        )
        grown = []
        for given, own in cases:
            for row in rows:
                values = (
                    row.values if isinstance(row, Param) else row if len(columns) > 1 else (row,)
                )
                more = list(row.marks) if isinstance(row, Param) else []
                grown.append((given | dict(zip(columns, values, strict=True)), own + more))
        cases = grown
    yield from cases


# Fixtures


class Capsys:
    """What is printed while a test runs."""

    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()

    def readouterr(self) -> Captured:
        """Return what has been printed since the last call."""
        said = Captured(self.out.getvalue(), self.err.getvalue())
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return said


class MonkeyPatch:
    """Changes that are undone after the test; those of modules also in the program."""

    def __init__(self) -> None:
        self.undoing: list[Callable[[], Any]] = []

    def setattr(self, target: Any, name: Any, value: Any = MISSING, raising: bool = True) -> None:
        # setattr("os.path.exists", f): the target is a dotted name.
        if value is MISSING:
            path, _, attribute = target.rpartition(".")
            target, name, value = dotted(path), attribute, name
        # Of a class, the attribute itself: `getattr` would bind methods and find inherited ones.
        old = (
            vars(target).get(name, MISSING)
            if isinstance(target, type)
            else getattr(target, name, MISSING)
        )
        if old is MISSING and raising and not hasattr(target, name):
            raise AttributeError(f"{target!r} has no attribute {name!r}")
        setattr(target, name, value)
        if patch_there(target, name):
            self.undoing.append(lambda: ask("unpatch", target, name))
        self.undoing.append(
            lambda: delattr(target, name) if old is MISSING else setattr(target, name, old)
        )

    def delattr(self, target: Any, name: str, raising: bool = True) -> None:
        if hasattr(target, name) or raising:
            old = getattr(target, name)
            delattr(target, name)
            self.undoing.append(lambda: setattr(target, name, old))

    def setitem(self, mapping: Any, key: Any, value: Any) -> None:
        old = mapping.get(key, MISSING)
        mapping[key] = value
        self.undoing.append(
            lambda: mapping.pop(key, None) if old is MISSING else mapping.update({key: old})
        )

    def delitem(self, mapping: Any, key: Any, raising: bool = True) -> None:
        if key in mapping or raising:
            old = mapping.pop(key)
            self.undoing.append(lambda: mapping.update({key: old}))

    def setenv(self, name: str, value: Any, prepend: str | None = None) -> None:
        old = os.environ.get(name)
        self.setitem(os.environ, name, f"{value}{prepend}{old}" if prepend and old else str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        self.delitem(os.environ, name, raising)

    def chdir(self, path: Any) -> None:
        old = os.getcwd()
        self.undoing.append(lambda: os.chdir(old))
        os.chdir(path)

    @contextlib.contextmanager
    def context(self) -> Iterator["MonkeyPatch"]:
        inner = MonkeyPatch()
        try:
            yield inner
        finally:
            inner.undo()

    def undo(self) -> None:
        # In reverse order, so that the first change is undone last.
        while self.undoing:
            self.undoing.pop()()


def dotted(path: str) -> Any:
    """Import the object that a dotted path names: a module, or an attribute of one."""
    first, *rest = path.split(".")
    found: Any = importlib.import_module(first)
    for number, part in enumerate(rest, 2):
        # Not an attribute yet: "unittest.mock" must be imported.
        if not hasattr(found, part):
            importlib.import_module(".".join([first, *rest][:number]))
        found = getattr(found, part)
    return found


FIXTURES = ("tmp_path", "capsys", "monkeypatch")


@contextlib.contextmanager
def fixtures(names: list[str]) -> Iterator[dict[str, Any]]:
    """Make the fixtures that a test asks for, and undo their changes afterwards."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Any] = {}
        for name in names:
            if name == "tmp_path":
                made[name] = importlib.import_module("pathlib").Path(tempfile.mkdtemp())
            elif name == "monkeypatch":
                made[name] = MonkeyPatch()
                stack.callback(made[name].undo)
            elif name == "capsys":
                made[name] = Capsys()
                stack.enter_context(contextlib.redirect_stdout(made[name].out))
                stack.enter_context(contextlib.redirect_stderr(made[name].err))
        yield made


NAMES = ("raises", "approx", "param", "mark", "fail", "skip", "main")


def main(*_: Any, **__: Any) -> None:
    """Do nothing: the tests that it would run are run afterwards."""


def install_shim() -> None:
    """Make `import pytest` find this module's names."""
    module = types.ModuleType("pytest")
    module.__dict__.update({name: globals()[name] for name in NAMES})
    sys.modules["pytest"] = module

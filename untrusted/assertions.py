"""Read a test: is it one call whose answer the parent compares, or statements for the tester?"""

import ast
import builtins
import re
import threading
from dataclasses import dataclass
from typing import Any

from untrusted.cases import PRELUDE, Case
from untrusted.inside.checks import test_names

# CPython 3.11 counts the depth of all syntax trees under construction in one place: two threads
# that build large ones at a time get a SystemError ("AST constructor recursion depth mismatch").
PARSING = threading.Lock()
# What is in tests that a framework runs, and in those that catch a failed assertion.
FRAMED = re.compile(r"AssertionError|TestCase|^\s*(async )?def test|^\s*class Test", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A test of the form `assert function(*arguments, **keywords) == expected`, all literals.

    Attributes:
        others: other right results.
        is_method: the function is a method of the program's class Solution.
        prelude: import statements that the program may take for granted.
    """

    function: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    expected: Any
    others: tuple[Any, ...] = ()
    is_method: bool = False
    prelude: str = ""

    @property
    def source(self) -> str:
        """The call and its assertion as a script, for answers that only a tester can compare."""
        owner = "Solution()." if self.is_method else ""
        # assert result == 1 or result == [1]
        keywords = "".join(f", {name}={value!r}" for name, value in self.keywords.items())
        right = " or ".join(f"result == {value!r}" for value in (self.expected, *self.others))
        return (
            f"result = {owner}{self.function}(*{list(self.arguments)!r}{keywords})\nassert {right}"
        )


def call_of(case: Case, code: str) -> Call:
    """Return the call of a case.

    As in LiveCodeBench's harness, a program with a class Solution has the function there.
    """
    expected, *others = case.results
    return Call(
        case.function,
        case.arguments,
        {},
        expected,
        tuple(others),
        "class Solution" in code,
        PRELUDE,
    )


def read_call(test: str) -> Call | None:
    """Return the call that a test makes, or None unless it is one assertion of one call.

    The other side must be a literal. A function named like a builtin is left to the tester, which
    decides by the whole test whose function the name means.
    """
    try:
        with PARSING:
            body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            pass
        case _:
            return None
    # Either order: f(1) == 2, 2 == f(1)
    for call, literal in ((left, right), (right, left)):
        match call:
            case ast.Call(func=ast.Name(id=name)) if not hasattr(builtins, name):
                try:
                    arguments = tuple(ast.literal_eval(argument) for argument in call.args)
                    keywords = {
                        str(word.arg): ast.literal_eval(word.value)
                        for word in call.keywords
                        if word.arg
                    }
                    expected = ast.literal_eval(literal)
                except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    return None
                return (
                    Call(name, arguments, keywords, expected)
                    # f(**options) has a keyword without a name.
                    if all(w.arg for w in call.keywords)
                    else None
                )
    return None


def is_script(test: str) -> bool:
    """Whether a test is a script of assertions, none of which it expects to fail."""
    return "assert " in test and not FRAMED.search(test)


def split_tests(source: str, name: str = "<tests>") -> list[str]:
    """Split a file into its tests.

    Tests are the assertions at the top level, each with all statements above it that are no
    assertions, and whatever pytest would collect there, each with all statements that are no test.
    A file with neither is one test. Raises ValueError if the file is no Python, or is empty.

    "x = 1; assert f(x); y = 2; assert f(y)" -> "x = 1; assert f(x)", "x = 1; y = 2; assert f(y)"
    """
    try:
        body = ast.parse(source, name).body
    except SyntaxError as error:
        raise ValueError(f"{name}: line {error.lineno}: {error.msg}") from error
    if not body:
        raise ValueError(f"{name}: holds no test")
    tests: list[str] = []
    setup: list[str] = []
    names = test_names(ast.Module(body, []))
    items = [statement for statement in body if getattr(statement, "name", None) in names]
    body = [statement for statement in body if statement not in items]
    beside = [statement for statement in body if not isinstance(statement, ast.Assert)]
    for statement in body:
        if isinstance(statement, ast.Assert):
            tests.append("\n".join([*setup, ast.unparse(statement)]))
        else:
            setup.append(ast.unparse(statement))
    # In its own place: after the fixtures, which may stand anywhere, and before `unittest.main()`,
    # which must find it.
    tests += [ast.unparse(ast.Module(in_place(beside, item), [])) for item in items]
    return tests or [source]


def in_place(statements: list[ast.stmt], item: ast.stmt) -> list[ast.stmt]:
    """Insert a statement by its line number."""
    return sorted([*statements, item], key=lambda statement: statement.lineno)


def title_of(test: str) -> str:
    """Return the line by which a person recognizes a test: its definition, else its last line."""
    names = test_names(ast.parse(test))
    named = [
        line
        for line in test.splitlines()
        if any(f" {name}(" in line or f" {name}:" in line for name in names)
    ]
    return named[0].strip() if named else test.splitlines()[-1]

"""Read a test: is it one call whose answer the parent can compare, or a script for the tester?"""

import ast
import builtins
import threading
from dataclasses import dataclass
from typing import Any

from untrusted.cases import PRELUDE, Case
from untrusted.inside.checks import test_names

# CPython 3.11 counts the depth of all syntax trees under construction in one place: two threads
# that build large ones
# at a time get a SystemError ("AST constructor recursion depth mismatch").
PARSING = threading.Lock()


@dataclass(frozen=True)
class Call:
    """`assert function(*arguments, **keywords) == expected`, all of them literals.

    Attributes:
        others: what else is right.
        is_method: the function is one of the program's class Solution.
        prelude: statements that import what the program may take for granted.
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
        keywords = "".join(f", {name}={value!r}" for name, value in self.keywords.items())
        right = " or ".join(f"result == {value!r}" for value in (self.expected, *self.others))
        return (
            f"result = {owner}{self.function}(*{list(self.arguments)!r}{keywords})\nassert {right}"
        )


def call_of(case: Case, code: str) -> Call:
    """Make the call of a case; as in LiveCodeBench's harness, a program's class Solution has the
    function.
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
    """Read the call that a test makes, or None if it is anything but one assertion of one call and
    one literal.

    A function named like a builtin is left to the tester, which decides by the whole test whom the
    name means.
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
                    if all(w.arg for w in call.keywords)
                    else None
                )
    return None


def split_tests(source: str, name: str = "<tests>") -> list[str]:
    """Split a file into its tests.

    They are the assertions at its top level, each with the statements above it that are none, and
    what pytest would collect there, each with all statements that are no test. A file with neither
    is one test. Raises ValueError if it is no Python, or empty.
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
    # Behind the fixtures, which may stand anywhere, and before `unittest.main()`, which must find
    # it.
    tests += [ast.unparse(ast.Module(in_place(beside, item), [])) for item in items]
    return tests or [source]


def in_place(statements: list[ast.stmt], item: ast.stmt) -> list[ast.stmt]:
    """Put a statement where its line says."""
    return sorted([*statements, item], key=lambda statement: statement.lineno)


def title_of(test: str) -> str:
    """Find the line of a test by which a person knows it."""
    names = test_names(ast.parse(test))
    named = [
        line
        for line in test.splitlines()
        if any(f" {name}(" in line or f" {name}:" in line for name in names)
    ]
    return named[0].strip() if named else test.splitlines()[-1]

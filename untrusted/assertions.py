"""Read a test: is it one call whose answer the parent compares, or statements for the tester?"""

import ast
import builtins
import marshal
import re
import threading
from dataclasses import dataclass
from typing import Any, TypeGuard

from untrusted.cases import PRELUDE, Case, Test
from untrusted.inside.channel import Fields
from untrusted.inside.checks import name_of, test_names

# CPython 3.11 counts the depth of all syntax trees under construction in one place: two threads
# that build large ones at a time get a SystemError ("AST constructor recursion depth mismatch").
PARSING = threading.Lock()
# Matches tests that a framework runs, and tests that catch a failed assertion.
FRAMED = re.compile(r"AssertionError|TestCase|^\s*(async )?def test|^\s*class Test", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A test of the form `assert function(*arguments, **keywords) == expected`, all literals.

    Attributes:
        function: name of the function.
        arguments: positional arguments.
        keywords: keyword arguments.
        expected: the expected result.
        others: other accepted results.
        is_method: whether the function is a method of the program's class Solution.
        prelude: import statements to execute before the program.
    """

    function: str
    arguments: tuple[Any, ...]
    keywords: Fields
    expected: Any
    others: tuple[Any, ...] = ()
    is_method: bool = False
    prelude: str = ""

    @property
    def request(self) -> Fields:
        """The call as part of the job of the program's process."""
        return {
            "function": self.function,
            "is_method": self.is_method,
            # marshal keeps the order of dictionaries and the type of every literal; JSON does not.
            "arguments": marshal.dumps((self.arguments, self.keywords)).hex(),
        }

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
    reads the whole test to decide whether the name means the program's function.
    """
    try:
        with PARSING:
            body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            # Either order: f(1) == 2, 2 == f(1)
            return read_sides(left, right) or read_sides(right, left)
    return None


def read_sides(call: ast.expr, literal: ast.expr) -> Call | None:
    """Return a call of literals and its expected value; None if the sides are anything else."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return None
    # f(**options) has a keyword without a name.
    if hasattr(builtins, call.func.id) or any(part.arg is None for part in call.keywords):
        return None
    try:
        arguments = tuple(map(ast.literal_eval, call.args))
        keywords = {str(part.arg): ast.literal_eval(part.value) for part in call.keywords}
        return Call(call.func.id, arguments, keywords, ast.literal_eval(literal))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def is_script(test: Test) -> TypeGuard[str]:
    """Whether a test is a script of assertions, none of which it expects to fail.

    A case or a single call is not: its answer is compared elsewhere.
    """
    if isinstance(test, Case) or "assert " not in test or FRAMED.search(test):
        return False
    return "\n" in test.strip() or read_call(test) is None


def split_tests(source: str, name: str = "<tests>") -> list[str]:
    """Split a file into its tests.

    Each assertion at the top level is a test, with all statements above it that are not assertions.
    Each function or class that pytest would collect is a test, with all statements that are not
    tests. A file with neither is a single test. Raises ValueError if the file is not Python, or is
    empty.

    "x = 1; assert f(x); y = 2; assert f(y)" -> "x = 1; assert f(x)", "x = 1; y = 2; assert f(y)"
    """
    try:
        tree = ast.parse(source, name)
    except SyntaxError as error:
        raise ValueError(f"{name}: line {error.lineno}: {error.msg}") from error
    if not tree.body:
        raise ValueError(f"{name}: holds no test")
    names = test_names(tree)
    items = [statement for statement in tree.body if getattr(statement, "name", None) in names]
    checks = [statement for statement in tree.body if isinstance(statement, ast.Assert)]
    setup = [statement for statement in tree.body if statement not in (*items, *checks)]
    tests = [[s for s in setup if s.lineno <= check.lineno] + [check] for check in checks]
    # Classes of tests from which others inherit are part of the tests of every class.
    inherited = {name_of(base) for item in items for base in getattr(item, "bases", ())}
    bases = [item for item in items if getattr(item, "name", None) in inherited]
    for item in items:
        needed = {*setup, item, *(bases if isinstance(item, ast.ClassDef) else ())}
        # Sorted by line: a test stays after its fixtures, which may stand anywhere, and before a
        # call of `unittest.main()`, which must find it.
        tests.append(sorted(needed, key=lambda statement: statement.lineno))
    return [ast.unparse(ast.Module(test, [])) for test in tests] or [source]


def title_of(test: str) -> str:
    """Return the line by which a person recognizes a test: its definition, else its last line."""
    names = test_names(ast.parse(test))
    named = [
        line
        for line in test.splitlines()
        if any(f" {name}(" in line or f" {name}:" in line for name in names)
    ]
    return named[0].strip() if named else test.splitlines()[-1]

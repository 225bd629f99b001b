"""Read a test before it runs: which names it uses, where it checks, and what it compares with what.

Imports the standard library only.
"""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Any

# Names of functions that a prepared test calls: after a check, for data as the test wrote them, on
# entry into a test function, and where Python would look at a handle's class or look up a method.
CHECKED, GIVEN, ENTERED = "__checked__", "__given__", "__entered__"
CALL_METHOD, TYPED = "__call_method__", "__typed__"
ASKED = {"type": "__type_of__", "callable": "__callable__"}
# Beginnings of the names of functions that check, called or as a context.
CHECKING = ("assert", "raises", "warns", "deprecated_call")
# Other functions that compare their arguments.
COMPARING = ("isclose", "allclose", "array_equal", "approx", "zip", "compare")
IDENTITY = re.compile(
    r"\bis (?:not )?(\w+)\.\w|\bcase [A-Z]\w*\(|\b(?:shares|may_share)_memory\b"
    r"|(?:\bis|==) (?:abs|all|any|len|max|min|print|sorted|sum)\b(?!\()"
)
COMPLAINT = re.compile(r"raise\b|assert (False|0|None)\b|([\w.]+\.)?(fail|_?exit)\(")
# Special methods that iterate, called by their names.
STEPS = ("__next__", "__anext__")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def nodes_of(tree: ast.AST) -> list[Any]:
    """List the nodes of a tree, outermost first, without the contexts of names.

    Much faster than `ast.walk`.
    """
    found = [tree]
    # The list grows while it is being walked: breadth first.
    for node in found:
        # Most of a generated test is literals.
        if type(node) is ast.Constant:
            continue
        for name in node._fields:
            part = None if name == "ctx" else getattr(node, name, None)
            if isinstance(part, list):
                found += [item for item in part if isinstance(item, ast.AST)]
            elif isinstance(part, ast.AST):
                found.append(part)
    return found


def names_of(nodes: list[Any]) -> tuple[set[str], set[str]]:
    """Collect the names that a test reads and those that it defines."""
    read, defined = set(), set()
    for node in nodes:
        if isinstance(node, ast.Constant):
            # A name as text: `globals()["Stack"]`.
            if isinstance(node.value, str) and node.value.isidentifier():
                read.add(node.value)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            # `import a.b` binds "a".
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler)) and node.name:
            defined.add(node.name)
    return read, defined


def imports_of(nodes: list[Any]) -> list[tuple[str, str]]:
    """List what a test imports: the module, and the name that is bound.

    "import os.path as p; from re import sub" -> ("os.path", "p"), ("re", "sub")
    """
    found = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "") or ""
            found += [(module or alias.name, alias.asname or alias.name) for alias in node.names]
    return found


def words_of(nodes: list[Any], pattern: re.Pattern) -> set[str]:
    """Collect names, attributes and keywords of this pattern, and `eval` and `exec` by name."""
    found = {
        node.id for node in nodes if isinstance(node, ast.Name) and node.id in ("eval", "exec")
    }
    words = {getattr(node, part, None) for node in nodes for part in ("id", "attr", "arg")}
    return found | {word for word in words if word and pattern.fullmatch(word)}


def modules_meant(nodes: list[Any], free: set[str]) -> set[str]:
    """Collect the modules that a test uses without an import: only attributes of theirs."""
    based = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    bare = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in based}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return {name for name in free & used - bare if name in sys.stdlib_module_names or name == "np"}


def asks_for_identity(source: str, modules: set[str]) -> bool:
    """Whether a test matches classes, or asks for a library object or array memory by identity."""
    # `x is math.inf`: a handle is never the library's object.
    return any(not name or name in modules for name in IDENTITY.findall(source))


def test_names(tree: ast.Module) -> set[str]:
    """Collect what a framework would run: functions and classes by name, and TestCases."""
    found = set()
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and node.name.startswith("test"):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, FUNCTIONS)]
            has_tests = any(method.startswith("test") for method in methods)
            is_case = any(ast.unparse(base).endswith("TestCase") for base in node.bases)
            if is_case or (node.name.startswith("Test") and has_tests):
                found.add(node.name)
    return found


def name_of(function: ast.expr) -> str:
    """Return the last name of a called function: `np.testing.assert_equal` -> "assert_equal"."""
    return getattr(function, "attr", getattr(function, "id", ""))


def root_of(expression: Any) -> str:
    """Return the first name of a chain: `a.b[0].c()` -> "a"; empty if it is none."""
    while isinstance(expression, ast.Attribute | ast.Subscript | ast.Call | ast.Await):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return getattr(expression, "id", "")


def complains(statement: Any) -> bool:
    """Whether a block of a statement reports an error once it is reached: raise, fail(), exit()."""
    return any(
        COMPLAINT.match(ast.unparse(inner)) for inner in (*statement.body, *statement.orelse)
    )


def assignments_of(nodes: list[Any]) -> Iterator[tuple[set[str], ast.expr]]:
    """Yield the names that each statement binds, with the expression that they come from."""
    for node in nodes:
        targets = [getattr(node, name, None) for name in ("target", "optional_vars")]
        targets = [target for target in (*targets, *getattr(node, "targets", ())) if target]
        sources = [getattr(node, name, None) for name in ("value", "iter", "context_expr")]
        bound = [
            name.id for target in targets for name in nodes_of(target) if isinstance(name, ast.Name)
        ]
        if bound and any(sources):
            yield set(bound), next(source for source in sources if source)


def call_node(name: str, arguments: list[Any], old: ast.AST) -> Any:
    """Make a call, at the position of an old node."""
    function = ast.copy_location(ast.Name(name, ast.Load()), old)
    return ast.copy_location(ast.Call(function, arguments, []), old)


def count_check(statement: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Expr(call_node(CHECKED, [], statement)), statement)


class TestPreparation:
    """Counts the checks of a test, and lets the program change only one side of a comparison.

    `result = f(data); assert result == sorted(data)` would be passed by a program that empties
    `data` and returns nothing. So the side that does not depend on the program is computed from the
    data as the test wrote them: `assert result == __given__(lambda: sorted(data))`.

    Attributes:
        program: names of the program, which the test may call.
        derived: names that depend on its results.
        sides: by the identity of a comparison, its `plain_sides`.
        oracles: names on sides that do not depend on the program, if another one does.
    """

    def __init__(self, nodes: list[Any], program: set[str]) -> None:
        self.nodes, self.theirs = nodes, program
        # A parameter may be the program's function, as in `check(candidate)`.
        self.program = program | {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.derived: set[str] = set()
        assignments = [(names, self.uses(value)) for names, value in assignments_of(nodes)]
        # To a fixed point: y = f(x); z = y + 1 -> {y}, then {y, z}
        while True:
            known = len(self.derived)
            for names, (calls, reads) in assignments:
                self.derived |= names if calls or reads & self.derived else set()
            if len(self.derived) == known:
                break
        found = ((id(node), self.plain_sides(node)) for node in nodes)
        self.sides = {key: sides for key, sides in found if sides}
        self.oracles = {
            name for sides in self.sides.values() for side in sides for name in self.uses(side)[1]
        }

    def uses(self, expression: ast.expr) -> tuple[bool, set[str]]:
        """Return whether an expression calls the program directly, and the names in it."""
        nodes = nodes_of(expression)
        calls = any(isinstance(n, ast.Call) and root_of(n.func) in self.program for n in nodes)
        return calls, {node.id for node in nodes if isinstance(node, ast.Name)}

    def depends(self, expression: ast.expr) -> bool:
        """Whether an expression depends on a result of the program."""
        calls, reads = self.uses(expression)
        return calls or not reads.isdisjoint(self.derived)

    def is_checking(self, call: Any) -> bool:
        """Whether a call is a check by its name: assertEqual(...), raises(...)."""
        if not isinstance(call, ast.Call) or root_of(call.func) in self.theirs:
            return False
        return name_of(call.func).startswith(CHECKING)

    def is_comparing(self, call: ast.Call) -> bool:
        name = name_of(call.func)
        return name in COMPARING or ("Is" not in name and self.is_checking(call))

    def plain_sides(self, node: Any) -> list[ast.expr]:
        """List the sides of a comparison that do not depend on the program, if another one does."""
        sides: list[ast.expr] = []
        # Not `is`: a copy would never be the very object.
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and self.is_comparing(node):
            sides = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        dependent = [self.depends(side) for side in sides]
        if not any(dependent):
            return []
        # A literal, which reads nothing, cannot have been changed.
        plain = [side for side, depends in zip(sides, dependent, strict=True) if not depends]
        return [side for side in plain if self.uses(side)[1]]

    def as_written(self, expression: ast.expr) -> ast.expr:
        inner = nodes_of(expression)
        # A function cannot await, yield or bind names for the one around it.
        if any(isinstance(n, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr) for n in inner):
            return expression
        nothing = ast.arguments([], [], None, [], [], None, [])
        function = ast.copy_location(ast.Lambda(nothing, expression), expression)
        return call_node(GIVEN, [function], expression)

    def restore_sides(self, node: Any) -> None:
        plain = self.sides.get(id(node), ())
        if plain and isinstance(node, ast.Compare):
            node.left = self.as_written(node.left) if node.left in plain else node.left
            node.comparators = [self.as_written(s) if s in plain else s for s in node.comparators]
        elif plain:
            node.args = [self.as_written(side) if side in plain else side for side in node.args]

    def restore_oracle(self, node: ast.Assign) -> None:
        """Compute `expected = sorted(data)` from the data as written, too."""
        names = {
            name.id
            for target in node.targets
            for name in nodes_of(target)
            if isinstance(name, ast.Name)
        }
        if (
            names & self.oracles
            and isinstance(node.value, ast.Call)
            and not self.depends(node.value)
        ):
            node.value = self.as_written(node.value)

    def is_check(self, statement: Any) -> bool:
        """Whether a statement has checked something once it has ended."""
        if isinstance(statement, ast.If):
            # if result != 3: raise ...
            return complains(statement)
        if isinstance(statement, ast.With):
            return any(self.is_checking(item.context_expr) for item in statement.items)
        value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
        call = value.value if isinstance(value, ast.Await) else value
        return isinstance(statement, ast.Assert) or self.is_checking(call)

    def count(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Insert a count behind every check."""
        found: list[ast.stmt] = []
        for statement in statements:
            found += (
                [statement, count_check(statement)] if self.is_check(statement) else [statement]
            )
        return found

    def apply(self) -> None:
        # try: f(-1); raise AssertionError / except ValueError: the handler is the check
        for node in self.nodes:
            if isinstance(node, ast.Try) and complains(node):
                for handler in node.handlers:
                    handler.body.insert(0, count_check(handler.body[0]))
        for node in self.nodes:
            if isinstance(node, ast.Compare | ast.Call):
                self.restore_sides(node)
            elif isinstance(node, ast.Assign):
                self.restore_oracle(node)
            for part in ("body", "orelse", "finalbody"):
                if isinstance(statements := getattr(node, part, None), list):
                    setattr(node, part, self.count(statements))


def ask_for_classes(node: Any) -> None:
    """Have the program asked where Python would look at a handle's class, or look up a method.

    type(x) -> __type_of__(x); x.__class__ -> __typed__(x).__class__;
    x.f(1) -> __call_method__(x, "f", 1): one message, not two
    """
    if (
        isinstance(node, ast.Attribute)
        and node.attr == "__class__"
        and isinstance(node.ctx, ast.Load)
    ):
        node.value = call_node(TYPED, [node.value], node)
    if not isinstance(node, ast.Call):
        return
    function = node.func
    if isinstance(function, ast.Name) and len(node.args) == 1 and not node.keywords:
        function.id = ASKED.get(function.id, function.id)
    is_method = isinstance(function, ast.Attribute)
    if is_method and (not function.attr.startswith("__") or function.attr in STEPS):
        name = ast.copy_location(ast.Constant(function.attr), function)
        node.func = ast.copy_location(ast.Name(CALL_METHOD, ast.Load()), function)
        node.args = [function.value, name, *node.args]


def blocks_of(preparation: TestPreparation) -> list[tuple[int, int]]:
    """List the `with` blocks that check something: the first line, and that of the last check."""
    found = []
    for node in preparation.nodes:
        if isinstance(node, ast.With | ast.AsyncWith):
            inner = [part for statement in node.body for part in nodes_of(statement)]
            lines = [n.lineno for n in inner if isinstance(n, ast.stmt) and preparation.is_check(n)]
            found += [(node.lineno, max(lines))] if lines else []
    return found


def prepare(
    tree: ast.Module, nodes: list[Any], program: set[str], tests: set[str]
) -> list[tuple[int, int]]:
    """Prepare a test to run; functions in `tests` report that they are entered.

    Returns the `with` blocks that check something (`blocks_of`).
    """
    preparation = TestPreparation(nodes, program)
    blocks = blocks_of(preparation)
    preparation.apply()
    for node in nodes:
        ask_for_classes(node)
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and node.name in tests:
            name = ast.copy_location(ast.Constant(node.name), node)
            call = ast.copy_location(ast.Expr(call_node(ENTERED, [name], node)), node)
            # After the docstring, which must stay first.
            start = 1 if ast.get_docstring(node, clean=False) is not None else 0
            node.body.insert(start, call)
    return blocks

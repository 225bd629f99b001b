"""Read a test before it runs: which names it uses, where it checks, and what it compares with what.

Imports the standard library only.
"""

import ast
import builtins
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)

# Names of functions that a prepared test calls: after a check, for data as the test wrote it, on
# entry into a test function, and in the place of `type`, of methods and of `callable`.
CHECKED, GIVEN, ENTERED = "__checked__", "__given__", "__entered__"
TYPE_OF, CALL_METHOD, CALLABLE = "__type_of__", "__call_method__", "__callable__"
# Contexts that are a check by themselves.
CONTEXTS = (
    *(
        "raises",
        "warns",
        "deprecated_call",
        "assertRaises",
        "assertRaisesRegex",
        "assertWarns",
        "assertWarnsRegex",
    ),
    *("assertLogs", "assertNoLogs"),
)
# Functions that compare their arguments.
COMPARING = ("isclose", "allclose", "array_equal", "approx", "zip", "compare")


def nodes_of(tree: ast.AST) -> list[ast.AST]:
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


def names_of(nodes: list[ast.AST]) -> tuple[set[str], set[str]]:
    """Collect the names that a test reads and those that it defines."""
    read, defined = set(), set()
    for node in nodes:
        if isinstance(node, ast.Constant):
            # A name as text: `globals()["Stack"]`.
            if isinstance(node.value, str) and node.value.isidentifier():
                read.add(node.value)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            # `import a.b` binds "a".
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return read, defined


def attributes_of(nodes: list[ast.AST], name: str) -> set[str] | None:
    """Collect the attributes that a test uses of a name; None if it also uses the bare name."""
    bases = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    found = [bases.get(id(node)) for node in uses]
    return {attribute for attribute in found if attribute} if None not in found else None


def reads_annotations(nodes: list[ast.AST]) -> bool:
    """Whether a test evaluates annotations, in which any name of the program may stand."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in nodes
    }
    return "get_type_hints" in names


def asks_for_identity(nodes: list[ast.AST]) -> bool:
    """Whether a test matches classes, or asks for a library object or array memory by identity."""
    modules = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in nodes:
        if isinstance(node, ast.MatchClass) or getattr(node, "attr", "") in (
            "shares_memory",
            "may_share_memory",
        ):
            return True
        # `x is math.inf`: a handle is never the library's object.
        if isinstance(node, ast.Compare) and any(
            isinstance(part, ast.Is | ast.IsNot) for part in node.ops
        ):
            sides = [side for side in node.comparators if isinstance(side, ast.Attribute)]
            if any(root_of(side) in modules for side in sides):
                return True
    return False


def test_names(tree: ast.Module) -> set[str]:
    """Collect what a framework would run: functions and classes by name, and TestCases."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test"
        ):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            methods = [
                part.name
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            if any(base.endswith("TestCase") for base in bases) or (
                node.name.startswith("Test")
                and any(method.startswith("test") for method in methods)
            ):
                found.add(node.name)
    return found


def name_of(function: ast.expr) -> str:
    """Return the last name of a called function: `np.testing.assert_equal` -> "assert_equal"."""
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def root_of(function: ast.expr) -> str:
    """Return the first name of a chain: `a.b[0].c()` -> "a"; empty if it is none."""
    while isinstance(function, ast.Attribute | ast.Subscript | ast.Call | ast.Await):
        function = function.func if isinstance(function, ast.Call) else function.value
    return function.id if isinstance(function, ast.Name) else ""


class Flow:
    """Which names of a test depend on the program's results, and which were handed to it."""

    def __init__(self, nodes: list[ast.AST], program: set[str]) -> None:
        # A parameter may be the program's function, as in `check(candidate)`.
        parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.program = program | parameters
        self.derived: set[str] = set()
        assignments = [(names, *self.uses(value)) for names, value in assignments_of(nodes)]
        # To a fixed point: y = f(x); z = y + 1 -> {y}, then {y, z}
        while True:
            found = {
                name
                for names, calls, reads in assignments
                if calls or reads & self.derived
                for name in names
            }
            if found <= self.derived:
                break
            self.derived |= found
        # Names in arguments of the program, also in a list or tuple display.
        self.passed = {
            argument.id
            for node in nodes
            if isinstance(node, ast.Call) and self.is_program(node)
            for outer in (*node.args, *(word.value for word in node.keywords))
            for argument in (outer.elts if isinstance(outer, ast.List | ast.Tuple) else (outer,))
            if isinstance(argument, ast.Name)
        }

    def is_program(self, call: ast.Call) -> bool:
        root = root_of(call.func)
        return root in self.program or root in self.derived

    def uses(self, expression: ast.expr) -> tuple[bool, set[str]]:
        """Return whether an expression calls the program directly, and the names in it."""
        nodes = nodes_of(expression)
        calls = any(
            isinstance(node, ast.Call) and root_of(node.func) in self.program for node in nodes
        )
        return calls, {node.id for node in nodes if isinstance(node, ast.Name)}

    def depends(self, expression: ast.expr) -> bool:
        """Whether an expression depends on a result of the program."""
        calls, reads = self.uses(expression)
        return calls or not reads.isdisjoint(self.derived)

    def uses_passed(self, expression: ast.expr) -> bool:
        return any(
            isinstance(node, ast.Name) and node.id in self.passed for node in nodes_of(expression)
        )


def assignments_of(nodes: list[ast.AST]) -> Iterator[tuple[set[str], ast.expr]]:
    """Yield the names that each statement binds, with the expression that they come from."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
            ):
                targets = [target]
            case ast.NamedExpr(target=target, value=value):
                targets = [target]
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                targets = [target]
            case ast.comprehension(target=target, iter=value):
                targets = [target]
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                targets = [target]
            case _:
                continue
        yield (
            {
                name.id
                for target in targets
                for name in nodes_of(target)
                if isinstance(name, ast.Name)
            },
            value,
        )


class Original(ast.NodeTransformer):
    """Makes names read as the test wrote them, whatever the program has done to their content.

    data -> __given__(data)
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.names and isinstance(node.ctx, ast.Load):
            return at_place_of(ast.Call(ast.Name(GIVEN, ast.Load()), [node], []), node)
        return node


class Prepare(ast.NodeTransformer):
    """Counts the checks of a test, and lets the program change only one side of a comparison.

    `result = f(data); assert result == sorted(data)` would be passed by a program that empties
    `data` and returns nothing. So the other side is computed from the data as the test wrote it:
    `assert result == sorted(__given__(data))`.
    """

    def __init__(self, nodes: list[ast.AST], program: set[str]) -> None:
        self.flow = Flow(nodes, program)
        self.theirs = program
        sides = [self.sides(node) for node in nodes] if self.flow.passed else []
        compared = [side for each in sides for side in self.plain_sides(each)]
        # Names on the sides that do not depend on the program: expected values.
        self.oracles = {
            node.id for side in compared for node in nodes_of(side) if isinstance(node, ast.Name)
        }

    def visit(self, node: ast.AST) -> Any:
        # Without data handed to the program nothing needs to be restored, and statements, which
        # hold the checks, are never inside an expression.
        return super().visit(node) if self.flow.passed or not isinstance(node, ast.expr) else node

    def sides(self, node: ast.AST) -> list[ast.expr]:
        """List the sides that a node compares; empty if it compares nothing."""
        if isinstance(node, ast.Compare):
            # Not `is`: a copy would never be the very object.
            return (
                []
                if any(isinstance(part, ast.Is | ast.IsNot) for part in node.ops)
                else [node.left, *node.comparators]
            )
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            if ((name.startswith("assert") and "Is" not in name) or name in COMPARING) and root_of(
                node.func
            ) not in self.theirs:
                return [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        return []

    def plain_sides(self, sides: list[ast.expr]) -> list[ast.expr]:
        """List the sides that do not depend on the program, if another one does."""
        dependent = [self.flow.depends(side) for side in sides]
        return (
            [side for side, depends in zip(sides, dependent, strict=True) if not depends]
            if any(dependent)
            else []
        )

    def wrap(self, node: ast.AST) -> None:
        for side in self.plain_sides(self.sides(node)):
            if self.flow.uses_passed(side):
                replace_in(node, side, Original(self.flow.passed).visit(side))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        self.wrap(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        self.wrap(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        names = {
            name.id
            for target in node.targets
            for name in nodes_of(target)
            if isinstance(name, ast.Name)
        }
        # expected = sorted(data), computed after the call: restore the data here, too.
        if (
            names & self.oracles
            and isinstance(node.value, ast.Call)
            and not self.flow.depends(node.value)
        ):
            node.value = Original(self.flow.passed).visit(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        self.generic_visit(node)
        return [node, counted(node)]

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and root_of(call.func) not in self.theirs:
            # assertEqual(...), np.testing.assert_allclose(...), raises(...) without `with`.
            name = name_of(call.func)
            if name.startswith("assert") or name in CONTEXTS:
                return [node, counted(node)]
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        # if result != 3: raise ...
        return [node, counted(node)] if complains(node.body) or complains(node.orelse) else node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        # try: f(-1); raise AssertionError / except ValueError: the handler is the check
        if complains(node.body) or complains(node.orelse):
            for handler in node.handlers:
                handler.body.insert(0, counted(handler.body[0]))
        self.generic_visit(node)
        return node

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        calls = [
            item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)
        ]
        checks = any(
            name_of(call.func) in CONTEXTS and root_of(call.func) not in self.theirs
            for call in calls
        )
        # A context that ends normally has checked.
        return [node, counted(node)] if checks else node


STEPS = ("__next__", "__anext__")


class Ask(ast.NodeTransformer):
    """Has the program asked where Python would look at a handle's class, or look up a method.

    type(x) -> __type_of__(x); x.f(1) -> __call_method__(x, "f", 1): one message, not two
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type"), args=[_], keywords=[]):
                node.func = at_place_of(ast.Name(TYPE_OF, ast.Load()), node.func)
            case ast.Call(func=ast.Name(id="callable"), args=[_], keywords=[]):
                node.func = at_place_of(ast.Name(CALLABLE, ast.Load()), node.func)
            case ast.Call(func=ast.Attribute(value=subject, attr=name)) if (
                not name.startswith("__") or name in STEPS
            ):
                node.func = at_place_of(ast.Name(CALL_METHOD, ast.Load()), node.func)
                node.args = [subject, at_place_of(ast.Constant(name), subject), *node.args]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "__class__" or not isinstance(node.ctx, ast.Load):
            return node
        return at_place_of(ast.Call(ast.Name(TYPE_OF, ast.Load()), [node.value], []), node)


def replace_in(node: ast.AST, old: ast.expr, new: ast.expr) -> None:
    if isinstance(node, ast.Compare):
        node.left = new if node.left is old else node.left
        node.comparators = [new if side is old else side for side in node.comparators]
    elif isinstance(node, ast.Call):
        node.args = [new if argument is old else argument for argument in node.args]


def complains(body: list[ast.stmt]) -> bool:
    """Whether statements report an error once they are reached: raise, assert False, fail()."""
    for statement in body:
        if isinstance(statement, ast.Raise):
            return True
        if (
            isinstance(statement, ast.Assert)
            and isinstance(statement.test, ast.Constant)
            and not statement.test.value
        ):
            return True
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and name_of(call.func) in ("fail", "exit", "_exit"):
            return True
    return False


def counted(after: ast.stmt) -> ast.stmt:
    return at_place_of(ast.Expr(ast.Call(ast.Name(CHECKED, ast.Load()), [], [])), after)


def at_place_of(new: Node, old: ast.AST) -> Node:
    """Give a new node, and new nodes in it, the position of an old one."""
    return ast.fix_missing_locations(ast.copy_location(new, old))


def prepare(
    tree: ast.Module, nodes: list[ast.AST], program: set[str], tests: set[str]
) -> ast.Module:
    """Prepare a test to run (`Prepare`, `Ask`); functions in `tests` report that they are entered."""
    Prepare(nodes, program).visit(tree)
    Ask().visit(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in tests:
            call = ast.Expr(ast.Call(ast.Name(ENTERED, ast.Load()), [ast.Constant(node.name)], []))
            # After the docstring, which must stay first.
            start = 1 if ast.get_docstring(node, clean=False) is not None else 0
            node.body.insert(start, at_place_of(call, node))
    return tree


def modules_imported(nodes: list[ast.AST]) -> set[str]:
    """Collect the top-level names of the modules that a test imports."""
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in found}


def is_module_name(nodes: list[ast.AST], name: str) -> bool:
    """Whether an undefined name means a standard module: the test uses only its attributes."""
    attributes = attributes_of(nodes, name) if name in sys.stdlib_module_names else None
    return bool(attributes)


def is_builtin(name: str) -> bool:
    return hasattr(builtins, name)

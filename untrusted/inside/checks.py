"""Analyse and rewrite a test before it runs: its names, its checks, and what they compare.

Imports the standard library only.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# The names of the `Tester` and of the module `handles` in a prepared test, which calls their functions.
TESTER = "__tester__"
HANDLES = "__handles__"
# Prefixes of functions that check something when they are called or used in a `with` statement.
CHECKING = ("assert", "raises", "warns", "deprecated_call")
# Other functions that compare their arguments.
COMPARING = ("isclose", "allclose", "array_equal", "approx", "zip", "compare")
# Functions that catch exceptions of the classes that they are given.
CATCHING = re.compile("suppress|raises|assertRaises(Regex)?")
# What could execute files, pickles or texts of the program in the test's process. An import that is
# not used cannot: pickle.load(f), load(allow_pickle=True), yaml.load(f), map(eval, texts),
# frame.query(f(x)).
RUNNING = r"\w*pickle|dill|shelve|dbm|marshal|joblib|copyreg|yaml|doctest|runpy"
REFUSED = re.compile(
    rf"\b(?:{RUNNING})(?:\.\w|\(| as )|\bfrom (?:{RUNNING})\b|\b\w+_pickle\b|\.\w*pickle\b"
    r"|(?<![\w.])(?:eval|exec)\s*(?:[(,)\]]|$)"
    r"|\b(?:load_source|spec_from_file_location|SourceFileLoader|exec_module)\b"
    r"|\b(?:pd|pandas)\b[\s\S]*\.(?:eval|query)\((?!\s*(?:\"[^\"\n]*\"|'[^'\n]*')\s*[,)])",
    re.MULTILINE,
)
# What the border carries only in part: looking into objects, records and threads, shared memory,
# class patterns, tasks that may be cancelled, identity with an attribute of a module, comparison with
# a builtin.
MODULE = "|".join(sorted({*sys.stdlib_module_names, "np", "numpy"}))
DOUBTFUL = re.compile(
    r"\b(?:inspect|gc|weakref|traceback|threading|concurrent|logging|warnings)\b"
    r"|\bassert.*\b(?:get)?cwd\(|\bassert\w*(?:Logs|Warns)\w*|\b(?:shares|may_share)_memory\b"
    r"|\bcase [A-Z]\w*\(|\bCancelledError\b|\basyncio\.(?:create_task|timeout|wait_for)\b"
    rf"|\bis (?:not )?(?:{MODULE})\.\w+"
    r"|(?:\bis|==) (?:abs|all|any|len|max|min|print|sorted|sum)\b(?!\()"
)
# Statements that report an error.
COMPLAINT = re.compile(r"raise\b|assert (False|0|None)\b|([\w.]+\.)?(fail|_?exit)\(")
# Special methods that iterate, called by their names.
STEPS = ("__next__", "__anext__")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Names that a test or a program uses, and nodes of its syntax tree.
Names = set[str]
Nodes = list[Any]


def nodes_of(*trees: ast.AST) -> Nodes:
    """List the nodes of trees, outermost first; faster than `ast.walk`."""
    nodes = [*trees]
    # Breadth first: the list grows while the loop reads it.
    for node in nodes:
        # Generated tests consist mostly of literals.
        if type(node) is not ast.Constant:
            nodes += ast.iter_child_nodes(node)
    return nodes


def names_of(nodes: Nodes) -> tuple[Names, Names]:
    """Collect the names that a test reads and those that it defines."""
    read = set()
    defined = set()
    for node in nodes:
        if isinstance(node, ast.Constant):
            # A text may be a name, as in `globals()["Stack"]`.
            if isinstance(node.value, str) and node.value.isidentifier():
                read.add(node.value)
        elif isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        # Imports, functions, classes, exception handlers; `import a.b` binds "a".
        elif name := getattr(node, "asname", None) or getattr(node, "name", None):
            defined.add(name.partition(".")[0])
    return read, defined


def imports_of(nodes: Nodes) -> list[tuple[str, str]]:
    """List the imports of a test, each as the module and the bound name.

    "import os.path as p; from re import sub" -> ("os.path", "p"), ("re", "sub")
    """
    imports = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            imports += [(module or alias.name, alias.asname or alias.name) for alias in node.names]
    return imports


def modules_meant(nodes: Nodes, free: Names) -> Names:
    """Collect modules that a test uses without importing them, only by their attributes.

    free {"math", "re"} in "math.sqrt(re)" -> {"math"}
    """
    used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    based = Counter(root.id for node in nodes if isinstance(node, ast.Attribute)
                    and isinstance(root := node.value, ast.Name))  # fmt: skip
    return {name for name in free & sys.stdlib_module_names if 0 < used[name] == based[name]}


def test_names(tree: ast.Module | ast.ClassDef) -> Names:
    """Collect the names of the functions and classes that a test framework would run."""
    names = set()
    # Classes of the file with tests, which others may inherit, and its TestCases
    holders = set()
    cases = {"TestCase", "IsolatedAsyncioTestCase"}
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and node.name.startswith("test"):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            bases = set(map(name_of, node.bases))
            if bases & holders or test_names(node):
                holders.add(node.name)
            if bases & cases:
                cases.add(node.name)
            if bases & cases or (node.name.startswith("Test") and node.name in holders):
                names.add(node.name)
    return names


def called_tests(tree: ast.Module) -> Names:
    """Collect the test functions that a file itself calls: `if __name__ == "__main__": test_a()`.

    Not its classes, because a runner of unittest raises nothing if a test fails.
    """
    statements = [s for s in tree.body if not isinstance(s, (*FUNCTIONS, ast.ClassDef))]
    called = {name_of(call.func) for call in calls_in(nodes_of(*statements))}
    return {name for name in called if name.startswith("test")}


def name_of(function: ast.expr) -> str:
    """Return the last name of a called function: `np.testing.assert_equal` -> "assert_equal"."""
    return getattr(function, "attr", getattr(function, "id", ""))


def root_of(expression) -> str:
    """Return the first name of a chain: `a.b[0].c()` -> "a"; empty for other expressions."""
    while isinstance(expression, ast.Attribute | ast.Subscript | ast.Call | ast.Await):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return getattr(expression, "id", "")


def complains(statement) -> bool:
    """Whether one of a statement's blocks reports an error: raise, fail(), exit()."""
    inner = (*statement.body, *statement.orelse)
    return any(COMPLAINT.match(ast.unparse(each)) for each in inner)


def calls_in(nodes: Nodes) -> Nodes:
    return [node for node in nodes if isinstance(node, ast.Call)]


def names_in(nodes: Nodes) -> Names:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def parts_of(node, *fields: str) -> Nodes:
    """List the nodes in these fields of a node."""
    values = [getattr(node, field, None) or [] for field in fields]
    return [part for parts in values for part in (parts if isinstance(parts, list) else [parts])]


def member(owner: str, name: str) -> ast.Attribute:
    """Build `owner.name`. `prepare` fills in its position."""
    return ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load())


def build_call(owner: str, name: str, *arguments):
    """Build `owner.name(*arguments)`."""
    return ast.Call(member(owner, name), list(arguments), [])


def wrap(owner: str, name: str, side: ast.expr, *arguments) -> ast.expr:
    """Build `owner.name(side, *arguments)`, unless the side is a literal or starred."""
    if isinstance(side, ast.Constant | ast.Starred):
        return side
    return build_call(owner, name, side, *map(ast.Constant, arguments))


# Functions that only read plain data. What they make of the test's data can be computed twice.
READING = re.compile(
    "abs|all|any|dict|enumerate|frozenset|len|list|max|min|range|reversed|round|set|sorted|str|sum|tuple|zip"
    "|Counter|copy|count|deepcopy|fmean|fsum|index|items|join|keys|mean|median|mode|prod|split|values"
    # `handles.measure`, and methods of data frames
    "|measure|agg|assign|astype|cumsum|describe|dropna|fillna|groupby|head|isin|isna|merge|notna|nunique|pivot_table"
    "|reset_index|set_index|shift|sort_index|sort_values|std|tail|to_dict|to_numpy|tolist|unique|value_counts|var"
)
# Expressions whose value is not new, may hold what is not, or is read later.
CHANGEABLE = ast.Name, ast.Attribute, ast.List, ast.Dict, ast.GeneratorExp, ast.Lambda
ASSIGNMENTS = ast.Assign, ast.AnnAssign, ast.NamedExpr
# By statement, the expression on which it depends how often what is executed.
FIELDS = {ast.For: "iter", ast.comprehension: "iter", ast.While: "test", ast.If: "test"}
FIELDS |= dict.fromkeys(ASSIGNMENTS, "value")
# Methods that put their arguments into a container.
FILLING = re.compile("append|appendleft|add|extend|insert|update|setdefault")


def grow(names: Names, bindings: list[tuple[Names, Names]]):
    """Add names to those that they depend on, until nothing is added.

    {f} with y = f(x); z = y + 1 -> {f, y}, then {f, y, z}
    """
    size_before = 0
    while size_before < len(names):
        size_before = len(names)
        for bound, used in bindings:
            if used & names:
                names |= bound


def makes_new(expression) -> bool:
    """Whether an expression makes a new object, not one that something else refers to."""
    if isinstance(expression, ast.Tuple):
        return all(map(makes_new, expression.elts))
    if isinstance(expression, ast.IfExp):
        return makes_new(expression.body) and makes_new(expression.orelse)
    # [1, 2, 3][::-1]
    if isinstance(expression, ast.Subscript):
        return isinstance(expression.slice, ast.Slice) or makes_new(expression.value)
    return not isinstance(expression, CHANGEABLE)


class TestPreparation:
    """Rewrites a test so that its checks are counted and the program cannot change expected values.

    For example, a program that empties `data` and returns [] would pass
    `result = f(data); assert result == sorted(data)`. Therefore a side of a comparison that does
    not depend on the program is computed from the original data: `assert result ==
    __tester__.as_written(lambda: sorted(data))`.

    Attributes:
        program: names of the program that the test may call, and parameters of the test's
            functions, which may be functions of the program, as in `check(candidate)`.
        derived: names of the program, those whose values depend on its results, and TESTER for a
            call of it.
        own: names of the test's functions that do not depend on the program.
        has_arrays: whether the test imports numpy or pandas.
        checkers: names of the test's functions that check something, and TESTER for a check.
    """

    def __init__(self, nodes: Nodes, program: Names):
        self.nodes = nodes
        self.theirs = program
        functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
        self.functions = {node.name for node in functions}
        self.program = program | {node.arg for node in nodes if isinstance(node, ast.arg)}
        # What a test catches may be the program's.
        caught = {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
        self.derived = {TESTER, *caught, *program}
        # The names that each statement binds, with the names in the expressions on the right.
        bindings = []
        for node in nodes:
            if targets := parts_of(node, "target", "targets", "optional_vars"):
                values = parts_of(node, "value", "iter", "context_expr")
                bindings.append((names_in(nodes_of(*targets)), self.uses(*values)))
            # results.append(f(x)) binds `results`, too
            elif isinstance(node, ast.Call) and FILLING.fullmatch(name_of(node.func)):
                bindings.append(({root_of(node.func)}, self.uses(*node.args)))
            # def run(xs): return [f(x) for x in xs]
            elif isinstance(node, FUNCTIONS):
                bindings.append(({node.name}, self.uses(*node.body)))
        grow(self.derived, bindings)
        self.own = self.functions - self.derived
        self.has_arrays = any(
            module.startswith(("numpy", "pandas")) for module, _ in imports_of(nodes)
        )
        self.checkers = {TESTER}
        grow(self.checkers, [({node.name}, self.checks_in(node)) for node in functions])

    def uses(self, *expressions: ast.AST) -> Names:
        """Return the names in expressions, and TESTER if they call the program or catch errors."""
        nodes = nodes_of(*expressions)
        called = [call.func for call in calls_in(nodes)]
        # Methods of the test: self.expected()
        own = {f.attr for f in called if ast.unparse(f) == f"self.{name_of(f)}"} & self.functions
        calls = any(
            (root_of(f) in self.program and name_of(f) not in own) or CATCHING.fullmatch(name_of(f))
            for f in called
        )
        return names_in(nodes) | own | ({TESTER} if calls else set())

    def depends(self, expression: ast.expr) -> bool:
        """Whether an expression depends on a result of the program."""
        return not self.uses(expression).isdisjoint(self.derived)

    def is_checking(self, call) -> bool:
        """Whether a call is a check by its name: assertEqual(...), raises(...)."""
        if not isinstance(call, ast.Call) or root_of(call.func) in self.theirs:
            return False
        return name_of(call.func).startswith(CHECKING)

    def checks_in(self, statement) -> Names:
        """Return the names of the functions that a statement calls, and TESTER if it checks."""
        nodes = nodes_of(statement)
        called = {name_of(call.func) for call in calls_in(nodes)}
        checks = any(isinstance(n, ast.Assert) or self.is_checking(n) for n in nodes)
        return called | ({TESTER} if checks else set())

    def restore_sides(self, node):
        """Prepare the sides of a comparison, or the operands of an operator."""
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            node.left, *node.comparators = self.prepare_sides(sides, type(node.ops[0]).__name__)
        elif isinstance(node, ast.BinOp) and self.has_arrays:
            node.left = wrap(HANDLES, "measure", node.left)
            node.right = wrap(HANDLES, "measure", node.right)
        elif isinstance(node, ast.Call):
            name = name_of(node.func)
            if name in COMPARING or self.is_checking(node):
                node.args = self.prepare_sides(node.args, name)

    def prepare_sides(self, sides: list[ast.expr], name: str) -> list[ast.expr]:
        """Prepare the sides of a comparison by an operator or function of this name."""
        # Only if another side depends on the program: `f(data); assert data == [1, 2]` checks
        # changed data.
        is_theirs = any(map(self.depends, sides))
        # Is, IsNot, assertIs, assertIsNone. Not as written, because a copy is another object.
        if "Is" in name:
            # Of None and the like there are no copies: `assert f(1) is None`.
            is_open = is_theirs and not any(isinstance(side, ast.Constant) for side in sides)
            is_identity = is_open and name.removeprefix("assert") in ("Is", "IsNot")
            return [wrap(TESTER, "identify", side) for side in sides] if is_identity else sides
        if is_theirs:
            sides = [*map(self.as_written, sides)]
        if self.has_arrays and "In" not in name:
            sides = [wrap(HANDLES, "measure", side, "close" in name) for side in sides]
        return sides

    def as_written(self, side: ast.expr) -> ast.expr:
        """Wrap an expression in `__tester__.as_written(lambda: ...)` if possible and necessary."""
        nodes = nodes_of(side)
        # Inside a lambda, these would no longer act on the enclosing function.
        kinds = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
        is_movable = not any(isinstance(node, kinds) for node in nodes)
        # Literals, without names, need no protection.
        is_changeable = is_movable and names_in(nodes) and not self.depends(side)
        if isinstance(side, ast.Starred) or not is_changeable:
            return side
        compute = ast.Lambda(ast.arguments([], [], None, [], [], None, []), side)
        return build_call(TESTER, "as_written", compute, ast.Constant(self.only_reads(nodes)))

    def catching(self, kind: ast.expr) -> ast.expr:
        """Wrap a class of exceptions in `__handles__.catching(kind)` if the program chooses it."""
        return wrap(HANDLES, "catching", kind) if self.depends(kind) else kind

    def only_reads(self, nodes: Nodes) -> bool:
        """Whether an expression calls nothing but functions that read plain data, or the test's own."""
        called = [call.func for call in calls_in(nodes)]
        reads = all(map(READING.fullmatch, {*map(name_of, called)} - self.own))
        # `mean(data)` may call the program, `statistics.mean(data)` does not.
        return reads and self.program.isdisjoint(map(root_of, called))

    def restore_values(self):
        """Compute what loops and variables depend on from original data, too.

        for x in data: assert 2 * x in result
        want = sorted(data)
        """
        # A lambda in the body of a class would not see its names.
        bodies = [s for node in self.nodes if isinstance(node, ast.ClassDef) for s in node.body]
        in_classes = {*nodes_of(*(s for s in bodies if not isinstance(s, FUNCTIONS)))}
        for node in [node for node in self.nodes if node not in in_classes]:
            # if data != [1]: raise ... is a check of changed data
            is_check = isinstance(node, ast.If) and complains(node)
            field = "" if is_check else FIELDS.get(type(node), "")
            value = getattr(node, field, None)
            # Of variables, only what makes a new object.
            is_made = value and makes_new(value) and self.only_reads(nodes_of(value))
            if value and (is_made or not isinstance(node, ASSIGNMENTS)):
                setattr(node, field, self.as_written(value))

    def is_check(self, statement) -> bool:
        """Whether a statement is a check, which has passed if the statement ends normally."""
        if isinstance(statement, ast.If):
            # if result != 3: raise ...
            return complains(statement)
        if isinstance(statement, ast.With):
            return any(self.is_checking(item.context_expr) for item in statement.items)
        value = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
        call = value.value if isinstance(value, ast.Await) else value
        return isinstance(statement, ast.Assert) or self.is_checking(call)

    def count(self, statements: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Insert a call of `note_check` after every check, and one of `forget` after `sort(data)`."""
        for statement in statements:
            yield statement
            if self.is_check(statement):
                yield ast.Expr(build_call(TESTER, "note_check"))
            # Not results.append(f(data)), which keeps what `f` has returned
            match statement:
                case ast.Expr(ast.Call(args=args) as call) if root_of(call) in self.theirs:
                    if not any(map(self.depends, args)):
                        yield ast.Expr(build_call(TESTER, "forget"))

    def apply(self, node):
        """Prepare one node."""
        # except type(error): the program must not choose what catches a failed assertion
        if isinstance(node, ast.ExceptHandler) and node.type:
            node.type = self.catching(node.type)
        elif isinstance(node, ast.Call) and CATCHING.fullmatch(name_of(node.func)):
            node.args = [*map(self.catching, node.args)]
        self.restore_sides(node)
        # An `__exit__` of the program must not skip checks of its block (`handles.may_suppress`).
        if isinstance(node, ast.With | ast.AsyncWith):
            last = 0
            for statement in node.body:
                is_check = any(map(self.is_check, nodes_of(statement)))
                if is_check or self.checks_in(statement) & self.checkers:
                    last = statement.end_lineno
            for item in node.items:
                line = ast.Constant(last)
                item.context_expr = build_call(HANDLES, "be_strict", item.context_expr, line)
        # try: f(-1); raise AssertionError / except ValueError: the handler is the check
        if isinstance(node, ast.Try) and complains(node):
            for handler in node.handlers:
                handler.body.insert(0, ast.Expr(build_call(TESTER, "note_check")))
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, part, None), list):
                setattr(node, part, [*self.count(statements)])


# Builtin functions by their number of arguments, with the functions of `handles` that take their place.
ASKING = {"type": (1, "type_of"), "callable": (1, "is_callable"), "isinstance": (2, "is_instance")}


def ask_for_classes(node):
    """Replace operations that Python would apply to the handle instead of the program's object.

    type(x), x.__class__ -> __handles__.type_of(x)
    callable(x) -> __handles__.is_callable(x)
    isinstance(x, Axes) -> __handles__.is_instance(x, Axes)
    x.f(1) -> __handles__.method_call(x, "f", 1): one message, not two
    """
    if getattr(node, "attr", "") == "__class__" and isinstance(node.ctx, ast.Load):
        # Changed in place, because other nodes refer to this node.
        node.func = member(HANDLES, "type_of")
        node.args = [node.value]
        node.keywords = []
        node.__class__ = ast.Call
    if not isinstance(node, ast.Call):
        return
    match node.func:
        case ast.Name(name) if ASKING.get(name, (-1,))[0] == len(node.args):
            node.func = member(HANDLES, ASKING[name][1])
        case ast.Attribute(value, name) if root_of(value) not in (TESTER, HANDLES):
            # Special methods are those of the handle, except for the steps of iterators.
            if name in STEPS or not name.startswith("__"):
                # assertSetEqual calls methods of a set, which may be an object of the program.
                name = "assertEqual" if name == "assertSetEqual" else name
                node.args = [value, ast.Constant(name), *node.args]
                node.func = member(HANDLES, "method_call")


def prepare(nodes: Nodes, program: Names):
    """Rewrite a test, given its nodes and the names that mean objects of the program."""
    preparation = TestPreparation(nodes, program)
    for node in nodes:
        preparation.apply(node)
    preparation.restore_values()
    for node in nodes:
        ask_for_classes(node)
    ast.fix_missing_locations(nodes[0])


# The canary: a test that has passed must fail with changed assertions


def change_assertions(nodes: Nodes):
    """Change every assertion of a test that depends on the program, so that it fails.

    assert f(2) == 4 -> assert __tester__.note_changed(f(2) == {0: 4})
    assert f(2) in (3, 4) -> assert __tester__.note_changed(not f(2) in (3, 4))
    assert True -> True, because nothing can change it, so that it is not counted
    """
    for node in nodes:
        if isinstance(node, ast.Assert) and (changed := changed_test(node.test)):
            node.test = build_call(TESTER, "note_changed", changed)
        elif isinstance(node, ast.Assert) and not COMPLAINT.match(ast.unparse(node)):
            node.__class__, node.value = ast.Expr, node.test  # pyright: ignore


def changed_test(test: ast.expr) -> ast.expr | None:
    """Return `f(x) == literal` with another literal, or the negation of another test.

    None if the test cannot fail, as it has no name, or compares a value with itself.
    """
    if not names_in(nodes_of(test)):
        return None
    match test:
        # f(2) == f(2)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            if ast.dump(left) == ast.dump(right):
                return None
            for call, literal in ((left, right), (right, left)):
                with suppress(ValueError, TypeError, RecursionError):
                    ast.literal_eval(literal)
                    # 4 -> {0: 4}, which no literal equals
                    return ast.Compare(call, [ast.Eq()], [ast.Dict([ast.Constant(0)], [literal])])
    return ast.UnaryOp(ast.Not(), test)

"""The shape of the packages: which module may import which, sizes, names. Standard library only.

Which module may import which is the table of docs/architecture.md: a change of the shape is a line
there.
"""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "jax_lm", ROOT / "untrusted")

TABLE_ROW = re.compile(r"^\| (\d+) \| (.+?) \|", re.MULTILINE)
LAYERS = {
    place: int(row)
    for row, places in TABLE_ROW.findall(
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    )
    for place in re.findall("`([^`]+)`", places)
}
"""Row of each module, and of each folder by its path with a slash, as docs/architecture.md has them."""

# Lines of code, at 100 columns each: comments and docstrings cost nothing.
MAX_LINES, MAX_FUNCTION_LINES = 450, 60
MAX_PARAMETERS, MAX_INNER_IMPORTS, MAX_LOOSE_MODULES = 8, 20, 10
MANY_PARAMETERS = {"DiffuCoderInference.__init__": 10, "DiffuCoderInference.generate": 12}
"""The signature is the published interface."""

SHARED_NAMES = {"save", "list_tensors"}
"""Names that several modules define because they implement one interface: the formats of checkpoints."""

RESTRICTED_PICKLE = "checkpoints.legacy"
"""The one module that reads pickles, through an unpickler that finds no class but its own."""

BANNED_NAMES = {"utils", "util", "common", "helpers", "misc"}


def dotted(path):
    """Name a module as the table does: without `jax_lm`, but with `untrusted`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts[1:] if parts[0] == "jax_lm" else parts)


MODULES = {
    dotted(path): path
    for folder in PACKAGES
    for path in sorted(folder.rglob("*.py"))
    if path.stat().st_size
}


@functools.cache
def trees():
    """Return the syntax tree of each module."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def layer(name):
    """The row of a module, or of the innermost folder around it that has one."""
    parts = name.split(".")
    folders = ["/".join(parts[:size]) + "/" for size in range(len(parts), 0, -1)]
    rows = [LAYERS[place] for place in ("/".join(parts), *folders) if place in LAYERS]
    assert rows, f"{name} is in no row of docs/architecture.md"
    return rows[0]


def imports(name):
    """Modules of these packages that a module imports, anywhere in it."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively"
            targets = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            continue
        for target in targets:
            target = target.removeprefix("jax_lm.")
            # The package itself holds nothing: what is imported from it is a module of its own.
            if target in MODULES and target != "":
                yield target


def test_imports_go_one_way_down():
    for name in filter(None, MODULES):
        for target in imports(name):
            folder = name.split(".")[0]
            siblings = target.split(".")[0] == folder and layer(target) == layer(name)
            allowed = layer(target) < layer(name) or siblings
            assert allowed, (
                f"{name} imports {target}, which is not above it in docs/architecture.md"
            )


def test_no_circle_of_imports():
    below = {name: set(imports(name)) - {name} for name in MODULES}
    while leaves := [name for name, targets in below.items() if not targets & below.keys()]:
        for name in leaves:
            del below[name]
    assert not below, f"modules that import each other: {sorted(below)}"


def test_every_row_of_the_table_exists():
    for place in LAYERS:
        paths = [ROOT / place] if place.startswith("untrusted") else [ROOT / "jax_lm" / place]
        assert all(path.is_dir() or path.with_suffix(".py").is_file() for path in paths), (
            f"no {place}"
        )


def test_the_sandbox_knows_nothing_of_language_models():
    for name in MODULES:
        if name.split(".")[0] == "untrusted":
            assert all(target.split(".")[0] == "untrusted" for target in imports(name)), name


def code_lines(node, lines):
    """Count the lines of a module or function without comments, blank lines and docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    inner = [child for child in ast.walk(node) if isinstance(child, documented)]
    docstrings = "\n".join(ast.get_docstring(child) or "" for child in inner)
    prose = [line for line in docstrings.splitlines() if line.strip()]
    text = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return len(text) - len(prose)


def test_sizes():
    loose = [
        name for name in MODULES if "." not in name and (ROOT / "jax_lm" / f"{name}.py").is_file()
    ]
    assert len(loose) < MAX_LOOSE_MODULES, loose  # and __init__
    for module, tree in trees().items():
        lines = MODULES[module].read_text(encoding="utf-8").splitlines()
        length = code_lines(tree, lines)
        assert length <= MAX_LINES, f"{module} has {length} lines of code"
        owners = {
            child: f"{node.name}."
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for child in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                name = owners.get(node, "") + node.name
                length = code_lines(node, lines[node.lineno - 1 : node.end_lineno])
                assert length <= MAX_FUNCTION_LINES, f"{module}: {name} has {length} lines"
                parameters = [
                    arg.arg
                    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                count = len([arg for arg in parameters if arg not in ("self", "cls")])
                assert count <= MANY_PARAMETERS.get(name, MAX_PARAMETERS), (
                    f"{module}: {name} has {count} parameters"
                )


def test_names_and_docstrings():
    for module, tree in trees().items():
        assert not BANNED_NAMES & set(module.split("."))
        assert ast.get_docstring(tree), f"{module} has no docstring"


def test_no_broad_except_and_no_unrestricted_pickle():
    for module, tree in trees().items():
        text = MODULES[module].read_text(encoding="utf-8")
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in (
                    "Exception",
                    "BaseException",
                )
                explained = "#" in text.splitlines()[node.lineno - 1]
                assert not broad or explained, (
                    f"{module}:{node.lineno} catches everything without saying why"
                )
        assert "trust_remote_code" not in text
        pickles = (
            r"pickle\.loads?\b"
            if module == RESTRICTED_PICKLE
            else r"\bimport pickle\b|\bfrom pickle\b"
        )
        assert not re.search(pickles, text), module


def test_ci_runs_the_test_command_of_the_readme():
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest"
    assert command in (ROOT / "README.md").read_text()
    assert command in (ROOT / ".ci" / "run").read_text()


def public_names(tree):
    """Functions and classes of a module that others may use."""
    for node in tree.body:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_definition and not node.name.startswith("_") and node.name not in ("main", "run"):
            yield node.name


def test_a_public_name_means_one_thing():
    counts = Counter(name for tree in trees().values() for name in public_names(tree))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES


def test_imports_stand_at_the_top():
    """But for optional packages, and those that take long where few need them."""
    inside = [
        f"{module}: {ast.unparse(statement)}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(node)
        if isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    assert len(inside) <= MAX_INNER_IMPORTS, inside


def test_no_test_imports_another():
    """What tests share is in tests/cases."""
    pattern = re.compile(r"^\s*(?:from|import) (?:test_|conftest)", re.MULTILINE)
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert [path.name for path in paths if pattern.search(path.read_text(encoding="utf-8"))] == []

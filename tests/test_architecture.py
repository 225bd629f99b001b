"""The shape of the package: which module may import which, sizes, names. Standard library only.

Which module may import which is the table of docs/architecture.md: a change of the package's shape is a line there.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jax_lm"

TABLE_ROW = re.compile(r"^\| (\d+) \| (.+?) \|", re.MULTILINE)
LAYERS = {
    place: int(row)
    for row, places in TABLE_ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    for place in re.findall("`([^`]+)`", places)
}
"""Row of each module, and of each folder by its path with a slash, as docs/architecture.md has them."""

MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS, MAX_INNER_IMPORTS = 450, 60, 8, 20
MANY_PARAMETERS = {"DiffuCoderInference.generate": 12, "DiffuCoderLM.__init__": 10}
"""The signature is the published interface, or the harness's command line."""

SHARED_NAMES = {"save", "stored_tensors"}
"""Names that several modules define because they implement one interface: the formats of checkpoints."""

RESTRICTED_PICKLE = "checkpoints.legacy"
"""The one module that reads pickles, through an unpickler that finds no class but its own."""

BANNED_NAMES = {"utils", "util", "common", "helpers", "misc"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.stat().st_size)


def dotted(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name):
    """The row of a module, or of the innermost folder around it that has one."""
    parts = name.split(".")
    folders = ["/".join(parts[:size]) + "/" for size in range(len(parts), 0, -1)]
    rows = [LAYERS[place] for place in (name, *folders) if place in LAYERS]
    assert rows, f"jax_lm.{name} is in no row of docs/architecture.md"
    return rows[0]


def imports(path):
    """Modules of this package that a file imports, anywhere in it."""
    known = {dotted(module) for module in MODULES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            base = (node.module or "").removeprefix("jax_lm").removeprefix(".")
            names = [f"{base}.{alias.name}".removeprefix(".") for alias in node.names]
            is_ours = (node.module or "").split(".")[0] == "jax_lm"
            yield from {name if name in known else base for name in names if is_ours}
        elif isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.startswith("jax_lm.")]
            yield from (name.removeprefix("jax_lm.") for name in ours)


def parametrized(function):
    return pytest.mark.parametrize("path", MODULES, ids=dotted)(function)


@parametrized
def test_imports_go_one_way_down(path):
    name = dotted(path)
    if not name:
        return
    for target in imports(path):
        folder = name.split(".")[0]
        siblings = (PACKAGE / folder).is_dir() and target.split(".")[0] == folder and layer(target) == layer(name)
        allowed = layer(target) < layer(name) or siblings
        assert allowed, f"jax_lm.{name} imports jax_lm.{target}, which is not above it in docs/architecture.md"


def test_no_circle_of_imports():
    below = {dotted(path): set(imports(path)) for path in MODULES}
    while leaves := [name for name, targets in below.items() if not targets & below.keys()]:
        for name in leaves:
            del below[name]
    assert not below, f"modules that import each other: {sorted(below)}"


def test_every_row_of_the_table_exists():
    for place in LAYERS:
        path = PACKAGE / place
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"docs/architecture.md: no jax_lm/{place}"


@parametrized
def test_sizes(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES, f"{path} has {len(lines)} lines"
    tree = ast.parse("\n".join(lines))
    owners = {
        child: f"{node.name}." for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            name = owners.get(node, "") + node.name
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path}: {name} has {length} lines"
            parameters = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len([arg for arg in parameters if arg not in ("self", "cls")])
            assert count <= MANY_PARAMETERS.get(name, MAX_PARAMETERS), f"{path}: {name} has {count} parameters"


@parametrized
def test_names_and_docstrings(path):
    assert not BANNED_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


@parametrized
def test_no_broad_except_and_no_unrestricted_pickle(path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            explained = "#" in text.splitlines()[node.lineno - 1]
            assert not broad or explained, f"{path}:{node.lineno} catches everything without saying why"
    assert "trust_remote_code" not in text
    if dotted(path) == RESTRICTED_PICKLE:
        assert not re.search(r"pickle\.loads?\b", text)
        return
    assert not re.search(r"\bimport pickle\b|\bfrom pickle\b", text)


def test_ci_runs_the_test_command_of_the_readme():
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && .venv/bin/pytest"
    assert command in (ROOT / "README.md").read_text()
    assert command in (ROOT / ".ci" / "run").read_text()


def public_names(path):
    """Functions and classes of a module that others may use."""
    for node in ast.parse(path.read_text()).body:
        is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_definition and not node.name.startswith("_") and node.name not in ("main", "run"):
            yield node.name


def test_a_public_name_means_one_thing():
    counts = Counter(name for path in MODULES for name in public_names(path))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES


def test_imports_stand_at_the_top():
    """But for optional packages, and those that take long where few need them."""
    inside = [
        f"{dotted(path)}: {ast.unparse(statement)}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(node)
        if isinstance(statement, ast.Import | ast.ImportFrom)
    ]
    assert len(inside) <= MAX_INNER_IMPORTS, inside

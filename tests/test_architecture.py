"""The shape of the package: which module may import which, sizes, names. Standard library only.

Changing the shape of the package is a visible change of one line here; docs/architecture.md says why it is so.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jax_lm"

LAYERS = (
    (
        "terminal",
        "recipes",
        "metrics",
        "roofline",
        "distributed",
        "tokenizer",
        "checkpoints.stored",
        "checkpoints.huggingface",
        "models.config",
        "data.batches",
        "data.order",
        "sandbox.inside.*",
    ),
    (
        "diffusion.settings",
        "diffusion.masking",
        "diffusion.unmasking",
        "diffusion.decoding",
        "diffusion.canvas",
        "infilling",
        "sandbox.*",
    ),
    (
        "sharding",
        "models.quantization",
        "models.products",
        "checkpoints.orbax",
        "checkpoints.legacy",
        "checkpoints.checksums",
    ),
    ("checkpoints.loading",),
    ("options", "sandbox", "training.settings", "data.conversations", "data.stream"),
    ("rewards.*", "training.grpo_config", "data.acecode"),
    ("rewards",),
    ("data.corpus.tasks",),
    ("data.corpus.compositions", "data.corpus.families.*", "models.dream"),
    ("data.corpus.families",),
    ("data.corpus",),
    (
        "data.rows",
        "data.prompts",
        "diffusion.step",
        "diffusion.sampler",
        "diffusion.row",
        "diffusion.lanes",
        "diffusion.likelihood",
        "planning",
    ),
    ("compilation",),
    (
        "inference",
        "models.lora",
        "checkpoints.conversion",
        "checkpoints.verification",
        "training.optimizer",
        "training.checkpoints",
        "training.update",
        "training.policy_scores",
        "training.policy_loss",
        "training.rollouts",
    ),
    ("training.trainer", "checkpoints.hub"),
    ("training.masked_diffusion", "training.policy_batches", "training.coupled_grpo"),
    ("training.sft", "training.adaptation", "training.footprint"),
    (
        "training.builtin_model",
        "evaluation.problems",
        "evaluation.asking",
        "evaluation.pass_rate",
        "evaluation.estimates",
        "evaluation.journal",
        "evaluation.pages",
        "evaluation.report",
        "evaluation.decoding_order",
        "evaluation.traces",
        "evaluation.pictures",
        "evaluation.parity",
        "evaluation.training_parity",
        "evaluation.recording",
        "evaluation.machine",
        "evaluation.speed",
        "evaluation.harness",
        "evaluation.document",
        "evaluation.reference",
        "evaluation.side",
        "evaluation.comparison",
        "evaluation.steps",
        "evaluation.experiment",
        "evaluation.experiment_report",
    ),
    ("serving.*",),
    ("commands.*",),
    ("cli",),
)
"""A module imports from the rows above its own, and from its own row only inside one folder."""

MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 500, 60, 8
MANY_PARAMETERS = {"DiffuCoderInference.generate": 12, "DiffuCoderLM.__init__": 10}
"""The signature is the published interface, or the harness's command line."""

RESTRICTED_PICKLE = "checkpoints.legacy"
"""The one module that reads pickles, through an unpickler that finds no class but its own."""

BANNED_NAMES = {"utils", "util", "common", "helpers", "misc"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.stat().st_size)


def dotted(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name):
    folder = f"{name.rpartition('.')[0]}.*"
    rows = [row for row, names in enumerate(LAYERS) if name in names or folder in names]
    assert len(rows) == 1, f"jax_lm.{name} must be in exactly one row of LAYERS, it is in {len(rows)}"
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
        folder, _, _ = name.rpartition(".")
        siblings = bool(folder) and target.rpartition(".")[0] == folder and layer(target) == layer(name)
        allowed = layer(target) < layer(name) or siblings
        assert allowed, f"jax_lm.{name} imports jax_lm.{target}, which is not below it"


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


def test_every_module_is_in_the_architecture_document():
    document = (ROOT / "docs" / "architecture.md").read_text()
    for path in MODULES:
        name = dotted(path)
        listed = name.startswith("data.corpus.families.") or f"`{name}`" in document
        assert listed or not name, f"docs/architecture.md does not mention `{name}`"

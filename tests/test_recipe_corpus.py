"""Tests of the built-in corpus: its programs, its unit tests and its train / held-out split."""

import ast
import dataclasses
import random

import pytest

from builtin_model.compositions import draw_composition
from builtin_model.corpus import draw_task
from builtin_model.families import FAMILIES
from builtin_model.tasks import Family, instantiate, is_held_out, substitute
from jax_lm.data.prompts import BuiltinTask

CLASSICS = (
    ("fibonacci",), ("factorial",), ("is_prime",), ("gcd",), ("quicksort",), ("binary_search",), ("reverse_string",),
    ("word_count", "count_words"), ("fizzbuzz",), ("matrix_multiply",), ("transpose",), ("running_sum",),
    ("BinaryTree",),
)  # fmt: skip
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def run(task: BuiltinTask, completion: str) -> None:
    """Execute a completion and the tests of its task; raises whatever goes wrong."""
    exec("\n".join((task.prompt + completion, *task.tests)), {})


def passes(task: BuiltinTask, completion: str) -> bool:
    try:
        run(task, completion)
    except Exception:
        return False
    return True


@pytest.fixture(scope="module")
def train() -> list[BuiltinTask]:
    rng = random.Random(7)
    return [draw_task(rng) for _ in range(3000)]


@pytest.fixture(scope="module")
def held_out() -> list[BuiltinTask]:
    rng = random.Random(7)
    return [draw_task(rng, held_out=True) for _ in range(500)]


def definition(task: BuiltinTask) -> ast.FunctionDef | ast.ClassDef:
    nodes = ast.parse(task.prompt + task.completion).body
    return next(node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))


def parameters(task: BuiltinTask) -> tuple[str, ...]:
    node = definition(task)
    return tuple(arg.arg for arg in node.args.args) if isinstance(node, ast.FunctionDef) else ()


def pipeline_code(task: BuiltinTask) -> str:
    """The body of a composition, whatever its parameter is called."""
    (parameter,) = parameters(task)
    node = definition(task)
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and name.id == parameter:
            name.id = "_"
    is_docstring = isinstance(node.body[0], ast.Expr)
    return "\n".join(ast.unparse(line) for line in node.body[is_docstring:])


@each_family
def test_solution_passes_its_tests(family: Family) -> None:
    for seed in range(5):
        task = instantiate(family, random.Random(seed))
        assert task.tests
        run(task, task.completion)


@each_family
def test_tests_reject_an_empty_body(family: Family) -> None:
    tasks = (instantiate(family, random.Random(seed)) for seed in range(10))
    body = "    pass\n" if family.is_class else "    return None\n"
    assert not all(
        passes(task, body if task.prompt.endswith("\n") else f"\n{body}") for task in tasks
    )


def test_families_have_unique_names() -> None:
    names = [name for family in FAMILIES for name in family.names]
    assert len(FAMILIES) >= 80
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert sorted(names) == sorted(set(names))


def test_families_are_described() -> None:
    assert [family.name for family in FAMILIES if len(set(family.docs)) < 3] == []
    assert [doc for family in FAMILIES for doc in family.docs if not doc.endswith(".")] == []


@pytest.mark.parametrize("names", CLASSICS, ids=lambda names: names[0])
def test_classics_are_there(names: tuple[str, ...]) -> None:
    assert any(name in family.names for family in FAMILIES for name in names)


@pytest.mark.parametrize("held_out", [False, True])
def test_drawing_depends_on_the_seed_alone(held_out: bool) -> None:
    first, again, other = (
        [draw_task(rng, held_out=held_out) for _ in range(20)]
        for rng in map(random.Random, (3, 3, 4))
    )
    assert first == again
    assert first != other


def test_split_is_disjoint(train: list[BuiltinTask], held_out: list[BuiltinTask]) -> None:
    assert {task.key for task in train}.isdisjoint(task.key for task in held_out)
    assert not any(is_held_out(task.key) for task in train)
    assert all(is_held_out(task.key) for task in held_out)


def draw_canonical(family: Family) -> BuiltinTask:
    """A task with the first name, the canonical parameters and the first value of each constant."""
    constants = {key: options[:1] for key, options in family.constants.items()}
    narrowed = dataclasses.replace(family, names=family.names[:1], constants=constants)
    name = substitute(family.names[0], {key: value for key, (value,) in constants.items()})
    names = tuple(param.split(":")[0] for param in family.params)
    tasks = (instantiate(narrowed, random.Random(seed)) for seed in range(100))
    return next(task for task in tasks if task.entry_point == name and parameters(task) == names)


def test_canonical_headers_are_never_held_out() -> None:
    tasks = [draw_canonical(family) for family in FAMILIES]
    assert [task.key for task in tasks if is_held_out(task.key) or not task.key.endswith("!")] == []
    # Without the mark the hash would hold some of them out.
    assert any(is_held_out(task.key.removesuffix("!")) for task in tasks)


def test_compositions_agree_with_their_oracle() -> None:
    rng = random.Random(0)
    for _ in range(300):
        task = draw_composition(rng)
        run(task, task.completion)


def test_held_out_pipelines_are_never_trained_on(
    train: list[BuiltinTask], held_out: list[BuiltinTask]
) -> None:
    trained, kept = (
        {pipeline_code(t) for t in side if t.family == "composition"} for side in (train, held_out)
    )
    assert len(trained) > 500
    assert len(kept) > 100
    assert trained.isdisjoint(kept)

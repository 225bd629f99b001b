"""Report how much of the held-out tasks a training run may have seen.

    python -m builtin_model.overlap

Three readings of a program: the whole text; the code without descriptions; and the code under names
that say nothing, in which a family's tasks are all alike, because what is held out of a family are
its names and constants, not its algorithm. Pipelines are held out as such: there the last reading
should find nothing.
"""

import ast
import builtins
import random
import sys

from builtin_model.layouts import header_prompt
from builtin_model.spelling import draw_spelled
from jax_lm.data.prompts import BuiltinTask, load_tasks
from jax_lm.host.declared import run_main

READINGS = ("whole text", "code", "code under other names")


def readings(text: str) -> tuple[str, str, str]:
    """Read a program as it is, without descriptions, and without names."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            described = ast.get_docstring(node) is not None and len(node.body) > 1
            node.body = node.body[described:]
    code = ast.unparse(tree)
    return text, code, ast.unparse(Anonymous().visit(tree))


class Anonymous(ast.NodeTransformer):
    """Renames all that is no builtin by its first appearance, and drops hints, defaults and
    imports.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def renamed(self, name: str) -> str:
        return (
            name if hasattr(builtins, name) else self.names.setdefault(name, f"v{len(self.names)}")
        )

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.renamed(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.renamed(node.arg), None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self.renamed(node.name), None
        node.args.defaults = []
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self.renamed(node.name)
        return self.generic_visit(node)


def seen_of(tasks: list[BuiltinTask], trained: tuple[set[str], ...]) -> list[int]:
    """Count, for each reading, the tasks that were seen."""
    read = [readings(task.prompt + task.completion) for task in tasks]
    return [sum(texts[i] in trained[i] for texts in read) for i in range(len(READINGS))]


def main(programs: int = 100_000, seed: int = 0, held_out: int = 2000) -> None:
    """Draw training programs, and count the held-out tasks among them.

    Args:
        programs: how many to draw.
        seed: of the draws.
        held_out: how many of the tasks that ship, in their order.
    """
    rng = random.Random(f"overlap {seed}")
    trained: tuple[set[str], ...] = (set(), set(), set())
    for _ in range(programs):
        for seen, text in zip(
            trained, readings("".join(header_prompt(draw_spelled(rng), rng))), strict=True
        ):
            seen.add(text)
    tasks = load_tasks(held_out)
    for group, is_member in (("compositions", True), ("families", False)):
        members = [task for task in tasks if (task.family == "composition") == is_member]
        counts = seen_of(members, trained)
        shown = ", ".join(f"{name} {count}" for name, count in zip(READINGS, counts, strict=True))
        sys.stdout.write(f"{group}: of {len(members)} held-out tasks, seen as {shown}\n")


if __name__ == "__main__":
    run_main(main)

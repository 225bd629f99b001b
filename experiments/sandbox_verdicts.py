"""Compare the sandbox's verdicts with plain Python's: mutants of canonical solutions, and canonical
solutions of class-level and library-level suites.

    python experiments/sandbox_verdicts.py mutants humaneval --data HumanEval.jsonl.gz
    python experiments/sandbox_verdicts.py canonical --data ClassEval_data.json
    python experiments/sandbox_verdicts.py canonical --data bigcodebench_hard.json.gz --packages numpy pandas

`mutants` changes operators, constants, conditions and returned values of canonical solutions, the
same ones in every run, and runs each with the tests of its task: in the sandbox, and as one script
in a plain subprocess. `canonical` runs each solution under the border, and once more in one contained
process, as plain Python would (`Local(same_process=True)` judges so where the border cannot).

Prints the counts, and every task whose verdicts differ. The exit status of `mutants` is 1 if one
passes here and fails there, or the reverse.
"""

import argparse
import ast
import copy
import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jax_lm.evaluation.attempts import MEMORY_BYTES, Attempt
from jax_lm.evaluation.problems import Problem, suite_problems
from untrusted import Limits, Local, Program
from untrusted.runner import choose_tier, run_program, run_together
from untrusted.session import SandboxFailureError, Session

# Each operator with what takes its place.
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
# Seconds of a run for a task whose own limit is longer: a mutant may never end.
LONGEST = 20.0


def changes_of(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield a copy of a program for every place that can be changed, with that place changed."""
    for number, node in enumerate(ast.walk(tree)):
        for changed in replacements(node):
            other = copy.deepcopy(tree)
            place = next(part for at, part in enumerate(ast.walk(other)) if at == number)
            for name, value in changed.items():
                setattr(place, name, value)
            yield ast.fix_missing_locations(other)


def replacements(node: ast.AST) -> Iterator[dict[str, Any]]:
    """Yield new values for fields of a node: `x + 1` -> {"op": -}; `return x` -> {"value": None}."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            yield {"op": SWAPS[type(op)]()}
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield {"ops": [SWAPS[type(op)]()]}
        case ast.Constant(value=bool(value)):
            yield {"value": not value}
        case ast.Constant(value=int(value) | float(value)):
            yield {"value": value + 1}
        case ast.Return(value=ast.expr() as value):
            yield {"value": ast.Constant(None)}
            yield {"value": ast.List([value], ast.Load())}
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield {"test": ast.UnaryOp(ast.Not(), test)}


def mutants_of(problem: Problem, count: int) -> list[Attempt]:
    """Return up to `count` changed programs of a problem, always the same ones."""
    tree = ast.parse(problem.program(problem.canonical))
    programs = [ast.unparse(changed) for changed in changes_of(tree)]
    order = random.Random(problem.name)
    chosen = order.sample(programs, min(count, len(programs)))
    problem = replace(problem, seconds=min(problem.seconds, LONGEST))
    return [Attempt(problem, program, sample=number) for number, program in enumerate(chosen)]


def plain_verdict(program: Program) -> str:
    """Run a program and its tests as one script in a subprocess; returns passed, failed or timeout."""
    script = "\n".join([program.code, *map(str, program.tests)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(path)],
                cwd=folder,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=program.limits.seconds,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    return "failed" if done.returncode else "passed"


def compare_mutants(options: argparse.Namespace) -> int:
    problems, _ = suite_problems(options.suite, options.data, options.tasks)
    attempts = [mutant for problem in problems for mutant in mutants_of(problem, options.mutants)]
    programs = [attempt.job for attempt in attempts]
    local = Local(options.executor, workers=options.workers)
    results = local.run_many(programs)
    with ThreadPoolExecutor(options.workers) as threads:
        plain = list(threads.map(plain_verdict, programs))
    counts = Counter(zip(plain, (result.outcome for result in results), strict=True))
    print(f"{options.suite}: {len(programs)} mutants of {len(problems)} tasks")
    for (there, here), count in sorted(counts.items()):
        print(f"  {count:4d} plain Python: {there}; sandbox: {here}")
    unlike = 0
    for attempt, there, here in zip(attempts, plain, results, strict=True):
        if (there == "passed") != here.passed:
            unlike += 1
            print(
                f"  unlike: {attempt.problem.name} mutant {attempt.sample}: {there}, {here.outcome}"
            )
            print(f"    {here.detail}")
    print(f"  {unlike} verdicts unlike plain Python's")
    return int(unlike > 0)


@dataclass(frozen=True)
class Task:
    """A canonical solution and its tests."""

    name: str
    program: Program


def read_tasks(path: Path, seconds: float) -> list[Task]:
    """Read the tasks of ClassEval or of BigCodeBench."""
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    records = json.loads(text)
    limits = Limits(seconds=seconds, total_seconds=seconds, memory_bytes=4 * MEMORY_BYTES)
    tasks = []
    for record in records.values() if isinstance(records, dict) else records:
        if "solution_code" in record:
            code = "\n".join([*record["import_statement"], record["solution_code"]])
        else:
            code = record["code_prompt"] + record["canonical_solution"]
            # In some releases the solution is a whole program.
            code = (
                record["canonical_solution"]
                if "def task_func" in record["canonical_solution"]
                else code
            )
        tasks.append(Task(record["task_id"], Program(code, (record["test"],), limits)))
    return tasks


def judge(session: Session, task: Task) -> tuple[str, str, str]:
    """Return the verdicts of one process and of the border, and the border's reason."""
    session.begin(task.program.limits, False)
    code, test = task.program.code, task.program.tests[0]
    job = {"code": code, "test": test, "sentinel": "the end"}
    together = run_together(session, job, task.program.limits.seconds)
    result = run_program(session, task.program)
    return together.outcome, result.outcome, result.detail or together.detail


def judge_some(start: Callable[[], Session], tasks: list[Task]) -> list[tuple[str, str, str]]:
    """Judge tasks in one sandbox after the other; a new one is started when it fails."""
    verdicts: list[tuple[str, str, str]] = []
    while len(verdicts) < len(tasks):
        with start() as session:
            try:
                for task in tasks[len(verdicts) :]:
                    verdicts.append(judge(session, task))
            except SandboxFailureError as error:
                verdicts.append(("sandbox_error", "sandbox_error", str(error)))
    return verdicts


def compare_canonical(options: argparse.Namespace) -> int:
    tasks = read_tasks(options.data, options.seconds)
    tier, packages = choose_tier(options.executor), tuple(options.packages)
    start = partial(Session, tier, packages=packages)
    parts = [tasks[index :: options.workers] for index in range(options.workers)]
    with ThreadPoolExecutor(options.workers) as threads:
        judged = list(threads.map(partial(judge_some, start), parts))
    # The parts take turns: task 0 is the first of part 0, task 1 the first of part 1, ...
    verdicts = [judged[n % options.workers][n // options.workers] for n in range(len(tasks))]
    counts = Counter((together, border) for together, border, _ in verdicts)
    print(f"{options.data.name}: {len(tasks)} canonical solutions in {tier}")
    for (together, border), count in sorted(counts.items()):
        print(f"  {count:4d} in one process: {together}; under the border: {border}")
    for task, (together, border, reason) in zip(tasks, verdicts, strict=True):
        if together != border or options.verbose:
            print(f"  {task.name}: {together}, {border}: {reason}")
    both = counts["passed", "passed"]
    passed = sum(count for (together, _), count in counts.items() if together == "passed")
    print(f"  {both} of {passed} that one process passes ({both / max(1, passed):.1%})")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(required=True)
    mutants, canonical = kinds.add_parser("mutants"), kinds.add_parser("canonical")
    mutants.add_argument("suite", choices=["humaneval", "humaneval+", "mbpp", "mbpp+"])
    mutants.add_argument("--tasks", type=int, default=60)
    mutants.add_argument("--mutants", type=int, default=3)
    mutants.set_defaults(run=compare_mutants)
    canonical.add_argument("--packages", nargs="*", default=["numpy"])
    canonical.add_argument("--seconds", type=float, default=60.0)
    canonical.add_argument("--verbose", action="store_true")
    canonical.set_defaults(run=compare_canonical)
    for kind in (mutants, canonical):
        kind.add_argument("--data", type=Path, required=True)
        kind.add_argument("--executor", default="auto")
        kind.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())

"""Compile every program of a planned step, and explain each. `experiments/explain_plan.py` starts it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.compiled.explanation import Explanation, Group, StepShape, explain
from jax_lm.cli.arguments.plan import Plan
from jax_lm.cli.commands.plan import make_plan, print_plan
from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import Compiled
from jax_lm.compilation.machine_plan import MachinePlan
from jax_lm.compilation.programs import StepProgram, step_programs
from jax_lm.host import platforms
from jax_lm.planning.memory import forward_cost
from jax_lm.planning.roofline import GIB, gib

# Groups of a kind that are printed; JSON has all of them.
SHOWN = 12


def explain_program(
    plan: MachinePlan, program: StepProgram, compiled: Compiled
) -> tuple[dict[str, Any], Explanation | None]:
    """Return the row of a pass, and its explanation; None if the compiler refused the program."""
    planned = plan.planned
    config, mesh = planned.config, planned.mesh
    if planned.is_training:
        # SFT computes logits everywhere, coupled-GRPO for the completion alone.
        rows = planned.canvas
        head_rows = planned.new_tokens if planned.kind == "grpo" else rows
    else:
        # A step without a cache computes all rows; its `rows` is then None.
        step = program.arguments[-1]
        rows, head_rows = step.rows or planned.canvas, step.length
    # Lower bound of the bytes that the pass must read: weights, keys and values once
    least = forward_cost(
        config,
        planned.precision,
        batch=planned.rows_per_device,
        rows=rows,
        canvas=planned.canvas,
        head_rows=head_rows,
    )
    shape = StepShape(
        vocabulary=config.vocab_size // mesh.tensor,
        hidden=config.hidden_size,
        memory=plan.topology.chip.memory,
        in_loop=not planned.is_training,
    )
    explanation = explain(compiled.text, shape) if compiled.text else None
    row = {
        "rows": rows,
        "least_bytes": least.bytes // mesh.tensor,
        "arguments_bytes": compiled.arguments,
        "working_bytes": compiled.working,
        "refusal": compiled.refusal,
        "explanation": explanation and asdict(explanation),
    }
    return row, explanation


def explanation_rows(row: dict[str, Any], explanation: Explanation) -> list[tuple[str, str]]:
    """List the explanation of a pass as names and values."""
    # "12 copy, 200 other, 85 product"
    kinds = ", ".join(f"{count} {kind}" for kind, count in explanation.kernels.items())
    least = f"at least {gib(row['least_bytes'])} for weights, keys and values"
    rows = [
        ("kernels", f"{explanation.launches}: {kinds}"),
        ("read", f"{gib(explanation.read)}, {least}"),
        ("written", gib(explanation.written)),
    ]
    for name in ("weights", "head", "cache"):
        traffic = getattr(explanation, name)
        # A step without a cache has no traffic of it.
        if traffic.once:
            times = f"{traffic.read / traffic.once:.3f} times {gib(traffic.once)}"
            rows.append((f"{name} read", f"{gib(traffic.read)}, {times}"))
    # "196 of 33 rows, 1 of 32 rows": products by their number of rows
    products = ", ".join(f"{count} of {rows} rows" for rows, count in explanation.rows.items())
    return [
        *rows,
        ("products with weights", products),
        ("weights read again", list_groups(explanation.read_again)),
        ("weights or cache copied or converted", list_groups(explanation.moves)),
        ("the same, once per call", list_groups(explanation.moves_before)),
        ("sorts", list_groups(explanation.sorts)),
        ("communication", list_groups(explanation.collectives)),
        ("transfers to or from the host", list_groups(explanation.host)),
        ("float32 over the vocabulary", list_groups(explanation.logits)),
        ("above 1 % of memory", list_groups(explanation.buffers)),
        ("loops of unknown length, counted once", "\n".join(explanation.unknown_loops) or "none"),
    ]


def list_groups(groups: Sequence[Group]) -> str:
    """Format groups as lines with their sizes; of many groups, only the largest."""
    lines = [
        f"{each.count:g} x {each.what} {each.shape}, {each.bytes / GIB:.3f} GiB {each.source}".rstrip()
        for each in groups[:SHOWN]
    ]
    lines += [f"and {len(groups) - SHOWN} other kinds"] if len(groups) > SHOWN else []
    return "\n".join(lines) or "none"


def explain_plan(arguments: Plan) -> None:
    """Print the plan with the explanation of each pass, and write both to `out`."""
    plan, options = make_plan(arguments)
    package = compiler.CompilerPackage.of(plan.topology)
    if not package.is_installed:
        sys.exit(f"needs {package.distribution}: pip install 'jax-diffucoder[{package.extra}]'")
    with platforms.without_driver_notes():
        devices = compiler.topology_mesh(plan.topology, plan.planned.mesh)
        programs = step_programs(plan.planned, devices, options)
        compiled = {name: compiler.compile_program(each) for name, each in programs.items()}
    # The first program takes the most memory.
    plan = replace(plan, compiled=next(iter(compiled.values())))
    print_plan(plan)
    passes, console = {}, Console(highlight=False)
    for name, program in programs.items():
        passes[name], explanation = explain_program(plan, program, compiled[name])
        if explanation:
            table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
            for label, value in explanation_rows(passes[name], explanation):
                table.add_row(label, escape(value))
            console.print(f"\n{name}, as compiled, per device:")
            console.print(table)
    record = plan.record
    about = record.pop("compiled")
    record |= {name: about[name] for name in ("date", "compiler", "jax")} | {"passes": passes}
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

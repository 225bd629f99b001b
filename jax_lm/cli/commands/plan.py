"""The command `diffucoder plan`: arithmetic, and what the compiler says, for machines that are not here."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.plan import Plan
from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import Compiled, CompilerPackage
from jax_lm.compilation.explanation import Explanation, Group, StepShape, explain
from jax_lm.compilation.programs import StepProgram, step_programs
from jax_lm.config import SHAPES, DreamConfig
from jax_lm.host import platforms
from jax_lm.host.files import write_whole
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, require_one_of
from jax_lm.planning.memory import (
    RESERVED,
    Bound,
    Memory,
    PlannedStep,
    bound,
    cheapest_changes,
    estimated_memory,
    fits,
    forward_cost,
    rows_per_device,
    smallest_topology,
)
from jax_lm.planning.rollouts import rollout_rows
from jax_lm.planning.roofline import GIB, Topology, gib
from jax_lm.sharding import MeshShape

Rows = list[tuple[str, str]]
SHOWN = 12
"""Groups of a kind that the table shows; the file has all."""


@dataclass(frozen=True)
class CompiledPass:
    """One of the programs that a step consists of, as the compiler made it.

    Attributes:
        name: step, refresh (the first evaluation of a block with a cache) or update.
        rows: of each sequence that it computes.
        least: bytes that it must read at least: weights once, keys and values once.
        compiled: figures of one device.
        explanation: if asked for.
    """

    name: str
    rows: int
    least: int
    compiled: Compiled
    explanation: Explanation | None


def run_plan(arguments: Plan) -> int:
    topology = Topology.parse(arguments.topology)
    compiler.prepare_compiler(topology)
    config, planned = config_of(arguments), planned_step(arguments)
    mesh = MeshShape.parse(arguments.mesh) if arguments.mesh else planned.default_mesh(config, topology.devices)
    mesh.require(config)
    if mesh.size != topology.devices:
        raise ValueError(f"mesh={arguments.mesh!r}: takes {mesh.size} devices, {topology} has {topology.devices}")
    package = CompilerPackage.of(topology)
    passes: list[CompiledPass] = []
    if not arguments.estimate and package.is_installed:
        with platforms.without_driver_notes():
            passes = list(compiled_passes(arguments, config, planned, topology, mesh))
    elif not arguments.estimate:
        missing = f"{package.distribution} is not installed, so nothing is compiled"
        install = f"pip install 'jax-diffucoder[{package.extra}]'"
        if arguments.explain:
            raise ValueError(f"explain=True: {missing}: {install}")
        print(f"{missing}: {install}", file=sys.stderr)
    if arguments.generation.canvases_beside and not passes:
        raise ValueError(f"{arguments.generation.beside}: arithmetic knows no canvases beside; compile it, or give 0")
    memory = estimated_memory(config, planned, mesh)
    worst = worst_of(passes)
    total = memory.total if worst is None else worst.total
    is_enough = total is not None and fits(total, topology)
    beyond = max(total - memory.total, 0) if total is not None else 0
    changes = cheapest_changes(config, planned, mesh, topology, beyond=beyond) if not is_enough else []
    found = {
        "plan": dict(what_rows(planned, topology, mesh)),
        "memory_limit": topology.chip.memory,
        "fits": is_enough,
        "total_bytes": total,
        "estimated_bytes": asdict(memory),
        "try": changes,
        **report(passes, package),
    }
    if arguments.out:
        write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0 if is_enough else 1
    rows = [
        *what_rows(planned, topology, mesh),
        ("basis", "arithmetic, an estimate" if worst is None else basis(package)),
        *memory_rows(planned, memory, worst, topology),
        *speed_rows(planned, bound(config, planned, mesh, topology), worst),
        *(rollout_rows(config, planned, mesh, topology) if planned.kind == "grpo" else ()),
        ("verdict", "[green]fits[/green]" if is_enough else "[red]does not fit[/red]"),
        *smallest_rows(config, planned, topology),
    ]
    show_plan(rows, changes, passes)
    return 0 if is_enough else 1


def show_plan(rows: Rows, changes: list[str], passes: list[CompiledPass]) -> None:
    """Print what was found, what would fit, and what the compiler has made of each pass."""
    console = Console(highlight=False)
    console.print(table_of(rows))
    for change in changes:
        console.print(f"try {change}")
    for each in passes:
        if each.explanation is not None:
            console.print(f"\n{each.name}, as compiled, per device:")
            console.print(table_of(list(explanation_rows(each, each.explanation))))


def config_of(arguments: Plan) -> DreamConfig:
    """Read the shape to plan for."""
    if (arguments.model is None) == (arguments.model_config is None):
        raise ValueError("model, model_config: give one of them")
    if arguments.model is not None:
        return DreamForCausalLM.read_config(huggingface.resolve(arguments.model, with_weights=False))
    assert arguments.model_config is not None
    require_one_of("model_config", arguments.model_config, tuple(SHAPES))
    return SHAPES[arguments.model_config]


def planned_step(arguments: Plan) -> PlannedStep:
    """Describe the step to plan for."""
    return PlannedStep(
        precision=arguments.dtype,
        batch=arguments.batch_size,
        canvas=arguments.max_length,
        new_tokens=arguments.generation.max_new_tokens,
        decoding=arguments.generation.decoding,
        kind=arguments.step,
        lora_rank=arguments.lora_rank,
        canvases_beside=arguments.generation.canvases_beside,
    )


def compiled_passes(
    arguments: Plan, config: DreamConfig, planned: PlannedStep, topology: Topology, mesh: MeshShape
) -> Iterator[CompiledPass]:
    """Compile what the step consists of: all of it to explain it, else what takes most memory."""
    programs = step_programs(config, planned, compiler.topology_mesh(topology, mesh), arguments.generation)
    for name, program in list(programs.items())[: None if arguments.explain else 1]:
        compiled = compiler.compile_program(program)
        shape = StepShape(
            vocabulary=config.vocab_size // mesh.tensor,
            hidden=config.hidden_size,
            memory=topology.chip.memory,
            in_loop=not planned.is_training,
        )
        found = explain(compiled.text, shape) if arguments.explain and compiled.text else None
        yield CompiledPass(name, program.rows, least_bytes(config, planned, mesh, program), compiled, found)


def least_bytes(config: DreamConfig, planned: PlannedStep, mesh: MeshShape, program: StepProgram) -> int:
    """Count the bytes that a pass must read on one device."""
    forward = forward_cost(
        config,
        planned.precision,
        batch=rows_per_device(planned, mesh),
        rows=program.rows,
        canvas=planned.canvas,
        head_rows=program.head_rows,
    )
    return forward.bytes // mesh.tensor


def worst_of(passes: list[CompiledPass]) -> Compiled | None:
    """Choose the pass that was refused, or else takes most memory; None if nothing was compiled."""
    return max((each.compiled for each in passes), key=lambda c: (c.refusal is not None, c.total or 0), default=None)


def basis(package: CompilerPackage) -> str:
    """Say what compiled, and what that does not tell."""
    found = f"compiled for it by {package}, jax {version('jax')}"
    return found if package.extra == "plan" else f"{found}; without autotuning, so that speed is not known"


def table_of(rows: Rows) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def what_rows(planned: PlannedStep, topology: Topology, mesh: MeshShape) -> Rows:
    """List what is planned, and for which devices."""
    new = f", {planned.new_tokens} of them new" if planned.kind != "sft" else ""
    trained = "all weights" if planned.lora_rank is None else f"adapters of rank {planned.lora_rank}"
    how = f"one {planned.kind} update of {trained}" if planned.is_training else decoding_text(planned.decoding)
    return [
        ("plan", f"{planned.batch} x {planned.canvas} tokens{new}, {how}, {planned.precision}"),
        ("devices", f"{topology}: {topology.devices}, mesh {mesh}"),
    ]


def decoding_text(decoding: Decoding) -> str:
    """Name the preset, and what overrides it."""
    given = asdict(decoding)
    overrides = [f"{name} {value}" for name, value in given.items() if value is not None and name != "preset"]
    return ", ".join([f"preset {decoding.preset}", *overrides])


def smallest_rows(config: DreamConfig, planned: PlannedStep, topology: Topology) -> Rows:
    """Name the smallest topology of these chips that an estimate fits on."""
    smallest = smallest_topology(config, planned, topology)
    return [("smallest that fits", f"{smallest[0]}, mesh {smallest[1]} (estimate)" if smallest else "none known")]


def memory_rows(planned: PlannedStep, memory: Memory, compiled: Compiled | None, topology: Topology) -> Rows:
    """List what a step needs, and all of it against what there is."""
    rows = [("masters and moments" if planned.is_training else "weights per device", gib(memory.weights))]
    rows += [("keys and values", gib(memory.cache))] if memory.cache else []
    limit = f"{gib(topology.chip.memory)}, of which {RESERVED:.0%} must stay free"
    if compiled is None:
        about = ("working memory", f"about {gib(memory.working)}")
        return [*rows, about, ("in all", f"about {gib(memory.total)} of {limit}")]
    if compiled.total is None:
        return [*rows, ("in all", f"refused by the compiler: {compiled.refusal}")]
    return [*rows, ("working memory", gib(compiled.working)), ("in all", f"{gib(compiled.total)} of {limit}")]


def speed_rows(planned: PlannedStep, least: Bound, compiled: Compiled | None) -> Rows:
    """List the cost of a step and what follows from it."""
    rows = [("step at least", f"{least.step.flops / 1e12:.3f} TFLOP and {gib(least.step.bytes)} per device")]
    if compiled is not None and compiled.flops and compiled.bytes is not None:
        counted = f"{compiled.flops / 1e12:.3f} TFLOP and {gib(compiled.bytes)}"
        rows.append(("step as compiled", f"{counted} per device, one loop body"))
    rate = "depends on how many a step commits"
    if least.tokens_per_second is not None:
        unit = " learnt from" if planned.is_training else ", at one token per row and step"
        rate = f"at most {least.tokens_per_second:,.0f}{unit}"
    roofline = f"{least.seconds * 1e3:.2f} ms per step, bound by {least.limit}"
    return [*rows, ("roofline", roofline), ("tokens/s", rate)]


def explanation_rows(compiled: CompiledPass, found: Explanation) -> Iterator[tuple[str, str]]:
    """List what the compiler has made of a pass."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kernels.items())
    yield "kernels", f"{found.launches}: {kinds}"
    yield "read", f"{gib(found.read)}, at least {gib(compiled.least)} for weights, keys and values"
    yield "written", gib(found.written)
    for name, traffic in (("weights", found.weights), ("head", found.head), ("cache", found.cache)):
        if traffic.once:
            yield (f"{name} read", f"{gib(traffic.read)}, {traffic.read / traffic.once:.3f} times {gib(traffic.once)}")
    rows = ", ".join(f"{count} of {rows} rows" for rows, count in found.rows.items())
    yield "products with weights", rows
    for name, group in (
        ("weights read again", found.read_again),
        ("weights or cache copied or converted", found.moves),
        ("the same, once per call", found.moves_before),
        ("sorts", found.sorts),
        ("communication", found.collectives),
        ("transfers to or from the host", found.host),
        ("float32 over the vocabulary", found.logits),
        ("above 1 % of memory", found.buffers),
    ):
        yield name, listed(group)
    yield "loops of unknown length, counted once", "\n".join(found.unknown_loops) or "none"


def listed(groups: tuple[Group, ...]) -> str:
    """Put groups under each other, with their sizes; the largest are shown."""
    lines = [
        f"{each.count:g} x {each.what} {each.shape}, {each.bytes / GIB:.3f} GiB {each.source}".rstrip()
        for each in groups[:SHOWN]
    ]
    lines += [f"and {len(groups) - SHOWN} other kinds"] if len(groups) > SHOWN else []
    return "\n".join(lines).replace("[", "\\[") or "none"


def report(passes: list[CompiledPass], package: CompilerPackage) -> dict[str, Any]:
    """Gather what was compiled and found, for a file."""
    if not passes:
        return {}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "compiler": str(package),
        "jax": version("jax"),
        "passes": {
            each.name: {
                "rows": each.rows,
                "least_bytes": each.least,
                "arguments_bytes": each.compiled.arguments,
                "working_bytes": each.compiled.working,
                "refusal": each.compiled.refusal,
                "explanation": None if each.explanation is None else asdict(each.explanation),
            }
            for each in passes
        },
    }

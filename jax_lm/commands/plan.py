"""`diffucoder plan`: will it fit, and how fast can it be, on a machine that is not here?"""

import importlib.util
import sys

from rich.console import Console
from rich.table import Table

from jax_lm import compilation, planning
from jax_lm.arguments.checkpoints import Plan
from jax_lm.checkpoints import huggingface
from jax_lm.compilation import Compiled
from jax_lm.config import SHAPES, DreamConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import require_one_of
from jax_lm.planning import Bound, Memory, PlannedStep
from jax_lm.roofline import Topology, gib
from jax_lm.sharding import MeshShape

Rows = list[tuple[str, str]]


def run(arguments: Plan) -> int:
    topology = Topology.parse(arguments.topology)
    if topology.is_tpu:
        compilation.prepare_compiler()
    config = config_of(arguments)
    planned = PlannedStep(
        precision=arguments.dtype,
        batch=arguments.batch,
        canvas=arguments.canvas,
        new_tokens=arguments.generation.max_new_tokens,
        preset=arguments.generation.decoding.preset,
        kind=arguments.step,
    )
    mesh = MeshShape.parse(arguments.mesh) if arguments.mesh else planned.default_mesh(config, topology.devices)
    mesh.require(config)
    if mesh.size != topology.devices:
        raise ValueError(f"mesh={arguments.mesh!r}: takes {mesh.size} devices, {topology} has {topology.devices}")
    compiled = None
    if topology.is_tpu and not arguments.estimate:
        if importlib.util.find_spec("libtpu"):
            target = compilation.topology_mesh(topology, mesh)
            compiled = compilation.compile_step(config, planned, target, arguments.generation)
        else:
            missing = "libtpu is not installed, so nothing is compiled: pip install 'jax-diffucoder[plan]'"
            print(missing, file=sys.stderr)
    memory = planning.estimated_memory(config, planned, mesh)
    total = memory.total if compiled is None else compiled.total
    is_enough = total is not None and planning.fits(total, topology)
    smallest = planning.smallest_topology(config, planned, topology)
    new = f", {planned.new_tokens} of them new" if planned.kind != "sft" else ""
    how = f"one {planned.kind} update of all weights" if planned.is_training else f"preset {planned.preset}"
    rows = [
        ("plan", f"{planned.batch} x {planned.canvas} tokens{new}, {how}, {planned.precision}"),
        ("devices", f"{topology}: {topology.devices}, mesh {mesh}"),
        ("basis", "arithmetic, an estimate" if compiled is None else "compiled for it by libtpu"),
        *memory_rows(planned, memory, compiled, topology),
        *speed_rows(planned, planning.bound(config, planned, mesh, topology), compiled),
        ("verdict", "[green]fits[/green]" if is_enough else "[red]does not fit[/red]"),
        ("smallest that fits", f"{smallest[0]}, mesh {smallest[1]} (estimate)" if smallest else "none known"),
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    if is_enough:
        return 0
    for change in planning.cheapest_changes(config, planned, mesh, topology):
        console.print(f"try {change}")
    return 1


def config_of(arguments: Plan) -> DreamConfig:
    """Read the shape to plan for."""
    if (arguments.model is None) == (arguments.model_config is None):
        raise ValueError("model, model_config: give one of them")
    if arguments.model is not None:
        return DreamForCausalLM.read_config(huggingface.resolve(arguments.model, with_weights=False))
    assert arguments.model_config is not None
    require_one_of("model_config", arguments.model_config, tuple(SHAPES))
    return SHAPES[arguments.model_config]


def memory_rows(planned: PlannedStep, memory: Memory, compiled: Compiled | None, topology: Topology) -> Rows:
    """List what a step needs, and all of it against what there is."""
    rows = [("masters and moments" if planned.is_training else "weights per device", gib(memory.weights))]
    rows += [("keys and values", gib(memory.cache))] if memory.cache else []
    limit = f"{gib(topology.chip.memory)}, of which {planning.RESERVED:.0%} must stay free"
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

"""`diffucoder plan`: will it fit, and how fast can it be, on a machine that is not here?"""

import sys

from rich.console import Console
from rich.table import Table

from jax_lm import compilation
from jax_lm.arguments.checkpoints import Plan
from jax_lm.checkpoints import huggingface
from jax_lm.config import SHAPES, DreamConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import PlannedStep, cheapest_changes, smallest_topology
from jax_lm.roofline import Topology
from jax_lm.sharding import MeshShape


def run(arguments: Plan) -> int:
    plan = make_plan(arguments)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in plan.rows():
        table.add_row(*row)
    table.add_row("verdict", "[green]fits[/green]" if plan.fits else "[red]does not fit[/red]")
    smallest = smallest_topology(plan.config, plan.planned, plan.topology)
    found = f"{smallest[0]}, mesh {smallest[1]} (estimate)" if smallest else "none known"
    table.add_row("smallest that fits", found)
    console = Console(highlight=False)
    console.print(table)
    if plan.fits:
        return 0
    for change in cheapest_changes(plan.config, plan.planned, plan.mesh, plan.topology):
        console.print(f"try {change}")
    return 1


def make_plan(arguments: Plan) -> compilation.StepPlan:
    """Plan the step that the arguments describe, with the compiler's figures where it can be asked."""
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
    devices = topology.devices
    mesh = MeshShape.parse(arguments.mesh) if arguments.mesh else planned.default_mesh(config, devices)
    mesh.require(config)
    if mesh.size != devices:
        raise ValueError(f"mesh={arguments.mesh!r}: takes {mesh.size} devices, {topology} has {devices}")
    compiled = None
    if topology.is_tpu and not arguments.estimate:
        if compilation.is_available():
            target = compilation.topology_mesh(topology, mesh)
            compiled = compilation.compile_step(config, planned, target, arguments.generation)
        else:
            missing = "libtpu is not installed, so nothing is compiled: pip install 'jax-diffucoder[plan]'"
            print(missing, file=sys.stderr)
    return compilation.StepPlan(config, planned, mesh, topology, compiled)


def config_of(arguments: Plan) -> DreamConfig:
    """Read the shape to plan for."""
    if (arguments.model is None) == (arguments.model_config is None):
        raise ValueError("model, model_config: give one of them")
    if arguments.model is not None:
        return DreamForCausalLM.read_config(huggingface.resolve(arguments.model, with_weights=False))
    if arguments.model_config not in SHAPES:
        raise ValueError(f"model_config={arguments.model_config!r}: must be one of {', '.join(SHAPES)}")
    return SHAPES[arguments.model_config]

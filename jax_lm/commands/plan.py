"""`diffucoder plan`: will it fit, and how fast can it be, on a machine that is not here?"""

import os
import sys
from dataclasses import dataclass

import jax
from rich.console import Console
from rich.table import Table

from jax_lm import compilation
from jax_lm.arguments.checkpoints import Plan
from jax_lm.checkpoints import huggingface
from jax_lm.compilation import Compiled
from jax_lm.config import SHAPES, DreamConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import (
    RESERVED,
    Job,
    Memory,
    bound,
    chosen_mesh,
    estimated_memory,
    fits,
    remedies,
    smallest_topology,
)
from jax_lm.roofline import Topology
from jax_lm.sharding import MeshShape
from jax_lm.training.footprint import compile_update

QUIET_COMPILER = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
}
"""libtpu as a compiler alone: it looks for no TPU, and lets others use it."""


GIB = 2**30


@dataclass(frozen=True)
class Findings:
    """What a plan rests on."""

    config: "DreamConfig"
    job: "Job"
    mesh: "MeshShape"
    topology: "Topology"
    estimated: "Memory"
    compiled: "Compiled | None"

    @property
    def fits(self) -> bool:
        """By the compiler's word, else by the estimate."""
        if self.compiled is None:
            return fits(self.estimated.total, self.topology)
        return self.compiled.total is not None and fits(self.compiled.total, self.topology)


def report(found: Findings) -> int:
    """Print a plan; 0 if it fits, 1 if not."""
    topology, job, memory = found.topology, found.job, found.estimated
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    new = f", {job.new_tokens} of them new" if job.step != "sft" else ""
    how = f"preset {job.preset}" if not job.is_training else f"one {job.step} update of all weights"
    rows = f"{job.batch} x {job.canvas} tokens{new}, {how}, {job.precision}"
    table.add_row("plan", rows)
    table.add_row("devices", f"{topology}: {topology.devices}, mesh {found.mesh}")
    basis = "arithmetic, an estimate" if found.compiled is None else "compiled for it by libtpu"
    table.add_row("basis", basis)
    table.add_row("masters and moments" if job.is_training else "weights per device", gib(memory.weights))
    if memory.cache:
        table.add_row("keys and values", gib(memory.cache))
    memory_rows(table, found)
    speed_rows(table, found)
    console = Console(highlight=False)
    verdict = "[green]fits[/green]" if found.fits else "[red]does not fit[/red]"
    place = smallest_topology(found.config, job, topology)
    table.add_row("verdict", verdict)
    table.add_row("smallest that fits", f"{place[0]}, mesh {place[1]} (estimate)" if place else "none known")
    console.print(table)
    if not found.fits:
        for remedy in remedies(found.config, job, found.mesh, topology):
            console.print(f"try {remedy}")
    return 0 if found.fits else 1


def memory_rows(table: Table, found: Findings) -> None:
    """What a step needs beyond the weights, and all of it against what there is."""
    compiled = found.compiled
    limit = f"{gib(found.topology.chip.memory)}, of which {RESERVED:.0%} must stay free"
    if compiled is None:
        table.add_row("working memory", f"about {gib(found.estimated.working)}")
        table.add_row("in all", f"about {gib(found.estimated.total)} of {limit}")
    elif compiled.total is None:
        table.add_row("in all", f"refused by the compiler: {compiled.refusal}")
    else:
        table.add_row("working memory", gib(compiled.working))
        table.add_row("in all", f"{gib(compiled.total)} of {limit}")


def speed_rows(table: Table, found: Findings) -> None:
    """Cost of a step and what follows from it."""
    least = bound(found.config, found.job, found.mesh, found.topology)
    table.add_row("step at least", f"{least.step.flops / 1e12:.3f} TFLOP and {gib(least.step.bytes)} per device")
    if found.compiled is not None and found.compiled.flops:
        assert found.compiled.bytes is not None
        counted = f"{found.compiled.flops / 1e12:.3f} TFLOP and {gib(found.compiled.bytes)} per device, one loop body"
        table.add_row("step as compiled", counted)
    table.add_row("roofline", f"{least.seconds * 1e3:.2f} ms per step, bound by {least.limit}")
    if found.job.is_training:
        table.add_row("tokens/s", f"at most {least.tokens_per_second:,.0f} learnt from")
    elif least.tokens_per_second is None:
        table.add_row("tokens/s", "depends on how many a step commits")
    else:
        table.add_row("tokens/s", f"at most {least.tokens_per_second:,.0f}, at one token per row and step")


def gib(size: int | float) -> str:
    return f"{size / GIB:.2f} GiB"


def run(arguments: Plan) -> int:
    topology = Topology.parse(arguments.topology)
    if topology.is_tpu:
        os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_COMPILER.items()})
        jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    config = config_of(arguments)
    job = Job(
        precision=arguments.dtype,
        batch=arguments.batch,
        canvas=arguments.canvas,
        new_tokens=arguments.generation.max_new_tokens,
        preset=arguments.generation.decoding.preset,
        step=arguments.step,
    )
    mesh = MeshShape.parse(arguments.mesh) if arguments.mesh else chosen_mesh(config, job, topology.devices)
    mesh.require(config)
    if mesh.size != topology.devices:
        raise ValueError(f"mesh={arguments.mesh!r}: takes {mesh.size} devices, {topology} has {topology.devices}")
    compiled = compile_step(arguments, config, job, mesh, topology)
    return report(Findings(config, job, mesh, topology, estimated_memory(config, job, mesh), compiled))


def config_of(arguments: Plan) -> DreamConfig:
    """The shape to plan for."""
    if (arguments.model is None) == (arguments.model_config is None):
        raise ValueError("model, model_config: give one of them")
    if arguments.model is not None:
        return DreamForCausalLM.read_config(huggingface.resolve(arguments.model, with_weights=False))
    if arguments.model_config not in SHAPES:
        raise ValueError(f"model_config={arguments.model_config!r}: must be one of {', '.join(SHAPES)}")
    return SHAPES[arguments.model_config]


def compile_step(
    arguments: Plan, config: DreamConfig, job: Job, mesh: MeshShape, topology: Topology
) -> Compiled | None:
    """What the compiler says; None, and a line that says why, where it is not asked."""
    if arguments.estimate or not topology.is_tpu:
        return None
    if not compilation.is_available():
        print("libtpu is not installed, so nothing is compiled: pip install 'jax-diffucoder[plan]'", file=sys.stderr)
        return None
    place = compilation.topology_mesh(topology, mesh)
    if job.is_training:
        return compile_update(config, job, place)
    return compilation.compile_generation(config, job, place, arguments.generation)

"""`diffucoder plan`: will it fit, and how fast can it be, on a machine that is not here?"""

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table

from jax_lm.options import GenerationOptions

if TYPE_CHECKING:
    from jax_lm.compilation import Compiled
    from jax_lm.models.config import DreamConfig
    from jax_lm.planning import Job, Memory
    from jax_lm.roofline import Topology
    from jax_lm.sharding import MeshShape

QUIET_COMPILER = {
    "JAX_PLATFORMS": "cpu",
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what a generation or a training step takes before a machine is rented; exit status 1 if it does not fit.

    For TPUs the real program is compiled for the named topology (extra `plan`, no TPU needed; a minute or so for 7B);
    otherwise, and for GPUs, everything is arithmetic and says so.

    Examples:
        diffucoder plan --model-config 7b --topology v5e:2x2
        diffucoder plan --model-config 7b --topology v5e:1x1 --dtype int8
        diffucoder plan --model apple/DiffuCoder-7B-Instruct --topology h100:1 --batch 16 --canvas 1024
        diffucoder plan --model-config 7b --topology v5p:2x2x2 --step sft --batch 8 --canvas 2048

    Attributes:
        step: generate, or an update of all weights: sft or grpo (coupled, max_new_tokens of a row its completion).
        topology: chips and their shape, such as v5e:2x2, v6e:1x1, v4:2x2x1 or h100:8.
        model: folder or hub id; only its config.json is read.
        model_config: a known shape in place of a model: 7b or small.
        dtype: bfloat16, float32 or int8 (kernels only).
        batch: rows decoded together.
        canvas: tokens of a row, prompt and answer.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        estimate: do arithmetic alone, compile nothing.
        generation: max_new_tokens (half of the canvas if not given), preset, temperature and so on.
    """

    topology: str
    step: str = "generate"
    model: str | None = None
    model_config: str | None = None
    dtype: str = "bfloat16"
    batch: int = 1
    canvas: int = 512
    mesh: str | None = None
    estimate: bool = False
    generation: tyro.conf.OmitArgPrefixes[GenerationOptions] = field(
        default_factory=lambda: GenerationOptions(max_new_tokens=0)
    )

    def run(self) -> int:
        from jax_lm.roofline import Topology

        topology = Topology.parse(self.topology)
        if topology.is_tpu:
            os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_COMPILER.items()})
        from jax_lm.planning import Job, chosen_mesh, estimated_memory
        from jax_lm.sharding import MeshShape

        config = self.config()
        job = Job(
            precision=self.dtype,
            batch=self.batch,
            canvas=self.canvas,
            new_tokens=self.generation.max_new_tokens or max(1, self.canvas // 2),
            preset=self.generation.preset,
            step=self.step,
        )
        mesh = MeshShape.parse(self.mesh) if self.mesh else chosen_mesh(config, job, topology.devices)
        mesh.require(config)
        if mesh.size != topology.devices:
            raise ValueError(f"mesh={self.mesh!r}: takes {mesh.size} devices, {topology} has {topology.devices}")
        compiled = self.compiled(config, job, mesh, topology)
        return report(Findings(config, job, mesh, topology, estimated_memory(config, job, mesh), compiled))

    def config(self) -> "DreamConfig":
        """The shape to plan for."""
        from jax_lm.checkpoints import huggingface
        from jax_lm.models.config import SHAPES
        from jax_lm.models.dream import DreamForCausalLM

        if (self.model is None) == (self.model_config is None):
            raise ValueError("model, model_config: give one of them")
        if self.model is not None:
            return DreamForCausalLM.read_config(huggingface.resolve(self.model, with_weights=False))
        if self.model_config not in SHAPES:
            raise ValueError(f"model_config={self.model_config!r}: must be one of {', '.join(SHAPES)}")
        return SHAPES[self.model_config]

    def compiled(self, config: "DreamConfig", job: "Job", mesh: "MeshShape", topology: "Topology") -> "Compiled | None":
        """What the compiler says; None, and a line that says why, where it is not asked."""
        if self.estimate or not topology.is_tpu:
            return None
        from jax_lm import compilation

        if not compilation.is_available():
            print(
                "libtpu is not installed, so nothing is compiled: pip install 'jax-diffucoder[plan]'", file=sys.stderr
            )
            return None
        place = compilation.topology_mesh(topology, mesh)
        if job.is_training:
            from jax_lm.training.footprint import compile_update

            return compile_update(config, job, place)
        return compilation.compile_generation(config, job, place, self.generation)


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
        from jax_lm.planning import fits

        if self.compiled is None:
            return fits(self.estimated.total, self.topology)
        return self.compiled.total is not None and fits(self.compiled.total, self.topology)


def report(found: Findings) -> int:
    """Print a plan; 0 if it fits, 1 if not."""
    from jax_lm.planning import remedies, smallest_topology

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
    from jax_lm.planning import RESERVED

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
    from jax_lm.planning import bound

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

"""Compiles the real generation for a TPU that is not here, and reports what the compiler says of its memory.

    pip install 'jax-diffucoder[plan]'      # libtpu: the compiler, no TPU needed

Uses `jax.experimental.topologies`; nothing runs. Entry: `diffucoder plan`.
"""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_empty_cache
from jax_lm.diffusion.step import BatchInputs, CanvasArrays, KVCache, Window
from jax_lm.diffusion.unmasking import SamplingParams
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.planning import Job
from jax_lm.roofline import Topology
from jax_lm.sharding import AXES, MeshShape, tree_shardings

SMALLEST_HOST = 4
USED = re.compile(r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm")


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one device.

    Attributes:
        arguments: bytes of weights, cache and state.
        working: bytes of everything else at the peak.
        flops: operations of one step, as XLA counts them (the body of a loop once).
        bytes: bytes that one step reads and writes, counted likewise.
        refusal: why the compiler would not make the program; then nothing else is known.
    """

    arguments: int = 0
    working: int = 0
    flops: float | None = None
    bytes: float | None = None
    refusal: str | None = None

    @property
    def total(self) -> int | None:
        """Bytes; None if the compiler refused."""
        return None if self.refusal else self.arguments + self.working


def is_available() -> bool:
    """Whether the TPU compiler is installed."""
    try:
        import libtpu  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return False
    return True


def topology_mesh(topology: Topology, shape: MeshShape) -> Mesh:
    """A mesh over the devices of a topology that need not be here.

    Raises:
        ValueError: the compiler knows no such topology, or the mesh does not have its size.
    """
    # A host has four chips unless it is told otherwise; smaller topologies are one host of their size.
    chips = topology.devices // topology.chip.cores
    bounds = (*topology.shape, *[1] * (3 - len(topology.shape)))
    options = {"chips_per_host_bounds": bounds} if chips < SMALLEST_HOST else {}
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=str(topology), **options)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology={str(topology)!r}: {str(error).splitlines()[0]}") from error
    if topology.chip.cores == 1:
        return shape.mesh(found.devices)
    # `jax.make_mesh` arranges whole chips only; cores lie beside each other in this order.
    sizes = (shape.data, shape.fsdp, shape.tensor)
    return Mesh(np.asarray(found.devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def compile_generation(config: DreamConfig, job: Job, mesh: Mesh, options: GenerationOptions) -> Compiled:
    """Compile the loop over a block that `Sampler` runs, the one that recomputes most."""
    return compiled(*generation(config, job, mesh, options))


def compiled(program: Any, arguments: tuple) -> Compiled:
    """What the compiler says of a program and the shapes, with shardings, of its arguments."""
    try:
        compiled = program.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        found = USED.search(str(error))
        return Compiled(refusal=f"needs {found[1]} of {found[2]}" if found else str(error).splitlines()[0][:300])
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    assert memory is not None
    cost = cost if isinstance(cost, dict) else {}
    kept = memory.argument_size_in_bytes
    peak = max(memory.peak_memory_in_bytes, kept + memory.temp_size_in_bytes)
    return Compiled(
        kept, peak - kept + memory.generated_code_size_in_bytes, cost.get("flops"), cost.get("bytes accessed")
    )


def generation(config: DreamConfig, job: Job, mesh: Mesh, options: GenerationOptions) -> tuple[Any, tuple]:
    """The compiled loop and its arguments as shapes with shardings."""
    model = DreamForCausalLM.abstract(config, jnp.dtype(job.dtype), int8=job.is_int8)
    model.model.mesh = mesh
    sampler = Sampler(model)
    prompt = np.zeros((job.batch, job.canvas - job.new_tokens), np.int32)
    canvas = Canvas.after(prompt, None, job.new_tokens)
    decoding = options.decoding.resolved
    block = next(canvas.blocks(options.decoding.block_columns(job.new_tokens)))
    step_config, _ = block_passes(canvas, block, [], options.decoding, sampler.step_config(options, block.length))[0]
    params = placed(sampler.params, tree_shardings(sampler.params, config, mesh))
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.eval_shape(lambda: sampler.start(canvas, 0))
    window = Window.of(block=block.start, rows=0, first_step=0, until=job.new_tokens, forwards=job.new_tokens)
    params_of_block = SamplingParams.of(options, block.length, canvas.region.length)
    inputs = jax.eval_shape(lambda: BatchInputs(CanvasArrays.of(canvas), window, params_of_block))
    cache = KVCache()
    if decoding.cache != "none":
        cache = empty_cache(sampler, canvas, decoding.cache == "dual", params)
    state, inputs = (placed(tree, jax.tree.map(lambda _: everywhere, tree)) for tree in (state, inputs))
    return run, (sampler.graph, params, state, cache, inputs, step_config)


def empty_cache(sampler: Sampler, canvas: Canvas, has_tail: bool, params: dict) -> KVCache:
    """The cache as the program that makes it lays it out."""
    lowered = run_empty_cache.lower(sampler.graph, params, canvas.tokens.shape, has_tail)
    shapes = jax.eval_shape(lambda: run_empty_cache(sampler.graph, params, canvas.tokens.shape, has_tail))
    return placed(shapes, lowered.compile().output_shardings)


def placed(tree: Any, shardings: Any) -> Any:
    """Shapes with their shardings."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, shardings
    )

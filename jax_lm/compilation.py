"""Compile real programs for a machine that is not here, and read what the compiler says of its memory.

    pip install 'jax-diffucoder[plan]'      # libtpu: the compiler, no TPU needed

Uses `jax.experimental.topologies`; nothing runs. The programs are the loop of a generation, and the updates of SFT and
coupled-GRPO. Entry: `diffucoder plan`, which puts this beside the arithmetic of `jax_lm.planning`.
"""

import functools
import os
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_lm.config import DreamConfig
from jax_lm.data.batches import Batch
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.drafts import Drafted
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_drafted, run_empty_cache
from jax_lm.diffusion.step import BatchInputs, CanvasArrays, KVCache, Window
from jax_lm.diffusion.unmasking import SamplingParams
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.planning import PlannedStep
from jax_lm.roofline import Topology
from jax_lm.sharding import AXES, MeshShape, row_spec, tree_shardings
from jax_lm.training import coupled_grpo, masked_diffusion
from jax_lm.training.config import GRPOConfig, LossConfig, OptimizerConfig
from jax_lm.training.coupled_grpo import PolicyBatch, policy_scores
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.update import make_update

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

SMALLEST_HOST = 4
USED = re.compile(r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm")
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
STEPS = 1000
"""Of the schedule; no number of it changes what a step takes."""


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures of one device.

    Attributes:
        arguments: bytes of weights, cache and state.
        working: bytes of everything else at the peak.
        flops: operations of one step, as XLA counts them (the body of a loop once).
        bytes: read and written by one step, counted likewise.
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


def prepare_compiler() -> None:
    """Set up libtpu as a compiler alone. Call it before any backend of JAX is initialised."""
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_COMPILER.items()})
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))


def topology_mesh(topology: Topology, shape: MeshShape) -> Mesh:
    """Make a mesh over devices that need not be here; ValueError if the compiler does not know the topology."""
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
    devices = np.asarray(found.devices).reshape(list(shape.sizes.values()))
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def compile_step(config: DreamConfig, planned: PlannedStep, mesh: Mesh, options: GenerationOptions) -> Compiled:
    """Compile a planned step for the devices of a mesh: the loop over a block that recomputes most, or an update."""
    if planned.is_training:
        program, arguments = update_program(config, planned, mesh)
    else:
        program, arguments = generation_program(config, planned, mesh, options)
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
    # The peak covers the arguments; without one, all temporary buffers are taken to live at once.
    kept = memory.argument_size_in_bytes
    working = max(memory.peak_memory_in_bytes - kept, memory.temp_size_in_bytes) + memory.generated_code_size_in_bytes
    return Compiled(kept, working, cost.get("flops"), cost.get("bytes accessed"))


def generation_program(
    config: DreamConfig, planned: PlannedStep, mesh: Mesh, options: GenerationOptions
) -> tuple[Any, tuple]:
    """Make the loop over a block that `Sampler` runs, and its arguments as shapes with shardings."""
    model = DreamForCausalLM.abstract(config, jnp.dtype(planned.dtype), int8=planned.is_int8)
    model.model.mesh = mesh
    sampler = Sampler(model)
    prompt = np.zeros((planned.batch, planned.canvas - planned.new_tokens), np.int32)
    canvas = Canvas.after(prompt, None, planned.new_tokens)
    block = next(canvas.blocks(options.decoding.block_columns(planned.new_tokens)))
    step_config, _ = block_passes(canvas, block, [], options.decoding, sampler.step_config(options, block.length))[0]
    params = placed(sampler.params, tree_shardings(sampler.params, config, mesh))
    window = Window.of(block=block.start, rows=0, first_step=0, until=planned.new_tokens, forwards=planned.new_tokens)
    params_of_block = SamplingParams.of(options, block.length, canvas.region.length)

    def start() -> tuple[Any, BatchInputs]:
        state = sampler.start(canvas, 0)
        started = Drafted.of(state, options.draft) if options.draft else state
        return started, BatchInputs(CanvasArrays.of(canvas), window, params_of_block)

    state, inputs = jax.eval_shape(start)
    kind, cache = options.decoding.resolved.cache, KVCache()
    if kind != "none":
        lowered = run_empty_cache.lower(sampler.graph, params, canvas.tokens.shape, kind == "dual")
        cache = placed(lowered.out_info, lowered.compile().output_shardings)
    everywhere = NamedSharding(mesh, PartitionSpec())
    program = run_drafted if options.draft else run
    return program, (sampler.graph, params, placed(state, everywhere), cache, placed(inputs, everywhere), step_config)


def placed(tree: Any, shardings: Any) -> Any:
    """Give shapes their shardings: each its own, or one to all."""
    if isinstance(shardings, NamedSharding):
        everywhere = shardings
        shardings = jax.tree.map(lambda _: everywhere, tree)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, shardings
    )


def update_program(config: DreamConfig, planned: PlannedStep, mesh: Mesh) -> tuple[Any, tuple]:
    """Make one update of all weights (AdamW, float32 masters) as the trainer does, and its arguments as shapes."""
    model = DreamForCausalLM.abstract(config, jnp.float32)
    model.model.mesh = mesh
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    loss, batch = {"sft": supervised, "grpo": policy_gradient}[planned.kind](graph, config, planned, mesh)
    transform = make_optimizer(OPTIMIZER, STEPS)
    optimizer = jax.eval_shape(transform.init, params)
    where = tree_shardings(params, config, mesh), tree_shardings(optimizer, config, mesh)
    rate = schedule(OPTIMIZER, STEPS, OPTIMIZER.learning_rate)
    update = make_update(loss, transform, rate, parts=1, dtype=planned.dtype, seed=0, placement=where)
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return update, (placed(params, where[0]), placed(optimizer, where[1]), {}, step, batch)


def supervised(graph: nnx.GraphDef, config: DreamConfig, planned: PlannedStep, mesh: Mesh) -> tuple[Any, Batch]:
    """Make the masked-diffusion loss, layers computed again for their gradient, and a batch split by rows."""
    settings = LossConfig(normalisation="sequence", remat=True)
    loss = masked_diffusion.diffusion_loss(graph, settings, config.mask_token_id or 0)

    def rows() -> Batch:
        tokens = jnp.zeros((planned.batch, planned.canvas), jnp.int32)
        arrays: Any = tokens, tokens.astype(bool), tokens, None
        return Batch(*arrays)

    return loss, placed(jax.eval_shape(rows), NamedSharding(mesh, row_spec(planned.batch, mesh)))


def policy_gradient(
    graph: nnx.GraphDef, config: DreamConfig, planned: PlannedStep, mesh: Mesh
) -> tuple[Any, PolicyBatch]:
    """Make the coupled-GRPO loss in its published settings, and rows that lie whole on every device."""
    settings = GRPOConfig()
    chosen = {"completion_length": planned.new_tokens, "mask_id": config.mask_token_id or 0}
    score = functools.partial(policy_scores, graph, masks=settings.masks, chunk=settings.score_chunk, **chosen)

    def rows() -> PolicyBatch:
        tokens = jnp.zeros((planned.batch, planned.canvas), jnp.int32)
        scores = jnp.zeros((planned.batch, planned.new_tokens))
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), planned.batch))
        return PolicyBatch(tokens, tokens.astype(bool), scores.astype(bool), scores[:, 0], keys, scores, scores)

    batch = placed(jax.eval_shape(rows), NamedSharding(mesh, PartitionSpec()))
    return coupled_grpo.grpo_loss(score, settings), batch

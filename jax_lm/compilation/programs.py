"""The programs of this package, made for devices that are not here: arguments are shapes with
shardings.

A generation is the loop over a block that `Sampler` runs; SFT, LoRA and coupled-GRPO are one update
of the trainer.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_lm.config import DreamConfig
from jax_lm.data.batches import Batch
from jax_lm.diffusion.candidates import SamplingParams
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.drafts import Drafted
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_drafted, run_empty_cache
from jax_lm.diffusion.step import BatchInputs, CanvasArrays, KVCache, Window
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import PlannedStep, parameter_count
from jax_lm.sharding import row_spec, tree_shardings
from jax_lm.training import coupled_grpo, masked_diffusion
from jax_lm.training.config import LossConfig, OptimizerConfig
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.rollout_source import MaskedRows, PolicyBatch, policy_scores
from jax_lm.training.run_defaults import resolve_grpo
from jax_lm.training.update import in_dtype, make_update, partition

OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
# Of the schedule; no number of it changes what a step takes.
STEPS = 1000


@dataclass(frozen=True)
class StepProgram:
    """A compiled function's input: what is compiled, and for which arguments.

    Attributes:
        function: under `jax.jit`.
        arguments: shapes with shardings, and what is static.
        rows: rows of each sequence that it computes.
        head_rows: rows of each sequence that the head computes at most.
    """

    function: Any
    arguments: tuple
    rows: int
    head_rows: int

    def lower(self) -> jax.stages.Lowered:
        """Trace it; what it gives is compiled by `compile()`."""
        return self.function.lower(*self.arguments)


def step_programs(
    config: DreamConfig, planned: PlannedStep, mesh: Mesh, options: GenerationOptions
) -> dict[str, StepProgram]:
    """Make what a planned step runs on the devices of a mesh, that which takes most memory first.

    An update is one program. A generation with a cache has two: a block begins with a refresh of
    all rows, and goes on with steps over a window; without one, every step computes all rows.
    """
    if planned.is_training:
        return {"update": update_program(config, planned, mesh)}
    return generation_programs(config, planned, mesh, options)


def generation_programs(
    config: DreamConfig, planned: PlannedStep, mesh: Mesh, options: GenerationOptions
) -> dict[str, StepProgram]:
    """Make the loops over the first block that `Sampler` runs."""
    model = DreamForCausalLM.abstract(config, jnp.dtype(planned.dtype), int8=planned.is_int8)
    model.model.mesh = mesh
    sampler = Sampler(model)
    prompt = np.zeros((planned.batch, planned.canvas - planned.new_tokens), np.int32)
    canvas = Canvas.after(prompt, None, planned.new_tokens)
    block = next(canvas.blocks(options.decoding.block_columns(planned.new_tokens)))
    params = placed(sampler.params, tree_shardings(sampler.params, config, mesh))
    window = Window.of(
        block=block.start,
        rows=0,
        first_step=0,
        until=planned.new_tokens,
        forwards=planned.new_tokens,
    )
    params_of_block = SamplingParams.of(options, block.length, canvas.region.length)

    def start() -> tuple[Any, BatchInputs]:
        state = sampler.start(canvas, 0)
        started = (
            Drafted.of(state, sampler.step_config(options, block.length))
            if options.extra_canvases
            else state
        )
        return started, BatchInputs(CanvasArrays.of(canvas), window, params_of_block)

    state, inputs = jax.eval_shape(start)
    kind, cache = options.decoding.settings.cache, KVCache()
    if kind != "none":
        lowered = run_empty_cache.lower(sampler.graph, params, canvas.tokens.shape, kind == "dual")
        cache = placed(lowered.out_info, lowered.compile().output_shardings)
    everywhere = NamedSharding(mesh, PartitionSpec())
    given = sampler.graph, params, placed(state, everywhere), cache, placed(inputs, everywhere)
    passes = block_passes(
        canvas, block, [], options.decoding, sampler.step_config(options, block.length)
    )
    names = ("refresh", "step") if len(passes) > 1 else ("step",)
    loop = run_drafted if options.extra_canvases else run
    return {
        name: StepProgram(loop, (*given, settings), settings.rows or planned.canvas, block.length)
        for name, (settings, _) in zip(names, passes, strict=True)
    }


def placed(tree: Any, shardings: Any) -> Any:
    """Give shapes their shardings: each its own, or one to all."""
    if isinstance(shardings, NamedSharding):
        everywhere = shardings
        shardings = jax.tree.map(lambda _: everywhere, tree)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )


def update_program(config: DreamConfig, planned: PlannedStep, mesh: Mesh) -> StepProgram:
    """Make one update (AdamW, float32 masters) as the trainer does, of all weights or of adapters."""
    model = trained_model(config, planned)
    model.model.mesh = mesh
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    ours = partition(params, lambda name: planned.lora_rank is None or lora.is_lora(name))
    others = partition(params, lambda name: not (planned.lora_rank is None or lora.is_lora(name)))
    frozen = jax.eval_shape(functools.partial(in_dtype, dtype=planned.dtype), others)
    loss, batch = {"sft": supervised, "grpo": policy_gradient}[planned.kind](
        graph, config, planned, mesh
    )
    transform = make_optimizer(OPTIMIZER, STEPS)
    optimizer = jax.eval_shape(transform.init, ours)
    where = tree_shardings(ours, config, mesh), tree_shardings(optimizer, config, mesh)
    rate = schedule(OPTIMIZER, STEPS, OPTIMIZER.learning_rate)
    update = make_update(
        loss, transform, rate, parts=1, dtype=planned.dtype, seed=0, placement=where
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    given = placed(frozen, tree_shardings(frozen, config, mesh)), step, batch
    head_rows = planned.new_tokens if planned.kind == "grpo" else planned.canvas
    return StepProgram(
        update,
        (placed(ours, where[0]), placed(optimizer, where[1]), *given),
        planned.canvas,
        head_rows,
    )


def trained_model(config: DreamConfig, planned: PlannedStep) -> DreamForCausalLM:
    """Make the model that is trained, with shapes in place of arrays."""

    def make() -> DreamForCausalLM:
        model = DreamForCausalLM(config, dtype=jnp.float32)
        if planned.is_int8:
            model.quantize()
        if planned.lora_rank is not None:
            lora.add_lora(model, lora.LoraConfig(rank=planned.lora_rank), seed=0)
        return model

    return nnx.eval_shape(make)


def supervised(
    graph: nnx.GraphDef, config: DreamConfig, planned: PlannedStep, mesh: Mesh
) -> tuple[Any, Batch]:
    """Make the masked-diffusion loss, layers computed again for their gradient, and a batch split
    by rows.
    """
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
    """Make the coupled-GRPO loss in its published settings, and rows that lie whole on every
    device.
    """
    settings = resolve_grpo(GRPOConfig(), parameter_count(config), mesh)
    assert settings.score_chunk is not None
    chosen = {"completion_length": planned.new_tokens, "mask_id": config.mask_token_id or 0}
    how = {"masks": settings.masks, "chunk": settings.score_chunk, "remat": bool(settings.remat)}
    score = functools.partial(policy_scores, graph, **how, **chosen)

    def rows() -> PolicyBatch:
        tokens = jnp.zeros((planned.batch, planned.canvas), jnp.int32)
        scores = jnp.zeros((planned.batch, planned.new_tokens))
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), planned.batch))
        masked = MaskedRows(tokens, tokens.astype(bool), scores.astype(bool), keys)
        return PolicyBatch(masked, scores, scores, scores[:, 0])

    batch = placed(jax.eval_shape(rows), NamedSharding(mesh, PartitionSpec()))
    return coupled_grpo.grpo_loss(score, settings), batch

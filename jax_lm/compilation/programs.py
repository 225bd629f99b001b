"""Build the programs of a planned step for devices that need not be present.

Their arguments are shapes with shardings. The program of a generation is the loop over a block that
`Sampler` runs. That of SFT, adaptation and coupled-GRPO is one update of the trainer.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_lm.data.batches import Batch
from jax_lm.diffusion.candidates import SamplingParams
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_empty_cache
from jax_lm.diffusion.state import BatchInputs, CanvasArrays, KVCache, SamplerState, Window
from jax_lm.diffusion.step import Passes
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import ModelGraph, split_model
from jax_lm.models.joined import join_on_gpu
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import PlannedStep, parameter_count
from jax_lm.sharding import row_spec, tree_shardings
from jax_lm.training import coupled_grpo, masked_diffusion
from jax_lm.training.config import LossConfig, OptimizerConfig
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.rollout_source import MaskedRows, PolicyBatch, make_scorer
from jax_lm.training.run_defaults import resolve_grpo
from jax_lm.training.update import in_dtype, make_update, partition

# The learning rate is arbitrary: a number inside the program changes neither cost nor memory.
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
# Length of the learning rate schedule. The cost of an update does not depend on it.
STEPS = 1000


@dataclass(frozen=True)
class StepProgram:
    """A function to compile, with its arguments.

    Attributes:
        function: a function under `jax.jit`.
        arguments: shapes with shardings, and static arguments.
    """

    function: Any
    arguments: tuple

    def lower(self) -> jax.stages.Lowered:
        """Trace and lower the function for its arguments."""
        return self.function.lower(*self.arguments)


def step_programs(
    planned: PlannedStep, mesh: Mesh, options: GenerationOptions
) -> dict[str, StepProgram]:
    """Return the programs of a planned step by name, the one that takes the most memory first.

    An update is one program. A generation with a KV cache has two: a block begins with a refresh of
    all rows and continues with steps over a window. Without a cache, every step computes all rows.
    """
    if planned.is_training:
        return {"update": update_program(planned, mesh)}
    return generation_programs(planned, mesh, options)


def generation_programs(
    planned: PlannedStep, mesh: Mesh, options: GenerationOptions
) -> dict[str, StepProgram]:
    """Return the programs of `Sampler` for the first block of a generation."""
    sampler = Sampler(make_abstract_model(planned, mesh))
    # The content of the prompt is irrelevant, its length is not: [batch, canvas - new tokens].
    prompt = np.zeros((planned.batch, planned.canvas - planned.new_tokens), np.int32)
    canvas = Canvas.after(prompt, None, planned.new_tokens)
    state, inputs, passes = begin_generation(sampler, canvas, options)
    # model, state, inputs and cache as shapes with shardings
    params = place_on(sampler.params, tree_shardings(sampler.params, planned.config, mesh))
    rule = options.decoding.settings.cache
    cache = KVCache()
    if rule != "none":
        lowered = run_empty_cache.lower(sampler.graph, params, canvas.tokens.shape, rule == "dual")
        # Only the compiler knows how it shards the empty cache.
        cache = place_on(lowered.out_info, lowered.compile().output_shardings)
    replicated = NamedSharding(mesh, PartitionSpec())
    arguments = (
        sampler.graph,
        params,
        place_on(state, replicated),
        cache,
        place_on(inputs, replicated),
    )
    # With a cache, a pass over all rows is followed by passes over a window.
    names = ("refresh", "step") if len(passes) > 1 else ("step",)
    return {
        name: StepProgram(run, (*arguments, step.config))
        for name, step in zip(names, passes, strict=True)
    }


def begin_generation(
    sampler: Sampler, canvas: Canvas, options: GenerationOptions
) -> tuple[SamplerState, BatchInputs, Passes]:
    """Return the first state of a generation, and the inputs and passes of its first block.

    The window of the inputs is limited to one forward pass.
    """
    region = canvas.region.length
    config = sampler.canvas_config(canvas, options)
    length = options.decoding.block_length_in(region + canvas.phase)
    block = next(iter(config.variant.blocks(canvas, length)))
    window = Window.of(block=block.start, rows=0, first_step=0, until=region, forwards=1)
    params = SamplingParams.of(options, block.length, region)
    return (
        config.variant.begin(sampler.start(canvas, 0), canvas),
        BatchInputs(CanvasArrays.of(canvas), window, params),
        block_passes(canvas, block, [], options.decoding, config, sampler.config),
    )


def place_on(tree, shardings) -> Any:
    """Return the shapes of a tree of arrays with their shardings.

    The shardings are a tree too, or a single one for all leaves.
    """

    def place(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(place, tree, jax.tree.broadcast(shardings, tree))


def update_program(planned: PlannedStep, mesh: Mesh) -> StepProgram:
    """Return one update of the trainer (AdamW, float32 masters), of all weights or of adapters."""
    # split the parameters into trained and frozen ones
    graph, params = split_model(make_abstract_model(planned, mesh))

    # Full training trains every parameter, LoRA the adapters alone.
    trained, others = partition(
        params, lambda name: planned.lora_rank is None or lora.is_lora(name)
    )
    frozen = jax.eval_shape(partial(in_dtype, dtype=planned.dtype), others)
    # loss, optimizer and their shardings
    loss, batch = UPDATE_INPUTS[planned.kind](graph, planned, mesh)
    transform = make_optimizer(OPTIMIZER, STEPS)
    optimizer = jax.eval_shape(transform.init, trained)
    place = partial(tree_shardings, config=planned.config, mesh=mesh)
    shardings = place(trained), place(optimizer)
    rate = schedule(OPTIMIZER, STEPS, OPTIMIZER.learning_rate)
    # A single part: no gradient accumulation.
    update = make_update(
        loss, transform, rate, parts=1, dtype=planned.dtype, seed=0, placement=shardings
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    masters, moments = place_on((trained, optimizer), shardings)
    return StepProgram(update, (masters, moments, place_on(frozen, place(frozen)), step, batch))


def make_abstract_model(planned: PlannedStep, mesh: Mesh) -> DreamForCausalLM:
    """Return the model of a step, with shapes in place of arrays."""

    def make():
        # of an update float32, as the masters of the trainer; frozen weights are converted afterwards
        dtype = "float32" if planned.is_training else planned.dtype
        model = DreamForCausalLM(planned.config, dtype=jnp.dtype(dtype))
        if planned.quantization:
            model.quantize(planned.quantization)
        if planned.lora_rank is not None:
            lora.add_lora(model, lora.LoraConfig(rank=planned.lora_rank), seed=0)
        # hidden states are sharded by rows on this mesh
        model.model.mesh = mesh
        return model if planned.is_training else join_on_gpu(model)

    return nnx.eval_shape(make)


def make_sft_inputs(
    graph: ModelGraph, planned: PlannedStep, mesh: Mesh, *, is_adaptation: bool = False
) -> tuple[Any, Batch]:
    """Return the masked-diffusion loss with rematerialisation, and a batch sharded by rows.

    With `is_adaptation`, they are those of adaptation, which packs its rows and anneals attention.
    That takes a mask per query.
    """
    settings = LossConfig(
        normalisation="token" if is_adaptation else "sequence",
        masks_per_query=is_adaptation,
        remat=True,
    )
    loss = masked_diffusion.diffusion_loss(
        graph.definition, settings, planned.config.mask_token_id or 0
    )

    def make_batch():
        tokens = jnp.zeros((planned.batch, planned.canvas), jnp.int32)
        # Tokens, canvas and samples are [batch, canvas]. Annealed attention has an openness per
        # row.
        openness = jnp.zeros(planned.batch) if is_adaptation else None
        arrays: Any = tokens, tokens.astype(bool), tokens, openness
        return Batch(*arrays)

    rows = NamedSharding(mesh, row_spec(planned.batch, mesh))
    return loss, place_on(jax.eval_shape(make_batch), rows)


def make_grpo_inputs(
    graph: ModelGraph, planned: PlannedStep, mesh: Mesh
) -> tuple[Any, PolicyBatch]:
    """Return the coupled-GRPO loss with published settings, and a batch, whole on every device."""
    # The size of the model decides on rematerialisation, the mesh on the chunks of scoring.
    settings = resolve_grpo(GRPOConfig(), parameter_count(planned.config), mesh)
    generation = replace(settings.generation, max_new_tokens=planned.new_tokens)
    settings = replace(settings, generation=generation)
    score = make_scorer(graph, planned.config.mask_token_id or 0, settings)

    def make_batch():
        tokens = jnp.zeros((planned.batch, planned.canvas), jnp.int32)
        scores = jnp.zeros((planned.batch, planned.new_tokens))
        # One key per row, as raw data [batch, 2].
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), planned.batch))
        masked = MaskedRows(tokens, tokens.astype(bool), scores.astype(bool), keys)
        return PolicyBatch(masked, scores, scores, scores[:, 0])

    batch = place_on(jax.eval_shape(make_batch), NamedSharding(mesh, PartitionSpec()))
    return coupled_grpo.grpo_loss(score, settings), batch


# The function that makes loss and batch of an update, by the kind of the planned step.
UPDATE_INPUTS = {
    "sft": make_sft_inputs,
    "adapt": partial(make_sft_inputs, is_adaptation=True),
    "grpo": make_grpo_inputs,
}

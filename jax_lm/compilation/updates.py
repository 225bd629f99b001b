"""Build the update of a training run for devices that need not be present.

    update, arguments = training_program(settings, model, trained=is_lora)
    update.lower(*arguments).compile().memory_analysis()

The program is exactly the one that `masked_diffusion.train` and `DiffuGRPOTrainer` compile for the
same settings. Its arguments are shapes with shardings. Knows settings and abstract models; nothing
runs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jax_lm.compilation.programs import place_on
from jax_lm.data.batches import Batch
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.sharding import row_devices, row_spec, tree_shardings
from jax_lm.training.config import AdaptConfig, SftConfig
from jax_lm.training.coupled_grpo import grpo_loss
from jax_lm.training.grpo_config import GRPOConfig
from jax_lm.training.masked_diffusion import diffusion_loss
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.prompt_set import WIDTH_BUCKET
from jax_lm.training.rollout_source import MaskedRows, PolicyBatch, policy_scores
from jax_lm.training.run_defaults import resolve_grpo, resolve_remat, resolve_trainer, weight_count
from jax_lm.training.update import in_dtype, make_update, partition

Settings = SftConfig | AdaptConfig | GRPOConfig


def training_program(
    settings: Settings,
    model: DreamForCausalLM,
    *,
    trained: Callable[[str], bool] = lambda name: True,
    steps: int = 1000,
) -> tuple[Any, tuple]:
    """Return the jitted update of a run, and its arguments as shapes with shardings.

    Args:
        settings: settings of the run.
        model: abstract model, with its adapters and its mesh.
        trained: whether a parameter is trained, by its checkpoint name.
        steps: steps of the learning rate schedule if the settings have no `max_steps`. The cost of
            an update does not depend on their number.

    Raises:
        ValueError: the settings do not fit the mesh, or the model has no mask token.
    """
    if model.mesh is None or model.config.mask_token_id is None:
        raise ValueError(
            f"mesh={model.mesh}, mask_token_id={model.config.mask_token_id}: must be given"
        )
    # settings that depend on the size of the model
    mesh, (graph, state) = model.mesh, nnx.split(model)
    weights, count = nnx.to_pure_dict(state), weight_count(state)
    # compute dtype: bfloat16 for large models
    training = resolve_trainer(settings.training, count)
    dtype = training.dtype
    # policy gradient, or the masked-diffusion loss
    if isinstance(settings, GRPOConfig):
        loss, batch = policy_update(graph, model, resolve_grpo(settings, count, mesh))
    else:
        loss, batch = diffusion_update(graph, model, settings, count)
    # shapes of the parameters: trained ones are float32 masters, all others are in the dtype
    float32 = jax.eval_shape(
        lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree),
        partition(weights, trained),
    )
    frozen = jax.eval_shape(
        lambda tree: in_dtype(tree, dtype), partition(weights, lambda name: not trained(name))
    )
    transform = make_optimizer(training.optimizer, training.max_steps or steps)
    optimizer = jax.eval_shape(transform.init, float32)
    # the update itself, and its arguments with shardings
    places = [tree_shardings(tree, model.config, mesh) for tree in (float32, optimizer, frozen)]
    # Donated arguments keep their placement: (masters, optimizer state).
    update = make_update(
        loss,
        transform,
        schedule(training.optimizer, training.max_steps or steps, training.optimizer.learning_rate),
        parts=training.gradient_accumulation_steps,
        dtype=dtype,
        seed=training.seed,
        placement=(places[0], places[1]),
    )
    step = jax.ShapeDtypeStruct((), jnp.int32)
    arguments = [
        place_on(tree, shardings)
        for tree, shardings in zip((float32, optimizer, frozen), places, strict=True)
    ]
    return update, (*arguments, step, batch)


def diffusion_update(
    graph: nnx.GraphDef, model: DreamForCausalLM, settings: SftConfig | AdaptConfig, count: int
) -> tuple[Any, Batch]:
    """Return the loss of fine-tuning or adaptation, and a batch sharded by rows."""
    # Adaptation always packs: its rows are cut from the concatenated texts.
    is_adapted = isinstance(settings, AdaptConfig)
    # packed rows hold several texts, so that attention needs a mask per query
    packed = is_adapted or settings.packed
    loss = resolve_remat(settings.loss, count)
    loss = diffusion_loss(
        graph, replace(loss, masks_per_query=packed), model.config.mask_token_id or 0
    )
    # The batch is filled up to a multiple of the accumulation steps and devices: 6 rows on 4
    # devices are 8.
    multiple = settings.training.gradient_accumulation_steps * row_devices(model.mesh)
    rows = settings.batch_size + -settings.batch_size % multiple
    shape = (rows, settings.max_length)
    # Only attention annealing needs the openness of the rows.
    opens = is_adapted and settings.annealing_steps > 0
    arrays: Any = (
        jax.ShapeDtypeStruct(shape, jnp.int32),
        jax.ShapeDtypeStruct(shape, jnp.bool_),
        jax.ShapeDtypeStruct(shape, jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.float32) if opens else None,
    )
    assert model.mesh is not None
    return loss, place_on(Batch(*arrays), NamedSharding(model.mesh, row_spec(rows, model.mesh)))


def policy_update(
    graph: nnx.GraphDef, model: DreamForCausalLM, settings: GRPOConfig
) -> tuple[Any, PolicyBatch]:
    """Return the loss of coupled-GRPO, and a batch that is replicated on every device."""
    assert settings.score_chunk is not None
    assert model.mesh is not None
    rows, new_tokens = settings.completions, settings.generation.max_new_tokens
    score = partial(
        policy_scores,
        graph,
        completion_length=new_tokens,
        mask_id=model.config.mask_token_id or 0,
        masks=settings.masks,
        chunk=settings.score_chunk,
        remat=bool(settings.remat),
    )
    # prompts are padded to a multiple of the bucket: 500 -> 512 with WIDTH_BUCKET = 32
    width = settings.max_prompt_length + -settings.max_prompt_length % WIDTH_BUCKET

    # one row per completion: [completions, prompt width + new tokens]
    def make_batch() -> PolicyBatch:
        tokens = jnp.zeros((rows, width + new_tokens), jnp.int32)
        scores = jnp.zeros((rows, new_tokens))
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), rows))
        # commit steps exist only for masks that follow the order of decoding
        steps = scores.astype(jnp.int32) if settings.masks.reads_steps else None
        return PolicyBatch(
            MaskedRows(tokens, tokens.astype(bool), scores.astype(bool), keys, steps),
            old_scores=scores if settings.needs_old_scores else None,
            reference_scores=scores if settings.loss.beta else None,
            advantages=scores[:, 0],
        )

    batch = place_on(jax.eval_shape(make_batch), NamedSharding(model.mesh, PartitionSpec()))
    return grpo_loss(score, settings), batch

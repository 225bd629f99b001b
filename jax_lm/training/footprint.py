"""What a training step takes on a machine that is not here: the real update, compiled for it, or arithmetic.

Knows trainers' losses and the compiler of `jax_lm.compilation`; nothing runs. Entry: `diffucoder plan --step sft`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_lm.compilation import Compiled, compiled, placed
from jax_lm.config import DreamConfig
from jax_lm.data.batches import Batch
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import Job
from jax_lm.sharding import row_spec, tree_shardings
from jax_lm.training import coupled_grpo, masked_diffusion
from jax_lm.training.config import GRPOConfig, LossConfig, OptimizerConfig
from jax_lm.training.coupled_grpo import PolicyBatch, policy_scores
from jax_lm.training.optimizer import make_optimizer, schedule
from jax_lm.training.update import make_update

OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
STEPS = 1000
"""Of the schedule; no number of it changes what a step takes."""


def compile_update(config: DreamConfig, job: Job, mesh: Mesh) -> Compiled:
    """Compile one update of all weights (AdamW, float32 masters) as the trainer makes it, for the devices of a mesh."""
    model = DreamForCausalLM.abstract(config, jnp.float32)
    model.model.mesh = mesh
    graph, state = nnx.split(model)
    params = nnx.to_pure_dict(state)
    loss, batch = {"sft": supervised, "grpo": policy_gradient}[job.step](graph, config, job, mesh)
    transform = make_optimizer(OPTIMIZER, STEPS)
    optimizer = jax.eval_shape(transform.init, params)
    where = tree_shardings(params, config, mesh), tree_shardings(optimizer, config, mesh)
    rate = schedule(OPTIMIZER, STEPS, OPTIMIZER.learning_rate)
    update = make_update(loss, transform, rate, parts=1, dtype=job.dtype, seed=0, placement=where)
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return compiled(update, (placed(params, where[0]), placed(optimizer, where[1]), {}, step, batch))


def supervised(graph: nnx.GraphDef, config: DreamConfig, job: Job, mesh: Mesh) -> tuple[Any, Batch]:
    """The masked-diffusion loss, layers computed again for their gradient, and a batch split by rows."""
    loss = masked_diffusion.diffusion_loss(
        graph, LossConfig(normalisation="sequence", remat=True), config.mask_token_id or 0
    )
    rows = (job.batch, job.canvas)
    split = NamedSharding(mesh, row_spec(job.batch, mesh))

    def part(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=split)

    whole = part(rows, jnp.int32), part(rows, bool), part(rows, jnp.int32), part((job.batch,), jnp.float32)
    return loss, Batch(*whole)


def policy_gradient(graph: nnx.GraphDef, config: DreamConfig, job: Job, mesh: Mesh) -> tuple[Any, PolicyBatch]:
    """The coupled-GRPO loss in its published settings, and rows that lie whole on every device."""
    settings = GRPOConfig()
    b, c = job.batch, job.new_tokens

    def score(params: Any, rows: tuple) -> jax.Array:
        return policy_scores(
            graph, params, rows, completion_length=c, mask_id=config.mask_token_id or 0, masks=settings.masks,
            chunk=settings.score_chunk,
        )  # fmt: skip

    def part(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    keys = jax.eval_shape(lambda: jax.random.key_data(jax.random.split(jax.random.key(0), b)))
    batch = PolicyBatch(
        tokens=part((b, job.canvas), jnp.int32),
        attention_mask=part((b, job.canvas), bool),
        completion_mask=part((b, c), bool),
        advantages=part((b,), jnp.float32),
        keys=part(keys.shape, keys.dtype),
        old_scores=part((b, c), jnp.float32),
        reference_scores=part((b, c), jnp.float32),
    )
    return coupled_grpo.grpo_loss(score, settings), batch

"""A token that a model was not made with: in a row of its vocabulary that no token has, else in new ones."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx

from jax_lm.models.dream import DreamForCausalLM

MULTIPLE = 64
"""Of the rows of a vocabulary that grows, so that meshes divide them."""


def add_expand_token(model: DreamForCausalLM, expand_id: int) -> DreamForCausalLM:
    """Let holes of a model grow by a token, which starts as the mean of all tokens before it; gives the model.

    The weights must be floats, all of which are to be trained.
    """
    config = model.config
    missing = expand_id + 1 - config.vocab_size
    size = config.vocab_size + (-(-missing // MULTIPLE) * MULTIPLE if missing > 0 else 0)
    tables = [model.model.embed_tokens, *([] if model.lm_head is None else [model.lm_head])]
    for table in tables:
        rows = table.weight[...]
        mean = jnp.mean(rows[:expand_id].astype(jnp.float32), axis=0).astype(rows.dtype)
        more = jnp.broadcast_to(mean, (size - len(rows), rows.shape[1]))
        table.weight = nnx.Param(jnp.concatenate([rows, more]).at[expand_id].set(mean))
    model.config = replace(config, vocab_size=size, expand_token_id=expand_id)
    return model.on_mesh(model.mesh) if model.mesh else model

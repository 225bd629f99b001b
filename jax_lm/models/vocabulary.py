"""Adding a token to a model, in an unused row of its vocabulary if there is one."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx

from jax_lm.models.dream import DreamForCausalLM

# A vocabulary grows by a multiple of this number of rows, so that meshes still divide it.
MULTIPLE = 64


def add_expand_token(model: DreamForCausalLM, expand_id: int) -> DreamForCausalLM:
    """Add the token by which holes grow, in place; returns the model.

    Its embedding, and its row of the head, start as the mean of all tokens before it. The weights
    must be floating-point, because they are trained afterwards.

    Args:
        model: the model that gets the token.
        expand_id: id of the token in the tokenizer.
    """
    config = model.config
    # expand_id = 100 and a vocabulary of 96: 5 rows are missing, so it grows by 64, to 160.
    missing = expand_id + 1 - config.vocab_size
    size = config.vocab_size + (-(-missing // MULTIPLE) * MULTIPLE if missing > 0 else 0)
    tables = [model.model.embed_tokens, *([] if model.lm_head is None else [model.lm_head])]
    for table in tables:
        rows = table.weight[...]
        mean = jnp.mean(rows[:expand_id].astype(jnp.float32), axis=0).astype(rows.dtype)
        new_rows = jnp.broadcast_to(mean, (size - len(rows), rows.shape[1]))
        table.weight = nnx.Param(jnp.concatenate([rows, new_rows]).at[expand_id].set(mean))
    model.config = replace(config, vocab_size=size, expand_token_id=expand_id)
    return model.on_mesh(model.mesh) if model.mesh else model

"""Growing the vocabulary of a model, and adding a token to it."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_lm.config import VOCABULARY_STEP
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import DreamEmbedding, DreamLinear


def vocabulary_tables(model: DreamForCausalLM) -> list[DreamEmbedding | DreamLinear]:
    """Return the tables with a row for each token: the embedding, and the head unless it is tied."""
    return [model.model.embed_tokens, *([] if model.lm_head is None else [model.lm_head])]


def mean_row(rows: Float[Array, "v d"]) -> Float[Array, "d"]:
    """Return the mean of rows, computed in float32."""
    return jnp.mean(rows, axis=0, dtype=jnp.float32).astype(rows.dtype)


def grow_vocabulary(model: DreamForCausalLM, size: int) -> DreamForCausalLM:
    """Grow the token tables of a model to at least `size` rows, in place; returns the model.

    New rows start as the mean of the existing ones, which do not change.
    """
    missing = size - model.config.vocab_size
    if missing <= 0:
        return model
    for table in vocabulary_tables(model):
        rows = table.weight[...]
        table.weight = nnx.Param(
            jnp.concatenate([rows, jnp.broadcast_to(mean_row(rows), (missing, rows.shape[1]))])
        )
    model.config = replace(model.config, vocab_size=size)
    return model.on_mesh(model.mesh) if model.mesh else model


def add_expand_token(model: DreamForCausalLM, expand_id: int) -> DreamForCausalLM:
    """Add the token by which holes grow, in place; returns the model.

    Its embedding, and its row of the head, start as the mean of all tokens before it. The weights
    must be floating-point, because they are trained afterwards.

    Args:
        model: the model that gets the token.
        expand_id: id of the token in the tokenizer.
    """
    # expand_id = 100 and a vocabulary of 96: it grows to 128.
    model = grow_vocabulary(model, -(-(expand_id + 1) // VOCABULARY_STEP) * VOCABULARY_STEP)
    for table in vocabulary_tables(model):
        rows = table.weight[...]
        table.weight = nnx.Param(rows.at[expand_id].set(mean_row(rows[:expand_id])))
    model.config = replace(model.config, expand_token_id=expand_id)
    return model

"""Temporary memory of coupled-GRPO's gradient with and without chunks, from XLA's own plan; nothing
is computed.

python experiments/grpo_memory.py
"""

import sys

import jax
import jax.numpy as jnp
from flax import nnx

from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.training.grpo_config import Estimator
from jax_lm.training.policy_loss import completion_scores, forward_process
from jax_lm.training.rollouts import sample_keys

PROMPT, COMPLETION, SAMPLES = 200, 256, 16
CONFIG = DreamConfig(
    vocab_size=152_064,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    mask_token_id=151_666,
)


def temporary_bytes(chunk: int) -> int:
    """What the gradient needs beside arguments and results."""
    graph, state = nnx.split(DreamForCausalLM.abstract(CONFIG))

    def total(params: dict, tokens: jax.Array) -> jax.Array:
        keys = sample_keys(0, 0, 1, jnp.arange(SAMPLES))
        copies = forward_process(keys, tokens, COMPLETION, 151_666, Estimator())
        present = jnp.ones(tokens.shape, bool)
        return jnp.sum(completion_scores(nnx.merge(graph, params), tokens, present, copies, chunk))

    tokens = jax.ShapeDtypeStruct((SAMPLES, PROMPT + COMPLETION), jnp.int32)
    memory = (
        jax.jit(jax.grad(total)).lower(nnx.to_pure_dict(state), tokens).compile().memory_analysis()
    )
    assert memory
    return memory.temp_size_in_bytes


def main() -> None:
    """Print a table."""
    one = 3 * COMPLETION * CONFIG.vocab_size * 4
    sys.stdout.write(f"logits of one completion's three copies: {one / 2**30:.2f} GiB\n")
    sys.stdout.write(
        f"weights: {CONFIG.vocab_size * CONFIG.hidden_size * 8 / 2**30:.2f} GiB in embedding and head\n"
    )
    for chunk in (1, 4, SAMPLES):
        sys.stdout.write(f"score_chunk {chunk:2}: {temporary_bytes(chunk) / 2**30:6.2f} GiB\n")


if __name__ == "__main__":
    main()

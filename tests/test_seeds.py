"""All 64 bits of a seed count, in decoding and in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.checkpoints.peft import LoraConfig
from jax_lm.diffusion.state import row_keys
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.seeds import seed_key
from jax_lm.training.rollouts import sample_keys

LARGE = 2**32 + 5


@pytest.mark.parametrize("seed", [0, 5, 2**31 + 3, 2**32 - 1])
def test_small_seeds_have_the_keys_of_jax(seed):
    expected = jax.random.key_data(jax.random.key(seed))
    np.testing.assert_array_equal(jax.random.key_data(seed_key(seed)), expected)


def adapters(config, seed):
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    lora.add_lora(model, LoraConfig(rank=2), seed)
    return np.concatenate(
        [np.ravel(value) for name, value in parameters(model).items() if "lora_a" in name]
    )


def test_the_upper_bits_choose_other_numbers(tiny_config):
    def of_rollout(seed):
        return jax.random.key_data(sample_keys(seed, 1, 0, jnp.arange(2)))

    def of_rows(seed):
        return jax.random.key_data(row_keys(seed, [0, 1]))

    for numbers in (of_rollout, of_rows, lambda seed: adapters(tiny_config, seed)):
        assert not np.array_equal(numbers(LARGE), numbers(LARGE % 2**32))

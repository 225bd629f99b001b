"""Models of `family_cases`, and models that take another family for their own."""

import dataclasses

import jax.numpy as jnp
from family_cases import random_tensor

from jax_lm.config import DreamConfig
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters


def build(config):
    """A model with the random tensors of a case."""
    tensors = {
        name: jnp.asarray(random_tensor(name, shape))
        for name, shape in parameter_shapes(config).items()
    }
    return DreamForCausalLM.from_tensors(config, tensors)


def with_rule(model, **change):
    """A model that takes another family for its own."""

    class Mistaken(DreamConfig):
        @property
        def family(self):
            return dataclasses.replace(super().family, **change)

    config = Mistaken(**dataclasses.asdict(model.config))
    return DreamForCausalLM.from_tensors(config, parameters(model))

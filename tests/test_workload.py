"""Random prompts, canvases and models."""

import numpy as np
import pytest

from jax_lm.benchmark import backend
from jax_lm.benchmark.settings import Cell
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import parameter_shapes, parameters


def test_random_prompts_hold_every_token_but_mask(tiny_config):
    ids = backend.random_prompts(tiny_config, 8, 2000, seed=0)
    assert set(ids.ravel().tolist()) == set(range(96)) - {95}


def test_random_canvas_has_the_width_of_a_request(tiny_config):
    canvas = backend.random_canvas(
        tiny_config, Cell(batch=2, prompt_tokens=40, new_tokens=17), seed=0
    )
    assert canvas.tokens.shape == (2, 64)
    assert canvas.holes.sum(axis=1).tolist() == [17, 17]
    assert canvas.attention_mask.sum(axis=1).tolist() == [57, 57]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_model_has_the_shapes_and_the_spread_of_a_fresh_one(tiny_config, dtype):
    weights = parameters(backend.random_model(tiny_config, dtype))
    assert {name: value.shape for name, value in weights.items()} == parameter_shapes(tiny_config)
    assert {str(value.dtype) for value in weights.values()} == {dtype}
    assert not weights["model.layers.0.self_attn.q_proj.bias"].any()
    assert (weights["model.norm.weight"] == 1).all()
    kernels = [np.asarray(value, np.float32) for value in weights.values() if value.ndim == 2]
    assert all(kernel.std() == pytest.approx(0.02, rel=0.1) for kernel in kernels)
    assert not any(
        np.array_equal(kernels[0].ravel()[:50], kernel.ravel()[:50]) for kernel in kernels[1:]
    )


def test_random_model_generates(tiny_config):
    canvas = backend.random_canvas(
        tiny_config, Cell(batch=1, prompt_tokens=8, new_tokens=8), seed=0
    )
    state = Sampler(backend.random_model(tiny_config, "float32")).generate(
        canvas, backend.model_card_options(8)
    )
    assert not np.asarray(state.masked).any()

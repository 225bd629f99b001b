"""Low-rank adapters: they start as nothing, train alone, and merge into the weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.checkpoints.peft import LoraConfig, NamedBase, read_adapter
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters
from jax_lm.models.lora import adapters, add_lora, is_lora, load_adapter, merge, save_adapter

IDS = jnp.arange(12).reshape(2, 6)


@pytest.fixture(scope="module")
def config(tiny_config):
    return dataclasses.replace(tiny_config, num_hidden_layers=1)


@pytest.fixture
def model(config):
    return DreamForCausalLM(config, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def logits():
    return nnx.jit(lambda model: model(IDS))


def trained(model):
    """As if the adapters had been trained."""
    for number, (_, adapter) in enumerate(adapters(model)):
        adapter.lora_b[...] = 0.05 * jax.random.normal(
            jax.random.key(number), adapter.lora_b[...].shape
        )


def test_fresh_adapters_change_nothing(model):
    """To the bit, operation by operation: within one computation the compiler may round a sum with
    0 otherwise.
    """
    before = model(IDS)
    add_lora(model, LoraConfig(rank=4), seed=0)
    np.testing.assert_array_equal(model(IDS), before)


def test_every_targeted_layer_carries_one(model):
    add_lora(model, LoraConfig(rank=4, targets=("q_proj", "down_proj")), seed=0)
    assert [path for path, _ in adapters(model)] == [
        "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj"
    ]  # fmt: skip
    shapes = {name: value.shape for name, value in parameters(model).items() if is_lora(name)}
    assert shapes == {
        "model.layers.0.mlp.down_proj.lora_a": (4, 48),
        "model.layers.0.mlp.down_proj.lora_b": (32, 4),
        "model.layers.0.self_attn.q_proj.lora_a": (4, 32),
        "model.layers.0.self_attn.q_proj.lora_b": (32, 4),
    }


def test_adapter_adds_its_scaled_product(model):
    add_lora(model, LoraConfig(rank=4, alpha=6.0), seed=0)
    trained(model)
    layer = model.model.layers[0].mlp.gate_proj
    x = jax.random.normal(jax.random.key(1), (3, 32))
    expected = layer.base(x) + 1.5 * x @ layer.lora_a[...].T @ layer.lora_b[...].T
    np.testing.assert_allclose(layer(x), expected, rtol=2e-5, atol=2e-6)


def test_merged_model_is_the_adapted_one(model, config, logits, tmp_path):
    before = logits(model)
    add_lora(model, LoraConfig(rank=4), seed=0)
    trained(model)
    adapted = logits(model)
    assert float(jnp.abs(adapted - before).max()) > 1e-3
    save_adapter(model, tmp_path, LoraConfig(rank=4), NamedBase("base"))
    other = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    load_adapter(other, read_adapter(tmp_path))
    np.testing.assert_array_equal(logits(other), adapted)
    merge(other)
    assert {name: value.shape for name, value in parameters(other).items()} == parameter_shapes(
        config
    )
    np.testing.assert_allclose(logits(other), adapted, rtol=1e-4, atol=1e-5)


def test_adapter_of_another_shape_is_refused(model, config, tmp_path):
    add_lora(model, LoraConfig(rank=4), seed=0)
    save_adapter(model, tmp_path, LoraConfig(rank=3), NamedBase("base"))
    with pytest.raises(CheckpointError, match=r"lora_a' in .* has shape \(4, "):
        load_adapter(DreamForCausalLM(config, rngs=nnx.Rngs(0)), read_adapter(tmp_path))


def test_some_layer_must_be_meant(model):
    with pytest.raises(ValueError, match="lora_targets='nothing': no layer of the model is meant"):
        add_lora(model, LoraConfig(rank=1, targets="nothing"), seed=0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rank": 0}, "lora_rank=0"),
        ({"rank": 2, "alpha": 0.0}, "lora_alpha=0.0"),
        ({"rank": 2, "targets": ("x",)}, "x"),
    ],
)
def test_settings_out_of_range_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        LoraConfig(**fields)

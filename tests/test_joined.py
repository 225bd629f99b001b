"""Joined products: what they compute, what stays apart, and what a step then launches."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.generation import greedy
from flax import nnx

from experiments.compiled.explanation import StepShape, explain
from jax_lm.checkpoints.peft import LoraConfig
from jax_lm.compilation import programs
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import DiffuCoderInference
from jax_lm.models import joined, lora
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.joined import join, join_on_gpu
from jax_lm.models.layers import DreamAttention, DreamMLP
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape

IDS = np.arange(24, dtype=np.int32).reshape(2, 12)


def on_a_gpu(monkeypatch):
    """Let the only device pass for a GPU, as far as joining goes."""
    monkeypatch.setattr(joined.jax, "devices", lambda: [SimpleNamespace(platform="gpu")])


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        ("float32", None),
        ("bfloat16", None),
        ("float32", "int8"),
        ("float32", "int4"),
        ("float32", "fp8"),
    ],
)
def test_joined_products_compute_the_same(golden_model, dtype, quantization):
    """With biases, of weights that differ."""
    config = replace(golden_model.config, intermediate_size=128)  # whole groups of int4
    model = DreamForCausalLM(config, rngs=nnx.Rngs(1), dtype=jnp.dtype(dtype))
    rng = np.random.default_rng(0)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            bias = projection.bias
            bias[...] = jnp.asarray(rng.normal(size=bias[...].shape), dtype)
    if quantization:
        model.quantize(quantization)
    apart = model(jnp.asarray(IDS))
    names = set(parameters(join(model)))
    assert {
        "model.layers.0.self_attn.qkv_proj.bias",
        "model.layers.0.mlp.gate_up_proj.weight",
    } < names
    assert not any(".q_proj" in name or ".up_proj" in name for name in names)
    np.testing.assert_allclose(model(jnp.asarray(IDS)), apart, rtol=0, atol=2e-6)


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_generation_is_the_same(golden_model, preset):
    # Weights that are large enough for decided preferences: the sums round differently.
    config = replace(golden_model.config, initializer_range=0.4)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(1))
    canvas, options = Canvas.after(IDS, None, 20), greedy(10, decoding=Decoding(preset=preset))
    apart = Sampler(model).generate(canvas, options)
    found = Sampler(join(model)).generate(canvas, options)
    np.testing.assert_array_equal(found.tokens, apart.tokens)
    np.testing.assert_array_equal(found.commit_step, apart.commit_step)


def test_layers_with_adapters_stay_apart(tiny_config):
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))
    lora.add_lora(model, LoraConfig(rank=2, targets=("q_proj",)), seed=0)
    apart = model(jnp.asarray(IDS))
    layer = join(model).model.layers[0]
    assert type(layer.self_attn) is DreamAttention
    assert type(layer.mlp) is not DreamMLP
    np.testing.assert_allclose(model(jnp.asarray(IDS)), apart, rtol=0, atol=2e-6)


def test_only_gpus_get_joined_products(tiny_folder, tiny_inference, monkeypatch):
    """What a user loads: joined on a GPU, as published on this CPU, and the same answer."""
    assert "q_proj" in tiny_inference.sampler.params["model"]["layers"][0]["self_attn"]
    loaded = DreamForCausalLM.from_pretrained(tiny_folder, dtype="float32")
    with monkeypatch.context() as patch:
        on_a_gpu(patch)
        sampler = Sampler(join_on_gpu(loaded))
    assert "qkv_proj" in sampler.params["model"]["layers"][0]["self_attn"]
    monkeypatch.setattr("jax_lm.inference.join_on_gpu", join)
    engine = DiffuCoderInference(tiny_folder, verbose=False)
    assert "gate_up_proj" in engine.sampler.params["model"]["layers"][0]["mlp"]
    settings = {"max_new_tokens": 16, "temperature": 0.0, "num_steps": 8}
    assert engine.generate("def f", **settings) == tiny_inference.generate("def f", **settings)


def test_a_step_of_joined_products_launches_four_a_layer(tiny_config, monkeypatch):
    decoding = Decoding(preset="fast")
    planned = PlannedStep(
        tiny_config, precision="float32", canvas=64, new_tokens=32, decoding=decoding
    )
    options = GenerationOptions(max_new_tokens=32, decoding=decoding)
    shape = StepShape(vocabulary=96, hidden=32, memory=2**30, in_loop=True)
    mesh, rows = MeshShape().mesh(jax.devices()[:1]), []
    for each in (join, join_on_gpu):
        monkeypatch.setattr(programs, "join_on_gpu", each)
        step = programs.step_programs(planned, mesh, options)["step"]
        found = explain(step.lower().compile().as_text(), shape)
        assert found.read_again == ()
        rows.append(found.rows)
    # q, k and v; o; gate and up; down; and the head
    layers = tiny_config.num_hidden_layers
    assert rows == [{32: 4 * layers + 1}, {32: 7 * layers + 1}]

"""Quantized kernels: what int4 and fp8 store, what they compute, and what they refuse."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.checkpoints import stored
from jax_lm.checkpoints.peft import LoraConfig
from jax_lm.cli import main as cli
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.models import lora
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.graph import split_model
from jax_lm.models.products import product

QUANTIZE = jax.jit(stored.quantize, static_argnums=1)


@pytest.fixture(scope="module")
def kernel():
    """Rows of normal numbers; one is zero, one has an outlier, one is positive."""
    weight = np.random.default_rng(0).normal(size=(12, 192)).astype(np.float32)
    weight[1], weight[2, 70] = 0, -50
    weight[3] = np.abs(weight[3])
    return weight


def dequantized(parts):
    """Read int4 one number at a time."""
    packed, scale, group_scale = (
        np.asarray(parts[kind]) for kind in ("weight", "scale", "group_scale")
    )
    outputs, half = packed.shape
    values = np.zeros((outputs, 2 * half), np.float64)
    for row in range(outputs):
        for column in range(2 * half):
            byte = int(packed[row, column % half])
            number = (byte // 16 if column >= half else byte % 16) - 8
            values[row, column] = number * int(group_scale[row, column // 32]) * float(scale[row])
    return values


def test_int4_is_unpacked_like_numbers_read_one_by_one(kernel):
    parts = QUANTIZE(jnp.asarray(kernel), "int4")
    assert {kind: (str(part.dtype), part.shape) for kind, part in parts.items()} == {
        "weight": ("uint8", (12, 96)),
        "scale": ("float32", (12,)),
        "group_scale": ("int8", (12, 6)),
    }
    unpacked = np.asarray(jax.jit(stored.unpack_int4)(parts["weight"], parts["group_scale"]))
    assert unpacked.dtype == np.int8
    assert np.array_equal(
        unpacked * np.asarray(parts["scale"], np.float64)[:, None], dequantized(parts)
    )


def test_int4_is_the_best_of_its_group_scales(kernel):
    """Against all 30 group scales, and every number of each: at most 4 % more error than the best."""
    parts = QUANTIZE(jnp.asarray(kernel), "int4")
    scale, group_scale = np.asarray(parts["scale"]), np.asarray(parts["group_scale"])
    assert np.abs(group_scale).max() <= 15
    assert (group_scale != 0).all()
    values = dequantized(parts)
    assert (values[1] == 0).all()
    assert values[2, 70] == pytest.approx(-50)
    errors = ((values - kernel) ** 2).reshape(12, 6, 32).sum(axis=-1)
    groups = kernel.reshape(12, 6, 32)
    best = np.full((12, 6), np.inf)
    for factor in (*range(-15, 0), *range(1, 16)):
        step = (factor * scale)[:, None, None]
        nearest = np.clip(np.round(groups / step), -8, 7) * step
        best = np.minimum(best, ((nearest - groups) ** 2).sum(axis=-1))
    assert errors.sum() <= 1.04 * best.sum()
    assert np.sqrt(errors.sum(axis=1) / (kernel**2).sum(axis=1).clip(1e-9)).max() < 0.13


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_computes_its_dequantized_kernel(dtype):
    """One layer of every kind, and the tied table: within 1 % of the same numbers in float64."""
    model = DreamForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=dtype, quantization="int4")
    assert model.dtype == dtype
    rng = np.random.default_rng(1)
    layer = model.model.layers[0]
    for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.mlp.down_proj):
        x = jnp.asarray(rng.normal(size=(2, 3, linear.shape[1])), dtype)
        parts = {kind: getattr(linear, kind)[...] for kind in ("weight", "scale", "group_scale")}
        expected = np.asarray(x, np.float64) @ dequantized(parts).T
        if linear.bias is not None:
            expected = expected + np.asarray(linear.bias[...], np.float64)
        ours = np.asarray(linear(x), np.float64)
        assert np.linalg.norm(ours - expected) < 0.01 * np.linalg.norm(expected)


def test_an_int4_model_answers_and_has_its_tables_in_int8():
    engine = DiffuCoderInference(dtype="int4", verbose=False)
    assert "int4 kernels, float32" in engine.describe()
    written = engine.generate("def add(a, b):", max_new_tokens=32, temperature=0.0)
    assert written.startswith("def add(a, b):\n    return a + b")
    by_dtype = {}
    for name, leaf in parameters(
        nnx.merge(engine.sampler.graph.definition, engine.sampler.params)
    ).items():
        by_dtype.setdefault(str(leaf.dtype), set()).add(".".join(name.split(".")[-2:]))
    assert "embed_tokens.weight" in by_dtype["int8"]
    assert {"q_proj.weight", "down_proj.weight"} <= by_dtype["uint8"]
    assert "norm.weight" in by_dtype["float32"]


def test_fp8_stores_the_nearest_numbers_of_four_bits(kernel):
    """Against all finite numbers of e4m3, written down by their definition."""
    parts = QUANTIZE(jnp.asarray(kernel), "fp8")
    assert {kind: (str(part.dtype), part.shape) for kind, part in parts.items()} == {
        "weight": ("float8_e4m3fn", (12, 192)),
        "scale": ("float32", (12,)),
    }
    # normal numbers (8 to 15) * 2^e, up to 14 * 2^5 = 448; subnormal ones are multiples of 2^-9
    positive = {m * 2.0**e for e in range(-9, 6) for m in range(16)} - {480.0}
    known = np.array(sorted(positive | {-x for x in positive}))
    weight = np.asarray(parts["weight"]).astype(np.float64)
    scale = np.asarray(parts["scale"], np.float64)[:, None]
    assert set(weight.flat) <= set(known)
    nearest = np.abs(known[None, None] * scale[..., None] - kernel[..., None]).min(axis=-1)
    assert np.abs(weight * scale - kernel) == pytest.approx(nearest, rel=1e-4, abs=1e-7)
    assert weight[2, 70] * scale[2, 0] == pytest.approx(-50)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_fp8_product_rounds_both_operands_and_nothing_else(kernel, dtype):
    """Rows with an outlier, and one of zeros, against the same numbers in float64."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(2, 5, 192))
    rows[0, 1, 7], rows[1, 2] = 300, 0
    rows = jnp.asarray(rows, dtype)
    parts = QUANTIZE(jnp.asarray(kernel), "fp8")
    found = np.asarray(jax.jit(product)(rows, parts["weight"]))
    assert found.dtype == np.float32
    exact = np.asarray(rows, np.float64)
    scale = np.abs(exact).max(axis=-1, keepdims=True).clip(1e-30) / 448
    # A number in the middle of two fp8 may become either.
    below, above = (
        (exact / scale * factor).astype(np.float32).astype(jnp.float8_e4m3fn).astype(np.float64)
        for factor in (1 - 1e-6, 1 + 1e-6)
    )
    weight = np.asarray(parts["weight"]).astype(np.float64)
    allowed = np.abs(above - below) / 2 * scale @ np.abs(weight).T + 0.01
    assert (np.abs(found - (below + above) / 2 * scale @ weight.T) <= allowed).all()
    assert (allowed == 0.01).mean() > 0.8
    assert (found[1, 2] == 0).all()
    # Four significant bits: an error of at most 1/16, on average less than half of that.
    plain = found[0, 0] - (exact @ weight.T)[0, 0]
    assert 0.002 < np.linalg.norm(plain) / np.linalg.norm((exact @ weight.T)[0, 0]) < 0.04


def test_an_fp8_model_answers_and_has_its_head_in_int8(tiny_config):
    engine = DiffuCoderInference(dtype="fp8", verbose=False)
    assert "fp8 kernels, float32" in engine.describe()
    written = engine.generate("def add(a, b):", max_new_tokens=32, temperature=0.0)
    assert written.startswith("def add(a, b):\n    return a + b")
    model = nnx.merge(engine.sampler.graph.definition, engine.sampler.params)
    kernels = {
        str(leaf.dtype) for name, leaf in parameters(model).items() if name.endswith("_proj.weight")
    }
    assert kernels == {"float8_e4m3fn"}
    with pytest.raises(ValueError, match="the model is quantized"):
        model.save_pretrained("/nowhere")
    untied = DreamForCausalLM(replace(tiny_config, tie_word_embeddings=False), rngs=nnx.Rngs(0))
    parts = parameters(untied.quantize("fp8"))
    assert parts["lm_head.weight"].dtype == jnp.int8
    assert parts["model.embed_tokens.weight"].dtype == jnp.float32


@pytest.mark.parametrize(
    ("device", "accepted"),
    [
        ({"platform": "gpu", "compute_capability": "8.9"}, True),
        ({"platform": "gpu", "compute_capability": "12.0"}, True),
        ({"platform": "gpu", "compute_capability": "8.0"}, False),
        ({"platform": "gpu", "compute_capability": "gfx942"}, False),
        ({"platform": "tpu"}, False),
    ],
)
def test_fp8_needs_a_card_that_has_it(monkeypatch, device, accepted):
    """Refused by name before anything is read; the folder does not exist."""
    device = SimpleNamespace(device_kind="Card 7", **device)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    with pytest.raises(Exception, match="nowhere" if accepted else "dtype='fp8': Card 7 has no"):
        DiffuCoderInference("/nowhere/model", dtype="fp8")


@pytest.mark.parametrize(
    ("target", "accepted"), [("l4:1", True), ("a100:1", False), ("v6e:1x1", False)]
)
def test_plan_refuses_fp8_on_a_card_without_it(target, accepted, capsys):
    words = ["plan", "--model-config", "7b", "--topology", target, "--dtype", "fp8", "--estimate"]
    status = cli.main(words)
    printed = capsys.readouterr()
    if accepted:
        assert (status, "fits" in printed.out) == (0, True)
    else:
        assert status == 2
        assert f"dtype='fp8': {target.partition(':')[0]} has no products of fp8" in printed.err


def test_int4_is_refused_where_it_does_not_fit(tiny_config):
    with pytest.raises(
        ValueError, match=r"dtype='int4': a kernel has 48 inputs, .* multiple of 64"
    ):
        DreamForCausalLM.abstract(tiny_config, quantization="int4")


def test_adapters_over_int4(tiny_config):
    """A new adapter changes nothing, a trained one adds its product, and none can be merged."""
    config = replace(tiny_config, hidden_size=64, intermediate_size=128)
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0)).quantize("int4")
    ids = jnp.arange(8)[None]

    def logits():
        graph, params = split_model(model)
        return np.asarray(jax.jit(lambda params: graph.merge(params)(ids))(params))

    before = logits()
    lora.add_lora(model, LoraConfig(rank=2), seed=0)
    assert np.array_equal(logits(), before)
    layer = model.model.layers[0].mlp.down_proj
    assert layer.lora_a[...].shape == (2, 128)
    layer.lora_b = nnx.Param(jnp.ones_like(layer.lora_b[...]))
    assert not np.allclose(logits(), before)
    with pytest.raises(ValueError, match="quantized weights cannot take an adapter"):
        lora.merge(model)

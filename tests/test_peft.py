"""Adapters in PEFT's layout: what is read, computed, written and refused.

Equality with peft: test_transformers.py.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from jax_lm.checkpoints.peft import (
    CONFIG,
    FINGERPRINT,
    LINEAR,
    WEIGHTS,
    LoraConfig,
    NamedBase,
    read_adapter,
)
from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.models.dream import DreamForCausalLM, parameters
from jax_lm.models.lora import adapters, add_lora, is_lora, load_adapter, merge, save_adapter

IDS = jnp.arange(12).reshape(2, 6)
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
PUBLISHED = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "somebody/their-model", "bias": "none",
    "corda_config": None, "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "layer_replication": None, "layers_pattern": None, "layers_to_transform": None,
    "loftq_config": {}, "lora_alpha": 6, "lora_bias": False, "lora_dropout": 0.05, "megatron_config": None,
    "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA", "qalora_group_size": 16, "r": 4,
    "rank_pattern": {}, "revision": None, "target_modules": ["v_proj", "q_proj", "down_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False, "use_qalora": False,
    "use_rslora": False,
}  # fmt: skip
"""An adapter_config.json as peft 0.17 writes them."""


@pytest.fixture
def model(tiny_config):
    return DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))


def linear_shapes(model):
    """Each linear layer of the decoder with its [out, in]."""
    return {
        name.removesuffix(".weight"): value.shape
        for name, value in parameters(model).items()
        if name.removesuffix(".weight").rpartition(".")[2] in LINEAR and name.endswith(".weight")
    }


def publish(
    folder,
    shapes,
    ranks,
    *,
    name="base_model.model.{layer}.lora_{part}.weight",
    dtype=np.float32,
    **fields,
):
    """Write an adapter by hand; `ranks` by the path of the layer. Gives A and B of each."""
    rng, tensors, pairs = np.random.default_rng(0), {}, {}
    for layer, rank in ranks.items():
        out, width = shapes[layer]
        pairs[layer] = [
            rng.normal(size=size).astype(dtype) / 8 for size in ((rank, width), (out, rank))
        ]
        tensors |= {
            name.format(layer=layer, part=part): pair
            for part, pair in zip("AB", pairs[layer], strict=True)
        }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(PUBLISHED | fields))
    return pairs


def targeted(shapes, *names):
    return {layer: 4 for layer in shapes if layer.endswith(names)}


def test_published_adapter_is_added_as_peft_defines_it(model, tmp_path):
    """Computed anew in NumPy: W + alpha / r B A, and the model with these weights."""
    shapes = linear_shapes(model)
    pairs = publish(tmp_path, shapes, targeted(shapes, "q_proj", "v_proj", "down_proj"))
    before = {name: np.asarray(value) for name, value in parameters(model).items()}
    plain = model(IDS)
    load_adapter(model, read_adapter(tmp_path))
    attached = model(IDS)
    merge(model)
    after = parameters(model)
    assert set(after) == set(before)
    assert len(pairs) == 6
    for name, value in before.items():
        layer = name.removesuffix(".weight")
        if layer not in pairs:
            np.testing.assert_array_equal(after[name], value)
            continue
        a, b = (part.astype(np.float64) for part in pairs[layer])
        np.testing.assert_allclose(after[name], value + 1.5 * b @ a, rtol=2e-6, atol=2e-7)
    assert float(jnp.abs(attached - plain).max()) > 1e-3
    np.testing.assert_allclose(model(IDS), attached, rtol=1e-4, atol=1e-5)


PATTERNS = {
    "rank-stabilised": ({"use_rslora": True}, {Q: (4, 6 / 2), DOWN: (4, 6 / 2)}),
    "ranks": (
        {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 8}},
        {Q: (2, 3.0), DOWN: (8, 0.75)},
    ),
    "a rank of one layer alone": (
        {"rank_pattern": {"^model.layers.1.self_attn.q_proj": 1}},
        {Q: (4, 1.5), "model.layers.1.self_attn.q_proj": (1, 6.0), DOWN: (4, 1.5)},
    ),
    "alphas, the first that matches": (
        {
            "alpha_pattern": {r"1\.mlp\..*": 2.0, "down_proj": 9},
            "rank_pattern": {"mlp.down_proj": 2},
        },
        {DOWN: (2, 1.0), "model.layers.0.mlp.down_proj": (2, 4.5), Q: (4, 1.5)},
    ),
    "rank-stabilised ranks": (
        {"use_rslora": True, "rank_pattern": {"q_proj": 9}},
        {Q: (9, 2.0), DOWN: (4, 3.0)},
    ),
    "a regular expression": (
        {"target_modules": r"model\.layers\.\d\.(self_attn\.[qk]_proj|mlp\.up_proj)"},
        {
            Q: (4, 1.5),
            "model.layers.1.mlp.up_proj": (4, 1.5),
            DOWN: None,
            "model.layers.0.self_attn.v_proj": None,
        },
    ),
    "all linear layers": ({"target_modules": "all-linear"}, dict.fromkeys([Q, DOWN], (4, 1.5))),
    "names with the end of a path": (
        {"target_modules": ["1.mlp.down_proj"]},
        {DOWN: (4, 1.5), Q: None},
    ),
    "excluded names": ({"exclude_modules": ["down_proj"]}, {Q: (4, 1.5), DOWN: None}),
    "excluded by expression": ({"exclude_modules": r".*layers\.1.*"}, {Q: (4, 1.5), DOWN: None}),
    "some layers": ({"layers_to_transform": [1]}, {Q: None, DOWN: (4, 1.5)}),
    "one layer": (
        {"layers_to_transform": 0, "layers_pattern": "layers"},
        {Q: (4, 1.5), DOWN: None},
    ),
    "names of other architectures": (
        {"target_modules": ["c_attn", "q_proj"]},
        {Q: (4, 1.5), DOWN: None},
    ),
}
"""Fields of an adapter_config.json, and rank and scale of some layers; None carries none."""


@pytest.mark.parametrize("case", PATTERNS)
def test_ranks_and_scales_are_those_of_the_configuration(model, tmp_path, case):
    fields, expected = PATTERNS[case]
    shapes = linear_shapes(model)
    (tmp_path / "x").mkdir()
    save_file(
        {f"base_model.model.{Q}.lora_A.weight": np.ones((4, 32), np.float32)},
        tmp_path / "x" / WEIGHTS,
    )
    (tmp_path / "x" / CONFIG).write_text(json.dumps(PUBLISHED | fields))
    config = read_adapter(tmp_path / "x").config
    ranks = {layer: config.rank_of(layer) for layer in shapes if config.carries(layer)}
    pairs = publish(tmp_path, shapes, ranks, **fields)
    before = {layer: np.asarray(parameters(model)[f"{layer}.weight"]) for layer in shapes}
    load_adapter(model, read_adapter(tmp_path))
    found = {
        path: (adapter.lora_a[...].shape[0], adapter.scale) for path, adapter in adapters(model)
    }
    assert {path: found.get(path) for path in expected} == expected
    # What is saved again is the same adapter.
    save_adapter(model, tmp_path / "again", config, NamedBase("x"))
    again = read_adapter(tmp_path / "again")
    assert again.config == config
    merge(model)
    for layer, (a, b) in pairs.items():
        change = found[layer][1] * b.astype(np.float64) @ a
        np.testing.assert_allclose(
            parameters(model)[f"{layer}.weight"], before[layer] + change, rtol=2e-6, atol=2e-7
        )
    assert set(pairs) == set(found)


def test_written_files_are_those_that_peft_reads(model, tmp_path):
    config = LoraConfig(rank=2, alpha=5.0, targets=("q_proj", "up_proj"))
    add_lora(model, config, seed=1)
    for number, (_, adapter) in enumerate(adapters(model)):
        adapter.lora_b[...] = jax.random.normal(jax.random.key(number), adapter.lora_b[...].shape)
    save_adapter(model, tmp_path, config, NamedBase("owner/name", "v1", "0123456789abcdef"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
    fields = json.loads((tmp_path / CONFIG).read_text())
    expected = {
        "peft_type": "LORA", "base_model_name_or_path": "owner/name", "revision": "v1", "r": 2, "lora_alpha": 5.0,
        "target_modules": ["q_proj", "up_proj"], "use_rslora": False, "bias": "none", "fan_in_fan_out": False,
    }  # fmt: skip
    assert expected.items() <= fields.items()
    held = load_file(tmp_path / WEIGHTS)
    assert {str(value.dtype) for value in held.values()} == {"float32"}
    ours = {name: np.asarray(value) for name, value in parameters(model).items() if is_lora(name)}
    theirs = {
        f"base_model.model.{name[:-7]}.lora_{name[-1].upper()}.weight": value
        for name, value in ours.items()
    }
    assert set(held) == set(theirs)
    assert all(np.array_equal(held[name], theirs[name]) for name in held)
    read = read_adapter(tmp_path)
    assert read.config == config
    assert read.base == NamedBase("owner/name", "v1", "0123456789abcdef")
    other = DreamForCausalLM(model.config, rngs=nnx.Rngs(0))
    load_adapter(other, read)
    loaded = {name: np.asarray(value) for name, value in parameters(other).items() if is_lora(name)}
    assert all(np.array_equal(loaded[name], ours[name]) for name in ours)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.{layer}.lora_{part}.default.weight",
        "base_model.model.base.{layer}.lora_{part}.weight",
    ],
)
def test_names_that_wrappers_make_are_read(model, tmp_path, name):
    shapes = linear_shapes(model)
    pairs = publish(tmp_path, shapes, targeted(shapes, "q_proj", "v_proj", "down_proj"), name=name)
    stored = read_adapter(tmp_path)
    load_adapter(model, stored)
    for path, adapter in adapters(model):
        np.testing.assert_array_equal(adapter.lora_b[...], pairs[path][1])
    save_adapter(model, tmp_path / "again", stored.config, stored.base)
    assert read_adapter(tmp_path / "again").config == stored.config


def test_half_precision_is_widened(model, tmp_path):
    shapes = linear_shapes(model)
    pairs = publish(
        tmp_path, shapes, targeted(shapes, "q_proj", "v_proj", "down_proj"), dtype=np.float16
    )
    load_adapter(model, read_adapter(tmp_path))
    for path, adapter in adapters(model):
        assert adapter.lora_a[...].dtype == jnp.float32
        np.testing.assert_array_equal(adapter.lora_a[...], pairs[path][0].astype(np.float32))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3': only 'LORA' is supported"),
        ({"use_dora": True}, "use_dora=True: it is not supported"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"bias": "lora_only"}, "bias='lora_only': only 'none'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\]"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"layer_replication": [[0, 2]]}, "layer_replication="),
        ({"target_parameters": ["a"]}, "target_parameters="),
        ({"trainable_token_indices": [1]}, "trainable_token_indices="),
        ({"alora_invocation_tokens": [7]}, "alora_invocation_tokens="),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights='pissa_niter_16': only"),
        ({"layers_pattern": "blocks"}, "layers_pattern='blocks'"),
        ({"something_new": 1}, "something_new=1: it is not supported"),
        ({"r": 0}, "lora_rank=0"),
        ({"r": "8"}, "r='8': must be a whole number"),
        ({"lora_alpha": 0}, "lora_alpha=0"),
        ({"lora_alpha": "x"}, "lora_alpha='x': must be a number"),
        ({"rank_pattern": {"q_proj": 0}}, "q_proj=0"),
        ({"rank_pattern": {"(": 2}}, r"pattern '\(' of layers is not a regular expression"),
        ({"rank_pattern": [1]}, CONFIG),
        ({"target_modules": None}, "lora_targets"),
        ({"target_modules": [1]}, "must be names of layers"),
        ({"target_modules": ["c_attn"]}, "lora_targets"),
        ({"target_modules": "["}, "is not a regular expression"),
        ({"layers_to_transform": "x"}, "layers_to_transform='x'"),
        ({"base_model_name_or_path": 3}, "must be text"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(model, tmp_path, fields, named):
    shapes = linear_shapes(model)
    publish(tmp_path, shapes, targeted(shapes, "q_proj", "v_proj", "down_proj"), **fields)
    with pytest.raises(CheckpointError, match=named) as caught:
        read_adapter(tmp_path)
    assert CONFIG in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "tensor", "named"),
    [
        (
            {"use_dora": True},
            "model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight",
            "use_dora=True",
        ),
        ({"modules_to_save": ["lm_head"]}, "lm_head.weight", "modules_to_save="),
        ({"bias": "all"}, "model.layers.0.self_attn.q_proj.bias", "bias='all'"),
        (
            {"target_modules": ["q_proj", "embed_tokens"]},
            "model.embed_tokens.lora_embedding_A",
            "embed_tokens",
        ),
    ],
)
def test_a_feature_is_refused_by_its_name_whatever_tensors_it_brings(
    model, tmp_path, fields, tensor, named
):
    shapes = linear_shapes(model)
    publish(tmp_path, shapes, targeted(shapes, "q_proj"), **fields)
    held = load_file(tmp_path / WEIGHTS)
    added = {f"base_model.model.{tensor}": np.zeros((4, 4), np.float32)}
    save_file(held | added, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=named):
        read_adapter(tmp_path)


def change(*names, **tensors):
    """A damage: tensors that go, and those that come."""

    def damage(folder):
        held = load_file(folder / WEIGHTS)
        held = {name: value for name, value in held.items() if name not in names}
        save_file(
            held | {name.replace("__", "."): value for name, value in tensors.items()},
            folder / WEIGHTS,
        )

    return damage


ONES = np.ones((4, 32), np.float32)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (change(f"base_model.model.{Q}.lora_B.weight"), f"lacks tensor '{Q}.lora_b'"),
        (
            change(f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"),
            f"lacks tensor '{Q}.lora_a'",
        ),
        (
            change(**{f"base_model.model.{Q}.lora_A.weight": np.ones((8, 32), np.float32)}),
            r"has shape \(8, 32\)",
        ),
        (
            change(**{"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": ONES}),
            "holds the unknown tensor",
        ),
        (
            change(**{"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": ONES}),
            "holds the unknown tensor",
        ),
        (
            change(**{"base_model.model.lm_head.lora_A.weight": ONES}),
            "'base_model.model.lm_head.lora_A.weight', which is no",
        ),
        (
            change(**{f"base_model.model.{Q}.lora_magnitude_vector.weight": ONES}),
            "lora_magnitude_vector",
        ),
        (change(**{f"base_model.model.{Q}.lora_A.default.weight": ONES}), "twice"),
        (
            change(**{"base_model.model.x.layers.0.self_attn.q_proj.lora_A.weight": ONES}),
            "twice|layers of 2 models",
        ),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 99),
            "is damaged or not a safetensors file",
        ),
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"),
            "adapter_model.bin is a pickle",
        ),
        (lambda folder: (folder / CONFIG).unlink(), f"has no {CONFIG}"),
        (lambda folder: (folder / CONFIG).write_text("["), "is not valid JSON"),
        (lambda folder: (folder / CONFIG).write_text('{"r": 2}'), "has no peft_type"),
    ],
)
def test_damage_is_refused_by_name(model, tmp_path, damage, named):
    shapes = linear_shapes(model)
    publish(tmp_path, shapes, targeted(shapes, "q_proj", "v_proj", "down_proj"))
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=named):
        load_adapter(model, read_adapter(tmp_path))


def test_the_fingerprint_is_no_field_that_peft_would_warn_of(model, tmp_path):
    add_lora(model, LoraConfig(rank=1), seed=0)
    save_adapter(model, tmp_path, LoraConfig(rank=1), NamedBase("x", None, "f" * 16))
    assert FINGERPRINT not in json.loads((tmp_path / CONFIG).read_text())
    assert math.isclose(read_adapter(tmp_path).config.scale_of(Q), 2.0)

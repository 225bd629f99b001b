"""The model against the recorded reference, and its configuration."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.reference import GOLDEN
from flax import nnx

from jax_lm.config import DreamConfig
from jax_lm.models.attention import attend
from jax_lm.models.dream import DreamForCausalLM, parameter_shapes, parameters
from jax_lm.models.layers import DreamRMSNorm, Initializer
from jax_lm.models.products import product

SEVEN_B = {
    "architectures": ["DreamModel"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "mask_token_id": 151666, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "Dream",
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "pad_token_id": 151643,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.3", "use_cache": False,
    "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
"""config.json of DiffuCoder-7B-Instruct."""

FORWARD_TOLERANCE = 2e-5


@nnx.jit
def logits_of(model, *arguments):
    return model(*arguments)


def published_names():
    """The tensor names of the published index, written out."""
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for i in range(28):
        layer = f"model.layers.{i}"
        names |= {
            f"{layer}.self_attn.{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")
        }
        names |= {f"{layer}.self_attn.o_proj.weight"}
        names |= {f"{layer}.mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
        names |= {f"{layer}.{p}_layernorm.weight" for p in ("input", "post_attention")}
    return names


def test_full_size_has_the_published_tensors_and_parameters():
    shapes = parameter_shapes(DreamConfig.from_dict(SEVEN_B))
    assert set(shapes) == published_names()
    assert sum(math.prod(shape) for shape in shapes.values()) == 7_615_616_512
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (512, 3584)


def test_hidden_states_and_logits_equal_the_reference(golden, golden_model):
    ids = golden["forward.input_ids"]
    states = jax.jit(lambda ids: list(golden_model.model.hidden_states(ids)))(ids)
    assert len(states) == 4
    for layer, state in enumerate(states):
        np.testing.assert_allclose(
            state, golden[f"forward.hidden_states.{layer}"], rtol=0, atol=FORWARD_TOLERANCE
        )
    logits = logits_of(golden_model, ids)
    np.testing.assert_allclose(logits, golden["forward.logits"], rtol=0, atol=FORWARD_TOLERANCE)


def test_left_padded_rows_equal_the_reference(golden, golden_model):
    mask = golden["padded.attention_mask"]
    logits = logits_of(golden_model, jnp.asarray(golden["padded.input_ids"]), jnp.asarray(mask))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(
        logits[mask == 1], golden["padded.logits"][mask == 1], rtol=0, atol=FORWARD_TOLERANCE
    )


def test_more_left_padding_changes_nothing(golden, golden_model):
    ids = golden["forward.input_ids"]
    padded = np.concatenate([np.full((3, 9), 500, ids.dtype), ids], axis=1)
    mask = np.concatenate([np.zeros((3, 9), int), np.ones_like(ids)], axis=1)
    logits = logits_of(golden_model, jnp.asarray(padded), jnp.asarray(mask))[:, 9:]
    np.testing.assert_allclose(logits, golden["forward.logits"], rtol=0, atol=FORWARD_TOLERANCE)


def test_attention_is_bidirectional(golden, golden_model):
    ids = golden["forward.input_ids"]
    changed = ids.copy()
    changed[:, -1] = (ids[:, -1] + 1) % 500
    first, other = (np.asarray(logits_of(golden_model, each))[:, 0] for each in (ids, changed))
    assert np.abs(first - other).max() > 1e-3


def test_bfloat16_is_no_worse_than_pytorch(golden):
    model = DreamForCausalLM.from_pretrained(GOLDEN / "checkpoint", dtype=jnp.bfloat16)
    assert model.dtype == jnp.bfloat16
    ours = np.asarray(logits_of(model, jnp.asarray(golden["forward.input_ids"])))
    theirs, exact = golden["forward_bf16.logits"].astype(np.float32), golden["forward.logits"]
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).mean() <= 0.06
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.96
    assert np.abs(ours - exact).mean() <= 1.2 * np.abs(theirs - exact).mean()


def test_jit_equals_eager(tiny_model):
    ids = jnp.arange(24).reshape(2, 12)
    np.testing.assert_allclose(tiny_model(ids), logits_of(tiny_model, ids), rtol=0, atol=1e-5)


def test_gradient_of_product_is_the_gradient_of_the_matrix_product():
    a, b, g = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate(((2, 5, 7), (3, 7), (2, 5, 3)))
    )
    ours = jax.vjp(product, a, b)[1](g)
    theirs = jax.vjp(lambda a, b: jnp.einsum("zmi,ni->zmn", a, b, precision="highest"), a, b)[1](g)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_gradient_of_batched_product():
    a, b, g = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate(((2, 5, 7), (2, 3, 7), (2, 5, 3)))
    )
    ours = jax.vjp(product, a, b)[1](g)
    theirs = jax.vjp(lambda a, b: jnp.einsum("zmi,zni->zmn", a, b, precision="highest"), a, b)[1](g)
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_gradients_keep_their_dtype():
    a, b = jnp.ones((2, 3, 4), jnp.bfloat16), jnp.ones((5, 4), jnp.bfloat16)
    y, pull = jax.vjp(product, a, b)
    assert y.dtype == jnp.float32
    assert {gradient.dtype for gradient in pull(jnp.ones_like(y))} == {jnp.dtype(jnp.bfloat16)}


def test_attend_equals_the_library():
    q, k, v = (
        jax.random.normal(jax.random.key(i), (2, 6, heads, 8)) for i, heads in enumerate((4, 2, 2))
    )
    mask = jnp.arange(6)[None] >= jnp.array([[0], [2]])
    expected = jax.nn.dot_product_attention(q, k, v, mask=mask[:, None, None, :])
    np.testing.assert_allclose(
        attend(q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask), expected, rtol=0, atol=1e-5
    )


def test_norm_rounds_before_the_weight():
    norm = DreamRMSNorm(4, 1e-6, init=Initializer(0.02, nnx.Rngs(0), jnp.bfloat16))
    norm.weight[...] = jnp.full(4, 1.0078125, jnp.bfloat16)
    x = jnp.array([1.0, 2.0, 3.0, 4.0], jnp.bfloat16)
    x32 = np.asarray(x, np.float32)
    rounded = jnp.asarray(x32 / np.sqrt((x32**2).mean() + 1e-6), jnp.bfloat16)
    np.testing.assert_array_equal(norm(x), norm.weight[...] * rounded)


def test_tied_head_uses_the_embedding(tiny_config):
    config = DreamConfig.from_dict(tiny_config.to_dict() | {"tie_word_embeddings": True})
    model = DreamForCausalLM(config)
    assert "lm_head.weight" not in parameters(model)
    hidden = jnp.ones((1, 1, config.hidden_size))
    np.testing.assert_allclose(
        model.logits(hidden)[0, 0],
        parameters(model)["model.embed_tokens.weight"].sum(axis=1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_config_round_trip():
    config = DreamConfig.from_dict(SEVEN_B)
    assert DreamConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_config_of_a_qwen2_checkpoint():
    fields = {key: value for key, value in SEVEN_B.items() if key != "mask_token_id"}
    config = DreamConfig.from_dict(fields | {"model_type": "qwen2", "tie_word_embeddings": True})
    assert config.mask_token_id is None
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("hidden_act", "gelu", "hidden_act='gelu'"),
        ("rope_scaling", {"type": "yarn"}, "rope_scaling"),
        ("use_sliding_window", True, "use_sliding_window=True"),
        ("use_mrope", True, "use_mrope=True"),
        ("model_type", "mamba", "model_type='mamba'"),
        ("num_key_value_heads", 5, "num_key_value_heads=5"),
        ("hidden_size", 0, "hidden_size=0"),
        ("mask_token_id", 152064, "mask_token_id=152064"),
        ("head_dim", 63, "head_dim=63"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e6}, "rope_parameters"),
        ("quantization_config", {"bits": 4}, "quantization_config"),
        ("qk_norm", True, "'qk_norm'"),
    ],
)
def test_config_refuses_what_would_change_the_function(field, value, named):
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        DreamConfig.from_dict(SEVEN_B | {field: value})


def test_config_names_what_is_missing():
    with pytest.raises(ValueError, match="rope_theta"):
        DreamConfig.from_dict({key: value for key, value in SEVEN_B.items() if key != "rope_theta"})

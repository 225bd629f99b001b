import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_lm.models import token_likelihood
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.models.token_likelihood import log_probs_by_block, token_log_probs, vocabulary_blocks

SEVEN_B_VOCABULARY = 152_064


def plain(model, hidden, index):
    log_probs = jax.nn.log_softmax(model.logits(hidden).astype(jnp.float32))
    return jnp.take_along_axis(log_probs, index[..., None], axis=-1)[..., 0]


def of_blocks(model, hidden, index, blocks):
    graph, state = nnx.split(model.head)
    return log_probs_by_block(graph, blocks, nnx.to_pure_dict(state), hidden, index)


def inputs(model, rows=3, length=7):
    keys = jax.random.split(jax.random.key(1), 3)
    hidden = 3 * jax.random.normal(keys[0], (rows, length, model.config.hidden_size)).astype(
        model.dtype
    )
    index = jax.random.randint(keys[1], (rows, length), 0, model.config.vocab_size)
    return hidden, index, jax.random.normal(keys[2], (rows, length))


def gradients(of, model, hidden, index, cotangent):
    """The value, and the gradients of every parameter and of the hidden states."""
    graph, state = nnx.split(model)

    def total(params, hidden):
        values = of(nnx.merge(graph, params), hidden, index)
        return jnp.sum(values * cotangent), values

    compute = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, values), found = compute(nnx.to_pure_dict(state), hidden)
    return values, found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 8, 96])
def test_blocks_change_neither_values_nor_gradients(tiny_config, tied, blocks):
    config = DreamConfig.from_dict(tiny_config.to_dict() | {"tie_word_embeddings": tied})
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0))
    hidden, index, cotangent = inputs(model)
    ours = gradients(lambda *given: of_blocks(*given, blocks), model, hidden, index, cotangent)
    theirs = gradients(plain, model, hidden, index, cotangent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), ours, theirs)


def test_an_int8_head_gives_gradients_to_hidden_states_alone(tiny_config):
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0)).quantize("int8")
    hidden, index, cotangent = inputs(model)

    def slopes(of):
        def total(hidden):
            return jnp.sum(of(model, hidden, index) * cotangent)

        return jax.jit(jax.grad(total))(hidden)

    ours = slopes(lambda *given: of_blocks(*given, 4))
    np.testing.assert_allclose(ours, slopes(plain), rtol=2e-5, atol=2e-6)


def test_likeliest_and_least_likely_tokens_at_the_published_width(tiny_config):
    """Large logits, 152,064 tokens, bfloat16 as on accelerators: against NumPy in float64."""
    config = DreamConfig.from_dict(tiny_config.to_dict() | {"vocab_size": SEVEN_B_VOCABULARY})
    model = DreamForCausalLM(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    model.lm_head.weight[...] = 40 * model.lm_head.weight[...]
    hidden, _, cotangent = inputs(model, rows=2, length=5)
    exact = np.asarray(hidden, np.float64) @ np.asarray(model.lm_head.weight[...], np.float64).T
    index = np.stack([exact[0].argmax(-1), exact[1].argmin(-1)])
    largest = exact.max(-1, keepdims=True)
    normaliser = largest[..., 0] + np.log(np.exp(exact - largest).sum(-1))
    expected = np.take_along_axis(exact, index[..., None], -1)[..., 0] - normaliser
    assert np.ptp(exact) > 20
    values, (ours, towards_hidden) = gradients(
        lambda *given: of_blocks(*given, 18), model, hidden, jnp.asarray(index), cotangent
    )
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=2e-4)
    slopes = np.asarray(cotangent, np.float64)[..., None] * -np.exp(exact - normaliser[..., None])
    np.put_along_axis(
        slopes,
        index[..., None],
        np.take_along_axis(slopes, index[..., None], -1) + np.asarray(cotangent)[..., None],
        -1,
    )
    weight = np.einsum("btv,btd->vd", slopes, np.asarray(hidden, np.float64))
    for got, wanted in (
        (ours["lm_head"]["weight"], weight),
        (towards_hidden, slopes @ np.asarray(model.lm_head.weight[...], np.float64)),
    ):
        assert got.dtype == jnp.bfloat16
        assert np.linalg.norm(np.asarray(got, np.float64) - wanted) <= 0.01 * np.linalg.norm(wanted)


def test_no_array_holds_logits_of_all_rows_and_the_whole_vocabulary(tiny_config, monkeypatch):
    monkeypatch.setattr(token_likelihood, "LOGIT_BYTES", 2 * 64 * 24 * 4)
    model = DreamForCausalLM(tiny_config, rngs=nnx.Rngs(0))
    hidden, index, cotangent = inputs(model, rows=2, length=64)
    assert vocabulary_blocks(model, *index.shape) == 4

    def widest(of):
        program = (
            jax.jit(lambda hidden: gradients(of, model, hidden, index, cotangent))
            .lower(hidden)
            .as_text()
        )
        shapes = re.findall(r"tensor<([\dx]+)xf32>", program)
        return max(int(np.prod([int(size) for size in shape.split("x")])) for shape in shapes)

    assert widest(plain) == 2 * 64 * 96
    assert widest(token_log_probs) < 2 * 64 * 96


@pytest.mark.parametrize(
    ("rows", "length", "blocks"),
    [(1, 441, 1), (1, 442, 2), (4, 2048, 22), (1, 1, 1), (10**6, 10**6, SEVEN_B_VOCABULARY)],
)
def test_blocks_divide_the_vocabulary(tiny_config, rows, length, blocks):
    config = DreamConfig.from_dict(tiny_config.to_dict() | {"vocab_size": SEVEN_B_VOCABULARY})
    assert vocabulary_blocks(DreamForCausalLM.abstract(config), rows, length) == blocks

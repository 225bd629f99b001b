"""The JAX backend hands out what the model computes."""

import numpy as np
from cases.reference import GOLDEN

from jax_lm.benchmark.backend import Backend, JaxBackend, greedy_options, output_names


def test_outputs_are_those_of_the_recorded_model(golden_sampler, golden):
    ids, config = golden["forward.input_ids"].astype(np.int32), golden_sampler.config
    found = JaxBackend(golden_sampler).module_outputs(ids, output_names(config))
    assert set(found) == {*output_names(config), "logits"}
    assert len(found) == 7 * config.num_hidden_layers + 3
    for name, recorded in (
        ("model.embed_tokens", "forward.hidden_states.0"),
        ("model.norm", f"forward.hidden_states.{config.num_hidden_layers}"),
        ("logits", "forward.logits"),
    ):
        np.testing.assert_allclose(found[name], golden[recorded], atol=2e-5)
    # A layer adds what its attention and its MLP put out.
    after = (
        golden["forward.hidden_states.0"]
        + found["model.layers.0.self_attn.o_proj"]
        + found["model.layers.0.mlp"]
    )
    np.testing.assert_allclose(after, golden["forward.hidden_states.1"], atol=2e-5)


def test_generation_fills_every_position(golden_sampler):
    ours = JaxBackend(golden_sampler)
    prompt = np.arange(12, dtype=np.int32).reshape(2, 6)
    assert isinstance(ours, Backend)
    tokens, forwards, ties = ours.generate(prompt, greedy_options(8))
    assert forwards == 7
    assert 0 <= ties <= 1
    assert tokens.shape == (2, 8)
    assert (tokens != golden_sampler.mask_id).all()


def test_int8_is_a_dtype_of_this_backend():
    weights = JaxBackend.load(GOLDEN / "checkpoint", "int8").sampler.params["model"]["layers"][0][
        "mlp"
    ]["up_proj"]["weight"]
    assert weights.dtype == np.int8

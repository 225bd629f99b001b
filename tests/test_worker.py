"""What a side hands out is what the model computes; its process answers, or says in one line why not."""

import numpy as np
import pytest
from conftest import GOLDEN

from jax_lm.benchmark.worker import Ours, Request, ask, output_names


def test_outputs_are_those_of_the_recorded_model(golden_sampler, golden):
    ids, config = golden["forward.input_ids"].astype(np.int32), golden_sampler.config
    found = Ours(golden_sampler).outputs(ids, output_names(config))
    assert set(found) == {*output_names(config), "logits"}
    assert len(found) == 7 * config.num_hidden_layers + 3
    for name, recorded in (
        ("model.embed_tokens", "forward.hidden_states.0"),
        ("model.norm", f"forward.hidden_states.{config.num_hidden_layers}"),
        ("logits", "forward.logits"),
    ):
        np.testing.assert_allclose(found[name], golden[recorded], atol=2e-5)
    # A layer adds what its attention and its MLP put out.
    after = golden["forward.hidden_states.0"] + found["model.layers.0.self_attn.o_proj"] + found["model.layers.0.mlp"]
    np.testing.assert_allclose(after, golden["forward.hidden_states.1"], atol=2e-5)


def test_generation_fills_every_position(golden_sampler):
    ours = Ours(golden_sampler)
    prompt = np.arange(12, dtype=np.int32).reshape(2, 6)
    settings = {"temperature": 0.0, "top_p": None, "top_k": 50}
    tokens = ours.generate(prompt, settings, 8, 8)
    assert tokens.shape == (2, 8)
    assert (tokens != golden_sampler.mask_id).all()


def test_a_process_measures():
    request = Request(
        side="jax", folder=str(GOLDEN / "checkpoint"), dtype="float32", cells=((2, 8, 8),), repeats=1, numbers=(1, 8)
    )
    result, outputs = ask(request, limit=200.0)
    [cell] = result["cells"]
    assert (cell["batch"], cell["prompt_tokens"], cell["new_tokens"]) == (2, 8, 8)
    assert cell["tokens_per_second"] == pytest.approx(16 / cell["seconds"])
    assert cell["first_seconds"] > cell["seconds"] > 0
    assert result["peak_bytes"] >= result["load_bytes"] > 0
    assert np.asarray(result["greedy"]).shape == (2, 32)
    assert outputs["logits"].shape[:2] == (1, 8)


def test_a_process_that_fails_says_why():
    request = Request(side="jax", folder="/nowhere", dtype="float32")
    with pytest.raises(ValueError, match=r"the jax side ended: .*nowhere"):
        ask(request)
    with pytest.raises(ValueError, match=r"the jax side took more than 0\.01 s"):
        ask(request, limit=0.01)


def test_int8_is_a_dtype_of_this_side():
    weights = Ours.load(GOLDEN / "checkpoint", "int8").sampler.params["model"]["layers"][0]["mlp"]["up_proj"]["weight"]
    assert weights.dtype == np.int8

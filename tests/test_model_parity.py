"""Comparing an autoregressive checkpoint with transformers, where transformers is installed."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from cases.causal import write_causal
from model_parity import ModelParity, check_model, compare_model, load_reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_config):
    """A small Qwen2 of random weights, with room for the built-in prompts in bytes."""
    folder = tmp_path_factory.mktemp("qwen")
    return write_causal(folder, tiny_config, max_position_embeddings=1024)


def test_all_is_within_bounds_but_int8_of_random_weights(folder, tmp_path, capsys):
    out = tmp_path / "parity.json"
    compare_model(ModelParity(folder=str(folder), limit=3, max_new_tokens=12, out=out))
    report = json.loads(out.read_text())
    found = {each["name"]: each for each in report["findings"]}
    assert len(found) == 5
    assert found["tokens of 3 answers"]["measured"] == "36 of 36 equal"
    # Rounding is judged by the divergence of trained weights.
    exact = [each for name, each in found.items() if "KL" not in name]
    assert [each["passed"] for each in exact] == [True] * 3
    assert report["packages"].keys() == {"torch", "transformers"}
    assert "tokens of 3 answers: 36 of 36 equal (all) ok" in capsys.readouterr().out


def test_another_token_is_found(folder):
    """A reference that prefers another token at one row of the answers."""

    def load(folder, dtype):
        logits = load_reference(folder, dtype)

        def changed(ids, is_causal):
            found = logits(ids, is_causal)
            found[-2, 7] = 1000.0
            return found

        return changed

    first = next(check_model(folder, ["def f():", "x = 1"], 5, load))
    assert (first.measured, first.passed) == ("8 of 10 equal", False)


def test_a_diffusion_model_is_refused(builtin_folder):
    with pytest.raises(ValueError, match="must be autoregressive, not Dream; `diffucoder compare`"):
        compare_model(ModelParity(folder=str(builtin_folder), limit=1))

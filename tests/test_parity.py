"""The parity check passes on the recorded reference, and fails when anything in the model is
touched.
"""

import shutil

import numpy as np
import pytest
from cases.reference import GOLDEN
from safetensors.numpy import load_file, save_file

from jax_lm.benchmark.parity import (
    check_bfloat16,
    check_forward,
    check_generation,
    check_parity,
    check_tokenizer,
    read_golden,
)
from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.diffusion import step as step_module
from jax_lm.diffusion.sampler import Sampler, run
from jax_lm.models.dream import DreamForCausalLM

TOLERANCE = 2e-5


@pytest.fixture
def copy(tmp_path):
    """A parity folder that may be damaged."""
    return shutil.copytree(GOLDEN, tmp_path / "golden")


def test_forward_and_bfloat16_pass(golden_model, golden):
    findings = [
        *check_forward(golden_model, golden, TOLERANCE),
        *check_bfloat16(GOLDEN / "checkpoint", golden),
    ]
    assert [finding.name for finding in findings if not finding.passed] == []
    assert len(findings) == 9


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight",
        "lm_head.weight",
    ],
)
def test_one_changed_number_fails(copy, golden, name):
    for shard in (copy / "checkpoint").glob("*.safetensors"):
        tensors = load_file(shard)
        if name in tensors:
            tensors[name] = tensors[name].copy()
            tensors[name].flat[3] += 0.05
            save_file(tensors, shard, metadata={"format": "pt"})
    model = DreamForCausalLM.from_pretrained(copy / "checkpoint")
    assert not all(finding.passed for finding in check_forward(model, golden, TOLERANCE))


def test_dropping_the_shift_fails(golden_model, golden, cases, monkeypatch):
    monkeypatch.setattr(step_module, "align_rows", lambda rows, config: rows)
    run.parallel.clear_cache()
    try:
        assert not check_generation(Sampler(golden_model), cases[1], golden).passed
    finally:
        run.parallel.clear_cache()


def test_another_commit_than_a_tie_fails(golden_sampler, golden, cases):
    """A history in which one step commits a less confident position is no tie."""
    tampered = dict(golden)
    history = golden["generate.0.history"].copy()
    mask_id = golden_sampler.mask_id
    late = np.flatnonzero(history[10, 0] == mask_id)[0]
    early = next(
        p for p in range(13, 37) if history[5, 0, p] != mask_id and history[4, 0, p] == mask_id
    )
    history[5:11, 0, early] = mask_id
    history[5:11, 0, late] = history[-1, 0, late]
    tampered["generate.0.history"] = history
    finding = check_generation(golden_sampler, cases[0], tampered)
    assert not finding.passed
    assert "first at step 5" in finding.measured


def test_changed_sequences_fail(golden_sampler, golden, cases):
    tampered = dict(golden)
    tampered["generate.1.sequences"] = golden["generate.1.sequences"].copy()
    tampered["generate.1.sequences"][0, -1] += 1
    assert not check_generation(golden_sampler, cases[1], tampered).passed


def test_tokenizer_cases_fail_with_another_tokenizer(builtin_folder):
    finding = check_tokenizer(GOLDEN / "tokenizer_cases.json", builtin_folder)
    assert not finding.passed


@pytest.mark.parametrize("name", ["golden.safetensors", "cases.json", "checkpoint"])
def test_incomplete_folder_is_named(copy, name):
    shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_golden(copy)


def test_missing_recording_is_named(copy):
    tensors = load_file(copy / "golden.safetensors")
    del tensors["padded.logits"]
    save_file(tensors, copy / "golden.safetensors")
    with pytest.raises(CheckpointError, match=r"padded\.logits"):
        list(check_parity(copy, tolerance=TOLERANCE))


def test_tolerance_must_be_positive(copy):
    with pytest.raises(ValueError, match=r"tolerance=0\.0"):
        list(check_parity(copy, tolerance=0.0))

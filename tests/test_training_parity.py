"""Coupled-GRPO against the recorded reference; a change to any part of it shows."""

import shutil

import pytest
from cases.reference import GOLDEN
from safetensors.numpy import load_file, save_file

from jax_lm.benchmark import training_parity
from jax_lm.benchmark.training_parity import check_training_parity
from jax_lm.checkpoints.huggingface import CheckpointError


def failures(folder=GOLDEN):
    findings = list(check_training_parity(folder))
    assert len(findings) == 2 + 2 * 10
    return [finding.name for finding in findings if not finding.passed]


def test_the_recorded_reference_passes():
    assert failures() == []


def test_recorded_numbers_are_what_is_compared(tmp_path):
    copy = shutil.copytree(GOLDEN, tmp_path / "golden")
    place = copy / "coupled_grpo.safetensors"
    tensors = load_file(place)
    tensors["selective.weights"][1] += 0.01
    tensors["old_per_token_logps"][:, 0] += 0.5
    tensors["ref_per_token_logps"][:, 1] += 0.5
    save_file(tensors, place)
    failed = failures(copy)
    assert "selective_log_softmax" in failed
    for name in (
        "iteration 0, loss",
        "iteration 0, gradient norm",
        "iteration 1, loss",
        "iteration 1, KL",
    ):
        assert name in failed
    assert "iteration 0, scores" not in failed
    assert "iteration 0, KL" not in failed


@pytest.mark.parametrize("name", training_parity.FILES)
def test_incomplete_folder_is_named(tmp_path, name):
    copy = shutil.copytree(GOLDEN, tmp_path / "golden")
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        list(check_training_parity(copy))

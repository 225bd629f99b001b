"""Differences are found where they are; PyTorch's backend, where it is installed, computes the
same.
"""

import dataclasses
import importlib.util
import math

import numpy as np
import pytest
from cases.reference import GOLDEN

from jax_lm.benchmark import comparison
from jax_lm.benchmark.backend import LAYER_OUTPUTS, JaxBackend, output_names, random_prompts
from jax_lm.benchmark.comparison import (
    comparison_report,
    comparison_verdicts,
    find_differences,
    numbers_verdict,
)
from jax_lm.benchmark.machine import about
from jax_lm.cli import main as cli
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions

needs_torch = pytest.mark.skipif(
    bool(comparison.missing_packages()), reason="torch and transformers are not installed"
)


@pytest.fixture
def outputs(tiny_config):
    """Numbers under the names that a backend hands out."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(1, 4, 8)).astype(np.float32)
        for name in [*output_names(tiny_config), "logits"]
    }


def test_a_difference_is_found_where_it_is(outputs):
    others = {name: value.copy() for name, value in outputs.items()}
    others["model.layers.1.self_attn.k_proj"] *= 1.01
    found = find_differences(outputs, others)
    assert [(each["name"], each["layer"], each["kind"]) for each in found if each["relative"]] == [
        ("model.layers.1.self_attn.k_proj", 1, "k_proj")
    ]
    assert max(each["relative"] for each in found) == pytest.approx(0.01 / 1.01, rel=1e-3)
    kinds = [name.split(".")[-1] for name in LAYER_OUTPUTS]
    assert [each["kind"] for each in found] == ["embed_tokens", *kinds, *kinds, "norm", "logits"]
    assert numbers_verdict(found, 0.02).met
    missed = numbers_verdict(found, 0.001)
    assert (missed.met, "16 of 17" in missed.measured, "k_proj" in missed.measured) == (
        False,
        True,
        True,
    )


def test_what_is_not_a_number_is_not_within(outputs):
    others = outputs | {"logits": outputs["logits"] * math.nan}
    verdict = numbers_verdict(find_differences(outputs, others), 1e9)
    assert (verdict.met, "logits" in verdict.measured) == (False, True)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
def test_a_model_that_pytorchs_side_does_not_compute_is_refused(kind, tiny_config):
    with pytest.raises(ValueError, match="only models that compute as Dream does can be compared"):
        comparison.require_dream(
            dataclasses.replace(tiny_config, model_type=kind, mask_token_id=None)
        )
    comparison.require_dream(tiny_config)


def test_outputs_that_do_not_match_are_refused(outputs):
    with pytest.raises(ValueError, match="one backend alone: logits"):
        find_differences(
            outputs, {name: value for name, value in outputs.items() if name != "logits"}
        )
    with pytest.raises(ValueError, match=r"logits has shape \(1, 4, 8\) here and \(1, 4, 7\)"):
        find_differences(outputs, outputs | {"logits": outputs["logits"][..., 1:]})


def measured(speeds, dtype="float32"):
    """What a worker measures of a backend that generates so fast, by batch."""
    cells = [
        {"batch": batch, "prompt_tokens": 16, "new_tokens": 32, "first_seconds": 1.0, "seconds": batch * 32 / speed,
         "tokens_per_second": speed, "forward_seconds": 0.1}
        for batch, speed in speeds.items()
    ]  # fmt: skip
    return {"backend": "jax", "about": about(), "dtype": dtype, "device": "cpu", "packages": {"torch": "2.9"},
            "cells": cells, "load_seconds": 1.0, "memory": "process", "load_bytes": 1, "peak_bytes": 2}  # fmt: skip


def test_the_report_judges_speed_and_tokens(outputs):
    result = {
        "jax": measured({1: 10.0, 4: 30.0}),
        "pytorch": measured({1: 5.0, 4: 40.0}),
        "workload": {
            "prompt_tokens": [16],
            "batch_sizes": [1, 4],
            "new_tokens": [32],
            "repeats": 3,
        },
        "differences": find_differences(outputs, outputs),
        "greedy_agreement": 0.99,
        "tolerance": 1e-4,
    }
    assert [verdict.met for verdict in comparison_verdicts(result)] == [True, False, False, True]
    document = comparison_report(result, "model")
    text = document.markdown()
    assert "0.75 to 2.00 times" in text
    assert "torch 2.9" in text
    rows = [line.split(" | ") for line in text.splitlines() if " | 4 | " in line]
    assert [(row[0], "30.0" in row, "40.0" in row, "0.75 |" in row) for row in rows] == [
        ("| JAX", True, False, True),
        ("| PyTorch", False, True, False),
    ]
    assert "| layer 1 | 0.0e+00 |" in text
    assert document.page().count("<svg") == 3
    rounded = result | {"jax": measured({1: 10.0, 4: 30.0}, "bfloat16")}
    assert comparison_verdicts(rounded)[1].met is None


def test_without_pytorch_the_command_says_what_to_install(monkeypatch, capsys):
    find = importlib.util.find_spec
    found = {"torch": None, "transformers": find("json")}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: found[name] if name in found else find(name)
    )
    assert cli.main(["compare"]) == 2
    assert capsys.readouterr().err == (
        "error: compare needs torch, which this environment lacks: pip install 'jax-diffucoder[parity]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tolerance", "0"], "tolerance=0.0"),
        (["--batch-sizes", "0"], "batch_sizes=(0,)"),
        (["--new-tokens", "8", "16"], "new_tokens=(8, 16)"),
        (["--prompt-tokens", "500"], "prompt_tokens=500 with new_tokens=32: the context holds 512"),
    ],
)
def test_bad_requests_are_one_line(monkeypatch, capsys, arguments, named):
    monkeypatch.setattr(comparison, "missing_packages", list)
    assert cli.main(["compare", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f" {named}" in line


@needs_torch
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (1, 3), (2, 2)])
def test_fast_dllm_in_pytorch_decides_what_our_dual_cache_does(golden_sampler, rows, blocks):
    """So that its time is that of Fast-dLLM's algorithm, and of nothing else."""
    from experiments.fast_dllm import TorchLoops

    config = golden_sampler.config
    ids = random_prompts(config, rows, 9, seed=1)
    decoding = Decoding(preset="fast", cache="dual", first_token="force", block_length=8)
    options = GenerationOptions(
        max_new_tokens=8 * blocks,
        temperature=0.0,
        top_p=0.9,
        top_k=50,
        decoding=decoding,
        early_stop=False,
    )
    backend = TorchLoops(GOLDEN / "checkpoint", config)
    theirs = backend.generate(ids, options)
    np.testing.assert_array_equal(
        JaxBackend(golden_sampler).generate(ids, options).tokens, theirs.tokens
    )
    assert theirs.forwards == 8 * blocks
    # Without a cache it is the published loop.
    published = dataclasses.replace(options, decoding=Decoding())
    exact = JaxBackend(golden_sampler).generate(ids, published)
    np.testing.assert_array_equal(backend.generate(ids, published).tokens, exact.tokens)


@needs_torch
def test_the_published_loop_is_greedy_where_probabilities_do_not_add_up_to_1():
    """Which in bfloat16 they may not: PyTorch's distribution refuses them, and published code then
    takes the best.
    """
    import torch

    from jax_lm.benchmark.torch_reference import draw_tokens

    shape = (2000, 10)
    logits = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(torch.bfloat16)
    sums = torch.softmax(logits, dim=-1).sum(-1)
    assert 0 < (sums != 1).float().mean() < 0.1
    options = GenerationOptions(temperature=1.0, top_p=None, top_k=None)
    # One row that does not add up makes the step greedy; without such rows there are draws.
    assert torch.equal(draw_tokens(logits, options)[1], logits.argmax(-1))
    valid = logits[sums == 1]
    drawn = draw_tokens(valid, options)[1]
    assert 0.1 < (drawn != valid.argmax(-1)).float().mean() < 0.9


@needs_torch
def test_both_backends_compute_the_same(golden_sampler):
    from jax_lm.benchmark.torch_reference import TorchBackend

    config, folder = golden_sampler.config, GOLDEN / "checkpoint"
    ids, names = random_prompts(config, 2, 24, seed=1), output_names(config)
    ours, theirs = JaxBackend(golden_sampler), TorchBackend(folder, config)
    expected = theirs.module_outputs(ids, names)
    assert (
        max(
            each["relative"] for each in find_differences(ours.module_outputs(ids, names), expected)
        )
        < 1e-5
    )
    options = GenerationOptions(
        max_new_tokens=16, num_steps=32, temperature=0.0, top_p=0.9, top_k=50
    )
    tokens = [backend.generate(ids[:, :9], options).tokens for backend in (ours, theirs)]
    assert tokens[0].shape == tokens[1].shape == (2, 16)
    np.testing.assert_array_equal(*tokens)
    # One changed bias shows in its own projection, and in nothing before it.
    model = DreamForCausalLM.from_pretrained(folder)
    bias = model.model.layers[1].self_attn.v_proj.bias
    bias[...] = bias[...].at[0].add(0.5)
    found = find_differences(JaxBackend(Sampler(model)).module_outputs(ids, names), expected)
    assert (
        next(each["name"] for each in found if each["relative"] > 1e-4)
        == "model.layers.1.self_attn.v_proj"
    )

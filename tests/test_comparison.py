"""Differences are found where they are; PyTorch's side, where it is installed, computes the same."""

import dataclasses
import importlib.util
import math

import numpy as np
import pytest
from conftest import GOLDEN

from jax_lm import cli
from jax_lm.benchmark import comparison
from jax_lm.benchmark.comparison import Workload, differences, document, numbers_verdict, verdicts
from jax_lm.benchmark.worker import GREEDY_SHAPE, Ours, numbers_input, output_names
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM

needs_torch = pytest.mark.skipif(bool(comparison.missing()), reason="torch and transformers are not installed")


@pytest.fixture
def outputs(tiny_config):
    """Numbers under the names that a side hands out."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(1, 4, 8)).astype(np.float32) for name in [*output_names(tiny_config), "logits"]}


def records(found):
    return [dataclasses.asdict(each) for each in found]


def test_a_difference_is_found_where_it_is(outputs):
    others = {name: value.copy() for name, value in outputs.items()}
    others["model.layers.1.self_attn.k_proj"] *= 1.01
    found = differences(outputs, others)
    assert [(each.name, each.layer, each.kind) for each in found if each.relative] == [
        ("model.layers.1.self_attn.k_proj", 1, "k")
    ]
    assert max(each.relative for each in found) == pytest.approx(0.01 / 1.01, rel=1e-3)
    kinds = ["input norm", "q", "k", "v", "o", "second norm", "MLP"]
    assert [each.kind for each in found] == ["embedding", *kinds, *kinds, "final norm", "logits"]
    assert numbers_verdict(records(found), 0.02).met
    missed = numbers_verdict(records(found), 0.001)
    assert (missed.met, "16 of 17" in missed.measured, "k_proj" in missed.measured) == (False, True, True)


def test_what_is_not_a_number_is_not_within(outputs):
    others = outputs | {"logits": outputs["logits"] * math.nan}
    verdict = numbers_verdict(records(differences(outputs, others)), 1e9)
    assert (verdict.met, "logits" in verdict.measured) == (False, True)


def test_outputs_that_do_not_match_are_refused(outputs):
    with pytest.raises(ValueError, match="one side alone: logits"):
        differences(outputs, {name: value for name, value in outputs.items() if name != "logits"})
    with pytest.raises(ValueError, match=r"logits has shape \(1, 4, 8\) here and \(1, 4, 7\)"):
        differences(outputs, outputs | {"logits": outputs["logits"][..., 1:]})


def side(speeds, dtype="float32"):
    """What a side says that generates so fast, by batch."""
    about = {"device": "cpu", "platform": "cpu", "cpu_count": 2, "load_average": 0.1, "date": "today", "jax": "1",
             "jaxlib": "1", "flax": "1", "python": "3", "torch": "2", "transformers": "5"}  # fmt: skip
    cells = [
        {"batch": batch, "prompt_tokens": 16, "new_tokens": 32, "first_seconds": 1.0, "seconds": batch * 32 / speed,
         "tokens_per_second": speed, "forward_seconds": 0.1}
        for batch, speed in speeds.items()
    ]  # fmt: skip
    return {"about": about, "dtype": dtype, "cells": cells, "load_seconds": 1.0, "memory": "process", "load_bytes": 1,
            "peak_bytes": 2}  # fmt: skip


def test_the_report_judges_speed_and_tokens(outputs):
    workload = dataclasses.asdict(Workload(prompt_tokens=(16,), batch_sizes=(1, 4), new_tokens=32))
    result = {"jax": side({1: 10.0, 4: 30.0}), "pytorch": side({1: 5.0, 4: 40.0}), "workload": workload,
              "differences": records(differences(outputs, outputs)), "greedy_agreement": 0.99}  # fmt: skip
    assert [verdict.met for verdict in verdicts(result, 1e-4)] == [True, False, False, True]
    text = document(result, "model", 1e-4).markdown()
    assert "0.75 to 2.00 times" in text
    assert "| 4 | 30.0 | 40.0 | 0.75 |" in text
    assert "| layer 1 | 0.0e+00 |" in text
    assert document(result, "model", 1e-4).page().count("<svg") == 3
    rounded = result | {"jax": side({1: 10.0, 4: 30.0}, "bfloat16")}
    assert verdicts(rounded, 1e-4)[1].met is None


def test_cells_are_lengths_and_batches():
    workload = Workload(prompt_tokens=(16, 64), batch_sizes=(1, 4), new_tokens=8)
    assert workload.cells == ((1, 16, 8), (1, 64, 8), (4, 16, 8))


def test_without_pytorch_the_command_says_what_to_install(monkeypatch, capsys):
    find = importlib.util.find_spec
    found = {"torch": None, "transformers": find("json")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[name] if name in found else find(name))
    assert cli.main(["compare"]) == 2
    assert capsys.readouterr().err == (
        "error: compare needs torch, which this environment lacks: pip install 'jax-diffucoder[parity]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tolerance", "0"], "tolerance=0.0"),
        (["--batch-sizes", "0"], "batch_sizes=(0,)"),
        (["--prompt-tokens", "500"], "prompt_tokens=500 with new_tokens=32: the context holds 512"),
    ],
)
def test_bad_requests_are_one_line(monkeypatch, capsys, arguments, named):
    monkeypatch.setattr(comparison, "missing", list)
    assert cli.main(["compare", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {named}")


@needs_torch
def test_both_sides_compute_the_same(golden_sampler):
    from jax_lm.benchmark.torch_reference import Reference

    config, folder = golden_sampler.config, GOLDEN / "checkpoint"
    ids, names = numbers_input(config, (2, 24)), output_names(config)
    ours, theirs = Ours(golden_sampler), Reference(folder, config, "float32", device="cpu")
    expected = theirs.outputs(ids, names)
    assert max(each.relative for each in differences(ours.outputs(ids, names), expected)) < 1e-5
    settings = {"temperature": 0.0, "top_p": 0.9, "top_k": 50}
    tokens = [side.generate(ids[:, :9], settings, *GREEDY_SHAPE[1:]) for side in (ours, theirs)]
    assert tokens[0].shape == tokens[1].shape == (2, GREEDY_SHAPE[1])
    np.testing.assert_array_equal(*tokens)
    # One changed bias shows in its own projection, and in nothing before it.
    model = DreamForCausalLM.from_pretrained(folder)
    bias = model.model.layers[1].self_attn.v_proj.bias
    bias[...] = bias[...].at[0].add(0.5)
    found = differences(Ours(Sampler(model)).outputs(ids, names), expected)
    assert next(each.name for each in found if each.relative > 1e-4) == "model.layers.1.self_attn.v_proj"

"""The full experiment: each step on a tiny shape, in runs of limited time; what it says of memory
and the machine.
"""

import json
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import full_size
from experiments.full_size import Arguments, FullSizeSteps, judge_passes, main, update_call
from jax_lm.benchmark import comparison, experiment, machine
from jax_lm.benchmark.parity import logits_of
from jax_lm.compilation.programs import step_programs
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import OutOfMemoryError
from jax_lm.sharding import MeshShape

SIZE = {
    "random_shape": "small",
    "dtype": "float32",
    "canvas": 64,
    "new_tokens": 32,
    "rows": (1,),
    "repeats": 1,
}
NAMES = [
    "environment", "weights", "passes 1", "decoding exact 1", "decoding fast 1", "decoding turbo 1",
    "serving 2", "torch", *(f"training {name}" for name in full_size.UPDATES),
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch, tiny_config):
    """A tiny shape, small arrays for the machine's limits, and no PyTorch."""
    monkeypatch.setattr(full_size, "SHAPES", {"small": tiny_config, "7b": tiny_config})
    monkeypatch.setattr(
        experiment, "machine_limits", partial(machine.machine_limits, copy_bytes=2**22)
    )
    monkeypatch.setattr(comparison, "missing_packages", lambda: ["torch"])


@pytest.fixture
def steps(tmp_path):
    return FullSizeSteps(Arguments(out=tmp_path, clients=(3,), **SIZE))


def test_every_step_is_measured_in_runs_of_limited_time(tmp_path, monkeypatch):
    def without_memory(*arguments, **options):
        raise OutOfMemoryError("out of memory: as if")

    out = tmp_path / "out"
    arguments = Arguments(out=out, clients=(2,), **SIZE)
    assert main(replace(arguments, minutes=0.0001)) == 0
    first, *others = json.loads((out / "results.json").read_text()).items()
    assert (first[0], first[1]["state"]) == ("environment", "done")
    assert {name: each["reason"] for name, each in others} == dict.fromkeys(
        NAMES[1:], "no time was left: the same command runs it"
    )
    with monkeypatch.context() as patch:
        patch.setattr(full_size, "step_programs", without_memory)
        assert main(arguments) == 0
    found = json.loads((out / "results.json").read_text())
    assert list(found) == NAMES
    assert [name for name, each in found.items() if each["state"] != "done"] == ["torch"]
    passes = {row["window"]: row for row in found["passes 1"]["row"]["rows"]}
    assert [(name, row["rows"], row["head_rows"]) for name, row in passes.items()] == [
        ("canvas", 64, 32), ("refresh", 64, 32), ("window", 32, 32)
    ]  # fmt: skip
    exact = found["decoding exact 1"]["row"]
    assert exact["tokens_per_second"] == pytest.approx(32 / exact["seconds"])
    assert (exact["recompilations"], exact["forwards"] in (31, 32)) == (0, True)
    assert found["serving 2"]["row"]["requests"] == 4
    assert found["training sft"]["row"]["out_of_memory"] == "out of memory: as if"
    report = (out / "report.md").read_text()
    assert (
        "| [-] | generation compared with PyTorch | at least as fast | left out: torch not installed"
        in report
    )
    assert (
        "| [ ] | an update of adapters | fits | out of memory: as if. `diffucoder plan --step sft "
        "--lora-rank 16` says what fits. (missed) |"
    ) in report
    assert {path.name for path in out.glob("*.svg")} == {"decoding.svg", "serving.svg"}
    before = (out / "steps.jsonl").read_text()
    assert main(arguments) == 0
    # But for what was left out, which is tried again.
    assert [json.loads(line).get("step") for line in (out / "steps.jsonl").read_text()[len(before) :].splitlines()] == [
        "torch", "torch"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sft-lora", "sft-qlora", "grpo-lora"])
def test_an_update_is_taken(steps, name):
    found = steps.training(name, {})
    assert found["tokens_per_second"] == pytest.approx(8 * 64 / found["seconds"])


def test_updates_follow_each_other_and_learn(steps, tiny_config):
    planned = steps.planned(batch=8, kind="sft")
    [program] = step_programs(planned, MeshShape().mesh(), GenerationOptions()).values()
    call = update_call(program, tiny_config.vocab_size)
    losses = [float(call()["loss"]) for _ in range(2)]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]


def test_clients_are_served_one_request_after_the_other(steps):
    served = steps.serving(3, {})
    assert served["requests"] == 6
    assert 0 < served["median_seconds"] <= served["longest_seconds"]
    assert served["tokens_per_second"] > 0


def test_memory_that_ends_is_a_result(steps, monkeypatch):
    def without_memory(*arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 1 GiB")

    found = {"environment": steps.environment({})}
    monkeypatch.setattr(full_size, "time_forwards", without_memory)
    row = steps.passes(1, found)
    assert row["out_of_memory"].startswith("out of memory: 1 x 64 tokens in float32 take about")
    assert judge_passes("canvas", row) == (row["out_of_memory"], False)
    monkeypatch.setattr(full_size, "time_and_memory", without_memory)
    assert steps.decoding("fast", 4, found)["out_of_memory"].startswith(
        "out of memory: 4 x 64 tokens"
    )


def test_weights_lie_on_a_mesh(tiny_config):
    """As on one device, made tensor by tensor where they belong."""
    mesh = MeshShape().mesh()
    alone, placed = (
        full_size.random_model(tiny_config, "float32", mesh=each) for each in (None, mesh)
    )
    tokens = jnp.arange(8)[None]
    np.testing.assert_allclose(*(logits_of(each, tokens) for each in (placed, alone)), atol=1e-5)
    assert placed.model.mesh is mesh


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"canvas": 32}, "new_tokens=32: must be less than canvas=32"),
        ({"rows": (0,)}, "rows=(0,): must be at least 1"),
        ({"minutes": 0}, "minutes=0: must be positive"),
    ],
)
def test_wrong_settings_are_named(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Arguments(out=tmp_path, **SIZE | wrong)

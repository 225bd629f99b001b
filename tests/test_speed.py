"""Speed measurements: costs by hand, what is timed, and the command end to end."""

import json
from functools import partial
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.benchmark import machine, speed
from jax_lm.benchmark.backend import JaxBackend, random_canvas
from jax_lm.benchmark.settings import Cell, Workload
from jax_lm.benchmark.timer import time_call
from jax_lm.cli import main as cli
from jax_lm.config import DIFFUCODER_7B
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.sampler import Sampler
from jax_lm.planning.memory import forward_cost
from jax_lm.planning.roofline import Cost, MachineLimits

LIMITS = MachineLimits(matmul_flops=1e11, copy_bytes=1e10)
RESULT_KEYS = {
    "about",
    "model",
    "workload",
    "limits",
    "load_seconds",
    "peak_memory",
    "generations",
    "forwards",
}


@pytest.fixture(scope="module")
def sampler(tiny_model):
    return Sampler(tiny_model)


def test_cost_by_hand(tiny_config):
    body = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 32 * 48)
    head = 96 * 32
    attention = 2 * (
        2 * 4 * 8 * 7 + 2 * 4 * 8 * 7
    )  # layers, scores and weighted values, heads of width 8, 7 keys
    cost = forward_cost(tiny_config, "float32", batch=2, rows=5, canvas=7, head_rows=3)
    assert cost.flops == 2 * (5 * (2 * body + attention) + 3 * 2 * head) == 361_984
    assert cost.bytes == 4 * (body + head + 2 * (2 * 2 * 2 * 8 * 7)) == 77_312


def test_cost_of_the_published_shape():
    """The figures of the specification: per row of the body, per row of the head, bytes of the
    weights.
    """
    one, two, with_head = (
        forward_cost(DIFFUCODER_7B, "bfloat16", batch=1, rows=rows, canvas=0, head_rows=head_rows)
        for rows, head_rows in ((1, 0), (2, 0), (1, 1))
    )
    assert round((two.flops - one.flops) / 1e9, 2) == 13.05
    assert round((with_head.flops - one.flops) / 1e9, 2) == 1.09
    assert round(one.bytes / 1e9, 2) == 14.14


@pytest.mark.parametrize(
    ("cost", "seconds", "limit"),
    [(Cost(2 * 10**11, 10**9), 2.0, "compute"), (Cost(10**9, 5 * 10**10), 5.0, "memory")],
)
def test_roofline_is_the_slower_limit(cost, seconds, limit):
    assert cost.seconds(LIMITS) == seconds
    assert cost.limit(LIMITS) == limit


def test_a_workload_that_exceeds_the_context_is_refused_before_anything_runs(sampler):
    workload = Workload(prompt_tokens=(100,), new_tokens=(8, 29), batch_sizes=(1,))
    with pytest.raises(
        ValueError, match=r"prompt_tokens=100 with new_tokens=29: the context holds 128"
    ):
        speed.measure_speed(sampler, ["exact"], workload, LIMITS)


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_generation_counts(sampler, preset):
    """The first step of a schedule of one token per step commits nothing: 15 forwards for 16
    tokens.
    """
    cell = Cell(batch=2, prompt_tokens=20, new_tokens=16, preset=preset)
    result = speed.time_generation(JaxBackend(sampler), cell, 2)
    assert result["forwards"] == 15
    assert result["tokens_per_forward"] == pytest.approx(16 / 15)
    assert result["tokens_per_second"] == pytest.approx(2 * 16 / result["seconds"])
    assert result["recompilations"] == 0
    assert "forward_seconds" not in result


def test_what_is_timed_is_the_forward_pass_of_the_sampler(sampler, tiny_config, monkeypatch):
    seen = []

    def keep(*arguments):
        logits, memory = timed(*arguments)
        seen.append(np.asarray(logits))
        return logits, memory

    timed = speed.run_block_logits
    monkeypatch.setattr(speed, "run_block_logits", keep)
    canvas = random_canvas(tiny_config, Cell(batch=2, prompt_tokens=24, new_tokens=8), seed=0)
    times = speed.time_forwards(sampler, canvas, LIMITS, repeats=1)
    assert [(each["window"], each["rows"], each["head_rows"]) for each in times] == [
        ("canvas", 32, 8),
        ("refresh", 32, 8),
        ("window", 9, 8),
    ]
    for each in times:
        assert 0 <= each["overhead"] < 1
        assert each["roofline"] == pytest.approx(each["bound_seconds"] / each["seconds"])
        assert each["overhead"] == pytest.approx(max(1 - each["seconds"] / each["step_seconds"], 0))
    assert times[2]["bound_seconds"] < times[0]["bound_seconds"]
    # Three calls of each: two compile, one is timed. Nothing is committed in between, so that the
    # cache is exact.
    expected = shift_right(sampler.forward(jnp.asarray(sampler.start(canvas, 0).tokens)))[:, 24:]
    for logits in seen:
        np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert len(seen) == 9


def test_command_writes_its_files(tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        machine, "machine_limits", partial(machine.machine_limits, copy_bytes=2**22)
    )
    tiny_model.save_pretrained(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--presets", "exact", "turbo"]
    arguments += [
        "--batch-sizes",
        "1",
        "--new-tokens",
        "8",
        "--prompt-tokens",
        "8",
        "--repeats",
        "1",
    ]
    timings = []

    def recorded(*given, **options):
        timings.append(time_call(*given, **options))
        return timings[-1]

    monkeypatch.setattr(speed, "time_call", recorded)
    out = tmp_path / "results" / "tiny"
    assert cli.main(["bench", *arguments, "--dtype", "float32", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "bench.html",
        "bench.json",
        "bench.md",
        "bench.svg",
    ]
    result = json.loads((out / "bench.json").read_text())
    assert set(result) == RESULT_KEYS
    cells = [(each["preset"], each["batch"], each["new_tokens"]) for each in result["generations"]]
    assert cells == [("exact", 1, 8), ("turbo", 1, 8)]
    assert all(each["peak_bytes"] > 0 for each in result["generations"])
    assert {each["recompilations"] for each in result["generations"]} == {0}
    assert len(result["forwards"]) == 3
    # nothing is compiled in a measured call, a pass into the cache included
    assert {timing.row["recompilations"] for timing in timings} == {0}
    assert {"date", "jax", "jaxlib", "flax", "python", "device", "cpu_count", "command"} <= set(
        result["about"]
    )
    bars = [
        node for node in ElementTree.parse(out / "bench.svg").iter() if node.tag.endswith("rect")
    ]
    assert len(bars) == len(cells)
    report = (out / "bench.md").read_text()
    assert report.count("| turbo |") == 1
    assert "limits measured" in report
    assert "Success criteria" not in report
    assert "Generation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--batch-sizes", "0"], "batch_sizes"),
        (["--repeats", "0"], "repeats"),
        (["--presets"], "presets"),
        (["--model", "somewhere", "--random-shape", "small"], "random_shape"),
    ],
)
def test_command_refuses_in_one_line(arguments, name, capsys):
    assert cli.main(["bench", *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert f" {name}=" in errors[0]

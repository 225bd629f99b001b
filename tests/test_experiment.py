"""The experiment runs every step, reports failures and memory that ends, and goes on where it was
stopped.
"""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from jax_lm.benchmark import comparison, experiment, machine
from jax_lm.benchmark.settings import ExperimentSettings
from jax_lm.cli import main as cli
from jax_lm.model_source import BUILTIN_MODEL
from jax_lm.planning.memory import OutOfMemoryError

ARGUMENTS = [
    "--new-tokens",
    "8",
    "--batch-sizes",
    "1",
    "2",
    "--largest-batch",
    "2",
    "--tasks",
    "2",
    "--repeats",
    "1",
]
STEPS = ["environment", "checkpoint", "loading", "single", "forward", "batch", "stress 1", "stress 2", "cpu",
         "recorded", "pytorch", "quality"]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small arrays for the machine's limits, and no PyTorch: its process is tested by
    test_comparison.py.
    """
    monkeypatch.setattr(
        experiment, "machine_limits", partial(machine.machine_limits, copy_bytes=2**22)
    )
    monkeypatch.setattr(comparison, "missing_packages", lambda: ["torch"])
    monkeypatch.setattr(experiment, "TASK_TOKENS", 16)


def states(folder):
    return {
        name: outcome["state"]
        for name, outcome in json.loads((folder / "results.json").read_text()).items()
    }


def lines(folder):
    return (folder / "steps.jsonl").read_text().splitlines()


def test_a_run_fails_is_reported_and_goes_on(tiny_folder, tmp_path, monkeypatch, capsys):
    out, arguments = tmp_path / "out", ["experiment", "--model", str(tiny_folder), *ARGUMENTS]
    decode, sizes = experiment.ExperimentSteps.decode, []

    def without_memory(self, prompts, tokens, temperature=0.0):
        sizes.append(len(prompts))
        if len(prompts) == 4:
            raise RuntimeError("lost the device")
        if len(prompts) == 2:
            raise OutOfMemoryError("out of memory: 2 x 64 tokens")
        return decode(self, prompts, tokens, temperature)

    monkeypatch.setattr(experiment.ExperimentSteps, "decode", without_memory)
    assert cli.main([*arguments, "--out", str(out)]) == 1
    results = json.loads((out / "results.json").read_text())
    assert list(results) == STEPS
    failed = [name for name, state in states(out).items() if state == "failed"]
    left_out = [name for name, state in states(out).items() if state == "left out"]
    assert (failed, [name for name in left_out if name != "quality"]) == (
        ["batch"],
        ["cpu", "recorded", "pytorch"],
    )
    assert results["stress 2"]["row"] == {
        "size": 2,
        "out_of_memory": "out of memory: 2 x 64 tokens",
    }
    assert results["single"]["row"]["recompilations"] == 0
    assert results["single"]["row"]["same_text"]
    rows = results["forward"]["row"]["rows"]
    assert [(row["batch"], row["roofline"] > 0) for row in rows] == [(1, True), (2, True)]
    report = (out / "report.md").read_text()
    assert re.search(
        r"\n\| Four prompts together \| failed \| [\d.]+ \| RuntimeError: lost the device", report
    )
    assert re.search(r"\n\| 2 \| [ |]*\| out of memory: 2 x 64 tokens \|\n", report)
    assert "| [-] | four prompts together | less time than one by one | failed:" in report
    assert {path.name for path in out.glob("*.svg")} == {"forward.svg", "stress.svg"}
    assert "<script" not in (out / "report.html").read_text()

    # Started again, only what is not done is done; nothing is loaded twice for what is kept.
    monkeypatch.setattr(experiment.ExperimentSteps, "decode", decode)
    before = len(lines(out))
    assert cli.main([*arguments, "--out", str(out)]) == 0
    again = [json.loads(line)["step"] for line in lines(out)[before:]]
    assert [name for name in dict.fromkeys(again) if name != "quality"] == [
        "batch",
        "cpu",
        "recorded",
        "pytorch",
    ]
    assert states(out)["batch"] == "done"
    assert json.loads((out / "results.json").read_text())["batch"]["row"]["equal"] == 4
    assert "Four prompts together | failed" not in (out / "report.md").read_text()
    capsys.readouterr()
    # more time is not another experiment
    assert cli.main([*arguments, "--out", str(out), "--timeout", "900"]) == 0
    capsys.readouterr()
    assert cli.main([*arguments, "--out", str(out), "--repeats", "2"]) == 2
    assert "was begun with repeats=1, not 2" in capsys.readouterr().err


def test_larger_batches_are_left_out_after_memory_ends():
    steps = experiment.ExperimentSteps(Path("nowhere"), ExperimentSettings())
    with pytest.raises(experiment.LeftOut, match="batch 2 did not run"):
        steps.stress(4, {"stress 2": {"size": 2, "out_of_memory": "out of memory: 2 x 64 tokens"}})
    with pytest.raises(experiment.LeftOut, match="batch 4 did not run"):
        steps.stress(8, {})


def test_limits_are_measured_in_the_precision_of_the_model(monkeypatch):
    monkeypatch.setattr(experiment, "measure_environment", lambda dtype: {"dtype": dtype})
    monkeypatch.setattr(experiment, "fitting_dtype", lambda count: "bfloat16")
    for dtype, measured in ((None, "bfloat16"), ("float32", "float32"), ("int8", "bfloat16")):
        steps = experiment.ExperimentSteps(BUILTIN_MODEL, ExperimentSettings(dtype=dtype))
        assert steps.environment({}) == {"dtype": measured}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--batch-sizes", "0"], "batch_sizes=(0,)"),
        (["--largest-batch", "0"], "largest_batch=0"),
        (["--recorded", "/nowhere"], "parity folder '/nowhere' has no checkpoint"),
        (["--model", "/nowhere/at/all"], "model '/nowhere/at/all'"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, capsys, arguments, named):
    assert cli.main(["experiment", "--out", str(tmp_path / "out"), *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f" {named}" in line
    assert not (tmp_path / "out").exists()

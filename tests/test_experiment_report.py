"""Every criterion is ticked from its own number, and from nothing when that is not there."""

import json
from pathlib import Path

import pytest

from jax_lm.benchmark.experiment_report import CRITERIA, experiment_report
from jax_lm.reports.steps import DONE, FAILED, Outcome, Step

ABOUT = {"devices": 1, "device": "H100", "platform": "gpu", "machine": "x86_64", "cpu_count": 2, "load_average": 0.1,
         "jax": "1", "jaxlib": "1", "flax": "1", "python": "3", "date": "today", "command": "c"}  # fmt: skip
CELL = {"batch": 1, "prompt_tokens": 32, "new_tokens": 8, "first_seconds": 2.0, "seconds": 1.0, "all_seconds": [1.0],
        "tokens_per_second": 8.0, "forward_seconds": 0.1}  # fmt: skip
DIFFERENCE = {"name": "logits", "kind": "logits", "layer": None, "largest": 1e-5, "relative": 1e-6}


def row(batch, rate, share):
    return {
        "batch": batch,
        "seconds": 0.1,
        "tokens_per_second": rate,
        "roofline": share,
        "limit": "compute",
    }


def good():
    """Results with which every criterion is met, each number at its bound where it has one."""
    return {
        "environment": {"about": ABOUT, "limits": {"matmul_flops": 1e12, "copy_bytes": 1e11}, "limits_dtype": "float32",
                        "device_bytes": 2**34, "peak_memory": "device"},
        "checkpoint": {"checks": [{"name": "layout", "found": "", "passed": True}], "passed": True},
        "loading": {"seconds": 300.0, "described": "", "parameters": 7, "dtype": "float32", "mesh": "1",
                    "weights_bytes": 1, "peak_bytes": 1},
        "single": {"prompt": "def f():", "text": "pass", "same_text": True, "new_tokens": 64, "first_seconds": 120.0,
                   "seconds": 6.4, "tokens_per_second": 10.0, "forwards": 64, "recompilations": 0, "peak_bytes": 1},
        "forward": {"width": 128, "rows": [row(1, 100.0, 0.4), row(8, 200.0, 0.1)]},
        "batch": {"seconds": 1.0, "tokens_per_second": 4.0, "alone_seconds": 1.1, "equal": 1, "texts": {"a": "b"}},
        "stress 8": {"size": 8, "seconds": 1.0, "tokens_per_second": 8.0, "peak_bytes": 1},
        "cpu": {"here": CELL, "cpu": CELL, "ratio": 5.0},
        "recorded": {"findings": [{"name": "a", "measured": "1", "allowed": "1", "passed": i > 0} for i in range(20)]},
        "pytorch": {"differences": [DIFFERENCE] * 20, "tolerance": 1e-4, "greedy_agreement": 1.0, "torch": "2"},
        "quality": {"tasks": 2, "passed": 1, "tier": "landlock", "attempts": [
            {"name": "a", "outcome": "passed", "detail": "", "program": "x = 1"}]},
    }  # fmt: skip


BAD = {
    "computed on an accelerator": ("environment", {"about": ABOUT | {"platform": "cpu"}}),
    "checkpoint present and verified": ("checkpoint", {"passed": False}),
    "loads": ("loading", {"seconds": 300.1}),
    "first call": ("single", {"first_seconds": 120.1}),
    "later calls compile nothing": ("single", {"recompilations": 1}),
    "same seed, same text": ("single", {"same_text": False}),
    "generation, one prompt": ("single", {"tokens_per_second": 9.9}),
    "forward passes gain from batches": ("forward", {"rows": [row(1, 100.0, 0.4), row(8, 199.0, 0.1)]}),
    "forward passes near the machine's limits": ("forward", {"rows": [row(1, 100.0, 0.3), row(8, 200.0, 0.1)]}),
    "four prompts together": ("batch", {"seconds": 1.1}),
    "answers together as alone": ("batch", {"equal": 0}),
    "memory for batch 8": ("stress 8", {"seconds": None, "out_of_memory": "out of memory"}),
    "faster than the CPU": ("cpu", {"ratio": 4.9}),
    "parity with recorded outputs": ("recorded", {"findings": [
        {"name": "a", "measured": "1", "allowed": "1", "passed": i > 1} for i in range(20)]}),
    "parity with PyTorch": ("pytorch", {"differences": [DIFFERENCE] * 18 + [DIFFERENCE | {"relative": 2e-4}] * 2}),
    "quality": ("quality", {"passed": 0}),
}  # fmt: skip


def report(found, **others):
    outcomes = {name: Outcome(DONE, result) for name, result in found.items()} | others
    return experiment_report(
        outcomes, [Step(name, name, lambda _: {}) for name in outcomes], "model"
    )


def test_all_criteria_can_be_met():
    found = report(good())
    assert [verdict.name for verdict in found.verdicts if verdict.met is not True] == []
    assert found.score == f"{len(CRITERIA)} of {len(CRITERIA)} met, 0 missed, 0 not measured"
    assert found.page().count("<svg") == 2


def test_every_criterion_has_its_miss():
    assert list(BAD) == [criterion.name for criterion in CRITERIA]


@pytest.mark.parametrize("name", BAD)
def test_one_number_misses_one_criterion(name):
    step, change = BAD[name]
    found = good()
    found[step] |= change
    missed = report(found)
    assert [verdict.name for verdict in missed.verdicts if verdict.met is not True] == [name]
    advice = next(criterion.advice for criterion in CRITERIA if criterion.name == name)
    assert f". {advice} (missed) |" in missed.markdown()


@pytest.mark.parametrize(
    ("rows", "name", "said"),
    [
        (
            [row(1, 100.0, 0.4)],
            "forward passes gain from batches",
            "batch sizes that fit: 1 (not measured)",
        ),
        (
            [row(1, 100.0, None), row(8, 200.0, None)],
            "forward passes near the machine's limits",
            "the machine's limits are not known (not measured)",
        ),
        # above 100 %, the limit is wrong
        (
            [row(1, 100.0, 0.5), row(8, 400.0, 2.05)],
            "forward passes near the machine's limits",
            "205% at batch 8 (compute) (not measured)",
        ),
    ],
)
def test_what_a_row_does_not_say_is_not_measured(rows, name, said):
    found = good()
    found["forward"]["rows"] = rows
    judged = report(found)
    assert [verdict.name for verdict in judged.verdicts if verdict.met is None] == [name]
    assert f"| {said} |" in judged.markdown()


def test_what_failed_is_not_measured():
    found = good()
    del found["single"]
    failed = report(found, single=Outcome(FAILED, reason="no device"))
    unknown = [verdict.name for verdict in failed.verdicts if verdict.met is None]
    assert unknown == [criterion.name for criterion in CRITERIA if criterion.step == "single"]
    assert (
        "| first call | within 120 s, compilation included | failed: no device (not measured) |"
        in (failed.markdown())
    )


def test_nothing_at_all_is_a_report():
    assert report({}).score == f"0 of {len(CRITERIA)} met, 0 missed, {len(CRITERIA)} not measured"


def test_the_recorded_results_make_the_recorded_report():
    folder = Path(__file__).parent.parent / "docs" / "results" / "experiment"
    outcomes = {
        name: Outcome(**each)
        for name, each in json.loads((folder / "results.json").read_text()).items()
    }
    found = experiment_report(
        outcomes, [Step(name, name, lambda _: {}) for name in outcomes], "built-in model"
    )
    before = (folder / "report.md").read_text()
    assert found.score in before
    for verdict in found.verdicts:
        assert (
            f"{verdict.name} | {verdict.wanted} | {verdict.measured} ({verdict.mark}) |" in before
        )
    assert {f"## {section.title}" for section in found.sections} <= set(before.splitlines())


def test_rows_of_another_version_are_refused():
    with pytest.raises(
        ValueError, match="a step of an earlier run lacks 'first_seconds': give another folder"
    ):
        report({"single": {"prompt": "def f():"}})

"""Measures of decoded canvases, and what is written of them."""

import json

from jax_lm.evaluation.order_analysis import OrderAnalysis, order_measures
from jax_lm.evaluation.traces import Trace


def trace(commit_step, end=4):
    return Trace("a", 0, 0.0, "x =", " 1", tuple("abcd"), commit_step, (0.5, 1.0, 0.9, 0.8), end)


def test_measures_of_the_text_leave_out_what_comes_after():
    backwards_after = trace((0, 1, 3, 2), end=2)
    found = order_measures([backwards_after], by_confidence=False)
    assert (found["local"][0], found["local_text"][0]) == (0.3333, 1.0)
    assert found["global_text"][:2] == [1.0, 1.0]
    # Too short for more than one step before.
    assert found["local_text"][1:] == [None] * 8
    assert found["confidence_text"] == 0.75
    assert order_measures([trace((0, 1, 2, 3), end=0)], by_confidence=False)["confidence_text"] is None


def test_an_analysis_without_programs_that_pass_is_written(tmp_path):
    traces = [trace((1, 0, 2, 3))]
    row = {
        "temperature": 0.0,
        "samples": 1,
        **order_measures(traces, by_confidence=False),
        "pass": {"pass@1": [0, 0, 1]},
    }
    analysis = OrderAnalysis(by_confidence=False, traces=[traces], rows=[row], first_confidence=[0.9, 0.4, 0.3, 0.2])
    analysis.write(tmp_path / "out", {"model": "<m>"}, {"settings": {"n": 1}})
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert found["settings"] == {"n": 1}
    assert found["traces"][0]["commit_step"] == [1, 0, 2, 3]
    assert "&lt;m&gt;" in (tmp_path / "out" / "analysis.html").read_text()
    assert analysis.cells() == [["0", "0.33", "0.75", "0.33", "0.75", "0.80", "pass@1 0%"]]

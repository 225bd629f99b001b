"""Decoded canvases: one position per step, the order that was asked for, confidence before the first step; what is
measured and written of them."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.evaluation.order_analysis import (
    OrderAnalysis,
    Trace,
    decides_several,
    decode_traces,
    first_confidence,
    order_measures,
)
from jax_lm.evaluation.problems import Problem
from jax_lm.options import Decoding, GenerationOptions

PROBLEMS = [
    Problem("a", "gaps", "def add(a, b):", "", ("assert add(1, 2) == 3",), ""),
    Problem("b", "gaps", "def double(x):", "", ("assert double(1) == 2",), ""),
]


def test_left_to_right_decoding_is_fully_autoregressive(engine):
    options = GenerationOptions(max_new_tokens=16, alg="left_to_right", temperature=0.0, top_p=None, top_k=None)
    traces = decode_traces(engine, PROBLEMS, options, samples=1)
    assert not decides_several(options)
    assert [trace.commit_step for trace in traces] == [tuple(range(16))] * 2
    found = order_measures(traces, by_confidence=False)
    assert found["local"] == [1.0] * 9
    assert found["global"] == [1.0] * 4
    for trace in traces:
        assert trace.text == "".join(trace.pieces[: trace.end])
        assert all(0 < value <= 1 for value in trace.confidence)


def test_several_positions_per_step_need_a_word(engine):
    options = GenerationOptions(max_new_tokens=16, num_steps=4, alg="maskgit_plus", temperature=0.0)
    traces = decode_traces(engine, PROBLEMS[:1], options, samples=1)
    assert len(set(traces[0].commit_step)) <= 4
    with pytest.raises(ValueError, match="several positions at one step"):
        order_measures(traces, by_confidence=False)
    assert decides_several(options)
    assert decides_several(GenerationOptions(max_new_tokens=16, decoding=Decoding(preset="fast")))
    assert 0 <= order_measures(traces, by_confidence=True)["global"][0] <= 1


def test_confidence_before_the_first_step_is_that_of_the_model(engine):
    problem = PROBLEMS[0]
    prompt = engine.tokenizer.encode(problem.prefix)
    new = 32 - len(prompt)
    found = first_confidence(engine, [problem], new)
    tokens = jnp.array([[*prompt, *[engine.sampler.mask_id] * new]])
    logits = np.array(engine.sampler.forward(tokens))[0, len(prompt) - 1 : -1].astype(np.float64)
    # MASK itself is no candidate.
    logits[:, engine.sampler.mask_id] = -np.inf
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert found.shape == (1, new)
    assert np.allclose(found[0], (odds / odds.sum(axis=1, keepdims=True)).max(axis=1), atol=1e-5)


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

"""AR-ness of orders whose values are known, and against the definitions written out. Decoded
canvases: one position per step, the order that was asked for, confidence before the first step;
what is measured and written of them."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_lm.evaluation.order_analysis import (
    decides_several,
    decode_traces,
    first_confidence,
    global_ar_ness,
    heat_map,
    local_ar_ness,
    measures_section,
    order_measures,
    trace_order,
    write_analysis,
)
from jax_lm.evaluation.problems import Problem
from jax_lm.options import Decoding, GenerationOptions

PROBLEMS = [
    Problem("a", "gaps", "def add(a, b):", "", ("assert add(1, 2) == 3",), ""),
    Problem("b", "gaps", "def double(x):", "", ("assert double(1) == 2",), ""),
]


def test_left_to_right_decoding_is_fully_autoregressive(engine):
    options = GenerationOptions(
        max_new_tokens=16, alg="left_to_right", temperature=0.0, top_p=None, top_k=None
    )
    traces = decode_traces(engine, PROBLEMS, options, samples=1)
    assert not decides_several(options)
    assert [trace["commit_step"] for trace in traces] == [list(range(16))] * 2
    found = order_measures(traces)
    assert found["local"] == [1.0] * 9
    assert found["global"] == [1.0] * 4
    for trace in traces:
        assert trace["text"] == "".join(trace["pieces"][: trace["end"]])
        assert all(0 < value <= 1 for value in trace["confidence"])


def test_several_positions_per_step_are_ordered_by_confidence(engine):
    options = GenerationOptions(max_new_tokens=16, num_steps=4, alg="maskgit_plus", temperature=0.0)
    traces = decode_traces(engine, PROBLEMS[:1], options, samples=1)
    assert len(set(traces[0]["commit_step"])) <= 4
    assert decides_several(options)
    assert decides_several(GenerationOptions(max_new_tokens=16, decoding=Decoding(preset="fast")))
    assert 0 <= order_measures(traces)["global"][0] <= 1


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
    return {
        "name": "a",
        "sample": 0,
        "temperature": 0.0,
        "prompt": "x =",
        "text": " 1",
        "pieces": list("abcd"),
        "commit_step": list(commit_step),
        "confidence": [0.5, 1.0, 0.9, 0.8],
        "end": end,
        "tied": 0.25,
    }


def test_measures_of_the_text_leave_out_what_comes_after():
    backwards_after = trace((0, 1, 3, 2), end=2)
    found = order_measures([backwards_after])
    assert (found["local"][0], found["local_text"][0]) == (0.3333, 1.0)
    assert found["global_text"][:2] == [1.0, 1.0]
    # Too short for more than one step before.
    assert found["local_text"][1:] == [None] * 8
    assert (found["confidence_text"], found["tied_text"]) == (0.75, 0.25)
    empty = order_measures([trace((0, 1, 2, 3), end=0)])
    assert (empty["confidence_text"], empty["tied_text"]) == (None, None)


def test_ties_of_a_trace_are_single_candidates(engine):
    untied, tied = (
        decode_traces(engine, PROBLEMS, GenerationOptions(max_new_tokens=16, **filters), samples=1)
        for filters in ({"temperature": 0.0, "top_p": None, "top_k": None}, {"top_k": 1})
    )
    assert all(trace["end"] for trace in untied + tied)
    assert [trace["tied"] for trace in tied] == [1.0, 1.0]
    assert all(trace["tied"] < 1 for trace in untied)


def test_an_analysis_without_programs_that_pass_is_written(tmp_path):
    traces = [trace((1, 0, 2, 3))]
    row = {
        "temperature": 0.0,
        "samples": 1,
        **order_measures(traces),
        "pass": {"pass@1": [0, 0, 1]},
    }
    analysis = {
        "ordered_by_confidence": False,
        "temperatures": [row],
        "first_step_confidence": [0.9, 0.4, 0.3, 0.2],
        "traces": traces,
    }
    write_analysis(analysis, tmp_path / "out", {"model": "<m>"}, {"settings": {"n": 1}})
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert found["settings"] == {"n": 1}
    assert found["traces"][0]["commit_step"] == [1, 0, 2, 3]
    assert "&lt;m&gt;" in (tmp_path / "out" / "analysis.html").read_text()
    [cells] = measures_section(analysis).rows
    assert cells == ["0", "0.33", "0.75", "0.33", "0.75", "0.80", "0.25", "pass@1 0%"]


LENGTHS = st.integers(1, 24)


def local_by_definition(order, k):
    """The paper's formula, position by position."""
    steps = [t for t in range(len(order)) if t >= k]
    hits = [{*order[t - k : t]} == {order[t] - i for i in range(1, k + 1)} for t in steps]
    return sum(hits) / len(hits) if hits else math.nan


def global_by_definition(order, k):
    masked, hits = sorted(order), []
    for position in order:
        hits.append(position in masked[:k])
        masked.remove(position)
    return sum(hits) / len(hits)


@pytest.mark.parametrize("k", range(1, 10))
def test_left_to_right_is_one_everywhere(k):
    assert local_ar_ness(np.arange(32), k) == 1.0
    assert global_ar_ness(np.arange(32), k) == 1.0


@pytest.mark.parametrize("k", range(1, 10))
def test_right_to_left(k):
    order = np.arange(32)[::-1]
    assert local_ar_ness(order, k) == 0.0
    # The rightmost of m masked positions is among the first k only while m <= k.
    assert global_ar_ness(order, k) == k / 32


def test_known_orders_in_between():
    # Two from the left, then two from the right.
    order = np.array([0, 1, 3, 2])
    assert local_ar_ness(order, 1) == pytest.approx(1 / 3)
    assert local_ar_ness(order, 2) == 0.0
    assert global_ar_ness(order, 1) == pytest.approx(3 / 4)
    assert global_ar_ness(order, 2) == 1.0
    # The k positions to the left may have come in any order, so that local AR-ness can rise with k.
    assert local_ar_ness(np.array([1, 0, 2]), 1) == 0.0
    assert local_ar_ness(np.array([1, 0, 2]), 2) == 1.0


@given(LENGTHS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_order_is_as_defined(length, k, rng):
    order = list(range(length))
    rng.shuffle(order)
    assert local_ar_ness(np.array(order), k) == pytest.approx(
        local_by_definition(order, k), nan_ok=True
    )
    assert global_ar_ness(np.array(order), k) == pytest.approx(global_by_definition(order, k))


@given(st.permutations(range(16)))
def test_global_rises_with_k_to_one(order):
    globally = [global_ar_ness(np.array(order), k) for k in range(1, 17)]
    assert globally == sorted(globally)
    assert globally[-1] == 1.0


def test_random_orders_are_within_their_expectation():
    rng, length, count = np.random.default_rng(0), 20, 4000
    orders = [rng.permutation(length) for _ in range(count)]
    for k in (1, 2):
        # Of all ordered (k + 1)-tuples, those that end a run of neighbours: (T - k) runs, k! orders
        # before the end.
        expected = (length - k) * math.factorial(k) / math.perm(length, k + 1)
        found = np.mean([local_ar_ness(order, k) for order in orders])
        assert found == pytest.approx(
            expected, abs=4 * math.sqrt(expected / (count * (length - k)))
        )
    for k in (1, 4):
        expected = np.mean([min(k, masked) / masked for masked in range(1, length + 1)])
        found = np.mean([global_ar_ness(order, k) for order in orders])
        assert found == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(count * length))


def test_order_of_commit_steps():
    assert trace_order(trace((2, 0, 3, 1))).tolist() == [1, 3, 0, 2]
    together = trace((1, 0, 0, 0)) | {"confidence": [0.9, 0.5, 0.8, 0.5]}
    assert trace_order(together).tolist() == [2, 1, 3, 0]


def test_short_orders():
    assert math.isnan(local_ar_ness(np.arange(2), 2))
    assert global_ar_ness(np.arange(1), 1) == 1.0


def test_heat_map_of_left_to_right_is_a_diagonal():
    assert np.array_equal(heat_map([np.arange(8)] * 3), np.eye(8))
    assert np.allclose(heat_map([np.arange(256)], cells=16), np.eye(16))
    flipped = heat_map([np.arange(8), np.arange(8)[::-1]])
    assert np.array_equal(flipped, (np.eye(8) + np.eye(8)[::-1]) / 2)

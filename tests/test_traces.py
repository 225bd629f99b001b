"""Decoded canvases: one position per step, the order that was asked for, confidence before the first step."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.evaluation.order_analysis import order_measures
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.traces import decides_several, decode_traces, first_confidence
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

"""Holes that find their own length in the server: answers of the engine alone, beside others, and
what is refused.
"""

import itertools
import json
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")

from cases.published_model import publish_growing
from cases.server import OPTIONS, RecordingListener, call, listening, started

from jax_lm.host.compile_clock import compile_clock
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import GenerationOptions
from jax_lm.serving.growing import GrowingSequence, GrowingSlots
from jax_lm.serving.jobs import Request

DRAWN = GenerationOptions(max_new_tokens=24, temperature=0.8)
GAPS = [
    ("def f(x):\n", "\n"),
    ("a = ", ""),
    ("", " + 1\n"),
    ("for i in range(3):\n    ", "\nprint(i)\n"),
]


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    return DiffuCoderInference(
        publish_growing(tmp_path_factory.mktemp("growing")), dtype="float32", verbose=False
    )


@pytest.fixture(scope="module")
def engine(growing):
    with started(growing, replace(OPTIONS, slots=4)) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(engine):
    with listening(engine) as address:
        yield address


def request(engine, gap, options=DRAWN, **fields):
    before, after = (tuple(engine.tokenizer.encode_plain(text)) for text in gap)
    return Request(before=before, after=after, is_gap=True, options=options, **fields)


def ends(engine, requests):
    """How they ended, decoded together."""
    listener = RecordingListener()
    jobs = engine.submit(requests, listener)
    finished = listener.finished(len(jobs))
    assert all(end.is_answer for end in finished.values()), finished
    return [finished[job] for job in jobs]


def test_answers_are_those_of_infill_whoever_else_is_there(engine, growing):
    """Beside completions, and in more requests than there are slots."""
    greedy = replace(DRAWN, temperature=0.0)
    asked = [
        (gap, options) for gap in GAPS for options in (greedy, replace(greedy, max_new_tokens=5))
    ]
    listener = RecordingListener()
    others = engine.submit(
        [Request(before=(5, 6), options=greedy, seed=n) for n in range(3)], listener
    )
    found = ends(engine, [request(engine, gap, options) for gap, options in asked])
    listener.finished(len(others))
    for (gap, options), end in zip(asked, found, strict=True):
        assert end.text == growing.infill(*gap, options.max_new_tokens, options=options)
        assert len(end.tokens) <= options.max_new_tokens
        assert end.reason == ("length" if len(end.tokens) == options.max_new_tokens else "stop")


def test_draws_follow_from_seed_and_index_and_lengths_differ(engine):
    first = ends(engine, [request(engine, GAPS[0], seed=7, index=index) for index in range(12)])
    again = ends(engine, [request(engine, GAPS[0], seed=7, index=3)])
    assert again[0].text == first[3].text
    assert len({len(end.tokens) for end in first}) > 2
    # Some grew beyond what they began with.
    assert max(len(end.tokens) for end in first) > 16


def test_a_call_that_fails_once_costs_nobody_the_answer(engine, growing, monkeypatch):
    greedy = replace(DRAWN, temperature=0.0)
    calls, advance = [], GrowingSlots.advance

    def fail_once(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("once")
        return advance(self, *arguments)

    monkeypatch.setattr(GrowingSlots, "advance", fail_once)
    (end,) = ends(engine, [request(engine, GAPS[0], greedy)])
    assert len(calls) > 3
    assert end.text == growing.infill(*GAPS[0], greedy.max_new_tokens, options=greedy)


def test_no_answer_holds_a_token_for_resizing(engine, growing):
    resizing = {growing.sampler.growth.expand_id, growing.sampler.growth.delete_id}
    for end in ends(engine, [request(engine, gap, seed=seed) for gap in GAPS for seed in range(3)]):
        assert not resizing & {token.token_id for token in end.tokens}


def test_progress_tells_every_position_once_and_text_that_stays(engine):
    for seed in range(5):
        listener = RecordingListener()
        engine.submit([request(engine, GAPS[0], seed=seed)], listener)
        (end,) = listener.finished().values()
        texts = [event.text for event in listener.events]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
        commits = {commit.position: commit for event in listener.events for commit in event.commits}
        assert sum(len(event.commits) for event in listener.events) == len(commits)
        assert [commits[token.position] for token in end.tokens] == list(end.tokens)
        assert engine.tokenizer.decode([token.token_id for token in end.tokens]) == end.text


def test_nothing_is_compiled_for_another_length(engine):
    before = compile_clock().count
    ends(
        engine,
        [
            request(engine, gap, replace(DRAWN, max_new_tokens=n))
            for gap in GAPS
            for n in (3, 17, 40)
        ],
    )
    assert compile_clock().count == before


def test_what_does_not_go_with_it_is_refused(address, engine):
    asked = {"prompt": "a", "suffix": "b", "max_tokens": 8}
    for more, message in (
        ({"preset": "fast"}, "must be 'none' where holes grow; growth='off' keeps their length"),
        ({"steps": 4}, "steps=4: must be None where holes grow"),
        ({"logprobs": 1}, "logprobs=1: not where holes grow"),
        ({"growth": "on", "suffix": None}, "growth='on': fills holes between texts"),
        (
            {"growth": "on", "threshold": 0.9},
            "commit='threshold': must be 'steps' where holes grow",
        ),
        ({"growth": "maybe"}, "growth='maybe': must be 'auto', 'on' or 'off'"),
        ({"max_tokens": 80, "suffix": "b" * 60}, "maximum context length is 96"),
    ):
        status, _, answer = call(address, "POST", "/v1/completions", asked | more)
        assert (status, message in answer["error"]["message"]) == (400, True), answer
    status, _, answer = call(
        address, "POST", "/v1/completions", asked | {"preset": "fast", "growth": "off"}
    )
    assert status == 200
    assert not isinstance(
        engine.sequence(request(engine, GAPS[0], replace(DRAWN, growth="off"))), GrowingSequence
    )


def test_every_endpoint_with_a_suffix_fills_it(address, growing):
    asked = {"prompt": GAPS[0][0], "suffix": GAPS[0][1], "max_tokens": 24, "temperature": 0}
    expected = growing.infill(*GAPS[0], 24, options=replace(DRAWN, temperature=0.0))
    _, _, whole = call(address, "POST", "/v1/completions", asked)
    assert whole["choices"][0]["text"] == expected
    _, _, streamed = call(address, "POST", "/v1/completions", asked | {"stream": True})
    pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces if piece["choices"]) == expected
    _, _, events = call(address, "POST", "/v1/denoise", asked)
    assert json.loads(events.rstrip().splitlines()[-1][6:])["text"] == expected
    llama = {
        "input_prefix": GAPS[0][0],
        "input_suffix": GAPS[0][1],
        "n_predict": 24,
        "temperature": 0,
    }
    _, _, infilled = call(address, "POST", "/infill", llama)
    assert infilled["content"] == expected
    # a text that is cut leaves room for the tokens that make a hole grow
    llama["input_prefix"] = "x = 1\n" * 500
    status, _, infilled = call(address, "POST", "/infill", llama)
    assert (status, infilled["truncated"]) == (200, True)


def test_logits_that_are_not_finite_end_the_request_and_not_the_engine(
    address, engine, broken_sampler, monkeypatch
):
    body = {"prompt": "a = ", "suffix": "\n", "max_tokens": 8, "temperature": 0}
    with monkeypatch.context() as patch:
        for slots in engine.workers[0].groups:
            patch.setattr(slots, "sampler", broken_sampler(slots.sampler, "'norm'"))
        status, _, answer = call(address, "POST", "/v1/completions", body)
        assert (status, answer["error"]["code"]) == (500, "not_finite")
    assert call(address, "POST", "/v1/completions", body)[0] == 200

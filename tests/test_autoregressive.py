"""Autoregressive checkpoints as they are: block diffusion with blocks of one and a causal prompt."""

import copy
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.causal import write_causal
from flax import nnx

from jax_lm.benchmark.backend import JaxBackend, greedy_options, random_canvas, random_prompts
from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.speed import time_forwards
from jax_lm.cli.main import main
from jax_lm.conversion.verify import family_facts
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.likelihood import log_likelihood
from jax_lm.diffusion.sampler import Sampler
from jax_lm.evaluation.order_analysis import decode_traces, first_confidence, trace_order
from jax_lm.evaluation.problems import load_held_out_problems
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.roofline import MachineLimits
from jax_lm.templates import Template
from jax_lm.tokenizer import END_OF_TEXT

IDS = np.array([[0, 0, 3, 5, 8], [7, 1, 2, 9, 4]])
PRESENT = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
GREEDY = GenerationOptions(max_new_tokens=9, temperature=0.0, top_p=None, top_k=None)


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def model(request, tiny_config):
    config = replace(
        tiny_config, model_type=request.param, mask_token_id=None, initializer_range=0.3
    )
    return DreamForCausalLM(config, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory, tiny_config):
    """A checkpoint of random weights over bytes, whose tokenizer has gap tokens and no mask."""
    return write_causal(tmp_path_factory.mktemp("causal"), tiny_config)


@pytest.fixture(scope="module")
def causal_engine(causal_folder):
    return DiffuCoderInference(causal_folder, verbose=False)


def test_greedy_tokens_are_the_most_likely_after_what_is_before(model):
    options = GREEDY.left_to_right()
    state = Sampler(model).generate(Canvas.after(IDS, PRESENT, 9), options)
    assert int(state.forwards) == 9
    tokens = np.asarray(state.tokens)
    present = np.concatenate([PRESENT, np.ones((2, 9), int)], axis=1)
    # Causal attention: a row of the finished text sees what it saw when the next token was chosen.
    logits = model(jnp.asarray(tokens), jnp.asarray(present))
    np.testing.assert_array_equal(tokens[:, 5:], np.argmax(logits, axis=-1)[:, 4:-1])
    probability = np.max(jax.nn.softmax(logits, axis=-1), axis=-1)[:, 4:-1]
    np.testing.assert_allclose(np.asarray(state.confidence)[:, 5:], probability, rtol=1e-5)


def test_generation_needs_no_option(causal_engine):
    settings = {"max_new_tokens": 9, "temperature": 0.0}
    text = causal_engine.generate("def f():", return_full_text=False, **settings)
    (row,) = causal_engine.decode(
        [Template.completion("def f():", 9)], replace(GREEDY, top_p=0.95)
    ).rows
    assert text == row.text
    assert len(row.token_ids) == 9
    # Without a token before it, the end of another text.
    assert causal_engine.generate("", **settings) == causal_engine.generate(
        END_OF_TEXT, return_full_text=False, **settings
    )


def test_no_preset_is_advised_where_none_is_allowed(causal_folder, monkeypatch, capsys):
    monkeypatch.setattr("jax_lm.host.terminal.FIRST_LINE", 0.0)
    words = ["generate", "-m", str(causal_folder), "--max-new-tokens", "9", "def f():"]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "generating: " in said
    assert "--preset" not in said


def test_a_gap_is_filled_with_the_gap_tokens_of_the_model(causal_engine):
    prompt = "<|fim_prefix|>a = <|fim_suffix|> + 1\n<|fim_middle|>"
    (middle,) = causal_engine.complete([prompt], GREEDY)
    assert causal_engine.fill("a = <|hole:9|> + 1\n", GREEDY) == f"a = {middle} + 1\n"
    assert causal_engine.infill("a = ", " + 1\n", 9, options=GREEDY) == middle
    (after,) = causal_engine.complete(["a = "], GREEDY)
    assert causal_engine.fill("a = <|hole:9|>", GREEDY) == f"a = {after}"
    with pytest.raises(ValueError, match=r"2 holes: must be one, .*adapt it for any order"):
        causal_engine.fill("<|hole|> = <|hole|>", GREEDY)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"alg": "random"}, "alg='random'"),
        ({"num_steps": 4}, "num_steps=4"),
        ({"tokens_per_step": 2}, "tokens_per_step=2"),
        ({"draft": 2}, "draft=2"),
        ({"grammar": "python"}, "grammar='python'"),
        ({"decoding": Decoding(preset="fast")}, "preset='fast'"),
        ({"decoding": Decoding(cache="causal", block_length=4)}, "block_length=4"),
    ],
)
def test_other_orders_are_refused_with_the_way_to_them(causal_engine, settings, named):
    with pytest.raises(ValueError, match=f"{named}.*decoded left to right; adapt it for any order"):
        causal_engine.complete(["def f():"], replace(GREEDY, **settings))


def test_the_sampler_alone_refuses_them_too(model):
    canvas = Canvas.after(IDS, PRESENT, 9)
    with pytest.raises(ValueError, match="cache='none': must be 'causal', as this model is auto"):
        Sampler(model).generate(canvas, GREEDY)
    blocks = Decoding(cache="causal", block_length=2)
    with pytest.raises(ValueError, match="block_length=2: must be None with cache='causal'"):
        Sampler(model).generate(canvas, replace(GREEDY, decoding=blocks))


def test_the_likelihood_is_exact(model):
    prompt, completion = [3, 5, 8], [13, 21, 34]
    score = log_likelihood(Sampler(model), prompt, completion, samples=4, seed=0)
    log_probs = jax.nn.log_softmax(model(jnp.asarray([prompt + completion])))[0, 2:5]
    expected = sum(float(row[token]) for row, token in zip(log_probs, completion, strict=True))
    assert score.log_likelihood == pytest.approx(expected, abs=1e-4)
    assert (score.standard_error, score.samples) == (0.0, 1)


def test_info_says_what_can_be_done(model, tiny_config):
    assert "can be decoded left to right; adapt it for any order" in family_facts(model.config)
    assert "left to right" not in family_facts(tiny_config)


# --- measured


def test_bench_times_the_prompt_and_a_step(model):
    sampler = Sampler(model)
    cell = Cell(batch=2, prompt_tokens=5, new_tokens=9)
    canvas = random_canvas(model.config, cell, seed=0)
    limits = MachineLimits(matmul_flops=1e11, copy_bytes=1e10)
    rows = time_forwards(sampler, canvas, limits, repeats=1)
    # 14 tokens in a canvas of 32 columns: the prompt's pass ends with the row before the first new one.
    assert [(row["window"], row["rows"]) for row in rows] == [("prompt", 23), ("step", 1)]
    assert all(row["seconds"] > 0 for row in rows)
    prompts = random_prompts(model.config, 2, 5, seed=0)
    answers = JaxBackend(sampler).generate(prompts, greedy_options(9))
    alone = sampler.generate(Canvas.after(prompts, None, 9), GREEDY.left_to_right())
    np.testing.assert_array_equal(answers.tokens, np.asarray(alone.tokens)[:, 5:])
    assert answers.forwards == 9


def test_an_analysis_has_one_order_and_one_first_position(causal_engine):
    (problem,) = load_held_out_problems(1)
    (trace,) = decode_traces(causal_engine, [problem], GREEDY, samples=1)
    assert trace["commit_step"] == list(range(9))
    assert trace_order(trace).tolist() == list(range(9))
    assert trace["text"] == causal_engine.complete([problem.prefix], GREEDY)[0]
    first = first_confidence(causal_engine, [problem], 9)
    assert first.shape == (1, 1)
    assert first[0, 0] == pytest.approx(trace["confidence"][0], abs=1e-4)


# --- served

# Slots bound the candidates.
SERVED = replace(GREEDY, top_k=50)


@pytest.fixture(scope="module")
def served(causal_engine):
    pytest.importorskip("fastapi")
    from cases.server import OPTIONS, started

    options = replace(OPTIONS, slots=3, warm_up=("1", "1x3"))
    with started(causal_engine, options) as engine:
        yield engine


def served_texts(engine, requests):
    from cases.server import RecordingListener

    listener = RecordingListener()
    jobs = engine.submit(requests, listener)
    ends = listener.finished(len(jobs))
    return [(ends[job].text, ends[job].forwards) for job in jobs]


def served_request(engine, text, options=SERVED, **fields):
    from jax_lm.serving.jobs import Request

    ids = engine.tokenizer.encode_plain
    after = ids(fields.pop("after", ""))
    return Request(before=tuple(ids(text)), after=tuple(after), options=options, **fields)


def test_served_answers_are_those_of_generate(served, causal_engine):
    prompts = ["def f():", "x = 1\n", "a", "class Stack:\n    def push(self, item):"]
    drawn = replace(SERVED, temperature=0.7, top_p=0.9)
    for options in (SERVED, drawn):
        alone = [causal_engine.complete([prompt], options, seed=5)[0] for prompt in prompts]
        # Four requests, three slots: they are at different columns, and one comes later.
        requests = [served_request(served, prompt, options, seed=5) for prompt in prompts]
        found = served_texts(served, requests)
        assert [text for text, _ in found] == alone
        assert all(forwards == GREEDY.max_new_tokens for _, forwards in found)
    assert len(set(alone)) == len(prompts)


def test_a_served_gap_is_that_of_infill(served, causal_engine):
    ((text, _),) = served_texts(served, [served_request(served, "a = ", after=" + 1\n")])
    assert text == causal_engine.infill("a = ", " + 1\n", 9, options=GREEDY)


def test_a_call_that_fails_costs_no_token(served, causal_engine, monkeypatch):
    from jax_lm.serving.slots import Slots

    run, calls = Slots.run, []

    def run_once_broken(self, sequences, number, *arguments):
        calls.append(number)
        if len(calls) == 2:
            raise RuntimeError("the device failed once")
        run(self, sequences, number, *arguments)

    monkeypatch.setattr(Slots, "run", run_once_broken)
    ((text, _),) = served_texts(served, [served_request(served, "def f():")])
    assert text == causal_engine.complete(["def f():"], GREEDY)[0]
    # The first pass, the call that fails, and the first pass over all that is decided.
    assert calls[:3] == [0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"decoding": Decoding(preset="turbo")}, "preset='turbo'"),
        ({"num_steps": 3}, "num_steps=3"),
        ({"grammar": "json_object"}, "grammar='json_object'"),
    ],
)
def test_requests_for_other_orders_are_refused(served, settings, named):
    with pytest.raises(ValueError, match=f"{named}.*decoded left to right; adapt it for any order"):
        served_texts(served, [served_request(served, "a", replace(SERVED, **settings))])


def test_a_server_of_drafts_or_presets_is_refused(causal_engine):
    pytest.importorskip("fastapi")
    from jax_lm.serving.engine import Engine, EngineOptions

    for options, named in (
        (EngineOptions(draft=2), "draft=2"),
        (EngineOptions(preset="fast"), "preset='fast'"),
    ):
        with pytest.raises(ValueError, match=f"{named}.*adapt it for any order"):
            Engine(causal_engine, options)


def test_a_scored_prompt_has_its_exact_likelihood(served, causal_engine):
    from jax_lm.serving.scoring import score

    ids = served.tokenizer.encode_plain("x = 1\n")
    commits = score(served.workers[0], "", served.tokenizer, ids, 0, float("inf"))
    exact = log_likelihood(causal_engine.sampler, ids[:1], ids[1:], samples=1, seed=0)
    found = sum(commit.logprobs[0].value for commit in commits[1:])
    assert found == pytest.approx(exact.log_likelihood, abs=1e-4)


def test_logits_that_are_not_finite_end_the_request(causal_engine, broken_sampler):
    broken = copy.copy(causal_engine)
    broken.sampler = broken_sampler(causal_engine.sampler, "'norm'")
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        broken.complete(["def f():"], replace(GREEDY, top_p=0.95))

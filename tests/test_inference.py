"""DiffuCoderInference with the built-in model: requests, refusals, device and dtype."""

import copy
import itertools
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.inference import DiffuCoderInference, fitting_dtype
from jax_lm.options import DEFAULTS, Decoding, GenerationOptions
from jax_lm.results import Generation
from jax_lm.templates import Template
from jax_lm.tokenizer import MASK, TokenizerError

GREEDY = {"max_new_tokens": 64, "temperature": 0.0}
PAIR = ["def add(a, b):", "def factorial(n):"]
"""Every batch here has two rows, which is one shape to compile."""


def test_a_string_gives_a_string_and_a_list_a_list(engine):
    text = engine.generate("def add(a, b):", **GREEDY)
    assert text.startswith("def add(a, b):")
    texts = engine.generate(["def add(a, b):", "def is_even(n):"], **GREEDY)
    assert isinstance(texts, list)
    assert [isinstance(item, str) for item in texts] == [True, True]
    assert texts[0] == text


def test_batch_equals_singles(engine):
    prompts = ["def reverse_string(s):\n", "def factorial(number: int) -> int:"]
    batch = engine.generate(prompts, return_full_text=False, **GREEDY)
    assert batch == [
        engine.generate(prompt, return_full_text=False, **GREEDY) for prompt in prompts
    ]


def test_return_full_text(engine):
    whole, new = (
        engine.generate("def add(a, b):", return_full_text=full, **GREEDY) for full in (True, False)
    )
    assert whole == "def add(a, b):" + new


def test_text_ends_before_the_stop_token(engine):
    text = engine.generate("def add(a, b):", **GREEDY)
    assert "<|" not in text


def test_progress_does_not_change_the_text(engine):
    seen = []
    options = GenerationOptions(**GREEDY)
    template = Template.completion("def add(a, b):", 64)
    watched = engine.decode([template], options, on_progress=lambda *now: seen.append(now))
    assert watched.rows[0].text == engine.complete(["def add(a, b):"], options)[0]
    assert seen[-1] == (64, 64, "--preset fast: 2.8x fewer rows")
    # A row ends at its stop token, before all 64 steps.
    assert len(seen) > 5


def test_tokens_per_step_sets_the_number_of_forward_passes(engine):
    options = GenerationOptions(max_new_tokens=64, temperature=0.0, tokens_per_step=4)
    assert engine.decode([Template.completion("def add(a, b):", 64)], options).forwards <= 16
    full = replace(options, early_stop=False)
    assert engine.decode([Template.completion("def add(a, b):", 64)], full).forwards == 16


def test_mask_text_in_the_prompt_stays(engine):
    prompt = f"# {MASK}\ndef add(a, b):"
    canvas = engine.canvas([Template.completion(prompt, 8)])
    assert engine.tokenizer.mask_id in canvas.tokens[0, :-8]
    assert not canvas.holes[0, :-8].any()


def test_chat_answers_with_code(engine):
    answer = engine.chat(
        "Write a function `add` that returns the sum of a and b.", GenerationOptions(**GREEDY)
    )
    assert answer.startswith("```python\ndef ")
    assert "return a + b" in answer
    prompt = engine.chat_prompt([{"role": "user", "content": "hi"}])
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_benchmark_reports_time_and_throughput(engine):
    results = engine.benchmark_inference(batch_sizes=(1, 2), seq_length=32, num_iterations=2)
    assert set(results) == {"batch_1", "batch_2"}
    for batch, figures in zip((1, 2), results.values(), strict=True):
        assert set(figures) == {"avg_time_seconds", "throughput_tokens_per_second"}
        product = figures["avg_time_seconds"] * figures["throughput_tokens_per_second"]
        assert product == pytest.approx(32 * batch)


def test_defaults_are_the_published_settings():
    published = {
        "max_new_tokens": 256,
        "temperature": 0.3,
        "top_p": 0.95,
        "top_k": 50,
        "alg": "entropy",
    }
    assert {name: getattr(DEFAULTS, name) for name in published} == published


@pytest.mark.parametrize(
    ("prompts", "options", "named"),
    [
        ([], {}, r"prompts=\[\]: must hold at least one prompt"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens=0"),
        ("x", {"max_new_tokens": -5}, "max_new_tokens=-5"),
        ("x", {"num_steps": 0}, "num_steps=0"),
        ("x", {"tokens_per_step": 0}, "tokens_per_step=0"),
        (
            "x",
            {"num_steps": 8, "tokens_per_step": 2},
            "tokens_per_step=2: must be 1 with num_steps",
        ),
        ("x", {"top_p": 1.2}, "top_p=1.2"),
        ("x", {"alg": "best"}, "alg='best'"),
        ("x", {"seed": -1}, "seed=-1"),
        ("x", {"preset": "best"}, "preset='best'"),
        ("x " * 600, {}, "the context holds 512 tokens"),
        ("x", {"max_new_tokens": 512}, "the context holds 512 tokens"),
    ],
)
def test_requests_out_of_range_are_named(engine, prompts, options, named):
    with pytest.raises(ValueError, match=named):
        engine.generate(prompts, **options)


SEEDS = """
import numpy as np
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM

sampler = Sampler(DreamForCausalLM.from_pretrained(BUILTIN_MODEL))
canvas = Canvas.after(np.ones((2, 4), np.int32), np.ones((2, 4), bool), 4)
keys = [sampler.start(canvas, seed).keys for seed in (7, np.uint64(7))]
assert (keys[0] == keys[1]).all()
for seed in (None, 1.5, -1):
    try:
        sampler.start(canvas, seed)
    except (TypeError, ValueError) as error:
        print(error)
"""


def test_a_seed_is_an_integer():
    # in a process without the tests' type checks
    done = subprocess.run([sys.executable, "-c", SEEDS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "'NoneType' object cannot be interpreted as an integer",
        "'float' object cannot be interpreted as an integer",
        "seed=-1: must not be negative",
    ]


def test_a_string_is_no_list_of_prompts(engine):
    with pytest.raises(ValueError, match="prompts='def f':"):
        list(engine.stream("def f"))
    with pytest.raises(ValueError, match="prompts='def f':"):
        engine.complete("def f", DEFAULTS)


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"content": "hi"}]])
def test_messages_have_role_and_content(engine, messages):
    with pytest.raises(ValueError, match="must be one or more objects with role and content"):
        engine.chat(messages)


def test_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="dtype='int2'"):
        DiffuCoderInference(dtype="int2")


def test_unknown_model_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        DiffuCoderInference(tmp_path / "nowhere" / "at" / "all")


def test_tokenizer_of_another_model_is_refused(builtin_folder, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(builtin_folder / name, tmp_path)
    tokens = (builtin_folder / "added_tokens.json").read_text()
    swapped = (
        tokens.replace('"<|mask|>"', '"?"')
        .replace('"<|im_end|>"', '"<|mask|>"')
        .replace('"?"', '"<|im_end|>"')
    )
    assert swapped != tokens
    (tmp_path / "added_tokens.json").write_text(swapped)
    with pytest.raises(TokenizerError, match="belongs to another model"):
        DiffuCoderInference(tokenizer_path=tmp_path)


def test_bfloat16_runs_the_built_in_model():
    engine = DiffuCoderInference(dtype="bfloat16", verbose=False)
    assert engine.sampler.params["lm_head"]["weight"].dtype == "bfloat16"
    assert "return a + b" in engine.generate("def add(a, b):", **GREEDY)


def test_small_models_run_in_float32_on_a_cpu(engine):
    if engine.describe().count("cpu") == 0:
        pytest.skip("not on a CPU")
    assert fitting_dtype(4_000_000) == "float32"
    assert engine.dtype == "float32"


def test_loading_says_what_where_and_how(capsys):
    DiffuCoderInference()
    line = capsys.readouterr().err
    assert "demonstration model" in line
    assert "parameters" in line
    assert "float32" in line or "bfloat16" in line
    assert line.count("\n") == 1


def test_confidence_and_step_are_there_for_every_new_token(engine):
    (row,) = engine.decode(
        [Template.completion("def add(a, b):", 64)], GenerationOptions(**GREEDY)
    ).rows
    assert row.stopped
    assert 0 < len(row.token_ids) == len(row.confidence) == len(row.commit_step) < 64
    assert all(0 < p <= 1 for p in row.confidence)
    assert all(0 <= step < 64 for step in row.commit_step)
    assert engine.tokenizer.decode(row.token_ids) == row.text


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"decoding": Decoding(preset="fast", block_length=16)},
        {"decoding": Decoding(cache="causal", block_length=4)},
    ],
)
def test_decoding_ends_when_every_row_has_ended(engine, settings):
    options = GenerationOptions(**GREEDY | {"early_stop": True, "alg": "left_to_right"} | settings)
    templates = [
        Template.completion(prompt, 64) for prompt in ("def add(a, b):", "def is_even(n):")
    ]
    # The first line break ends the first row, and the first three characters the second.
    ends = [lambda text: "\n" in text[1:], lambda text: len(text) >= 3]
    whole = engine.decode(templates, options)
    ended = engine.decode(templates, options, ends=ends)
    assert ended.forwards < whole.forwards
    for row, other, has_ended in zip(ended.rows, whole.rows, ends, strict=True):
        assert has_ended(row.text)
        assert other.text.startswith(row.text)


@pytest.mark.parametrize("preset", ["exact", "fast", "turbo"])
def test_presets_write_code_and_report_their_speed(engine, preset):
    options = GenerationOptions(decoding=Decoding(preset=preset), **GREEDY)
    batch = engine.decode([Template.completion("def add(a, b):", 64)], options)
    assert "return a + b" in batch.rows[0].text
    assert batch.tokens == len(batch.rows[0].token_ids)
    assert batch.tokens_per_forward == batch.tokens / batch.forwards
    assert f"forwards: {batch.forwards}," in batch.describe()
    ones = [p == 1 for row in batch.rows for p in row.confidence]
    assert f" · {sum(ones) / len(ones):.0%} of them tied · " in batch.describe()


def test_turbo_takes_fewer_forwards(engine):
    template = Template.completion("def factorial(n):", 64)
    exact, turbo = (
        engine.decode([template], GenerationOptions(decoding=Decoding(preset=name), **GREEDY))
        for name in ("exact", "turbo")
    )
    assert turbo.forwards < exact.forwards / 2


@pytest.mark.parametrize("preset", ["exact", "turbo"])
def test_early_stop_does_not_change_the_text(engine, preset):
    early, full = (
        engine.complete(
            PAIR, GenerationOptions(decoding=Decoding(preset=preset), early_stop=stops, **GREEDY)
        )
        for stops in (True, False)
    )
    assert early == full


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_events_tell_every_position_once_and_end_in_the_text(engine, preset):
    options = GenerationOptions(decoding=Decoding(preset=preset), **GREEDY)
    events = list(engine.stream(PAIR, options))
    texts = engine.complete(PAIR, options)
    for row, text in enumerate(texts):
        own = [event for event in events if event.row == row]
        positions = [position for event in own for position in event.positions]
        assert sorted(positions) == list(range(64))
        assert [event.step for event in own] == sorted({event.step for event in own})
        assert own[-1].is_last
        assert own[-1].text == text
        # What was settled stays.
        assert all(
            later.text.startswith(earlier.text) for earlier, later in itertools.pairwise(own)
        )
        assert len(own) > 5


def test_infilling_keeps_what_is_given(engine):
    options = GenerationOptions(temperature=0.0)
    middle = engine.infill("def add(a, b):\n    return", "\n", 4, options=options)
    assert (
        engine.infill("def add(a, b):\n    return", "\n", 16, middle_length=4, options=options)
        == middle
    )
    text = engine.fill("def add(a, b):\n    <|hole:3|>a<|hole:3|>\n", options)
    assert text.startswith("def add(a, b):\n    ")
    assert text.endswith("\n")
    assert "<|" not in text


def test_the_likeliest_length_is_kept(engine):
    options = GenerationOptions(temperature=0.0)
    prefix, suffix = "def add(a, b):\n", "\n"
    lengths = [4, 8, 12]
    rows = [
        engine.decode([Template.infilling(prefix, n, suffix)], options).rows[0] for n in lengths
    ]
    best = max(rows, key=lambda row: row.mean_log_confidence)
    assert engine.infill(prefix, suffix, 12, middle_length="auto", options=options) == best.text


def test_score_prefers_the_right_body_and_repeats_for_a_seed(engine):
    right, again = (
        engine.score("def add(a, b):\n", "    return a + b\n", seed=3) for _ in range(2)
    )
    wrong = engine.score("def add(a, b):\n", "    return a * a\n", seed=3)
    assert right == again
    assert right.log_likelihood > wrong.log_likelihood + 2
    assert right.log_likelihood < 0


def answer_with(*confidence):
    return Generation(
        ("x",),
        tuple(range(len(confidence))),
        confidence,
        tuple(range(len(confidence))),
        stopped=True,
    )


def test_sureness_is_the_geometric_mean():
    assert answer_with(0.9, 0.4).sureness(0.0) == pytest.approx(0.6)
    assert answer_with(0.9, 0.4).sureness(1.0) == pytest.approx(0.6)
    assert answer_with().sureness(0.0) == 0.0
    assert answer_with(1.0, 1.0).sureness(0.3) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.0])
def test_sureness_undoes_the_temperature_of_two_candidates(temperature):
    tempered = [
        p ** (1 / temperature) / (p ** (1 / temperature) + (1 - p) ** (1 / temperature))
        for p in (0.8, 0.3)
    ]
    assert answer_with(*tempered).sureness(temperature) == pytest.approx((0.8 * 0.3) ** 0.5)


def test_only_unsure_answers_of_the_built_in_model_are_doubted(engine, monkeypatch):
    assert engine.doubt(answer_with(0.99, 0.98), 0.0) is None
    assert "not sure of this answer (90%)" in engine.doubt(answer_with(0.9, 0.9), 0.0)
    assert "(0%)" in engine.doubt(answer_with(), 0.0)
    monkeypatch.setattr(engine, "is_builtin", False)
    assert engine.doubt(answer_with(0.1), 0.0) is None


@pytest.mark.parametrize("preset", ["exact", "fast", "turbo"])
@pytest.mark.parametrize(("name", "row"), [("'norm'", ...), ("lm_head", 7)])
def test_logits_that_are_not_finite_end_the_request(engine, broken_sampler, preset, name, row):
    """They decided `!!!!`, or nothing for ever."""
    broken = copy.copy(engine)
    broken.sampler = broken_sampler(engine.sampler, name, row)
    options = GenerationOptions(decoding=Decoding(preset=preset), **GREEDY)
    for answers in (
        lambda: broken.complete(PAIR, options),
        lambda: list(broken.stream(PAIR, options)),
        lambda: broken.fill("def add(a, b):\n    <|hole:3|>a<|hole:3|>\n", options),
    ):
        with pytest.raises(FloatingPointError, match="logits are not finite"):
            answers()

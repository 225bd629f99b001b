"""DiffuCoderInference with the built-in model: requests, refusals, device and dtype."""

import shutil

import numpy as np
import pytest

from jax_lm.checkpoints.huggingface import CheckpointError
from jax_lm.inference import DEFAULTS, DiffuCoderInference, GenerationOptions, fitting_dtype
from jax_lm.tokenizer import MASK, TokenizerError

GREEDY = {"max_new_tokens": 64, "temperature": 0.0}


def test_a_string_gives_a_string_and_a_list_a_list(engine):
    text = engine.generate("def add(a, b):", **GREEDY)
    assert text.startswith("def add(a, b):")
    texts = engine.generate(["def add(a, b):", "def is_even(n):"], **GREEDY)
    assert [type(item) for item in texts] == [str, str]
    assert texts[0] == text


def test_batch_equals_singles(engine):
    prompts = ["def gcd(a, b):", "def reverse_string(s):\n", "def factorial(number: int) -> int:"]
    batch = engine.generate(prompts, return_full_text=False, **GREEDY)
    assert batch == [engine.generate(prompt, return_full_text=False, **GREEDY) for prompt in prompts]


def test_return_full_text(engine):
    whole, new = (engine.generate("def add(a, b):", return_full_text=full, **GREEDY) for full in (True, False))
    assert whole == "def add(a, b):" + new


def test_text_ends_before_the_stop_token(engine):
    text = engine.generate("def add(a, b):", **GREEDY)
    assert "<|" not in text


def test_progress_does_not_change_the_text(engine):
    seen = []
    options = GenerationOptions(**GREEDY)
    watched = engine.complete(["def add(a, b):"], options, on_progress=lambda done, total: seen.append((done, total)))
    assert watched == engine.complete(["def add(a, b):"], options)
    assert seen[-1] == (64, 64)
    assert len(seen) > 10


def test_tokens_per_step_sets_the_number_of_forward_passes(engine):
    options = GenerationOptions(max_new_tokens=64, temperature=0.0, tokens_per_step=4)
    *_, state = engine.stream(["def add(a, b):"], options)
    assert int(state.forwards) == 16


def test_mask_text_in_the_prompt_stays(engine):
    prompt = f"# {MASK}\ndef add(a, b):"
    canvas = engine.canvas([prompt], GenerationOptions(max_new_tokens=8))
    assert engine.tokenizer.mask_id in canvas.tokens[0, :-8]
    assert not canvas.holes[0, :-8].any()


def test_chat_answers_with_code(engine):
    answer = engine.chat("Write a function `add` that returns the sum of a and b.", GenerationOptions(**GREEDY))
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
    published = {"max_new_tokens": 256, "temperature": 0.3, "top_p": 0.95, "top_k": 50, "alg": "entropy"}
    assert {name: getattr(DEFAULTS, name) for name in published} == published


@pytest.mark.parametrize(
    ("prompts", "options", "named"),
    [
        ([], {}, "prompt_or_list"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens=0"),
        ("x", {"max_new_tokens": -5}, "max_new_tokens=-5"),
        ("x", {"num_steps": 0}, "num_steps=0"),
        ("x", {"tokens_per_step": 0}, "tokens_per_step=0"),
        ("x", {"num_steps": 8, "tokens_per_step": 2}, "num_steps and tokens_per_step"),
        ("x", {"top_p": 1.2}, "top_p=1.2"),
        ("x", {"alg": "best"}, "alg='best'"),
        ("x", {"seed": -1}, "seed=-1"),
        ("x " * 600, {}, "the context holds 512 tokens"),
        ("x", {"max_new_tokens": 512}, "the context holds 512 tokens"),
    ],
)
def test_requests_out_of_range_are_named(engine, prompts, options, named):
    with pytest.raises(ValueError, match=named):
        engine.generate(prompts, **options)


def test_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="dtype='int8'"):
        DiffuCoderInference(dtype="int8")


def test_unknown_model_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        DiffuCoderInference(tmp_path / "nowhere" / "at" / "all")


def test_tokenizer_of_another_model_is_refused(builtin_folder, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(builtin_folder / name, tmp_path)
    tokens = (builtin_folder / "added_tokens.json").read_text()
    swapped = tokens.replace('"<|mask|>"', '"?"').replace('"<|im_end|>"', '"<|mask|>"').replace('"?"', '"<|im_end|>"')
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


def test_confidence_is_there_for_every_new_token(engine):
    *_, state = engine.stream(["def add(a, b):"], GenerationOptions(**GREEDY))
    confidence = np.asarray(state.confidence)[0, -64:]
    assert ((confidence > 0) & (confidence <= 1)).all()

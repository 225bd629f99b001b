"""Every command takes random weights of every row of families.toml, without knowing which it is.

The rows are read from the table, so that a new one is tried too. That the logits and the answers
are those of the published code: test_families.py, test_family_decoding.py.
"""

import json

import numpy as np
import pytest
from cases.families import write_random
from safetensors.numpy import load_file

from jax_lm.checkpoints.huggingface import WEIGHTS
from jax_lm.checkpoints.peft import LoraConfig, NamedBase
from jax_lm.cli.main import main
from jax_lm.config import FAMILIES
from jax_lm.evaluation.problems import load_held_out_problems
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import adapters, add_lora, save_adapter
from jax_lm.options import Decoding, GenerationOptions

# Few steps, and one shape for most commands: generate, infilling, eval and adapters share programs.
LENGTH = 6
GREEDY = ("--temperature", "0", "--max-new-tokens", str(LENGTH))


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return write_random(tmp_path_factory.mktemp("family") / "model", family)


@pytest.fixture(scope="module")
def problem():
    return load_held_out_problems(1)[0]


@pytest.fixture
def run(folder, capsys):
    """Runs a command on the model, which must end with `status`; returns what it printed."""

    def run(command, *words, status=0, **options):
        options = {"model": folder} | options
        given = {name: value for name, value in options.items() if value is not None}
        named = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        capsys.readouterr()
        assert main([command, *map(str, words), *named]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


def can_fill(family):
    """Whether a model sees text after a hole: in its place, or between gap tokens."""
    return family.attention in ("full", "causal")


def test_verify_and_info_name_the_family(run, family, folder):
    assert f"family: {family.name}: " in run("verify", folder, model=None)
    assert f"{family.name}: " in run("info")


def test_generate_and_eval_decode_alike(run, family, problem, tmp_path):
    answer = json.loads(run("generate", *GREEDY, "--json", problem.prefix))
    assert len(answer["token_ids"]) == LENGTH
    run("eval", "builtin", *GREEDY, out=tmp_path / "eval", limit=1, **{"batch-size": 1})
    (attempt,) = map(json.loads, (tmp_path / "eval" / "attempts.jsonl").read_text().splitlines())
    # Random bytes are no program, but a judged one.
    assert (attempt["completion"], attempt["outcome"]) == (answer["holes"][0], "failed")
    # A gap is filled, or it is said why not.
    words = ("--prefix", problem.prefix[:60], "--suffix", problem.prefix[60:], *GREEDY)
    if can_fill(family):
        filled = json.loads(run("generate", *words, "--json"))
        assert filled["text"] == problem.prefix[:60] + filled["holes"][0] + problem.prefix[60:]
        assert len(filled["token_ids"]) == LENGTH
    else:
        refusal = f"error: {family.name} attends to earlier text alone: it completes prompts, "
        assert refusal in run("generate", *words, status=2)


def test_plan_counts_the_weights(run):
    plan = json.loads(run("plan", "--json", "--estimate", topology="cpu", **{"max-length": 64}))
    assert plan["fits"]


def test_convert_goes_there_and_back(run, folder, tmp_path):
    orbax, back = tmp_path / "orbax", tmp_path / "back"
    assert "logits are equal" in run("convert", folder, orbax, model=None)
    run("convert", orbax, back, model=None)
    before, after = (load_file(path / WEIGHTS) for path in (folder, back))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert DreamForCausalLM.read_config(back) == DreamForCausalLM.read_config(folder)


def test_analyze_decides_one_position_a_step(for_release, run, family, tmp_path):
    run("analyze", "--temperatures", 0, out=tmp_path / "a", limit=1, n=1, **{"max-new-tokens": 40})
    analysis = json.loads((tmp_path / "a" / "analysis.json").read_text())
    (trace,) = analysis["traces"]
    assert not analysis["ordered_by_confidence"]
    assert sorted(trace["commit_step"]) == list(range(40))
    assert (trace["commit_step"] == list(range(40))) == (not family.is_diffusion)


def test_an_adapter_is_merged(for_release, run, folder, tmp_path):
    model = DreamForCausalLM.from_pretrained(folder)
    settings = LoraConfig(rank=2)
    add_lora(model, settings, seed=0)
    for _, layer in adapters(model):
        layer.lora_b[...] = layer.lora_b[...] + 0.4
    save_adapter(model, tmp_path / "adapter", settings, NamedBase(str(folder)))
    run("merge-lora", adapter=tmp_path / "adapter", out=tmp_path / "merged")
    texts = [
        run("generate", *GREEDY, "x = ", **source)
        for source in ({}, {"adapter": tmp_path / "adapter"}, {"model": tmp_path / "merged"})
    ]
    assert texts[0] != texts[1]
    assert texts[1] == texts[2]


def test_served_answers_are_those_of_generate(for_release, folder, family):
    presets = ("exact",) if family.attention == "causal" else ("exact", "turbo")
    served_and_generated(folder, presets=presets)


def test_served_blocks_lie_where_those_of_generate_do(tmp_path):
    (family,) = (family for family in FAMILIES if family.name == "Fast-dLLM v2")
    served_and_generated(write_random(tmp_path / "model", family), presets=("exact",))


def served_and_generated(folder, presets):
    """Compare the answers to prompts that end within a block, at its end, and after it."""
    pytest.importorskip("fastapi")
    from cases.server import OPTIONS, call, listening, started

    inference = DiffuCoderInference(folder, verbose=False)
    with started(inference, OPTIONS) as engine, listening(engine) as address:
        for preset in presets:
            for prompt in ("def f():", "ab" * 16, "x" * 50):
                body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "preset": preset}
                status, _, answer = call(
                    address, "POST", "/v1/completions", {"model": "tiny"} | body
                )
                assert status == 200, answer
                options = GenerationOptions(
                    max_new_tokens=12, temperature=0.0, decoding=Decoding(preset=preset)
                )
                if inference.config.is_unidirectional:
                    options = options.left_to_right()
                expected = inference.complete([prompt], options)[0]
                assert answer["choices"][0]["text"] == expected, (preset, prompt)

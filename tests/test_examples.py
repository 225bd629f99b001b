"""Every example runs with the built-in model, on canvases of a few tokens: one of them always, all with --release."""

import runpy
from pathlib import Path

import pytest

from jax_lm.inference import DiffuCoderInference
from jax_lm.sandbox.runner import why_not
from jax_lm.sandbox.tiers import SAFE

FOLDER = Path(__file__).parent.parent / "examples"
GRPO = ("grpo_training", "grpo_inference")
PLAIN = {
    "basic": ({"max_new_tokens": 16}, "def is_prime(n):"),
    "batch": ({"prompts": ("def gcd(a, b):", "def double(x):"), "max_new_tokens": 16}, "2 forwards"),
    "streaming": ({"max_new_tokens": 16}, "settled: '\\n    return n % 2"),
    "infilling": ({}, "        result *= i\n    return result\ndef gcd(a, b):\n    while b:\n"),
    "chat": ({"max_new_tokens": 16}, "> Now write lcm(a, b)."),
    "tpu": ({"rows": 2, "max_new_tokens": 16, "preset": "turbo"}, "no TPU here: 1 device(s) of cpu instead"),
}


def example(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def test_every_example_is_run_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PLAIN, *GRPO}


@pytest.mark.parametrize("name", PLAIN)
def test_example(name, capsys, request):
    if name != "streaming":
        request.getfixturevalue("for_release")
    arguments, said = PLAIN[name]
    example(name)(**arguments)
    assert said in capsys.readouterr().out


@pytest.mark.usefixtures("for_release")
@pytest.mark.skipif(all(map(why_not, SAFE)), reason="this host contains nothing")
def test_a_policy_is_trained_and_then_asked(tmp_path, capsys):
    example("grpo_training")(tmp_path, steps=1, prompts=2, generations=2, length=16)
    assert "wrote" in capsys.readouterr().out
    trained = DiffuCoderInference(tmp_path / "model", verbose=False)
    assert trained.parameter_count == DiffuCoderInference(verbose=False).parameter_count
    example("grpo_inference")(tmp_path / "model", problems=1, max_new_tokens=16)
    out = capsys.readouterr().out
    assert "[before:" in out
    assert "[after:" in out

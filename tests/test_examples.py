"""Every example runs with the built-in model, and what it writes passes its tests: one always, all
with --release.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from cases.programs import check_program

from jax_lm.inference import DiffuCoderInference
from untrusted.runner import why_not
from untrusted.tiers import SAFE

FOLDER = Path(__file__).parent.parent / "examples"
GRPO = ("grpo_training", "grpo_inference")
SMALL = {
    "streaming": {"max_new_tokens": 16},
    "tpu": {"rows": 2, "max_new_tokens": 16, "preset": "turbo"},
}
"""Arguments of those that show as much on a small canvas."""

FUNCTIONS = {
    "basic": ["is_prime"],
    "batch": ["gcd", "factorial", "word_count", "transpose"],
    "streaming": ["is_even"],
    "infilling": ["gcd", "factorial", "gcd"],
    "chat": ["gcd"],
    "tpu": [],
}
"""What each example writes, in this order; `check_program` runs it against its tests."""

contained = pytest.mark.skipif(all(map(why_not, SAFE)), reason="this host contains nothing")

SAID = {
    "batch": "forwards: 2",
    "streaming": "settled: '\\n    return n % 2",
    "chat": "> Write a function gcd(a, b).",
    "tpu": "no TPU here: 1 device(s) of cpu instead",
}


def example(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def test_every_example_is_run_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*FUNCTIONS, *GRPO}


def check_example(name, capsys):
    example(name)(**SMALL.get(name, {}))
    printed = capsys.readouterr().out
    assert SAID.get(name, "") in printed
    if name == "streaming":
        # not from left to right, which any model could show
        columns = [int(column) for column in re.findall(r"(?m)^step +\d+  (\d+):", printed)]
        assert columns != sorted(columns)
    # Beside the programs: steps, questions, fences, numbers.
    code = re.sub(r"(?m)^(step |> |```|\d+ tokens ).*$", "", printed)
    programs = re.split(r"(?m)^(?=def )", code)[1:]
    assert [program[4 : program.index("(")] for program in programs] == FUNCTIONS[name]
    for program in programs:
        check_program(program)


@contained
def test_streaming(capsys):
    check_example("streaming", capsys)


@contained
@pytest.mark.usefixtures("for_release")
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "streaming"])
def test_example(name, capsys):
    check_example(name, capsys)


@contained
@pytest.mark.usefixtures("for_release")
def test_a_policy_is_trained_and_then_asked(tmp_path, capsys):
    program = (
        "import runpy, sys\nfrom pathlib import Path\nmain = runpy.run_path(sys.argv[1])['main']\n"
        "main(Path(sys.argv[2]), steps=1, prompts=2, generations=2, length=16)"
    )
    words = [sys.executable, "-c", program, str(FOLDER / "grpo_training.py"), str(tmp_path)]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    # in a process of its own: pytest's handlers would show what a user does not see
    assert "step 1/1" in finished.stderr
    assert "wrote" in finished.stdout
    trained = DiffuCoderInference(tmp_path / "model", verbose=False)
    assert trained.parameter_count == DiffuCoderInference(verbose=False).parameter_count
    example("grpo_inference")(tmp_path / "model", problems=1, max_new_tokens=16)
    out = capsys.readouterr().out
    assert "[before:" in out
    assert "[after:" in out

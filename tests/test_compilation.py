"""The real program, compiled for TPUs that are not here; needs libtpu (extra `plan`)."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("libtpu")

PLAN = ["--model-config", "small", "--topology", "v5e:2x2", "--canvas", "32", "--temperature", "0"]


@pytest.mark.parametrize("step", ["generate", "sft", "grpo"])
def test_plan_compiles_a_sharded_program(step):
    command = [sys.executable, "-m", "jax_lm.cli", "plan", *PLAN, "--step", step]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "compiled for it by libtpu" in done.stdout
    assert f"mesh {'data=2,tensor=2' if step == 'generate' else 'fsdp=4'}" in done.stdout
    assert "step as compiled" in done.stdout

"""`diffucoder grpo`: recipes, refusals, runs that are killed and continued, on meshes, on two hosts, with adapters."""

import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro
from safetensors.numpy import load_file

from jax_lm import cli, config_file
from jax_lm.arguments.training import Grpo
from jax_lm.training.grpo_config import GRPOConfig

ROOT = Path(__file__).parent.parent
REWARD = """
import os
def fives(prompts, completions, **columns):
    with open(os.environ["JUDGED"], "a") as file:
        file.write(f"{len(completions)} ")
    return [float(text.count("5")) for text in completions]
"""
RUN = """
reward_funcs: ["digits:fives"]
reward_weights: [1]
num_generations: 4
prompts_per_step: 2
max_completion_length: 8
diffusion_steps: 4
max_steps: 9
learning_rate: 1e-3
compute_dtype: float32
ref_model_sync_steps: 2
score_chunk: 4
save_every: 1
"""


def parsed(*arguments):
    """The command that these arguments give."""
    return tyro.cli(
        Grpo,
        args=config_file.expanded(["--out", "x", *arguments]),
        config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes),
    )


def test_the_published_recipe_is_the_preset_and_the_default():
    """runs/grpo_paper.yaml states every published number; the defaults are the same."""
    recipe = parsed("--config", str(ROOT / "runs" / "grpo_paper.yaml"))
    assert recipe.model_arguments.model == "apple/DiffuCoder-7B-Instruct"
    assert recipe.settings == GRPOConfig() == parsed("--preset", "paper").settings
    stated = (ROOT / "runs" / "grpo_paper.yaml").read_text()
    practical = {
        "max_steps", "top_k", "generation_batch_size", "epsilon_high", "score_chunk", "gradient_accumulation_steps",
        "shuffle_rewards", "seed", "log_every", "save_every", "evaluate_every", "resume", "track",
    }  # fmt: skip
    assert {f.name for f in dataclasses.fields(GRPOConfig)} - practical == {
        f.name for f in dataclasses.fields(GRPOConfig) if f"\n{f.name}: " in stated
    }


def test_the_other_recipe_parses_and_flags_win():
    command = parsed("--config", str(ROOT / "runs" / "grpo_builtin.yaml"), "--learning-rate", "1e-3")
    assert command.settings.learning_rate == 1e-3
    assert command.settings.reward_funcs == ("completed_code",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "absent.jsonl"], "data='absent.jsonl': cannot be read"),
        (["--data", "builtin", "--prompts", "0"], "prompts=0: must be at least 1"),
        (["--config", "absent.yaml"], "config='absent.yaml': cannot be read"),
    ],
)
def test_refusals_are_one_line(capsys, tmp_path, arguments, message):
    assert cli.main(["grpo", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def start(tmp_path, policy, letters, for_release):
    """Starts the command as a process of its own, on a tiny model and a reward by import path."""
    policy.save_pretrained(tmp_path / "policy")
    letters.save_pretrained(tmp_path / "policy")
    (tmp_path / "digits.py").write_text(REWARD)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "cde", "f")))
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "JAX_PLATFORMS": "cpu",
    }

    def process(out, *more, devices=1, host=0):
        options = {"config": tmp_path / "run.yaml", "data": tmp_path / "data.jsonl", "model": tmp_path / "policy"}
        arguments = [f"--{name}={value}" for name, value in (options | {"out": out}).items()]
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        return subprocess.Popen(
            [sys.executable, "-m", "jax_lm.cli", "grpo", *arguments, *more],
            env=environment | {"XLA_FLAGS": flags, "JUDGED": str(tmp_path / f"judged-{out.name}-{host}")},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return process


def test_killed_at_any_moment_and_continued_it_ends_with_the_same_weights(start, tmp_path):
    whole = start(tmp_path / "whole")
    _, errors = whole.communicate(timeout=300)
    assert whole.returncode == 0, errors
    metrics = tmp_path / "killed" / "metrics.jsonl"
    process = start(tmp_path / "killed")
    while process.poll() is None and not (metrics.is_file() and len(metrics.read_text().splitlines()) >= 3):
        time.sleep(0.01)
    time.sleep(random.random() * 0.1)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    last = start(tmp_path / "killed")
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert "continuing" in errors
    ours, theirs = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("killed", "whole"))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, 10))


def finish(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]


def test_meshes_and_hosts_take_the_steps_of_one_device(start, tmp_path, request):
    """Two processes of two virtual devices, with --full also one of eight: completions equal, weights within 1e-5."""
    runs = ("hosts", "mesh") if request.config.getoption("--full") else ("hosts",)
    # By entropy, rounding would decide the order: the tiny policy is equally sure everywhere.
    short = ("--max-steps=4", "--save-every=2", "--alg=origin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = ("--mesh=data=2,tensor=2", "--num-processes=2", f"--coordinator={coordinator}")
    finish(start(tmp_path / "alone", *short))
    if "mesh" in runs:
        finish(start(tmp_path / "mesh", *short, "--mesh=data=2,fsdp=2,tensor=2", devices=8))
    finish(*(start(tmp_path / "hosts", *short, *hosts, f"--process-id={n}", devices=2, host=n) for n in range(2)))
    before = load_file(tmp_path / "policy" / "model.safetensors")
    alone = load_file(tmp_path / "alone" / "model" / "model.safetensors")
    assert max(abs(alone[name] - before[name]).max() for name in alone) > 1e-3
    for run in runs:
        for path in (tmp_path / "alone" / "completions").iterdir():
            assert (tmp_path / run / "completions" / path.name).read_text() == path.read_text()
        weights = load_file(tmp_path / run / "model" / "model.safetensors")
        assert weights.keys() == alone.keys()
        assert max(abs(weights[name] - alone[name]).max() for name in alone) < 1e-5
    # Each host judged one of the two groups of four.
    assert {(tmp_path / f"judged-hosts-{n}").read_text() for n in range(2)} == {"4 4 "}


def test_adapters_over_int8_learn_and_stay_small(start, tmp_path):
    """The reference policy is an adapter too; the base does not move, and the adapter merges into the float model."""
    finish(start(tmp_path / "lora", "--lora-rank=4", "--quantize=int8", "--max-steps=4"))
    adapter = load_file(tmp_path / "lora" / "adapter" / "adapter.safetensors")
    assert all(abs(value).max() > 0 for name, value in adapter.items() if name.endswith("lora_b"))
    assert not (tmp_path / "lora" / "model").exists()
    metrics = [json.loads(line) for line in (tmp_path / "lora" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["kl"] > 0
    arguments = [
        "--adapter",
        tmp_path / "lora" / "adapter",
        "--model",
        tmp_path / "policy",
        "--out",
        tmp_path / "merged",
    ]
    assert cli.main(["merge-lora", *map(str, arguments)]) == 0
    merged, before = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "policy"))
    moved = {name for name in merged if (merged[name] != before[name]).any()}
    assert moved == {f"{name.removesuffix('lora_b')}weight" for name in adapter if name.endswith("lora_b")}

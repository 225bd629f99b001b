"""`diffucoder grpo`: recipes, refusals, runs that are killed and continued, on meshes, on two
hosts, with adapters.
"""

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
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from jax_lm.cli import main as cli
from jax_lm.cli.commands.training import run_grpo
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.training.config import OptimizerConfig, TrainerConfig
from jax_lm.training.grpo_config import Estimator, GRPOConfig, PolicyLoss

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
max_new_tokens: 8
num_steps: 4
max_steps: 9
learning_rate: 1e-3
compute_dtype: float32
ref_model_sync_steps: 2
score_chunk: 4
save_every: 1
"""


def parsed(*arguments):
    """The command that these arguments give."""
    return cli.parse(["grpo", "--out", "x", *arguments])


def test_the_published_recipe_is_the_default():
    """recipes/grpo_paper.yaml states every published number; the defaults are the same."""
    recipe = parsed("--config", str(ROOT / "recipes" / "grpo_paper.yaml"))
    assert recipe.model_arguments.model == "apple/DiffuCoder-7B-Instruct"
    assert recipe.settings == GRPOConfig() == parsed().settings
    stated = (ROOT / "recipes" / "grpo_paper.yaml").read_text()
    practical = {
        "negative_scale", "negative_power", "negative_floor", "delta",
        "max_steps", "top_k", "generation_batch_size", "epsilon_high", "score_chunk", "gradient_accumulation_steps",
        "shuffle_rewards", "seed", "log_every", "save_every", "evaluate_every", "resume", "track", "keep", "stop_after",
        "remat", "rollout_mesh", "draft", "lookahead", "profile", "warmup_steps", "adam_epsilon",
        "muon_learning_rate", "tokens_per_step", "alg_temp", "early_stop", "grammar", "growth",
        "held_out_prompts", "dynamic_sampling", "num_segments", "sampling_temperature", "min_p", "optim",
        "async_checkpointing",
        "metric_for_best_model", "load_best_model_at_end", "early_stopping_patience",
    }  # fmt: skip
    # Of decoding, the preset says everything.
    overrides = {field.name for field in dataclasses.fields(Decoding)} - {"preset"}
    names = (
        {
            name.rpartition(".")[2]
            for name in flatten_dict(dataclasses.asdict(GRPOConfig()), sep=".")
        }
        - practical
        - overrides
    )
    assert names == {name for name in names if f"\n{name}: " in stated}


def test_the_other_recipe_parses_and_flags_win():
    command = parsed(
        "--config", str(ROOT / "recipes" / "grpo_builtin.yaml"), "--learning-rate", "1e-3"
    )
    assert command.settings.training.optimizer.learning_rate == 1e-3
    assert command.settings.reward_funcs == ("completed_code",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "absent.jsonl"], "data='absent.jsonl' cannot be read: there is no such file"),
        (["--data", "builtin", "--limit", "0"], "limit=0: must be at least 1"),
        (["--limit", "4001"], "limit=4001: must lie in [1, 4000]"),
        (["--data", "any.jsonl", "--limit", "-1"], "limit=-1: must be at least 1"),
        (
            ["--reward-funcs", "code", "length", "code", "--reward-weights", "1", "1", "2"],
            "must have one weight per reward ('code', 'length', 'code'), and these must differ",
        ),
        (["--config", "absent.yaml"], "config='absent.yaml': cannot be read"),
    ],
)
def test_refusals_are_one_line(capsys, tmp_path, arguments, message):
    assert cli.main(["grpo", "--out", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_tests_that_cannot_be_read_are_named_before_training(capsys, tmp_path):
    data = tmp_path / "data.jsonl"
    rows = [
        {"prompt": "a", "input_output": {"inputs": ["1"], "outputs": ["1"]}},
        {"prompt": "b", "input_output": "{"},
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["grpo", "--out", str(tmp_path / "run"), "--data", str(data)]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert f"data={data}: line 2: column 'input_output' must hold data or JSON, not '{{'" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"prompt": "a"}], [], "reward 'code' needs one of the columns 'test_cases'"),
        (
            [{"prompt": "a", "test_cases": ["assert f()"]}],
            ["--reward-funcs", "completed_code"],
            "reward 'completed_code' needs the column 'prefix'",
        ),
    ],
)
def test_columns_that_rewards_need_are_checked_before_the_model(
    capsys, tmp_path, monkeypatch, rows, words, message
):
    monkeypatch.setattr("jax_lm.cli.commands.training.load_model", lambda *_: pytest.fail("loaded"))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["grpo", "--out", str(tmp_path / "run"), "--data", str(data), *words]) == 2
    assert message in capsys.readouterr().err


OPTIONS = {
    "--num-generations": "4", "--prompts-per-step": "2", "--num-iterations": "3", "--num-train-epochs": "2",
    "--max-steps": "9", "--max-prompt-length": "64", "--max-new-tokens": "32", "--num-steps": "16",
    "--temperature": "0.9", "--top-p": "0.8", "--top-k": "20", "--alg": "origin", "--preset": "fast",
    "--generation-batch-size": "4", "--reward-funcs": "binary_code", "--reward-weights": "3",
    "--shuffle-rewards": "True", "--beta": "0.1", "--epsilon": "0.3", "--epsilon-high": "0.4", "--loss-type": "grpo",
    "--kl-clamp": "4.0", "--baseline": "mean", "--scale-rewards": "True", "--estimator": "decoupled",
    "--num-mask-pairs": "2", "--min-mask-ratio": "0.3", "--max-mask-ratio": "0.7", "--ref-model-sync-steps": "32",
    "--ref-model-mixup-alpha": "0.5", "--score-chunk": "2", "--gradient-accumulation-steps": "2",
    "--learning-rate": "1e-4", "--warmup-ratio": "0.1", "--min-lr-ratio": "0.2", "--adam-beta1": "0.8",
    "--adam-beta2": "0.95", "--weight-decay": "0.05", "--max-grad-norm": "0.5", "--compute-dtype": "float32",
    "--seed": "3", "--log-every": "2", "--save-every": "5", "--evaluate-every": "6", "--resume": "never",
    "--track": "wandb",
}  # fmt: skip
"""Options of each part of the settings, with values that are not the defaults."""

SETTINGS = GRPOConfig(
    num_generations=4, prompts_per_step=2, num_iterations=3, num_train_epochs=2.0, max_prompt_length=64,
    generation_batch_size=4, reward_funcs=("binary_code",), reward_weights=(3.0,), shuffle_rewards=True,
    baseline="mean", scale_rewards=True, ref_model_sync_steps=32, ref_model_mixup_alpha=0.5, score_chunk=2,
    generation=GenerationOptions(
        max_new_tokens=32, num_steps=16, temperature=0.9, top_p=0.8, top_k=20, alg="origin",
        decoding=Decoding(preset="fast"),
    ),
    masks=Estimator(estimator="decoupled", num_mask_pairs=2, min_mask_ratio=0.3, max_mask_ratio=0.7),
    loss=PolicyLoss(beta=0.1, epsilon=0.3, epsilon_high=0.4, loss_type="grpo", kl_clamp=4.0),
    training=TrainerConfig(
        max_steps=9,
        optimizer=OptimizerConfig(
            learning_rate=1e-4, warmup_ratio=0.1, min_lr_ratio=0.2, adam_beta1=0.8, adam_beta2=0.95, weight_decay=0.05,
            max_grad_norm=0.5,
        ),
        gradient_accumulation_steps=2, compute_dtype="float32", seed=3, log_every=2, save_every=5, evaluate_every=6,
        resume="never", track=("wandb",),
    ),
)  # fmt: skip


def test_options_reach_their_settings(tmp_path):
    typed = [word for option in OPTIONS.items() for word in option]
    assert parsed(*typed).settings == SETTINGS
    assert parsed(*(f"{name}={value}" for name, value in OPTIONS.items())).settings == SETTINGS
    recipe = tmp_path / "recipe.yaml"
    lines = [f"{name[2:].replace('-', '_')}: {value}\n" for name, value in OPTIONS.items()]
    recipe.write_text("".join(lines))
    assert parsed("--config", str(recipe)).settings == SETTINGS
    assert (
        parsed("--config", str(recipe), "--preset", "turbo").settings.generation.decoding.preset
        == "turbo"
    )


@pytest.mark.parametrize(
    ("template", "instruct", "data", "is_chat"),
    [
        ("auto", True, "given", True),
        ("auto", False, "given", False),
        ("auto", True, "builtin", False),
        ("chat", False, "given", True),
        ("chat", False, "builtin", True),
        ("none", True, "given", False),
    ],
)
def test_texts_become_messages_as_the_template_says(
    policy, letters, tmp_path, monkeypatch, template, instruct, data, is_chat
):
    """By default for instruct models; messages stay, and so do the columns that rewards read."""
    policy.save_pretrained(tmp_path / "policy")
    letters.save_pretrained(tmp_path / "policy")
    (tmp_path / "digits.py").write_text(REWARD)
    messages = [{"role": "user", "content": "cd"}]
    rows = [{"prompt": "ab", "answer": 1}, {"prompt": messages, "answer": 2}]
    # More than `limit`.
    lines = [json.dumps(row) + "\n" for row in [*rows, {"prompt": "ef", "answer": 3}]]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    seen = []

    def collect(model, tokenizer, rows, settings, **others):
        seen.extend(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr("jax_lm.cli.commands.training.is_instruct", lambda *_: instruct)
    monkeypatch.setattr("jax_lm.cli.commands.training.DiffuGRPOTrainer", collect)
    options = {
        "data": tmp_path / "data.jsonl" if data == "given" else data,
        "limit": 2,
        "model": tmp_path / "policy",
        "template": template,
        "reward-funcs": f"{tmp_path / 'digits.py'}:fives",
        "out": tmp_path / "run",
    }
    command = cli.parse(["grpo", *(f"--{name}={value}" for name, value in options.items())])
    with pytest.raises(KeyboardInterrupt):
        run_grpo(command)
    assert len(seen) == 2
    if data == "given":
        asked = [{"role": "user", "content": "ab"}] if is_chat else "ab"
        assert seen == [{"prompt": asked, "answer": 1}, {"prompt": messages, "answer": 2}]
    else:
        assert [isinstance(row["prompt"], list) for row in seen] == [is_chat] * 2


@pytest.fixture
def start(tmp_path, policy, letters, for_release):
    """Starts the command as a process of its own, on a tiny model and a reward by import path."""
    policy.save_pretrained(tmp_path / "policy")
    letters.save_pretrained(tmp_path / "policy")
    (tmp_path / "digits.py").write_text(REWARD)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in ("ab", "cde", "f"))
    )
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "JAX_PLATFORMS": "cpu",
    }

    def process(out, *more, devices=1, host=0):
        options = {
            "config": tmp_path / "run.yaml",
            "data": tmp_path / "data.jsonl",
            "model": tmp_path / "policy",
        }
        arguments = [f"--{name}={value}" for name, value in (options | {"out": out}).items()]
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        return subprocess.Popen(
            [sys.executable, "-m", "jax_lm", "grpo", *arguments, *more],
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
    while process.poll() is None and not (
        metrics.is_file() and len(metrics.read_text().splitlines()) >= 3
    ):
        time.sleep(0.01)
    time.sleep(random.random() * 0.1)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    last = start(tmp_path / "killed")
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    assert "continuing" in errors
    ours, theirs = (
        load_file(tmp_path / run / "model" / "model.safetensors") for run in ("killed", "whole")
    )
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(1, 10))


def finish(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-3000:]


def test_meshes_and_hosts_take_the_steps_of_one_device(start, tmp_path, request):
    """Two processes of two virtual devices, with --full also one of eight: completions equal,
    weights within 1e-5.
    """
    runs = ("hosts", "mesh") if request.config.getoption("--full") else ("hosts",)
    # By entropy, rounding would decide the order: the tiny policy is equally sure everywhere.
    short = ("--max-steps=4", "--save-every=2", "--alg=origin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = (
        "--mesh=data=2,tensor=2",
        "--rollout-mesh=data=4",
        "--num-processes=2",
        f"--coordinator={coordinator}",
    )
    finish(start(tmp_path / "alone", *short))
    if "mesh" in runs:
        finish(start(tmp_path / "mesh", *short, "--mesh=data=2,fsdp=2,tensor=2", devices=8))
    finish(
        *(
            start(tmp_path / "hosts", *short, *hosts, f"--process-id={n}", devices=2, host=n)
            for n in range(2)
        )
    )
    before = load_file(tmp_path / "policy" / "model.safetensors")
    alone = load_file(tmp_path / "alone" / "model" / "model.safetensors")
    assert max(abs(alone[name] - before[name]).max() for name in alone) > 1e-3
    for run in runs:
        for path in (tmp_path / "alone" / "completions").iterdir():
            assert (tmp_path / run / "completions" / path.name).read_text() == path.read_text()
        weights = load_file(tmp_path / run / "model" / "model.safetensors")
        assert weights.keys() == alone.keys()
        assert max(abs(weights[name] - alone[name]).max() for name in alone) < 1e-5
    # Each host tried the reward out, and judged one of the two groups of four.
    assert {(tmp_path / f"judged-hosts-{n}").read_text() for n in range(2)} == {"1 4 4 "}


def test_rollouts_sample_on_a_mesh_of_their_own_what_one_device_samples(start, tmp_path):
    """Six completions on eight devices, which do not divide them: the same texts, and weights
    within 1e-5.
    """
    short = (
        "--max-steps=4",
        "--save-every=2",
        "--alg=origin",
        "--num-generations=3",
        "--score-chunk=None",
    )
    finish(start(tmp_path / "alone", *short))
    for out, meshes in (
        ("chosen", ()),
        ("whole", ("--mesh=fsdp=8", "--rollout-mesh=data=8")),
        ("split", ("--mesh=fsdp=8", "--rollout-mesh=data=4,tensor=2", "--remat=True")),
    ):
        finish(start(tmp_path / out, *short, *meshes, devices=8))
        for path in (tmp_path / "alone" / "completions").iterdir():
            assert (tmp_path / out / "completions" / path.name).read_text() == path.read_text()
        weights, alone = (
            load_file(tmp_path / run / "model" / "model.safetensors") for run in (out, "alone")
        )
        assert max(abs(weights[name] - alone[name]).max() for name in alone) < 1e-5
    chosen, alone = (
        json.loads((tmp_path / run / "settings.json").read_text()) for run in ("chosen", "alone")
    )
    assert [chosen["mesh"], alone["mesh"]] == ["fsdp=8", "one device"]
    assert [chosen["grpo"]["score_chunk"], alone["grpo"]["score_chunk"]] == [8, 1]


def test_adapters_over_int8_learn_and_stay_small(start, tmp_path):
    """The reference policy is an adapter too; the base does not move, and the adapter merges into
    the float model.
    """
    finish(start(tmp_path / "lora", "--lora-rank=4", "--quantize=int8", "--max-steps=4"))
    adapter = load_file(tmp_path / "lora" / "adapter" / "adapter_model.safetensors")
    trained = {name: value for name, value in adapter.items() if name.endswith(".lora_B.weight")}
    assert all(abs(value).max() > 0 for value in trained.values())
    assert not (tmp_path / "lora" / "model").exists()
    metrics = [
        json.loads(line) for line in (tmp_path / "lora" / "metrics.jsonl").read_text().splitlines()
    ]
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
    merged, before = (
        load_file(tmp_path / name / "model.safetensors") for name in ("merged", "policy")
    )
    moved = {name for name in merged if (merged[name] != before[name]).any()}
    assert moved == {
        name.removeprefix("base_model.model.").replace(".lora_B", "") for name in trained
    }

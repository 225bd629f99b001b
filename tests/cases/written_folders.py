"""Fixtures: a published model, and every kind of folder that the commands write from it."""

import json

import pytest

from cases.published_model import publish, qwen2
from jax_lm.cli.main import main

TINY = {"max-steps": 1, "learning-rate": 1e-3, "warmup-steps": 0}
SFT = TINY | {"max-length": 48, "batch-size": 4}
COMMANDS = {
    "sft": SFT,
    "adapt": SFT | {"annealing-steps": 0},
    "grpo": TINY | {
        "num-generations": 2, "prompts-per-step": 2, "max-new-tokens": 4, "num-steps": 2, "num-iterations": 1,
        "reward-funcs": "cases.written_folders:parity", "reward-weights": 1.0,
    },
}  # fmt: skip
KINDS = ("sft", "adapt", "grpo", "merge-lora", "orbax", "huggingface")


def parity(prompts, completions, **columns):
    """A reward that differs between completions."""
    return [float(number % 2) for number in range(len(completions))]


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory):
    """A folder in the layout of the published checkpoints, and rows to train on next to it."""
    folder = publish(tmp_path_factory.mktemp("published"))
    rows = [
        {"prompt": f"Add {i}.", "response": f"print({i})", "text": f"x = {i}"} for i in range(8)
    ]
    (folder.parent / f"{folder.name}.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    return folder


def train(command, source, out, **changes):
    """Train for a step; returns the folder of the trained model."""
    data = source.parent / f"{source.name.removesuffix('-qwen2')}.jsonl"
    options = COMMANDS[command] | {"data": data, "model": source, "out": out} | changes
    assert (
        main(
            [
                command,
                *(word for name, value in options.items() for word in (f"--{name}", str(value))),
            ]
        )
        == 0
    )
    return out / "model"


@pytest.fixture(scope="module")
def written_folders(published_folder, tmp_path_factory):
    """Folders that the commands write from a published one, by kind."""
    out = tmp_path_factory.mktemp("written")
    folders = {command: train(command, published_folder, out / command) for command in COMMANDS}
    train("sft", published_folder, out / "lora", **{"lora-rank": 2})
    words = ["--adapter", str(out / "lora" / "adapter"), "--save-dtype", "bfloat16"]
    assert main(["merge-lora", *words, "--out", str(out / "merged")]) == 0
    assert main(["convert", str(published_folder), str(out / "orbax")]) == 0
    assert main(["convert", str(out / "orbax"), str(out / "back")]) == 0
    return folders | {
        "merge-lora": out / "merged",
        "orbax": out / "orbax",
        "huggingface": out / "back",
    }


@pytest.fixture(scope="module")
def adapted_folders(published_folder, tmp_path_factory):
    """A Qwen2, and the masked-diffusion model adapted from it."""
    before = qwen2(published_folder, published_folder.parent / f"{published_folder.name}-qwen2")
    return before, train("adapt", before, tmp_path_factory.mktemp("adapted") / "run")

"""Runs of coupled-GRPO on a tiny policy, rewarded for the digit five."""

import json

import numpy as np

from jax_lm.models.dream import flatten
from jax_lm.options import GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.training.config import OptimizerConfig, TrainerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer, GRPOConfig
from jax_lm.training.grpo_config import PolicyLoss

ROWS = [{"prompt": text} for text in ("ab", "abcd", "c", "dd", "e")]
"""Five prompts, two a rollout: epochs end in the middle of rollouts."""


def fives(prompts, completions, **columns):
    return [float(text.count("5")) for text in completions]


FIVES = WeightedSum({"fives": fives}, {"fives": 1.0})


OPTIMIZER = OptimizerConfig(learning_rate=3e-3, adam_beta2=0.99, max_grad_norm=1.0)


GENERATION = GenerationOptions(max_new_tokens=8, num_steps=4, temperature=1.0)


def training(**changes):
    options = {
        "max_steps": 41,
        "optimizer": OPTIMIZER,
        "compute_dtype": "float32",
        "log_every": 1,
        "save_every": 35,
    }
    return TrainerConfig(**(options | changes))


def settings(**changes):
    options = {
        "num_generations": 8,
        "prompts_per_step": 2,
        "num_iterations": 2,
        "ref_model_sync_steps": 3,
        "score_chunk": 8,
        "generation": GENERATION,
        "loss": PolicyLoss(beta=0.1),
        "training": training(),
    }
    return GRPOConfig(**(options | changes))


def trainer_of(policy, letters, out, rewards=FIVES, **changes):
    return DiffuGRPOTrainer(policy, letters, ROWS, settings(**changes), out=out, rewards=rewards)


def entries(out, name="metrics.jsonl"):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def assert_equal(ours, theirs):
    ours, theirs = dict(flatten(ours)), dict(flatten(theirs))
    assert ours.keys() == theirs.keys()
    for name, leaf in ours.items():
        np.testing.assert_array_equal(leaf, theirs[name], err_msg=name)

"""What is chosen for a run where its settings do not say, by the size of its model and by its
devices.
"""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from jax.sharding import AbstractMesh

from jax_lm.config import DIFFUCODER_7B
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import parameter_count
from jax_lm.planning.rollouts import rollout_shape
from jax_lm.planning.roofline import GIB
from jax_lm.reports.run_folder import differing_setting
from jax_lm.sharding import MeshShape
from jax_lm.training.checkpoints import UNCOMPARED
from jax_lm.training.config import LossConfig, OptimizerConfig, SftConfig, TrainerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer
from jax_lm.training.grpo_config import Estimator, GRPOConfig
from jax_lm.training.run_defaults import (
    log_setup,
    resolve_grpo,
    resolve_masks,
    resolve_remat,
    resolve_trainer,
    training_mesh,
    weight_count,
)

SMALL, LARGE = 4_331_776, parameter_count(DIFFUCODER_7B)
TRAINER = TrainerConfig(max_steps=1, optimizer=OptimizerConfig(learning_rate=1e-5))


def meshed(**sizes):
    """The mesh of as many devices, which need not be here."""
    shape = MeshShape(**sizes)
    return AbstractMesh(tuple(shape.sizes.values()), tuple(shape.sizes))


def test_large_models_compute_in_bfloat16_and_compute_layers_again():
    assert resolve_trainer(SftConfig().training, LARGE).dtype == "bfloat16"
    assert resolve_trainer(SftConfig().training, SMALL).dtype == "float32"
    assert [resolve_remat(LossConfig(), size).remat for size in (SMALL, LARGE)] == [False, True]
    assert [resolve_grpo(GRPOConfig(), size, None).remat for size in (SMALL, LARGE)] == [
        False,
        True,
    ]


def test_what_is_asked_for_stays():
    asked = TrainerConfig(max_steps=1, optimizer=TRAINER.optimizer, compute_dtype="float32")
    assert resolve_trainer(asked, LARGE) == asked
    assert resolve_remat(LossConfig(remat=False), LARGE).remat is False
    chosen = resolve_grpo(GRPOConfig(remat=True, score_chunk=16), SMALL, meshed(data=2, fsdp=4))
    assert (chosen.remat, chosen.score_chunk) == (True, 16)


@pytest.mark.parametrize(
    ("given", "expected"), [(None, (False, True)), (True, (True, True)), (False, (False, False))]
)
def test_masks_follow_the_rows_unless_they_are_given(given, expected):
    loss = LossConfig(masks_per_query=given)
    assert (
        tuple(resolve_masks(loss, packed).masks_per_query for packed in (False, True)) == expected
    )


def test_left_to_right_scores_one_completion_per_device(caplog):
    """16 completions at once, as the recipe of the built-in model says, took 43 GB for it."""
    config = GRPOConfig(score_chunk=16, masks=Estimator(estimator="left_to_right"))
    assert resolve_grpo(config, SMALL, None).score_chunk == 1
    assert resolve_grpo(config, SMALL, meshed(data=2, fsdp=4)).score_chunk == 8
    assert caplog.messages[0] == (
        "score_chunk 16 becomes 1: left_to_right scores 256 canvases per completion"
    )
    assert resolve_grpo(replace(config, masks=Estimator()), SMALL, None).score_chunk == 16


def test_each_device_that_splits_rows_scores_one_completion_at_a_time():
    """Also where they do not divide the 80 completions of the recipe: those are filled up to 96."""
    for mesh, chunk in (
        (None, 1),
        (meshed(fsdp=16), 16),
        (meshed(data=2, fsdp=4, tensor=4), 8),
        (meshed(fsdp=32), 32),
    ):
        assert resolve_grpo(GRPOConfig(), LARGE, mesh).score_chunk == chunk
    with pytest.raises(
        ValueError,
        match="score_chunk=1: must be a multiple of 8, the devices of the mesh that split",
    ):
        resolve_grpo(GRPOConfig(score_chunk=1), LARGE, meshed(data=2, fsdp=4))


def test_one_device_needs_no_mesh_and_one_can_be_asked_for(tiny_config):
    assert training_mesh(tiny_config, None) is None
    mesh = training_mesh(tiny_config, "fsdp=1")
    assert mesh is not None
    assert mesh.size == 1
    with pytest.raises(ValueError, match="mesh fsdp=3: does not divide hidden_size=32"):
        training_mesh(tiny_config, "fsdp=3")


def test_what_was_chosen_is_logged_and_recorded(policy, letters, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert log_setup(meshed(fsdp=8), remat=True, score_chunk=8) == {"mesh": "fsdp=8"}
    assert caplog.messages == ["training on fsdp=8: remat True, score_chunk 8"]
    short = GenerationOptions(max_new_tokens=4, num_steps=2)
    rewards = {"reward_funcs": ("code_format",), "reward_weights": (1.0,)}
    config = GRPOConfig(
        num_generations=2, prompts_per_step=1, generation=short, training=TRAINER, **rewards
    )
    assert DiffuGRPOTrainer(policy, letters, [{"prompt": "a"}], config, out=tmp_path).train()
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["mesh"] == "one device"
    assert settings["compute_dtype"] == "float32"
    assert settings["grpo"]["remat"] is False
    assert settings["grpo"]["score_chunk"] == 1


def test_a_run_may_go_on_elsewhere():
    """With other devices, hence other chunks; rounding may differ, what is computed does not."""
    held = {
        "mesh": "fsdp=8",
        "loss": {"remat": True, "weighting": "1/t"},
        "grpo": {"score_chunk": 8, "beta": 0.1},
    }
    wanted = {
        "mesh": "data=2",
        "loss": {"remat": None, "weighting": "1/t"},
        "grpo": {"score_chunk": 2, "beta": 0.1},
    }
    assert differing_setting(held, wanted, UNCOMPARED) is None
    changed = {**wanted, "grpo": {"beta": 0.2}}
    assert differing_setting(held, changed, UNCOMPARED) == "grpo.beta=0.1, not 0.2"


def test_parameters_are_counted_whatever_they_are():
    assert weight_count({"a": np.zeros((2, 3), np.int8)}, None, {"b": {"c": np.zeros(4)}}) == 10


def bfloat16_bytes(shape):
    return 2 * LARGE // (shape.fsdp * shape.tensor)


@pytest.mark.parametrize(
    ("training", "free", "expected"),
    [
        # 80 GB cards have room for all of the weights beside an eighth of the training's state, 16
        # GB chips do not.
        (MeshShape(fsdp=8), 50 * GIB, MeshShape(data=8)),
        (MeshShape(fsdp=16), 12 * GIB, MeshShape(data=8, tensor=2)),
        (MeshShape(fsdp=16), 6 * GIB, MeshShape(data=4, tensor=4)),
        # More than the four key/value heads can share is not tried.
        (MeshShape(fsdp=16), 5 * GIB, None),
        # A CPU does not say how much it has.
        (MeshShape(fsdp=8), None, MeshShape(data=2, tensor=4)),
    ],
)
def test_rollouts_split_the_weights_as_little_as_memory_allows(training, free, expected):
    assert rollout_shape(DIFFUCODER_7B, training, bfloat16_bytes, free) == expected

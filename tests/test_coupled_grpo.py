"""The trainer of coupled-GRPO on a tiny policy: what it learns from, that it learns, that it resumes."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.models.dream import flatten
from jax_lm.rewards import WeightedSum
from jax_lm.training import coupled_grpo
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer, GRPOConfig, make_loss, mixed
from jax_lm.training.rollouts import Completions
from jax_lm.training.trainer import State
from jax_lm.training.update import gradient

ROWS = [{"prompt": text} for text in ("ab", "abcd", "c", "dd", "e")]
"""Five prompts, two a rollout: epochs end in the middle of rollouts."""


def fives(prompts, completions, **columns):
    return [float(text.count("5")) for text in completions]


FIVES = WeightedSum({"fives": fives}, {"fives": 1.0})


def settings(**changes):
    given = {
        "num_generations": 4,
        "prompts_per_step": 2,
        "num_iterations": 2,
        "max_completion_length": 8,
        "diffusion_steps": 4,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "compute_dtype": "float32",
        "ref_model_sync_steps": 3,
        "max_steps": 7,
        "score_chunk": 4,
        "save_every": 1,
        "warmup_ratio": 0.0,
        "beta": 0.1,
    }
    return GRPOConfig(**(given | changes))


def trainer_of(policy, letters, out, rewards=FIVES, **changes):
    return DiffuGRPOTrainer(policy, letters, ROWS, settings(**changes), out=out, rewards=rewards)


def entries(out, name="metrics.jsonl"):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(policy, letters, tmp_path_factory):
    """An uninterrupted run of seven updates: it ends in the middle of the fourth rollout."""
    trainer = trainer_of(policy, letters, tmp_path_factory.mktemp("run"))
    assert trainer.train()
    return trainer


@pytest.fixture(scope="module")
def rollout(policy, letters, tmp_path_factory):
    """A trainer before its first update, the batches of its first rollout, and their metrics."""
    trainer = trainer_of(policy, letters, tmp_path_factory.mktemp("rollout"))
    batches, metrics = trainer.source.make(trainer.state.params, 0)
    return trainer, batches, metrics


def assert_equal(ours, theirs):
    ours, theirs = dict(flatten(ours)), dict(flatten(theirs))
    assert ours.keys() == theirs.keys()
    for name, leaf in ours.items():
        np.testing.assert_array_equal(leaf, theirs[name], err_msg=name)


def test_the_ratio_is_one_at_the_first_update_of_a_rollout_alone(finished):
    largest = [entry["max_log_ratio"] for entry in entries(finished.out)]
    assert len(largest) == 7
    assert max(largest[0::2]) <= 1e-5
    assert min(largest[1::2]) > 1e-4


def test_metrics_of_the_phases(finished):
    first, second, third, *_ = entries(finished.out)
    for name in ("rollout_seconds", "reward_seconds", "score_seconds", "rollout_tokens_per_second", "reward_fives"):
        assert first[name] > 0
        assert name not in second
    assert "update_seconds" not in first
    assert third["update_seconds"] > 0
    assert first["kl"] == pytest.approx(0, abs=1e-9)
    assert 0 < second["kl"] < 1
    assert {"zero_variance_groups", "unfinished_completions", "clipped_share", "loss"} <= first.keys()
    assert [path.name for path in sorted((finished.out / "completions").iterdir())] == [
        f"{rollout:06}.jsonl" for rollout in range(4)
    ]
    text = entries(finished.out, "completions/000000.jsonl")[0]
    assert text["prompt"] in ("ab", "abcd", "c", "dd", "e")
    assert text["reward"] == text["rewards"]["fives"] == text["completion"].count("5")


@pytest.mark.parametrize("stop", [3, 4])
def test_a_resumed_run_equals_the_uninterrupted_one(finished, policy, letters, tmp_path, stop):
    """Stopped in the middle of a rollout, just before the reference moves, and at the end of a rollout."""
    first = trainer_of(policy, letters, tmp_path)
    first.config = dataclasses.replace(first.config, stop_after=stop)
    first.update = finished.update
    first.train()
    resumed = trainer_of(policy, letters, tmp_path)
    resumed.update = finished.update
    assert resumed.train()
    assert_equal(resumed.state.params, finished.state.params)
    assert_equal(resumed.source.reference, finished.source.reference)
    for path in (finished.out / "completions").iterdir():
        assert (tmp_path / "completions" / path.name).read_text() == path.read_text()


def test_another_run_is_refused(finished, policy, letters):
    for changes, difference in (({"beta": 0.2}, "beta=0.1, not 0.2"), ({"seed": 1}, "seed=0, not 1")):
        with pytest.raises(ValueError, match=difference):
            trainer_of(policy, letters, finished.out, **changes).train()
    trainer = DiffuGRPOTrainer(policy, letters, ROWS[:4], settings(), out=finished.out, rewards=FIVES)
    with pytest.raises(ValueError, match="holds a run with prompts="):
        trainer.train()


def test_the_reference_moves_a_share_of_the_way(rollout):
    trainer, _, _ = rollout
    reference, params = trainer.source.reference, jax.tree.map(lambda leaf: leaf + 1, trainer.state.params)
    moved = mixed(reference, params, 0.6)
    for name, leaf in flatten(moved):
        expected = 0.4 * dict(flatten(reference))[name] + 0.6 * dict(flatten(params))[name]
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=name)


def test_the_reference_moves_on_its_steps_alone(rollout, monkeypatch):
    trainer, batches, _ = rollout
    source, moves = trainer.source, []
    monkeypatch.setattr(coupled_grpo, "mixed", lambda reference, params, alpha: moves.append(alpha) or reference)
    monkeypatch.setattr(source, "make", lambda params, number: (batches, {}))
    for step in range(10):
        source.draw(State(trainer.state.params, (), step))
    assert moves == [0.6] * 3


@pytest.mark.parametrize("loss_type", ["bnpo", "grpo"])
def test_gradients_do_not_depend_on_accumulation(rollout, loss_type):
    trainer, batches, _ = rollout
    batch = batches[1]._replace(
        # As after an update: ratios on both sides of the clip.
        old_scores=batches[1].old_scores + 0.5 * jnp.sin(jnp.arange(8.0)),
        advantages=jnp.linspace(-1, 1, 8),
    )
    results = []
    for parts, chunk in ((1, 4), (4, 2)):
        config = settings(loss_type=loss_type, gradient_accumulation_steps=parts, score_chunk=chunk)
        score = functools.partial(trainer.source.score, chunk=chunk)
        loss = make_loss(score, config)
        whole = jax.jit(functools.partial(gradient, loss, frozen={}, batch=batch, key=jax.random.key(0), parts=parts))
        results.append(whole(params=trainer.state.params))
    (whole, metrics), (split, split_metrics) = results
    for name, leaf in flatten(whole):
        np.testing.assert_allclose(
            dict(flatten(split))[name], leaf, atol=1e-5 * float(np.abs(leaf).max()), err_msg=name
        )
    assert float(split_metrics["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert float(split_metrics["max_log_ratio"]) == pytest.approx(float(metrics["max_log_ratio"]), rel=1e-5)


def test_each_update_of_a_rollout_has_masks_of_its_own(rollout):
    _, (first, second), _ = rollout
    assert not np.array_equal(first.keys, second.keys)
    assert not np.allclose(first.old_scores, second.old_scores)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(first.old_scores, first.reference_scores)


def test_what_was_not_judged_counts_for_nothing(rollout):
    trainer, batches, _ = rollout
    completions = Completions(
        np.asarray(batches[0].tokens), np.asarray(batches[0].attention_mask),
        np.asarray(batches[0].completion_mask), ("",) * 8, np.zeros(8, bool),
    )  # fmt: skip
    rewards = np.array([1, np.nan, 2, 3, np.nan, np.nan, np.nan, 4], np.float32)
    batch = trainer.source.batch(trainer.state.params, completions, rewards, batches[0].keys)
    assert not np.asarray(batch.completion_mask)[[1, 4, 5, 6]].any()
    assert np.asarray(batch.completion_mask)[[0, 2, 3, 7]].any(axis=1).all()
    np.testing.assert_array_equal(np.asarray(batch.advantages)[[1, 4, 5, 6, 7]], 0)


def test_an_update_from_other_weights_than_sampled_is_caught(policy, letters, tmp_path, monkeypatch, finished):
    trainer = trainer_of(policy, letters, tmp_path)
    trainer.update = finished.update
    make = trainer.source.make

    def stale(params, number):
        return make(jax.tree.map(lambda leaf: leaf * 1.01, params), number)

    monkeypatch.setattr(trainer.source, "make", stale)
    with pytest.raises(AssertionError, match=r"step 1: \|s - s_old\| is .* before the first update"):
        trainer.train()


def test_one_iteration_without_a_reference(policy, letters, tmp_path):
    """The reference implementation crashes with one iteration and beta."""
    for beta in (0.0, 0.1):
        trainer = trainer_of(policy, letters, tmp_path / str(beta), num_iterations=1, beta=beta, max_steps=2)
        assert trainer.train()
        assert ("kl" in entries(trainer.out)[1]) == (beta > 0)
        assert (trainer.source.reference is None) == (beta == 0)


def test_positive_control(policy, letters, tmp_path):
    """The reward is the number of fives: an update of the wrong sign, or of the wrong rows, does not raise it."""
    trainer = trainer_of(
        policy, letters, tmp_path, num_generations=16, max_steps=24, learning_rate=3e-3, save_every=100,
        score_chunk=32, beta=0.0,
    )  # fmt: skip
    assert trainer.train()
    rewards = [entry["reward"] for entry in entries(tmp_path) if "reward" in entry]
    assert np.mean(rewards[:2]) < 1.5
    assert np.mean(rewards[-2:]) > 2 * np.mean(rewards[:2])


def test_published_recipe():
    """Section 3 of the paper's description of coupled-GRPO, number by number."""
    recipe = GRPOConfig()
    expected = {
        "num_generations": 10, "prompts_per_step": 8, "num_iterations": 2, "num_train_epochs": 1,
        "max_prompt_length": 200, "max_completion_length": 256, "diffusion_steps": 256, "temperature": 1.0,
        "top_p": 0.95, "alg": "entropy", "decoding": "exact", "reward_funcs": ("code", "code_format"),
        "reward_weights": (2.0, 0.5), "beta": 0.01, "epsilon": 0.5, "loss_type": "bnpo", "scale_rewards": False,
        "baseline": "leave_one_out", "estimator": "coupled", "num_mask_pairs": 1, "min_mask_ratio": 0.2,
        "max_mask_ratio": 0.8, "ref_model_sync_steps": 64, "ref_model_mixup_alpha": 0.6, "learning_rate": 1e-6,
        "adam_beta1": 0.9, "adam_beta2": 0.99, "weight_decay": 0.1, "max_grad_norm": 0.2, "min_lr_ratio": 0.1,
        "warmup_ratio": 1e-4, "compute_dtype": "bfloat16",
    }  # fmt: skip
    assert {name: getattr(recipe, name) for name in expected} == expected
    assert recipe.steps(21_000) == 5_250


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_generations": 1}, "num_generations=1: must be at least 2"),
        ({"num_iterations": 0}, "num_iterations=0: must be at least 1"),
        ({"score_chunk": 3}, "score_chunk=3: must divide 8"),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3: must divide 8"),
        ({"generation_batch_size": 5}, "generation_batch_size=5: must divide 8"),
        ({"ref_model_mixup_alpha": 1.5}, r"ref_model_mixup_alpha=1\.5: must lie in \[0, 1\]"),
        ({"reward_weights": (1.0,)}, "must have one weight per reward"),
        ({"baseline": "none"}, "baseline='none': must be one of"),
        ({"epsilon": 2.0}, r"epsilon=2\.0"),
        ({"min_mask_ratio": 0.9}, "mask ratios"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)

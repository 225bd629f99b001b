"""The trainer of coupled-GRPO on a tiny policy: what it learns from, that it learns, that it
resumes.
"""

import functools
import operator
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases.grpo import FIVES, ROWS, assert_equal, entries, fives, settings, trainer_of, training
from jax.sharding import PartitionSpec

from jax_lm.models.dream import flatten
from jax_lm.options import GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.sharding import MeshShape
from jax_lm.training.config import OptimizerConfig
from jax_lm.training.coupled_grpo import DiffuGRPOTrainer, GRPOConfig, grpo_loss
from jax_lm.training.grpo_config import PolicyLoss
from jax_lm.training.rollout_source import mix
from jax_lm.training.rollouts import advantages
from jax_lm.training.trainer import State
from jax_lm.training.update import gradient


@pytest.fixture(scope="module")
def finished(policy, letters, tmp_path_factory):
    """An uninterrupted run: it ends in the middle of a rollout."""
    trainer = trainer_of(policy, letters, tmp_path_factory.mktemp("run"))
    assert trainer.train()
    return trainer


@pytest.fixture(scope="module")
def rollout(policy, letters, tmp_path_factory):
    """A trainer before its first update, the batches of its first rollout, and their metrics."""
    trainer = trainer_of(policy, letters, tmp_path_factory.mktemp("rollout"))
    batches, metrics = trainer.source.make(trainer.state.params, 0)
    return trainer, batches, metrics


def test_the_ratio_is_one_at_the_first_update_of_a_rollout_alone(finished):
    largest = [entry["max_log_ratio"] for entry in entries(finished.out)]
    assert len(largest) == 41
    assert max(largest[0::2]) <= 1e-5
    assert min(largest[1::2]) > 1e-4


def test_metrics_of_the_phases(finished):
    first, second, third, *_ = entries(finished.out)
    for name in ("rollout_seconds", "reward_seconds", "reward_fives"):
        assert first[name] > 0
        assert name not in second
    assert "update_seconds" not in first
    assert third["update_seconds"] > 0
    assert first["kl"] == pytest.approx(0, abs=1e-9)
    assert 0 < second["kl"] < 1
    assert {
        "zero_variance_groups",
        "unfinished_completions",
        "clipped_share",
        "loss",
    } <= first.keys()
    assert [path.name for path in sorted((finished.out / "completions").iterdir())] == [
        f"{rollout:06}.jsonl" for rollout in range(21)
    ]
    text = entries(finished.out, "completions/000000.jsonl")[0]
    assert text["prompt"] in ("ab", "abcd", "c", "dd", "e")
    assert text["reward"] == text["rewards"]["fives"] == text["completion"].count("5")


def test_a_resumed_run_equals_the_uninterrupted_one(finished, policy, letters, tmp_path):
    """From the middle of a rollout and of an epoch, after the reference has moved, as if killed
    after that.
    """
    shutil.copytree(finished.out, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / "41")
    for rollout in (18, 19, 20):
        (tmp_path / "completions" / f"{rollout:06}.jsonl").unlink()
    resumed = trainer_of(policy, letters, tmp_path)
    assert resumed.train()
    assert [entry["step"] for entry in entries(tmp_path)] == list(range(1, 42))
    assert_equal(resumed.state.params, finished.state.params)
    assert_equal(resumed.source.arrays, finished.source.arrays)
    for path in (finished.out / "completions").iterdir():
        assert (tmp_path / "completions" / path.name).read_text() == path.read_text()


def test_another_run_is_refused(finished, policy, letters):
    for changes, difference in (
        ({"loss": PolicyLoss(beta=0.2)}, "grpo.loss.beta=0.1, not 0.2"),
        ({"training": training(seed=1)}, "seed=0, not 1"),
    ):
        with pytest.raises(ValueError, match=difference):
            trainer_of(policy, letters, finished.out, **changes).train()
    for rows, identity, difference in (
        (ROWS[:4], {}, "other prompts"),
        (ROWS, {"lora": {"rank": 4}}, "lora.rank=None"),
    ):
        trainer = DiffuGRPOTrainer(
            policy, letters, rows, settings(), out=finished.out, rewards=FIVES, identity=identity
        )
        with pytest.raises(ValueError, match=f"holds a run with {difference}"):
            trainer.train()


def test_the_reference_moves_a_share_of_the_way(rollout):
    trainer, _, _ = rollout
    reference, params = (
        trainer.source.arrays,
        jax.tree.map(lambda leaf: leaf + 1, trainer.state.params),
    )
    moved = mix(jax.tree.map(jnp.copy, reference), params, 0.6)
    for name, leaf in flatten(moved).items():
        expected = 0.4 * dict(flatten(reference))[name] + 0.6 * dict(flatten(params))[name]
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=name)


def test_the_reference_moves_on_its_steps_alone(policy, letters, tmp_path):
    trainer = trainer_of(policy, letters, tmp_path)
    params, moves = jax.tree.map(lambda leaf: 1.01 * leaf, trainer.state.params), []
    for step in range(10):
        before, copy = trainer.source.arrays, jax.tree.map(jnp.copy, trainer.source.arrays)
        trainer.source.draw(State(params, (), step))
        if trainer.source.arrays is not before:
            moves.append(step)
            assert_equal(trainer.source.arrays, mix(copy, params, 0.6))
    assert moves == [3, 6, 9]


def test_the_reference_follows_moves_that_bfloat16_would_round_away(policy, letters, tmp_path):
    """320 updates of 1e-6 each, as the published recipe makes them, and a mixture every 64."""
    trainer = trainer_of(policy, letters, tmp_path, training=training(compute_dtype="bfloat16"))
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), trainer.state.params)
    reference, lag = trainer.source.arrays, 0.0
    for update in range(64, 321, 64):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 1e-6 * update, jnp.float32), start)  # noqa: B023
        reference, lag = mix(reference, params, 0.6), 0.4 * lag + 0.6 * 1e-6 * update
    assert lag == pytest.approx(2.8e-4, rel=0.05)
    for name, leaf in flatten(reference).items():
        assert leaf.dtype == jnp.float32
        moved = np.asarray(leaf, np.float64) - dict(flatten(start))[name]
        # Half a step of float32 next to 1, five times.
        np.testing.assert_allclose(moved, lag, atol=5 * 2.0**-24, err_msg=name)


def test_the_reference_lies_where_the_weights_do(policy, letters, tmp_path):
    trainer = trainer_of(policy.on_mesh(MeshShape().mesh()), letters, tmp_path)
    placed = [
        jax.tree.map(lambda leaf: leaf.sharding, tree)
        for tree in (trainer.source.arrays, trainer.state.params)
    ]
    assert placed[0] == placed[1]
    specs = {sharding.spec for sharding in jax.tree.leaves(placed[0])}
    assert {
        PartitionSpec("tensor", "fsdp"),
        PartitionSpec("fsdp", "tensor"),
        PartitionSpec(),
    } <= specs


def test_a_few_unequal_scores_are_rounding_and_many_end_the_run(policy, letters, tmp_path, caplog):
    """One token in a hundred may differ; three rollouts in a row with more are no accident."""
    trainer = trainer_of(policy, letters, tmp_path)
    # What the trainer says when it is built is no warning, and shows where an earlier test set the
    # level of the logger.
    caplog.clear()
    outlier, worse = ({"unequal_share": share, "max_log_ratio": 0.7} for share in (0.01, 0.011))
    trainer.check_ratio(1, outlier)
    assert not caplog.records
    for step in (3, 5):
        trainer.check_ratio(step, worse)
    assert caplog.messages == [
        f"step {step}: |s - s_old| is above 0.001 for 1.1% of the tokens (at most 1%; the largest is 0.7) before the "
        "first update of a rollout"
        for step in (3, 5)
    ]
    # A second update of a rollout says nothing; a first one without them starts the count anew.
    trainer.check_ratio(6, worse)
    trainer.check_ratio(7, outlier)
    for step in (9, 11):
        trainer.check_ratio(step, worse)
    with pytest.raises(RuntimeError, match=r"step 13: .*, of the 3rd in a row"):
        trainer.check_ratio(13, worse)


def test_gradients_do_not_depend_on_accumulation(rollout):
    trainer, batches, _ = rollout
    batch = batches[1]._replace(
        # As after an update: ratios on both sides of the clip.
        old_scores=batches[1].old_scores + 0.5 * jnp.sin(jnp.arange(8.0)),
        advantages=jnp.linspace(-0.5, 1, 16),  # terms that do not cancel
    )
    results = []
    for parts, chunk in ((1, 8), (4, 2)):
        score = functools.partial(trainer.source.score_rows, chunk=chunk)
        loss = grpo_loss(score, settings())
        whole = jax.jit(
            functools.partial(
                gradient, loss, frozen={}, batch=batch, key=jax.random.key(0), parts=parts
            )
        )
        results.append(whole(params=trainer.state.params))
    (whole, metrics), (split, split_metrics) = results
    size = float(optax.tree.norm(whole))
    assert size > 0.01
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, split, whole))) <= 1e-6 * size
    assert float(split_metrics["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert float(split_metrics["max_log_ratio"]) == pytest.approx(
        float(metrics["max_log_ratio"]), rel=1e-5
    )


def test_each_update_of_a_rollout_has_masks_of_its_own(rollout):
    _, (first, second), _ = rollout
    assert not np.array_equal(first.rows.keys, second.rows.keys)
    assert not np.allclose(first.old_scores, second.old_scores)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(first.old_scores, first.reference_scores)


def batches_of(policy, letters, out, scores, **changes):
    """The batches of a first rollout whose completions get these rewards, None where one is not
    judged.
    """
    rewards = WeightedSum(
        {"listed": lambda prompts, completions, **columns: scores}, {"listed": 1.0}
    )
    trainer = trainer_of(policy, letters, out, rewards, **changes)
    return trainer.source.make(trainer.state.params, 0)


def test_what_was_not_judged_counts_for_nothing(policy, letters, tmp_path):
    rewards = [1.0, None, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] + [None] * 7 + [4.0]
    (batch, _), _ = batches_of(policy, letters, tmp_path, rewards)
    # The second group has one judged completion, hence no variance.
    assert not np.asarray(batch.rows.completion_mask)[[1, *range(8, 16)]].any()
    assert np.asarray(batch.rows.completion_mask)[[0, *range(2, 8)]].any(axis=1).all()
    np.testing.assert_array_equal(np.asarray(batch.advantages)[[1, *range(8, 16)]], 0)


def test_shuffled_rewards_are_the_same_ones_elsewhere(policy, letters, tmp_path):
    one_group = {"num_generations": 16, "prompts_per_step": 1}
    rewards = np.arange(16, dtype=np.float32)
    (first, second), metrics = batches_of(
        policy, letters, tmp_path, rewards.tolist(), shuffle_rewards=True, **one_group
    )
    plain = advantages(rewards, 16)
    assert not np.array_equal(first.advantages, plain)
    np.testing.assert_array_equal(np.sort(first.advantages), np.sort(plain))
    np.testing.assert_array_equal(first.advantages, second.advantages)
    assert [entry["reward"] for entry in entries(tmp_path, "completions/000000.jsonl")] == rewards[
        :4
    ].tolist()
    assert metrics["reward"] == pytest.approx(rewards.mean())


def test_what_cannot_run_is_refused_before_anything_is_written(policy, letters, tmp_path):
    for changes, message in (
        ({"generation": GenerationOptions(max_new_tokens=100)}, "rows take 132 tokens, the context holds 128"),
        # One rollout of half the epoch: the number of steps follows from the prompts.
        ({"training": training(optimizer=OptimizerConfig(learning_rate=1.0, warmup_steps=10), max_steps=None),
          "num_train_epochs": 0.4}, r"warmup_steps=10: must lie in \[0, max_steps=2\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            trainer_of(policy, letters, tmp_path / "run", **changes)
    with pytest.raises(ValueError, match="reward='coed': must be one of"):
        DiffuGRPOTrainer(
            policy,
            letters,
            ROWS,
            settings(reward_funcs=("coed",), reward_weights=(1.0,)),
            out=tmp_path,
        )
    # a reward of the user is called once, with made-up rows
    with pytest.raises(ValueError, match=r"reward .*broken.* raised"):
        DiffuGRPOTrainer(
            policy,
            letters,
            ROWS,
            settings(reward_funcs=("test_coupled_grpo:broken",), reward_weights=(1.0,)),
            out=tmp_path,
        )
    assert not (tmp_path / "run").exists()


def broken(prompts, completions, **columns):
    raise KeyError("absent")


def test_updates_from_other_weights_than_sampled_are_caught(policy, letters, tmp_path, caplog):
    def meddle(prompts, completions, **columns):
        """Changes the weights while the completions that they wrote are rewarded."""
        state = trainer.state
        trainer.trainer.state = state._replace(
            params=jax.tree.map(lambda leaf: leaf * 1.01, state.params)
        )
        return fives(prompts, completions)

    trainer = trainer_of(
        policy, letters, tmp_path, WeightedSum({"meddle": meddle}, {"meddle": 1.0})
    )
    with pytest.raises(
        RuntimeError, match=r"step 5: \|s - s_old\| is above 0\.001 for .* of the tokens"
    ):
        trainer.train()
    assert [record.message[:7] for record in caplog.records if "s_old" in record.message] == [
        "step 1:",
        "step 3:",
    ]


def test_held_out_prompts_are_evaluated_and_not_learnt_from(policy, letters, tmp_path):
    """Two of the five, at the start, every second update and at the end; with weights that stay,
    always with the same reward.
    """
    still = OptimizerConfig(learning_rate=1e-12, weight_decay=0.0)
    asked = []

    def watched(prompts, completions, **columns):
        asked.append(tuple(prompts))
        return fives(prompts, completions)

    changes = {
        "held_out_prompts": 2,
        "training": training(max_steps=5, evaluate_every=2, optimizer=still),
    }
    trainer = trainer_of(
        policy, letters, tmp_path, WeightedSum({"fives": watched}, {"fives": 1.0}), **changes
    )
    assert trainer.train(lambda params: {"leaves": float(len(jax.tree.leaves(params)))})
    held_out = tuple(prompt.content for prompt in trainer.held_out)
    assert len(held_out) == 2
    evaluated, learnt = (
        [names for names in asked if (names == held_out) is is_held_out]
        for is_held_out in (True, False)
    )
    assert (len(evaluated), len(learnt)) == (4, 3)
    assert {name for names in learnt for name in names} == {row["prompt"] for row in ROWS} - set(
        held_out
    )
    results = [entry for entry in entries(tmp_path) if "eval_reward" in entry]
    assert [entry["step"] for entry in results] == [0, 2, 4, 5]
    assert results[0].keys() == {
        "step", "eval_reward", "eval_reward_fives", "eval_excluded_completions", "eval_completion_tokens",
        "eval_unfinished_completions", "eval_leaves", "eval_reward_error", "eval_kl_start",
    }  # fmt: skip
    assert len({entry["eval_reward"] for entry in results}) == 1
    assert [entry["eval_kl_start"] for entry in results] == pytest.approx([0.0] * 4, abs=1e-6)
    # The first of equals is the best one, and the run ends with it.
    assert trainer.state.step == 0
    with pytest.raises(
        ValueError, match="held_out_prompts=5: must leave some of the 5 prompts that fit"
    ):
        trainer_of(policy, letters, tmp_path / "none", held_out_prompts=5)


def test_one_iteration_with_a_reference(policy, letters, tmp_path):
    """The reference implementation crashes on it."""
    trainer = trainer_of(
        policy, letters, tmp_path, num_iterations=1, training=training(max_steps=2)
    )
    assert trainer.train()
    assert entries(tmp_path)[1]["kl"] > 0


def test_a_single_update_needs_no_old_scores(policy, letters, tmp_path, rollout):
    """It takes the step that it takes with them, as the policy that sampled is the present one."""
    (batch,), _ = batches_of(
        policy, letters, tmp_path, [float(row % 3) for row in range(16)], num_iterations=1
    )
    assert batch.old_scores is None
    trainer, (first, _), _ = rollout
    first = first._replace(advantages=batch.advantages)
    loss = grpo_loss(trainer.source.score_rows, settings())
    step = jax.jit(functools.partial(gradient, loss, frozen={}, key=jax.random.key(0), parts=2))
    with_scores, _ = step(params=trainer.state.params, batch=first)
    without, metrics = step(params=trainer.state.params, batch=first._replace(old_scores=None))
    size = float(optax.tree.norm(with_scores))
    assert size > 0.01
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, without, with_scores))) <= 1e-6 * size
    assert float(metrics["max_log_ratio"]) == 0


def test_no_reference_without_beta(policy, letters, tmp_path):
    trainer = trainer_of(policy, letters, tmp_path, loss=PolicyLoss(beta=0.0))
    (batch, _), _ = trainer.source.make(trainer.state.params, 0)
    assert batch.reference_scores is None
    assert trainer.source.arrays == {}


def test_positive_control(finished):
    """The reward is the number of fives: an update of the wrong sign, or of the wrong rows, does
    not raise it.
    """
    rewards = [entry["reward"] for entry in entries(finished.out) if "reward" in entry]
    assert np.mean(rewards[:3]) < 1.5
    assert np.mean(rewards[-3:]) > 2 * np.mean(rewards[:3])


def test_published_recipe():
    """Section 3 of the paper's description of coupled-GRPO, number by number."""
    recipe = GRPOConfig()
    expected = {
        "num_generations": 10, "prompts_per_step": 8, "num_iterations": 2, "num_train_epochs": 1,
        "max_prompt_length": 200, "reward_funcs": ("code", "code_format"), "reward_weights": (2.0, 0.5),
        "baseline": "leave_one_out", "scale_rewards": False, "ref_model_sync_steps": 64, "ref_model_mixup_alpha": 0.6,
        "generation.max_new_tokens": 256, "generation.num_steps": 256, "generation.temperature": 1.0,
        "generation.top_p": 0.95, "generation.top_k": 50, "generation.alg": "entropy",
        "generation.decoding.preset": "exact", "masks.estimator": "coupled", "masks.num_mask_pairs": 1,
        "masks.min_mask_ratio": 0.2, "masks.max_mask_ratio": 0.8, "loss.beta": 0.01, "loss.epsilon": 0.5,
        "loss.loss_type": "bnpo", "training.optimizer.learning_rate": 1e-6, "training.optimizer.adam_beta1": 0.9,
        "training.optimizer.adam_beta2": 0.99, "training.optimizer.weight_decay": 0.1,
        "training.optimizer.max_grad_norm": 0.2, "training.optimizer.min_lr_ratio": 0.1,
        "training.optimizer.warmup_ratio": 1e-4, "training.compute_dtype": "bfloat16", "training.log_every": 1,
        "training.save_every": 50, "training.evaluate_every": 50, "training.keep": 2,
    }  # fmt: skip
    assert {name: operator.attrgetter(name)(recipe) for name in expected} == expected
    assert recipe.steps(21_000) == 5_250


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_generations": 1}, "num_generations=1: must be at least 2"),
        ({"num_iterations": 0}, "num_iterations=0: must be at least 1"),
        ({"score_chunk": 0}, "score_chunk=0: must be at least 1"),
        (
            {"training": training(gradient_accumulation_steps=3)},
            "gradient_accumulation_steps=3: must divide 16",
        ),
        ({"generation_batch_size": 5}, "generation_batch_size=5: must divide 16"),
        ({"ref_model_mixup_alpha": 1.5}, r"ref_model_mixup_alpha=1\.5: must lie in \[0, 1\]"),
        ({"reward_weights": (1.0,)}, "must have one weight per reward"),
        ({"baseline": "none"}, "baseline='none': must be one of"),
    ],
)
def test_settings_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def test_policy_of_the_best_evaluation_comes_back_with_its_reference(policy, letters, tmp_path):
    """Some metric that falls from the second evaluation on; the reference has moved since."""
    values, seen = [2.5, 3.0, 2.0, 1.0, 0.0], {}

    def falling(params):
        seen[len(seen)] = jax.tree.map(np.array, params)
        return {"score": values[len(seen) - 1]}

    best = {
        "metric_for_best_model": "score",
        "load_best_model_at_end": True,
        "early_stopping_patience": 2,
    }
    trainer = trainer_of(
        policy, letters, tmp_path, training=training(max_steps=9, evaluate_every=2, keep=1, **best)
    )
    assert trainer.train(falling)
    assert len(seen) == 4
    assert trainer.state.step == 2
    assert_equal(trainer.state.params, seen[1])
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "6"]
    # Before its first move, after three updates, the reference is the policy that the run began
    # with.
    again = trainer_of(policy, letters, tmp_path / "again")
    assert_equal(trainer.source.arrays, again.source.arrays)


def test_what_goes_wrong_first_is_warned_of(policy, letters, tmp_path, caplog):
    trainer = trainer_of(policy, letters, tmp_path)
    for step, score in enumerate([-0.30, -0.28, -0.29, -0.31, -0.27], 1):
        trainer.check(2 * step, {"rewarded_logprob": score, "rate_scale": 1.0})
    reward = "the held-out reward"
    trainer.watch(reward, 0, 0.6, 0.03)
    trainer.watch(reward, 10, 0.53, 0.03)
    caplog.clear()
    # A rollout without a group that teaches says nothing.
    trainer.check(12, {"rewarded_logprob": -9.0, "rate_scale": 0.0})
    assert not caplog.records
    trainer.check(14, {"rewarded_logprob": -0.4, "rate_scale": 0.5})
    trainer.watch(reward, 20, 0.5, 0.03)
    assert caplog.messages == [
        f"step {step}: {name} is {value}, more than two standard errors below the {best} of step {since}: lower "
        "learning_rate or negative_scale, or stop"
        for step, name, value, best, since in (
            (14, "the mean log-probability of rewarded rows", "-0.400", "-0.270", 10),
            (20, "the held-out reward", "0.500", "0.600", 0),
        )
    ]


def test_the_step_is_as_large_as_the_share_of_groups_that_teach(rollout):
    """Half of the rows have no variance: they count for nothing, and the rate is halved."""
    trainer, (batch, _), _ = rollout
    teaches = (jnp.arange(16) < 8)[:, None]
    whole, half = (
        batch._replace(
            rows=batch.rows._replace(completion_mask=batch.rows.completion_mask & counts),
            advantages=jnp.linspace(-0.5, 1, 16),
        )
        for counts in (True, teaches)
    )
    rates, moved = [], []
    for each in (whole, half):
        params, state = jax.tree.map(jnp.copy, (trainer.state.params, trainer.state.optimizer))
        after, _, metrics = trainer.trainer.update(params, state, {}, np.int32(1), each)
        rates.append(float(metrics["learning_rate"]))
        moved.append(
            float(optax.tree.norm(jax.tree.map(jnp.subtract, after, trainer.state.params)))
        )
    assert rates[1] == pytest.approx(rates[0] / 2)
    # Adam's first step has the same size whatever the gradient.
    assert moved[1] == pytest.approx(moved[0] / 2, rel=0.05)

"""Scores along the decoding (trace), by strata, and rollouts that draw anew what teaches nothing."""

import shutil
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.grpo import (
    FIVES,
    GENERATION,
    assert_equal,
    entries,
    fives,
    settings,
    trainer_of,
    training,
)

from jax_lm.options import Decoding
from jax_lm.rewards import WeightedSum
from jax_lm.training.grpo_config import Estimator
from jax_lm.training.policy_loss import completion_scores, forward_process
from jax_lm.training.rollouts import cut_at_stop, has_variance, sample_keys

PROMPT, COLUMNS, MASK = 3, 12, 95


def scored(model, tokens, copies):
    """The scores of completions whose rows have no padding."""
    score = jax.jit(partial(completion_scores, model))
    return np.asarray(score(tokens, np.ones(tokens.shape, bool), copies))


def test_random_masks_do_not_follow_the_steps():
    keys, tokens = sample_keys(0, 0, 1, jnp.arange(1)), jnp.zeros((1, PROMPT + COLUMNS), jnp.int32)
    with pytest.raises(ValueError, match="estimator='trace': has no random masks"):
        forward_process(keys, tokens, COLUMNS, MASK, Estimator(estimator="trace"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoding": Decoding(preset="fast", refresh_every=2)}, "refresh_every=2: estimator='trace'"),
        ({"decoding": Decoding(preset="fast", freeze_prompt=True)}, "freeze_prompt=True: estimator='trace'"),
        ({"lookahead": 2, "decoding": Decoding(preset="turbo", cache="none")}, "lookahead=2: estimator='trace'"),
    ],
)  # fmt: skip
def test_a_decoding_that_cannot_be_scored_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        settings(masks=Estimator(estimator="trace"), generation=replace(GENERATION, **changes))
    settings(generation=replace(GENERATION, **changes))


def test_the_trace_reads_what_was_sampled_behind_the_stop_token(policy, letters, tmp_path):
    width, end = 4, letters.stop_ids[0]
    sampled = np.array([[0, 0, 1, 2, 5, end, 7, 8, 9, 9, 9, 9]], np.int32)
    zeros, present = np.zeros_like(sampled), np.ones(sampled.shape, bool)
    completions = cut_at_stop(sampled, present, zeros, zeros.astype(np.float32), width, letters)
    assert (completions.tokens[0, 6:] == letters.pad_id).all()
    for name, expected in (("trace", sampled), ("coupled", completions.tokens)):
        trainer = trainer_of(policy, letters, tmp_path / name, masks=Estimator(estimator=name))
        rows = trainer.source.make_rows(completions, 0, 1)
        np.testing.assert_array_equal(rows.tokens, expected)


def test_strata_part_the_completion_at_random():
    tokens = np.zeros((4000, PROMPT + COLUMNS), np.int32)
    estimator = Estimator(estimator="stratified", num_segments=5)
    process = jax.jit(partial(forward_process, estimator=estimator), static_argnums=(2, 3))
    copies = process(sample_keys(0, 0, 1, jnp.arange(4000)), tokens, COLUMNS, MASK)
    scored = np.asarray(copies.scored)
    assert (scored.sum(axis=1) == 1).all()
    assert set(np.unique(scored.sum(axis=2))) == {2, 3}
    np.testing.assert_array_equal(np.asarray(copies.tokens)[:, :, PROMPT:] == MASK, scored)
    # Every position is as often in each stratum as its size says, and beside every other one alike.
    shares = scored.mean(axis=0)
    sizes = scored[0].sum(axis=1)
    np.testing.assert_allclose(
        shares, np.broadcast_to(sizes[:, None] / COLUMNS, shares.shape), atol=6 * 0.5 / 4000**0.5
    )
    together = (scored[:, :, :, None] & scored[:, :, None, :]).sum(axis=1).mean(axis=0)
    expected = (sizes * (sizes - 1)).sum() / (COLUMNS * (COLUMNS - 1))
    others = together[~np.eye(COLUMNS, dtype=bool)]
    np.testing.assert_allclose(others, expected, atol=6 * 0.5 / 4000**0.5)


def test_the_mean_over_strata_is_the_mean_over_all_ways_to_hide_as_much(tiny_model):
    """Three positions in three strata of one: each is scored with the two others visible, whatever
    the key.
    """
    tokens = np.random.default_rng(3).integers(0, 90, (2, PROMPT + 3)).astype(np.int32)
    keys = sample_keys(0, 0, 1, jnp.arange(2))
    estimator = Estimator(estimator="stratified", num_segments=3)
    process = jax.jit(partial(forward_process, estimator=estimator), static_argnums=(2, 3))
    copies = process(keys, tokens, 3, MASK)
    scores = scored(tiny_model, tokens, copies)
    forward = jax.jit(tiny_model.__call__)
    for row in range(2):
        for column in range(3):
            canvas = tokens[row].copy()
            canvas[PROMPT + column] = MASK
            logits = np.asarray(forward(canvas[None]))[0, PROMPT + column - 1].astype(np.float64)
            expected = logits[tokens[row, PROMPT + column]] - np.log(np.exp(logits).sum())
            assert scores[row, column] == pytest.approx(expected, abs=2e-5)


def fives_of_some(prompts, completions, **columns):
    """Groups of the other prompts are all worth the same."""
    counts = fives(prompts, completions)
    return [
        count if prompt in ("ab", "c") else 0.0
        for prompt, count in zip(prompts, counts, strict=True)
    ]


SOME = WeightedSum({"fives": fives_of_some}, {"fives": 1.0})


def varied_groups(batch):
    advantages = np.asarray(batch.advantages).reshape(-1, 8)
    return [bool(np.any(group != 0)) for group in advantages]


def test_groups_without_variance_are_drawn_anew(policy, letters, tmp_path):
    plain = trainer_of(policy, letters, tmp_path / "plain", SOME)
    refilling = trainer_of(policy, letters, tmp_path / "refilling", SOME, dynamic_sampling=20)
    counts, before = [], []
    for rollout in range(4):
        batches, metrics = refilling.source.make(refilling.state.params, rollout)
        assert all(varied_groups(batches[0])), rollout
        assert metrics["zero_variance_groups"] >= 0
        counts.append(metrics["zero_variance_groups"])
        before += varied_groups(plain.source.make(plain.state.params, rollout)[0][0])
    # Without it some taught nothing, and what was drawn in vain is in the metrics.
    assert not all(before)
    assert max(counts) > 0


def test_as_many_are_drawn_anew_as_are_missing(policy, letters, tmp_path, monkeypatch):
    """Filled up to a power of two, and never more than a rollout has room for."""
    lacking = WeightedSum(
        {"none": lambda prompts, completions, **columns: [1.0] * len(completions)}, {"none": 1.0}
    )
    source = trainer_of(
        policy, letters, tmp_path, lacking, prompts_per_step=3, dynamic_sampling=3
    ).source
    missing, counts, draw = iter([3, 2, 1, 0]), [], source.rollouts.draw_rollout

    def counting(*args):
        counts.append(args[3:])
        return draw(*args)

    monkeypatch.setattr(source.rollouts, "missing", lambda rollout: next(missing))
    monkeypatch.setattr(source.rollouts, "draw_rollout", counting)
    source.make(trainer_of(policy, letters, tmp_path / "b").state.params, 0)
    assert counts == [(), (3,), (2,), (1,)]


def test_prompts_drawn_anew_go_through_all_of_them(policy, letters, tmp_path):
    """However many are missing each time."""
    rollouts = trainer_of(
        policy, letters, tmp_path, prompts_per_step=2, dynamic_sampling=1
    ).source.rollouts
    size = len(rollouts.prompts.prompts)
    counts = [1, 2, 1, 1, 2, 1] * size
    drawn = [
        rollouts.prompts.select(0, 2 * number, count, 1) for number, count in enumerate(counts)
    ]
    assert {prompt.ids for prompts in drawn for prompt in prompts} == {
        prompt.ids for prompt in rollouts.prompts.prompts
    }
    firsts = [prompts[0].ids for prompts in drawn[: size // 2]]
    assert len(set(firsts)) == len(firsts)


def test_a_rollout_that_finds_too_few_is_filled_with_the_first_others(policy, letters, tmp_path):
    nothing = WeightedSum(
        {"none": lambda prompts, completions, **columns: [1.0] * len(completions)}, {"none": 1.0}
    )
    plain = trainer_of(policy, letters, tmp_path / "plain", nothing)
    refilling = trainer_of(policy, letters, tmp_path / "refilling", nothing, dynamic_sampling=2)
    (without, *_), _ = plain.source.make(plain.state.params, 0)
    (batch, *_), metrics = refilling.source.make(refilling.state.params, 0)
    np.testing.assert_array_equal(batch.tokens, without.tokens)
    np.testing.assert_array_equal(batch.old_scores, without.old_scores)
    assert metrics["zero_variance_groups"] == 1


def test_draws_of_a_rollout_have_random_numbers_of_their_own(policy, letters, tmp_path):
    rollouts = trainer_of(policy, letters, tmp_path, dynamic_sampling=1).source.rollouts
    params = jax.tree.map(jnp.asarray, trainer_of(policy, letters, tmp_path / "b").state.params)
    prompts = rollouts.prompts.prompts[:1] * 8
    first, second = (rollouts.complete(params, prompts, 0, first=number) for number in (0, 16))
    assert first.texts.tolist() != second.texts.tolist()


@pytest.mark.parametrize("estimator", ["trace", "stratified"])
def test_a_resumed_run_is_the_uninterrupted_one(policy, letters, tmp_path, estimator):
    masks = Estimator(estimator=estimator, num_segments=2)
    options = {
        "masks": masks,
        "dynamic_sampling": 2,
        "training": training(max_steps=8, save_every=5),
    }
    whole = trainer_of(policy, letters, tmp_path / "whole", SOME, **options)
    assert whole.train()
    # The ratio is 1 before the first update of each rollout: old and new scores have the same
    # masks.
    largest = [entry["max_log_ratio"] for entry in entries(tmp_path / "whole")]
    assert max(largest[0::2]) <= 1e-5
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "8")
    again = trainer_of(policy, letters, tmp_path / "again", SOME, **options)
    assert again.train()
    assert_equal(again.state.params, whole.state.params)
    with pytest.raises(ValueError, match=r"grpo\.dynamic_sampling=2, not 1"):
        trainer_of(
            policy, letters, tmp_path / "again", SOME, **options | {"dynamic_sampling": 1}
        ).train()


@pytest.mark.parametrize("estimator", ["trace", "stratified"])
def test_each_learns_what_is_rewarded(policy, letters, tmp_path, estimator):
    """The number of fives as reward, as for the coupled pair."""
    masks = Estimator(estimator=estimator, num_segments=2)
    trainer = trainer_of(
        policy,
        letters,
        tmp_path,
        FIVES,
        masks=masks,
        training=training(max_steps=40, save_every=40),
    )
    assert trainer.train()
    rewards = [entry["reward"] for entry in entries(tmp_path) if "reward" in entry]
    assert np.mean(rewards[-5:]) > 1.5 * np.mean(rewards[:5])


def test_variance_is_of_judged_completions():
    rewards = np.array([1, 1, np.nan, 1, 0, np.nan, np.nan, 2, np.nan], np.float32)
    np.testing.assert_array_equal(has_variance(rewards, 3), [False, True, False])

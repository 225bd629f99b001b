"""Estimators against what they estimate, and rollouts that draw anew what teaches nothing."""

import itertools
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
from flax import nnx

from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import split_model
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.training.grpo_config import Estimator
from jax_lm.training.policy_loss import completion_scores, forward_process, weighted_scores
from jax_lm.training.rollout_source import MaskedRows, policy_scores
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
    judged = itertools.count()

    def one_more(prompts, completions, **columns):
        """No group of the first draw has variance, and one of every other."""
        return [0.0 if next(judged) else 1.0, *[1.0] * (len(completions) - 1)]

    lacking = WeightedSum({"one more": one_more}, {"one more": 1.0})
    source = trainer_of(
        policy, letters, tmp_path, lacking, prompts_per_step=3, dynamic_sampling=3
    ).source
    counts, draw = [], source.rollouts.draw_rollout

    def counting(*args):
        counts.append(args[3:])
        return draw(*args)

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


@pytest.mark.parametrize("estimator", ["trace", "stratified", "left_to_right"])
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Log-probabilities of the first and the second token: a with the other one visible, b with
        # both masked. The pair is a mean of both, and the full mask adds b: (a + b + b) / 2.
        ({"estimator": "coupled"}, lambda a, b: (a + 2 * b) / 2),
        ({"estimator": "decoupled"}, lambda a, b: (a + 2 * b) / 2),
        ({"estimator": "coupled", "num_mask_pairs": 3}, lambda a, b: (3 * (a + b) + b) / 4),
        ({"estimator": "full_mask"}, lambda a, b: b),
        ({"estimator": "stratified", "num_segments": 2}, lambda a, b: a),
        ({"estimator": "evidence"}, lambda a, b: (a + b) / 2),
        ({"estimator": "evidence", "num_mask_pairs": 2}, lambda a, b: (a + b) / 2),
    ],
)  # fmt: skip
def test_the_mean_score_of_two_tokens_is_the_stated_one(settings, expected):
    """Over the masks of many keys, with six standard errors."""
    count, alone, both = 20_000, np.array([-0.7, -2.3]), np.array([-1.9, -3.1])
    process = jax.jit(
        partial(forward_process, estimator=Estimator(**settings)), static_argnums=(2, 3)
    )
    tokens = jnp.zeros((count, PROMPT + 2), jnp.int32)
    copies = process(sample_keys(0, 0, 1, jnp.arange(count)), tokens, 2, MASK)
    other_masked = (np.asarray(copies.tokens)[:, :, PROMPT:] == MASK)[:, :, ::-1]
    log_probs = jnp.where(other_masked, both, alone)
    scores = np.asarray(weighted_scores(log_probs, *copies[1:]), np.float64)
    error = 6 * scores.std(axis=0) / count**0.5 + 1e-5
    assert (np.abs(scores.mean(axis=0) - expected(alone, both)) < error).all()


@pytest.fixture(scope="module")
def toy(tiny_config):
    """A model of seven tokens, and all completions A B of the prompt 3.

    The third value computes the log-probability of A or B, with the other one visible or masked.
    """
    mask = 7
    model = DreamForCausalLM(
        replace(tiny_config, vocab_size=8, mask_token_id=mask), rngs=nnx.Rngs(0)
    )
    graph, weights = split_model(model)
    pairs = np.array(list(np.ndindex(mask, mask)), np.int32)
    tokens = np.concatenate([np.full((len(pairs), 1), 3, np.int32), pairs], axis=1)

    def log_prob(weights, column, other_visible):
        canvas = tokens.copy()
        canvas[:, 1 + column] = mask
        if not other_visible:
            canvas[:, 2 - column] = mask
        logits = graph.merge(weights)(jnp.asarray(canvas), jnp.ones(tokens.shape, bool))
        # row p predicts the token at p + 1
        log_probs = jax.nn.log_softmax(logits[:, column], axis=-1)
        return log_probs[jnp.arange(len(pairs)), pairs[:, column]]

    return graph, weights, log_prob, jnp.asarray(tokens), mask


def assert_same_gradient(ours, exact, weights):
    """Compare the gradients of two functions of the weights; returns their further results."""
    (mine, our_rest), (theirs, exact_rest) = (
        jax.jit(jax.grad(function, has_aux=True))(weights) for function in (ours, exact)
    )
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(np.abs(other).max()) + 1e-9)
    return our_rest, exact_rest


def test_the_policy_gradient_from_left_to_right_is_the_exact_one(toy):
    """Of completions that are decided in this order: the sum of A p over all of them."""
    graph, weights, log_prob, tokens, mask = toy
    shape = (len(tokens), 2)
    rewards = np.random.default_rng(0).uniform(size=len(tokens)).astype(np.float32)

    def log_likelihood(weights):
        # A with B masked, then B with A visible
        return log_prob(weights, 0, False) + log_prob(weights, 1, True)

    # These steps say that B was decided first, which does not matter.
    rows = MaskedRows(
        tokens,
        jnp.ones(tokens.shape, bool),
        jnp.ones(shape, bool),
        jax.random.key_data(sample_keys(0, 0, 1, jnp.arange(len(tokens)))),
        jnp.broadcast_to(jnp.array([1, 0]), shape),
    )
    score = partial(
        policy_scores,
        graph,
        mask_id=mask,
        generation=GenerationOptions(max_new_tokens=2, num_steps=1),
        masks=Estimator(estimator="left_to_right"),
        chunk=len(tokens),
    )
    drawn = np.exp(jax.jit(log_likelihood)(weights))

    def ours(weights):
        scores = jnp.sum(score(weights, rows), axis=1)
        return jnp.sum(drawn * rewards * scores), scores

    def exact(weights):
        likelihood = log_likelihood(weights)
        return jnp.sum(jnp.exp(likelihood) * rewards), likelihood

    np.testing.assert_allclose(*assert_same_gradient(ours, exact, weights), rtol=1e-6, atol=1e-6)


def test_the_mean_of_evidence_over_all_masks_is_the_bound(toy):
    """The mean over both orders of the log-likelihood, and its gradient."""
    graph, weights, log_prob, tokens, mask = toy
    estimator, count = Estimator(estimator="evidence"), len(tokens)

    def bound(weights):
        return (
            sum(log_prob(weights, column, seen) for column in (0, 1) for seen in (True, False)) / 2
        )

    # 0, 1 or 2 masks in the first copy are equally likely, and so are the two places of one.
    keys = sample_keys(0, 0, 1, jnp.arange(64))
    process = jax.jit(partial(forward_process, estimator=estimator), static_argnums=(2, 3))
    drawn = process(keys, jnp.repeat(tokens[:1], 64, axis=0), 2, mask)
    first = np.asarray(drawn.scored[:, 0])
    chances = {
        (False, False): 1 / 3,
        (True, False): 1 / 6,
        (False, True): 1 / 6,
        (True, True): 1 / 3,
    }
    found = {pattern: np.flatnonzero((first == pattern).all(axis=1))[0] for pattern in chances}

    def mean_score(weights):
        total, model = 0.0, graph.merge(weights)
        for pattern, chance in chances.items():
            copies = jax.tree.map(
                lambda leaf, row=found[pattern]: jnp.repeat(leaf[row][None], count, 0), drawn
            )
            copies = copies._replace(tokens=jnp.where(copies.tokens == mask, mask, tokens[:, None]))
            scores = completion_scores(model, tokens, jnp.ones(tokens.shape, bool), copies)
            total = total + chance * jnp.sum(scores, axis=1)
        return total

    # any weight of the completions will do
    values = jnp.asarray(np.random.default_rng(1).normal(size=count), jnp.float32)

    def weighted(scores, weights):
        found = scores(weights)
        return values @ found, found

    both = assert_same_gradient(partial(weighted, mean_score), partial(weighted, bound), weights)
    np.testing.assert_allclose(*both, rtol=1e-6, atol=1e-6)

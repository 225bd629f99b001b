"""Prompts in their order, completions cut at their end, rewards as numbers."""

import dataclasses
import logging
import math
import re
from collections import OrderedDict
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.rewards import WeightedSum
from jax_lm.training.prompt_set import PromptSet
from jax_lm.training.rollout_source import require_rewards
from jax_lm.training.rollouts import (
    Completions,
    Rollout,
    cut_at_stop,
    reward_completions,
    reward_metrics,
    sample_completions,
    sample_keys,
)

WIDTH, LENGTH = 32, 8


@pytest.fixture(scope="module")
def prompts(letters):
    return PromptSet.of(
        [{"prompt": text, "answer": text} for text in ("ab", "abcd", "c", "dd", "e")], letters, 10
    )


def completions_of(tokenizer, *texts):
    """Completions that spell these texts, padded or cut to 8 tokens."""
    rows = [
        (tokenizer.encode(text) + [tokenizer.encode("z")[0]] * LENGTH)[:LENGTH] for text in texts
    ]
    tokens = np.array([[tokenizer.pad_id] * WIDTH + row for row in rows], np.int32)
    zeros, present = np.zeros_like(tokens), np.ones(tokens.shape, bool)
    return cut_at_stop(tokens, present, zeros, zeros.astype(np.float32), WIDTH, tokenizer)


def test_completions_end_with_their_first_stop_token(letters):
    completions = completions_of(letters, "ab<|im_end|>c<|im_end|>", "abcdefgh", "<|im_end|>")
    assert completions.texts.tolist() == ["ab", "abcdefgh", ""]
    assert completions.lengths.tolist() == [3, 8, 1]
    assert completions.stopped.tolist() == [True, False, True]
    assert completions.ids(0) == letters.encode("ab<|im_end|>")
    # What was sampled after the end is seen by nothing.
    assert (completions.tokens[0, WIDTH + 3 :] == letters.pad_id).all()
    np.testing.assert_array_equal(completions.completion_mask[0], np.arange(LENGTH) < 3)


def test_text_is_cut_before_it_is_rewarded(letters, prompts):
    seen = {}

    def spy(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [float(len(text)) for text in completions]

    completions = completions_of(letters, "a<|im_end|>5555", "bb")
    scored = reward_completions(
        WeightedSum({"spy": spy}, {"spy": 2.0}), prompts.prompts[:2], completions
    )
    assert seen["completions"][0] == "a"
    assert scored.totals == [2.0, 16.0]
    assert seen["prompts"] == ["ab", "abcd"]
    assert seen["answer"] == ["ab", "abcd"]
    assert seen["completion_ids"] == [letters.encode("a<|im_end|>"), letters.encode("bbzzzzzz")]


def test_every_prompt_comes_once_per_epoch(prompts):
    drawn = [prompt.content for rollout in range(5) for prompt in prompts.select(3, 2 * rollout, 2)]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == ["ab", "abcd", "c", "dd", "e"]
    assert drawn[:5] != drawn[5:]
    again = [prompt.content for prompt in prompts.select(3, 4, 2)]
    assert again == drawn[4:6]
    assert [
        prompt.content for rollout in range(5) for prompt in prompts.select(4, 2 * rollout, 2)
    ] != drawn


def test_long_prompts_are_dropped_and_counted(letters, caplog):
    rows = [{"prompt": "abc"}, {"prompt": "abcdef"}, {"prompt": "abcd"}]
    with caplog.at_level(logging.WARNING):
        prompts = PromptSet.of(rows, letters, 4)
    assert [prompt.content for prompt in prompts.prompts] == ["abc", "abcd"]
    assert "prompts dropped: 1, longer than max_prompt_length=4 tokens" in caplog.text
    with pytest.raises(
        ValueError, match=r"no prompt has at most max_prompt_length=2 tokens \(3 are longer\)"
    ):
        PromptSet.of(rows, letters, 2)
    with pytest.raises(ValueError, match="row 1 has no 'prompt'"):
        PromptSet.of([{"prompt": "a"}, {"question": "b"}], letters, 4)


def test_a_rollout_may_lack_all_prompts_that_a_reward_applies_to(letters):
    rows = [{"prompt": "a", "solution": "1"}, {"prompt": "b"}, {"prompt": "cdefgh", "other": 1}]
    prompts = PromptSet.of(rows, letters, 4).prompts
    assert [prompt.columns for prompt in prompts] == [{"solution": "1"}, {"solution": None}]

    def known(prompts, completions, solution, **columns):
        return [None if each is None else 1.0 for each in solution]

    rewards = WeightedSum({"known": known}, {"known": 1.0})
    assert reward_completions(rewards, prompts[1:], completions_of(letters, "x")).totals == [None]


def test_chat_messages_go_through_the_template(letters):
    messages = [{"role": "user", "content": "ab"}]
    (prompt,) = PromptSet.of([{"prompt": messages}], letters, 50).prompts
    assert letters.decode(prompt.ids) == letters.apply_chat_template(messages)
    assert prompt.content == messages


def test_a_completion_depends_on_its_key_alone(letters, policy, prompts):
    """Not on what else is sampled with it, nor on how much padding it has."""
    # Weights of this size make positions differ in confidence by more than rounding.
    config = dataclasses.replace(policy.config, initializer_range=0.3)
    sampler = Sampler(DreamForCausalLM(config, rngs=nnx.Rngs(0)))
    options = GenerationOptions(max_new_tokens=LENGTH, temperature=1.0)
    rows = [*prompts.prompts[:2], *prompts.prompts[:2]]
    keys = sample_keys(0, 0, 0, jax.numpy.arange(4))
    whole = sample_completions(sampler, letters, rows, options, keys=keys, width=32)
    parts = sample_completions(sampler, letters, rows, options, keys=keys, width=32, batch_size=2)
    wider = sample_completions(sampler, letters, rows, options, keys=keys, width=64)
    np.testing.assert_array_equal(whole.tokens, parts.tokens)
    # the last of two batches is filled up
    uneven = sample_completions(sampler, letters, rows, options, keys=keys, width=32, batch_size=3)
    np.testing.assert_array_equal(whole.tokens, uneven.tokens)
    assert whole.texts.tolist() == parts.texts.tolist() == wider.texts.tolist()
    # Each row has noise of its own.
    assert len(set(whole.texts)) == 4


def rollout_of(completions, totals, **parts):
    """A rollout with these rewards, None where a completion was not judged."""
    prompts = np.array([None] * len(totals))
    scores = {name: np.array(column, float) for name, column in parts.items()}
    return Rollout(prompts, completions, np.array(totals, float), scores)


def test_metrics_count_what_was_judged(letters):
    completions = completions_of(letters, "a<|im_end|>", "b", "c", "d", "e", "f")
    totals = [1.0, 3.0, None, 2.0, 2.0, 2.0]
    rollout = rollout_of(completions, totals, code=[0.5, 1.5, None, 1.0, 1.0, 1.0])
    assert math.isnan(rollout.rewards[2])
    metrics = reward_metrics(rollout, 3)
    assert metrics["reward"] == 2.0
    assert metrics["reward_code"] == 1.0
    assert metrics["reward_std"] == pytest.approx(np.sqrt(2) / 2)
    assert metrics["zero_variance_groups"] == 0.5
    assert metrics["excluded_completions"] == 1
    assert metrics["completion_tokens"] == pytest.approx((2 + 5 * 8) / 6)
    assert metrics["unfinished_completions"] == pytest.approx(5 / 6)
    assert isinstance(completions, Completions)


@pytest.mark.parametrize("value", [0.7, 1 / 3, 2 / 3, 2 / 3 + 0.5])
def test_equal_rewards_have_no_variance(letters, value):
    """The standard deviation of ten equal numbers in float32 is not 0."""
    rollout = rollout_of(completions_of(letters, *"abcdefghij"), [value] * 10, code=[value] * 10)
    metrics = reward_metrics(rollout, 10)
    assert metrics["zero_variance_groups"] == 1
    assert metrics["reward_std"] == pytest.approx(0, abs=1e-12)


def test_nothing_judged_is_no_reward_of_zero(letters):
    metrics = reward_metrics(
        rollout_of(completions_of(letters, "a", "b"), [None] * 2, code=[None] * 2), 2
    )
    assert math.isnan(metrics["reward"])
    assert metrics["excluded_completions"] == 2


def test_a_reward_that_scores_nothing_ends_the_run_at_once(caplog):
    """It would otherwise train to its last step on nothing."""
    nothing = np.full(4, np.nan)

    def judged(totals, **parts):
        nobody: Any = None
        return Rollout(np.array(["p"] * 4), nobody, totals, OrderedDict(parts))

    silent = judged(nothing, mine=nothing, other=nothing)
    message = "no reward scored any of the 4 completions (mine, other returned None for each)"
    with pytest.raises(ValueError, match=f"rollout 0: {re.escape(message)}"):
        require_rewards(silent, 0)
    # A later rollout, or one of several rewards, is worth a warning.
    require_rewards(silent, 7)
    some = judged(np.ones(4), mine=nothing, other=np.ones(4))
    require_rewards(some, 0)
    require_rewards(some, 1)
    assert caplog.messages == [
        f"rollout 7: {message}: there is nothing to learn from",
        "rollout 0: mine returned None for every completion",
    ]


def test_a_policy_that_is_not_finite_samples_nothing(letters, policy, prompts, broken_sampler):
    sampler = broken_sampler(Sampler(policy), "'norm'")
    options = GenerationOptions(max_new_tokens=8, top_p=None, top_k=None)
    keys = sample_keys(0, 0, 0, jax.numpy.arange(2))
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        sample_completions(sampler, letters, prompts.prompts[:2], options, keys=keys, width=32)

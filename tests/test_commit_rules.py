"""Commit rules and the schedule of the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion.commit_rules import (
    above_threshold,
    budget,
    commit_counts,
    longest_run,
    ranks,
    transfer_ratios,
    within_entropy,
)
from jax_lm.options import Decoding

# Compiled: called plainly, every small operation is a program of its own.
RANKS, RUN, ABOVE = map(jax.jit, (ranks, longest_run, above_threshold))
WITHIN, BUDGET = map(jax.jit, (within_entropy, budget))


def counts(masks, steps):
    """What a row of `masks` masks commits at each step."""
    committed, masked, count_of = [], np.ones((1, masks), bool), jax.jit(commit_counts)
    for ratio in transfer_ratios(steps):
        count = int(count_of(masked, ratio)[0])
        committed.append(count)
        masked = np.arange(masks)[None] >= sum(committed)
    return committed


@pytest.mark.parametrize(
    ("masks", "steps", "expected"),
    [
        (256, 256, [0] + [1] * 254 + [2]),
        (256, 128, [1] + [2] * 126 + [3]),
        (256, 64, [3] + [4] * 62 + [5]),
        (32, 32, [0] + [1] * 30 + [2]),
        (24, 1, [24]),
    ],
)
def test_schedule_of_the_reference(masks, steps, expected):
    assert counts(masks, steps) == expected


@pytest.mark.parametrize(("masks", "steps"), [(24, 48), (7, 3), (1, 5), (100, 33)])
def test_schedule_leaves_no_mask(masks, steps):
    assert sum(counts(masks, steps)) == masks


def test_ratios_equal_torch_to_the_bit():
    torch = pytest.importorskip("torch")
    for steps in range(2, 600):
        times = torch.linspace(1, 1e-3, steps + 1)
        expected = (1 - times[1:] / times[:-1]).numpy()
        np.testing.assert_array_equal(transfer_ratios(steps)[:-1], expected[:-1])


def test_ranks_order_masked_positions_and_ties_go_left_to_right():
    scores = jnp.array([[0.9, 0.8, 0.1, 0.8]])
    masked = jnp.array([[False, True, True, True]])
    np.testing.assert_array_equal(np.asarray(ranks(scores, masked))[0, 1:], [0, 2, 1])


def committed(decoding, probability, holes=None):
    """Which of a row of masks are committed, in the order of their probability."""
    probability = np.float32([probability])
    masked = np.ones(probability.shape, bool)
    holes = np.array([holes or probability.shape[1]])
    rank, rule = RANKS(probability, masked), decoding.settings
    if rule.commit == "factor":
        chosen = RUN(np.float32(rule.factor), rank, probability, masked)
    else:
        decay = np.float32(rule.decay if rule.commit == "dynamic" else 0)
        chosen = ABOVE(np.float32(rule.threshold), decay, rank, probability, masked, holes)
    return np.flatnonzero(np.asarray(chosen)[0]).tolist()


def test_threshold_commits_what_reaches_it_and_at_least_the_best():
    decoding = Decoding(commit="threshold", threshold=0.9)
    assert committed(decoding, [0.95, 0.5, 0.9, 0.899]) == [0, 2]
    assert committed(decoding, [0.1, 0.3, 0.2]) == [1]


def test_dynamic_threshold_falls_as_the_block_fills():
    decoding = Decoding(commit="dynamic", threshold=0.8, decay=0.5)
    # All masks left: 0.8. One of four left: 0.8 * (1 - 0.5 * 0.5) = 0.6 with two of four.
    assert committed(decoding, [0.9, 0.7, 0.65, 0.5]) == [0]
    assert committed(decoding, [0.9, 0.61, 0.59][:2], holes=4) == [0, 1]
    assert committed(decoding, [0.9, 0.59], holes=4) == [0]


def by_definition(probability, factor):
    """Largest n with p_i >= 1 - f / (i + 1) for all 2 <= i <= n, over the sorted probabilities; at
    least 1.
    """
    ordered = np.sort(np.asarray(probability, np.float32))[::-1]
    n = 1
    while n < len(ordered) and ordered[n] >= np.float32(1) - np.float32(factor) / np.float32(n + 2):
        n += 1
    return n


@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7])
def test_factor_rule_against_its_definition(factor):
    rng = np.random.default_rng(0)
    for _ in range(200):
        probability = (1 - rng.random(9) ** 2 * rng.random()).tolist()
        chosen = committed(Decoding(commit="factor", factor=factor), probability)
        n = by_definition(probability, factor)
        assert set(chosen) == set(
            np.argsort(-np.asarray(probability, np.float32), kind="stable")[:n].tolist()
        )


def test_factor_never_commits_a_token_that_fails():
    # The second fails, so that the third, which would pass its own weaker bound, stays.
    assert committed(Decoding(commit="factor", factor=1.0), [0.99, 0.6, 0.76]) == [0, 2]
    assert committed(Decoding(commit="factor", factor=1.0), [0.99, 0.6, 0.6]) == [0]


def test_budget_carries_over_what_was_not_used():
    holes = jnp.array([24])

    def allowed(left, step):
        return int(BUDGET(np.arange(24)[None] < left, holes, np.int32(step), np.int32(8))[0])

    assert allowed(24, 0) == 3
    assert allowed(23, 1) == 5
    assert allowed(10, 7) == 10


def longest_prefix(entropy, bound):
    """By brute force: how many come together, of entropies in the order of commitment."""
    sums = [sum(entropy[:count]) - max(entropy[:count]) for count in range(1, len(entropy) + 1)]
    return max([count for count, value in enumerate(sums, 1) if value <= bound], default=1)


def test_entropies_are_bounded_as_by_brute_force():
    rng = np.random.default_rng(0)
    entropy = rng.exponential(size=(1000, 9)).astype(np.float32) * rng.choice(
        [0, 0.01, 1], (1000, 9)
    )
    masked, scores = rng.random((1000, 9)) < 0.7, rng.random((1000, 9))
    rank = np.asarray(RANKS(scores, masked))
    for bound in (0.0, 0.05, 1.0, np.inf):
        chosen = np.asarray(WITHIN(np.float32(bound), rank, entropy, masked))
        for row in range(1000):
            order = sorted(np.flatnonzero(masked[row]), key=lambda column: rank[row, column])
            count = (
                longest_prefix(entropy[row, order].astype(np.float64), bound + 1e-6) if order else 0
            )
            assert sorted(order[:count]) == np.flatnonzero(chosen[row]).tolist()


def test_a_bound_of_0_commits_one_and_what_is_certain():
    rank, masked = jnp.arange(4)[None], np.ones((1, 4), bool)

    def chosen(*entropy):
        return np.flatnonzero(
            WITHIN(np.float32(0), rank, np.float32([entropy]), masked)[0]
        ).tolist()

    assert chosen(0.5, 0.5, 0.1, 0.0) == [0]
    assert chosen(0.0, 0.0, 0.3, 0.3) == [0, 1, 2]

"""pass@k against counting all choices, Wilson's interval, rates per group."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_lm.evaluation.pass_at_k import ALL, pass_at_k, rates, wilson


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_passing_sample(samples, data):
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    choices = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(statistics.mean(map(any, choices)))


def test_pass_at_1_is_the_pass_rate_and_many_samples_do_not_overflow():
    assert pass_at_k(7, 3, 1) == pytest.approx(3 / 7)
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 5])
def test_an_impossible_k_is_named(k):
    with pytest.raises(ValueError, match=f"k={k}: must be between 1 and the number of samples, 4"):
        pass_at_k(4, 2, k)


def test_wilson_known_values():
    # Newcombe 1998, table I: 81 of 263 and 0 of 20.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1.0, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)


def test_wilson_covers_a_coin_and_the_mean_of_several_throws():
    rng = random.Random(0)
    for throws in (1, 5):
        covered = 0
        for _ in range(2000):
            scores = [sum(rng.random() < 0.7 for _ in range(throws)) / throws for _ in range(60)]
            low, high = wilson(statistics.mean(scores), 60)
            covered += low <= 0.7 <= high
        assert covered / 2000 >= 0.93
    assert math.isclose(sum(wilson(0.5, 100)), 1.0)


def test_rates_per_group_and_k():
    outcomes = [
        ("a", "families", "passed"),
        ("a", "families", "failed"),
        ("b", "families", "failed"),
        ("b", "families", "timeout"),
        ("c", "compositions", "passed"),
        ("c", "compositions", "sandbox_error"),
    ]
    records = [
        {"name": name, "group": group, "outcome": outcome} for name, group, outcome in outcomes
    ]
    found = {(rate.group, rate.k): rate for rate in rates(records, (1, 2))}
    assert found["families", 1].value == pytest.approx(0.25)
    assert found["families", 2].value == pytest.approx(0.5)
    assert found["compositions", 1].value == 1.0
    assert found["compositions", 1].samples == 1
    assert ("compositions", 2) not in found
    assert found[ALL, 1].value == pytest.approx((0.5 + 0 + 1) / 3)
    assert found[ALL, 1].problems == 3
    assert found[ALL, 1].low < 0.5 < found[ALL, 1].high

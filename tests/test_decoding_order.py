"""AR-ness of orders whose values are known, and against the definitions written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_lm.evaluation.decoding_order import decoding_order, global_ar_ness, heat_map, local_ar_ness, within

LENGTHS = st.integers(1, 24)


def local_by_definition(order, k):
    """The paper's formula, position by position."""
    steps = [t for t in range(len(order)) if t >= k]
    hits = [{*order[t - k : t]} == {order[t] - i for i in range(1, k + 1)} for t in steps]
    return sum(hits) / len(hits) if hits else math.nan


def global_by_definition(order, k):
    masked, hits = sorted(order), []
    for position in order:
        hits.append(position in masked[:k])
        masked.remove(position)
    return sum(hits) / len(hits)


@pytest.mark.parametrize("k", range(1, 10))
def test_left_to_right_is_one_everywhere(k):
    assert local_ar_ness(np.arange(32), k) == 1.0
    assert global_ar_ness(np.arange(32), k) == 1.0


@pytest.mark.parametrize("k", range(1, 10))
def test_right_to_left(k):
    order = np.arange(32)[::-1]
    assert local_ar_ness(order, k) == 0.0
    # The rightmost of m masked positions is among the first k only while m <= k.
    assert global_ar_ness(order, k) == k / 32


def test_known_orders_in_between():
    # Two from the left, then two from the right.
    order = np.array([0, 1, 3, 2])
    assert local_ar_ness(order, 1) == pytest.approx(1 / 3)
    assert local_ar_ness(order, 2) == 0.0
    assert global_ar_ness(order, 1) == pytest.approx(3 / 4)
    assert global_ar_ness(order, 2) == 1.0
    # The k positions to the left may have come in any order, so that local AR-ness can rise with k.
    assert local_ar_ness(np.array([1, 0, 2]), 1) == 0.0
    assert local_ar_ness(np.array([1, 0, 2]), 2) == 1.0


@given(LENGTHS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_order_is_as_defined(length, k, rng):
    order = list(range(length))
    rng.shuffle(order)
    assert local_ar_ness(np.array(order), k) == pytest.approx(local_by_definition(order, k), nan_ok=True)
    assert global_ar_ness(np.array(order), k) == pytest.approx(global_by_definition(order, k))


@given(st.permutations(range(16)))
def test_global_rises_with_k_to_one(order):
    globally = [global_ar_ness(np.array(order), k) for k in range(1, 17)]
    assert globally == sorted(globally)
    assert globally[-1] == 1.0


def test_random_orders_are_within_their_expectation():
    rng, length, count = np.random.default_rng(0), 20, 4000
    orders = [rng.permutation(length) for _ in range(count)]
    for k in (1, 2):
        # Of all ordered (k + 1)-tuples, those that end a run of neighbours: (T - k) runs, k! orders before the end.
        expected = (length - k) * math.factorial(k) / math.perm(length, k + 1)
        found = np.mean([local_ar_ness(order, k) for order in orders])
        assert found == pytest.approx(expected, abs=4 * math.sqrt(expected / (count * (length - k))))
    for k in (1, 4):
        expected = np.mean([min(k, masked) / masked for masked in range(1, length + 1)])
        found = np.mean([global_ar_ness(order, k) for order in orders])
        assert found == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(count * length))


def test_order_of_commit_steps():
    assert decoding_order(np.array([2, 0, 1])).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="several positions at one step"):
        decoding_order(np.array([0, 0, 1]))
    together = np.array([1, 0, 0, 0])
    assert decoding_order(together, np.array([0.9, 0.5, 0.8, 0.5])).tolist() == [2, 1, 3, 0]


def test_the_order_of_the_text_alone():
    assert within(np.array([3, 0, 2, 1]), 2).tolist() == [0, 1]
    assert local_ar_ness(within(np.array([3, 0, 2, 1]), 2), 1) == 1.0


def test_short_orders_and_wrong_arguments():
    assert math.isnan(local_ar_ness(np.arange(2), 2))
    assert global_ar_ness(np.arange(1), 1) == 1.0
    for measure in (local_ar_ness, global_ar_ness):
        with pytest.raises(ValueError, match="k=0"):
            measure(np.arange(3), 0)
        with pytest.raises(ValueError, match="each of the positions"):
            measure(np.array([0, 0, 1]), 1)


def test_heat_map_of_left_to_right_is_a_diagonal():
    assert np.array_equal(heat_map([np.arange(8)] * 3), np.eye(8))
    assert np.allclose(heat_map([np.arange(256)], cells=16), np.eye(16))
    flipped = heat_map([np.arange(8), np.arange(8)[::-1]])
    assert np.array_equal(flipped, (np.eye(8) + np.eye(8)[::-1]) / 2)
    with pytest.raises(ValueError, match=r"there are \[2, 3\]"):
        heat_map([np.arange(2), np.arange(3)])

"""The order of samples: seeded, stateless, packed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_lm.data.order import Order


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=300),
    seed=st.integers(0, 3),
    capacity=st.sampled_from([None, 20, 33]),
)
@settings(max_examples=60, deadline=None)
def test_every_epoch_holds_every_sample_once_and_no_row_is_too_long(lengths, seed, capacity):
    order = Order(lengths, seed, capacity)
    for epoch in range(3):
        rows = order.epoch(epoch)
        assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
        if capacity is None:
            assert all(len(row) == 1 for row in rows)
        else:
            assert max(sum(lengths[sample] for sample in row) for row in rows) <= capacity


def test_order_depends_on_seed_and_epoch_alone():
    lengths = [3] * 50
    first, again, other = Order(lengths, 1), Order(lengths, 1), Order(lengths, 2)
    assert first.epoch(0) != first.epoch(1) != first.epoch(2)
    # Asked in another order, the same comes out.
    assert again.epoch(2) == first.epoch(2)
    assert again.epoch(0) == first.epoch(0) != other.epoch(0)


@pytest.mark.parametrize("capacity", [None, 10])
def test_rows_go_on_over_the_ends_of_epochs(capacity):
    order = Order([3, 4, 5, 6, 7], 0, capacity)
    stream = [row for epoch in range(4) for row in order.epoch(epoch)]
    for first in range(len(stream) - 6):
        assert Order([3, 4, 5, 6, 7], 0, capacity).rows(first, 6) == stream[first : first + 6]


def test_packing_wastes_little():
    lengths = np.random.default_rng(0).integers(10, 200, 5000)
    rows = len(Order(lengths.tolist(), 0, 512).epoch(0))
    assert rows * 512 < 1.03 * lengths.sum()


def test_samples_that_fit_no_row_are_named():
    with pytest.raises(ValueError, match="sample of 12 tokens: longer than a row of 10"):
        Order([3, 12], 0, 10)
    with pytest.raises(ValueError, match="at least one sample"):
        Order([], 0)

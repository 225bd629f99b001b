"""Samples in rows, rows in batches; their order: seeded, stateless, packed, for any number of
processes.
"""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_lm.data.batches import Order, Row, SampleStream, collate, fill_rows

PAD, STREAM_PAD = 9, 99
OPEN, CLOSED = Row((1, 2, 3), (False, True, True)), Row((4, 5), (True, False), open=False)


def test_open_samples_go_on_to_the_end_of_their_row():
    batch = collate([[OPEN], [CLOSED]], 5, PAD)
    np.testing.assert_array_equal(batch.tokens, [[1, 2, 3, PAD, PAD], [4, 5, PAD, PAD, PAD]])
    np.testing.assert_array_equal(batch.canvas, [[0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.samples, [[0, 0, 0, 0, 0], [1, 1, -1, -1, -1]])
    assert batch.openness is None


def test_rows_that_fill_up_belong_to_no_sample():
    batch = collate([[OPEN], [CLOSED], [CLOSED]], 5, PAD, openness=0.5)
    full = fill_rows(batch, 4)
    for part, filled in zip(jax.tree.leaves(batch), jax.tree.leaves(full), strict=True):
        assert len(filled) == 4
        assert filled.dtype == part.dtype
        np.testing.assert_array_equal(filled[:3], part)
    assert not full.canvas[3].any()
    assert (full.samples[3] == -1).all()
    assert fill_rows(batch, 3) is batch


def test_samples_side_by_side_are_numbered_on():
    batch = collate([[CLOSED, OPEN], [CLOSED]], 6, PAD, first_sample=4, openness=0.25)
    np.testing.assert_array_equal(batch.tokens, [[4, 5, 1, 2, 3, PAD], [4, 5, *[PAD] * 4]])
    np.testing.assert_array_equal(batch.samples, [[4, 4, 5, 5, 5, 5], [6, 6, -1, -1, -1, -1]])
    np.testing.assert_array_equal(batch.canvas, [[1, 0, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.openness, np.float32([0.25, 0.25]))


def test_only_the_last_sample_of_a_row_goes_on():
    batch = collate([[OPEN, CLOSED]], 6, PAD)
    np.testing.assert_array_equal(batch.canvas, [[0, 1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(batch.samples, [[0, 0, 0, 1, 1, -1]])


def test_row_of_exactly_the_length():
    batch = collate([[CLOSED]], 2, PAD)
    np.testing.assert_array_equal(batch.tokens, [[4, 5]])
    np.testing.assert_array_equal(batch.canvas, [[True, False]])


def samples(count=11):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, count)
    return [
        Row(tuple(map(int, rng.integers(0, 90, n))), (False,) + (True,) * (n - 1), open=False)
        for n in sizes
    ]


def stream(*, packed=False, **options):
    rows = samples()
    order = Order([len(row.ids) for row in rows], 3, 16 if packed else None)
    fields = {"max_length": 16, "batch_size": 4, "pad_id": STREAM_PAD, "seed": 3}
    return SampleStream(rows, order, **(fields | options))


def epoch(order, number):
    """All rows of an epoch."""
    return order.rows(order.start(number), order.start(number + 1) - order.start(number))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("packed", [False, True])
def test_processes_hold_parts_of_the_batch_of_one(packed):
    def changed(sample, step, rng):
        return dataclasses.replace(sample, ids=(int(rng.integers(0, 90)), *sample.ids[1:]))

    batches = stream(packed=packed, vary=changed)
    for step in (0, 1, 7):
        parts = [batches.batch(step, openness=0.5, process=i, processes=2) for i in range(2)]
        joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
        assert same(joined, batches.batch(step, openness=0.5))
        numbers = joined.samples[joined.samples >= 0]
        assert sorted(set(numbers.tolist())) == list(range(numbers.max() + 1))


def test_batch_of_a_step_does_not_depend_on_the_ones_before():
    whole = stream(packed=True)
    before = [whole.batch(step) for step in range(6)]
    assert same(stream(packed=True).batch(5), before[5])
    assert not same(before[4], before[5])


def test_an_epoch_shows_every_sample_once():
    batches = stream(batch_size=1)
    assert batches.steps(1.0) == 11
    assert batches.steps(2.5) == 28
    shown = [
        tuple(row[row != STREAM_PAD]) for step in range(11) for row in batches.batch(step).tokens
    ]
    assert sorted(shown) == sorted(sample.ids for sample in samples())


def test_variation_depends_on_the_step():
    batches = stream(
        vary=lambda sample, step, rng: dataclasses.replace(
            sample, ids=(int(rng.integers(90)),) * len(sample.ids)
        )
    )
    first, again, other = (batches.batch(step).tokens[:, 0] for step in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_batch_must_divide_by_processes():
    with pytest.raises(ValueError, match="batch_size=4: must be a multiple of the 3 processes"):
        stream().batch(0, processes=3)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=300),
    seed=st.integers(0, 3),
    capacity=st.sampled_from([None, 20, 33]),
)
@settings(max_examples=60, deadline=None)
def test_every_epoch_holds_every_sample_once_and_no_row_is_too_long(lengths, seed, capacity):
    order = Order(lengths, seed, capacity)
    for number in range(3):
        rows = epoch(order, number)
        assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
        if capacity is None:
            assert all(len(row) == 1 for row in rows)
        else:
            assert max(sum(lengths[sample] for sample in row) for row in rows) <= capacity


def test_order_depends_on_seed_and_epoch_alone():
    lengths = [3] * 50
    first, again, other = Order(lengths, 1), Order(lengths, 1), Order(lengths, 2)
    assert epoch(first, 0) != epoch(first, 1) != epoch(first, 2)
    # Asked in another order, the same comes out.
    assert epoch(again, 2) == epoch(first, 2)
    assert epoch(again, 0) == epoch(first, 0) != epoch(other, 0)


@pytest.mark.parametrize("capacity", [None, 10])
def test_rows_go_on_over_the_ends_of_epochs(capacity):
    order = Order([3, 4, 5, 6, 7], 0, capacity)
    stream = [row for number in range(4) for row in epoch(order, number)]
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

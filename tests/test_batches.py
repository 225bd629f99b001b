"""Samples in rows, rows in batches."""

import numpy as np
import pytest

from jax_lm.data.batches import Row, collate

PAD = 9
OPEN, CLOSED = Row((1, 2, 3), (False, True, True)), Row((4, 5), (True, False), open=False)


def test_open_samples_go_on_to_the_end_of_their_row():
    batch = collate([[OPEN], [CLOSED]], 5, PAD)
    np.testing.assert_array_equal(batch.tokens, [[1, 2, 3, PAD, PAD], [4, 5, PAD, PAD, PAD]])
    np.testing.assert_array_equal(batch.canvas, [[0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.samples, [[0, 0, 0, 0, 0], [1, 1, -1, -1, -1]])
    np.testing.assert_array_equal(batch.openness, [1, 1])


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


def test_both_lengths_of_a_row_too_long_are_named():
    with pytest.raises(ValueError, match=r"row of 5 tokens: longer than length=4"):
        collate([[OPEN, CLOSED]], 4, PAD)

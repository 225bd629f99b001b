"""Canvases: holes, blocks, positions."""

import numpy as np
import pytest

from jax_lm.diffusion.canvas import Block, Canvas


def canvas_of(pattern):
    """A canvas from rows of characters: "." padding, "x" given, "_" a hole."""
    cells = np.array([list(row) for row in pattern])
    return Canvas(np.zeros(cells.shape, np.int32), cells == "_", cells != ".")


def test_a_prompt_and_its_holes():
    canvas = Canvas.after(np.array([[500, 3, 5], [1, 2, 3]]), np.array([[0, 1, 1], [1, 1, 1]]), 2)
    np.testing.assert_array_equal(canvas.holes, [[False, False, False, True, True]] * 2)
    np.testing.assert_array_equal(canvas.attention_mask[0], [False, True, True, True, True])
    np.testing.assert_array_equal(canvas.position_ids, [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]])
    assert canvas.region == Block(3, 5)


def test_blocks_cover_the_region_and_leave_out_what_is_full():
    canvas = canvas_of(["xx___xxxxx__x", "xx__xxxxxxx_x"])
    assert canvas.region == Block(2, 12)
    assert list(canvas.blocks(4)) == [Block(2, 6), Block(10, 12)]
    assert list(canvas.blocks(10)) == [Block(2, 12)]


def test_hole_starts():
    canvas = canvas_of(["x__x_", "_x___"])
    np.testing.assert_array_equal(canvas.hole_starts, [[0, 1, 1, 1, 4], [0, 0, 2, 2, 2]])


def test_region_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no hole"):
        _ = canvas_of(["xxx"]).region

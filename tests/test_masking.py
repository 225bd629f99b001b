"""The logit shift, noise levels and the forward process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion.masking import forward_process, noise_levels, shift_right

MASK_ID = 99


@pytest.fixture
def rows():
    """Tokens without a mask among them, and a canvas that starts a little later in each row."""
    tokens = np.random.default_rng(0).integers(0, MASK_ID, (400, 128)).astype(np.int32)
    canvas = np.arange(128)[None] >= (np.arange(400) % 64)[:, None]
    return tokens, canvas


def forward(key, tokens, canvas, levels):
    levels = jnp.asarray(np.broadcast_to(np.float32(levels), len(tokens)))
    noisy, masked = forward_process(key, jnp.asarray(tokens), jnp.asarray(canvas), levels, MASK_ID)
    return np.asarray(noisy), np.asarray(masked)


def test_shift_moves_rows_one_to_the_right_and_keeps_the_first():
    rows = jnp.arange(24.0).reshape(2, 4, 3)
    np.testing.assert_array_equal(shift_right(rows), np.asarray(rows)[:, [0, 0, 1, 2]])


@pytest.mark.parametrize("minimum", [1e-3, 0.0, 0.5])
@pytest.mark.parametrize("rows", [1, 64])
def test_one_noise_level_in_each_stratum(rows, minimum):
    for seed in range(5):
        levels = np.asarray(noise_levels(jax.random.key(seed), rows, minimum), np.float64)
        assert levels.shape == (rows,)
        assert levels.min() >= minimum
        assert levels.max() <= 1
        strata = np.floor((np.sort(levels) - minimum) / (1 - minimum) * rows)
        np.testing.assert_array_equal(strata, np.arange(rows))


def test_noise_levels_come_in_random_order():
    levels = np.stack([noise_levels(jax.random.key(seed), 64) for seed in range(20)])
    assert len({tuple(row) for row in np.argsort(levels).tolist()}) == 20
    # A fixed order would keep the level of the first row; U(0, 1) has a deviation of 0.29.
    assert levels[:, 0].std() > 0.15


def test_noise_levels_vary_within_their_stratum():
    offsets = np.stack([np.sort(noise_levels(jax.random.key(seed), 64, 0.0)) * 64 % 1 for seed in range(50)])
    # Four standard errors of the mean of 3200 uniform draws.
    assert offsets.mean() == pytest.approx(0.5, abs=4 * 0.0051)
    assert offsets.std(axis=0).min() > 0.2


@pytest.mark.parametrize("level", [1e-3, 0.3, 1.0])
def test_only_the_canvas_is_masked_and_the_rest_is_untouched(rows, level):
    tokens, canvas = rows
    noisy, masked = forward(jax.random.key(0), tokens, canvas, level)
    assert not (masked & ~canvas).any()
    np.testing.assert_array_equal(noisy == MASK_ID, masked)
    np.testing.assert_array_equal(noisy[~masked], tokens[~masked])
    assert noisy.dtype == tokens.dtype


@pytest.mark.parametrize("level", [0.0, 1e-6])
def test_every_row_has_a_mask_however_low_the_level(rows, level):
    tokens, canvas = rows
    _, masked = forward(jax.random.key(1), tokens, canvas, level)
    np.testing.assert_array_equal(masked.sum(axis=1), 1)
    # It may be any position: a fixed one would occur 400 times, the likeliest of these about 6 times.
    assert masked.sum(axis=0).max() < 20


def test_full_level_masks_the_whole_canvas(rows):
    tokens, canvas = rows
    np.testing.assert_array_equal(forward(jax.random.key(2), tokens, canvas, 1.0)[1], canvas)


def test_row_without_canvas_stays_as_it_is(rows):
    tokens, canvas = rows
    canvas[1] = False
    noisy, masked = forward(jax.random.key(3), tokens, canvas, 0.9)
    np.testing.assert_array_equal(masked.any(axis=1), np.arange(400) != 1)
    np.testing.assert_array_equal(noisy[1], tokens[1])


def test_masked_share_is_the_level_of_the_row(rows):
    tokens, canvas = rows
    levels = np.tile(np.array([0.1, 0.3, 0.5, 0.9], np.float32), 100)
    _, masked = forward(jax.random.key(4), tokens, canvas, levels)
    for level in np.unique(levels):
        mine = levels == level
        # Four standard errors of a share over the canvas positions of these rows.
        tolerance = 4 * np.sqrt(level * (1 - level) / canvas[mine].sum())
        assert masked[mine].sum() / canvas[mine].sum() == pytest.approx(level, abs=tolerance)


def test_masks_depend_on_the_key_alone(rows):
    first, again, other = (forward(jax.random.key(seed), *rows, 0.5)[1] for seed in (6, 6, 7))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()

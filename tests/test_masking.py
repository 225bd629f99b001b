"""The logit shift, samples side by side, noise levels and masks."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion import masking
from jax_lm.diffusion.masking import attention_mask

# Compiled: called plainly, every small operation is a program of its own.
visible_prefix, shift_right, sample_positions, sample_starts, unforced_ratio = map(
    jax.jit,
    (
        masking.visible_prefix,
        masking.shift_right,
        masking.sample_positions,
        masking.sample_starts,
        masking.unforced_ratio,
    ),
)
mask_tokens = jax.jit(masking.mask_tokens, static_argnames="mask_id")
confident_ranks = jax.jit(masking.confident_ranks, static_argnames="share")
noise_levels = jax.jit(masking.noise_levels, static_argnames=("draws", "minimum"))
over_samples = jax.jit(masking.over_samples, static_argnames="reduce")

LEVEL_DRAWS = ("even", "antithetic", "independent")
MASK_ID = 99
PACKED = np.array([[4, 4, 4, 7, 7, -1], [2, 2, 2, 2, 2, 2]])


@pytest.fixture
def rows():
    """Tokens without a mask among them, and a canvas that starts a little later in each row."""
    tokens = np.random.default_rng(0).integers(0, MASK_ID, (400, 128)).astype(np.int32)
    canvas = np.arange(128)[None] >= (np.arange(400) % 64)[:, None]
    return tokens, canvas


def forward(key, tokens, canvas, levels, samples=None):
    samples = (
        np.broadcast_to(np.arange(len(tokens))[:, None], tokens.shape)
        if samples is None
        else samples
    )
    levels = np.broadcast_to(np.float32(levels).reshape(-1, 1), tokens.shape)
    noisy, masked = mask_tokens(key, tokens, canvas, samples, levels, MASK_ID)
    return np.asarray(noisy), np.asarray(masked)


def test_shift_moves_rows_one_to_the_right_and_keeps_the_first():
    rows = np.arange(24.0, dtype=np.float32).reshape(2, 4, 3)
    np.testing.assert_array_equal(shift_right(rows), rows[:, [0, 0, 1, 2]])


def test_shift_does_not_cross_samples():
    rows = np.arange(12.0, dtype=np.float32).reshape(2, 6, 1)
    shifted = shift_right(rows, sample_starts(PACKED))
    np.testing.assert_array_equal(shifted[..., 0], [[0, 0, 1, 3, 3, 5], [6, 6, 7, 8, 9, 10]])


def test_positions_and_sums_of_samples():
    np.testing.assert_array_equal(
        sample_positions(PACKED), [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]
    )
    values = np.arange(12.0, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(
        over_samples("sum", values, PACKED), [[3, 3, 3, 7, 7, 5], [51] * 6]
    )
    np.testing.assert_array_equal(
        over_samples("min", values, PACKED), [[0, 0, 0, 3, 3, 5], [6] * 6]
    )


@pytest.mark.parametrize("draws", LEVEL_DRAWS)
def test_levels_of_a_sample_are_uniform_whatever_the_draws(draws):
    samples = jnp.arange(8)[:, None]
    levels = jax.jit(jax.vmap(lambda key: noise_levels(key, samples, draws)[:, 0]))
    drawn = np.asarray(levels(jax.random.split(jax.random.key(0), 4000)))
    assert drawn.min() >= 1e-3
    assert drawn.max() <= 1
    for moment in (1, 2, 3):
        exact = (1 - 1e-3 ** (moment + 1)) / ((moment + 1) * (1 - 1e-3))
        deviation = (1 / (2 * moment + 1) - 1 / (moment + 1) ** 2) ** 0.5
        for sample in range(8):
            assert (drawn[:, sample] ** moment).mean() == pytest.approx(
                exact, abs=4 * deviation / 4000**0.5
            )


def test_even_and_antithetic_levels_are_less_noisy():
    samples = jnp.arange(8)[:, None]
    deviation = {}
    for draws in LEVEL_DRAWS:
        means = jax.jit(jax.vmap(lambda key, d=draws: jnp.mean(noise_levels(key, samples, d) ** 2)))
        deviation[draws] = float(np.std(means(jax.random.split(jax.random.key(0), 2000))))
    # Eight independent draws of t^2 have a deviation of 0.298 / sqrt(8).
    assert deviation["independent"] == pytest.approx(0.105, rel=0.1)
    assert deviation["antithetic"] < 0.5 * deviation["independent"]
    assert deviation["even"] < 0.5 * deviation["independent"]


def test_even_levels_stay_even_for_thousands_of_samples():
    levels = np.sort(
        np.asarray(noise_levels(jax.random.key(1), jnp.arange(5000)[:, None], minimum=1e-6))[:, 0]
    )
    # Independent draws would leave a gap of about log(5000) / 5000 somewhere.
    assert np.diff(levels).max() < 3 / 5000


@pytest.mark.parametrize("draws", LEVEL_DRAWS)
def test_level_of_a_sample_depends_on_its_number_alone(draws):
    levels, again = (
        np.asarray(noise_levels(jax.random.key(2), samples, draws))
        for samples in (PACKED, np.array([[7], [2], [4]]))
    )
    np.testing.assert_array_equal(
        levels[:, [0, 3]], [[again[2, 0], again[0, 0]], [again[1, 0]] * 2]
    )
    assert len(set(again[:, 0].tolist())) == 3


@pytest.mark.parametrize("level", [1e-3, 0.3, 1.0])
def test_only_the_canvas_is_masked_and_the_rest_is_untouched(rows, level):
    tokens, canvas = rows
    noisy, masked = forward(jax.random.key(0), tokens, canvas, level)
    assert not (masked & ~canvas).any()
    np.testing.assert_array_equal(noisy == MASK_ID, masked)
    np.testing.assert_array_equal(noisy[~masked], tokens[~masked])
    assert noisy.dtype == tokens.dtype


@pytest.mark.parametrize("level", [0.0, 1e-6])
def test_every_sample_has_a_mask_however_low_the_level(rows, level):
    tokens, canvas = rows
    samples = 2 * np.arange(400)[:, None] + (np.arange(128)[None] >= 100)
    _, masked = forward(jax.random.key(1), tokens, canvas, level, samples)
    np.testing.assert_array_equal(masked[:, :100].sum(axis=1), 1)
    np.testing.assert_array_equal(masked[:, 100:].sum(axis=1), 1)
    # It may be any position: a fixed one would occur 400 times, the likeliest of these about 14
    # times.
    assert masked.sum(axis=0).max() < 40


def test_full_level_masks_the_whole_canvas(rows):
    tokens, canvas = rows
    np.testing.assert_array_equal(forward(jax.random.key(2), tokens, canvas, 1.0)[1], canvas)


def test_sample_without_canvas_stays_as_it_is(rows):
    tokens, canvas = rows
    canvas[1] = False
    noisy, masked = forward(jax.random.key(3), tokens, canvas, 0.9)
    np.testing.assert_array_equal(masked.any(axis=1), np.arange(400) != 1)
    np.testing.assert_array_equal(noisy[1], tokens[1])


def test_share_of_masks_is_the_level_of_the_sample(rows):
    tokens, canvas = rows
    levels = np.tile(np.array([0.1, 0.3, 0.5, 0.9], np.float32), 100)
    _, masked = forward(jax.random.key(4), tokens, canvas, levels)
    for level in np.unique(levels):
        mine = levels == level
        # Four standard errors of a share over the canvas positions of these rows.
        tolerance = 4 * np.sqrt(level * (1 - level) / canvas[mine].sum())
        assert masked[mine].sum() / canvas[mine].sum() == pytest.approx(level, abs=tolerance)


@pytest.mark.parametrize("level", [0.02, 0.3])
def test_unforced_ratio_is_that_of_the_two_probabilities(level):
    """On a canvas of three, where a mask is forced in (1 - t)^3 of the cases; counted over 20,000
    draws.
    """
    tokens, canvas = np.zeros((20_000, 3), np.int32), np.ones((20_000, 3), bool)
    _, masked = forward(jax.random.key(5), tokens, canvas, level)
    counts = masked.sum(axis=1)
    for count in (1, 2, 3):
        plain = math.comb(3, count) * level**count * (1 - level) ** (3 - count)
        forced = (counts == count).mean()
        ratio = float(unforced_ratio(*np.float32([[[level]], [[3]], [[count]]]))[0, 0])
        assert plain / ratio == pytest.approx(forced, abs=4 * (forced / 20_000) ** 0.5 + 1e-4)
    # The case that matters: far from 1.
    assert float(unforced_ratio(*np.float32([[[0.02]], [[3]], [[1]]]))[0, 0]) < 0.1


def test_masks_depend_on_the_key_alone(rows):
    first, again, other = (forward(jax.random.key(seed), *rows, 0.5)[1] for seed in (6, 6, 7))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()


def test_masks_of_a_sample_do_not_depend_on_its_place(rows):
    """Alone in a row, behind another sample, and with fewer rows around it."""
    tokens, canvas = (array[:3, :40] for array in rows)
    levels = np.float32([0.3, 0.6, 0.9])
    alone = forward(jax.random.key(8), tokens, canvas, levels)[1]
    packed_samples = np.repeat([[2, 0]], 40, axis=1).reshape(1, 80)
    packed_tokens, packed_canvas = (np.concatenate([x[2], x[0]])[None] for x in (tokens, canvas))
    packed_levels = np.repeat(levels[[2, 0]], 40)[None]
    key = jax.random.key(8)
    _, packed = mask_tokens(
        key, packed_tokens, packed_canvas, packed_samples, packed_levels, MASK_ID
    )
    packed = np.asarray(packed)
    np.testing.assert_array_equal(packed[0, :40], alone[2])
    np.testing.assert_array_equal(packed[0, 40:], alone[0])


def test_masks_by_rank_are_the_least_likely_of_each_canvas():
    """A reading in NumPy, with samples packed; what is not on the canvas never counts, however
    likely it is.
    """
    rng = np.random.default_rng(3)
    samples = np.array([[5] * 11 + [2] * 9 + [-1] * 4, [7] * 24])
    canvas = (rng.random(samples.shape) < 0.7) & (samples >= 0)
    log_probs, levels = (
        rng.normal(size=samples.shape),
        np.array([0.35, 0.8])[:, None] * np.ones(samples.shape),
    )
    key = jax.random.key(1)
    ranks = confident_ranks(key, log_probs.astype(np.float32), canvas, samples, 1.0)
    assert np.isnan(np.asarray(ranks)[~canvas]).all()
    tokens, levels = np.zeros_like(samples), levels.astype(np.float32)
    _, masked = mask_tokens(key, tokens, canvas, samples, levels, MASK_ID, ranks)
    expected = np.zeros_like(canvas)
    for row, sample in ((0, 5), (0, 2), (1, 7)):
        places = np.flatnonzero((samples[row] == sample) & canvas[row])
        count = math.ceil(levels[row, 0] * len(places))
        expected[row, places[np.argsort(log_probs[row, places])[:count]]] = True
    np.testing.assert_array_equal(masked, expected)


def test_a_canvas_is_begun_by_up_to_what_its_level_leaves(rows):
    """From its first position on, in packed rows as well, and evenly up to (1 - t) n."""
    tokens, canvas = rows
    samples = np.repeat(np.arange(2 * len(tokens)).reshape(-1, 2), 64, axis=1)
    levels = np.full(tokens.shape, 0.25, np.float32)
    found = np.asarray(visible_prefix(jax.random.key(5), canvas, samples, levels))
    assert not found[~canvas].any()
    shares = []
    for row, first in itertools.product(range(len(tokens)), (0, 64)):
        own = found[row, first : first + 64][canvas[row, first : first + 64]]
        assert (np.diff(own.astype(int)) <= 0).all()
        if len(own) == 64:
            shares.append(own.sum() / 48)
    assert max(shares) <= 1
    assert np.mean(shares) == pytest.approx(0.5 - 0.5 / 48, abs=4 * (1 / 12 / len(shares)) ** 0.5)


def test_a_share_of_the_samples_is_ranked_and_the_others_keep_their_draws(rows):
    tokens, canvas = rows
    samples = np.broadcast_to(np.arange(len(tokens))[:, None], tokens.shape)
    log_probs = np.random.default_rng(4).normal(size=tokens.shape).astype(np.float32)
    ranks = np.asarray(confident_ranks(jax.random.key(6), log_probs, canvas, samples, 0.3))
    ranked = ~np.isnan(ranks).all(axis=1)
    np.testing.assert_array_equal(~np.isnan(ranks), canvas & ranked[:, None])
    assert ranked.mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / len(tokens)) ** 0.5)
    levels = np.full(tokens.shape, 0.5, np.float32)
    _, masked = mask_tokens(jax.random.key(6), tokens, canvas, samples, levels, MASK_ID, ranks)
    masked = np.asarray(masked)
    np.testing.assert_array_equal(
        masked[~ranked], forward(jax.random.key(6), tokens, canvas, 0.5)[1][~ranked]
    )
    assert (masked[ranked].sum(axis=1) == np.ceil(0.5 * canvas[ranked].sum(axis=1))).all()


def test_attention_opens_from_causal_to_full_within_samples():
    samples = np.concatenate([PACKED, np.full((2, 60), 9)], axis=1)
    own = samples[:, :, None] == samples[:, None, :]
    past = np.tril(np.ones(own.shape[1:], bool))
    mask = jax.jit(attention_mask)
    closed, half, full = (
        np.asarray(mask(samples, np.full(2, share, np.float32), jax.random.key(0)))
        for share in (0, 0.5, 1)
    )
    np.testing.assert_array_equal(closed, own & past)
    np.testing.assert_array_equal(full, own)
    future = own & ~past
    assert (half >= closed).all()
    assert half[future].mean() == pytest.approx(0.5, abs=4 * 0.5 / future.sum() ** 0.5)
    # The share is traced: a schedule compiles once.
    assert mask._cache_size() == 1


def drawn_sizes(jaxpr):
    """Sizes of all arrays of random bits in a program, those of inner programs among them."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "random_bits":
            yield from (output.aval.size for output in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from drawn_sizes(inner)


def test_attention_draws_one_mask_for_all_rows():
    samples, key = np.repeat(PACKED, 8, axis=0), jax.random.key(0)
    openness = np.full(16, 0.5, np.float32)
    assert list(drawn_sizes(jax.make_jaxpr(attention_mask)(samples, openness, key).jaxpr)) == [
        6 * 6
    ]
    # Rows of a step have the same draw, wherever they are.
    mask = jax.jit(attention_mask)
    alone = mask(samples[3:4], openness[:1], key)
    np.testing.assert_array_equal(np.asarray(mask(samples, openness, key))[3:4], alone)

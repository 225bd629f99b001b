"""Rows as wide as the published vocabulary, against a full sort in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.diffusion.candidates import SamplingParams, filtered
from jax_lm.diffusion.nucleus import CHUNK, Rows, inverse_cdf, largest, map_columns, nucleus, weigh
from jax_lm.options import GenerationOptions

VOCABULARY = 152_064
DOUBT = 2e-6
"""A token whose mass before it is that close to top_p may be in or out: float32 cannot tell."""


def border_rows(rng):
    """Logits whose nuclei end in many ways."""
    normal = rng.normal(size=VOCABULARY)
    ranks = np.arange(VOCABULARY, dtype=np.float64)
    rows = {
        f"normal times {scale}": normal * scale
        for scale in (0.0, 1e-6, 0.01, 0.5, 2.3, 10.0, 100.0)
    }
    rows |= {
        "a power law": -1.1 * np.log(1 + rng.permutation(VOCABULARY)),
        "far from zero": normal * 0.5 + 1e4,
        "around zero, most of it zero": np.where(rng.random(VOCABULARY) < 0.9, 0.0, normal * 1e-3),
        "signed zeros": np.where(rng.random(VOCABULARY) < 0.5, 0.0, -0.0),
        "tiny differences at zero": normal * 1e-12,
        "one token": np.where(ranks == 77, 40.0, normal),
        "two equal tokens": np.where(np.isin(ranks, (77, 151_000)), 40.0, normal),
        "equal tokens in many places": np.where(rng.random(VOCABULARY) < 0.01, 12.0, normal),
        "integers": np.round(normal * 3),
        "a staircase": -np.floor(ranks / 1000),
        "halving": -np.log(2) * rng.permutation(VOCABULARY),
        "without half of the tokens": np.where(ranks % 2 == 0, -np.inf, normal * 0.5),
        "one left": np.where(ranks == 5, 0.0, -np.inf),
        "descending": -ranks * 1e-4,
        "ascending": ranks * 1e-4,
    }
    return {name: row.astype(np.float32) for name, row in rows.items()}


ROWS = border_rows(np.random.default_rng(0))


def sorted_nucleus(row, top_p):
    """Who is in the nucleus by a stable descending sort in float64, and who is so by less than
    DOUBT.
    """
    order = np.argsort(-row, kind="stable")
    weights = np.exp(row[order].astype(np.float64) - float(row.max()))
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]]) / weights.sum()
    kept, doubtful = np.empty(len(row), bool), np.empty(len(row), bool)
    kept[order], doubtful[order] = before <= top_p, np.abs(before - top_p) < DOUBT
    return kept, doubtful


def nuclei(rows, top_p):
    """Who is in the nucleus of each row, as `nucleus` says; all rows at once."""
    return np.asarray(kept_of(rows, np.float32(top_p)))


@jax.jit
def kept_of(rows, top_p):
    values = rows[None]
    weights = weigh(values, jnp.max(values, axis=-1, keepdims=True), jnp.float32(1))
    border = nucleus(values, weights, top_p, jnp.ones(values.shape[:2], bool))
    return ~border.excludes(values, jnp.arange(values.shape[-1]))[0]


def require_equal(ours, row, top_p, name):
    kept, doubtful = sorted_nucleus(row, np.float32(top_p).astype(np.float64))
    wrong = (ours != kept) & ~doubtful
    assert not wrong.any(), (
        f"{name}, top_p {top_p}: {wrong.sum()} tokens, {ours.sum()} kept and not {kept.sum()}"
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("top_p", [0.95, 0.5, 0.999, 1e-6])
def test_the_nucleus_is_that_of_a_sort(top_p, dtype):
    rows = np.asarray(jnp.asarray(np.stack(list(ROWS.values()))).astype(dtype).astype(jnp.float32))
    ours = nuclei(rows, top_p)
    for name, row, kept in zip(ROWS, rows, ours, strict=True):
        require_equal(kept, row, top_p, name)
        assert kept[row.argmax()]


@pytest.mark.parametrize("top_p", [1.0, np.inf])
def test_a_whole_mass_keeps_everything(top_p):
    assert nuclei(np.stack([ROWS["normal times 10.0"], ROWS["integers"]]), top_p).all()


def test_rows_that_nobody_reads_do_not_change_the_others():
    values = jnp.asarray(np.stack([ROWS["normal times 0.5"], ROWS["a staircase"]]))[None]
    weights = weigh(values, jnp.max(values, axis=-1, keepdims=True), jnp.float32(1))
    both, one = (
        jax.jit(nucleus)(values, weights, jnp.float32(0.9), jnp.array([[True, read]]))
        for read in (True, False)
    )
    assert both.value[0, 0] == one.value[0, 0]
    assert both.last[0, 0] == one.last[0, 0]
    assert both.value[0, 1] < one.value[0, 1]


def rows_of(logits, temperature, top_p, min_ratio=None):
    """Filter rows [r, v], compiled."""

    @jax.jit
    def filtered(logits):
        ours = Rows.of(
            logits[None],
            1 / jnp.float32(temperature),
            top_p=None if top_p is None else jnp.float32(top_p),
            min_ratio=None if min_ratio is None else jnp.float32(min_ratio),
            needed=jnp.ones((1, len(logits)), bool),
        )
        draws = jax.vmap(ours.draw, in_axes=-1, out_axes=-1)(
            jnp.broadcast_to(NUMBERS, (1, len(logits), len(NUMBERS)))
        )
        return ours.likeliest(), ours.margin(), ours.entropy(), draws

    return jax.tree.map(lambda part: np.asarray(part[0]), filtered(jnp.asarray(logits)))


NUMBERS = (np.arange(16, dtype=np.float32) + 0.5) / 16


@pytest.mark.parametrize(
    ("top_p", "min_ratio"), [(None, None), (0.95, None), (None, 0.01), (0.9, 0.5)]
)
def test_statistics_of_a_row_are_those_of_its_probabilities(top_p, min_ratio):
    names = [
        "normal times 0.5",
        "normal times 2.3",
        "normal times 10.0",
        "a power law",
        "two equal tokens",
    ]
    names += ["without half of the tokens", "one left"]
    logits = np.stack([ROWS[name] for name in names])
    (tokens, log_probs), margin, entropy, (drawn, drawn_log_probs) = rows_of(
        logits, 0.5, top_p, min_ratio
    )
    for row, values in enumerate(logits):
        scaled = values / np.float32(0.5)
        probs = np.exp(scaled.astype(np.float64) - float(scaled.max()))
        kept = (
            np.ones(VOCABULARY, bool)
            if top_p is None
            else sorted_nucleus(scaled, np.float32(top_p))[0]
        )
        kept &= probs >= (min_ratio or 0)
        probs = np.where(kept, probs, 0) / probs[kept].sum()
        best = np.sort(probs)[-2:]
        assert tokens[row] == values.argmax()
        np.testing.assert_allclose(np.exp(log_probs[row]), best[1], rtol=2e-5)
        np.testing.assert_allclose(margin[row], best[1] - best[0], rtol=2e-5, atol=1e-9)
        # The reference's 1e-10 for each candidate, and float32.
        np.testing.assert_allclose(
            entropy[row], (probs * np.log(probs + 1e-10)).sum(), rtol=2e-6, atol=2e-5
        )
        np.testing.assert_allclose(np.exp(drawn_log_probs[row]), probs[drawn[row]], rtol=2e-5)
        assert (probs[drawn[row]] > 0).all()
        # The token at which the cumulative probability passes the number.
        below = np.cumsum(probs)
        assert (below[drawn[row]] > NUMBERS - 2e-5).all()
        assert (below[drawn[row]] - probs[drawn[row]] < NUMBERS + 2e-5).all()


def sorted_widths(jaxpr):
    """How many columns each sort of a program, and each search for the largest, looks at."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("sort", "top_k"):
            yield equation.invars[0].aval.shape[-1]
        for inner in jax.tree.leaves(equation.params):
            if hasattr(inner, "jaxpr"):
                yield from sorted_widths(inner.jaxpr)


@pytest.mark.parametrize("top_p", [None, 0.95])
def test_no_program_sorts_the_vocabulary(top_p):
    def scores(logits, number):
        needed = jnp.ones(logits.shape[:2], bool)
        scale, share = 1 / number, None if top_p is None else number
        rows = Rows.of(logits, scale, top_p=share, min_ratio=None, needed=needed)
        return rows.draw(logits[..., 0]), rows.margin(), rows.entropy()

    def widest(function):
        traced = jax.make_jaxpr(function)(
            jax.ShapeDtypeStruct((1, 8, VOCABULARY), jnp.float32), jnp.float32(0.5)
        )
        return max(sorted_widths(traced.jaxpr))

    # The maxima of the chunks are looked through, and the chunks of the largest.
    assert widest(scores) == VOCABULARY // CHUNK
    assert (
        widest(lambda logits, number: jax.lax.cond(number > 0, jnp.sort, jnp.negative, logits))
        == VOCABULARY
    )


@pytest.mark.parametrize("size", [5, 700, 9_000])
def test_largest_equals_top_k_with_its_ties(size):
    values = np.random.default_rng(0).integers(0, 40, size=(2, 3, size)).astype(np.float32)
    for ours, theirs in zip(largest(jnp.asarray(values), 5), jax.lax.top_k(values, 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_inverse_cdf_draws_in_proportion_over_a_whole_vocabulary():
    rng = np.random.default_rng(3)
    weights = np.where(rng.random(10_000) < 0.5, 0.0, rng.random(10_000)).astype(np.float32)
    draws = jnp.asarray((np.arange(5_000) + 0.5) / 5_000, jnp.float32)[None]
    index = np.asarray(inverse_cdf(jnp.broadcast_to(weights, (1, 5_000, 10_000)), draws))[0]
    assert (weights[index] > 0).all()
    # Evenly spaced numbers: the empirical distribution may differ from the weights by rounding
    # alone.
    drawn = np.cumsum(np.bincount(index, minlength=10_000)) / 5_000
    np.testing.assert_allclose(
        drawn, np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64), atol=3e-4
    )


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
@pytest.mark.parametrize("size", [3, 500])
def test_inverse_cdf_never_takes_a_column_without_weight(number, size):
    weights = jnp.zeros((1, 1, size)).at[..., size // 2].set(0.3)
    assert int(inverse_cdf(weights, jnp.full((1, 1), number))[0, 0]) == size // 2


def test_the_largest_are_not_made_by_a_sort_of_all_columns():
    """Read in two parts, as the filters do, a plain `jax.lax.top_k` is: five times the time of a
    small model's step.
    """
    params = SamplingParams.of(GenerationOptions(temperature=0.3, top_p=0.95, top_k=50), 32, 32)

    def log_probs(logits, params):
        return filtered(logits, params, top_k=50, excluded_id=5).log_probs

    text = jax.jit(log_probs).lower(jnp.zeros((2, 4, 1536)), params).compile().as_text()
    assert "TopK" in text
    assert " sort(" not in text


def test_parts_of_columns_become_what_the_whole_does():
    """Also where the last part begins early, and computes columns again."""
    rng = np.random.default_rng(3)
    values, ids = rng.normal(size=(2, 5, 7)), rng.integers(0, 9, (2, 5))

    def compute(values, ids):
        return values.max(axis=-1), {"double": 2 * values, "sum": values[..., 0] + ids}

    whole = compute(values, ids)
    for parts in (1, 2, 3, 4, 5):
        found = map_columns(compute, parts, jnp.asarray(values), jnp.asarray(ids))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, whole)


def test_no_other_array_holds_all_logits_of_parts():
    """Padded or reordered, they would be stored once more; 30 rows are 4 parts of 8."""
    logits = jax.ShapeDtypeStruct((1, 30, 4096), jnp.float32)
    peaks = jax.jit(lambda logits: map_columns(lambda part: jnp.max(part, axis=-1), 4, logits))
    stored = peaks.lower(logits).compile().memory_analysis().temp_size_in_bytes
    assert stored < logits.size * 4 // 2

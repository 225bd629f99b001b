"""The copy of trained weights that losses and samplers see in bfloat16: small moves show in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.training.update import LossTerms, compute_copy, gradient, stochastically_rounded

SHAPE = (512, 384)


def on_grid(seed=0):
    return jax.random.normal(jax.random.key(seed), SHAPE).astype(jnp.bfloat16).astype(jnp.float32)


def test_weights_that_bfloat16_holds_stay():
    assert jnp.array_equal(
        compute_copy({"w": on_grid()}, jnp.bfloat16)["w"].astype(jnp.float32), on_grid()
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, "bfloat16", jnp.dtype("bfloat16")])
@pytest.mark.parametrize("share", [1 / 64, 0.25, 0.5, 0.9])
def test_a_move_shows_as_often_as_it_is_large(share, dtype):
    """Of a move by a share of a step of bfloat16, that share of the weights takes the step: none or
    all, to nearest.
    """
    weights = jnp.ones(SHAPE) * (1 + share * 2**-7)
    copy = compute_copy({"w": weights}, dtype)["w"].astype(jnp.float32)
    assert set(np.unique(copy)) == {1.0, 1 + 2**-7}
    deviation = np.sqrt(share * (1 - share) / copy.size)
    assert abs(float(jnp.mean(copy - 1)) * 2**7 - share) < 5 * deviation
    nearest = weights.astype(jnp.bfloat16).astype(jnp.float32)
    assert float(jnp.max(nearest) - jnp.min(nearest)) == 0


def test_a_product_with_moved_weights_is_that_of_float32():
    """The error is that of independent rounding, and shrinks with the number of weights; to
    nearest, nothing moves.
    """
    weights = on_grid()
    moves = 2.0**-12 * jnp.abs(weights)
    inputs = jnp.ones(SHAPE[1])
    exact = float(jnp.sum(moves @ inputs))

    def moved(copy):
        return float(jnp.sum((copy.astype(jnp.float32) - weights) @ inputs))

    assert moved(compute_copy({"w": weights + moves}, jnp.bfloat16)["w"]) == pytest.approx(
        exact, rel=0.03
    )
    assert moved((weights + moves).astype(jnp.bfloat16)) == 0


def test_draws_belong_to_name_and_place():
    """Equal weights give equal copies, those of two layers do not round alike, and neighbours do
    not.
    """
    weights = jnp.full(SHAPE, 1 + 2.0**-8)
    tree = {"a": {"w": weights}, "b": {"w": weights}}
    first, again = (compute_copy(tree, jnp.bfloat16) for _ in range(2))
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, first, again)))
    ups = [np.asarray(copy == copy.max()).astype(float) - 0.5 for copy in jax.tree.leaves(first)]
    bound = 5 * 0.25 / np.sqrt(weights.size)
    assert abs(np.mean(ups[0] * ups[1])) < bound
    assert abs(np.mean(ups[0][1:] * ups[0][:-1])) < bound
    assert abs(np.mean(ups[0][:, 1:] * ups[0][:, :-1])) < bound


def test_what_is_not_finite_and_what_is_negative():
    weights = jnp.array([jnp.inf, -jnp.inf, jnp.nan, -1 - 2.0**-9, 0.0, -0.0])
    copy = stochastically_rounded(weights, 0).astype(jnp.float32)
    assert jnp.array_equal(copy[:2], weights[:2])
    assert jnp.isnan(copy[2])
    assert float(copy[3]) in (-1.0, -1 - 2.0**-7)
    assert jnp.array_equal(jnp.signbit(copy[4:]), jnp.array([False, True]))


def test_other_dtypes_are_cast():
    tree = {
        "int8": jnp.arange(3, dtype=jnp.int8),
        "bf16": jnp.ones(3, jnp.bfloat16),
        "f32": jnp.full(3, 0.1),
    }
    copy = compute_copy(tree, jnp.float32)
    assert {name: leaf.dtype for name, leaf in copy.items()} == {
        "int8": "int8",
        "bf16": "float32",
        "f32": "float32",
    }
    assert jnp.array_equal(copy["f32"], tree["f32"])


def test_gradients_pass_to_the_masters():
    """In float32, as that of the copy; the loss is that of the copy."""
    weights = on_grid() + 2.0**-12

    def loss(params, batch, key):
        return LossTerms(jnp.sum(params["w"].astype(jnp.float32) * 3), jnp.float32(1), {})

    gradients, metrics = gradient(
        loss, {"w": weights}, {}, jnp.zeros((1, 1)), jax.random.key(0), dtype=jnp.bfloat16
    )
    assert gradients["w"].dtype == jnp.float32
    assert jnp.array_equal(gradients["w"], jnp.full(SHAPE, 3.0))
    copy = compute_copy({"w": weights}, jnp.bfloat16)["w"].astype(jnp.float32)
    assert float(metrics["loss"]) == pytest.approx(float(jnp.sum(copy * 3)), rel=1e-5)


def test_accumulation_keeps_no_copy_of_all_weights():
    """Each part copies a weight where it is used: a copy of all, made once, would lie there
    meanwhile.
    """
    params = {str(layer): jnp.zeros((1024, 1024)) for layer in range(12)}
    batch = {"tokens": jnp.zeros((8, 1024), jnp.bfloat16)}

    def loss(weights, rows, key):
        x = rows["tokens"]
        for weight in weights.values():
            x = x @ weight
        return LossTerms(jnp.sum(x.astype(jnp.float32)), jnp.float32(1), {})

    def temporary(parts):
        step = jax.jit(lambda *given: gradient(loss, *given, parts=parts, dtype=jnp.bfloat16)[0])
        compiled = step.lower(params, {}, batch, jax.random.key(0)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    gradients = sum(weight.nbytes for weight in params.values())
    copies = gradients / 2
    assert temporary(4) - temporary(1) < gradients + copies / 2

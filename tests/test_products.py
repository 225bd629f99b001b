"""Look-ups and scalings whose gradients add up in float32, on one device and on eight."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.config import DIFFUCODER_7B
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import split_model
from jax_lm.models.products import lookup, product, scale_columns
from jax_lm.sharding import MeshShape

DEVICES, MESHES = 8, ("data=2,fsdp=2,tensor=2", "fsdp=8", "data=4,tensor=2")
TABLE = (64, 16)


def error(ours, exact):
    """Norm of the difference of two arrays, relative to the second."""
    ours, exact = np.asarray(ours, np.float64), np.asarray(exact, np.float64)
    return np.linalg.norm(ours - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradient_of_a_lookup_at_the_published_vocabulary(dtype):
    """32 rows of 512 tokens, half of them MASK and a quarter padding; cotangents with a mean, as
    real ones have.
    """
    vocabulary, mask, pad = 152_064, 151_666, 151_643
    rng = np.random.default_rng(0)
    ids = np.where(rng.random((32, 512)) < 0.5, mask, rng.integers(0, 150_000, (32, 512)))
    ids[:, -128:] = pad
    cotangent = jnp.asarray(rng.normal(0.5, 1.0, (32, 512, 4)), dtype)
    exact = np.zeros((vocabulary, 4))
    np.add.at(exact, ids, np.asarray(cotangent, np.float64))

    @jax.jit
    def pulled_back(table):
        looked_up, pull = jax.vjp(lambda table: lookup(table, jnp.asarray(ids), None), table)
        return looked_up, *pull(cotangent)

    table = jnp.asarray(rng.normal(size=(vocabulary, 4)), dtype)
    looked_up, gradient = pulled_back(table)
    np.testing.assert_array_equal(looked_up, table[ids])
    assert gradient.dtype == dtype
    allowed = 0.004 if dtype == "bfloat16" else 1e-5
    for rows in (mask, pad, slice(None)):
        assert error(gradient[rows], exact[rows]) < allowed


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradient_of_a_matrix_is_exact_and_nothing_is_transposed_for_it(dtype):
    """Against NumPy; a CPU's program has no copy of the rows or their cotangents in the other
    order.
    """
    rng = np.random.default_rng(2)
    x, weight = (
        jnp.asarray(rng.normal(size=(4, 96, 48)), dtype),
        jnp.asarray(rng.normal(size=(80, 48)), dtype),
    )
    cotangent = jnp.asarray(rng.normal(0.5, 1.0, (4, 96, 80)), dtype)

    @jax.jit
    def gradient(x, weight, cotangent):
        def loss(weight):
            return jnp.sum(jax.nn.silu(product(x, weight)) * cotangent.astype(jnp.float32))

        return jax.grad(loss)(weight)

    a, w, g = (np.asarray(array, np.float64) for array in (x, weight, cotangent))
    y = a @ w.T
    sigmoid = 1 / (1 + np.exp(-y))
    exact = np.einsum("bto,bti->oi", g * sigmoid * (1 + y * (1 - sigmoid)), a)
    assert error(gradient(x, weight, cotangent), exact) < (0.005 if dtype == "bfloat16" else 1e-6)
    text = gradient.lower(x, weight, cotangent).compile().as_text()
    assert not re.search(r"\[(80|48),384\]", text)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradient_of_a_scaling(dtype):
    rng = np.random.default_rng(1)
    x, cotangent = (jnp.asarray(rng.normal(0.5, 1.0, (32, 512, 8)), dtype) for _ in range(2))
    weight = jnp.asarray(rng.normal(1.0, 0.1, 8), dtype)
    y, pull = jax.vjp(scale_columns, x, weight)
    dx, dweight = pull(cotangent)
    wide = [np.asarray(array, np.float64) for array in (x, cotangent, weight)]
    rounded = 0.004 if dtype == "bfloat16" else 1e-6
    assert error(y, wide[0] * wide[2]) < rounded
    assert error(dx, wide[1] * wide[2]) < rounded
    assert error(dweight, (wide[0] * wide[1]).sum(axis=(0, 1))) < rounded
    assert (y.dtype, dx.dtype, dweight.dtype) == (dtype, dtype, dtype)


def compare_on_devices() -> None:
    """The child process: prints one JSON line per mesh."""
    rng = np.random.default_rng(2)
    ids = jnp.asarray(rng.integers(0, TABLE[0], (8, 6)))
    table, cotangent = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in (TABLE, (*ids.shape, TABLE[1]))
    )
    exact = np.zeros(TABLE)
    np.add.at(exact, np.asarray(ids), np.asarray(cotangent, np.float64))
    for text in MESHES:
        mesh = MeshShape.parse(text).mesh()
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tensor", "fsdp"))

        def gradient(table, ids, mesh=mesh):
            return jax.grad(lambda table: jnp.sum(lookup(table, ids, mesh) * cotangent))(table)

        program = (
            jax.jit(gradient, out_shardings=place)
            .lower(jax.device_put(table, place), ids)
            .compile()
        )
        made = program(jax.device_put(table, place), ids)
        added_up = r"= f32\[(\d+),(\d+)\]\S* (?:scatter|all-reduce|reduce-scatter|all-gather)\("
        shapes = [list(map(int, shape)) for shape in re.findall(added_up, program.as_text())]
        looking = (
            jax.jit(lookup, static_argnums=2)
            .lower(jax.device_put(table, place), ids, mesh)
            .compile()
        )
        found = looking(jax.device_put(table, place), ids)
        report = {
            "error": error(made, exact),
            "shapes": shapes,
            "found": bool(np.array_equal(found, np.asarray(table)[np.asarray(ids)])),
            "whole": len(re.findall(rf"f32\[{TABLE[0]},{TABLE[1]}\]", looking.as_text())),
            "exchanged": len(re.findall(r" all-to-all(?:-start)?\(", looking.as_text())),
        }
        print(json.dumps(report), flush=True)  # noqa: T201


@pytest.fixture(scope="module")
def on_devices():
    # Without the suite's own flags: unoptimised, a scatter is a loop.
    flags = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        "JAX_PLATFORMS": "cpu",
    }
    child = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return dict(zip(MESHES, map(json.loads, child.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("mesh", MESHES)
def test_each_device_adds_up_its_part_of_the_table(on_devices, mesh):
    report, shape = on_devices[mesh], MeshShape.parse(mesh)
    assert report["error"] < 1e-6
    part = [TABLE[0] // shape.tensor, TABLE[1] // shape.fsdp]
    assert report["shapes"]
    assert all(made == part for made in report["shapes"]), report["shapes"]


@pytest.mark.parametrize("mesh", MESHES)
def test_no_device_holds_a_whole_table_to_look_up(on_devices, mesh):
    """Parts of rows are exchanged instead, where columns are split."""
    report, shape = on_devices[mesh], MeshShape.parse(mesh)
    assert report["found"]
    assert report["whole"] == 0
    assert (report["exchanged"] > 0) == (shape.fsdp > 1)


if __name__ == "__main__":
    compare_on_devices()


def test_a_cpu_widens_no_table_to_take_rows_of_it_in_a_loop():
    """XLA's CPU compiler makes a float32 copy of a bfloat16 table before a loop, were it let: at
    7B, two gigabytes.
    """
    table = jax.random.normal(jax.random.key(0), (4096, 64)).astype(jnp.bfloat16)

    @jax.jit
    def walked(table, ids):
        def follow(_, ids):
            found = lookup(table, ids, None)
            return jnp.argmax(found, axis=-1).astype(jnp.int32) * 60 + ids % 7

        return jax.lax.fori_loop(0, 5, follow, ids)

    ids = jnp.arange(6, dtype=jnp.int32)[None]
    compiled = walked.lower(table, ids).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes
    expected = ids
    for _ in range(5):
        expected = (
            np.argmax(np.asarray(table, np.float32)[expected], axis=-1).astype(np.int32) * 60
            + expected % 7
        )
    np.testing.assert_array_equal(np.asarray(compiled(table, ids)), expected)


def test_a_cpu_turns_no_matrix_round_to_multiply_by_it_in_a_loop():
    """XLA's CPU compiler makes a transposed copy of a bfloat16 matrix before a loop, were it let: a
    second model.
    """
    matrix = jax.random.normal(jax.random.key(0), (512, 512)).astype(jnp.bfloat16) / 16

    @jax.jit
    def walked(matrix, x):
        return jax.lax.fori_loop(0, 3, lambda _, x: product(x, matrix).astype(x.dtype), x)

    x = jax.random.normal(jax.random.key(1), (1, 33, 512)).astype(jnp.bfloat16)
    compiled = walked.lower(matrix, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < matrix.nbytes
    expected = x
    for _ in range(3):
        expected = product(expected, matrix).astype(x.dtype)
    np.testing.assert_allclose(
        *(np.asarray(y, np.float32) for y in (compiled(matrix, x), expected)), rtol=2e-2, atol=2e-2
    )


# Rows, outputs and inputs, and the steps up to the largest value of a row: 127, or 127 * 254 with a
# second int8 row. Without steps, the kernel is widened. The last but one has the published
# vocabulary.
INT8_CASES = [
    ("one row", 1, 512, 256, 127 * 254),
    ("more outputs", 33, 512, 256, 127),
    ("fewer outputs", 33, 256, 512, 127 * 254),
    ("many rows, fewer outputs", 65, 256, 512, None),
    ("many rows", 129, 512, 256, None),
    ("vocabulary", 9, 152_064, 64, 127),
    ("vocabulary, one row", 1, 152_064, 64, 127 * 254),
]


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "steps"),
    [case[1:] for case in INT8_CASES],
    ids=[case[0] for case in INT8_CASES],
)
def test_a_cpu_multiplies_int8_within_half_a_step_of_the_activations(rows, outputs, inputs, steps):
    """Against NumPy in float64; one row is zero, and one has an entry a hundred times the others'.

    An activation is rounded by at most half a step s, so the error is at most s/2 * sum_i |W_oi|.
    """
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    x = rng.normal(size=(3, rows, inputs))
    x[1, 0], x[2, 0, 5] = 0, 100
    x = jnp.asarray(x, jnp.bfloat16)
    y, pull = jax.vjp(jax.jit(lambda x: product(x, jnp.asarray(weight))), x)
    wide, exact = weight.astype(np.float64), np.asarray(x, np.float64)
    total = np.abs(wide).sum(axis=1)
    largest = np.abs(exact).max(axis=-1, keepdims=True)
    # float32 sums of products, and of two rows, are rounded as well.
    allowed = largest * total * (0.5 / steps if steps else 0) + 1e-6 * (
        np.abs(exact) @ np.abs(wide.T)
    )
    assert (np.abs(np.asarray(y, np.float64) - exact @ wide.T) <= allowed).all()
    if steps:
        assert np.abs(np.asarray(y, np.float64) - exact @ wide.T).max() > 1e-6
    # The gradient is that of the exact product.
    cotangent = jnp.asarray(rng.normal(size=y.shape), jnp.bfloat16)
    (gradient,) = pull(cotangent.astype(y.dtype))
    assert gradient.dtype == x.dtype
    assert error(gradient, np.asarray(cotangent, np.float64) @ wide) < 0.004


def test_a_cpu_widens_no_int8_matrix_for_the_rows_of_a_step():
    """33 rows against the published MLP: the program has no copy of the kernel in a wider dtype."""
    x, weight = jnp.zeros((1, 33, 3584), jnp.bfloat16), jnp.zeros((18_944, 3584), jnp.int8)
    for rows, kernel in ((x, weight), (jnp.zeros((1, 33, 18_944), x.dtype), weight.T)):
        compiled = jax.jit(product).lower(rows, kernel).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < kernel.size / 4


def test_a_layer_of_the_published_width_in_int8():
    """Logits of one layer, bfloat16 with int8 products, against the same kernels in float32."""
    config = replace(DIFFUCODER_7B, num_hidden_layers=1, vocab_size=512, mask_token_id=511)
    graph, template = split_model(
        DreamForCausalLM.abstract(config, jnp.bfloat16, quantization="int8")
    )
    rng = np.random.default_rng(0)

    def draw(leaf):
        if leaf.dtype == jnp.int8:
            return jnp.asarray(rng.integers(-127, 128, leaf.shape, np.int8))
        if leaf.dtype == jnp.float32:
            # uniform kernels with the standard deviation of 0.02
            return jnp.full(leaf.shape, 0.02 / 73.3, jnp.float32)
        return jnp.asarray(rng.normal(1 if leaf.ndim == 1 else 0, 0.02, leaf.shape), leaf.dtype)

    params = jax.tree.map(draw, template)
    exact = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, params
    )
    ids = jnp.asarray(rng.integers(0, 511, (1, 33)))
    compute = jax.jit(lambda params: graph.merge(params)(ids))
    assert error(compute(params), compute(exact)) < 0.02


def test_a_cpu_multiplies_a_single_row_as_two():
    """XLA:CPU multiplies a single row of bfloat16 ten times slower than two."""
    keys = jax.random.split(jax.random.key(0), 2)
    rows, weight = (jax.random.normal(key, (2, 96), jnp.bfloat16) for key in keys)
    weight = jnp.tile(weight, (32, 1))
    for dtype in (jnp.float32, jnp.bfloat16):
        multiply = jax.jit(partial(product, dtype=dtype))
        alone = multiply(rows[None, :1], weight)
        assert alone.shape == (1, 1, 64)
        assert alone.dtype == dtype
        np.testing.assert_array_equal(alone[0, 0], multiply(rows[None], weight)[0, 0])
        text = multiply.lower(rows[None, :1], weight).compile().as_text()
        [result] = re.findall(r"(f32\[[\d,]+\]\S*) dot\(", text)
        assert "2" in re.findall(r"\d+", result.partition("[")[2]), result

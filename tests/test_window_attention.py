"""The kernel of a window equals attention step by step, and is taken on NVIDIA GPUs alone."""

from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_lm.models import window_attention, window_kernel
from jax_lm.models.attention import KeyValues, WindowOperands
from jax_lm.models.layers import DreamRotaryEmbedding
from jax_lm.models.window_attention import SWITCH, attend_to_cache, has_kernel, in_steps
from jax_lm.sharding import MeshShape

ROWS, HEADS, KEY_HEADS, SIZE = 16, 4, 2, 64
# float32: sums in another order. bfloat16: one rounding of numbers up to 4, as weights are
# rounded before they are divided by their sum, and not after.
BOUNDS = {"float32": 2e-6, "bfloat16": 2**-6}


@dataclass
class Gpu:
    platform: str = "gpu"
    compute_capability: str = "9.0"


@pytest.fixture
def interpreted(monkeypatch):
    """Take the kernel on this machine, in Pallas' interpreter; returns the list of its calls."""
    calls = []
    run = window_kernel.call

    def call(window, starts):
        calls.append(window.q.shape)
        return run(window, starts, interpret=True)

    monkeypatch.setattr(window_kernel, "call", call)
    monkeypatch.setattr(window_attention, "has_kernel", lambda window, mesh: True)
    return calls


def operands_of(dtype, columns, batch=2, start=5, heads=HEADS, key_heads=KEY_HEADS):
    """A window without a mask, and its first column."""
    keys = jax.random.split(jax.random.key(columns), 5)
    q, k, v = (
        jax.random.normal(key, (batch, ROWS, count, SIZE)).astype(dtype)
        for key, count in zip(keys[:3], (heads, key_heads, key_heads), strict=True)
    )
    cached = KeyValues(
        *(
            jax.random.normal(key, (batch, key_heads, columns, SIZE)).astype(dtype)
            for key in keys[3:]
        )
    )
    positions = start + jnp.arange(ROWS)[None].repeat(batch, axis=0)
    rotary = DreamRotaryEmbedding(SIZE, 1e4)(positions)
    return WindowOperands(q, k, v, *rotary, None, cached), jnp.int32(start)


def masks_of(columns, batch=2):
    """Masks by name: of left padding, of keys, and of keys for each query."""
    column = jnp.arange(columns)
    padded = column >= 3 * jnp.arange(1, batch + 1)[:, None]
    return {
        "none": None,
        "padded": padded,
        "per query": padded[:, None] & ((column % 7)[None] != (jnp.arange(ROWS) % 7)[:, None]),
    }


def largest_difference(got, wanted):
    return max(
        np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    )


@pytest.mark.parametrize("mask", ["none", "padded", "per query"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
# Columns that fill the kernel's blocks, that do not, and windows at the end of the cache and behind it.
@pytest.mark.parametrize(("columns", "start"), [(128, 60), (72, 5), (100, 84), (72, 60)])
def test_the_kernel_computes_what_the_steps_compute(interpreted, dtype, columns, start, mask):
    window, start = operands_of(dtype, columns, start=start)
    window = window._replace(mask=masks_of(columns)[mask])
    wanted, cache = in_steps(window, start)
    got, written = attend_to_cache(window, start)
    assert interpreted == [window.q.shape]
    assert got.dtype == wanted.dtype
    assert largest_difference(got, wanted) <= BOUNDS[dtype]
    # Values are copied, and keys are rotated as elsewhere: no column outside the window moves.
    assert largest_difference(written.values, cache.values) == 0
    first = min(int(start), columns - ROWS)
    outside = np.r_[0:first, first + ROWS : columns]
    np.testing.assert_array_equal(written.keys[:, :, outside], window.cache.keys[:, :, outside])
    assert largest_difference(written.keys, cache.keys) <= BOUNDS[dtype]
    # A kernel that left the window out of the cache would be far off.
    missing, _ = in_steps(window, jnp.int32(0))
    assert largest_difference(missing, wanted) > 10 * BOUNDS[dtype]


def test_mapped_canvases_have_windows_of_their_own(interpreted):
    """As the server's slots, which begin at different rows of their canvases."""
    cases = [operands_of("float32", 96, batch=1, start=start) for start in (0, 40, 80)]
    windows, starts = jax.tree.map(lambda *x: jnp.stack(x), *cases)
    got = jax.vmap(attend_to_cache)(windows, starts)
    for number, case in enumerate(cases):
        wanted = in_steps(*case)
        one = jax.tree.map(lambda x, number=number: x[number], got)
        assert largest_difference(one, wanted) <= BOUNDS["float32"]
    # One call for all of them.
    assert interpreted[-1] == (3, ROWS, HEADS, SIZE)


def test_gradients_are_those_of_the_steps(interpreted):
    window, start = operands_of("float32", 96)
    mask = masks_of(96)["padded"]

    def total(attention, window):
        y, cache = attention(window._replace(mask=mask), start)
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(jnp.cos(x)) for x in cache)

    got = jax.grad(partial(total, attend_to_cache))(window)
    wanted = jax.grad(partial(total, in_steps))(window)
    assert largest_difference(got, wanted) <= 1e-5
    assert max(np.abs(x).max() for x in jax.tree.leaves(wanted)) > 0.1


def test_on_a_mesh_each_device_runs_the_kernel(interpreted):
    """On one device; tests/test_attention.py splits rows and heads over eight."""
    window, start = operands_of("float32", 96)
    window = window._replace(mask=masks_of(96)["padded"])
    wanted = in_steps(window, start)
    got = jax.jit(partial(attend_to_cache, mesh=MeshShape().mesh()))(window, start)
    assert largest_difference(got, wanted) <= BOUNDS["float32"]
    assert interpreted


def test_which_windows_take_the_kernel(monkeypatch):
    q = jnp.zeros((1, 32, 28, 128), jnp.bfloat16)
    cached = KeyValues(*[jnp.zeros((1, 4, 512, 128), jnp.bfloat16)] * 2)

    def taken(device=None, q=q, mesh=None):
        with patch.object(window_attention, "first_device", lambda mesh: device or Gpu()):
            return has_kernel(WindowOperands(q, q, q, q, q, None, cached), mesh)

    assert taken()
    assert not taken(jax.devices("cpu")[0])
    assert not taken(Gpu(compute_capability="7.5"))
    assert not taken(q=q.astype(jnp.float32))
    # rows that do not fill a tile, and a refresh of the whole cache
    assert not taken(q=jnp.zeros((1, 33, 28, 128), jnp.bfloat16))
    assert not taken(q=jnp.zeros((1, 512, 28, 128), jnp.bfloat16))
    monkeypatch.setenv(SWITCH, "0")
    assert not taken()

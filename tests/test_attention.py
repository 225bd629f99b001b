"""Attention by kernels and in blocks gives what attention in full gives, and is taken where it
pays.

`pytest --release tests/test_attention.py` compiles an update for machines that are not here, and
looks for scores in it.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from experiments.recipes import training_program
from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import GPU_COMPILER, TPU_COMPILER
from jax_lm.config import DIFFUCODER_7B
from jax_lm.models import attention, window_attention, window_kernel
from jax_lm.models.attention import (
    KeyValues,
    SampleMask,
    WindowOperands,
    attend,
    attend_in_blocks,
    attend_in_full,
    choose_attention,
    cudnn,
    has_cudnn,
    splash,
)
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.layers import DreamRotaryEmbedding
from jax_lm.models.window_attention import attend_to_cache
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import AXES, MeshShape
from jax_lm.training.config import LossConfig, OptimizerConfig, SftConfig, TrainerConfig

ROOT = Path(__file__).parent.parent
MESHES = ("data=8", "data=2,fsdp=2,tensor=2", "fsdp=2,tensor=4")
HEADS, KEY_HEADS, SIZE = 28, 4, 128
"""Those of DiffuCoder-7B."""

interpreted = partial(splash, interpret=True)


def arrays_of(dtype, length, *, heads=HEADS, key_heads=KEY_HEADS, rows=2):
    """Queries, keys and values, of which scores differ by several units, and what each output
    counts.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    q = 2 * jax.random.normal(keys[0], (rows, length, heads, SIZE))
    k, v = (jax.random.normal(key, (rows, key_heads, length, SIZE)) for key in keys[1:3])
    return *(x.astype(dtype) for x in (q, k, v)), jax.random.normal(keys[3], q.shape)


def masks_of(length, rows=2):
    """Masks by name: of padding on the left, and of rows that hold several samples and end in none."""
    columns = jnp.arange(length)[None].repeat(rows, axis=0)
    starts = jnp.arange(1, rows + 1)[:, None] * (length // (2 * rows))
    samples = jnp.where(columns < length - 9, columns // (starts + 7), -1)
    return {
        "none": None,
        "padded": columns >= starts,
        "packed": SampleMask(samples.astype(jnp.int32)),
    }


@partial(jax.jit, static_argnums=0)
def outputs_and_gradients(attention, q, k, v, weights, mask):
    def total(q, k, v):
        y = attention(q, k, v, mask)
        return jnp.sum(y.astype(jnp.float32) * weights), y

    (_, y), gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(q, k, v)
    return y, *gradients


def with_gradients(attention, arrays, mask):
    """Outputs and gradients of queries, keys and values, as float32."""
    return [np.asarray(x, np.float32) for x in outputs_and_gradients(attention, *arrays, mask)]


def distance(found, expected):
    """Root mean square of what differs, as a share of what is expected."""
    return [
        np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)) for a, b in zip(found, expected, strict=True)
    ]


@pytest.mark.parametrize("length", [600, 256])
@pytest.mark.parametrize("name", ["none", "padded", "packed"])
def test_splash_gives_what_attention_in_full_gives(name, length):
    """In several blocks, the last filled up, and in one."""
    arrays, mask = arrays_of(jnp.float32, length, heads=4, key_heads=2), masks_of(length)[name]
    found, expected = (with_gradients(each, arrays, mask) for each in (interpreted, attend_in_full))
    assert max(distance(found, expected)) < 3e-6


@pytest.mark.parametrize("name", ["padded", "packed"])
def test_splash_in_bfloat16_is_as_near_to_float32_as_attention_in_full(name):
    """At the size of the 7B model; one row, as the kernel is interpreted program by program."""
    arrays, mask = arrays_of(jnp.bfloat16, 256, rows=1), masks_of(256, 1)[name]
    exact = with_gradients(attend_in_full, [x.astype(jnp.float32) for x in arrays], mask)
    ours, full = (
        distance(with_gradients(each, arrays, mask), exact)
        for each in (interpreted, attend_in_full)
    )
    assert max(a / b for a, b in zip(ours, full, strict=True)) < 1.5
    assert max(ours) < 0.01


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 1e-6), (jnp.bfloat16, 5e-3)])
def test_blocks_give_what_attention_in_full_gives(dtype, bound):
    """Three blocks of queries, of which each has a mask of its own; sums over them are float32 in
    any dtype.
    """
    arrays = arrays_of(dtype, 192)
    mask = jnp.tril(jnp.ones((2, 192, 192), bool)).at[1, :, 7:9].set(True)
    with patch.object(attention, "BLOCK_BYTES", 4 * 2 * HEADS * 64 * 192):
        found = with_gradients(attend_in_blocks, arrays, mask)
    assert max(distance(found, with_gradients(attend_in_full, arrays, mask))) < bound


@pytest.mark.parametrize("attention", [interpreted, attend_in_full])
def test_rows_without_any_key_are_finite_and_change_no_other(attention):
    *arrays, weights = arrays_of(jnp.float32, 128, heads=4, key_heads=2)
    mask = masks_of(128)["padded"].at[1].set(False)
    found = with_gradients(attention, (*arrays, weights), mask)
    assert all(np.isfinite(x).all() for x in found)
    alone = with_gradients(attention, [x[:1] for x in (*arrays, weights)], mask[:1])
    assert max(distance([x[:1] for x in found], alone)) < 1e-6


def test_samples_are_the_mask_that_they_stand_for():
    arrays, mask = arrays_of(jnp.float32, 60, heads=4, key_heads=2), masks_of(60)["packed"]
    admitted = mask.samples[:, :, None] == mask.samples[:, None, :]
    for ours, theirs in zip(
        *(with_gradients(attend, arrays, each) for each in (mask, admitted)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_takes_samples_as_a_mask(tiny_model):
    samples = masks_of(24)["packed"].samples
    positions = jnp.arange(24)[None].repeat(2, axis=0)
    tokens = positions + 3
    admitted = samples[:, :, None] == samples[:, None, :]
    forward = nnx.jit(DreamForCausalLM.__call__)
    ours, theirs = (
        forward(tiny_model, tokens, mask, positions) for mask in (SampleMask(samples), admitted)
    )
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="position_ids=None"):
        tiny_model(tokens, SampleMask(samples))


@pytest.mark.parametrize("lean", [interpreted, attend_in_blocks])
def test_a_model_learns_the_same(tiny_model, monkeypatch, lean):
    """Gradients of all weights, of packed rows, where layers are computed again."""
    graph, state = nnx.split(tiny_model)
    samples = masks_of(128)["packed"].samples
    positions = jnp.arange(128)[None].repeat(2, axis=0)

    def gradients():
        def total(state):
            hidden = nnx.merge(graph, state).model(
                positions % 90, SampleMask(samples), positions, remat=True
            )
            return jnp.sum(jnp.sin(hidden) * (samples >= 0)[..., None])

        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(jax.grad(total))(state))]

    expected = gradients()
    monkeypatch.setattr(attention, "choose_attention", lambda *_: lean)
    scale = max(np.abs(x).max() for x in expected)
    for ours, theirs in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * scale)


@dataclass(frozen=True)
class Chip:
    """A device that is not here."""

    id: int
    platform: str = "tpu"
    compute_capability: str = "9.0"


def chosen(
    platform, dtype=jnp.bfloat16, length=2048, keys=None, name="packed", size=SIZE, capability="9.0"
):
    """What a machine takes."""
    q = jnp.zeros((1, length, HEADS, size), dtype)
    k = jnp.zeros((1, KEY_HEADS, keys or length, size), dtype)
    mask = {**masks_of(length, 1), "each": jnp.ones((1, length, length), bool)}[name]
    with patch.object(jax, "devices", lambda: [Chip(0, platform, capability)]):
        return choose_attention(q, k, mask, None)


def test_kernels_are_taken_where_they_pay(monkeypatch):
    monkeypatch.setattr(attention, "has_cudnn", lambda: True)
    assert chosen("cpu") is None
    assert [chosen("tpu", name=name) for name in ("none", "padded", "packed", "each")] == [
        splash
    ] * 3 + [attend_in_blocks]
    assert [chosen("gpu", name=name) for name in ("none", "padded", "packed", "each")] == [
        cudnn
    ] * 4
    for platform in ("tpu", "gpu"):
        assert chosen(platform, dtype=jnp.float32) is None
        assert chosen(platform, length=33, keys=2048) is None
        assert chosen(platform, length=64) is None
    assert (chosen("tpu", length=512), chosen("gpu", length=512)) == (None, cudnn)
    assert (chosen("tpu", size=64), chosen("gpu", size=64)) == (attend_in_blocks, cudnn)
    assert chosen("gpu", length=513) is chosen("gpu", capability="7.5") is None


def test_without_cudnn_scores_are_written(monkeypatch):
    missing = Mock(side_effect=RuntimeError("cuDNN not found."))
    monkeypatch.setattr(jax.nn, "dot_product_attention", missing)
    has_cudnn.cache_clear()
    assert chosen("gpu") is None
    missing.assert_called_once()
    has_cudnn.cache_clear()


def library(query, key, value, *, mask, implementation):
    """In place of JAX's function: takes what it takes."""
    assert implementation == "cudnn"
    assert mask is None or mask.shape == (len(query), 1, query.shape[1], key.shape[1])
    admitted = None if mask is None else mask[:, 0]
    return attend_in_full(query, key.swapaxes(1, 2), value.swapaxes(1, 2), admitted)


@pytest.mark.parametrize("name", ["none", "padded", "packed"])
def test_cudnn_is_called_as_it_must_be(monkeypatch, name):
    monkeypatch.setattr(jax.nn, "dot_product_attention", library)
    arrays, mask = arrays_of(jnp.float32, 64, heads=4, key_heads=2), masks_of(64)[name]
    found, expected = (with_gradients(each, arrays, mask) for each in (cudnn, attend_in_full))
    assert max(distance(found, expected)) < 1e-6


@pytest.mark.parametrize("kernel", [interpreted, cudnn])
@pytest.mark.parametrize("name", ["none", "padded"])
def test_canvases_are_mapped_over_on_a_mesh(monkeypatch, kernel, name):
    """As decoding that looks ahead does; keys may be one for all."""
    monkeypatch.setattr(jax.nn, "dot_product_attention", library)
    monkeypatch.setattr(attention, "choose_attention", lambda *_: kernel)
    q, k, v, _ = arrays_of(jnp.float32, 128, heads=4, key_heads=2)
    mask, several = masks_of(128)[name], jnp.stack([q, 2 * q, -q])
    found = jax.jit(jax.vmap(lambda q: attend(q, k, v, mask, MeshShape().mesh())))(several)
    for ours, one in zip(found, several, strict=True):
        np.testing.assert_allclose(ours, attend_in_full(one, k, v, mask), atol=2e-5)


@pytest.mark.parametrize("name", ["none", "padded", "packed", "each"])
def test_cudnn_in_bfloat16_is_as_near_to_float32_as_attention_in_full(name):
    """At the size of the 7B model, on a card."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU")
    arrays = arrays_of(jnp.bfloat16, 512)
    mask = {**masks_of(512), "each": jnp.tril(jnp.ones((2, 512, 512), bool))}[name]
    exact = with_gradients(attend_in_full, [x.astype(jnp.float32) for x in arrays], mask)
    ours, full = (
        distance(with_gradients(each, arrays, mask), exact) for each in (cudnn, attend_in_full)
    )
    assert max(a / b for a, b in zip(ours, full, strict=True)) < 1.5


def child(*words, **environment):
    """What this file prints as a process of its own."""
    command = [sys.executable, __file__, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_mesh_splits_rows_and_heads():
    """Eight virtual devices, of which each interprets the kernel; where heads do not split, none is
    taken.
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    found = child("meshes", **os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
    assert list(found) == list(MESHES)
    assert max(max(found[mesh]) for mesh in MESHES) < 3e-6


def on_meshes():
    """The child process: distances of outputs and gradients to those of one device."""
    arrays, masks, report = (
        arrays_of(jnp.float32, 128, heads=8, key_heads=4, rows=8),
        masks_of(128, 8).values(),
        {},
    )
    expected = [with_gradients(attend_in_full, arrays, mask) for mask in masks]
    # A window of 16 rows, of which the cache has other keys and values.
    q, k, v, _ = arrays
    heads = q[:, :16], *(x.swapaxes(1, 2)[:, 64:80] for x in (k, v))
    rotary = DreamRotaryEmbedding(SIZE, 1e4)(40 + jnp.arange(16)[None].repeat(8, axis=0))
    window = (
        WindowOperands(*heads, *rotary, masks_of(128, 8)["padded"], KeyValues(k, v)),
        jnp.int32(40),
    )
    of_window = attend_to_cache(*window)
    kernel = (
        patch.multiple(window_kernel, call=partial(window_kernel.call, interpret=True)),
        patch.object(window_attention, "has_kernel", lambda *_: True),
    )
    for name in MESHES:
        on_mesh, distances = partial(attend, mesh=MeshShape.parse(name).mesh()), []
        with patch.object(attention, "choose_attention", lambda *_: interpreted):
            for mask, exact in zip(masks, expected, strict=True):
                distances += map(float, distance(with_gradients(on_mesh, arrays, mask), exact))
        with kernel[0], kernel[1]:
            found = attend_to_cache(*window, mesh=MeshShape.parse(name).mesh())
            pairs = (map(np.asarray, jax.tree.leaves(each)) for each in (found, of_window))
            distances += map(float, distance(*pairs))
        report[name] = distances
    return report


def test_key_heads_that_do_not_split_are_attended_to_in_full():
    q, k = jnp.zeros((1, 2048, 8, SIZE), jnp.bfloat16), jnp.zeros((1, 4, 2048, SIZE), jnp.bfloat16)
    devices = [Chip(number) for number in range(8)]
    for tensor, kernel in ((4, splash), (8, None)):
        mesh = Mesh(np.asarray(devices).reshape(8 // tensor, 1, tensor), AXES)
        assert choose_attention(q, k, None, mesh) is kernel


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(
            "v5e:2x2",
            marks=pytest.mark.skipif(not TPU_COMPILER.is_installed, reason="needs libtpu"),
        ),
        pytest.param(
            "h100:4",
            marks=pytest.mark.skipif(not GPU_COMPILER.is_installed, reason="needs plan-gpu"),
        ),
    ],
)
def test_no_update_writes_the_scores_of_a_row(for_release, topology):
    """As compiled, with layers computed again; in full, they are the largest arrays of a layer."""
    # Without the suite's own flags: as users compile it.
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAX_PLATFORMS", "XLA_FLAGS")
    }
    found = child(topology, **clean)
    if not found["has_kernel"]:
        pytest.skip("needs cuDNN: nvidia-cudnn-cu12")
    assert found["lean"] == []
    assert "f32" in {shape.partition("[")[0] for shape in found["in full"]}


def scores_of(text, length):
    """Shapes of arrays over all queries and all keys of a row, for all heads."""
    least = HEADS * length * length
    shapes = {
        f"{kind}[{sizes}]": sizes for kind, sizes in re.findall(r"\b(f32|bf16)\[([\d,]+)\]", text)
    }
    return sorted(
        shape for shape, sizes in shapes.items() if math.prod(map(int, sizes.split(","))) >= least
    )


def compiled_for(name, length=2048):
    """The child process: arrays of scores in the update of a layer of the 7B model, with kernels
    and without.
    """
    topology = Topology.parse(name)
    compiler.prepare_compiler(topology)
    # A smaller vocabulary, which attention does not see, compiles in minutes less.
    config = replace(DIFFUCODER_7B, num_hidden_layers=1, vocab_size=4096, mask_token_id=4095)
    training = TrainerConfig(
        max_steps=2, optimizer=OptimizerConfig(learning_rate=1e-5), compute_dtype="bfloat16"
    )
    settings = SftConfig(
        max_length=length, batch_size=4, packed=True, loss=LossConfig(remat=True), training=training
    )
    model = DreamForCausalLM.abstract(config)
    model.model.mesh = compiler.topology_mesh(topology, MeshShape(fsdp=2, tensor=2))

    def text():
        jax.clear_caches()
        update, shapes = training_program(settings, model)
        return compiler.compile_lowered(update.lower(*shapes)).as_text()

    report = {"has_kernel": topology.is_tpu or has_cudnn(), "lean": scores_of(text(), length)}
    with patch.object(attention, "choose_attention", lambda *_: None):
        return report | {"in full": scores_of(text(), length)}


if __name__ == "__main__":
    print(json.dumps(on_meshes() if sys.argv[1] == "meshes" else compiled_for(sys.argv[1])))  # noqa: T201

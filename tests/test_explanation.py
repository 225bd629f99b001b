"""What is read of a compiled step: programs that are as they should be, and the same broken on
purpose.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.budgets import Budget, excess

from experiments.compiled.explanation import StepShape, explain
from jax_lm.compilation.programs import step_programs
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape

WIDTH, ROWS, COLUMNS, POSITIONS = 256, 8, 1536, 64
SHAPE = StepShape(vocabulary=COLUMNS, hidden=WIDTH, memory=2**24, in_loop=True)
WEIGHT, HEAD, CACHE = 4 * WIDTH * WIDTH, 4 * WIDTH * COLUMNS, 4 * POSITIONS * WIDTH
LEAST = WEIGHT + HEAD + CACHE
BUDGET = Budget(kernels=24, traffic=1.3, logits=2, logit_rows=ROWS)


def step(params, cache, x, index):
    """Write rows into a cache, attend to it, and give the likeliest column: as a denoising step
    does, but small.
    """
    x = jnp.tanh(x @ params["layer"].T)
    cache = jax.lax.dynamic_update_slice_in_dim(cache, x, index, axis=0)
    x = jax.nn.softmax(x @ cache.T) @ cache
    logits = x @ params["lm_head"].T
    return cache, x + read_over(logits)


def read_over(logits):
    """Read logits twice, so that they are stored; where they are read once, a compiler need not."""
    return jnp.max(logits, axis=-1, keepdims=True) + jnp.cumsum(logits, axis=-1)[:, -1:]


def twice(params, cache, x, index):
    """Go through the weight of the layer once more."""
    cache, x = step(params, cache, x, index)
    return cache, jnp.tanh(x @ params["layer"].T)


def copied(params, cache, x, index):
    """Turn the cache around and back, which cannot be done where it lies."""
    cache, x = step(params, cache, x, index)
    return jax.lax.optimization_barrier(cache.reshape(WIDTH, POSITIONS).T).T.reshape(
        POSITIONS, WIDTH
    ), x


def sorting(params, cache, x, index):
    cache, x = step(params, cache, x, index)
    return cache, jnp.sort(x, axis=-1)


def sorting_the_vocabulary(params, cache, x, index):
    cache, x = step(params, cache, x, index)
    return cache, x + jnp.sort(x @ params["lm_head"].T, axis=-1)[:, :1]


def all_rows(params, cache, x, index):
    """Compute logits of all positions where those of a few are asked for."""
    cache, x = step(params, cache, x, index)
    return cache, x + jnp.max(read_over(cache @ params["lm_head"].T))


def converted(params, cache, x, index):
    """Widen a weight in memory before it is used, as int8 without its barrier would be."""
    wide = jax.lax.optimization_barrier(params["layer"].astype(jnp.float16).T)
    cache, x = step(params, cache, x, index)
    return cache, x @ wide.astype(jnp.float32)


def told(params, cache, x, index):
    """Call the host from within the loop."""
    cache, x = step(params, cache, x, index)
    return cache, jax.pure_callback(
        lambda v: np.asarray(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )


def compiled(body):
    """The text of a loop over a step, of which only the data say how often it runs."""

    def run(params, cache, x, until):
        def advance(carry):
            index, cache, x = carry
            return index + 1, *body(params, cache, x, index)

        return jax.lax.while_loop(lambda carry: carry[0] < until, advance, (jnp.int32(0), cache, x))

    shapes = {"layer": (WIDTH, WIDTH), "lm_head": (COLUMNS, WIDTH)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    cache, x = (jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32) for rows in (POSITIONS, ROWS))
    until = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.jit(run, donate_argnames="cache").lower(params, cache, x, until).compile().as_text()


def test_a_step_is_counted():
    found = explain(compiled(step), SHAPE)
    assert excess(found, BUDGET, LEAST) == []
    assert (found.weights.once, found.weights.read) == (WEIGHT + HEAD, WEIGHT + HEAD)
    assert (found.head.once, found.head.read) == (HEAD, HEAD)
    assert found.cache.once == CACHE
    assert found.rows == {ROWS: 2}
    assert found.kernels["product"] == 4
    assert sum(each.count for each in found.logits) >= 1
    assert {each.what for each in found.buffers} >= {"params['lm_head']", "params['layer']"}
    assert found.read + found.written >= LEAST


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (twice, "read again: params['layer'] 2.0 times"),
        (copied, "moved: cache"),
        (sorting, "sorts: 1 of 0"),
        (sorting_the_vocabulary, f"sorted columns: {COLUMNS} of 0"),
        (sorting_the_vocabulary, "read again: params['lm_head'] 2.0 times"),
        (all_rows, f"rows of logits: {POSITIONS} of {ROWS}"),
        (converted, "moved before: 1 of 0"),
        (told, "host: "),
    ],
)
def test_what_is_broken_exceeds_the_budget(body, named):
    found = excess(explain(compiled(body), SHAPE), BUDGET, LEAST)
    assert any(line.startswith(named) for line in found), found


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_the_real_step_reads_every_weight_once(tiny_config, preset):
    planned = PlannedStep(
        tiny_config, precision="float32", canvas=64, new_tokens=32, decoding=Decoding(preset=preset)
    )
    options = GenerationOptions(max_new_tokens=32, decoding=Decoding(preset=preset))
    programs = step_programs(planned, MeshShape().mesh(jax.devices()[:1]), options)
    assert list(programs) == (["step"] if preset == "exact" else ["refresh", "step"])
    for name, program in programs.items():
        shape = StepShape(vocabulary=96, hidden=32, memory=2**30, in_loop=True)
        found = explain(program.lower().compile().as_text(), shape)
        assert found.read_again == ()
        products = 7 * tiny_config.num_hidden_layers
        if (preset, name) == ("fast", "step"):
            # As many rows as the block has columns, which the head computes as well.
            assert found.rows == {32: products + 1}
        else:
            assert found.rows[64] == products


def test_a_refresh_of_equal_prompts_computes_one_of_them(tiny_config):
    decoding = Decoding(preset="fast")
    planned = PlannedStep(
        tiny_config, precision="float32", batch=4, canvas=64, new_tokens=32, decoding=decoding
    )
    options = GenerationOptions(max_new_tokens=32, decoding=decoding)
    programs = step_programs(planned, MeshShape().mesh(jax.devices()[:1]), options)
    refresh = programs["refresh"]
    *arguments, config = refresh.arguments
    shape = StepShape(vocabulary=96, hidden=32, memory=2**30, in_loop=True)
    rows = []
    for copies in (1, 4):
        lowered = refresh.function.lower(*arguments, replace(config, copies=copies))
        rows.append(explain(lowered.compile().as_text(), shape).rows)
    products = 7 * tiny_config.num_hidden_layers
    assert [found.get(4 * 64, 0) for found in rows] == [products, 0]
    assert [found.get(64, 0) for found in rows] == [0, products]


def test_turbo_runs_the_programs_of_fast(tiny_config):
    lowered = []
    for preset in ("fast", "turbo"):
        planned = PlannedStep(
            tiny_config,
            precision="float32",
            canvas=64,
            new_tokens=32,
            decoding=Decoding(preset=preset),
        )
        options = GenerationOptions(max_new_tokens=32, decoding=Decoding(preset=preset))
        programs = step_programs(planned, MeshShape().mesh(jax.devices()[:1]), options)
        lowered.append({name: program.lower().as_text() for name, program in programs.items()})
    assert lowered[0] == lowered[1]


def test_an_update_is_read_as_a_whole(tiny_config):
    planned = PlannedStep(
        tiny_config, precision="float32", batch=2, canvas=32, new_tokens=16, kind="sft", lora_rank=2
    )
    programs = step_programs(planned, MeshShape().mesh(jax.devices()[:1]), GenerationOptions())
    shape = StepShape(vocabulary=96, hidden=32, memory=2**20, in_loop=False)
    found = explain(programs["update"].lower().compile().as_text(), shape)
    # Forward, once more, and for the gradient of what goes in.
    assert found.weights.read > 2 * found.weights.once
    assert found.buffers


def test_a_program_without_a_loop_has_no_step():
    text = jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile().as_text()
    with pytest.raises(ValueError, match="no loop in this program"):
        explain(text, SHAPE)

"""Measure how fast a model decodes: forward passes, whole generations, recompilations.

Times the compiled functions that `Sampler` runs. Prompts are random: speed does not depend on them,
except with commit rules by probability, whose number of forward passes depends on the confidence of
the model. Entry command: `diffucoder bench`.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp

from jax_lm.benchmark.backend import (
    Backend,
    JaxBackend,
    model_card_options,
    random_canvas,
    random_prompts,
)
from jax_lm.benchmark.machine import PeakMemory, limits_text, machine_lines
from jax_lm.benchmark.settings import Cell, Workload
from jax_lm.benchmark.timer import Timing, time_call, without_stored_compilations
from jax_lm.compilation.programs import begin_generation
from jax_lm.diffusion.canvas import WIDTH_BUCKET, Canvas
from jax_lm.diffusion.sampler import Sampler, run, run_empty_cache
from jax_lm.diffusion.state import BatchInputs, KVCache
from jax_lm.diffusion.step import StepConfig, block_hidden
from jax_lm.host.terminal import Report
from jax_lm.models.graph import ModelFunction, ModelGraph
from jax_lm.models.shapes import RowLogits, Tokens
from jax_lm.options import restrict_options
from jax_lm.planning.memory import forward_cost
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.charts import bar_chart
from jax_lm.reports.document import Document
from jax_lm.reports.tables import Measurements, Row, table_section

# Values of a generation that the report of `diffucoder bench` omits; bench.json has them.
NOT_SHOWN = ("first_seconds", "compilations", "forward_seconds")


@partial(ModelFunction, static_argnames=("graph", "config"), donate_argnames="cache")
def run_block_logits(
    graph: ModelGraph,
    params: dict,
    tokens: Tokens,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[RowLogits, KVCache]:
    """Compute the logits of a block as a step of `sampler.run` does, with the layers in a loop.

    XLA compiles the body of a loop differently from a bare forward pass, which took 10 to 30 %
    longer on two cores. The head stays outside the loop: in a step it is inside a condition, out of
    which XLA moves nothing either.
    """
    model = graph.merge(params)

    def advance(carry):
        # forward passes done, hidden states of the block, cache
        done, _, cache = carry
        # The tokens depend on the counter, so XLA can move nothing out of the loop.
        read, _ = jax.lax.optimization_barrier((tokens, done))
        hidden, cache = block_hidden(model, read, cache, inputs.canvas, inputs.window, config)
        return done + 1, hidden, cache

    # Hidden states of the block [b, length, d], before the first pass.
    empty = jnp.zeros((len(tokens), config.length, model.config.hidden_size), model.dtype)
    start = (jnp.zeros_like(inputs.window.forwards), empty, cache)
    _, hidden, cache = jax.lax.while_loop(
        lambda carry: carry[0] < inputs.window.forwards, advance, start
    )
    return model.logits(hidden), cache


def time_forwards(
    sampler: Sampler, canvas: Canvas, limits: MachineLimits, *, repeats: int
) -> Measurements:
    """Time a forward pass, and the denoising step around it, on the masked first block of a canvas.

    Returns:
        A row for each `window`, the rows that are recomputed: `canvas` (all of them, without a
        cache), `refresh` (all of them, into the cache) and `window` (those of a block's steps); of
        an autoregressive model `prompt` and `step`. `rows` are recomputed in each sequence,
        `head_rows` of them with logits. `overhead` is the share of the step that is not the forward
        pass: filters, draw, selection, bookkeeping; 0 where noise hides it. `bound` is the limit that sets `bound_seconds`:
        compute or memory. `roofline` is the share of the machine's limits that the forward pass
        reaches.
    """
    batch, width = canvas.tokens.shape
    dtype = sampler.params["model"]["norm"]["weight"].dtype
    times = []
    cache = KVCache()

    def time(compute, before, inputs, config):
        """Time a compiled function that takes the cache and returns a new one."""

        def call():
            nonlocal cache
            result, cache, *_ = compute(
                sampler.graph, sampler.params, before, cache, inputs, config
            )
            return result

        # The cache that the first call returns is committed to its devices, which the empty one was
        # not, so that the second call compiles as well.
        call()
        return time_call(call, repeats).seconds

    # Without a cache there is one kind of pass, with one there are two.
    kinds = (("exact", ("canvas",)), ("fast", ("refresh", "window")))
    if sampler.config.is_autoregressive:
        kinds = (("exact", ("prompt", "step")),)
    for preset, names in kinds:
        options = restrict_options(model_card_options(canvas.region.length, preset), sampler.config)
        if options.decoding.settings.cache != "none":
            cache = run_empty_cache(sampler.graph, sampler.params, canvas.tokens.shape, False)
        state, inputs, passes = begin_generation(sampler, canvas, options)
        for name, (config, first_row, _) in zip(names, passes, strict=True):
            inputs = inputs._replace(window=inputs.window.updated(rows=first_row))
            # From left to right, a pass decides one column of the region.
            length = 1 if sampler.config.is_autoregressive else config.length
            seconds = time(run_block_logits, state.tokens, inputs, replace(config, length=length))
            step_seconds = time(run, state, inputs, config)
            # `config.rows` is None where all rows are recomputed.
            rows = width if config.rows is None else config.rows
            sizes = {"batch": batch, "canvas": width, "rows": rows, "head_rows": length}
            cost = forward_cost(sampler.config, dtype, **sizes)
            times.append(
                {
                    "window": name,
                    **sizes,
                    "seconds": seconds,
                    "step_seconds": step_seconds,
                    "overhead": max(1 - seconds / step_seconds, 0.0),
                    "bound_seconds": cost.seconds(limits),
                    "bound": cost.limit(limits),
                    "roofline": cost.seconds(limits) / seconds,
                }
            )
    return times


def time_generation(
    backend: Backend, cell: Cell, repeats: int, *, with_forward: bool = False
) -> Row:
    """Compile on one prompt, then time another one of the same bucket.

    Returns:
        A row: the cell, and its times (see `Timing`). `recompilations`, of the later calls, must be
        0. `tokens_per_forward` are those that a sequence gains, `tied_commits` the share of them
        with a confidence of exactly 1. `compile_seconds` is the first call
        minus the median. If asked for, `forward_seconds` is that of a forward pass over as many
        tokens, with the logits of every position.
    """
    options = model_card_options(cell.new_tokens, cell.preset)
    length = cell.prompt_tokens
    # The warm-up prompt is one token shorter if that falls into the same bucket: the padding then
    # differs, but not the shape.
    shorter = length - (length > 1 and (length + cell.new_tokens) % WIDTH_BUCKET != 1)
    first, other = (
        partial(
            backend.generate, random_prompts(backend.config, cell.batch, size, seed=seed), options
        )
        for seed, size in enumerate((shorter, length))
    )
    row = generation_row(cell, time_call(other, repeats, warm_up=first))
    # The forward pass is timed on as many tokens as prompt and answer have.
    if with_forward:
        ids = random_prompts(backend.config, cell.batch, length + cell.new_tokens, seed=0)
        row["forward_seconds"] = time_call(lambda: backend.forward(ids), repeats).seconds
    return row


def generation_row(cell: Cell, timing: Timing) -> Row:
    """Combine a cell with its times (see `time_generation`)."""
    forwards = timing.result.forwards
    return {
        **asdict(cell),
        **timing.row,
        "tokens_per_second": cell.batch * cell.new_tokens / timing.seconds,
        "forwards": forwards,
        "tokens_per_forward": cell.new_tokens / forwards,
        "tied_commits": timing.result.tied,
        "compile_seconds": max(timing.row["first_seconds"] - timing.seconds, 0.0),
    }


def time_and_memory(backend: Backend, cell: Cell, repeats: int) -> Row:
    """Time a generation, and add the peak memory since it began (see `PeakMemory`)."""
    memory = PeakMemory()
    memory.start()
    return time_generation(backend, cell, repeats) | {"peak_bytes": memory.read()}


def measure_speed(
    sampler: Sampler,
    presets: Sequence[str],
    workload: Workload,
    limits: MachineLimits,
    *,
    on_progress: Report | None = None,
) -> dict[str, Measurements]:
    """Time every preset on the workload, then forward passes of each batch size.

    Forward passes are on the longest canvas.

    Raises:
        ValueError: prompt and answer do not fit the context.
    """
    backend = JaxBackend(sampler)
    cells = workload.cells(presets)
    report = on_progress or (lambda done, total: None)
    total = len(cells) + len(workload.batch_sizes)
    longest = Cell(
        batch=1, prompt_tokens=max(workload.prompt_tokens), new_tokens=max(workload.new_tokens)
    )
    # Checked first: a run must not fail after its longest part.
    longest.require_room(sampler.config.max_position_embeddings)
    generations = []
    forwards = []
    with without_stored_compilations():
        for done, cell in enumerate(cells, 1):
            generations.append(time_and_memory(backend, cell, workload.repeats))
            report(done, total)
        for done, batch in enumerate(workload.batch_sizes, len(cells) + 1):
            canvas = random_canvas(sampler.config, replace(longest, batch=batch), seed=0)
            forwards += time_forwards(sampler, canvas, limits, repeats=workload.repeats)
            report(done, total)
    return {"generations": generations, "forwards": forwards}


def speed_report(speed: Row) -> Document:
    """Return the report of `diffucoder bench` from the content of bench.json."""
    model = speed["model"]
    bars = [
        ("{preset}, batch {batch}, {prompt_tokens} + {new_tokens} tokens".format_map(row), row["preset"],
         row["tokens_per_second"])
        for row in speed["generations"]
    ]  # fmt: skip
    return Document(
        title="Speed",
        metadata={
            "model": "{name}, {parameters:,} parameters, {dtype}".format_map(model),
            **machine_lines(speed["about"]),
            "loading": f"{speed['load_seconds']:.2f} s",
            "limits measured": limits_text(speed["limits"], model["dtype"]),
            "peak memory": speed["peak_memory"],
        },
        sections=(
            table_section(
                "Generation",
                speed["generations"],
                leave_out=NOT_SHOWN,
                picture=bar_chart("Tokens per second", bars),
                name="bench",
            ),
            table_section(
                "One forward pass",
                speed["forwards"],
                text="Every position of the block is masked. The bound is the roofline.",
            ),
        ),
    )

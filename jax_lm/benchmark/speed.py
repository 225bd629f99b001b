"""How fast a model decodes: forward passes against the roofline, whole generations, recompilations, and a report.

What is timed are the compiled pieces that `Sampler` runs. Prompts are random: speed does not depend on them, except for
commit rules by probability, whose number of forwards follows from how sure the model is. Entry: `diffucoder bench`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jax_lm.benchmark.backend import Answers, Backend, JaxBackend, published_options, random_canvas, random_prompts
from jax_lm.benchmark.machine import Machine, PeakMemory
from jax_lm.benchmark.records import table_section
from jax_lm.benchmark.settings import Cell, Workload
from jax_lm.benchmark.timer import Timing, time_call, without_stored_compilations
from jax_lm.diffusion.candidates import SamplingParams
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_empty_cache, step_limit
from jax_lm.diffusion.step import BatchInputs, CanvasArrays, KVCache, StepConfig, Window, block_hidden
from jax_lm.inference import WIDTH_BUCKET
from jax_lm.planning.memory import forward_cost
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.charts import bar_chart
from jax_lm.reports.document import Document

NOT_SHOWN = ("first_seconds", "compilations", "forward_seconds")
"""Of a generation, in the report of `diffucoder bench`; bench.json has them."""


@dataclass(frozen=True, kw_only=True)
class ForwardTime:
    """One forward pass, and the denoising step around it, with every position of the block masked.

    Attributes:
        window: which rows are recomputed: the whole `canvas` without a cache, all of them into the cache (`refresh`),
            or the block and the row before it (`window`).
        rows: recomputed, per row of the batch; `head_rows` of them with logits.
        seconds: of the forward pass with its logits.
        overhead: share of the step that is not the forward pass: filters, draw, choice, bookkeeping.
        bound_seconds: the roofline; `bound` is the limit that sets it, compute or memory.
        roofline: share of it that the forward pass reaches.
    """

    window: str
    batch: int
    canvas: int
    rows: int
    head_rows: int
    seconds: float
    step_seconds: float
    overhead: float
    bound_seconds: float
    bound: str
    roofline: float


@dataclass(frozen=True, kw_only=True)
class GenerationTime(Cell):
    """Wall times of one cell.

    Attributes:
        first_seconds: the first call, which compiles, on another prompt of the same bucket.
        seconds: median of the later ones.
        forwards: model evaluations for the whole batch.
        tokens_per_forward: tokens that a row gains per evaluation.
        compile_seconds: the first call minus the median.
        recompilations: of all later calls; must be 0.
        forward_seconds: of a forward pass over as many tokens, with the logits of every position; 0 if not timed.
        peak_bytes: see `machine.PeakMemory`; 0 if not measured.
    """

    first_seconds: float
    seconds: float
    all_seconds: tuple[float, ...]
    tokens_per_second: float
    forwards: int = 0
    tokens_per_forward: float = 0.0
    compile_seconds: float = 0.0
    compilations: int = 0
    recompilations: int = 0
    forward_seconds: float = 0.0
    peak_bytes: int = 0

    @classmethod
    def of(cls, cell: Cell, timing: Timing[Answers]) -> "GenerationTime":
        """Combine a cell with its times."""
        return cls(
            **asdict(cell),
            first_seconds=timing.first_seconds,
            seconds=timing.seconds,
            all_seconds=timing.all_seconds,
            tokens_per_second=cell.batch * cell.new_tokens / timing.seconds,
            forwards=timing.result.forwards,
            tokens_per_forward=cell.new_tokens / timing.result.forwards,
            compile_seconds=max(timing.first_seconds - timing.seconds, 0.0),
            compilations=timing.compilations,
            recompilations=timing.recompilations,
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """A model by its name, size and dtype."""

    name: str
    parameters: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Everything that `diffucoder bench` measures: bench.json. Loading is also making random weights."""

    about: Machine
    model: MeasuredModel
    workload: Workload
    limits: MachineLimits
    load_seconds: float
    peak_memory: str
    generations: tuple[GenerationTime, ...]
    forwards: tuple[ForwardTime, ...]


@partial(jax.jit, static_argnames=("graph", "config"), donate_argnames="cache")
def run_block_logits(
    graph: nnx.GraphDef,
    params: dict,
    tokens: Int[Array, "b t"],
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[Float[Array, "b r v"], KVCache]:
    """Compute what a step of `sampler.run` computes before it decides anything, the layers in a loop as there.

    XLA runs the body of a loop otherwise than a bare forward pass: on two cores the latter took 10 to 30 % longer. The
    head stays outside: in a step it is under a condition, out of which nothing of it is moved either.
    """
    model = nnx.merge(graph, params)

    def advance(carry: tuple[Array, Array, KVCache]) -> tuple[Array, Array, KVCache]:
        done, _, cache = carry
        # Tied to the counter, so that nothing is moved out of the loop.
        read, _ = jax.lax.optimization_barrier((tokens, done))
        hidden, cache = block_hidden(model, read, cache, inputs, config)
        return done + 1, hidden, cache

    empty = jnp.zeros((len(tokens), config.length, model.config.hidden_size), model.dtype)
    start = (jnp.zeros_like(inputs.window.forwards), empty, cache)
    _, hidden, cache = jax.lax.while_loop(lambda carry: carry[0] < inputs.window.forwards, advance, start)
    return model.logits(hidden), cache


def time_forwards(sampler: Sampler, canvas: Canvas, limits: MachineLimits, *, repeats: int) -> list[ForwardTime]:
    """Time a forward pass and a step by the rows they recompute, on the first block of the canvas."""
    batch, width = canvas.tokens.shape
    arrays, state = CanvasArrays.of(canvas), sampler.start(canvas, seed=0)
    dtype = sampler.params["model"]["embed_tokens"]["weight"].dtype
    times, cache = [], KVCache()

    def timed(compute: Callable[..., Any], before: Any, inputs: BatchInputs, config: StepConfig) -> float:
        """Time a compiled piece, which takes the cache and returns another."""

        def call() -> Any:
            nonlocal cache
            result, cache, *_ = compute(sampler.graph, sampler.params, before, cache, inputs, config)
            return result

        return time_call(call, repeats).seconds

    for preset, names in (("exact", ("canvas",)), ("fast", ("refresh", "window"))):
        options = published_options(canvas.region.length, preset)
        if options.decoding.resolved.cache != "none":
            cache = run_empty_cache(sampler.graph, sampler.params, canvas.tokens.shape, False)
        block = next(canvas.blocks(options.decoding.block_columns(canvas.region.length)))
        params = SamplingParams.of(options, block.length, canvas.region.length)
        passes = block_passes(canvas, block, [], options.decoding, sampler.step_config(options, block.length))
        for name, (config, first_row) in zip(names, passes, strict=True):
            until = step_limit(params, block.length)
            window = Window.of(block=block.start, rows=first_row, first_step=0, until=until, forwards=1)
            inputs = BatchInputs(arrays, window, params)
            seconds = timed(run_block_logits, state.tokens, inputs, config)
            step_seconds = timed(run, state, inputs, config)
            rows = width if config.rows is None else config.rows
            cost = forward_cost(sampler.config, dtype, batch=batch, rows=rows, canvas=width, head_rows=config.length)
            times.append(
                ForwardTime(
                    window=name,
                    batch=batch,
                    canvas=width,
                    rows=rows,
                    head_rows=config.length,
                    seconds=seconds,
                    step_seconds=step_seconds,
                    overhead=1 - seconds / step_seconds,
                    bound_seconds=cost.seconds(limits),
                    bound=cost.limit(limits),
                    roofline=cost.seconds(limits) / seconds,
                )
            )
    return times


def time_generation(backend: Backend, cell: Cell, repeats: int, *, with_forward: bool = False) -> GenerationTime:
    """Compile on one prompt, then time another of the same bucket: what compiles then is a recompilation."""
    options, length = published_options(cell.new_tokens, cell.preset), cell.prompt_tokens
    # One token shorter in the same bucket, if there is such a length: the padding differs, the shape does not.
    shorter = length - (length > 1 and (length + cell.new_tokens) % WIDTH_BUCKET != 1)
    first, other = (
        partial(backend.generate, random_prompts(backend.config, cell.batch, size, seed=seed), options)
        for seed, size in enumerate((shorter, length))
    )
    time = GenerationTime.of(cell, time_call(other, repeats, warm_up=first))
    if not with_forward:
        return time
    ids = random_prompts(backend.config, cell.batch, length + cell.new_tokens, seed=0)
    return replace(time, forward_seconds=time_call(lambda: backend.forward(ids), repeats).seconds)


def measure_speed(
    sampler: Sampler,
    presets: Sequence[str],
    workload: Workload,
    limits: MachineLimits,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[GenerationTime, ...], tuple[ForwardTime, ...]]:
    """Time every preset on the workload, then the forward passes of each batch size on the longest canvas.

    Raises:
        ValueError: prompt and answer do not fit the context.
    """
    backend, cells, memory = JaxBackend(sampler), workload.cells(presets), PeakMemory()
    for cell in cells:
        cell.require_room(sampler.config.max_position_embeddings)
    report, total = on_progress or (lambda done, total: None), len(cells) + len(workload.batch_sizes)
    longest = Cell(batch=1, prompt_tokens=max(workload.prompt_tokens), new_tokens=max(workload.new_tokens))
    generations: list[GenerationTime] = []
    forwards: list[ForwardTime] = []
    with without_stored_compilations():
        for done, cell in enumerate(cells, 1):
            memory.start()
            time = time_generation(backend, cell, workload.repeats)
            generations.append(replace(time, peak_bytes=memory.read()))
            report(done, total)
        for done, batch in enumerate(workload.batch_sizes, len(cells) + 1):
            canvas = random_canvas(sampler.config, replace(longest, batch=batch), seed=0)
            forwards += time_forwards(sampler, canvas, limits, repeats=workload.repeats)
            report(done, total)
    return tuple(generations), tuple(forwards)


def speed_report(speed: Speed) -> Document:
    """Lay out what was measured: two tables and a bar per generation."""
    model, limits = speed.model, speed.limits
    bars = [
        (f"{each.preset}, batch {each.batch}, {each.prompt_tokens} + {each.new_tokens} tokens", each.preset,
         each.tokens_per_second)
        for each in speed.generations
    ]  # fmt: skip
    picture = bar_chart("Tokens per second", bars)
    text = "Every position of the block is masked. The bound is the roofline."
    return Document(
        title="Speed",
        metadata={
            "model": f"{model.name}, {model.parameters:,} parameters, {model.dtype}",
            **speed.about.metadata,
            "loading": f"{speed.load_seconds:.2f} s",
            "matmul rate": f"{limits.matmul_flops / 1e9:,.0f} GFLOP/s in {model.dtype}",
            "copy bandwidth": f"{limits.copy_bytes / 1e9:,.1f} GB/s",
            "peak memory": speed.peak_memory,
        },
        verdicts=(),
        sections=(
            table_section("Generation", speed.generations, NOT_SHOWN, picture=picture, name="bench"),
            table_section("One forward pass", speed.forwards, text=text),
        ),
    )

"""How fast a model decodes: forward passes against the roofline, whole generations, recompilations.

Every time is a median after a warm-up. What is timed are the compiled pieces that `Sampler` runs. Prompts are random:
speed does not depend on them, except for commit rules by probability, whose number of forwards follows from how sure
the model is. Entry: `diffucoder bench`.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jax_lm.benchmark.machine import (
    PeakMemory,
    compilations,
    median_seconds,
    seconds_of,
    without_stored_compilations,
)
from jax_lm.config import DreamConfig
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler, block_passes, run, run_empty_cache, step_limit
from jax_lm.diffusion.step import BatchInputs, CanvasArrays, KVCache, StepConfig, Window, block_hidden
from jax_lm.diffusion.unmasking import SamplingParams
from jax_lm.inference import WIDTH_BUCKET
from jax_lm.models.dream import DreamForCausalLM, nest, parameter_shapes
from jax_lm.options import PRESETS, Decoding, GenerationOptions
from jax_lm.planning import forward_cost
from jax_lm.roofline import MachineLimits


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to generate: all combinations of preset, batch size and length.

    Attributes:
        prompt_tokens: length of the random prompts.
        repeats: timed calls, of which the median counts.
    """

    presets: tuple[str, ...] = tuple(PRESETS)
    batch_sizes: tuple[int, ...] = (1, 8)
    new_tokens: tuple[int, ...] = (64, 256)
    prompt_tokens: int = 64
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("presets", "batch_sizes", "new_tokens"):
            if not getattr(self, name):
                raise ValueError(f"{name}=(): must name at least one")
        for preset in self.presets:
            if preset not in PRESETS:
                raise ValueError(f"presets: {preset!r} is none of {', '.join(PRESETS)}")
        for name in ("batch_sizes", "new_tokens"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: each must be at least 1")
        for name in ("prompt_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def cells(self) -> list[tuple[str, int, int]]:
        """Preset, batch size and new tokens of every measurement."""
        return [(p, b, n) for n in self.new_tokens for b in self.batch_sizes for p in self.presets]


@dataclass(frozen=True)
class ForwardTime:
    """One forward pass, and the denoising step around it, with every position of the block masked.

    Attributes:
        window: which rows are recomputed: the whole `canvas` without a cache, all of them into the cache (`refresh`),
            or the block and the row before it (`window`).
        rows: rows recomputed, per row of the batch.
        head_rows: rows whose logits are computed.
        seconds: of the forward pass with its logits.
        step_seconds: of the whole step.
        overhead: share of the step that is not the forward pass: filters, draw, choice, bookkeeping.
        bound_seconds: the roofline.
        bound: the limit that sets it, compute or memory.
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


@dataclass(frozen=True)
class GenerationTime:
    """One cell of the workload.

    Attributes:
        forwards: model evaluations for the whole batch.
        tokens_per_forward: tokens that a row gains per evaluation.
        compile_seconds: first call minus the median.
        compilations: of the first call, on another prompt of the same bucket.
        recompilations: of all later calls; must be 0.
        peak_bytes: see `machine.PeakMemory`.
    """

    preset: str
    batch: int
    new_tokens: int
    forwards: int
    seconds: float
    tokens_per_second: float
    tokens_per_forward: float
    compile_seconds: float
    compilations: int
    recompilations: int
    peak_bytes: int


def random_model(config: DreamConfig, dtype: DTypeLike, *, seed: int = 0) -> DreamForCausalLM:
    """A model with random weights, made on the device tensor by tensor; a 7B shape fits where its weights do."""

    @partial(jax.jit, static_argnames="shape")
    def matrix(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape, dtype) * jnp.asarray(config.initializer_range, dtype)

    def tensor(index: int, name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            return jnp.full(shape, 0 if name.endswith("bias") else 1, dtype)
        return matrix(jax.random.fold_in(root, index), shape)

    root = jax.random.key(seed, impl="rbg")
    tensors = {name: tensor(i, name, shape) for i, (name, shape) in enumerate(parameter_shapes(config).items())}
    graph, state = nnx.split(DreamForCausalLM.abstract(config, dtype))
    return nnx.merge(graph, nest(tensors, nnx.to_pure_dict(state)))


def random_prompts(config: DreamConfig, batch: int, length: int, *, seed: int) -> Int[np.ndarray, "b t"]:
    """Token ids without MASK."""
    ids = np.random.default_rng(seed).integers(0, config.vocab_size - 1, (batch, length), dtype=np.int32)
    return ids if config.mask_token_id is None else ids + (ids >= config.mask_token_id).astype(np.int32)


def random_canvas(config: DreamConfig, batch: int, prompt_tokens: int, new_tokens: int, *, seed: int) -> Canvas:
    """Random prompts and holes after them, left-padded to a width that `inference` pads requests to.

    Raises:
        ValueError: they do not fit the context.
    """
    if prompt_tokens + new_tokens > config.max_position_embeddings:
        raise ValueError(
            f"prompt_tokens={prompt_tokens} with new_tokens={new_tokens}: "
            f"the context holds {config.max_position_embeddings} tokens"
        )
    return padded_canvas(random_prompts(config, batch, prompt_tokens, seed=seed), new_tokens)


def padded_canvas(prompts: Int[np.ndarray, "b t"], new_tokens: int) -> Canvas:
    """Prompts of one length and holes after them, as wide as `inference` makes requests."""
    padding = ((0, 0), (-(prompts.shape[1] + new_tokens) % WIDTH_BUCKET, 0))
    return Canvas.after(np.pad(prompts, padding), np.pad(np.ones_like(prompts), padding), new_tokens)


def published_settings(new_tokens: int, preset: str) -> GenerationOptions:
    """DiffuCoder's settings: one token per step, or as many steps as a commit rule by probability needs."""
    return GenerationOptions(max_new_tokens=new_tokens, temperature=0.2, decoding=Decoding(preset=preset))


@partial(jax.jit, static_argnames=("graph", "config"), donate_argnames="cache")
def run_block_logits(
    graph: nnx.GraphDef,
    params: dict,
    tokens: Int[Array, "b t"],
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[Float[Array, "b r v"], KVCache]:
    """What a step of `sampler.run` computes before it decides anything, in a loop as there.

    XLA runs the body of a loop otherwise than a bare forward pass: on two cores the latter took 10 to 30 % longer.
    """
    model = nnx.merge(graph, params)

    def advance(carry: tuple[Array, Array, KVCache]) -> tuple[Array, Array, KVCache]:
        done, _, cache = carry
        # Tied to the counter, so that nothing is moved out of the loop.
        read, _ = jax.lax.optimization_barrier((tokens, done))
        hidden, cache = block_hidden(model, read, cache, inputs, config)
        return done + 1, model.logits(hidden), cache

    empty = jnp.zeros((len(tokens), config.length, model.config.vocab_size), jnp.float32)
    start = (jnp.zeros_like(inputs.window.forwards), empty, cache)
    _, logits, cache = jax.lax.while_loop(lambda carry: carry[0] < inputs.window.forwards, advance, start)
    return logits, cache


def forward_times(sampler: Sampler, canvas: Canvas, limits: MachineLimits, *, repeats: int) -> list[ForwardTime]:
    """Times of a forward pass and of a step by the rows they recompute, on the first block of the canvas."""
    batch, width = canvas.tokens.shape
    arrays, state = CanvasArrays.of(canvas), sampler.start(canvas, seed=0)
    dtype = sampler.params["model"]["embed_tokens"]["weight"].dtype
    times = []
    for preset, names in (("exact", ("canvas",)), ("fast", ("refresh", "window"))):
        options = published_settings(canvas.region.length, preset)
        cache = KVCache()
        if options.decoding.resolved.cache != "none":
            cache = run_empty_cache(sampler.graph, sampler.params, canvas.tokens.shape, False)
        block = next(canvas.blocks(options.decoding.block_columns(canvas.region.length)))
        params = SamplingParams.of(options, block.length, canvas.region.length)
        passes = block_passes(canvas, block, [], options.decoding, sampler.step_config(options, block.length))
        for name, (config, first_row) in zip(names, passes, strict=True):
            until = step_limit(params, block.length)
            window = Window.of(block=block.start, rows=first_row, first_step=0, until=until, forwards=1)
            inputs = BatchInputs(arrays, window, params)

            def forward(inputs: BatchInputs = inputs, config: StepConfig = config) -> Array:
                nonlocal cache
                logits, cache = run_block_logits(sampler.graph, sampler.params, state.tokens, cache, inputs, config)
                return logits

            def step(inputs: BatchInputs = inputs, config: StepConfig = config) -> Array:
                nonlocal cache
                after, cache, _ = run(sampler.graph, sampler.params, state, cache, inputs, config)
                return after.tokens

            rows = width if config.rows is None else config.rows
            cost = forward_cost(sampler.config, dtype, batch=batch, rows=rows, canvas=width, head_rows=config.length)
            seconds, whole, bound = (
                median_seconds(forward, repeats),
                median_seconds(step, repeats),
                cost.seconds(limits),
            )
            figures = (seconds, whole, 1 - seconds / whole, bound, cost.limit(limits), bound / seconds)
            times.append(ForwardTime(name, batch, width, rows, config.length, *figures))
    return times


def generation(sampler: Sampler, preset: str, batch: int, new_tokens: int, workload: Workload) -> GenerationTime:
    """Compile on one prompt, then time another of the same bucket: what compiles then is a recompilation."""
    options = published_settings(new_tokens, preset)
    length = workload.prompt_tokens
    # One token shorter in the same bucket, if there is such a length: the padding differs, the shape does not.
    shorter = length - (length > 1 and (length + new_tokens) % WIDTH_BUCKET != 1)
    first, other = (
        random_canvas(sampler.config, batch, tokens, new_tokens, seed=seed)
        for seed, tokens in enumerate((shorter, length))
    )
    counter, memory = compilations(), PeakMemory()
    memory.start()
    before = counter.count
    first_seconds = seconds_of(lambda: sampler.generate(first, options))
    compiled = counter.count
    state = sampler.start(other, seed=0)
    times = []
    for _ in range(workload.repeats):
        start = time.perf_counter()
        state = jax.block_until_ready(sampler.generate(other, options))
        times.append(time.perf_counter() - start)
    seconds, forwards = statistics.median(times), int(state.forwards)
    return GenerationTime(
        preset=preset,
        batch=batch,
        new_tokens=new_tokens,
        forwards=forwards,
        seconds=seconds,
        tokens_per_second=batch * new_tokens / seconds,
        tokens_per_forward=new_tokens / forwards,
        compile_seconds=max(first_seconds - seconds, 0.0),
        compilations=compiled - before,
        recompilations=counter.count - compiled,
        peak_bytes=memory.read(),
    )


def measure(
    sampler: Sampler,
    workload: Workload,
    limits: MachineLimits,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[list[GenerationTime], list[ForwardTime]]:
    """All cells of the workload, then the forward passes of each batch size on the longest canvas.

    Raises:
        ValueError: prompt and answer do not fit the context.
    """
    longest = max(workload.new_tokens)
    canvases = [
        random_canvas(sampler.config, batch, workload.prompt_tokens, longest, seed=0) for batch in workload.batch_sizes
    ]
    total = len(workload.cells) + len(canvases)
    generations: list[GenerationTime] = []
    forwards: list[ForwardTime] = []
    with without_stored_compilations():
        for cell in workload.cells:
            generations.append(generation(sampler, *cell, workload))
            if on_progress:
                on_progress(len(generations), total)
        for done, canvas in enumerate(canvases, start=len(generations) + 1):
            forwards.extend(forward_times(sampler, canvas, limits, repeats=workload.repeats))
            if on_progress:
                on_progress(done, total)
    return generations, forwards

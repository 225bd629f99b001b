"""The sampler: walks a canvas block by block with the compiled loop over `step`.

    state = Sampler(model).generate(Canvas.after(ids, mask, 256), GenerationOptions(max_new_tokens=256))

`generate` and `stream` run the same compiled loop; they differ in how often it returns.
"""

import copy
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.block_pipeline import begin_forcing, force, forcing_passes
from jax_lm.diffusion.candidates import Candidates, SamplingParams
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.drafts import Drafted, advance_rows, unbounded
from jax_lm.diffusion.extent import Extent
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.step import (
    NEVER,
    NO_HOOKS,
    BatchInputs,
    CanvasArrays,
    Evaluation,
    Hooks,
    KVCache,
    SamplerState,
    StepConfig,
    Window,
    block_columns,
    evaluate,
    rewrite,
    skip_idle,
    step,
)
from jax_lm.diffusion.variable_length import grow, growing_config, growing_params, growth_of
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.sharding import replicate

UNLIMITED = np.iinfo(np.int32).max


class Sampler:
    """Fills canvases with one model. The model is split once; each call costs one dispatch."""

    def __init__(self, model: DreamForCausalLM) -> None:
        if model.config.mask_token_id is None:
            raise ValueError("config mask_token_id=None: this checkpoint is not a masked-diffusion model")
        self.config, self.mesh = model.config, model.mesh
        self.mask_id: int = model.config.mask_token_id
        self.growth = growth_of(model.config)
        self.graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)

    def with_params(self, params: dict) -> "Sampler":
        """Make a sampler of the same model with other weights; it shares what is compiled."""
        other = copy.copy(self)
        other.params = params
        return other

    def on_mesh(self, mesh: Mesh) -> "Sampler":
        """Make a sampler of the same model for weights that lie on another mesh; its own stay where they are."""
        model = nnx.merge(self.graph, self.params)
        model.model.mesh = mesh
        other = copy.copy(self)
        other.graph, other.mesh = nnx.split(model)[0], mesh
        return other

    def start(self, canvas: Canvas, seed: int | Key[Array, "b"]) -> SamplerState:
        """The state before the first step. A row's randomness depends on its key, or seed and index, alone."""
        if isinstance(seed, int):
            if seed < 0:
                raise ValueError(f"seed={seed}: must not be negative")
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(len(canvas.tokens)))
        else:
            keys = seed
        holes = jnp.asarray(canvas.holes)
        return SamplerState(
            tokens=jnp.where(holes, self.mask_id, canvas.tokens),
            masked=holes,
            commit_step=jnp.where(holes, jnp.int32(NEVER), jnp.int32(-1)),
            confidence=jnp.zeros(holes.shape, jnp.float32),
            step=jnp.int32(0),
            forwards=jnp.int32(0),
            keys=keys,
            extent=None if canvas.room is None else Extent.of(canvas),
        )

    def generate(
        self,
        canvas: Canvas,
        options: GenerationOptions,
        *,
        seed: int | Key[Array, "b"] = 0,
        stop_ids: tuple[int, ...] = (),
        hooks: Hooks = NO_HOOKS,
        strict_reference: bool = False,
        state: SamplerState | None = None,
    ) -> SamplerState:
        """Fill the canvas; the loop over a block is one compiled computation. Arguments as those of `stream`."""
        *_, last = self.stream(
            canvas,
            options,
            seed=seed,
            every=None,
            stop_ids=stop_ids,
            hooks=hooks,
            strict_reference=strict_reference,
            state=state,
        )
        return last

    def stream(
        self,
        canvas: Canvas,
        options: GenerationOptions,
        *,
        seed: int | Key[Array, "b"] = 0,
        every: int | None = 1,
        stop_ids: tuple[int, ...] = (),
        hooks: Hooks = NO_HOOKS,
        strict_reference: bool = False,
        state: SamplerState | None = None,
    ) -> Iterator[SamplerState]:
        """Yield the state after every `every` steps (None: as rarely as possible), after each block and at the end.

        Args:
            options: `max_new_tokens` alone is not read: the canvas has its length.
            seed: of the draws, or one key per row.
            stop_ids: tokens that end a row; not used without `options.early_stop`.
            hooks: of the reference.
            strict_reference: admit MASK itself as a candidate, as the reference does.
            state: where to go on from, with a mask left, instead of `seed` and an empty canvas.

        Raises:
            ValueError: no hole, a negative seed, guesses (`options.draft`) with hooks or the strict reference, or a
                grammar, of which tokens know nothing; holes that grow (`canvas.room`), or the cache `causal`, with what
                does not go with them.
        """
        if options.grammar is not None:
            raise ValueError(f"grammar={options.grammar!r}: must be None; only DiffuCoderInference holds texts to one")
        decoding = options.decoding.settings
        arrays, state = CanvasArrays.of(canvas), self.start(canvas, seed) if state is None else state
        if hooks.tokens is not None:
            state = rewrite(state, hooks.tokens(-1, state.tokens, None), arrays.holes, self.mask_id)
        cache = KVCache()
        if decoding.cache != "none":
            cache = run_empty_cache(self.graph, self.params, canvas.tokens.shape, decoding.cache == "dual")
        config = self.canvas_config(canvas, options, stop_ids=stop_ids, hooks=hooks, strict_reference=strict_reference)
        blocks = canvas.blocks(options.decoding.block_columns(canvas.region.length))
        if decoding.cache == "causal":
            blocks, (state, config) = [canvas.region], begin_forcing(state, canvas, options, config)
        done: list[Block] = []
        for block in blocks:
            if not np.asarray(state.masked)[:, block.start : block.end].any():
                # Decided before: its rows were never computed here.
                continue
            passes = block_passes(canvas, block, done, options.decoding, replace(config, length=block.length))
            params = SamplingParams.of(options, block.length, canvas.region.length)
            if state.extent is not None:
                params = growing_params(params, state)
            refresh_steps = decoding.refresh_steps or UNLIMITED
            state, cache = yield from self.fill(state, cache, arrays, block, params, passes, refresh_steps, every)
            done.append(block)
            if not np.asarray(state.masked).any():
                break

    def canvas_config(self, canvas: Canvas, options: GenerationOptions, **settings: Any) -> StepConfig:
        """The configuration of steps over a canvas, with settings as `stream` has them; ValueError as there."""
        config = replace(self.step_config(options, canvas.region.length), **settings)
        if not options.early_stop or canvas.room is not None:
            # The end of a text deletes where holes grow.
            config = replace(config, stop_ids=())
        if options.extra_canvases and (config.hooks != NO_HOOKS or config.strict_reference):
            raise ValueError(f"{options.extra_canvases_option}: must be 0 with hooks or strict_reference")
        return config if canvas.room is None else growing_config(config, options)

    def step_config(self, options: GenerationOptions, length: int) -> StepConfig:
        """The configuration of steps over a block of that many columns that recompute every row."""
        return StepConfig(
            length=length,
            rows=None,
            mask_id=self.mask_id,
            top_k=options.top_k,
            checked=options.extra_canvases,
            guessed=options.extra_canvases,
            looks_ahead=options.lookahead > 0,
            growth=self.growth,
        )

    def fill(
        self,
        state: SamplerState,
        cache: KVCache,
        arrays: CanvasArrays,
        block: Block,
        params: SamplingParams,
        passes: list[tuple[StepConfig, int]],
        refresh_steps: int,
        every: int | None,
    ) -> Generator[SamplerState, None, tuple[SamplerState, KVCache]]:
        """Decode one block, yielding as `stream` does.

        Args:
            passes: those of `block_passes`; the first of two is for the block's first evaluation.
            refresh_steps: evaluations between two refreshes.
        """
        step = first_step = int(state.step)
        limit = first_step + step_limit(params, block.length)
        forwards, refreshed = int(state.forwards), None
        is_open = True
        drafted = Drafted.of(state, passes[0][0]) if passes[0][0].guessed else None
        while is_open and step < limit:
            is_refresh = len(passes) > 1 and (refreshed is None or forwards - refreshed >= refresh_steps)
            config, first_row = passes[0] if is_refresh else passes[-1]
            if refreshed is not None:
                config = replace(config, forced=False)
            window = Window.of(
                block=block.start,
                rows=first_row,
                first_step=first_step,
                until=limit if every is None else min(limit, step + every),
                forwards=forwards + 1 if is_refresh else min((refreshed or 0) + refresh_steps, UNLIMITED),
            )
            inputs = BatchInputs(arrays, window, params)
            if drafted is None:
                state, cache, still_open = run(self.graph, self.params, state, cache, inputs, config)
            else:
                state, drafted, cache, still_open = run_drafted(self.graph, self.params, drafted, cache, inputs, config)
            yield state
            if is_refresh and int(state.forwards) > forwards:
                refreshed = forwards
            step, forwards, is_open = int(state.step), int(state.forwards), bool(still_open)
        return state, cache

    def replay(
        self,
        tokens: Int[np.ndarray, "b t"],
        canvas: Canvas,
        options: GenerationOptions,
        step: int,
        *,
        strict_reference: bool = False,
    ) -> tuple[Int[np.ndarray, "b t"], Float[np.ndarray, "b t"]]:
        """One step from any canvas on the way, over the whole canvas.

        Returns:
            The tokens after it, and the confidence by which positions were chosen (-inf where nothing was masked).
        """
        region, holes = canvas.region, canvas.holes & (tokens == self.mask_id)
        state = self.start(canvas, seed=0)
        state = state._replace(tokens=jnp.asarray(tokens), masked=jnp.asarray(holes), step=jnp.int32(step))
        config = replace(self.step_config(options, region.length), strict_reference=strict_reference)
        inputs = BatchInputs(
            CanvasArrays.of(canvas),
            Window.of(block=region.start, rows=0, first_step=0, until=step + 1, forwards=UNLIMITED),
            SamplingParams.of(options, region.length, region.length),
        )
        scores = run_evaluation(self.graph, self.params, state, inputs, config).proposal.scores
        after, _, _ = run(self.graph, self.params, state, KVCache(), inputs, config)
        everywhere = np.full(tokens.shape, -np.inf, np.float32)
        everywhere[:, region.start : region.end] = scores
        return np.asarray(after.tokens), np.where(holes, everywhere, -np.inf)

    def candidates(self, canvas: Canvas, state: SamplerState, options: GenerationOptions) -> Candidates:
        """Tell what the masked positions may become, by one forward: the likeliest tokens, past all filters.

        Returns:
            Ids and log-probabilities at the temperature, of the columns of the canvas's region.
        """
        region = canvas.region
        config = replace(self.step_config(options, region.length), top_k=None, checked=0, guessed=1, looks_ahead=False)
        inputs = BatchInputs(
            CanvasArrays.of(canvas),
            Window.of(block=region.start, rows=0, first_step=0, until=UNLIMITED, forwards=UNLIMITED),
            SamplingParams.of(options.with_settings(top_p=None, min_p=None), region.length, region.length),
        )
        candidates = run_evaluation(self.graph, self.params, state, inputs, config).candidates
        assert candidates is not None
        return candidates

    def logits_at(self, tokens: Int[np.ndarray, "t"], length: int, column: int) -> Float[np.ndarray, "v"]:
        """Tell what a column may become, by one forward; what it cannot become (MASK, expanding) has none of a chance.

        Args:
            tokens: a canvas, MASK where nothing is decided, of which `length` columns are there.
        """
        logits = np.array(run_logits(self.graph, self.params, tokens, np.int32(length), np.int32(column)), np.float32)
        logits[[self.mask_id] if self.growth is None else [self.mask_id, self.growth.expand_id]] = -np.inf
        return logits

    def forward(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Logits of one compiled forward pass over a canvas without padding, not shifted."""
        return run_forward(self.graph, self.params, tokens)


def block_passes(
    canvas: Canvas, block: Block, done: list[Block], decoding: Decoding, config: StepConfig
) -> list[tuple[StepConfig, int]]:
    """The passes over a block, each with the first row that it recomputes: the refresh that begins it, and its steps.

    Without a cache there is one, over all rows. Rows are [first, first + config.rows) of the canvas.
    """
    chosen, width = decoding.settings, canvas.tokens.shape[1]
    if config.grid is not None:
        return forcing_passes(config, config.grid)
    if chosen.cache == "none":
        return [(config, 0)]
    if done and len(done) % chosen.refresh_every:
        # Between two full forwards: the last block, now that it is decided, and the new one.
        first_row, end_row = max(done[-1].start - 1, 0), block.end
    else:
        first_row, end_row = max(canvas.region.start - 1, 0) if done and chosen.freeze_prompt else 0, width
    refresh = replace(config, rows=end_row - first_row, forced=chosen.first_token == "force", checked=0)
    # A forced first token needs no row before it: Fast-dLLM's windows begin with the block.
    with_row_before = chosen.cache != "dual" and chosen.first_token == "rule" and block.start > 0
    start = block.start - 1 if with_row_before else block.start
    end = width if chosen.cache == "prefix" else block.end
    steps = replace(config, rows=end - start, uses_tail=chosen.cache == "dual" and block.start > 0)
    return [(refresh, first_row), (steps, start)]


def step_limit(params: SamplingParams, length: int) -> int:
    """Steps after which a block of that length ends even if a mask is left (only the strict reference leaves any)."""
    return int(params.steps) if params.by_schedule else max(int(params.steps), length)


@partial(jax.jit, static_argnames=("graph", "config"), donate_argnames="cache")
def run(
    graph: nnx.GraphDef, params: dict, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[SamplerState, KVCache, Bool[Array, ""]]:
    """Take steps until the block is full or the window says to return; also whether a mask is left in the block."""
    model, window = nnx.merge(graph, params), inputs.window

    def is_open(state: SamplerState) -> Bool[Array, ""]:
        masked = state.masked if config.grid is not None else block_columns(state.masked, window, config)
        return jnp.any(masked)

    def goes_on(carry: tuple[SamplerState, KVCache]) -> Bool[Array, ""]:
        state, _ = carry
        return is_open(state) & (state.step < window.until) & (state.forwards < window.forwards)

    def advance(carry: tuple[SamplerState, KVCache]) -> tuple[SamplerState, KVCache]:
        advance_one = force if config.grid is not None else step if carry[0].extent is None else grow
        return advance_one(model, *carry, inputs, config)

    state, cache = jax.lax.while_loop(goes_on, advance, (skip_idle(state, inputs, config), cache))
    # The state is small, and every host looks at it.
    state, still_open = replicate((state, is_open(state)), model.mesh)
    return state, cache, still_open


@partial(jax.jit, static_argnames=("graph", "config"), donate_argnames="cache")
def run_drafted(
    graph: nnx.GraphDef, params: dict, drafted: Drafted, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[SamplerState, Drafted, KVCache, Bool[Array, ""]]:
    """Take steps as `run` does, with guesses.

    Returns:
        The state at the step before which the window says to return, the rows that may be further, the cache, and
        whether a mask is left in the block of that state.
    """
    model, window = nnx.merge(graph, params), inputs.window
    canvas, cache = jax.tree.map(lambda part: part[:, None], (inputs.canvas, cache))
    axes = BatchInputs._make((0, None, None))
    of_rows = BatchInputs(canvas, window, inputs.params)

    def is_open(rows: SamplerState) -> Bool[Array, "b"]:
        return jnp.any(jax.vmap(partial(block_columns, window=window, config=config))(rows.masked), axis=(1, 2))

    def is_going(rows: SamplerState) -> Bool[Array, "b"]:
        return is_open(rows) & (rows.step < window.until) & (rows.forwards < window.forwards)

    def advance(carry: tuple[Drafted, KVCache]) -> tuple[Drafted, KVCache]:
        before, cache = carry
        after, cache = advance_rows(model, before, cache, of_rows, config, is_going(before.rows), axes)
        # The rows are evaluated together, whether they still go or not.
        return after._replace(rows=after.rows._replace(forwards=before.rows.forwards + 1)), cache

    skip = jax.vmap(partial(skip_idle, config=config), in_axes=(0, axes))
    rows = skip(drafted.rows, unbounded(of_rows))
    if config.forced:
        # A forced token is committed at one step for all rows, idle or not.
        first = jnp.min(jnp.where(is_open(rows), rows.step, NEVER))
        rows = rows._replace(step=jnp.where(is_open(rows), first, rows.step))
    drafted = drafted._replace(rows=rows)
    drafted, cache = jax.lax.while_loop(lambda carry: jnp.any(is_going(carry[0].rows)), advance, (drafted, cache))
    rows = drafted.rows
    left = jnp.min(jnp.where(is_open(rows), rows.step, NEVER))
    state = drafted.at(jnp.minimum(window.until, jnp.where(left < NEVER, left, jnp.max(rows.step))), config.mask_id)
    still_open = jnp.any(block_columns(state.masked, window, config))
    state, drafted, still_open = replicate((state, drafted, still_open), model.mesh)
    return state, drafted, jax.tree.map(lambda part: part[:, 0], cache), still_open


@partial(jax.jit, static_argnames=("graph", "config"))
def run_evaluation(
    graph: nnx.GraphDef, params: dict, state: SamplerState, inputs: BatchInputs, config: StepConfig
) -> Evaluation:
    """Evaluate a canvas as the next step of `run` would, without a cache."""
    return evaluate(nnx.merge(graph, params), state, KVCache(), inputs, config)[0]


@partial(jax.jit, static_argnames=("graph", "shape", "has_tail"))
def run_empty_cache(graph: nnx.GraphDef, params: dict, shape: tuple[int, int], has_tail: bool) -> KVCache:
    """Zeros for rows of a canvas [b, t]."""
    model = nnx.merge(graph, params).model
    weight = model.embed_tokens.weight[...]
    tail = jnp.zeros((shape[0], 1, weight.shape[1]), weight.dtype) if has_tail else None
    return KVCache(model.empty_cache(*shape), tail)


@partial(jax.jit, static_argnames="graph")
def run_logits(
    graph: nnx.GraphDef, params: dict, tokens: Int[Array, "t"], length: Int[Array, ""], column: Int[Array, ""]
) -> Float[Array, "v"]:
    """Logits of one column of a canvas that is padded on the right."""
    model, positions = nnx.merge(graph, params), jnp.arange(len(tokens), dtype=jnp.int32)[None]
    hidden = model.model(tokens[None], positions < length, positions)
    return replicate(model.logits(jnp.take(shift_right(hidden), column, axis=1))[0], model.mesh)


@partial(jax.jit, static_argnames="graph")
def run_forward(graph: nnx.GraphDef, params: dict, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
    return nnx.merge(graph, params)(tokens)

"""The sampler: fills a canvas block by block with the compiled loop over steps.

    state = Sampler(model).generate(Canvas.after(ids, mask, 256), GenerationOptions(max_new_tokens=256))

From the top down:

    stream    the blocks of a canvas, one after another
    fill      one block: chooses between refresh and step, and calls the compiled loop
    run       the compiled loop over `jax_lm.diffusion.step.Variant.advance`

`generate` is `stream` without intermediate states: the compiled loop only returns less often.
"""

import copy
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from operator import index
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from jax_lm.config import DreamConfig
from jax_lm.diffusion.block_pipeline import BlockPipeline
from jax_lm.diffusion.candidates import SamplingParams
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.delayed_cache import DelayedCache
from jax_lm.diffusion.drafts import Drafts
from jax_lm.diffusion.left_to_right import LeftToRight
from jax_lm.diffusion.lookahead import Lookahead
from jax_lm.diffusion.multi_block import MultiBlock
from jax_lm.diffusion.path_planning import PathPlanning
from jax_lm.diffusion.state import (
    NEVER,
    NO_HOOKS,
    NOT_FINITE,
    BatchInputs,
    CanvasArrays,
    Evaluation,
    Hooks,
    KVCache,
    SamplerState,
    Seed,
    StepCarry,
    Window,
    fill_masks,
    rewrite,
    row_keys,
)
from jax_lm.diffusion.step import (
    PLAIN,
    Pass,
    Passes,
    StepConfig,
    Variant,
    block_hidden,
    empty_cache,
    evaluate,
)
from jax_lm.diffusion.variable_length import VariableLength, growth_of
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import ModelFunction, ModelGraph, split_model
from jax_lm.models.shapes import (
    HostLogits,
    HostTokens,
    HostValues,
    Logits,
    ScalarInt,
    SequenceTokens,
    Shape,
    StopIds,
    Tokens,
)
from jax_lm.options import (
    BLOCK_LENGTH,
    LEFT_TO_RIGHT_ONLY,
    Decoding,
    GenerationOptions,
    window_length,
)
from jax_lm.sharding import constrain

# A function that returns which rows of a state need no continuation.
IsOver = Callable[[SamplerState], Bool[np.ndarray, "b"]]

# Decoding methods by precedence: the first one accepts the request whose `of` returns a variant.
METHODS: tuple[type[Variant], ...] = (
    VariableLength,
    PathPlanning,
    LeftToRight,
    BlockPipeline,
    MultiBlock,
    DelayedCache,
    Drafts,
    Lookahead,
    Variant,
)


class LogitsWindow(NamedTuple):
    """What `Sampler.logits_at` keeps between calls, to recompute a window like cache `window`.

    Attributes:
        cache: keys and values of all rows.
        end: end of the window of 33 rows. Logits of a column from here on recompute all rows.
    """

    cache: KVCache = KVCache()
    end: int = 0


class Sampler:
    """Fills canvases with one model.

    Attributes:
        adapter: name of the adapter that the model has; empty for the model without one.
    """

    adapter = ""

    def __init__(self, model: DreamForCausalLM):
        mask_id = model.config.mask_token_id
        if model.config.is_autoregressive:
            # An autoregressive model has no MASK token. The first id past its vocabulary marks
            # undecided positions: it is never a candidate, and no other position attends to it.
            mask_id = model.config.vocab_size
        if mask_id is None:
            raise ValueError("config mask_token_id=None: this is not a masked-diffusion model")
        # Random numbers of 64 bits would be others, and so would the text of a seed.
        if jnp.result_type(float) != jnp.float32:
            raise ValueError("jax_enable_x64=True: texts are decoded with 32 bits; switch it off")
        self.config = model.config
        self.mesh = model.mesh
        self.mask_id: int = mask_id
        self.growth = growth_of(model.config)
        # Called each time the compiled loop returns: the rows that are over are filled up.
        self.is_over: IsOver | None = None
        # Split once: merging and splitting a model at every call costs more than the dispatch.
        self.graph, self.params = split_model(model)

    def changed(self, **fields) -> "Sampler":
        """Return a copy with other attributes, which shares compiled programs."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def on_mesh(self, mesh: Mesh) -> "Sampler":
        """Return a copy for weights on another mesh; the weights themselves stay where they are."""
        model = self.graph.merge(self.params)
        model.model.mesh = mesh
        return self.changed(graph=split_model(model)[0], mesh=mesh)

    def start(self, canvas: Canvas, seed: Seed) -> SamplerState:
        """Return the state before the first step, with MASK in every hole.

        Args:
            canvas: the rows to fill.
            seed: seed of the row keys, or one key per row. The random numbers of a row depend only
                on its key, or on the seed and the row's index.

        Raises:
            TypeError: the seed is not an integer.
            ValueError: the seed is negative.
        """
        if isinstance(seed, jax.Array) and seed.ndim:
            keys = seed
        else:
            if (number := index(seed)) < 0:
                raise ValueError(f"seed={seed}: must not be negative")
            keys = row_keys(number, range(len(canvas.tokens)))
        holes = jnp.asarray(canvas.holes)
        return SamplerState(
            tokens=jnp.where(holes, self.mask_id, canvas.tokens),
            masked=holes,
            commit_step=jnp.where(holes, jnp.int32(NEVER), jnp.int32(-1)),
            confidence=jnp.zeros(holes.shape, jnp.float32),
            step=jnp.int32(0),
            forwards=jnp.int32(0),
            keys=keys,
        )

    def generate(self, canvas: Canvas, options: GenerationOptions, **settings) -> SamplerState:
        """Fill the canvas and return the final state. Takes the settings of `stream`."""
        *_, last = self.stream(canvas, options, every=None, **settings)
        return last

    def stream(
        self,
        canvas: Canvas,
        options: GenerationOptions,
        *,
        seed: Seed = 0,
        every: int | None = 1,
        stop_ids: StopIds = (),
        hooks: Hooks = NO_HOOKS,
        strict_reference: bool = False,
        state: SamplerState | None = None,
    ) -> Iterator[SamplerState]:
        """Yield the state after every `every` steps, after each block, and at the end.

        Args:
            canvas: the rows to fill.
            options: how to decode; `max_new_tokens` is ignored, as the canvas decides the length.
            seed: seed of the random numbers, or one key per row.
            every: steps between two states; None yields as rarely as possible.
            stop_ids: tokens that end a row; ignored unless `options.early_stop`.
            hooks: hooks of the reference.
            strict_reference: admit MASK itself as a candidate, as the reference does.
            state: state to resume from instead of an empty canvas and `seed`; a mask must be left.

        Raises:
            ValueError: no hole, a negative seed, a grammar (only `DiffuCoderInference` applies
                one), or a decoding method that does not support the canvas, the hooks or the
                strict reference.
        """
        if options.grammar is not None:
            raise ValueError(
                f"grammar={options.grammar!r}: must be None; only DiffuCoderInference applies one"
            )
        # start: state, cache and static configuration
        decoding = options.decoding.settings
        is_fresh = state is None
        arrays = CanvasArrays.of(canvas)
        state = state or self.start(canvas, seed)
        if hooks.tokens is not None:
            state = rewrite(state, hooks.tokens(-1, state.tokens, None), arrays.holes, self.mask_id)
        hooks = replace(hooks, admits_mask=strict_reference)
        config = self.canvas_config(canvas, options, stop_ids=stop_ids, hooks=hooks)
        cache = KVCache()
        if decoding.cache != "none":
            shape = len(canvas.tokens), config.variant.cache_columns(canvas.tokens.shape[1])
            cache = run_empty_cache(self.graph, self.params, shape, decoding.cache == "dual")
        if is_fresh and self.mesh is None and hooks == NO_HOOKS and type(config.variant) is Variant:
            # The samples of a prompt are equal until the first of them commits a token. On a mesh,
            # the repeated cache would be sharded differently from those of later refreshes.
            config = replace(config, copies=canvas.copies)
        # decode: one block after another
        finished = []
        # Blocks are counted from the start of the text, so a short answer must not shorten them.
        length = options.decoding.block_length_in(canvas.region.length + canvas.phase)
        for block in config.variant.blocks(canvas, length):
            if not np.asarray(state.masked)[:, block.start : block.end].any():
                # It is decided already. It is not `finished`, as its rows were not computed here.
                continue
            state = config.variant.begin(state, canvas)
            params = SamplingParams.of(options, block.length, canvas.region.length)
            params = config.variant.params(params, state)
            if state.logprobs is not None:
                params = params._replace(keeps_logprobs=jnp.bool_(True))
            passes = block_passes(canvas, block, finished, options.decoding, config, self.config)
            step = int(state.step)
            steps = int(params.steps)
            # After these steps a block ends, even with masks left. Only the strict reference, which
            # may commit MASK itself, leaves any.
            until = step + (steps if params.by_schedule else max(steps, block.length))
            window = Window.of(
                block=block.start, rows=0, first_step=step, until=until, forwards=NEVER
            )
            inputs = BatchInputs(arrays, window, params)
            state, cache = yield from self.fill(
                state, cache, inputs, passes, decoding.refresh_steps or NEVER, every
            )
            finished.append(block)
            if not np.asarray(state.masked).any():
                break

    def canvas_config(
        self,
        canvas: Canvas,
        options: GenerationOptions,
        *,
        stop_ids: StopIds = (),
        hooks: Hooks = NO_HOOKS,
    ) -> StepConfig:
        """Return the configuration of a canvas for the decoding method that the options ask for.

        Raises ValueError as `stream` does. `block_passes` derives those of blocks from it.
        """
        if self.config.is_autoregressive and options.decoding.settings.cache != "causal":
            raise ValueError(
                f"cache={options.decoding.settings.cache!r}: must be 'causal', {LEFT_TO_RIGHT_ONLY}"
            )
        variants = (method.of(canvas, options, self.config) for method in METHODS)
        variant = next(filter(None, variants))
        if variant != PLAIN and hooks != NO_HOOKS:
            raise ValueError(f"hooks, strict_reference: must not be given with {variant.request}")
        return StepConfig(
            length=canvas.region.length,
            mask_id=self.mask_id,
            top_k=options.top_k,
            stop_ids=stop_ids if options.early_stop and variant.ends_early else (),
            hooks=hooks,
            variant=variant,
        )

    def fill(
        self,
        state: SamplerState,
        cache: KVCache,
        inputs: BatchInputs,
        passes: Passes,
        refresh_steps: int,
        every: int | None,
    ) -> Generator[SamplerState, None, StepCarry]:
        """Decode one block, and yield states as `stream` does.

        Args:
            state: state at the start of the block.
            cache: cache after the block before, or an empty one.
            inputs: inputs with the window of the whole block.
            passes: from `block_passes`: refresh and step, or the step alone without a cache.
            refresh_steps: forward passes between two refreshes.
            every: steps between two states; None yields as rarely as possible.

        Returns:
            State and cache at the end of the block.

        Raises:
            FloatingPointError: logits were not finite.
        """
        limit = int(inputs.window.until)
        is_open = True
        first_column = int(inputs.window.block)
        step = int(state.step)
        forwards = int(state.forwards)
        # This uploads the inputs once. Each call then uploads only the limits of its window.
        inputs = jax.device_put(inputs)
        # With refresh_steps == 4, forward passes 0, 4, 8, ... of the block are refreshes.
        refresh_at = 0 if len(passes) > 1 else NEVER
        while is_open and step < limit:
            is_refresh = forwards >= refresh_at
            current = passes[0 if is_refresh else -1]
            # The compiled loop returns after a refresh, before the next one, and for `every`.
            window = inputs.window.updated(
                rows=current.first_row,
                until=limit if every is None else min(limit, step + every),
                forwards=forwards + 1 if is_refresh else refresh_at,
            )
            inputs = inputs._replace(window=window)
            config = current.config
            # Only the refresh that begins the block forces its first token, and only then can the
            # samples of a prompt still be equal.
            if refresh_at > 0:
                config = replace(config, variant=replace(config.variant, forced=False), copies=1)
            state, cache, progress = run(self.graph, self.params, state, cache, inputs, config)
            if self.is_over is not None and config.stop_ids:
                # Nothing reads the remaining masks of a row that is over: [a, b, M, M] -> [a, b, S, S]
                is_over = jnp.asarray(self.is_over(state))[:, None]
                state = fill_masks(state, state.masked & is_over, config.stop_ids[0])
                progress = progress.at[-1].min(jnp.any(state.masked))
            forwards_before = forwards
            # The only transfer to the host in a call.
            step, forwards, is_broken, is_open = np.asarray(progress).tolist()
            if is_broken:
                raise FloatingPointError(NOT_FINITE)
            yield state
            # The call may have skipped idle steps alone: then the refresh is still to come.
            if is_refresh and forwards > forwards_before:
                refresh_at = min(forwards_before + refresh_steps, NEVER)
                # Repeat it after a forced token, and until the first column is decided.
                if current.repeats and (
                    config.variant.forced or np.asarray(state.masked)[:, first_column].any()
                ):
                    refresh_at = forwards
        return state, cache

    def replay(
        self,
        tokens: HostTokens,
        canvas: Canvas,
        options: GenerationOptions,
        step: int,
        *,
        strict_reference: bool = False,
    ) -> tuple[HostTokens, HostValues]:
        """Take one step from any intermediate canvas, with the whole canvas as one block.

        Args:
            tokens: the intermediate canvas, with MASK at undecided positions.
            canvas: the canvas before the first step.
            options: how to decode.
            step: number of the step to take.
            strict_reference: admit MASK itself as a candidate, as the reference does.

        Returns:
            The tokens after the step, and the score by which it chose among the undecided positions
            (-inf at all others).
        """
        region = canvas.region
        holes = canvas.holes & (tokens == self.mask_id)
        # Only the masks of `tokens` are open; the schedule counts from step 0, not from `step`.
        state = self.start(canvas, seed=0)._replace(
            tokens=jnp.asarray(tokens), masked=jnp.asarray(holes), step=jnp.int32(step)
        )
        config = StepConfig(
            length=region.length,
            mask_id=self.mask_id,
            top_k=options.top_k,
            hooks=Hooks(admits_mask=strict_reference),
        )
        window = Window.of(block=region.start, rows=0, first_step=0, until=step + 1, forwards=NEVER)
        params = SamplingParams.of(options, region.length, region.length)
        inputs = BatchInputs(CanvasArrays.of(canvas), window, params)
        scores = run_evaluation(self.graph, self.params, state, inputs, config).proposal.scores
        after, _, _ = run(self.graph, self.params, state, KVCache(), inputs, config)
        # The scores cover only the region's columns.
        canvas_scores = np.full(tokens.shape, -np.inf, np.float32)
        canvas_scores[:, region.start : region.end] = scores
        return np.asarray(after.tokens), np.where(holes, canvas_scores, -np.inf)

    def logits_at(
        self, tokens: SequenceTokens, length: int, column: int, window: LogitsWindow
    ) -> tuple[HostLogits, LogitsWindow]:
        """Return the logits of one column from one forward pass; MASK and EXPAND get -inf.

        Args:
            tokens: a canvas with MASK at undecided positions, padded after `length` columns.
            window: a new window, which computes all rows, or that of the last call, if no column
                before the one of that call has changed since.

        Returns:
            The logits, and the window for the next column.
        """
        width = len(tokens)
        rows = min(BLOCK_LENGTH + 1, width)
        cache, end = window
        start = end - rows
        if column >= end:
            # A refresh. The window begins with the row that predicts this column: for column 20 it
            # is [19, 52). It ends with the text, however wide the canvas is.
            cache = run_empty_cache(self.graph, self.params, (1, width), False)
            end = max(rows, min(column - 1 + rows, length))
            rows = width
            start = 0
        config = StepConfig(length=1, rows=rows, mask_id=self.mask_id)
        inputs = Window.of(block=column, rows=start, first_step=0, until=0, forwards=0)
        result, cache = run_logits(
            self.graph, self.params, cache, tokens, np.int32(length), inputs, config
        )
        logits = np.array(result, np.float32)
        # The mask_id of an autoregressive model is past the vocabulary, and the slice then empty.
        logits[self.mask_id : self.mask_id + 1] = -np.inf
        if self.growth is not None:
            logits[self.growth.expand_id] = -np.inf
        return logits, LogitsWindow(cache, end)

    def forward(self, tokens: Tokens) -> Logits:
        """Return the logits of one forward pass over a canvas without padding, not shifted."""
        return run_forward(self.graph, self.params, tokens)


def block_passes(
    canvas: Canvas,
    block: Block,
    finished: list[Block],
    decoding: Decoding,
    config: StepConfig,
    model: DreamConfig,
) -> Passes:
    """Return the passes over a block: the refresh that begins it, then its steps.

    Without a cache there is no refresh, but a first step may differ by forcing a token.
    """
    # Rows that are recomputed, for width 16 and block [8, 12) after block [4, 8):
    #   cache    refresh    steps
    #   none                0 to 15
    #   prefix   0 to 15    7 to 15
    #   window   0 to 15    7 to 11 (without the last row from 32 columns on: `window_length`)
    #   dual     0 to 15    8 to 11
    # The refresh covers rows 3 to 15 with freeze_prompt, and rows 3 to 11 with refresh_every=2. With
    # attention blocks of 8 (phase 4) it covers rows 0 to 7 for block [4, 8), and 0 to 15 for
    # [8, 12): no row attends beyond its attention block, and earlier blocks are final.
    copies = 1 if finished else config.copies
    config = replace(config, length=block.length, copies=1)
    settings = decoding.settings
    # A first token is forced where an attention block of the model begins; without those, always.
    # Region [5, 12), phase 1 and attention blocks of 4: column 8 begins one.
    column = block.start - canvas.region.start + canvas.phase
    forces = settings.first_token == "force" and column % canvas.decoding_block == 0
    variant = replace(config.variant, forced=forces)
    if settings.cache == "none":
        steps = [Pass(replace(config, variant=variant), 0), Pass(config, 0)]
        return config.variant.passes(steps if forces else steps[1:])
    first_row = 0
    end_row = canvas.attended(block.start).end
    if finished and canvas.decoding_block > 1:
        first_row = canvas.attended(finished[-1].start).start
    elif finished and len(finished) % settings.refresh_every:
        # Between full refreshes, the previous block, whose tokens are final now, and this one.
        first_row = max(finished[-1].start - 1, 0)
        end_row = block.end
    elif finished and settings.freeze_prompt:
        first_row = max(canvas.region.start - 1, 0)
    # A forced first token needs no row before it: Fast-dLLM's windows begin with the block.
    with_row_before = settings.cache != "dual" and not forces and block.start > 0
    # If the first attention block begins in the prompt, its given tokens attend to its masks. So
    # the whole attention block is recomputed, or with `dual` the part that is decided now.
    lead = 0 if finished else canvas.phase
    repeats = False
    if settings.cache == "dual" and canvas.decoding_block > 1:
        lead %= settings.block_length
        repeats = model.family.shifts and not lead
    start = max(block.start - lead - with_row_before, 0)
    end = min(start + lead + window_length(block.length, model), block.end)
    if settings.cache == "prefix":
        end = end_row
    refresh = replace(config, rows=end_row - first_row, variant=variant, copies=copies)
    return config.variant.passes(
        [Pass(refresh, first_row, repeats), Pass(replace(config, rows=end - start), start)]
    )


@partial(ModelFunction, static_argnames=("graph", "config"), donate_argnames="cache")
def run(
    graph: ModelGraph,
    params: dict,
    state: SamplerState,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[SamplerState, KVCache, Int[Array, "4"]]:
    """Take steps until the block is full or a limit of the window is reached.

    Returns:
        State, cache, and the progress for the host: step, number of forward passes, whether logits
        were not finite, and whether a mask is left in the block.
    """
    model = graph.merge(params)
    variant = config.variant

    def is_going(carry):
        return variant.is_going(carry[0], inputs.window, config)

    def advance(carry: StepCarry):
        return variant.advance(model, *carry, inputs, config)

    carry = jax.lax.while_loop(is_going, advance, variant.enter(state, cache, inputs, config))
    state, cache = variant.leave(*carry, inputs, config)
    # The state is small, and every host reads it.
    is_open = variant.is_open(state, inputs.window, config)
    is_broken = jnp.isnan(state.confidence).any()
    progress = jnp.stack([state.step, state.forwards, is_broken, is_open])
    state, progress = constrain((state, progress), model.mesh)
    return state, cache, progress


@partial(ModelFunction, static_argnames=("graph", "config"))
def run_evaluation(
    graph: ModelGraph, params: dict, state: SamplerState, inputs: BatchInputs, config: StepConfig
) -> Evaluation:
    """Evaluate a canvas as the next step of `run` would, without a cache."""
    return evaluate(graph.merge(params), state, KVCache(), inputs, config)[0]


@partial(ModelFunction, static_argnames=("graph", "shape", "has_tail"))
def run_empty_cache(graph: ModelGraph, params: dict, shape: Shape, has_tail: bool) -> KVCache:
    """Return a cache of zeros for a canvas of shape [b, t]."""
    return empty_cache(graph.merge(params), shape, has_tail=has_tail)


@partial(ModelFunction, static_argnames=("graph", "config"), donate_argnames="cache")
def run_logits(
    graph: ModelGraph,
    params: dict,
    cache: KVCache,
    tokens: Int[Array, "t"],
    length: ScalarInt,
    window: Window,
    config: StepConfig,
) -> tuple[Float[Array, "v"], KVCache]:
    """Return the logits of column `window.block` of a canvas that is padded on the right."""
    model = graph.merge(params)
    positions = jnp.arange(len(tokens), dtype=jnp.int32)[None]
    present = positions < length
    # The holes are arbitrary, as hidden states do not depend on them.
    canvas = CanvasArrays(present, positions, holes=present, hole_starts=positions)
    hidden, cache = block_hidden(model, tokens[None], cache, canvas, window, config)
    return constrain(model.logits(hidden[:, 0])[0], model.mesh), cache


@partial(ModelFunction, static_argnames="graph")
def run_forward(graph: ModelGraph, params: dict, tokens: Tokens) -> Logits:
    """Return the logits of a whole canvas, not shifted."""
    return graph.merge(params)(tokens)

"""One denoising step, and the interface by which decoding methods change it.

The model computes, the sampler decides. Order, commit rule, blocks and cache (`jax_lm.options`) are
independent of each other:
- a block limits which columns a step may commit;
- a cache limits which rows a step recomputes; a refresh recomputes all of them.

`Variant` is plain denoising. A decoding method that does something else is a subclass in a file of
its own; this file names none of them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jax_lm.config import Texts
from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.candidates import (
    SamplingParams,
    TokenLogProbs,
    add_noise,
    break_ties,
    confidence,
    draw,
    exclude,
    filtered,
    likeliest_candidates,
    row_entropy,
)
from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.masking import align_rows
from jax_lm.diffusion.nucleus import Candidates, Rows, in_parts, map_columns
from jax_lm.diffusion.state import (
    NO_HOOKS,
    BatchInputs,
    CanvasArrays,
    Evaluation,
    Hooks,
    KVCache,
    Proposal,
    SamplerState,
    StepCarry,
    Window,
    end_rows,
    rewrite,
)
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.models.shapes import (
    ColumnInts,
    RowIds,
    RowLogits,
    RowMask,
    RowScores,
    ScalarBool,
    Shape,
    StopIds,
    Tokens,
)
from jax_lm.models.token_likelihood import column_parts
from jax_lm.options import ALGS, GenerationOptions

# Letters of the shapes: b batch, t columns of the canvas, r columns of the block, c gathered
# columns of the block, d hidden, v vocabulary.
#
# "Row" has two meanings. A row of a canvas is a sequence of the batch. A row that a step recomputes
# (`StepConfig.rows`, `Window.rows`, `Pass.first_row`) is a position of the hidden states: row p
# predicts column p + 1.

# Names of the mapped axes: over rows, and over the canvases of a row that are computed together.
ROWS = "rows"
CANVASES = "canvases"
# Fewest rows that the head is compiled for, unless the block is shorter.
SMALLEST_HEAD = 16


@dataclass(frozen=True)
class Variant:
    """A decoding method: one hook for each thing that it may do differently from plain denoising.

    This class is plain denoising. A method, whose hooks have the types of those here,

    - subclasses it in a file of its own, as a frozen dataclass if it has settings (static under jit);
    - keeps its state between steps in `SamplerState.extra`;
    - is listed once, in `jax_lm.diffusion.sampler.METHODS`.

    Attributes:
        forced: commit the block's first column and nothing else (Fast-dLLM's refresh). Static: a
            traced choice changes how XLA fuses the step, and with it the last bit of confidences.
    """

    forced: bool = field(default=False, kw_only=True)
    ends_early = True
    """Whether a decided stop token ends the text of its hole."""
    keeps_candidates = False
    """Whether an evaluation returns its candidates."""

    @classmethod
    def of(
        cls, canvas: Canvas, options: GenerationOptions, config: DreamConfig
    ) -> "Variant | None":
        """Return the method if the options ask for it. Raises ValueError if it cannot run."""
        return cls()

    # Before the loop, on the host.
    @property
    def request(self) -> str:
        """Setting that selects the method, for error messages."""
        return "plain denoising"

    def blocks(self, canvas: Canvas, length: int) -> Iterable[Block]:
        """Return the blocks that are filled one after another, `length` columns each."""
        return canvas.blocks(length)

    def begin(self, state: SamplerState, canvas: Canvas) -> SamplerState:
        """Prepare the state at the start of a block."""
        return state

    def params(self, params: SamplingParams, state: SamplerState) -> SamplingParams:
        """Return the sampling settings of a block."""
        return params

    def cache_columns(self, width: int) -> int:
        """Return the number of columns of the cache of a canvas."""
        return width

    def passes(self, passes: "Passes") -> "Passes":
        """Return the passes over a block, given those of plain denoising."""
        return passes

    # In the compiled loop.
    def admit(self, logits: RowLogits, state: SamplerState, expand_id: int | None) -> RowLogits:
        """Set the logits of control tokens to -inf, here of the one that expands a hole."""
        return exclude(logits, expand_id)

    def enter(
        self, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: "StepConfig"
    ) -> StepCarry:
        """Prepare state and cache for the compiled loop, and skip the steps that commit nothing."""
        return self.enter_row(state, inputs, config), cache

    def enter_row(
        self, row: SamplerState, inputs: BatchInputs, config: "StepConfig"
    ) -> SamplerState:
        """Prepare one row for the loop. It is mapped by `jax.vmap`: a batch of one at its own step."""
        return skip_idle(row, inputs, config)

    def is_open(self, state: SamplerState, window: Window, config: "StepConfig") -> ScalarBool:
        """Whether a mask is left in the block."""
        return jnp.any(block_columns(state.masked, window, config))

    def is_going(self, state: SamplerState, window: Window, config: "StepConfig") -> ScalarBool:
        """Whether the compiled loop takes another step."""
        is_within = (state.step < window.until) & (state.forwards < window.forwards)
        return self.is_open(state, window, config) & is_within

    def advance(
        self,
        model: DreamForCausalLM,
        state: SamplerState,
        cache: KVCache,
        inputs: BatchInputs,
        config: "StepConfig",
    ) -> StepCarry:
        """Take one denoising step: recompute rows, propose a token per mask, commit some of them."""
        # Block [a, M, M], and a rule that commits the most confident mask:
        #   proposed   [a, b, c]
        #   chosen     [0, 0, 1]
        #   committed  [a, M, c]
        evaluation, cache = evaluate(model, state, cache, inputs, config)
        state = state._replace(forwards=state.forwards + 1)
        return commit(state, evaluation, inputs, config), cache

    def advance_row(
        self,
        model: DreamForCausalLM,
        row: SamplerState,
        cache: KVCache,
        inputs: BatchInputs,
        config: "StepConfig",
    ) -> StepCarry:
        """Take one step of one row. It is mapped by `jax.vmap`: a batch of one at its own step."""
        return self.advance(model, row, cache, inputs, config)

    def leave(
        self, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: "StepConfig"
    ) -> StepCarry:
        """Return the state that the compiled loop reports, and the cache."""
        return state, cache


PLAIN = Variant()


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """Static configuration of a compiled step: shapes, and settings that change the program.

    Attributes:
        length: columns of the block.
        rows: rows recomputed each step; None recomputes all of them, without a cache.
        mask_id: id of MASK.
        top_k: candidates per position; None is the whole vocabulary.
        stop_ids: tokens that end a row. Once a stop token has no mask before it, the columns after
            it are not decoded; the text up to it is unchanged. If empty, everything is decoded, as
            in the reference.
        hooks: the reference's hooks, and whether MASK is a candidate.
        variant: the decoding method.
        copies: size of the groups of equal, adjacent rows of the batch; only the first row of each
            group is computed.
        axes: names of the axes that `jax.vmap` maps; each canvas is then a batch of one.
    """

    length: int
    rows: int | None = None
    mask_id: int
    top_k: int | None = None
    stop_ids: StopIds = ()
    hooks: Hooks = NO_HOOKS
    variant: Variant = PLAIN
    copies: int = 1
    axes: Texts = ()

    def mapped(self, axis: str) -> "StepConfig":
        """Return the configuration inside a `jax.vmap` over this axis."""
        return replace(self, axes=(*self.axes, axis))


class Pass(NamedTuple):
    """A kind of forward pass over a block: the refresh, or the passes between refreshes.

    Attributes:
        config: configuration of its compilation.
        first_row: first of the `config.rows` rows that it recomputes.
        repeats: whether to repeat the refresh until the first column of the block is decided, as no
            later pass predicts it. If a refresh was forced to decide it, it is repeated once more,
            as in Fast-dLLM v2.
    """

    config: StepConfig
    first_row: int
    repeats: bool = False


Passes = list[Pass]


def evaluate(
    model: DreamForCausalLM,
    state: SamplerState,
    cache: KVCache,
    inputs: BatchInputs,
    config: StepConfig,
) -> tuple[Evaluation, KVCache]:
    """Recompute rows and propose a token for each masked position of the block."""
    hidden, cache = block_hidden(model, state.tokens, cache, inputs.canvas, inputs.window, config)
    return propose(model, hidden, state, inputs, config), cache


def commit(
    state: SamplerState, evaluation: Evaluation, inputs: BatchInputs, config: StepConfig
) -> SamplerState:
    """Commit the tokens that the rule chooses, and go to the next step that commits anything."""
    chosen = choose(evaluation.proposal, state, inputs, config)
    state = write(state, evaluation, chosen, inputs, config)
    return skip_idle(state._replace(step=state.step + 1), inputs, config)


def write(
    state: SamplerState,
    evaluation: Evaluation,
    chosen: RowMask,
    inputs: BatchInputs,
    config: StepConfig,
) -> SamplerState:
    """Write the chosen tokens into the canvas, and end the rows whose text ends with them."""
    proposal = evaluation.proposal
    # Only the reference's candidates include MASK. A position with it stays open, as there, unless
    # its logits are not finite.
    chosen &= (proposal.tokens != config.mask_id) | jnp.isnan(proposal.probability)

    # Block columns 1 and 2 of [x, M, M, y], chosen [1, 0], new [a, b]: [x, a, M, y].
    def put(values, new):
        # [b, r], or [b, r, k] for log-probabilities
        is_new = chosen.reshape(*chosen.shape, *[1] * (new.ndim - 2))
        new = jnp.where(is_new, new, block_columns(values, inputs.window, config))
        if config.length == values.shape[1]:
            return new
        return lax.dynamic_update_slice_in_dim(values, new, inputs.window.block, axis=1)

    state = state._replace(
        tokens=put(state.tokens, proposal.tokens),
        masked=put(state.masked, jnp.zeros_like(chosen)),
        commit_step=put(state.commit_step, jnp.broadcast_to(state.step, chosen.shape)),
        confidence=put(state.confidence, proposal.probability),
    )
    if state.logprobs is not None and evaluation.logprobs is not None:
        state = state._replace(logprobs=jax.tree.map(put, state.logprobs, evaluation.logprobs))
    # A hook of the reference may rewrite any hole.
    if config.hooks.tokens is not None:
        tokens = config.hooks.tokens(state.step, state.tokens, evaluation.logits)
        state = rewrite(state, tokens, inputs.canvas.holes, config.mask_id)
    # A stop token may have become final: end its hole.
    if config.stop_ids:
        state = end_rows(state, inputs, config.stop_ids)
    return state


def skip_idle(state: SamplerState, inputs: BatchInputs, config: StepConfig) -> SamplerState:
    """Skip the steps of the schedule that commit nothing, as they need no forward pass.

    Texts are unchanged at temperature 0; above it, their distribution is unchanged.
    """
    params = inputs.params
    window = inputs.window
    masked = block_columns(state.masked, window, config)
    can_idle = params.by_schedule & ~params.is_by_chance & jnp.any(masked)
    # 3 masks, ratios [0.25, 0.25, 0.5, 1] and the next step 0: counts [0, 0, 1, 3], so steps 0 and
    # 1 are idle. Not a loop: on a GPU, the host would read the condition of each iteration.
    counts = jax.vmap(partial(commit_rules.commit_counts, masked))(params.ratios)
    steps = window.first_step + jnp.arange(len(params.ratios), dtype=jnp.int32)
    is_due = (steps >= state.step) & jnp.any(counts > 0, axis=1)
    due = jnp.minimum(steps[jnp.argmax(is_due)], window.until)
    return state._replace(step=jnp.where(can_idle, jnp.maximum(state.step, due), state.step))


def block_columns(values: Array, window: Window, config: StepConfig) -> Array:
    """Return the block's columns of an array [b, t]."""
    # length == 2, window.block == 3: in [[a, b, c, d, e, f]] out [[d, e]]
    if config.length == values.shape[1]:
        return values
    return lax.dynamic_slice_in_dim(values, window.block, config.length, axis=1)


def block_hidden(
    model: DreamForCausalLM,
    tokens: Tokens,
    cache: KVCache,
    canvas: CanvasArrays,
    window: Window,
    config: StepConfig,
    *,
    remat: bool = False,
) -> tuple[Float[Array, "b r d"], KVCache]:
    """Return the hidden states that predict the block's columns, and the updated cache."""
    # copies == 2: of the rows [p, p, q, q], only p and q are computed, and the results are repeated.
    if (copies := config.copies) > 1:
        tokens, cache, canvas = jax.tree.map(lambda part: part[::copies], (tokens, cache, canvas))
        alone = replace(config, copies=1)
        result = block_hidden(model, tokens, cache, canvas, window, alone, remat=remat)
        return jax.tree.map(lambda part: jnp.repeat(part, copies, axis=0), result)
    # Compute: all rows, or those that the cache does not cover.
    if config.rows is None:
        hidden = model.model(tokens, canvas.attention_mask, canvas.position_ids, remat=remat)
        layers = None
    else:
        assert cache.layers
        tokens, positions = (
            lax.dynamic_slice_in_dim(values, window.rows, config.rows, axis=1)
            for values in (tokens, canvas.position_ids)
        )
        hidden, layers = model.model.recompute(
            tokens, canvas.attention_mask, positions, cache.layers, window.rows, remat=remat
        )
    # Align: row p predicts column p + 1. Block columns 3 and 4, rows 2 to 4 recomputed:
    #   hidden   [h2, h3, h4]
    #   shifted  [h2, h2, h3]
    #   aligned      [h2, h3]    from index 3 - 2 on
    if config.rows == config.length and cache.tail is None:
        # Rows 2 and 3 alone: the slice takes one more. The shift drops the row that is appended
        # here: shifted [h2, h2, h3] as well.
        hidden = jnp.concatenate([hidden, hidden[:, -1:]], axis=1)
    aligned = lax.dynamic_slice_in_dim(
        align_rows(hidden, model.config), window.block - window.rows, config.length, axis=1
    )
    if cache.tail is None:
        return aligned, KVCache(layers)
    if config.rows == config.length:
        # With `dual`, the rows are those of the block. The row before them, which predicts the first
        # column, is the tail of the last refresh. Column 0 has none before it; row 0 predicts it.
        first = jnp.where(window.block > 0, cache.tail, aligned[:, :1])
        aligned = jnp.concatenate([first, aligned[:, 1:]], axis=1)
    return aligned, KVCache(layers, aligned[:, :1])


def empty_cache(model: DreamForCausalLM, shape: Shape, *, has_tail: bool) -> KVCache:
    """Return a cache of zeros for a canvas of shape [b, t]."""
    # Without a shift, the block's own rows predict all of its columns.
    has_tail &= model.config.family.shifts
    tail = jnp.zeros((shape[0], 1, model.config.hidden_size), model.dtype) if has_tail else None
    return KVCache(model.model.empty_cache(*shape), tail)


def propose(
    model: DreamForCausalLM,
    hidden: Float[Array, "b r d"],
    state: SamplerState,
    inputs: BatchInputs,
    config: StepConfig,
) -> Evaluation:
    """Propose a token for each masked position of the block: filter, draw and score.

    In a small model, the head costs more than the layers. So the masked rows are gathered to the
    front, and the head runs on the smallest compiled size that holds them, on a part of the columns
    at a time if their logits exceed `DECODING_LOGIT_BYTES`. With a hook, the head runs on all rows
    at once, because the hook reads all logits.
    """
    masked = block_columns(state.masked, inputs.window, config)
    positions = block_columns(inputs.canvas.position_ids, inputs.window, config)
    decide = partial(decide_tokens, model.config, state, inputs.params, config)

    def decide_rows(rows, *parts):
        return in_parts(decide, model.logits(rows), *parts)

    def decide_first(size):
        # size == 2: masked [0, 1, 0, 1] has index [1, 3]; the head computes rows 1 and 3 alone,
        # and their tokens [x, y] are scattered back to [0, x, 0, y].
        # The sort is stable, so the masked rows come first and in order.
        index = jnp.argsort(~masked, axis=1)[:, :size]
        rows = jnp.take_along_axis(hidden, index[..., None], axis=1)
        parts = [jnp.take_along_axis(part, index, axis=1) for part in (positions, masked)]
        # Under `jax.vmap`, the logits of all mapped canvases are in memory together.
        canvases = len(index) * math.prod(map(lax.axis_size, config.axes))
        compact = map_columns(decide_rows, column_parts(model, canvases, size), rows, *parts)
        sequence = jnp.arange(len(index))[:, None]

        def scatter(part):
            zeros = jnp.zeros((*masked.shape, *part.shape[2:]), part.dtype)
            return zeros.at[sequence, index].set(part)

        return jax.tree.map(scatter, compact)

    hooks = config.hooks
    if hooks.tokens is not None or hooks.logits is not None:
        # [b, r, d] -> [b, r, v], for all rows
        logits = model.logits(hidden)
        if hooks.logits is not None:
            logits = hooks.logits(state.step, state.tokens, logits)
        # The token hook reads these logits after the step.
        return decide(logits, positions, masked)._replace(logits=logits)
    # Compiled sizes: half of the block and all of it, at least SMALLEST_HEAD rows. For length 40
    # and rows with 7 and 18 masks: half 20, needed 18.
    if (half := max(-(-config.length // 2), SMALLEST_HEAD)) >= config.length:
        return decide_first(config.length)
    needed = jnp.max(jnp.sum(masked, axis=1))
    # Under `jax.vmap` all rows must take the same branch, or every branch would run.
    if config.axes:
        needed = lax.pmax(needed, config.axes)
    return lax.cond(needed > half, lambda: decide_first(config.length), lambda: decide_first(half))


def decide_tokens(
    model_config: DreamConfig,
    state: SamplerState,
    params: SamplingParams,
    config: StepConfig,
    logits: Float[Array, "b c v"],
    positions: ColumnInts,
    needed: Bool[Array, "b c"],
) -> Evaluation:
    """Filter the logits of positions, then draw and score a token for each of them.

    Only the results of columns that are `needed` are used, so the filters may skip the others.
    """
    excluded_id = None if config.hooks.admits_mask else config.mask_id
    logits = config.variant.admit(logits, state, model_config.expand_token_id)
    # filter
    candidates = filtered(
        logits, params, top_k=config.top_k, excluded_id=excluded_id, needed=needed
    )
    kept = likeliest_candidates(candidates) if config.variant.keeps_candidates else None
    shape = logits.shape[:2]
    if isinstance(candidates, Rows):
        # These are stored already. If the argument were read again, XLA would store it as well.
        logits = candidates.logits
    # draw and score
    entropy = if_any(
        params.entropy_bound >= 0,
        lambda: row_entropy(logits, excluded_id),
        jnp.zeros(shape),
        config,
    )
    proposal = draw_proposal(candidates, entropy, state, positions, params)
    logprobs = None
    tokens = proposal.tokens
    # The order `untied` needs log-probabilities from before the filters.
    is_untied = params.alg == ALGS.index("untied")
    unfiltered = if_any(
        is_untied,
        lambda: TokenLogProbs.of(logits, tokens, 1, excluded_id).chosen,
        jnp.zeros(shape),
        config,
    )
    scores = proposal.scores
    scores = jnp.where(is_untied, break_ties(scores, unfiltered), scores)
    proposal = proposal._replace(scores=scores)
    # log-probabilities, if a request asks for them
    if state.logprobs is not None and params.keeps_logprobs is not None:
        count = state.logprobs.ids.shape[-1]
        logprobs = if_any(
            params.keeps_logprobs,
            lambda: TokenLogProbs.of(logits, tokens, count, excluded_id),
            TokenLogProbs.empty(shape, count),
            config,
        )
    return Evaluation(proposal, logprobs, kept, None)


def if_any(wanted: ScalarBool, compute: Callable[[], Any], nothing, config: StepConfig) -> Any:
    """Return `compute()` if any mapped canvas wants it, else `nothing`, without computing it.

    `lax.cond` alone would run both branches if `jax.vmap` mapped its predicate.
    """
    if config.axes:
        wanted = lax.pmax(wanted.astype(jnp.int32), config.axes) > 0
    return lax.cond(wanted, compute, lambda: nothing)


def draw_proposal(
    candidates: Candidates | Rows,
    entropy: Float[Array, "b c"],
    state: SamplerState,
    positions: ColumnInts,
    params: SamplingParams,
) -> Proposal:
    """Draw a token for each position with the random numbers of the current step, and score it."""
    for_token, for_score, _ = noise(state, positions)
    tokens, probability = draw(for_token, candidates, params.temperature)
    scores = confidence(for_score, candidates, probability, positions, params.alg)
    return Proposal(tokens, probability, scores, entropy)


def choose(
    proposal: Proposal, state: SamplerState, inputs: BatchInputs, config: StepConfig
) -> RowMask:
    """Choose the masked positions that this step commits: by the commit rule, best scores first."""
    params = inputs.params
    window = inputs.window
    masked = block_columns(state.masked, window, config)
    if config.variant.forced:
        return masked & (jnp.arange(config.length) == 0)
    # Scores [.2, .9, .5] have ranks [2, 0, 1].
    *_, for_choice = noise(state, block_columns(inputs.canvas.position_ids, window, config))
    rank = commit_rules.ranks(add_noise(for_choice, proposal.scores, params.alg_temp), masked)
    # By the schedule: its ratio of the masks, best first; with `origin`, each mask by that chance.
    steps_taken = state.step - window.first_step
    ratio = params.ratios[steps_taken]
    counts = commit_rules.commit_counts(masked, ratio)
    scheduled = jnp.where(params.is_by_chance, for_choice < ratio, rank < counts[:, None])
    holes = jnp.sum(block_columns(inputs.canvas.holes, window, config), axis=1)
    # By probability: `factor`, else `threshold` or `dynamic`.
    probability = proposal.probability
    probable = lax.cond(
        params.factor > 0,
        lambda: commit_rules.longest_run(params.factor, rank, probability, masked),
        lambda: commit_rules.above_threshold(
            params.threshold, params.decay, rank, probability, masked, holes
        ),
    )
    # By entropy, where a bound is set.
    arguments = params.entropy_bound, rank, proposal.entropy, masked
    within = jnp.where(
        params.bounds_each,
        commit_rules.below_entropy(*arguments),
        commit_rules.within_entropy(*arguments),
    )
    probable = jnp.where(params.entropy_bound >= 0, within, probable)
    # With a number of steps, the rules by probability may not commit faster than it allows.
    allowed = commit_rules.budget(masked, holes, steps_taken, params.steps)
    rule = jnp.where(params.by_schedule, scheduled, probable & (rank < allowed[:, None]))
    # A NaN has no rank: its position is committed now, and the host finds it in the confidences.
    return masked & (rule | jnp.isnan(probability))


def noise(state: SamplerState, positions: RowIds) -> tuple[RowScores, ...]:
    """Return three uniform numbers per position: for its token, its score and its choice.

    They depend only on the key of the row, the step and the position. JAX's generator is
    counter-based, so that element (position, i) is the same for every width.
    """

    def row_numbers(key, positions):
        shape = state.tokens.shape[1], 3
        return jax.random.uniform(jax.random.fold_in(key, state.step), shape)[positions]

    numbers = jax.vmap(row_numbers)(state.keys, positions)
    return numbers[..., 0], numbers[..., 1], numbers[..., 2]

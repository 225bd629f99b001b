"""Arguments and results of a step: the state of a canvas, the cache and the traced inputs.

Also edits of a state that need no model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.config import Fields
from jax_lm.diffusion.candidates import SamplingParams, TokenLogProbs
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.nucleus import Candidates
from jax_lm.models.dream import LayerCaches
from jax_lm.models.seeds import seed_key
from jax_lm.models.shapes import (
    BatchKeys,
    Mask,
    RowIds,
    RowLogits,
    RowScores,
    ScalarInt,
    StopIds,
    Tokens,
    TokenValues,
)

# The largest int32. As a commit step: not committed yet. As a limit of steps or passes: none.
NEVER = np.iinfo(np.int32).max
NOT_FINITE = "the model's logits are not finite: its weights or activations have become NaN or inf"
# Seeds a batch: a number, or a key per row.
Seed = int | BatchKeys


# Example: prompt P Q and three holes, of which step 0 decided the first:
#   tokens       [P, Q, a, M, M]
#   masked       [0, 0, 0, 1, 1]
#   commit_step  [-1, -1, 0, NEVER, NEVER]
#   confidence   [0, 0, .9, 0, 0]
class SamplerState(NamedTuple):
    """The canvas between two steps.

    Attributes:
        tokens: ids, MASK at positions still to be decided.
        masked: positions still to be decided.
        commit_step: step at which a position was decided; NEVER for masks, -1 for given text.
        confidence: probability of the token when it was decided (after temperature and filters);
            0 for masks and given text, NaN if the logits were not finite.
        step: steps taken.
        forwards: forward passes so far; steps that commit nothing need none.
        keys: one random key per row.
        logprobs: log-probabilities of decided positions; None where none are kept.
        extra: state of the decoding method (`jax_lm.diffusion.step.Variant`); None for plain
            denoising.
    """

    tokens: Tokens
    masked: Mask
    commit_step: Tokens
    confidence: TokenValues
    step: ScalarInt
    forwards: ScalarInt
    keys: BatchKeys
    logprobs: TokenLogProbs | None = None
    extra: Any = None

    def history(self, mask_id: int) -> Int[np.ndarray, "s b t"]:
        """Return the canvas after each step, which follows from the commit steps.

        A decided token never changes: [7, 8, 9] with commit steps [0, 2, 0] was [7, M, 9] after
        steps 0 and 1, and [7, 8, 9] after step 2.
        """
        tokens = np.asarray(self.tokens)
        commit_step = np.asarray(self.commit_step)
        steps = range(int(self.step))
        return np.stack([np.where(commit_step <= step, tokens, mask_id) for step in steps])

    def rows(self) -> "SamplerState":
        """Return rows for `jax.vmap`, each a batch of one with its own step; without `extra`."""
        batch = len(self.tokens)
        # tokens [b, t] -> [b, 1, t]; step [] -> [b]
        counters = {"step": jnp.full(batch, self.step), "forwards": jnp.full(batch, self.forwards)}
        return each_alone(self._replace(extra=None, **counters))._replace(**counters)


class KVCache(NamedTuple):
    """Keys and values that a cache keeps from one step to the next; all None without one.

    Attributes:
        layers: keys and values of every position, per layer.
        tail: for `dual`, the hidden state before the block, as computed by the last refresh.
    """

    layers: LayerCaches | None = None
    tail: Float[Array, "b 1 d"] | None = None


def each_alone(tree) -> Any:
    """Make each row a batch of one: [b, ...] -> [b, 1, ...]."""
    return jax.tree.map(lambda part: part[:, None], tree)


def together(tree) -> Any:
    """Invert `each_alone`: [b, 1, ...] -> [b, ...]."""
    return jax.tree.map(lambda part: part[:, 0], tree)


# What a step takes from the step before it, and the loop over steps carries.
StepCarry = tuple[SamplerState, KVCache]


class CanvasArrays(NamedTuple):
    """The parts of a `Canvas` that do not change while it is filled, on the device."""

    attention_mask: Mask | Bool[Array, "b r t"]
    position_ids: Tokens
    holes: Mask
    hole_starts: Tokens

    @classmethod
    def of(cls, canvas: Canvas) -> "CanvasArrays":
        """Copy the arrays of a canvas to the device."""
        return cls(*(jnp.asarray(getattr(canvas, name)) for name in cls._fields))


class Window(NamedTuple):
    """Columns and rows of one call of the compiled loop, and its limits.

    Traced, not static, so that blocks of equal length share a compilation.

    Attributes:
        block: first column that may be committed.
        rows: first row that is recomputed.
        first_step: step at which the block began.
        until: return before this step.
        forwards: return after this many forward passes.
    """

    block: ScalarInt
    rows: ScalarInt
    first_step: ScalarInt
    until: ScalarInt
    forwards: ScalarInt

    @classmethod
    def of(cls, **numbers: int) -> "Window":
        """Make a window from plain numbers, one per field."""
        return cls(**int32_arrays(numbers))

    def updated(self, **numbers: int) -> "Window":
        """Replace fields by plain numbers."""
        return self._replace(**int32_arrays(numbers))


def int32_arrays(numbers: Fields) -> Fields:
    """Convert plain numbers to arrays, so that a new number does not trigger a compilation."""
    return {name: np.int32(number) for name, number in numbers.items()}


class BatchInputs(NamedTuple):
    """Traced inputs of the compiled loop, apart from state and cache."""

    canvas: CanvasArrays
    window: Window
    params: SamplingParams


@dataclass(frozen=True)
class Hooks:
    """The reference's hooks, as functions that JAX can trace, and its choice of candidates.

    Attributes:
        tokens: maps (step, tokens [b, t], logits [b, r, v]) to tokens. Called after each step, and
            once before the first with step -1 and None for the logits. MASK at a hole opens it
            again, any other token closes it.
        logits: maps (step, tokens [b, t], logits [b, r, v]) to logits, before they are filtered.
        admits_mask: whether MASK itself is a candidate, as in the reference.
    """

    tokens: Callable | None = None
    logits: Callable | None = None
    admits_mask: bool = False


NO_HOOKS = Hooks()


class Proposal(NamedTuple):
    """A token for each position of the block, and the numbers that decide whether it is committed.

    Attributes:
        tokens: the drawn token.
        probability: its probability after temperature and filters; NaN if the logits are not finite.
        scores: confidence by the measure of `alg`; larger is committed earlier.
        entropy: entropy of the model's distribution, before temperature and filters; 0 unless the
            commit rule reads it.
    """

    tokens: RowIds
    probability: RowScores
    scores: RowScores
    entropy: RowScores


class Evaluation(NamedTuple):
    """Result of a forward pass over a canvas.

    Attributes:
        proposal: tokens for the current step.
        logprobs: log-probabilities of the proposed tokens; None where none are kept.
        candidates: candidates of later steps; None unless `Variant.keeps_candidates`.
        logits: logits of all rows, for hooks; else None.
    """

    proposal: Proposal
    logprobs: TokenLogProbs | None
    candidates: Candidates | None
    logits: RowLogits | None


def decided_stops(state: SamplerState, inputs: BatchInputs, stop_ids: StopIds) -> Mask:
    """Return the columns of holes with a stop token that is decided."""
    is_stop = jnp.isin(state.tokens, jnp.asarray(stop_ids, jnp.int32))
    return is_stop & inputs.canvas.holes & ~state.masked


def end_rows(state: SamplerState, inputs: BatchInputs, stop_ids: StopIds) -> SamplerState:
    """Fill the rest of a hole after a stop token that has no mask before it; nothing reads it."""
    # Stop token S in one hole:
    #   [a, M, S, M, M] -> [a, M, S, M, M]    a mask before S may still become a stop token
    #   [a, b, S, M, M] -> [a, b, S, S, S]
    canvas = inputs.canvas
    is_stop = decided_stops(state, inputs, stop_ids)
    if inputs.params.early_stop is not None:
        is_stop &= inputs.params.early_stop
    # masked [0, 1, 0, 1, 1] -> [0, 0, 1, 1, 2]
    masks_before = jnp.cumsum(state.masked, axis=1) - state.masked
    # Clear: as many masks before the stop token as before its hole, hence none between.
    is_clear = is_stop & (
        masks_before == jnp.take_along_axis(masks_before, canvas.hole_starts, axis=1)
    )
    columns = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)
    # Clear at column 2 of 5: [-1, -1, 2, 2, 2]. It ends only its own hole.
    last = jax.lax.cummax(jnp.where(is_clear, columns, -1), axis=1)
    ended = state.masked & (last >= canvas.hole_starts)
    stops = jnp.take_along_axis(state.tokens, jnp.maximum(last, 0), axis=1)
    return fill_masks(state, ended, stops)


def fill_masks(state: SamplerState, masks: Mask, tokens: Tokens | int) -> SamplerState:
    """Replace masks by tokens, as the current step."""
    return state._replace(
        tokens=jnp.where(masks, tokens, state.tokens),
        masked=state.masked & ~masks,
        commit_step=jnp.where(masks, state.step, state.commit_step),
    )


def row_keys(seed: int, numbers: Sequence[int]) -> BatchKeys:
    """Return a random key per row, which depends on the seed and the row's number alone."""
    fold_in = partial(jax.random.fold_in, seed_key(seed))
    return jax.vmap(fold_in)(np.array(numbers, np.int32))


def rewrite(state: SamplerState, tokens: Tokens, holes: Mask, mask_id: int) -> SamplerState:
    """Write a hook's tokens into the holes: MASK opens a hole, any other token closes it."""
    # Tokens at given text are ignored.
    tokens = jnp.where(holes, tokens, state.tokens).astype(jnp.int32)
    masked = holes & (tokens == mask_id)
    # A token closed by the hook counts as committed by this step.
    closed = jnp.where(state.masked, state.step, state.commit_step)
    return state._replace(
        tokens=tokens, masked=masked, commit_step=jnp.where(masked, NEVER, closed)
    )

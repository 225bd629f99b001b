"""Repair: rows under a constraint are decoded as usual, then again from the first token that breaks it.

A text that meets the constraint stays. Otherwise the tokens before the first wrong one stay, that one is chosen among
those that leave an end within the canvas, and everything after it is decoded again. Each repair decides at least one
token for good, so that the last one ends with a text that meets the constraint.
"""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import NEVER, SamplerState
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer


def constraints_of(canvas: Canvas, options: GenerationOptions, tokenizer: DiffuCoderTokenizer) -> list[Constraint]:
    """Return the constraint of each row; none without a grammar. Raises ValueError for rows of several holes."""
    if options.grammar is None:
        return []
    grammar, constraints = find_grammar(options.grammar), []
    for tokens, holes, present in zip(canvas.tokens, canvas.holes, canvas.attention_mask, strict=True):
        start, end = np.flatnonzero(holes)[[0, -1]]
        room = int(end - start) + 1
        if not holes[start : end + 1].all():
            raise ValueError(f"grammar={options.grammar!r}: takes one hole, not several")
        texts = (tokens[:start][present[:start]], tokens[end + 1 :])
        before, after = (tokenizer.decode(part.tolist(), skip_special_tokens=True) for part in texts)
        constraints.append(Constraint(grammar, tokenizer, room, before, after))
    return constraints


def constrained_states(
    sampler: Sampler,
    canvas: Canvas,
    options: GenerationOptions,
    tokenizer: DiffuCoderTokenizer,
    *,
    seed: int | Key[Array, "b"] = 0,
    every: int | None = 1,
) -> Iterator[SamplerState]:
    """Yield the states of `Sampler.stream`; with a grammar the last alone, as any token may be decoded again."""
    stop_ids = tokenizer.stop_ids
    if constraints := constraints_of(canvas, options, tokenizer):
        state = sampler.generate(canvas, options.changed(grammar=None), seed=seed, stop_ids=stop_ids)
        yield meet(sampler, canvas, state, constraints, options, stop_ids)
    else:
        yield from sampler.stream(canvas, options, seed=seed, every=every, stop_ids=stop_ids)


def meet(
    sampler: Sampler,
    canvas: Canvas,
    state: SamplerState,
    constraints: Sequence[Constraint],
    options: GenerationOptions,
    stop_ids: tuple[int, ...],
) -> SamplerState:
    """Repair decoded rows of one hole each until all meet their constraints.

    Args:
        state: as `Sampler.generate` left it.
        constraints: one per row.
        options, stop_ids: as for the first decoding.
    """
    options = options.with_settings(grammar=None)
    repairs = [Repair(constraint, options.temperature) for constraint in constraints]
    while True:
        tokens, reopened = np.array(state.tokens), np.zeros_like(canvas.holes)
        for row, repair in enumerate(repairs):
            hole = np.flatnonzero(canvas.holes[row])
            if (kept := repair.check(tokens[row, hole])) is not None:
                reopened[row, hole[kept:]] = True
        if not reopened.any():
            return state
        state = overwrite(
            state, reopened, tokens=sampler.mask_id, masked=True, commit_step=NEVER, confidence=0.0
        )
        log_probs, ids = map(np.asarray, sampler.candidates(canvas, state, options))
        decided, confidence = np.zeros_like(reopened), np.zeros(tokens.shape, np.float32)
        for row in np.flatnonzero(reopened.any(axis=1)).tolist():
            column = int(np.argmax(reopened[row]))
            place = row, column - canvas.region.start
            key = jax.random.fold_in(state.keys[row], state.step)
            token = repairs[row].choose(key, log_probs[place], ids[place])
            decided[row, column], tokens[row, column] = True, token
            confidence[row, column] = np.exp(log_probs[place][ids[place] == token]).sum()
        state = overwrite(
            state,
            decided,
            tokens=tokens,
            masked=False,
            commit_step=state.step,
            confidence=confidence,
        )
        state = state._replace(forwards=state.forwards + 1, step=state.step + 1)
        if np.asarray(state.masked).any():
            state = sampler.generate(canvas, options, stop_ids=stop_ids, state=state)


def overwrite(state: SamplerState, columns: Bool[np.ndarray, "b t"], **values: Any) -> SamplerState:
    """Set fields of a state in these columns."""
    fields = {
        name: jnp.where(columns, value, getattr(state, name)) for name, value in values.items()
    }
    return state._replace(**fields)

"""Repair: rows whose texts must meet a constraint are decoded as ever, and again from the first token that breaks it.

What is decoded right is left as it is. Of anything else, the tokens before the first wrong one stay, that one is chosen
anew among those that leave an end within the canvas, and all after it is decoded once more. Each repair decides at
least one token for good, so that the last one ends with a text that meets the constraint.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.step import NEVER, SamplerState
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer


def constraints_of(canvas: Canvas, options: GenerationOptions, tokenizer: DiffuCoderTokenizer) -> list[Constraint]:
    """What the grammar of the options asks of each row; ValueError for rows of several holes."""
    if options.grammar is None:
        return []
    grammar, found = find_grammar(options.grammar), []
    for tokens, holes, present in zip(canvas.tokens, canvas.holes, canvas.attention_mask, strict=True):
        start, end = np.flatnonzero(holes)[[0, -1]]
        room = int(end - start) + 1
        if not holes[start : end + 1].all():
            raise ValueError(f"grammar={options.grammar!r}: takes one hole, not several")
        texts = (tokens[:start][present[:start]], tokens[end + 1 :])
        before, after = (tokenizer.decode(part.tolist(), skip_special_tokens=True) for part in texts)
        found.append(Constraint(grammar, tokenizer, room, before, after))
    return found


def meet(
    sampler: Sampler,
    canvas: Canvas,
    state: SamplerState,
    constraints: Sequence[Constraint],
    options: GenerationOptions,
    stop_ids: tuple[int, ...],
) -> SamplerState:
    """Repair decoded rows of one hole each until every one meets its constraint.

    Args:
        state: as `Sampler.generate` left it.
        constraints: of the rows.
        options, stop_ids: as they were decoded.
    """
    options, least = options.changed(grammar=None), [0] * len(constraints)
    while True:
        tokens = np.array(state.tokens)
        reopened = np.zeros_like(canvas.holes)
        choices: dict[int, tuple[list[int], int]] = {}
        for row, constraint in enumerate(constraints):
            hole = np.flatnonzero(canvas.holes[row])
            ids = constraint.answer(tokens[row, hole].tolist())
            if (kept := constraint.wrong_from(ids, least[row])) is not None:
                reopened[row, hole[kept:]] = True
                choices[row], least[row] = (ids[:kept], int(hole[kept])), kept + 1
        if not choices:
            return state
        state = reopen(state, reopened, sampler.mask_id)
        log_probs, ids = (np.asarray(part) for part in sampler.candidates(canvas, state, options))
        state = state._replace(forwards=state.forwards + 1)
        for row, (before, column) in choices.items():
            place = column - canvas.region.start
            key = jax.random.fold_in(state.keys[row], state.step)
            order = drawn_order(key, log_probs[row, place], options.temperature)
            token = constraints[row].next_token(before, ids[row, place, order].tolist())
            probability = np.exp(log_probs[row, place][ids[row, place] == token]).sum()
            state = decide(state, row, column, token, float(probability))
        state = state._replace(step=state.step + 1)
        if np.asarray(state.masked).any():
            state = sampler.generate(canvas, options, stop_ids=stop_ids, state=state)


def reopen(state: SamplerState, which: np.ndarray, mask_id: int) -> SamplerState:
    """Mask columns that were decided."""
    return state._replace(
        tokens=jnp.where(which, mask_id, state.tokens),
        masked=state.masked | which,
        commit_step=jnp.where(which, NEVER, state.commit_step),
        confidence=jnp.where(which, 0.0, state.confidence),
    )


def decide(state: SamplerState, row: int, column: int, token: int, probability: float) -> SamplerState:
    """Decide one column of one row."""
    return state._replace(
        tokens=state.tokens.at[row, column].set(token),
        masked=state.masked.at[row, column].set(False),
        commit_step=state.commit_step.at[row, column].set(state.step),
        confidence=state.confidence.at[row, column].set(probability),
    )


def drawn_order(key: Key[Array, ""], log_probs: Float[np.ndarray, "c"], temperature: float) -> Int[np.ndarray, "c"]:
    """Order candidates as they are drawn one after another, or by their probability at temperature 0."""
    if temperature == 0:
        return np.argsort(-log_probs, kind="stable")
    gumbel = jax.random.gumbel(key, log_probs.shape)
    return np.argsort(-(log_probs + np.asarray(gumbel)), kind="stable")

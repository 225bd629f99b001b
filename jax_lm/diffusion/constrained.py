"""Decode answers that must meet a grammar.

An answer is decoded as if there were no grammar, and repaired afterwards: tokens before the first
error stay, the token there is chosen again among those that leave a valid end within the hole, and
everything after it is decoded again, unless the answer is valid with it. `Repair` is this loop for
one answer, used by the server too; `meet` drives it for a batch. Every round decides at least one
token for good, so that the loop ends, with an answer that meets the grammar.
"""

from collections.abc import Iterator, Sequence
from typing import Any

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


class Repair:
    """Repairs one answer until it meets its constraint.

        while (kept := repair.check(decoded_ids)) is not None:
            # Mask the answer from token `kept` on, and compute candidates for that token.
            token = repair.choose(key, log_probs, candidates)
            # Decide token `kept`, and decode the rest again unless `repair.keeps` it.

    Attributes:
        ids: tokens that stay.
    """

    def __init__(self, constraint: Constraint, temperature: float) -> None:
        self.constraint, self.temperature = constraint, temperature
        self.ids: list[int] = []

    def check(self, ids: Int[np.ndarray, "t"]) -> int | None:
        """Return how many tokens of a decoded answer stay; None if it meets the constraint."""
        # Tokens that stayed before are valid: the search for the first error begins after them.
        answer = self.constraint.answer(ids.tolist())
        kept = self.constraint.find_error(answer, len(self.ids))
        self.ids = answer[:kept]
        return kept

    def choose(
        self, key: Key[Array, ""], log_probs: Float[np.ndarray, "c"], ids: Int[np.ndarray, "c"]
    ) -> int:
        """Decide the token after those that stay: draw candidates until one can be completed.

        Without temperature, candidates are tried by their probability.
        """
        # Gumbel noise: the order is that of draws without replacement.
        if self.temperature:
            log_probs = log_probs + np.asarray(jax.random.gumbel(key, log_probs.shape))
        order = np.argsort(-log_probs, kind="stable")
        token = self.constraint.next_token(self.ids, ids[order].tolist())
        self.ids = [*self.ids, token]
        return token

    def keeps(self, rest: Int[np.ndarray, "t"]) -> bool:
        """Return whether the tokens after the chosen one stay: the answer meets the constraint.

        A valid beginning is not enough. If a quotation mark replaces Bob in {"a": Bob, "b": 3}, the
        text {"a": ", "b": 3} begins with a valid string ", ", which nobody meant.

        Args:
            rest: -1 where nothing is decided.
        """
        answer = self.constraint.answer([*self.ids, *rest.tolist()])
        return -1 not in answer and self.constraint.is_met(answer)


def constraints_of(
    canvas: Canvas, options: GenerationOptions, tokenizer: DiffuCoderTokenizer
) -> list[Constraint]:
    """Return the constraint of each row, none without a grammar.

    Raises:
        ValueError: a row has several holes, or no valid text fits its hole.
    """
    if options.grammar is None:
        return []
    grammar, constraints = find_grammar(options.grammar), []
    for tokens, holes, present in zip(
        canvas.tokens, canvas.holes, canvas.attention_mask, strict=True
    ):
        # holes [0, 1, 1, 0]: columns [1, 2], start 1, end 3
        columns = np.flatnonzero(holes)
        start, end = columns[0], columns[-1] + 1
        if len(columns) < end - start:
            raise ValueError(f"grammar={options.grammar!r}: takes one hole, not several")
        # the texts around the hole
        before, after = (
            tokenizer.decode(ids.tolist(), skip_special_tokens=True)
            for ids in (tokens[:start][present[:start]], tokens[end:])
        )
        constraints.append(Constraint(grammar, tokenizer, len(columns), before, after))
    return constraints


def constrained_states(
    sampler: Sampler,
    canvas: Canvas,
    options: GenerationOptions,
    tokenizer: DiffuCoderTokenizer,
    *,
    seed: int | Key[Array, "b"] = 0,
    every: int | None = 1,
    state: SamplerState | None = None,
) -> Iterator[SamplerState]:
    """Yield the states of `Sampler.stream`; with a grammar, only the last one.

    With a grammar, any token may be decoded again, and `state` is ignored.
    """
    stop_ids = tokenizer.stop_ids
    if constraints := constraints_of(canvas, options, tokenizer):
        state = sampler.generate(
            canvas, options.with_settings(grammar=None), seed=seed, stop_ids=stop_ids
        )
        yield meet(sampler, canvas, state, constraints, options, stop_ids)
    else:
        yield from sampler.stream(
            canvas, options, seed=seed, every=every, stop_ids=stop_ids, state=state
        )


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
        # check: [a, b, x, c] with the error at x keeps 2 tokens and opens columns 2 and 3
        tokens, reopened = np.array(state.tokens), np.zeros_like(canvas.holes)
        for row, repair in enumerate(repairs):
            hole = np.flatnonzero(canvas.holes[row])
            if (kept := repair.check(tokens[row, hole])) is not None:
                reopened[row, hole[kept:]] = True
        if not reopened.any():
            return state
        # the same state with these columns masked
        masks = {"tokens": sampler.mask_id, "masked": True, "commit_step": NEVER, "confidence": 0.0}
        opened = overwrite(state, reopened, **masks)
        undecided = np.asarray(state.masked)
        # choose: the first open token of each row, among those that can be completed
        log_probs, ids = map(np.asarray, sampler.candidates(canvas, opened, options))
        decided, confidence = np.zeros_like(reopened), np.zeros(tokens.shape, np.float32)
        for row in np.flatnonzero(reopened.any(axis=1)).tolist():
            column, *after = np.flatnonzero(reopened[row]).tolist()
            position = row, column - canvas.region.start
            key = jax.random.fold_in(state.keys[row], state.step)
            token = repairs[row].choose(key, log_probs[position], ids[position])
            if repairs[row].keeps(np.where(undecided[row, after], -1, tokens[row, after])):
                reopened[row, after] = False
            decided[row, column], tokens[row, column] = True, token
            confidence[row, column] = np.exp(log_probs[position][ids[position] == token]).sum()
        state = overwrite(
            overwrite(state, reopened, **masks),
            decided,
            tokens=tokens,
            masked=False,
            commit_step=state.step,
            confidence=confidence,
        )
        state = state._replace(forwards=state.forwards + 1, step=state.step + 1)
        # decode again
        if np.asarray(state.masked).any():
            state = sampler.generate(canvas, options, stop_ids=stop_ids, state=state)


def overwrite(state: SamplerState, columns: Bool[np.ndarray, "b t"], **values: Any) -> SamplerState:
    """Set fields of a state in the columns marked True."""
    fields = {
        name: jnp.where(columns, value, getattr(state, name)) for name, value in values.items()
    }
    return state._replace(**fields)

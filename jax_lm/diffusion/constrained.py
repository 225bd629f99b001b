"""Decode answers that must meet a grammar.

An answer is decoded as if there were no grammar, and repaired afterwards: tokens before the first
error stay, the token there is chosen again among those that leave a valid end within the hole, and
everything after it is decoded again, unless the answer is valid with it. Text that the grammar
determines, such as the keys of a schema, is decided without the model. Where decoding again has not
been worth its forward passes, several tokens in a row are chosen one by one.

`Repair` is this loop for one answer, used by the server too; `meet` drives it for a batch. Every
round decides at least one token for good, so that the loop ends, with an answer that meets the
grammar.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.sampler import LogitsWindow, Sampler
from jax_lm.diffusion.state import NEVER, SamplerState, Seed
from jax_lm.grammar import find_grammar
from jax_lm.grammar.constraint import Constraint
from jax_lm.models.shapes import HostLogits, ScalarInt, SequenceMask, SequenceTokens, StopIds
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds

# Tokens that are chosen one by one after the first decoding that was not worth its forward passes;
# as many again after the next, and so on: a model that does not write what the grammar wants decodes
# in vain only a few times.
FIRST_PATIENCE = 16
# Candidates of a choice, most likely first. If the grammar allows none of them, it supplies a token.
CANDIDATES = 50


class HoleArrays(NamedTuple):
    """The columns of a hole on the host, as in `SamplerState`; tokens are arbitrary where masked."""

    tokens: SequenceTokens
    masked: SequenceMask
    commit_step: SequenceTokens
    confidence: Float[np.ndarray, "t"]


class Repair:
    """Repairs one answer until it meets its constraint.

        repair.force(hole, 0)
        # Decode the masks of the hole.
        while not repair.check(hole, step):
            while repair.choices:
                # Compute the logits after `repair.ids`, with everything from there on masked, in
                # `repair.window`.
                repair.choose(hole, step, key, logits, window)
            # Decode what is masked again.

    Args:
        constraint: what the answer must meet.
        options: temperature, and whether there is a cache: choices then recompute a block.

    Attributes:
        ids: tokens that stay.
        given: places in the hole that were decided here, and not by a step.
        choices: tokens to choose one by one before the rest is decoded again.
        window: what the forward pass of the next choice recomputes.
        patience: value of `choices` after the next decoding that gets few tokens right.
    """

    def __init__(self, constraint: Constraint, options: GenerationOptions):
        self.constraint = constraint
        self.temperature = options.temperature
        self.is_cached = options.decoding.settings.cache != "none"
        self.window = LogitsWindow()
        self.ids: TokenIds = []
        self.given: TokenIds = []
        self.choices = 0
        self.patience = FIRST_PATIENCE

    def check(self, hole: HoleArrays, step: int) -> bool:
        """Return whether a decoded answer meets the constraint; otherwise find its first error."""
        # Tokens that stayed before are valid: the search for the first error begins after them.
        stayed = len(self.ids)
        answer = self.constraint.tokenizer.until_stop(hole.tokens.tolist())
        if self.constraint.is_met(answer):
            return True
        kept = self.constraint.count_valid(answer, stayed)
        self.ids = answer[:kept]
        self.choices = 1
        # A choice takes a forward pass. A decoding that gets less than a token right with two of them
        # is not worth another one for a while.
        if 2 * (kept - stayed) < len(np.unique(hole.commit_step[stayed : len(answer)])):
            self.choices = self.patience
            self.patience = 2 * self.patience
        self.window = LogitsWindow()
        self.force(hole, step)
        return False

    def force(self, hole: HoleArrays, step: int):
        """Decide the tokens after those that stay that the grammar alone determines, if any."""
        if tokens := self.constraint.forced(self.ids):
            self.decide(hole, tokens, step, 1.0)

    def choose(
        self,
        hole: HoleArrays,
        step: int,
        key: UInt32[np.ndarray, "2"],
        logits: HostLogits,
        window: LogitsWindow,
    ):
        """Decide what comes after the tokens that stay: draw candidates until one can be completed.

        Args:
            key: data of the row's key; without temperature, candidates come by their probability.
            logits, window: of the column, from `Sampler.logits_at`.
        """
        # temperature 0 takes the most likely token; its confidence is that at temperature 1
        log_probs = log_softmax(logits / (self.temperature or 1.0))
        ids = most_likely(log_probs, CANDIDATES)
        drawn = log_probs = log_probs[ids]
        # Gumbel noise: the order is that of draws without replacement.
        if self.temperature:
            drawn = log_probs + np.asarray(gumbel_noise(key, np.int32(step), len(ids)))
        order = np.argsort(-drawn, kind="stable")
        tokens = self.constraint.next_tokens(self.ids, ids[order].tolist())
        self.choices -= 1
        self.window = window if self.is_cached else LogitsWindow()
        self.decide(hole, tokens, step, float(np.exp(log_probs[ids == tokens[0]]).sum()))
        self.force(hole, step)

    def decide(self, hole: HoleArrays, tokens: TokenIds, step: int, confidence: float):
        """Add tokens to those that stay, and mask the tokens after them unless they stay too.

        They stay if the answer meets the constraint with them. A valid beginning is not enough. If a
        quotation mark replaces Bob in {"a": Bob, "b": 3}, the text {"a": ", "b": 3} begins with a
        valid string ", ", which nobody meant.
        """
        # [a, b, x, c] with x replaced by y: hole[2:3] is decided, hole[3:] is masked
        start = len(self.ids)
        end = len(self.ids) + len(tokens)
        self.ids = [*self.ids, *tokens]
        self.given += range(start, end)
        rest = np.where(hole.masked, -1, hole.tokens)[end:]
        answer = self.constraint.tokenizer.until_stop([*self.ids, *rest.tolist()])
        stays = -1 not in answer and self.constraint.is_met(answer)
        for array, value in zip(hole, (tokens, False, step, confidence), strict=True):
            array[start:end] = value
        if stays:
            self.choices = 0
        else:
            hole.masked[end:], hole.commit_step[end:], hole.confidence[end:] = True, NEVER, 0.0


def constraints_of(
    canvas: Canvas, options: GenerationOptions, tokenizer: DiffuCoderTokenizer
) -> list[Constraint]:
    """Return the constraint of each row, none without a grammar.

    Raises:
        ValueError: a row has several holes, or no valid text fits its hole.
    """
    if options.grammar is None:
        return []
    grammar = find_grammar(options.grammar)
    constraints = []
    for tokens, holes, present in zip(
        canvas.tokens, canvas.holes, canvas.attention_mask, strict=True
    ):
        # holes [0, 1, 1, 0]: columns [1, 2], start 1, end 3
        columns = np.flatnonzero(holes)
        start = columns[0]
        end = columns[-1] + 1
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
    seed: Seed,
    every: int | None,
    state: SamplerState | None = None,
) -> Iterator[SamplerState]:
    """Yield the states of `Sampler.stream`; with a grammar, only the last one.

    With a grammar, any token may be decoded again, and `state` is ignored.
    """
    stop_ids = tokenizer.stop_ids
    constraints = constraints_of(canvas, options, tokenizer)
    if not constraints:
        yield from sampler.stream(
            canvas, options, seed=seed, every=every, stop_ids=stop_ids, state=state
        )
        return
    options = options.with_settings(grammar=None)
    repairs = [Repair(each, options) for each in constraints]
    state = on_host(sampler.start(canvas, seed))
    for hole, repair in zip(holes_of(state, canvas), repairs, strict=True):
        repair.force(hole, 0)
    if not any(repair.ids for repair in repairs):
        state = sampler.generate(canvas, options, seed=seed, stop_ids=stop_ids)
    yield meet(sampler, canvas, state, repairs, options, stop_ids)


def meet(
    sampler: Sampler,
    canvas: Canvas,
    state: SamplerState,
    repairs: Sequence[Repair],
    options: GenerationOptions,
    stop_ids: StopIds,
) -> SamplerState:
    """Decode the masks of rows of one hole each, and repair the rows until all meet their constraints.

    Args:
        repairs: one per row.
        options, stop_ids: as for `Sampler.generate`.
    """
    while True:
        if np.asarray(state.masked).any():
            state = state._replace(tokens=np.where(state.masked, sampler.mask_id, state.tokens))
            state = sampler.generate(canvas, options, stop_ids=stop_ids, state=state)
        state = on_host(state)
        holes = holes_of(state, canvas)
        step = int(state.step)
        wrong = [row for row, hole in enumerate(holes) if not repairs[row].check(hole, step)]
        if not wrong:
            return state
        # the next token of each row, among those that can be completed
        keys = np.asarray(jax.random.key_data(state.keys))
        while wrong := [row for row in wrong if repairs[row].choices]:
            for row in wrong:
                repair = repairs[row]
                padding = int(canvas.attention_mask[row].argmax())
                column = int(canvas.holes[row].argmax()) + len(repair.ids)
                # padding on the left, column 3: [-, -, a, M, b] -> [a, M, b, -, -], column 1
                opened = state.masked[row].copy()
                opened[column:] = canvas.holes[row, column:]
                tokens = np.where(opened, sampler.mask_id, state.tokens[row])
                tokens, length = np.roll(tokens, -padding), len(tokens) - padding
                found = sampler.logits_at(tokens, length, column - padding, repair.window)
                repair.choose(holes[row], step, keys[row], *found)
            step += 1
            state = state._replace(step=np.int32(step), forwards=np.int32(state.forwards + 1))


@partial(jax.jit, static_argnames="count")
def gumbel_noise(key: UInt32[Array, "2"], step: ScalarInt, count: int) -> Float[Array, "c"]:
    """Return noise for the candidates of a choice; each step of each row has its own."""
    return jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key), step), (count,))


def most_likely(values: HostLogits, count: int) -> Int[np.ndarray, "c"]:
    """Return the indices of the largest values, largest first; equal values keep their order."""
    # Only the largest are sorted, with all that equal the last of them: of 151,936 values, 50.
    largest = np.arange(len(values))
    if 0 < count < len(values):
        largest = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return largest[np.argsort(-values[largest], kind="stable")][:count]


def log_softmax(logits: HostLogits) -> HostLogits:
    # subtract the maximum, as exp would overflow
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def on_host(state: SamplerState) -> SamplerState:
    """Return a state whose arrays can be changed."""
    names = (*HoleArrays._fields, "step", "forwards")
    return state._replace(**{name: np.array(getattr(state, name)) for name in names})


def holes_of(state: SamplerState, canvas: Canvas) -> list[HoleArrays]:
    """Return the holes of rows with one hole each, as views of a state on the host."""
    found = [np.flatnonzero(row)[[0, -1]] for row in canvas.holes]
    return [
        HoleArrays(*(getattr(state, name)[row, first : last + 1] for name in HoleArrays._fields))
        for row, (first, last) in enumerate(found)
    ]

"""Variable-length holes: a decided position may become two masks or delete the rest of its hole.

This is DreamOn (arXiv 2602.01326). A step decides masked positions as any step does. Only a
position that it decides can expand or delete, and it deletes the masks after it up to the end of
its hole; each column has the number of its hole. Then one gather moves the columns of each row, so
that shapes stay the same. Since positions shift, every step recomputes every row.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jax_lm.config import DreamConfig
from jax_lm.diffusion import commit_rules
from jax_lm.diffusion.candidates import add_noise
from jax_lm.diffusion.canvas import WIDTH_BUCKET, Canvas, Layout, check_context
from jax_lm.diffusion.state import NEVER
from jax_lm.diffusion.step import Variant, evaluate, noise
from jax_lm.models.shapes import BatchCounts, Mask, Tokens
from jax_lm.options import GenerationOptions
from jax_lm.templates import Template, Templates
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer, TokenizerError


# Example: [B, x, M, M, y, pad, pad, pad] with room for 6 columns
#   length  5
#   limit   6
#   budget  2 * (6 - 2) = 8
#   hole    [-1, -1, 0, 0, -1, -1, -1, -1]
class Extent(NamedTuple):
    """Length of each row, and its limits.

    Attributes:
        length: columns in use; those after them are padding.
        limit: columns that the row may use.
        budget: number of masks that may still be added.
        hole: number of the hole of each column; -1 for given text and padding.
    """

    length: BatchCounts
    limit: BatchCounts
    budget: BatchCounts
    hole: Tokens

    @classmethod
    def of(cls, canvas: Canvas) -> "Extent":
        """Return the extent of a canvas whose rows begin in the first column and have room.

        The budget is the published one: twice the columns from the first hole on.
        """
        assert canvas.room is not None
        # Each first column of a hole begins the next number: x M M y M -> -1 0 0 -1 1.
        hole = np.where(canvas.holes, np.cumsum(canvas.first_columns, axis=1) - 1, -1)
        length = canvas.attention_mask.sum(axis=1)
        fields = length, canvas.room, 2 * (canvas.room - np.argmax(canvas.holes, axis=1)), hole
        return cls(*(jnp.asarray(field, jnp.int32) for field in fields))

    def present(self) -> Mask:
        """Return which columns are in use, hence not padding."""
        return jnp.arange(self.hole.shape[1]) < self.length[:, None]

    def layout(self, counts: list[int]) -> Layout:
        """Return the current layout; `counts` are the initial numbers of holes per row."""
        hole = np.asarray(self.hole)
        stopped = np.asarray(self.length < self.limit)
        return Layout(np.asarray(self.present()), hole >= 0, hole, counts, stopped.tolist())


@dataclass(frozen=True)
class VariableLength(Variant):
    """Holes that find their own length.

    Attributes:
        expand_id: token that becomes two masks.
        delete_id: token that deletes itself and the masks after it in its hole.
        tokens_per_step: number of positions that a step decides.
    """

    expand_id: int
    delete_id: int
    tokens_per_step: int = 1
    # The stop token is the one that deletes, so `resize` ends a text here, not `end_rows`.
    ends_early = False

    @classmethod
    def of(cls, canvas, options, config) -> "VariableLength | None":
        if canvas.room is None:
            return None
        options.require_growable()
        if (growth := growth_of(config)) is None:
            raise ValueError(f"canvas.room: must be None, as this checkpoint has no {EXPAND} token")
        return replace(growth, tokens_per_step=options.tokens_per_step)

    @property
    def request(self):
        return "holes that grow"

    def begin(self, state, canvas):
        return state if state.extra is not None else state._replace(extra=Extent.of(canvas))

    def params(self, params, state):
        """Replace the schedule, which needs a fixed number of tokens, with a limit of steps.

        The limit is a safeguard, and is never reached: a step decides at least one mask, and each
        initial or added mask is decided once.
        """
        # An expansion costs one of the budget, and adds two masks to decide.
        masks = np.asarray(state.masked).sum(axis=1)
        return params._replace(
            by_schedule=np.bool_(False),
            steps=np.int32((masks + 2 * np.asarray(state.extra.budget)).max()),
            ratios=np.ones(1, np.float32),
        )

    def admit(self, logits, state, expand_id):
        """Set the logit of the token that expands to -inf in rows that may not grow.

        A row may grow if its room and budget suffice for a step in which every decision expands.
        """
        extent = state.extra
        decided = jnp.minimum(jnp.sum(state.masked, axis=1), self.tokens_per_step)
        may_expand = (extent.length + decided <= extent.limit) & (extent.budget >= decided)
        is_expand = jnp.arange(logits.shape[-1]) == self.expand_id
        return jnp.where(is_expand & ~may_expand[:, None, None], -jnp.inf, logits)

    def advance(self, model, state, cache, inputs, config):
        """Take one denoising step: decide positions, then expand and delete."""
        # compute: rows begin in column 0, so a column number is a position
        columns = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)
        positions = jnp.broadcast_to(columns, state.tokens.shape)
        canvas = inputs.canvas._replace(
            attention_mask=state.extra.present(), position_ids=positions
        )
        evaluation, cache = evaluate(model, state, cache, inputs._replace(canvas=canvas), config)
        proposal = evaluation.proposal
        # decide
        scores = add_noise(noise(state, positions)[2], proposal.scores, inputs.params.alg_temp)
        rank = commit_rules.ranks(scores, state.masked)
        is_broken = jnp.isnan(proposal.probability)
        # A NaN is committed at once, so that the host finds it, but never expands or deletes.
        decided = state.masked & ((rank < self.tokens_per_step) | is_broken)
        tokens = jnp.where(decided, proposal.tokens, state.tokens)
        masked = state.masked & ~decided
        # expand and delete
        move = resize(state.extra, tokens, masked, decided & ~is_broken, self)

        # `new` is the value of a mask that an expansion leaves, `padding` that of padding.
        def apply_move(values, new, padding):
            return jnp.where(move.is_new, new, move.gather(values, padding))

        commit_step = jnp.where(decided, state.step, state.commit_step)
        confidence = jnp.where(decided, proposal.probability, state.confidence)
        state = state._replace(
            tokens=apply_move(tokens, config.mask_id, self.delete_id),
            masked=apply_move(masked, True, False),
            commit_step=apply_move(commit_step, NEVER, -1),
            confidence=apply_move(confidence, 0.0, 0.0),
            step=state.step + 1,
            forwards=state.forwards + 1,
            extra=move.extent,
        )
        return state, cache


class Move(NamedTuple):
    """A gather that moves the columns of rows whose length changes.

    Attributes:
        source: the column that each column is copied from.
        is_new: columns that become the masks of an expanded position.
        extent: extent of the rows afterwards.
    """

    source: Tokens
    is_new: Mask
    extent: Extent

    def gather(self, values: Array, padding: int | bool | float) -> Array:
        """Return the values of the columns after the move; columns of padding get `padding`."""
        return jnp.where(
            self.extent.present(), jnp.take_along_axis(values, self.source, axis=1), padding
        )


def resize(
    extent: Extent, tokens: Tokens, masked: Mask, decided: Mask, growth: VariableLength
) -> Move:
    """Compute the move that expands and deletes the newly decided positions.

    Args:
        extent: extent of the rows before the move.
        tokens: tokens after the step.
        masked: remaining masks; those after a deleted position of their hole are deleted with it.
        decided: positions that the step decided; tokens elsewhere neither expand nor delete.
        growth: holds the ids of the tokens that expand and delete.
    """
    # E expands and D deletes, both just decided; M is a mask, x and y are given, . is padding.
    #   tokens  [x, E, a, D, M, y, .]   the hole is columns 1 to 4
    #   copies  [1, 2, 1, 0, 0, 1, 0]   D and the mask after it vanish, E leaves two masks
    #   ends    [1, 3, 4, 4, 4, 5, 5]
    #   source  [0, 1, 1, 2, 5, ...]    that is [x, M, M, a, y, ., .], of length 5
    columns = jnp.arange(tokens.shape[1])
    deleted = decided & (tokens == growth.delete_id)
    expanded = decided & (tokens == growth.expand_id)
    # Holes are contiguous. So a column's hole has a deleted position before the column only if the
    # last one before it is in the same hole.
    last_deleted = jax.lax.cummax(jnp.where(deleted, columns, -1), axis=1)
    its_hole = jnp.take_along_axis(extent.hole, jnp.maximum(last_deleted, 0), axis=1)
    is_deleted = deleted | (masked & (last_deleted >= 0) & (its_hole == extent.hole))
    copies = jnp.where(extent.present(), jnp.where(is_deleted, 0, jnp.where(expanded, 2, 1)), 0)
    ends = jnp.cumsum(copies, axis=1)
    # The source of a column is the first one whose copies end beyond it.
    source = jax.vmap(lambda row: jnp.searchsorted(row, columns, side="right"))(ends)
    source = jnp.minimum(source, tokens.shape[1] - 1)
    extent = extent._replace(length=ends[:, -1], budget=extent.budget - jnp.sum(expanded, axis=1))
    move = Move(source, jnp.zeros_like(masked), extent)
    return Move(
        source,
        move.gather(expanded, padding=False),
        extent._replace(hole=move.gather(extent.hole, padding=-1)),
    )


def growth_of(config: DreamConfig) -> VariableLength | None:
    """Return the method with the expand and delete tokens of a checkpoint; None if it has none.

    Raises:
        ValueError: the checkpoint has an expand token but no delete token.
    """
    if config.expand_token_id is None:
        return None
    if config.eos_token_id is None:
        raise ValueError(
            f"config expand_token_id={config.expand_token_id}: needs eos_token_id, which deletes"
        )
    return VariableLength(config.expand_token_id, config.eos_token_id)


def named_expand_id(config: DreamConfig, tokenizer: DiffuCoderTokenizer) -> int | None:
    """Return the id that the tokenizer has for the expand token; None if it has none.

    Raises:
        TokenizerError: config.json states another id.
    """
    by_name = tokenizer.expand_id
    by_config = config.expand_token_id
    if by_config is not None and by_name != by_config:
        where = f"at {by_name}" if by_name is not None else "not at all"
        raise TokenizerError(
            f"tokenizer has {EXPAND} {where}, the model's expand_token_id is {by_config}"
        )
    return by_name


def spare_room(template: Template, options: GenerationOptions) -> int:
    """Return how many columns the holes of a template may take beyond their initial lengths."""
    return sum(max(options.max_new_tokens - length, 0) for length in template.lengths)


def grows(growth: VariableLength | None, templates: Templates, options: GenerationOptions) -> bool:
    """Return whether the holes of templates find their own length.

    Raises:
        ValueError: the options demand it, but checkpoint or templates do not allow it.
    """
    have_ends = all(template.has_end for template in templates)
    if options.growth == "on":
        if growth is None:
            raise ValueError(
                f"growth='on': this checkpoint has no {EXPAND} token, which makes a hole grow"
            )
        if not have_ends:
            raise ValueError(
                "growth='on': fills holes between texts; a completion has the length that is stated"
            )
    return options.growth != "off" and growth is not None and have_ends


def lay_out(
    templates: Templates,
    tokenizer: DiffuCoderTokenizer,
    options: GenerationOptions,
    config: DreamConfig,
) -> Canvas:
    """Lay templates out as a canvas.

    If holes find their own length, rows have room on the right: each row is enclosed by the tokens
    that begin and end a text, and each hole may take `options.max_new_tokens`, or its initial
    length if that is larger. Otherwise rows are padded on the left.

    Raises:
        ValueError: no template, or one that exceeds the context.
    """
    if not templates:
        raise ValueError("templates=[]: must hold at least one")
    growth = growth_of(config)
    context = config.max_position_embeddings
    is_growing = grows(growth, templates, options)
    # Lengths are checked before anything is encoded, as a stated length may exceed the memory.
    width, new = max((each.width(tokenizer), sum(each.lengths)) for each in templates)
    check_context(width, context, new)
    if not is_growing or growth is None:
        canvas = Canvas.padded(templates, tokenizer)
        # The blocks of this cache begin with the answers.
        return canvas if options.decoding.cache == "causal" else canvas.with_blocks_of(config)
    # Each row is its text between the begin tokens and the delete token, then padding on the right.
    begin = tokenizer.begin_ids
    rows = []
    room = []
    for template in templates:
        ids, holes = template.encode(tokenizer)
        rows.append(
            ([*begin, *ids, growth.delete_id], [*[False] * len(begin), *map(bool, holes), False])
        )
        room.append(len(rows[-1][0]) + spare_room(template, options))
    check_context(max(room), context)
    return Canvas.with_room(
        rows, room, -(-max(room) // WIDTH_BUCKET) * WIDTH_BUCKET, growth.delete_id
    )

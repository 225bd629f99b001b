"""Growth: steps over holes that find their own length, and the canvas that has room for that.

A step decides masked positions as any step does; then rows are moved together (`jax_lm.diffusion.extent`). Positions
shift, so that every step recomputes every row.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jax_lm.config import DreamConfig
from jax_lm.diffusion import candidates, commit_rules
from jax_lm.diffusion.candidates import SamplingParams
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.extent import Growth, resize
from jax_lm.diffusion.step import NEVER, NO_HOOKS, BatchInputs, KVCache, SamplerState, StepConfig, evaluate, noise
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.templates import Template
from jax_lm.tokenizer import EXPAND, DiffuCoderTokenizer, TokenizerError


def growth_of(config: DreamConfig) -> Growth | None:
    """The tokens by which holes of a checkpoint grow and shrink; ValueError if it names only one of them."""
    if config.expand_token_id is None:
        return None
    if config.eos_token_id is None:
        raise ValueError(f"config expand_token_id={config.expand_token_id}: needs eos_token_id, which deletes")
    return Growth(config.expand_token_id, config.eos_token_id)


def named_expand_id(config: DreamConfig, tokenizer: DiffuCoderTokenizer) -> int | None:
    """The id for expanding, of config.json or by its name; TokenizerError if they say different things."""
    by_name, by_config = tokenizer.expand_id, config.expand_token_id
    if by_config is not None and by_name != by_config:
        held = f"at {by_name}" if by_name is not None else "not at all"
        raise TokenizerError(f"tokenizer has {EXPAND} {held}, the model's expand_token_id is {by_config}")
    return by_name


def grows(growth: Growth | None, templates: Sequence[Template], options: GenerationOptions) -> bool:
    """Tell whether the holes of templates find their own length; ValueError if they should and cannot."""
    between = all(template.has_end for template in templates)
    if options.growth == "on" and growth is None:
        raise ValueError(f"growth='on': this checkpoint has no {EXPAND} token, which makes a hole grow")
    if options.growth == "on" and not between:
        raise ValueError("growth='on': fills holes between texts; a completion has the length that is stated")
    return options.growth != "off" and growth is not None and between


def growing_canvas(
    templates: Sequence[Template], tokenizer: DiffuCoderTokenizer, growth: Growth, limit: int, multiple_of: int
) -> Canvas:
    """Rows from the first column on, between the tokens that begin and end a text, with room on the right.

    Args:
        limit: tokens that a hole may become, unless more are stated.
    """
    begin = tokenizer.begin_ids
    rows = []
    for template in templates:
        ids, holes = template.encoded(tokenizer)
        rows.append(([*begin, *ids, growth.delete_id], [*[False] * len(begin), *map(bool, holes), False]))
    spare = [sum(max(limit - length, 0) for length in template.lengths) for template in templates]
    room = [len(ids) + more for (ids, _), more in zip(rows, spare, strict=True)]
    return canvas_with_room(rows, room, -(-max(room) // multiple_of) * multiple_of, growth.delete_id)


def canvas_with_room(
    rows: Sequence[tuple[Sequence[int], Sequence[bool]]], room: Sequence[int], width: int, pad_id: int
) -> Canvas:
    """Lay rows out from the first column on: ids, and what of them are holes, which may become as long as `room`."""
    tokens, is_hole = np.full((len(rows), width), pad_id, np.int32), np.zeros((len(rows), width), bool)
    for place, (ids, holes) in enumerate(rows):
        tokens[place, : len(ids)], is_hole[place, : len(ids)] = ids, holes
    present = np.arange(width) < np.asarray([[len(ids)] for ids, _ in rows])
    return Canvas(tokens, is_hole, present, np.asarray(room))


def growing_config(config: StepConfig, options: GenerationOptions) -> StepConfig:
    """Configure steps under which holes grow; ValueError for what does not go with them."""
    options.require_growable()
    if config.growth is None:
        raise ValueError(f"canvas.room: must be None, as this checkpoint has no {EXPAND} token")
    if config.hooks != NO_HOOKS or config.strict_reference:
        raise ValueError("hooks, strict_reference: must not be given where holes grow")
    return replace(config, growth=replace(config.growth, tokens_per_step=options.tokens_per_step))


def growing_params(params: SamplingParams, state: SamplerState) -> SamplingParams:
    """Settings without a schedule, which would need a number of tokens; the limit of steps is one of safety.

    A step decides a mask at least, and each mask there was at first, or that the budget adds, is decided once.
    """
    assert state.extent is not None
    masks, budget = np.asarray(state.masked).sum(axis=1), np.asarray(state.extent.budget)
    steps, ratios = np.int32((masks + 2 * budget).max()), np.ones(1, np.float32)
    return params._replace(by_schedule=np.bool_(False), steps=steps, ratios=ratios)


def grow(
    model: DreamForCausalLM, state: SamplerState, cache: KVCache, inputs: BatchInputs, config: StepConfig
) -> tuple[SamplerState, KVCache]:
    """One denoising step over rows of which holes find their own length: decide, then expand and delete."""
    extent, growth = state.extent, config.growth
    assert extent is not None
    assert growth is not None
    places = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)
    positions = jnp.broadcast_to(places, state.tokens.shape)
    canvas = inputs.canvas._replace(attention_mask=extent.present(), position_ids=positions)
    evaluation, cache = evaluate(model, state, cache, inputs._replace(canvas=canvas), config)
    proposal = evaluation.proposal
    _, _, for_choice = noise(state, positions)
    scores = candidates.disturbed(for_choice, proposal.scores, inputs.params.alg_temp)
    decided = state.masked & (commit_rules.ranks(scores, state.masked) < growth.tokens_per_step)
    tokens, masked = jnp.where(decided, proposal.tokens, state.tokens), state.masked & ~decided
    move = resize(extent, tokens, masked, decided, growth)

    def moved(values: jnp.ndarray, opened: int | bool | float, absent: int | bool | float) -> jnp.ndarray:
        return jnp.where(move.is_open, opened, move.of(values, absent))

    state = state._replace(
        tokens=moved(tokens, config.mask_id, growth.delete_id),
        masked=moved(masked, True, False),
        commit_step=moved(jnp.where(decided, state.step, state.commit_step), NEVER, -1),
        confidence=moved(jnp.where(decided, proposal.probability, state.confidence), 0.0, 0.0),
        step=state.step + 1,
        forwards=state.forwards + 1,
        extent=move.extent,
    )
    return state, cache


def hole_counts(canvas: Canvas) -> list[int]:
    """How many holes each row has."""
    before = np.concatenate([np.zeros_like(canvas.holes[:, :1]), canvas.holes[:, :-1]], axis=1)
    return (canvas.holes & ~before).sum(axis=1).tolist()


def layout(
    canvas: Canvas, state: SamplerState
) -> tuple[Bool[np.ndarray, "b t"], Bool[np.ndarray, "b t"], Int[np.ndarray, "b t"]]:
    """Which columns of a state are there, which belong to holes, and what tells these holes apart."""
    if state.extent is None:
        return canvas.attention_mask, canvas.holes, canvas.hole_starts
    number = np.asarray(state.extent.hole)
    return np.asarray(state.extent.present()), number >= 0, number

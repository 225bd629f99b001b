"""Lanes: rows that share compiled steps though each is on its own way: canvas, block, settings, randomness.

    lanes = Lanes(sampler, columns=128, is_cached=False, sizes=(1, 4), stop_ids=())
    lanes.join(row)          # whenever `lanes.has_room`
    lanes.advance(steps=4)   # again, until row.is_done

Each lane is a batch of one under `jax.vmap` of the one `step`, so that what a row becomes depends on the row alone.
What differs from row to row is traced; a compilation is made for a number of lanes, a width, and for having a cache or
not. Knows neither text nor queues.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool

from jax_lm.diffusion.decoding import BLOCK_LENGTH, Decoding
from jax_lm.diffusion.row import TOP_K, Row, Settings
from jax_lm.diffusion.sampler import UNLIMITED, Sampler
from jax_lm.diffusion.step import Cursor, Given, Hooks, Memory, Plan, SamplerState, skip_idle, step
from jax_lm.diffusion.unmasking import SamplingConfig

AXIS = "lanes"


class Lanes:
    """Places for rows of one width, all with a cache or all without.

    Args:
        columns: width of every row's canvas; shorter rows are padded on the right.
        sizes: numbers of lanes that there are compilations for; the smallest that holds the rows is used. More may be
            added to it later.
    """

    def __init__(
        self, sampler: Sampler, columns: int, *, is_cached: bool, sizes: Sequence[int], stop_ids: tuple[int, ...]
    ) -> None:
        self.sampler, self.columns, self.is_cached, self.sizes = sampler, columns, is_cached, list(sizes)
        self.rows: list[Row] = []
        self.seats: list[Row | None] = []
        self.memory = Memory()
        self.sampling = SamplingConfig(steps=None, top_k=TOP_K, stop_ids=stop_ids)

    @property
    def is_between_blocks(self) -> bool:
        """Whether rows may join: with a cache, only when all begin a block, as all are then recomputed together."""
        return not self.is_cached or all(row is None or row.is_between_blocks for row in self.seats)

    @property
    def has_room(self) -> bool:
        return len(self.rows) < max(self.sizes, default=0) and self.is_between_blocks

    def join(self, row: Row) -> None:
        """Take a place; ValueError if the row does not fit."""
        if row.columns > self.columns or row.is_cached != self.is_cached or not self.has_room:
            raise ValueError(f"a row of {row.columns} columns cannot join {len(self.rows)} of {self.columns}")
        self.rows.append(row)

    def leave(self, row: Row) -> None:
        """Give up the place, at any time."""
        self.rows.remove(row)
        self.seats = [None if seat is row else seat for seat in self.seats]

    def compile(self, size: int, row: Row) -> None:
        """Compile for another number of lanes, away from the rows that sit here; `row` is any that fits."""
        trial = Lanes(
            self.sampler, self.columns, is_cached=self.is_cached, sizes=[size], stop_ids=self.sampling.stop_ids
        )
        trial.join(row)
        trial.advance(1)
        self.sizes.append(size)

    def advance(self, steps: int) -> None:
        """Take up to `steps` steps; rows that end their block wait, with a cache, for the others to end theirs."""
        if self.is_between_blocks:
            for row in self.rows:
                row.next_block()
            self.seats = list(self.rows)
            if self.is_cached:
                self.memory = self.empty_memory(self.size)
                self.run(self.plan(is_refresh=True), UNLIMITED, forwards=1)
        self.run(self.plan(is_refresh=False), steps, forwards=UNLIMITED)

    @property
    def size(self) -> int:
        """Lanes of the compilation that holds the seats."""
        return min(size for size in self.sizes if size >= len(self.seats))

    def plan(self, *, is_refresh: bool) -> Plan:
        """What a compilation is made for: the whole canvas, or a window of it."""
        plan = Plan(
            sampling=self.sampling, decoding=Decoding(), hooks=Hooks(), mask_id=self.sampler.mask_id, steps=None,
            length=self.columns, rows=None, axis=AXIS,
        )  # fmt: skip
        if not self.is_cached:
            return plan
        rows = self.columns if is_refresh else BLOCK_LENGTH + 1
        return replace(plan, decoding=Decoding(cache="window"), length=BLOCK_LENGTH, rows=rows)

    def run(self, plan: Plan, steps: int, *, forwards: int) -> None:
        """One call of the compiled loop for the seats, and what it decided back to them."""
        ways = [row and self.way(row, plan, steps, forwards) for row in self.seats]
        blank = jax.tree.map(np.zeros_like, next(way for way in ways if way))
        ways += [None] * (self.size - len(ways))
        inputs = jax.tree.map(lambda *parts: np.stack(parts), *(way or blank for way in ways))
        # The memory is given away: should the call fail, it is lost, and with it what the open blocks rest on.
        memory, self.memory = self.memory, Memory()
        state, self.memory = run_lanes(self.sampler.graph, self.sampler.params, memory, *inputs, plan)
        decided = [np.asarray(part) for part in (state.tokens, state.masked, state.commit_step, state.confidence)]
        counters = np.asarray(state.step), np.asarray(state.forwards)
        for lane, row in enumerate(self.seats):
            if row is not None:
                row.take(*(part[lane, 0, : len(row.tokens)] for part in decided))
                row.step, row.forwards = (int(part[lane]) for part in counters)

    def way(self, row: Row, plan: Plan, steps: int, forwards: int) -> tuple[SamplerState, Given, Cursor, Settings]:
        """A row as a batch of one, padded on the right."""

        def padded(values: np.ndarray) -> np.ndarray:
            return np.pad(values, (0, self.columns - len(values)))[None]

        places = np.arange(len(row.tokens), dtype=np.int32)
        start = row.blocks[row.block].start if self.is_cached else 0
        is_window = plan.rows is not None and plan.rows < self.columns
        state: dict[str, Any] = {
            "tokens": padded(np.where(row.masked, self.sampler.mask_id, row.tokens).astype(np.int32)),
            "masked": padded(row.open),
            "commit_step": padded(row.commit_step),
            "confidence": padded(row.confidence),
            "step": np.int32(row.step),
            "forwards": np.int32(row.forwards),
            "keys": row.key[None],
        }
        given: dict[str, Any] = {
            "attention_mask": padded(np.ones_like(places, bool)),
            "position_ids": padded(places),
            "holes": padded(row.in_block),
            "hole_starts": padded(np.where(places < row.hole.start, 0, row.hole.start).astype(np.int32)),
        }
        cursor: dict[str, Any] = {
            "block": np.int32(start),
            "rows": np.int32(start - 1 if is_window else 0),
            "first_step": np.int32(row.first_step),
            "until": np.int32(min(row.step + steps, UNLIMITED)),
            "forwards": np.int32(min(row.forwards + forwards, UNLIMITED)),
        }
        return SamplerState(**state), Given(**given), Cursor(**cursor), row.settings(self.columns)

    def empty_memory(self, size: int) -> Memory:
        """Zeros for so many lanes; the refresh that begins a block covers every column."""
        graph, params = self.sampler.graph, self.sampler.params
        return run_empty_lanes(graph, params, size, self.columns)


@partial(jax.jit, static_argnames=("graph", "plan"), donate_argnames="memory")
def run_lanes(
    graph: nnx.GraphDef,
    params: dict,
    memory: Memory,
    states: SamplerState,
    given: Given,
    cursors: Cursor,
    settings: Settings,
    plan: Plan,
) -> tuple[SamplerState, Memory]:
    """What `sampler.run` does, for rows that each have a state, a cursor and settings: all leaves have an axis more."""
    model = nnx.merge(graph, params)
    states = states._replace(keys=jax.random.wrap_key_data(states.keys))

    def is_going(states: SamplerState) -> Bool[Array, "l"]:
        is_open = jnp.any(states.masked, axis=(1, 2))
        return is_open & (states.step < cursors.until) & (states.forwards < cursors.forwards)

    def skip(state: SamplerState, cursor: Cursor, settings: Settings) -> SamplerState:
        return skip_idle(state, cursor, settings.applied(plan))

    def take(state: SamplerState, memory: Memory, given: Given, cursor: Cursor, settings: Settings) -> tuple:
        return step(model, state, memory, given, cursor, settings.applied(plan))

    def advance(carry: tuple[SamplerState, Memory]) -> tuple[SamplerState, Memory]:
        states, memory = carry
        going = is_going(states)
        taken, memory = jax.vmap(take, axis_name=AXIS)(states, memory, given, cursors, settings)

        def kept(new: Array, old: Array) -> Array:
            return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        # A lane that waits recomputes its window with what it holds: nothing of it changes but the cache's rows.
        return jax.tree.map(kept, taken, states), memory

    started = jax.vmap(skip)(states, cursors, settings)
    return jax.lax.while_loop(lambda carry: jnp.any(is_going(carry[0])), advance, (started, memory))


@partial(jax.jit, static_argnames=("graph", "size", "columns"))
def run_empty_lanes(graph: nnx.GraphDef, params: dict, size: int, columns: int) -> Memory:
    one = nnx.merge(graph, params).model.empty_cache(1, columns)
    return Memory(jax.tree.map(lambda part: jnp.zeros((size, *part.shape), part.dtype), one))

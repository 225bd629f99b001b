"""Lanes: rows that share compiled steps though each is on its own way: canvas, block, settings, randomness.

    lanes = Lanes(sampler, columns=128, is_cached=False, seats=4, sizes=(1, 4), stop_ids=())
    lanes.join(row)          # whenever `lanes.has_room`
    lanes.advance(steps=4)   # again, until row.is_done

Each lane is a batch of one under `jax.vmap` of the one `step`, so that what a row becomes depends on the row alone.
What differs from row to row is traced; a compilation is made for a number of rows, a width, and for having a cache or
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
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion.decoding import BLOCK_LENGTH, Decoding
from jax_lm.diffusion.row import TOP_K, Row, Settings
from jax_lm.diffusion.sampler import UNLIMITED, Sampler
from jax_lm.diffusion.step import Cursor, Given, Hooks, Memory, Plan, SamplerState, skip_idle, step
from jax_lm.diffusion.unmasking import SamplingConfig

AXIS = "lanes"
Way = tuple[SamplerState, Given, Cursor, Settings]
"""What the compiled loop takes of a row, or of several, stacked."""


class Lanes:
    """Places for rows of one width, all with a cache or all without.

    With a cache, a row that begins a block is recomputed whole, together with the others that begin one; then it takes
    steps on a window, together with all that do. Neither group waits for a row of the other to end its block.

    Args:
        columns: width of every row's canvas; shorter rows are padded on the right.
        seats: rows that there is room for; with a cache, what each needs is kept from block to block.
        sizes: numbers of rows that there are compilations for; the smallest that holds a group is used. More may be
            added to it later, none above `seats`.
    """

    def __init__(
        self,
        sampler: Sampler,
        columns: int,
        *,
        is_cached: bool,
        seats: int,
        sizes: Sequence[int],
        stop_ids: tuple[int, ...],
    ) -> None:
        self.sampler, self.columns, self.is_cached, self.sizes = sampler, columns, is_cached, list(sizes)
        self.seats: list[Row | None] = [None] * seats
        self.begun: set[Row] = set()
        self.memory = Memory()
        self.sampling = SamplingConfig(steps=None, top_k=TOP_K, stop_ids=stop_ids)

    @property
    def rows(self) -> list[Row]:
        return [row for row in self.seats if row is not None]

    @property
    def has_room(self) -> bool:
        return len(self.rows) < max(self.sizes, default=0)

    def join(self, row: Row) -> None:
        """Take a place, at any time; ValueError if the row does not fit."""
        if row.columns > self.columns or row.is_cached != self.is_cached or not self.has_room:
            raise ValueError(f"a row of {row.columns} columns cannot join {len(self.rows)} of {self.columns}")
        self.seats[self.seats.index(None)] = row

    def leave(self, row: Row) -> None:
        """Give up the place, at any time."""
        self.seats[self.seats.index(row)] = None
        self.begun.discard(row)

    def compile(self, size: int, row: Row) -> None:
        """Compile for another number of rows, away from the rows that sit here; `row` is any that fits."""
        trial = Lanes(
            self.sampler,
            self.columns,
            is_cached=self.is_cached,
            seats=len(self.seats),
            sizes=[size],
            stop_ids=self.sampling.stop_ids,
        )
        trial.join(row)
        # Both, whether or not the first leaves the second anything to do.
        if self.is_cached:
            trial.run([row], self.plan(is_refresh=True), UNLIMITED, forwards=1)
        trial.run([row], self.plan(is_refresh=False), 1)
        self.sizes.append(size)

    def advance(self, steps: int) -> None:
        """Take up to `steps` steps, fewer if a row ends its block."""
        if not self.is_cached:
            for row in self.rows:
                row.next_block()
            self.run(self.rows, self.plan(is_refresh=False), steps)
            return
        beginning = [row for row in self.rows if row.is_between_blocks or row not in self.begun]
        for row in beginning:
            row.next_block()
        if beginning:
            self.run(beginning, self.plan(is_refresh=True), UNLIMITED, forwards=1)
            self.begun.update(beginning)
        if going := [row for row in self.rows if not row.is_between_blocks]:
            self.run(going, self.plan(is_refresh=False), steps)

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

    def run(self, rows: Sequence[Row], plan: Plan, steps: int, *, forwards: int = UNLIMITED) -> None:
        """One call of the compiled loop for some of the rows, and what it decided back to them."""
        is_refresh = plan.rows == self.columns
        size = min(size for size in self.sizes if size >= len(rows))
        seated: list[Row | None] = [*rows, *[None] * (size - len(rows))]
        seats: np.ndarray | None = None
        if self.is_cached and (is_refresh or size < len(self.seats)):
            # A place beyond the last one takes nothing.
            seats = np.asarray([self.seats.index(row) if row else len(self.seats) for row in seated], np.int32)
        elif self.is_cached:
            # All places at once: nothing is copied to and fro.
            seated = [row if row in rows else None for row in self.seats]
        ways = [row and self.way(row, plan, steps, forwards) for row in seated]
        blank = jax.tree.map(np.zeros_like, next(way for way in ways if way))
        inputs = jax.tree.map(lambda *parts: np.stack(parts), *(way or blank for way in ways))
        if self.is_cached and self.memory.layers is None:
            self.memory = self.empty()
        # The memory is given away: should the call fail, it is lost, and with it what the open blocks rest on.
        memory, self.memory = self.memory, Memory()
        state, self.memory = run_lanes(self.sampler.graph, self.sampler.params, memory, seats, inputs, plan)
        decided = [np.asarray(part) for part in (state.tokens, state.masked, state.commit_step, state.confidence)]
        counters = np.asarray(state.step), np.asarray(state.forwards)
        for lane, row in enumerate(seated):
            if row is not None:
                row.take(*(part[lane, 0, : len(row.tokens)] for part in decided))
                row.step, row.forwards = (int(part[lane]) for part in counters)

    def empty(self) -> Memory:
        """Zeros for all seats, committed to their devices as what a step returns is: else it would compile twice."""
        memory = run_empty_lanes(self.sampler.graph, self.sampler.params, len(self.seats), self.columns)
        return jax.device_put(memory, jax.tree.map(lambda part: part.sharding, memory))

    def way(self, row: Row, plan: Plan, steps: int, forwards: int) -> Way:
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


@partial(jax.jit, static_argnames=("graph", "plan"), donate_argnames="memory")
def run_lanes(
    graph: nnx.GraphDef,
    params: dict,
    memory: Memory,
    seats: Int[Array, "l"] | None,
    ways: Way,
    plan: Plan,
) -> tuple[SamplerState, Memory]:
    """What `sampler.run` does, for rows that each have a state, a cursor and settings: all leaves have an axis more.

    Args:
        memory: of all seats.
        seats: where in it each row has its own; None: as they come, all of it.

    Returns:
        When the first of the rows has ended its block, or all have taken the steps that they may.
    """
    model = nnx.merge(graph, params)
    states, given, cursors, settings = ways
    states = states._replace(keys=jax.random.wrap_key_data(states.keys))
    columns = states.tokens.shape[-1]

    def is_open(states: SamplerState) -> Bool[Array, "l"]:
        return jnp.any(states.masked, axis=(1, 2))

    def is_going(states: SamplerState) -> Bool[Array, "l"]:
        return is_open(states) & (states.step < cursors.until) & (states.forwards < cursors.forwards)

    def skip(state: SamplerState, cursor: Cursor, settings: Settings) -> SamplerState:
        return skip_idle(state, cursor, settings.applied(plan))

    def take(state: SamplerState, memory: Memory, given: Given, cursor: Cursor, settings: Settings) -> tuple:
        return step(model, state, memory, given, cursor, settings.applied(plan))

    def goes_on(carry: tuple[SamplerState, Memory]) -> Bool[Array, ""]:
        return jnp.any(is_going(carry[0])) & (jnp.sum(is_open(carry[0])) == jnp.sum(is_open(states)))

    def advance(carry: tuple[SamplerState, Memory]) -> tuple[SamplerState, Memory]:
        states, memory = carry
        going = is_going(states)
        taken, memory = jax.vmap(take, axis_name=AXIS)(states, memory, given, cursors, settings)

        def kept(new: Array, old: Array) -> Array:
            return jnp.where(going.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        # A lane that waits recomputes its window with what it holds: nothing of it changes but the cache's rows.
        return jax.tree.map(kept, taken, states), memory

    own = memory if seats is None else jax.tree.map(lambda part: part.at[seats].get(mode="clip"), memory)
    states, own = jax.lax.while_loop(goes_on, advance, (jax.vmap(skip)(states, cursors, settings), own))
    if seats is None:
        return states, own
    if plan.rows != columns:
        # A window is recomputed before it is read, and what lies outside of it is as it was.
        return states, memory
    return states, jax.tree.map(lambda part, new: part.at[seats].set(new, mode="drop"), memory, own)


@partial(jax.jit, static_argnames=("graph", "size", "columns"))
def run_empty_lanes(graph: nnx.GraphDef, params: dict, size: int, columns: int) -> Memory:
    one = nnx.merge(graph, params).model.empty_cache(1, columns)
    return Memory(jax.tree.map(lambda part: jnp.zeros((size, *part.shape), part.dtype), one))

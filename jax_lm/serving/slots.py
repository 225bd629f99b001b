"""Slots are places in a running batch. Their sequences share compiled steps.

    slots = Slots(sampler, columns=128, is_cached=False, count=4, sizes=(1, 4), stop_ids=())
    slots.join(sequence)     # whenever `slots.has_room`
    slots.advance(steps=4)   # again, until sequence.is_done

Each sequence is at its own step: it is a batch of one under `jax.vmap` of `step`, so that its text
does not depend on the rest of the batch. Canvas, block, settings and randomness are traced. There
is one compilation per number of sequences, width and pass, with and without a cache. Knows neither
text nor queues.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jax_lm.diffusion.candidates import TokenLogProbs
from jax_lm.diffusion.drafts import DraftCanvases, Drafts, advance_rows
from jax_lm.diffusion.left_to_right import LeftToRight
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import (
    NEVER,
    BatchInputs,
    CanvasArrays,
    KVCache,
    SamplerState,
    StepCarry,
    Window,
)
from jax_lm.diffusion.step import PLAIN, Pass, Passes, StepConfig
from jax_lm.models.graph import ModelFunction, ModelGraph
from jax_lm.models.shapes import ScalarBool, ScalarInt, StopIds
from jax_lm.options import BLOCK_LENGTH, window_length
from jax_lm.planning.serving import cheapest_size, useful_sizes
from jax_lm.serving.pace import Pace
from jax_lm.serving.sequence import TOP_K, TOP_LOGPROBS, Sequence
from jax_lm.sharding import constrain, shard_rows


class Slots:
    """Slots for sequences of one width, either all with a KV cache or all without.

    With a cache, a call is one of two passes. The refresh computes all columns of sequences that
    begin a block; the other pass computes a window for sequences inside a block. Each call takes
    sequences of one kind, so neither kind waits until the other has finished a block.

    Args:
        columns: width of every sequence's canvas; shorter ones are padded on the right.
        count: number of slots; with a cache, each keeps its keys and values from block to block.
        draft: drafts of each sequence, as in `jax_lm.options.GenerationOptions`.
        sizes: numbers of sequences for which all passes are compiled; more may be added later.
        pace: predicts the time of calls; shared by all slots of a device.

    Attributes:
        is_growing: whether the holes of their sequences find their own length.
        sizes: for each pass, the numbers of sequences for which it is compiled.
        peak: the most sequences that needed these slots at once; `missing` compiles for them.
    """

    is_growing = False

    def __init__(
        self,
        sampler: Sampler,
        columns: int,
        *,
        is_cached: bool,
        count: int,
        sizes: Iterable[int],
        stop_ids: StopIds,
        draft: int = 0,
        pace: Pace | None = None,
    ):
        self.sampler = sampler
        self.columns = columns
        self.is_cached = is_cached
        # `held[i]` is the sequence in slot i; with a cache, slot i is row i of the cache.
        self.held: list[Sequence | None] = [None] * count
        # sequences that steps have left in the middle of a block; with a cache, it has their keys and
        # values
        self.begun: set[Sequence] = set()
        self.cache = KVCache()
        # rows and steps of the last call, and what the next one takes from the device if it has the
        # same
        self.last_call: tuple[list[Sequence | None], int] | None = None
        self.on_device: Any = None
        self.stop_ids = stop_ids
        self.draft = draft
        # Drafts of the next canvases are canvases, those of the next tokens are not.
        self.canvases = 1 + draft * (not sampler.config.is_unidirectional)
        self.passes = self.slot_passes()
        self.pace = pace or Pace()
        self.sizes = [list(sizes) for _ in self.passes]
        self.peak = 0

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for sequence in self.held if sequence]

    @property
    def is_compiled(self) -> bool:
        """Whether sequences can be decoded at all."""
        return all(self.sizes)

    @property
    def has_room(self) -> bool:
        return self.is_compiled and None in self.held

    def rows(self, number: int) -> int:
        """Return the number of token rows that a pass computes per sequence."""
        return (self.passes[number].config.rows or self.columns) * self.canvases

    def seconds(self, sequence: Sequence) -> float:
        """Predict the seconds of the full-width passes that a sequence needs until it is done."""
        passes = len(sequence.blocks) if self.is_cached else sequence.most
        return passes * self.pace.seconds(self.rows(0))

    def missing(self, *, is_ahead: bool = False) -> list[tuple[int, int]]:
        """List programs to compile, as pass and number of sequences, once the slots were used.

        Those that would serve the peak cheaper; with `is_ahead`, all that might serve more cheaper.
        """
        programs = []
        for number, sizes in enumerate(self.sizes if self.peak else ()):
            cost = self.rows(number), self.pace.fixed_rows
            # compile a pass for one sequence first, so that a lone request need not wait
            wanted = useful_sizes(len(self.held), *cost) if sizes else [1]
            if not is_ahead:
                wanted = [cheapest_size(wanted, self.peak, *cost)]
            programs += [(number, size) for size in wanted if size not in sizes]
        return programs

    def holds(self, sequence: Sequence) -> bool:
        """Return whether these slots can hold a sequence."""
        own = self.sampler.adapter, self.is_cached, self.is_growing
        kind = sequence.adapter, sequence.is_cached, sequence.is_growing
        return sequence.columns <= self.columns and kind == own

    def join(self, sequence: Sequence):
        """Put a sequence into a free slot, at any time. Raises ValueError if it does not fit."""
        if not self.holds(sequence) or not self.has_room:
            raise ValueError(
                f"a row of {sequence.columns} columns cannot join {len(self.sequences)} of {self.columns}"
            )
        self.held[self.held.index(None)] = sequence

    def leave(self, sequence: Sequence):
        """Release the slot of a sequence, at any time."""
        self.held[self.held.index(sequence)] = None
        self.begun.discard(sequence)

    def compile(self, number: int, size: int, sequence: Sequence):
        """Compile a pass for another number of sequences, without touching the current ones.

        Args:
            number: number of the pass.
            size: number of sequences.
            sequence: any sequence that fits.
        """
        trial = copy(self)
        trial.held = [sequence, *[None] * (len(self.held) - 1)]
        trial.cache = KVCache()
        # with 0 steps, the program is compiled but does not run, which could take long
        trial.run([sequence], number, 0, size)
        self.sizes[number].append(size)

    def advance(self, steps: int, first: Sequence | None = None) -> list[Sequence]:
        """Make one call for `first` and the sequences that have waited longest, and return them.

        The call takes up to `steps` steps, or fewer if a sequence ends its block or steps are slow.
        Sequences that are held are skipped; with a cache, they refresh it before their next step.
        """
        active = [each for each in self.sequences if not each.is_held]
        self.begun = {each for each in active if each in self.begun and not each.is_between_blocks}
        if not active:
            return []

        # with a cache, pass 0 is the refresh of the rows that begin a block
        def pass_of(sequence):
            return len(self.passes) - 1 if sequence in self.begun else 0

        active.sort(key=lambda each: (each is not first, each.served_at))
        number = pass_of(active[0])
        same_pass = [each for each in active if pass_of(each) == number]
        rows = self.rows(number)
        size = cheapest_size(self.sizes[number], len(same_pass), rows, self.pace.fixed_rows)
        chosen = same_pass[:size]
        for sequence in chosen:
            sequence.next_block()
        self.run(chosen, number, self.pace.steps(size * rows, steps), size)
        # a held sequence is repaired before its next call, which makes its state and cache stale
        self.begun = {each for each in {*self.begun, *chosen} if not each.is_held}
        return chosen

    def slot_passes(self) -> Passes:
        """Return the passes over a block.

        With a cache these are the refresh that begins the block, and the steps on a window.
        """
        variant = Drafts(self.draft) if self.draft else PLAIN
        if self.sampler.config.is_unidirectional:
            variant = LeftToRight(self.draft)
        length = self.columns
        rows = [None]
        if self.is_cached:
            length = BLOCK_LENGTH
            # all columns for the refresh, and those of a window for steps
            rows = [self.columns, window_length(BLOCK_LENGTH, self.sampler.config)]
        config = StepConfig(
            length=length,
            rows=None,
            mask_id=self.sampler.mask_id,
            top_k=TOP_K,
            stop_ids=self.stop_ids,
            variant=variant,
        )
        return variant.passes([Pass(replace(config, rows=count), 0) for count in rows])

    def run(self, sequences: list[Sequence], number: int, steps: int, size: int):
        """Run a pass for some of the sequences, in the program for `size` of them."""
        begun = monotonic()
        # 5 sequences in the program for 16: eleven rows are blank
        batch: list[Sequence | None] = [*sequences, *[None] * (size - len(sequences))]
        if size == len(self.held):
            # all slots in their order, so that the pass of a window copies no part of the cache
            batch = [sequence if sequence in sequences else None for sequence in self.held]
        call = batch, steps
        if call != self.last_call or not self.begun.issuperset(sequences):
            self.on_device = self.upload(*call)
            self.last_call = call
        states, *given = self.on_device
        # allocated on first use
        if self.is_cached and self.cache.layers is None:
            self.cache = self.empty_cache()
        # The cache is donated: if the call fails, it is lost, and open blocks must be restarted.
        cache = self.cache
        self.cache = KVCache()
        config = self.passes[number].config
        state, self.cache = run_slots(
            self.sampler.graph, self.sampler.params, cache, states, *given, config
        )
        self.on_device = state._replace(logprobs=None), *given
        # from the device to the host; row `row` belongs to `sequence`
        is_kept = any(each.keeps_logprobs for each in sequences)
        state = state._replace(keys=None, logprobs=state.logprobs if is_kept else None)
        state: SamplerState = jax.device_get(state)
        rows = [(row, sequence) for row, sequence in enumerate(batch) if sequence]
        taken = max(int(state.forwards[row]) - sequence.forwards for row, sequence in rows)
        for row, sequence in rows:
            sequence.take(jax.tree.map(itemgetter(row), state))
        now = monotonic()
        spent = now - begun
        self.pace.observe(size * self.rows(number), taken, spent)
        for sequence in sequences:
            sequence.served_at = now
            sequence.seconds += spent / len(sequences)

    def empty_cache(self) -> KVCache:
        """Return an empty cache for all slots.

        It is committed to its devices, as the results of a step are; otherwise the step would be
        compiled twice.
        """
        columns = self.passes[0].config.variant.cache_columns(self.columns)
        cache = run_empty_slots(self.sampler.graph, self.sampler.params, len(self.held), columns)
        return jax.device_put(cache, jax.tree.map(lambda part: part.sharding, cache))

    def upload(self, batch: list[Sequence | None], steps: int) -> Any:
        """Copy states, inputs and slots of sequences to the device, and a number of steps.

        They are whole on all devices and committed to them, as the results of a step are.
        """
        # Slot of each row: [2, 0, len(held)] for two sequences and one blank row. A blank row gets
        # the slot past the last one, so that its results are dropped.
        slots = [self.held.index(each) if each else len(self.held) for each in batch]
        # stack [1, t] per sequence -> [l, 1, t]; blank rows are zeros, which have no masks
        filled = [each and self.inputs(each) for each in batch]
        blank = jax.tree.map(np.zeros_like, next(filter(None, filled)))
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *(each or blank for each in filled))
        placement = self.sampler.params["model"]["norm"]["weight"].sharding
        return copier(placement)(*stacked, np.array(slots, np.int32), np.int32(steps))

    def inputs(self, sequence: Sequence) -> tuple[SamplerState, BatchInputs]:
        """Return the state and inputs of a sequence as a batch of one, padded on the right."""

        def padded(values: np.ndarray) -> Any:
            # columns 5: [1, 2, 3] -> [[1, 2, 3, 0, 0]]
            row = np.zeros((1, self.columns), values.dtype)
            row[0, : len(values)] = values
            return row

        positions = np.arange(len(sequence.tokens), dtype=np.int32)
        hole = sequence.hole
        # masks carry the mask id; only those of the current block are open
        tokens = np.where(sequence.masked, self.sampler.mask_id, sequence.tokens)
        counters: Any = {
            "step": np.int32(sequence.step),
            "forwards": np.int32(sequence.forwards),
            "keys": sequence.key[None],
        }
        state = SamplerState(
            tokens=padded(tokens.astype(np.int32)),
            masked=padded(sequence.open),
            commit_step=padded(sequence.commit_step),
            confidence=padded(sequence.confidence),
            **counters,
        )
        canvas = CanvasArrays(
            attention_mask=padded(np.ones_like(positions, bool)),
            position_ids=padded(positions),
            holes=padded(sequence.in_block),
            # hole at 3: [0, 0, 0, 3, 3, 3]
            hole_starts=padded(np.where(positions < hole.start, 0, hole.start).astype(np.int32)),
        )
        # each call has its own rows and limits
        window = Window.of(
            block=sequence.window_start if self.is_cached else 0,
            rows=0,
            first_step=sequence.first_step,
            until=NEVER,
            forwards=NEVER,
        )
        extra = sequence.extra
        if extra is None and isinstance(variant := self.passes[0].config.variant, LeftToRight):
            extra = np.zeros((1, variant.count), np.int32)
        elif self.canvases > 1 and extra is None:
            # These drafts will be rejected, because a canvas never equals the step from it.
            unchanged = DraftCanvases(state.tokens, state.masked, state.step)
            extra = jax.tree.map(lambda part: np.stack([part] * self.draft), unchanged)
        inputs = BatchInputs(canvas, window, sequence.params(self.columns))
        return state._replace(extra=extra), inputs


@lru_cache
def copier(placement: jax.sharding.Sharding) -> Any:
    """Return a function that copies arrays to devices, and commits them.

    About thirty small arrays take 0.16 ms as the arguments of one compiled call, and 1.2 ms as those
    of `jax.device_put`, which is Python for each of them.
    """
    return jax.jit(lambda *arrays: arrays, out_shardings=placement)


@partial(ModelFunction, static_argnames=("graph", "config"), donate_argnames="cache")
def run_slots(
    graph: ModelGraph,
    params: dict,
    cache: KVCache,
    states: SamplerState,
    inputs: BatchInputs,
    slots: Int[Array, "l"],
    steps: ScalarInt,
    config: StepConfig,
) -> StepCarry:
    """Take steps as `sampler.run` does, for several sequences, each with its own state and inputs.

    All leaves have an additional leading axis. The loop ends when one of the sequences has finished
    its block, or all have taken their steps.

    Args:
        cache: cache of all slots.
        slots: slot of each sequence in the cache; one past the last for a blank row.
        steps: most steps that each sequence takes; a refresh of all columns is no more than one
            forward pass.
    """
    model = graph.merge(params)
    # on a mesh: rows split over the devices if they divide, and results whole on every device
    states, inputs = jax.tree.map(lambda part: shard_rows(part, model.mesh), (states, inputs))
    # log-probabilities of this call's commits, for sequences that report them
    no_logprobs = TokenLogProbs.empty(states.tokens.shape, TOP_LOGPROBS)
    keys = states.keys
    states = states._replace(keys=jax.random.wrap_key_data(keys), logprobs=no_logprobs)
    window = inputs.window
    if is_refresh := config.rows == states.tokens.shape[-1]:
        # one forward pass, even if it skips idle steps of the schedule
        window = window._replace(forwards=states.forwards + jnp.minimum(steps, 1))
    else:
        window = window._replace(until=states.step + steps)
    if is_window := config.rows is not None and not is_refresh:
        # A window begins one column before the block.
        window = window._replace(rows=jnp.maximum(window.block - 1, 0))
    inputs = inputs._replace(window=window)

    def is_open(states: SamplerState) -> Bool[Array, "l"]:
        return jnp.any(states.masked, axis=(1, 2))

    def is_going(states: SamplerState) -> Bool[Array, "l"]:
        return is_open(states) & (states.step < window.until) & (states.forwards < window.forwards)

    def is_running(carry: StepCarry) -> ScalarBool:
        rows, _ = carry
        return jnp.any(is_going(rows)) & (jnp.sum(is_open(rows)) == jnp.sum(is_open(states)))

    def advance(carry: StepCarry):
        # A waiting sequence recomputes its window without change; only its cache is written.
        return advance_rows(model, *carry, inputs, config, is_going(carry[0]))

    # rows of the cache for these sequences; a slot out of range is clipped, and dropped below
    in_place = is_window and len(slots) == len(jax.tree.leaves(cache)[0])
    rows_cache = (
        cache if in_place else jax.tree.map(lambda part: part.at[slots].get(mode="clip"), cache)
    )
    started = jax.vmap(partial(config.variant.enter_row, config=config))(states, inputs)
    rows, rows_cache = jax.lax.while_loop(is_running, advance, (started, rows_cache))
    rows = constrain(rows._replace(keys=keys), model.mesh)
    if in_place:
        return rows, rows_cache
    if is_window and not isinstance(config.variant, LeftToRight):
        # Nothing to write back: the next step recomputes its window, and columns outside of it have
        # not changed.
        return rows, cache
    return rows, jax.tree.map(
        lambda part, new: part.at[slots].set(new, mode="drop"), cache, rows_cache
    )


@partial(ModelFunction, static_argnames=("graph", "size", "columns"))
def run_empty_slots(graph: ModelGraph, params: dict, size: int, columns: int) -> KVCache:
    # leaves [1, ...] of one sequence -> zeros [slots, 1, ...], sharded as those of one
    model = graph.merge(params).model
    layers = jax.vmap(lambda _: model.empty_cache(1, columns))(jnp.arange(size))
    return KVCache(jax.tree.map(lambda part: shard_rows(part, model.mesh), layers))

"""The sampler: walks a canvas block by block with the compiled loop over `step`.

    state = Sampler(model).generate(Canvas.after(ids, mask, 256), SamplingConfig(steps=256), PRESETS["fast"])

`generate` and `stream` run the same compiled loop; they differ in how often it returns.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion.canvas import Block, Canvas
from jax_lm.diffusion.decoding import Decoding
from jax_lm.diffusion.step import (
    NEVER,
    Cursor,
    Given,
    Hooks,
    Memory,
    Plan,
    Proposal,
    SamplerState,
    block_hidden,
    columns,
    propose,
    rewrite,
    skip_idle,
    step,
)
from jax_lm.diffusion.unmasking import SamplingConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.sharding import replicate

UNLIMITED = np.iinfo(np.int32).max
WHOLE_CANVAS = Decoding()


class Sampler:
    """Fills canvases with one model. The model is split once; each call costs one dispatch."""

    def __init__(self, model: DreamForCausalLM) -> None:
        if model.config.mask_token_id is None:
            raise ValueError("config mask_token_id=None: this checkpoint is not a masked-diffusion model")
        self.config, self.mesh = model.config, model.mesh
        self.mask_id: int = model.config.mask_token_id
        self.graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)

    def start(self, canvas: Canvas, seed: int | Key[Array, "b"]) -> SamplerState:
        """The state before the first step. A row's randomness depends on its key, or seed and index, alone."""
        if isinstance(seed, int):
            keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(len(canvas.tokens)))
        else:
            keys = seed
        holes = jnp.asarray(canvas.holes)
        return SamplerState(
            tokens=jnp.where(holes, self.mask_id, canvas.tokens),
            masked=holes,
            commit_step=jnp.where(holes, jnp.int32(NEVER), jnp.int32(-1)),
            confidence=jnp.zeros(holes.shape, jnp.float32),
            step=jnp.int32(0),
            forwards=jnp.int32(0),
            keys=keys,
        )

    def generate(
        self,
        canvas: Canvas,
        config: SamplingConfig,
        decoding: Decoding = WHOLE_CANVAS,
        *,
        seed: int | Key[Array, "b"] = 0,
        hooks: Hooks | None = None,
    ) -> SamplerState:
        """Fill the canvas; the loop over a block is one compiled computation."""
        *_, last = self.stream(canvas, config, decoding, seed=seed, every=None, hooks=hooks)
        return last

    def stream(
        self,
        canvas: Canvas,
        config: SamplingConfig,
        decoding: Decoding = WHOLE_CANVAS,
        *,
        seed: int | Key[Array, "b"] = 0,
        every: int | None = 1,
        hooks: Hooks | None = None,
    ) -> Iterator[SamplerState]:
        """Yield the state after every `every` steps (None: as rarely as possible), after each block and at the end.

        Raises:
            ValueError: no hole, or a schedule without a number of steps.
        """
        if config.steps is None and decoding.commit == "steps":
            raise ValueError("steps=None: commit='steps' needs a number of steps")
        hooks = hooks or Hooks()
        given = Given(*map(jnp.asarray, (canvas.attention_mask, canvas.position_ids, canvas.holes, canvas.hole_starts)))
        state = self.start(canvas, seed)
        if hooks.tokens is not None:
            state = rewrite(state, hooks.tokens(-1, state.tokens, None), given.holes, self.mask_id)
        memory = Memory()
        if decoding.cache != "none":
            memory = run_empty_memory(self.graph, self.params, canvas.tokens.shape, decoding.cache == "dual")
        done: list[Block] = []
        for block in canvas.blocks(decoding.columns(canvas.region.length)):
            plans = self.plans(canvas, block, done, config, decoding, hooks)
            state, memory = yield from self.fill(state, memory, given, block, plans, every)
            done.append(block)
            if not np.asarray(state.masked).any():
                break

    def plans(
        self, canvas: Canvas, block: Block, done: list[Block], config: SamplingConfig, decoding: Decoding, hooks: Hooks
    ) -> list[tuple[Plan, int]]:
        """How the block's first step and the others recompute: plans, each with the first row it recomputes."""
        width, region = canvas.tokens.shape[1], canvas.region
        steps = None if config.steps is None else max(1, -(-config.steps * block.length // region.length))
        before = max(block.start - 1, 0)
        plan = Plan(
            sampling=config, decoding=decoding, hooks=hooks, mask_id=self.mask_id, steps=steps, length=block.length,
            rows=None,
        )  # fmt: skip
        if decoding.cache == "none":
            return [(plan, 0)]
        if done and len(done) % decoding.refresh_every:
            first_row, last_row = max(done[-1].start - 1, 0), block.end
        else:
            first_row, last_row = max(region.start - 1, 0) if done and decoding.freeze_prompt else 0, width
        refresh = replace(plan, rows=last_row - first_row, forced=decoding.first_token == "force")
        # A forced first token needs no row before it: Fast-dLLM's windows begin with the block.
        with_lead = decoding.cache != "dual" and decoding.first_token == "rule" and block.start > 0
        start = before if with_lead else block.start
        end = width if decoding.cache == "prefix" else block.end
        uses_tail = decoding.cache == "dual" and block.start > 0
        window = replace(plan, rows=end - start, uses_tail=uses_tail)
        return [(refresh, first_row), (window, start)]

    def fill(
        self,
        state: SamplerState,
        memory: Memory,
        given: Given,
        block: Block,
        plans: list[tuple[Plan, int]],
        every: int | None,
    ) -> Generator[SamplerState, None, tuple[SamplerState, Memory]]:
        """Decode one block, yielding as `stream` does. The first of two plans is for the block's first evaluation."""
        decoding = plans[0][0].decoding
        step = first_step = int(state.step)
        limit = first_step + plans[0][0].step_limit
        forwards, refreshed = int(state.forwards), None
        is_open = True
        while is_open and step < limit:
            period = decoding.refresh_steps or UNLIMITED
            is_refresh = len(plans) > 1 and (refreshed is None or forwards - refreshed >= period)
            plan, first_row = plans[0] if is_refresh else plans[-1]
            if refreshed is not None:
                plan = replace(plan, forced=False)
            until = limit if every is None else min(limit, step + every)
            most = forwards + 1 if is_refresh else min((refreshed or 0) + period, UNLIMITED)
            cursor = Cursor(*map(jnp.int32, (block.start, first_row, first_step, until, most)))
            state, memory, still_open = run(self.graph, self.params, state, memory, given, cursor, plan)
            yield state
            if is_refresh and int(state.forwards) > forwards:
                refreshed = forwards
            step, forwards, is_open = int(state.step), int(state.forwards), bool(still_open)
        return state, memory

    def replay(
        self, tokens: Int[np.ndarray, "b t"], canvas: Canvas, config: SamplingConfig, step: int
    ) -> tuple[Int[np.ndarray, "b t"], Float[np.ndarray, "b t"]]:
        """One step from any canvas on the way, over the whole canvas.

        Returns:
            The tokens after it, and the confidence by which positions were chosen (-inf where nothing was masked).
        """
        holes = canvas.holes & (tokens == self.mask_id)
        state = self.start(canvas, seed=0)
        state = state._replace(tokens=jnp.asarray(tokens), masked=jnp.asarray(holes), step=jnp.int32(step))
        given = Given(*map(jnp.asarray, (canvas.attention_mask, canvas.position_ids, canvas.holes, canvas.hole_starts)))
        ((plan, first_row),) = self.plans(canvas, canvas.region, [], config, WHOLE_CANVAS, Hooks())
        cursor = Cursor(*map(jnp.int32, (canvas.region.start, first_row, 0, step + 1, UNLIMITED)))
        scores = run_proposal(self.graph, self.params, state, given, cursor, plan).scores
        after, _, _ = run(self.graph, self.params, state, Memory(), given, cursor, plan)
        everywhere = np.full(tokens.shape, -np.inf, np.float32)
        everywhere[:, canvas.region.start : canvas.region.end] = scores
        return np.asarray(after.tokens), np.where(holes, everywhere, -np.inf)

    def forward(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Logits of one compiled forward pass over a canvas without padding, not shifted."""
        return run_forward(self.graph, self.params, tokens)


@partial(jax.jit, static_argnames=("graph", "plan"), donate_argnames="memory")
def run(
    graph: nnx.GraphDef,
    params: dict,
    state: SamplerState,
    memory: Memory,
    given: Given,
    cursor: Cursor,
    plan: Plan,
) -> tuple[SamplerState, Memory, Bool[Array, ""]]:
    """Take steps until the block is full or the cursor says to return; also whether a mask is left in the block."""
    model = nnx.merge(graph, params)

    def is_open(state: SamplerState) -> Bool[Array, ""]:
        return jnp.any(columns(state.masked, cursor, plan))

    def goes_on(carry: tuple[SamplerState, Memory]) -> Bool[Array, ""]:
        state, _ = carry
        return is_open(state) & (state.step < cursor.until) & (state.forwards < cursor.forwards)

    def advance(carry: tuple[SamplerState, Memory]) -> tuple[SamplerState, Memory]:
        return step(model, *carry, given, cursor, plan)

    state, memory = jax.lax.while_loop(goes_on, advance, (skip_idle(state, cursor, plan), memory))
    # The state is small, and every host looks at it.
    state, still_open = replicate((state, is_open(state)), model.mesh)
    return state, memory, still_open


@partial(jax.jit, static_argnames=("graph", "plan"))
def run_proposal(
    graph: nnx.GraphDef, params: dict, state: SamplerState, given: Given, cursor: Cursor, plan: Plan
) -> Proposal:
    """What the next step of `run` would propose, without a cache."""
    model = nnx.merge(graph, params)
    hidden, _ = block_hidden(model, state.tokens, Memory(), given, cursor, plan)
    masked, positions = (columns(values, cursor, plan) for values in (state.masked, given.position_ids))
    return propose(model, hidden, masked, positions, state, plan)[0]


@partial(jax.jit, static_argnames=("graph", "shape", "has_tail"))
def run_empty_memory(graph: nnx.GraphDef, params: dict, shape: tuple[int, int], has_tail: bool) -> Memory:
    model = nnx.merge(graph, params).model
    weight = model.embed_tokens.weight[...]
    tail = jnp.zeros((shape[0], 1, weight.shape[1]), weight.dtype) if has_tail else None
    return Memory(model.empty_cache(*shape), tail)


@partial(jax.jit, static_argnames="graph")
def run_forward(graph: nnx.GraphDef, params: dict, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
    return nnx.merge(graph, params)(tokens)

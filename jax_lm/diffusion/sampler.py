"""The sampler: one `step` that unmasks some positions of a canvas, and the compiled loop around it.

The model computes, the sampler decides. A canvas is any row of tokens with any set of holes; what is not
a hole never changes. Streaming runs the same compiled loop, a few steps at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from jax_lm.diffusion import unmasking
from jax_lm.diffusion.masking import shift_right
from jax_lm.diffusion.unmasking import SamplingConfig
from jax_lm.models.dream import DreamForCausalLM

LogitsOf = Callable[[Int[Array, "b t"]], Float[Array, "b r v"]]
NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Canvas:
    """What is to be filled.

    Attributes:
        tokens: ids; those under a hole do not matter.
        holes: positions to fill.
        attention_mask: True where there is a token or a hole, False on padding.
    """

    tokens: Int[np.ndarray, "b t"]
    holes: Bool[np.ndarray, "b t"]
    attention_mask: Bool[np.ndarray, "b t"]

    @classmethod
    def after(cls, input_ids: np.ndarray, attention_mask: np.ndarray | None, new_tokens: int) -> "Canvas":
        """A left-padded prompt [b, t] followed by `new_tokens` holes.

        Raises:
            ValueError: there is no row, or nothing to fill.
        """
        if new_tokens < 1:
            raise ValueError(f"max_new_tokens={new_tokens}: must be at least 1")
        if input_ids.ndim != 2 or not len(input_ids):
            raise ValueError(f"input_ids has shape {input_ids.shape}: must be [batch, time] with at least one row")
        present = np.ones_like(input_ids, bool) if attention_mask is None else attention_mask.astype(bool)
        added = np.ones((len(input_ids), new_tokens), bool)
        return cls(
            tokens=np.concatenate([input_ids, np.zeros_like(added, np.int32)], axis=1).astype(np.int32),
            holes=np.concatenate([np.zeros_like(present), added], axis=1),
            attention_mask=np.concatenate([present, added], axis=1),
        )

    @property
    def region(self) -> tuple[int, int]:
        """First and past-the-last column with a hole; logits are needed only there."""
        columns = np.flatnonzero(self.holes.any(axis=0))
        if not len(columns):
            raise ValueError("canvas has no hole to fill")
        return int(columns[0]), int(columns[-1]) + 1


class SamplerState(NamedTuple):
    """The canvas between two steps.

    Attributes:
        tokens: ids, MASK at positions still to be decided.
        masked: positions still to be decided.
        commit_step: step at which a position was decided; NEVER for those still masked, -1 for the given ones.
        confidence: probability of the token when it was decided (after temperature and filters); else 0.
        step: steps taken.
        forwards: model evaluations so far; steps that commit nothing need none.
        keys: one random key per row.
    """

    tokens: Int[Array, "b t"]
    masked: Bool[Array, "b t"]
    commit_step: Int[Array, "b t"]
    confidence: Float[Array, "b t"]
    step: Int[Array, ""]
    forwards: Int[Array, ""]
    keys: Key[Array, "b"]

    def history(self, steps: int, mask_id: int) -> Int[np.ndarray, "s b t"]:
        """The canvas after each step: a decided token never changes, so that its commit step tells all."""
        tokens, commit_step = np.asarray(self.tokens), np.asarray(self.commit_step)
        return np.stack([np.where(commit_step <= step, tokens, mask_id) for step in range(steps)])


class Sampler:
    """Fills canvases with one model. The model is split once; each call costs one dispatch."""

    def __init__(self, model: DreamForCausalLM) -> None:
        if model.config.mask_token_id is None:
            raise ValueError("config mask_token_id=None: this checkpoint is not a masked-diffusion model")
        self.config = model.config
        self.mask_id: int = model.config.mask_token_id
        self.graph, state = nnx.split(model)
        self.params = nnx.to_pure_dict(state)

    def start(self, canvas: Canvas, seed: int) -> SamplerState:
        """The state before the first step. A row's randomness depends on the seed and its index alone."""
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(len(canvas.tokens)))
        holes = jnp.asarray(canvas.holes)
        return SamplerState(
            tokens=jnp.where(holes, self.mask_id, canvas.tokens),
            masked=holes,
            commit_step=jnp.where(holes, NEVER, -1),
            confidence=jnp.zeros(holes.shape, jnp.float32),
            step=jnp.int32(0),
            forwards=jnp.int32(0),
            keys=keys,
        )

    def generate(self, canvas: Canvas, config: SamplingConfig, *, seed: int = 0) -> SamplerState:
        """Fill the canvas; the whole loop is one compiled computation."""
        *_, last = self.stream(canvas, config, seed=seed, every=config.steps)
        return last

    def stream(
        self, canvas: Canvas, config: SamplingConfig, *, seed: int = 0, every: int = 1
    ) -> Iterator[SamplerState]:
        """Yield the state after every `every` steps and after the last, from the loop that `generate` runs."""
        state = self.start(canvas, seed)
        mask = jnp.asarray(canvas.attention_mask)
        for done in range(every, config.steps + every, every):
            until = jnp.int32(min(done, config.steps))
            state = run(self.graph, self.params, state, mask, until, config, canvas.region, self.mask_id)
            yield state

    def replay(
        self, tokens: Int[np.ndarray, "b t"], canvas: Canvas, config: SamplingConfig, step: int
    ) -> tuple[Int[np.ndarray, "b t"], Float[np.ndarray, "b t"]]:
        """One step from any canvas on the way.

        Returns:
            The tokens after it, and the confidence by which positions were chosen (-inf where nothing was masked).
        """
        holes = canvas.holes & (tokens == self.mask_id)
        start = self.start(canvas, seed=0)
        state = start._replace(tokens=jnp.asarray(tokens), masked=jnp.asarray(holes), step=jnp.int32(step))
        mask = jnp.asarray(canvas.attention_mask)
        arguments = (config, canvas.region, self.mask_id)
        scores = run_proposal(self.graph, self.params, state, mask, *arguments).scores
        after = run(self.graph, self.params, state, mask, jnp.int32(step + 1), *arguments)
        everywhere = np.full(tokens.shape, -np.inf, np.float32)
        everywhere[:, slice(*canvas.region)] = scores
        return np.asarray(after.tokens), np.where(holes, everywhere, -np.inf)

    def forward(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Logits of one compiled forward pass over a canvas without padding, not shifted."""
        return run_forward(self.graph, self.params, tokens)


class Proposal(NamedTuple):
    """What each position of the region would become.

    Attributes:
        tokens: the drawn token.
        probability: its probability after temperature and filters.
        scores: confidence by the measure of `alg`; larger is committed earlier.
    """

    tokens: Int[Array, "b r"]
    probability: Float[Array, "b r"]
    scores: Float[Array, "b r"]


def step(
    state: SamplerState, logits_of: LogitsOf, config: SamplingConfig, region: tuple[int, int], mask_id: int
) -> SamplerState:
    """One denoising step: evaluate the model, propose a token per position, commit the chosen ones.

    `logits_of(tokens)` gives aligned float32 logits [b, r, v] of the region. A step whose counts are all zero
    evaluates nothing: exact at temperature 0, the same distribution above.
    """
    ratio = jnp.asarray(unmasking.transfer_ratios(config.steps, config.eps))[state.step]
    counts = unmasking.commit_counts(state.masked, ratio)
    columns = slice(*region)

    def commit(state: SamplerState) -> SamplerState:
        keys = step_keys(state)
        proposal = propose(keys, logits_of(state.tokens), config, mask_id)
        masked = state.masked[:, columns]
        if config.alg == "origin":
            chosen = masked & (unmasking.uniform(keys[2], masked.shape) < ratio)
        else:
            chosen = unmasking.choose(keys[2], proposal.scores, masked, counts, config.alg_temp)
        # Only the strict reference can propose MASK; such a position stays open, as it does there.
        chosen &= proposal.tokens != mask_id

        def write(values: Array, new: Array) -> Array:
            return values.at[:, columns].set(jnp.where(chosen, new, values[:, columns]))

        return state._replace(
            tokens=write(state.tokens, proposal.tokens),
            masked=write(state.masked, jnp.zeros_like(chosen)),
            commit_step=write(state.commit_step, jnp.broadcast_to(state.step, chosen.shape)),
            confidence=write(state.confidence, proposal.probability),
            forwards=state.forwards + 1,
        )

    needed = jnp.any(state.masked) if config.alg == "origin" else jnp.any(counts > 0)
    state = jax.lax.cond(needed, commit, lambda state: state, state)
    return state._replace(step=state.step + 1)


def step_keys(state: SamplerState) -> Key[Array, "3 b"]:
    """Keys [3, b] of this step: for tokens, for random scores, for the choice of positions."""
    now = jax.vmap(partial(jax.random.fold_in, data=state.step))(state.keys)
    return jnp.moveaxis(jax.vmap(partial(jax.random.split, num=3))(now), 1, 0)


def propose(keys: Key[Array, "3 b"], logits: Float[Array, "b r v"], config: SamplingConfig, mask_id: int) -> Proposal:
    """Filter, draw and score every position of the region."""
    candidates = unmasking.filtered(logits, config, mask_id)
    tokens, probability = unmasking.draw(keys[0], candidates, config)
    return Proposal(tokens, probability, unmasking.confidence(keys[1], candidates, probability, config.alg))


def region_logits(
    graph: nnx.GraphDef, params: dict, attention_mask: Bool[Array, "b t"], region: tuple[int, int]
) -> LogitsOf:
    """Aligned logits of the region alone: hidden states are cut before the head, which is the costly part."""
    model = nnx.merge(graph, params)

    def logits_of(tokens: Int[Array, "b t"]) -> Float[Array, "b r v"]:
        hidden = shift_right(model.model(tokens, attention_mask))
        return model.logits(hidden[:, slice(*region)])

    return logits_of


@partial(jax.jit, static_argnames=("graph", "config", "region", "mask_id"))
def run(
    graph: nnx.GraphDef,
    params: dict,
    state: SamplerState,
    attention_mask: Bool[Array, "b t"],
    until: Int[Array, ""],
    config: SamplingConfig,
    region: tuple[int, int],
    mask_id: int,
) -> SamplerState:
    """Take steps up to `until`."""
    logits_of = region_logits(graph, params, attention_mask, region)
    return jax.lax.while_loop(
        lambda state: state.step < until,
        lambda state: step(state, logits_of, config, region, mask_id),
        state,
    )


@partial(jax.jit, static_argnames=("graph", "config", "region", "mask_id"))
def run_proposal(
    graph: nnx.GraphDef,
    params: dict,
    state: SamplerState,
    attention_mask: Bool[Array, "b t"],
    config: SamplingConfig,
    region: tuple[int, int],
    mask_id: int,
) -> Proposal:
    """What the next step of `run` would propose."""
    logits = region_logits(graph, params, attention_mask, region)(state.tokens)
    return propose(step_keys(state), logits, config, mask_id)


@partial(jax.jit, static_argnames="graph")
def run_forward(graph: nnx.GraphDef, params: dict, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
    return nnx.merge(graph, params)(tokens)

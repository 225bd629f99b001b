"""How a canvas is walked: commit rule, region and cache, each a switch of its own, and presets of them.

The order of unmasking and the draw of tokens are `unmasking.SamplingConfig`. Rules: Dream (`steps`), Fast-dLLM
(`threshold`, `factor`), and a threshold that falls as the block fills (`dynamic`).
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jax_lm.diffusion.settings import Number

COMMIT_RULES = ("steps", "threshold", "factor", "dynamic")
CACHES = ("none", "prefix", "dual", "window")
FIRST_TOKENS = ("rule", "force")
BLOCK_LENGTH = 32
WHOLE_CANVAS = 0


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Commit rule, region and cache. Hashable, hence static under jit.

    Attributes:
        commit: `steps` commits the counts of the noise schedule; `threshold` every token of probability at least
            `threshold`; `factor` the longest run of most confident tokens with p_i >= 1 - factor / (i + 1);
            `dynamic` lowers the threshold to threshold * (1 - decay * (1 - r)), r = share of masks left. The last
            three commit at least one token per step, and with `steps` set at most what that schedule allows so far.
        threshold: for `threshold` and `dynamic`, in (0, 1].
        factor: for `factor`, positive; larger commits more.
        decay: for `dynamic`, in [0, 1].
        block_length: columns filled before those after them; 0 is the whole canvas, None is 0 for plain `steps`
            without a cache and else 32: a threshold over the whole canvas wrecks instruct models.
        cache: rows recomputed each step: `none` all of them, `prefix` from the block on, `dual` the block (the row
            before it stays as the last refresh left it), `window` the block and the row before it.
        refresh_every: all rows are recomputed at every n-th block; at others only the last block and the new one.
        refresh_steps: all rows are recomputed again after so many evaluations within a block; None is never.
        freeze_prompt: refreshes leave the rows of the prompt as they were first computed.
        first_token: `rule` treats a block's first position like the others; `force` commits it at the refresh, as
            Fast-dLLM does.
    """

    commit: str = "steps"
    threshold: Number = 0.9
    factor: float = 1.0
    decay: float = 0.3
    block_length: int | None = None
    cache: str = "none"
    refresh_every: int = 1
    refresh_steps: int | None = None
    freeze_prompt: bool = False
    first_token: str = "rule"

    def __post_init__(self) -> None:
        for name, allowed in (("commit", COMMIT_RULES), ("cache", CACHES), ("first_token", FIRST_TOKENS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold}: must lie in (0, 1]")
        if not 0 < self.factor < np.inf:
            raise ValueError(f"factor={self.factor}: must be positive")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay={self.decay}: must lie in [0, 1]")
        if self.block_length is not None and self.block_length < 0:
            raise ValueError(f"block_length={self.block_length}: must be positive, 0 (whole canvas) or None")
        if self.refresh_every < 1:
            raise ValueError(f"refresh_every={self.refresh_every}: must be at least 1")
        if self.refresh_steps is not None and self.refresh_steps < 1:
            raise ValueError(f"refresh_steps={self.refresh_steps}: must be at least 1, or None")
        needs_cache = self.refresh_every > 1 or self.refresh_steps or self.freeze_prompt or self.first_token == "force"
        if self.cache == "none" and needs_cache:
            raise ValueError("cache='none': refresh_…, freeze_prompt and first_token='force' need a cache")

    @property
    def is_by_schedule(self) -> bool | Bool[Array, ""]:
        """Whether a step commits a number of tokens that is known beforehand."""
        return self.commit == "steps"

    def columns(self, region: int) -> int:
        """Block length on a region of that many columns."""
        plain = self.commit == "steps" and self.cache == "none"
        length = (WHOLE_CANVAS if plain else BLOCK_LENGTH) if self.block_length is None else self.block_length
        return region if length == WHOLE_CANVAS else min(length, region)


PRESETS: Mapping[str, Decoding] = {
    "exact": Decoding(),
    "fast": Decoding(cache="window", block_length=32),
    "turbo": Decoding(commit="threshold", threshold=0.9, cache="window", block_length=32),
}
"""`exact` equals the reference; what the others cost in quality is measured in the README."""


@functools.cache
def transfer_ratios(steps: int, eps: float) -> np.ndarray:
    """Share of the remaining masks that each step commits: 1 - s/t on the reference's float32 grid, then 1."""
    if steps == 1:
        return np.ones(1, np.float32)
    # torch.linspace(1, eps, steps + 1) to the bit: it counts from both ends to the middle, with one rounding
    # per point (a fused multiply-add, which float64 reproduces). The counts of a step hang on the last bit.
    start, end = np.float32(1), np.float32(eps)
    width = float((end - start) / np.float32(steps))
    index = np.arange(steps + 1)
    forward, backward = float(start) + width * index, float(end) - width * (steps - index)
    times = np.where(index < (steps + 1) // 2, forward, backward).astype(np.float32)
    ratios = np.float32(1) - times[1:] / times[:-1]
    ratios[-1] = 1
    return ratios.astype(np.float32)


def commit_counts(masked: Bool[Array, "b r"], ratio: Float[Array, ""]) -> Int[Array, "b"]:
    """How many positions each row commits: the truncated float32 product, counted per row."""
    return (jnp.sum(masked, axis=1).astype(jnp.float32) * ratio).astype(jnp.int32)


def ranks(scores: Float[Array, "b r"], masked: Bool[Array, "b r"]) -> Int[Array, "b r"]:
    """Place of each position in the order of its row, 0 for the most confident; ties go left to right."""
    order = jnp.argsort(-jnp.where(masked, scores, -jnp.inf), axis=1)
    return jnp.argsort(order, axis=1)


def confident(
    decoding: Decoding,
    rank: Int[Array, "b r"],
    probability: Float[Array, "b r"],
    masked: Bool[Array, "b r"],
    holes: Int[Array, "b"],
) -> Bool[Array, "b r"]:
    """The masked positions that a rule by probability commits; always the first in the order.

    `holes` counts the positions that each row of the block had to fill, `probability` is that of the drawn token.
    """
    if decoding.commit == "factor":
        # Along the order, up to the first that fails: c_i >= 1 - f / (i + 1) with i counted from 1.
        place = jnp.where(masked, rank, rank.shape[1])
        ordered = jnp.zeros_like(probability).at[jnp.arange(len(rank))[:, None], place].set(probability, mode="drop")
        i = jnp.arange(1, rank.shape[1] + 1)
        passes = (ordered >= 1 - decoding.factor / (i + 1)) | (i == 1)
        return masked & (rank < jnp.sum(jnp.cumprod(passes, axis=1), axis=1, keepdims=True))
    bound = jnp.full(holes.shape, decoding.threshold, jnp.float32)
    if decoding.commit == "dynamic":
        left = jnp.sum(masked, axis=1) / jnp.maximum(holes, 1)
        bound = bound * (1 - decoding.decay * (1 - left))
    return masked & ((probability >= bound[:, None]) | (rank == 0))


def budget(masked: Bool[Array, "b r"], holes: Int[Array, "b"], step: Int[Array, ""], steps: int) -> Int[Array, "b"]:
    """Fast-dLLM's uncached rule: holes // steps per step, what was not used is carried over; at the end, all."""
    left = jnp.sum(masked, axis=1)
    allowed = holes // steps * (step + 1) - (holes - left)
    return jnp.where(step + 1 < steps, jnp.maximum(allowed, 1), left)

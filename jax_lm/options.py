"""What a user may ask of a generation, checked in one place, and what comes back.

Turns flat options into the sampler's settings (`SamplingConfig`, `Decoding`). Knows no model, and imports JAX only when
it does so: the command line reads these options before it knows whether it will compute anything.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_lm.diffusion.decoding import Decoding
    from jax_lm.diffusion.unmasking import SamplingConfig

DECODING_OPTIONS = (
    "commit",
    "threshold",
    "factor",
    "decay",
    "block_length",
    "cache",
    "refresh_every",
    "refresh_steps",
    "freeze_prompt",
    "first_token",
)
"""Options that override what the preset says when they are given."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to answer a prompt; the defaults are DiffuCoder's published settings.

    Attributes:
        max_new_tokens: length of the canvas that is filled.
        temperature: 0 is greedy.
        top_p: mass of the nucleus, in (0, 1]; None is off.
        top_k: number of candidates per position; None is off.
        num_steps: denoising steps; None takes max_new_tokens / tokens_per_step, or as many as a commit rule by
            probability needs.
        tokens_per_step: how many tokens a step commits; more is faster and worse.
        alg: order of unmasking: origin, maskgit_plus, topk_margin, entropy, random or left_to_right.
        alg_temp: 0 commits the most confident positions; above 0 they are drawn.
        seed: of the random draws; a row's draws depend on the seed and its place in the batch.
        early_stop: leave out what comes after a stop token; the text is the same.
        preset: exact (equal to the reference), fast (blocks of 32 with a window cache) or turbo (fast, and every token
            of probability 0.9 at once).
        commit: in place of what the preset says, as all below: steps, threshold, factor or dynamic.
        threshold: probability from which threshold and dynamic commit.
        factor: of the commit rule factor.
        decay: of the commit rule dynamic.
        block_length: columns filled before those after them; 0 is the whole canvas.
        cache: none, prefix, dual or window.
        refresh_every: blocks between two full forwards.
        refresh_steps: evaluations between two full forwards within a block.
        freeze_prompt: leave the cache of the prompt as first computed.
        first_token: rule, or force as Fast-dLLM does. Semantics of all: `jax_lm.diffusion.decoding.Decoding`.
    """

    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = "entropy"
    alg_temp: float = 0.0
    seed: int = 0
    early_stop: bool = True
    preset: str = "exact"
    commit: str | None = None
    threshold: float | None = None
    factor: float | None = None
    decay: float | None = None
    block_length: int | None = None
    cache: str | None = None
    refresh_every: int | None = None
    refresh_steps: int | None = None
    freeze_prompt: bool | None = None
    first_token: str | None = None

    def decoding(self) -> "Decoding":
        """Commit rule, region and cache; ValueError names the option that is out of range."""
        from jax_lm.diffusion.decoding import PRESETS

        if self.preset not in PRESETS:
            raise ValueError(f"preset={self.preset!r}: must be one of {', '.join(PRESETS)}")
        given = {name: getattr(self, name) for name in DECODING_OPTIONS if getattr(self, name) is not None}
        return replace(PRESETS[self.preset], **given)

    def sampling(self, stop_ids: tuple[int, ...] = ()) -> "SamplingConfig":
        """Steps, order and draw; ValueError names the option that is out of range."""
        from jax_lm.diffusion.unmasking import SamplingConfig

        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: must be at least 1")
        if self.tokens_per_step < 1:
            raise ValueError(f"tokens_per_step={self.tokens_per_step}: must be at least 1")
        if self.num_steps is not None and self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps}: must be at least 1, or None")
        if self.num_steps is not None and self.tokens_per_step != 1:
            raise ValueError("num_steps and tokens_per_step both given: each sets the number of steps, give one")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        steps = self.num_steps
        if self.decoding().commit == "steps":
            steps = steps or math.ceil(self.max_new_tokens / self.tokens_per_step)
        elif self.tokens_per_step != 1:
            raise ValueError(
                f"tokens_per_step={self.tokens_per_step}: commit={self.decoding().commit!r} decides that by itself"
            )
        return SamplingConfig(
            steps=steps,
            alg=self.alg,
            alg_temp=self.alg_temp,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop_ids=stop_ids if self.early_stop else (),
        )


DEFAULTS = GenerationOptions()


@dataclass(frozen=True)
class Generation:
    """What a row became, up to its stop token.

    Attributes:
        holes: the text of each hole, up to its stop token.
        token_ids: of all holes, without stop tokens.
        confidence: probability of each token when it was decided (after temperature and filters).
        commit_step: step at which each was decided.
        stopped: whether stop tokens ended it; otherwise a hole was full.
    """

    holes: tuple[str, ...]
    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    commit_step: tuple[int, ...]
    stopped: bool

    @property
    def text(self) -> str:
        """The text of its holes; what a completion added to its prompt."""
        return "".join(self.holes)

    @property
    def mean_log_confidence(self) -> float:
        """Per token; minus infinity without any."""
        if not self.token_ids:
            return -math.inf
        return sum(math.log(max(p, 1e-30)) for p in self.confidence) / len(self.confidence)


@dataclass(frozen=True)
class Batch:
    """Rows that were decoded together, and what that took; tokens after a stop token do not count."""

    rows: tuple[Generation, ...]
    forwards: int
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / max(self.forwards, 1)

    def describe(self) -> str:
        """Tokens, time, speed and forwards in one line."""
        return (
            f"{self.tokens} tokens in {self.seconds:.1f} s · {self.tokens_per_second:.0f} tokens/s · "
            f"{self.forwards} forwards · {self.tokens_per_forward:.1f} tokens per forward"
        )


@dataclass(frozen=True)
class DenoisingEvent:
    """What one step (or several) did to a row.

    Attributes:
        row: index in the batch.
        step: steps taken.
        positions: newly decided positions, counted from the row's first hole.
        token_ids: their tokens.
        confidence: their probabilities.
        text: the text so far that can no longer change: everything before the first mask.
        is_last: whether the row is complete.
    """

    row: int
    step: int
    positions: tuple[int, ...]
    token_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    text: str
    is_last: bool

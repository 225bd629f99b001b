"""Options of a generation, checked in one place. Knows no model, and does not import JAX.

    GenerationOptions(max_new_tokens=64, temperature=0.0, decoding=Decoding(preset="fast"))

`GenerationOptions` sets the length of the answer, the sampling of tokens and their order, `Decoding`
the commit rule, blocks and cache. Results are in `jax_lm.results`.
"""

import difflib
import math
import reprlib
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

ALGS = ("origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right")
COMMIT_RULES = ("steps", "threshold", "factor", "dynamic", "entropy")
CACHES = ("none", "prefix", "dual", "window", "causal")
FIRST_TOKENS = ("rule", "force")
BLOCK_LENGTH = 32
WHOLE_CANVAS = 0
MAX_DRAFT = 32
GRAMMARS = ("python", "json_object", "regex:", "json_schema:")
"""Those that end in a colon come with an expression or a schema after it."""
GRAMMAR_WORDS = "python, json_object, regex:EXPRESSION or json_schema:SCHEMA"
GROWTHS = ("auto", "on", "off")

PRESETS: dict[str, dict[str, Any]] = {
    "exact": {},
    "fast": {"cache": "window", "block_length": BLOCK_LENGTH},
    "turbo": {"commit": "threshold", "threshold": 0.9, "cache": "window", "block_length": BLOCK_LENGTH},
}
"""`exact` equals the reference; what the others cost in quality is measured in the README."""

DECODING_DEFAULTS: dict[str, Any] = {
    "commit": "steps",
    "threshold": 0.9,
    "factor": 1.0,
    "decay": 0.3,
    "entropy_bound": 0.1,
    "cache": "none",
    "refresh_every": 1,
    "refresh_steps": None,
    "freeze_prompt": False,
    "first_token": "rule",
    "add_threshold": 0.1,
    "activate_threshold": 0.95,
    "active_blocks": 4,
}

CAUSAL_SETTINGS = ("add_threshold", "activate_threshold", "active_blocks")
"""Settings of decoding that only the cache `causal` has."""


def require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """ValueError unless the value is one of those allowed."""
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f" (perhaps {near[0]})" if near else ""
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}{hint}")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Commit rule, blocks and cache: a preset and its overrides. Hashable, hence static under jit.

    Attributes:
        preset: exact (equal to the reference), fast (blocks of 32 with a window cache) or turbo (like
            fast, and commits every token of probability at least 0.9). The options below override it.
        commit: which tokens a step commits. `steps`: as many as the noise schedule says (Dream).
            `threshold`: tokens of probability at least `threshold`. `factor`: the longest run of most
            confident tokens with p_i >= 1 - factor / (i + 1) (both Fast-dLLM). `dynamic`: like
            threshold, but lowered to threshold * (1 - decay * (1 - r)), where r is the share of masks
            left. `entropy`: the longest run whose entropies sum to at most `entropy_bound` more than
            the largest of them (EB-Sampler, arXiv 2505.24857). All except `steps` commit at least one
            token per step, and with `num_steps` at most as many as that schedule allows.
        threshold: probability at which `threshold` and `dynamic` commit a token, in (0, 1].
        factor: factor of `factor`, positive; larger values commit more tokens.
        decay: decay of `dynamic`, in [0, 1].
        entropy_bound: bound of `entropy` in nats, not negative, for probabilities before temperature and
            filters.
        block_length: positions per block; blocks are filled from left to right, and 0 means one block.
            By default 0 for `steps` without a cache, and 32 otherwise, because a threshold over the
            whole canvas ruins the answers of instruct models.
        cache: which positions a step recomputes. `none`: all. `prefix`: the block and everything after
            it. `dual`: the block; the position before it is only updated by a refresh. `window`: the
            block and the position before it. `causal` is for weights trained for it (D2F, arXiv
            2508.09192): a block attends to itself and to earlier blocks, so that finished blocks are
            never recomputed, and several blocks are filled at once, each by `threshold`, the only
            commit rule with this cache. For completions only.
        refresh_every: blocks per full forward pass. Other blocks only recompute the previous block and
            their own.
        refresh_steps: steps per full forward pass within a block; by default there is none.
        freeze_prompt: never update the cache of the prompt.
        first_token: `rule` treats the first position of a block like the others; `force` commits it at
            the refresh, as Fast-dLLM does.
        add_threshold: with the cache `causal`, committed share of the last block from which the next one
            starts, in [0, 1].
        activate_threshold: with the cache `causal`, committed share of a block from which the next block
            commits its most confident token in each step, even below the threshold, in [0, 1].
        active_blocks: with the cache `causal`, maximum number of blocks filled at once; each step
            recomputes all of them.
    """

    preset: str = "exact"
    commit: str | None = None
    threshold: float | None = None
    factor: float | None = None
    decay: float | None = None
    entropy_bound: float | None = None
    block_length: int | None = None
    cache: str | None = None
    refresh_every: int | None = None
    refresh_steps: int | None = None
    freeze_prompt: bool | None = None
    first_token: str | None = None
    add_threshold: float | None = None
    activate_threshold: float | None = None
    active_blocks: int | None = None

    def __post_init__(self) -> None:
        require_one_of("preset", self.preset, tuple(PRESETS))
        chosen = self.settings
        require_one_of("commit", chosen.commit, COMMIT_RULES)
        require_one_of("cache", chosen.cache, CACHES)
        require_one_of("first_token", chosen.first_token, FIRST_TOKENS)
        if not 0 < chosen.threshold <= 1:
            raise ValueError(f"threshold={chosen.threshold}: must lie in (0, 1]")
        if not 0 < chosen.factor < math.inf:
            raise ValueError(f"factor={chosen.factor}: must be positive")
        if not 0 <= chosen.decay <= 1:
            raise ValueError(f"decay={chosen.decay}: must lie in [0, 1]")
        if not chosen.entropy_bound >= 0:
            raise ValueError(f"entropy_bound={chosen.entropy_bound}: must not be negative")
        if chosen.block_length < 0:
            raise ValueError(f"block_length={chosen.block_length}: must be positive, 0 (whole canvas) or None")
        if chosen.refresh_every < 1:
            raise ValueError(f"refresh_every={chosen.refresh_every}: must be at least 1")
        if chosen.refresh_steps is not None and chosen.refresh_steps < 1:
            raise ValueError(f"refresh_steps={chosen.refresh_steps}: must be at least 1, or None")
        needs_cache = chosen.refresh_every > 1 or chosen.refresh_steps or chosen.freeze_prompt
        if chosen.cache == "none" and (needs_cache or chosen.first_token == "force"):
            raise ValueError("cache='none': refresh_…, freeze_prompt and first_token='force' need a cache")
        self.check_causal(chosen)

    def check_causal(self, chosen: SimpleNamespace) -> None:
        """ValueError for what does not go with the cache `causal`, or only with it."""
        if chosen.cache != "causal":
            for name in CAUSAL_SETTINGS:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)}: needs cache='causal', not {chosen.cache!r}")
            return
        usual = {name: DECODING_DEFAULTS[name] for name in ("refresh_every", "refresh_steps", "freeze_prompt")}
        for name, only in (usual | {"first_token": "rule", "commit": "threshold"}).items():
            if getattr(chosen, name) != only:
                raise ValueError(f"{name}={getattr(chosen, name)!r}: must be {only!r} with cache='causal'")
        for name in ("add_threshold", "activate_threshold"):
            if not 0 <= getattr(chosen, name) <= 1:
                raise ValueError(f"{name}={getattr(chosen, name)}: must lie in [0, 1]")
        if chosen.active_blocks < 1:
            raise ValueError(f"active_blocks={chosen.active_blocks}: must be at least 1")

    @cached_property
    def settings(self) -> SimpleNamespace:
        """Every setting as given, else as the preset says, else the default; of `causal`, its only commit rule."""
        names = [field.name for field in fields(self) if field.name != "preset"]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        above = PRESETS[self.preset] | given
        implied = {"commit": "threshold"} if above.get("cache") == "causal" else {}
        chosen = DECODING_DEFAULTS | implied | above
        plain = chosen["commit"] == "steps" and chosen["cache"] == "none"
        return SimpleNamespace(**{"block_length": WHOLE_CANVAS if plain else BLOCK_LENGTH} | chosen)

    def block_columns(self, region: int) -> int:
        """Block length on a region of that many columns."""
        length = self.settings.block_length
        return region if length == WHOLE_CANVAS else min(length, region)


EXACT = Decoding()


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to answer a prompt; the defaults are DiffuCoder's published settings.

    Attributes:
        max_new_tokens: length of the canvas, and so the maximum number of generated tokens.
        temperature: sampling temperature; 0 is greedy.
        top_p: probability mass of nucleus sampling, in (0, 1]; None turns it off.
        top_k: number of most likely tokens that are considered; None turns it off. The published
            sampler uses 50 without saying so.
        min_p: minimum probability of a token relative to the most likely one, in [0, 1]; None turns it
            off.
        num_steps: number of denoising steps; by default max_new_tokens / tokens_per_step, or as many
            as a commit rule by probability takes.
        tokens_per_step: tokens committed per step; more is faster and worse.
        alg: order of unmasking. `origin`: random. The others take the most confident position first,
            by the probability of the chosen token (`maskgit_plus`), the margin between the two most
            likely tokens (`topk_margin`) or the negative entropy (`entropy`). `random` and
            `left_to_right` are controls that commit as many tokens per step.
        alg_temp: temperature of the order; 0 commits the most confident positions, larger values draw
            them from softmax(confidence / alg_temp).
        early_stop: stop decoding at a stop token; the text stays the same.
        draft: number of steps drafted ahead and verified by each forward pass; 0 turns drafts off. The
            answer stays the same except for ties in floating point. A forward pass costs as much as
            one over 1 + draft canvases.
        lookahead: number of branches tried in parallel with the canvas after each step, each with one
            more token of those that the commit rule left out. Decoding continues with the branch whose
            remaining masks are most confident (LoPA, arXiv 2512.16229). Takes fewer forward passes,
            each over 1 + lookahead canvases, and may change the answer; 0 turns it off. Not with
            commit="steps".
        grammar: constraint on the answer. `python`: with the prompt and the text after it, a program
            that this Python can parse. `json_object`: a JSON object. `regex:EXPRESSION` and
            `json_schema:SCHEMA`: the whole answer matches (extra `grammar`). An answer that satisfies
            the constraint is not changed; any other is decoded again from its first wrong token.
        growth: whether holes between texts find their own length, at most max_new_tokens, with the
            tokens for expanding and deleting that the checkpoint was trained with (DreamOn). `auto`: if
            the checkpoint has them. `on`: refuse a checkpoint without them. `off`: keep the given
            length.
        decoding: preset, commit rule, blocks and cache.
    """

    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    min_p: float | None = None
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = "entropy"
    alg_temp: float = 0.0
    early_stop: bool = True
    draft: int = 0
    lookahead: int = 0
    grammar: str | None = None
    growth: str = "auto"
    decoding: Decoding = EXACT

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: must be at least 1")
        if self.tokens_per_step < 1:
            raise ValueError(f"tokens_per_step={self.tokens_per_step}: must be at least 1")
        if self.num_steps is not None and self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps}: must be at least 1, or None")
        if self.num_steps is not None and self.tokens_per_step != 1:
            raise ValueError("num_steps and tokens_per_step both given: each sets the number of steps, give one")
        commit = self.decoding.settings.commit
        if commit != "steps" and self.tokens_per_step != 1:
            raise ValueError(f"tokens_per_step={self.tokens_per_step}: commit={commit!r} decides that by itself")
        self.check_draft()
        self.check_lookahead()
        self.check_grammar()
        self.check_causal()
        require_one_of("alg", self.alg, ALGS)
        require_one_of("growth", self.growth, GROWTHS)
        if self.growth == "on":
            self.require_growable()
        if not self.alg_temp >= 0:
            raise ValueError(f"alg_temp={self.alg_temp}: must not be negative")
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature}: must not be negative")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must lie in (0, 1], or be None")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: must be at least 1, or None")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: must lie in [0, 1], or be None")

    def check_draft(self) -> None:
        """ValueError if no draft can have the answer that there is without one."""
        if not 0 <= self.draft <= MAX_DRAFT:
            raise ValueError(f"draft={self.draft}: must lie in [0, {MAX_DRAFT}]")
        chosen = self.decoding.settings
        if self.draft and chosen.refresh_steps is not None:
            raise ValueError(f"draft={self.draft}: must be 0 with refresh_steps, which counts evaluations")
        if self.draft and chosen.cache == "prefix" and chosen.refresh_every > 1:
            raise ValueError(f"draft={self.draft}: must be 0 with cache='prefix' and refresh_every above 1")

    def check_lookahead(self) -> None:
        """ValueError if branches do not go with the rest."""
        if not 0 <= self.lookahead <= MAX_DRAFT:
            raise ValueError(f"lookahead={self.lookahead}: must lie in [0, {MAX_DRAFT}]")
        if self.lookahead and self.draft:
            raise ValueError(f"lookahead={self.lookahead}: must be 0 with draft={self.draft}, give one of the two")
        if self.lookahead and self.decoding.settings.commit == "steps":
            allowed = ", ".join(rule for rule in COMMIT_RULES if rule != "steps")
            raise ValueError(f"lookahead={self.lookahead}: needs a commit rule by probability: {allowed}")

    def check_grammar(self) -> None:
        """ValueError for a grammar that there is not, or that has no end of an answer to hold to."""
        if self.grammar is not None:
            kind, colon, text = self.grammar.partition(":")
            if f"{kind}{colon}" not in GRAMMARS or (colon and not text):
                raise ValueError(f"grammar={reprlib.repr(self.grammar)}: must be {GRAMMAR_WORDS}, or None")
            if not self.early_stop:
                raise ValueError(f"grammar={self.grammar!r}: needs early_stop, by which an answer ends")

    def check_causal(self) -> None:
        """ValueError for what does not go with several blocks at once."""
        if self.decoding.settings.cache == "causal":
            found = {"draft": self.draft, "lookahead": self.lookahead, "grammar": self.grammar}
            for name, value in (found | {"num_steps": self.num_steps}).items():
                if value:
                    only = 0 if name in ("draft", "lookahead") else None
                    raise ValueError(f"{name}={value!r}: must be {only!r} with cache='causal'")

    def require_growable(self) -> None:
        """ValueError for what does not go with holes that change their length."""
        chosen = self.decoding.settings
        needed = {"commit": "steps", "cache": "none", "block_length": WHOLE_CANVAS}
        found: dict[str, tuple[Any, Any]] = {name: (getattr(chosen, name), only) for name, only in needed.items()}
        found |= {"num_steps": (self.num_steps, None), "draft": (self.draft, 0), "lookahead": (self.lookahead, 0)}
        found |= {"grammar": (self.grammar, None)}
        for name, (value, only) in found.items():
            if value != only:
                raise ValueError(
                    f"{name}={value!r}: must be {only!r} where holes grow; growth='off' keeps their length"
                )
        if self.alg == "origin":
            raise ValueError("alg='origin': must be another where holes grow; growth='off' keeps their length")

    def with_settings(self, **settings: Any) -> "GenerationOptions":
        """Give options with other settings, among them those of `decoding` by their own names."""
        inner = {field.name for field in fields(Decoding)} & settings.keys()
        below = {name: settings.pop(name) for name in inner}
        return replace(self, **settings, **({"decoding": replace(self.decoding, **below)} if below else {}))

    @property
    def extra_canvases(self) -> int:
        """Canvases that are evaluated beside the canvas: guesses of the next steps, or branches."""
        return self.draft or self.lookahead

    @property
    def extra_canvases_option(self) -> str:
        """The option that asks for them, with its value."""
        return f"lookahead={self.lookahead}" if self.lookahead else f"draft={self.draft}"

    @property
    def steps(self) -> int | None:
        """Denoising steps over the whole canvas; None is as many as a commit rule by probability needs."""
        if self.decoding.settings.commit != "steps":
            return self.num_steps
        return self.num_steps or math.ceil(self.max_new_tokens / self.tokens_per_step)


DEFAULTS = GenerationOptions()

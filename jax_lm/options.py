"""The options of a generation, validated in one place. Imports no JAX.

    GenerationOptions(max_new_tokens=64, temperature=0.0, decoding=Decoding(preset="fast"))

`GenerationOptions` sets the length of the answer, and how and in which order tokens are sampled.
`Decoding` sets how the canvas is decoded: commit rule, blocks and KV cache. The texts under
"Attributes" are also the help of the command line.
"""

import difflib
import reprlib
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from math import ceil, inf
from operator import index
from types import SimpleNamespace

from jax_lm.config import DreamConfig, Fields

# Path planning, the only order of unmasking in which tokens may become masks again.
P2 = "p2"
ALGS = (
    "origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right", "untied", P2,
)  # fmt: skip
DEFAULT_ALG = "entropy"
COMMIT_RULES = ("steps", "threshold", "factor", "dynamic", "entropy", "low_entropy")
# Commit rules with a bound on entropies.
ENTROPY_RULES = ("entropy", "low_entropy")
# Commit rules with which several blocks can be filled in parallel.
PIPELINE_RULES = ("threshold", "low_entropy")
CACHES = ("none", "prefix", "dual", "window", "causal", "delayed")
CHOICES = {"commit": COMMIT_RULES, "cache": CACHES, "first_token": ("rule", "force")}
BLOCK_LENGTH = 32
# The value of `block_length` for one block that covers the whole canvas.
WHOLE_CANVAS = 0
# Largest temperature, at which all candidates are as likely.
MAX_TEMPERATURE = 1e6
# Largest `draft` or `lookahead`: the number of additional canvases per forward pass.
MAX_DRAFT = 32
# An expression or a schema follows the names that end in a colon.
GRAMMARS = ("python", "json_object", "regex:", "json_schema:")
GRAMMAR_WORDS = "python, json_object, regex:EXPRESSION or json_schema:SCHEMA"
GROWTHS = ("auto", "on", "off")

# `exact` equals the reference; the README has the measured quality of the others.
PRESETS: dict[str, Fields] = {
    "exact": {},
    "fast": {"cache": "window", "block_length": BLOCK_LENGTH},
    "turbo": {
        "commit": "threshold",
        "threshold": 0.9,
        "cache": "window",
        "block_length": BLOCK_LENGTH,
    },
}

# Defaults of the settings of `Decoding`. They are not the defaults of its fields, which are None:
# the setting was not given, and the preset decides.
DECODING_DEFAULTS: Fields = {
    "commit": "steps",
    "threshold": 0.9,
    "factor": 1.0,
    "decay": 0.3,
    "entropy_bound": 0.1,
    "cache": "none",
    "cache_delay": 2,
    "refresh_every": 1,
    "refresh_steps": None,
    "freeze_prompt": False,
    "first_token": "rule",
    "add_threshold": 0.1,
    "activate_threshold": 0.95,
    "active_blocks": 4,
}

# The commit rules that read a setting. With other rules the setting is refused, not ignored.
RULES_BY_SETTING = {
    "threshold": ("threshold", "dynamic"),
    "factor": ("factor",),
    "decay": ("dynamic",),
    "entropy_bound": ENTROPY_RULES,
}

# Settings of blocks that are filled in parallel.
PIPELINE_SETTINGS = ("add_threshold", "activate_threshold", "active_blocks")
# Settings of refreshes, with the values that they must have where there are no refreshes: without a
# cache, and with cache `causal`, which never recomputes finished blocks.
WITHOUT_REFRESHES = {
    "refresh_every": 1,
    "refresh_steps": None,
    "freeze_prompt": False,
    "first_token": "rule",
}
# Ends of error messages.
CAUSAL = "cache='causal'"
WITH_CAUSAL = f"with {CAUSAL}"
WITH_P2 = "with alg='p2', whose tokens may become masks again"
ACTIVE_BLOCKS = "several blocks at once (active_blocks)"
WHERE_HOLES_GROW = "where holes grow; growth='off' keeps their length"


def not_one_of(name: str, value: str, allowed: Collection[str]) -> ValueError:
    """Return the error for a value that is not allowed. The message suggests the nearest one."""
    near = difflib.get_close_matches(value, allowed, n=1)
    hint = f" (perhaps {near[0]})" if near else ""
    return ValueError(f"{name}={value!r:.80}: must be one of {', '.join(allowed)}{hint}")


def require_one_of(name: str, value: str, allowed: Collection[str]):
    """Raise ValueError unless the value is allowed."""
    if value not in allowed:
        raise not_one_of(name, value, allowed)


def require(rule: str, holds: Callable[[float], bool], config, *names: str):
    """Raise ValueError unless each named setting is None or satisfies a rule.

    Args:
        rule: the rule in words, for the message.
        holds: whether a number satisfies the rule.
        config: object with the settings as attributes. A tuple must not be empty, and all of its
            numbers must satisfy the rule.
        *names: names of the settings.
    """
    for name in names:
        if (value := getattr(config, name)) is None:
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        try:
            is_held = numbers and all(map(holds, numbers))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}={value!r:.80}: {rule}; {error}") from error
        if not is_held:
            raise ValueError(f"{name}={value}: {rule}")


# Usage: require_sizes(config, "batch_size") raises "batch_size=0: must be at least 1". NaN
# satisfies none of these rules, and `index` raises TypeError for 1.5.
require_sizes = partial(
    require,
    "must be at least 1",
    lambda value: index(value) >= 1,  # pyright: ignore[reportArgumentType]
)
require_shares = partial(require, "must lie in [0, 1]", lambda value: 0 <= value <= 1)
require_upper_shares = partial(require, "must lie in (0, 1]", lambda value: 0 < value <= 1)
require_inner_shares = partial(require, "must lie in (0, 1)", lambda value: 0 < value < 1)
require_above_zero = partial(require, "must be positive and finite", lambda value: 0 < value < inf)
require_not_negative = partial(
    require, "must not be negative or infinite", lambda value: 0 <= value < inf
)
# Unlike `require_not_negative`, this allows infinity: a bound that nothing reaches.
require_at_least_zero = partial(require, "must not be negative", lambda value: value >= 0)
require_counts = partial(
    require, f"must lie in [0, {MAX_DRAFT}]", lambda value: 0 <= value <= MAX_DRAFT
)


def require_only(config, values: Fields, reason: str):
    """Raise ValueError if a setting differs from its only supported value.

    Args:
        config: object with the settings as attributes.
        values: the supported value of each setting.
        reason: end of the message, such as "with cache='causal'".
    """
    for name, required in values.items():
        if (value := getattr(config, name)) != required:
            raise ValueError(f"{name}={value!r}: must be {required!r} {reason}")


def require_at_most_one(config, *names: str):
    """Raise ValueError if more than one of the named settings is given."""
    given = [
        f"{name}={value}" for name in names if (value := getattr(config, name)) not in (None, False)
    ]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Commit rule, blocks and KV cache: a preset and the settings that override it.

    Instances are hashable, so they can be static arguments under jit.

    Attributes:
        preset: `exact` (equal to the reference), `fast` (blocks of 32 with a window cache) or
            `turbo` (`fast`, and commits every token of probability 0.9 at once). Settings that are
            not given come from the preset.
        commit: which tokens a step commits. `steps`: as many as the noise schedule says (Dream).
            `threshold`: every token with a probability of at least `threshold`. `factor`: the
            longest run of most confident tokens with p_i >= 1 - factor / (i + 1) (both Fast-dLLM).
            `dynamic`: like `threshold`, with a threshold that falls to
            threshold * (1 - decay * (1 - r)), where r is the share of masks left. `entropy`: the
            longest run of most confident tokens whose entropies sum to at most `entropy_bound` more
            than the largest of them (EB-Sampler, arXiv 2505.24857). `low_entropy`: every token with
            an entropy below `entropy_bound` (dParallel, d3LLM). All but `steps` commit at least one
            token per step, and if `num_steps` is given, at most as many as its schedule allows.
        threshold: lowest probability that commit rules `threshold` and `dynamic` commit, in (0, 1].
        factor: factor of the commit rule `factor`, positive; a larger one commits more tokens.
        decay: decay of the commit rule `dynamic`, in [0, 1].
        entropy_bound: bound of the commit rules `entropy` and `low_entropy`, in nats, not negative.
            Entropies are taken before temperature and filters.
        block_length: length of a block; a block is filled before the next one begins. 0 is the
            whole canvas. The default is 0 for commit rule `steps` without a cache, and 32
            otherwise: a threshold over the whole canvas ruins the answers of instruct models.
        cache: which rows each step recomputes; keys and values of the others are cached. `none`:
            all rows. `prefix`: the block and all rows after it. `dual`: the block; the row before
            it keeps its cached keys and values. `window`: the block and the row before it; for
            blocks of at least 32, only the rows that predict the block, without its last. `causal`
            is only for weights that were trained for it (D2F, arXiv 2508.09192): a block
            attends to itself and to earlier positions, so finished blocks are never recomputed, and
            several blocks are filled in parallel, with commit rule `threshold`. It is for
            completions, not for holes. If the model attends by blocks, a full pass computes the block
            of attention and the one before it; with `dual`, it is repeated until the first position
            of the block is decided (Fast-dLLM v2's cache of a block). `delayed` fills several blocks
            in parallel under full attention (d3LLM), one text at a time: the rows after the prompt
            and the finished blocks that are kept; all rows while another finished block waits.
        cache_delay: with cache `delayed`, number of forward passes for which a finished block waits
            before its keys and values are kept; the prompt waits from the start.
        refresh_every: number of blocks between two full forward passes. At the start of the other
            blocks, only the previous block and the new one are recomputed.
        refresh_steps: number of forward passes from one full forward pass to the next within a
            block; if not given, only the first one of a block is full. With cache `delayed`, each
            pass whose number in the answer is a multiple of it; if not given, none of them.
        freeze_prompt: never refresh the cache of the prompt.
        first_token: `rule` treats the first position of a block like the others; `force` commits it
            alone in the first forward pass over the block, as Fast-dLLM does. If the model attends
            by blocks, only the blocks that begin with a block of its attention are forced.
        add_threshold: if blocks are filled in parallel, the next block is added once this share of
            the latest one is filled, in [0, 1].
        activate_threshold: with cache `causal`, once this share of a block is filled, the next
            block commits its most confident token at each step, even if no token reaches the
            threshold, in [0, 1].
        active_blocks: the largest number of blocks filled in parallel. With cache `causal`, each
            step computes the rows of all of them. With cache `none`, this or `add_threshold` asks
            for blocks in parallel under full attention (d3LLM), as cache `delayed` does, with commit
            rule `threshold` or `low_entropy`, for completions; the first unfinished block commits a
            token at each step.
    """

    preset: str = "exact"
    commit: str | None = None
    threshold: float | None = None
    factor: float | None = None
    decay: float | None = None
    entropy_bound: float | None = None
    block_length: int | None = None
    cache: str | None = None
    cache_delay: int | None = None
    refresh_every: int | None = None
    refresh_steps: int | None = None
    freeze_prompt: bool | None = None
    first_token: str | None = None
    add_threshold: float | None = None
    activate_threshold: float | None = None
    active_blocks: int | None = None

    def __post_init__(self):
        require_one_of("preset", self.preset, tuple(PRESETS))
        settings = self.settings
        for name, allowed in CHOICES.items():
            require_one_of(name, getattr(settings, name), allowed)
        require_upper_shares(settings, "threshold")
        require_above_zero(settings, "factor")
        require_shares(settings, "decay", "add_threshold", "activate_threshold")
        require_at_least_zero(settings, "entropy_bound", "block_length")
        require_sizes(settings, "refresh_every", "refresh_steps", "active_blocks", "cache_delay")
        for name, rules in RULES_BY_SETTING.items():
            if (value := getattr(self, name)) is not None and settings.commit not in rules:
                raise ValueError(
                    f"{name}={value}: has no meaning with commit={settings.commit!r}, "
                    f"only with {' or '.join(rules)}"
                )
        if settings.cache == "causal":
            require_only(settings, WITHOUT_REFRESHES | {"commit": "threshold"}, WITH_CAUSAL)
        elif settings.cache == "none":
            # A first token can also be forced without a cache.
            required = WITHOUT_REFRESHES | {"first_token": settings.first_token}
            require_only(settings, required, "with cache='none': it needs a cache")
        elif settings.cache == "delayed":
            require_only(
                settings, {"refresh_every": 1, "freeze_prompt": False}, "with cache='delayed'"
            )
        else:
            # These caches would silently ignore the settings of the pipeline.
            require_only(
                self,
                dict.fromkeys(PIPELINE_SETTINGS),
                "without cache='causal', 'delayed' or 'none'",
            )
        if settings.cache != "delayed":
            require_only(self, {"cache_delay": None}, "without cache='delayed'")
        if settings.cache != "causal":
            require_only(self, {"activate_threshold": None}, "without cache='causal'")
            if self.is_pipelined:
                require_only(settings, {"first_token": "rule"}, f"with {ACTIVE_BLOCKS}")
                require_one_of("commit", settings.commit, PIPELINE_RULES)

    @cached_property
    def settings(self) -> SimpleNamespace:
        """The value of every setting: the given one, else that of the preset, else the default.

        The default commit rule for blocks that are filled in parallel is `threshold`.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        implied = {"commit": "threshold"} if self.is_pipelined else {}
        settings = DECODING_DEFAULTS | implied | PRESETS[self.preset] | given
        is_plain = settings["commit"] == "steps" and settings["cache"] == "none"
        del settings["preset"]
        settings.setdefault("block_length", WHOLE_CANVAS if is_plain else BLOCK_LENGTH)
        return SimpleNamespace(**settings)

    @property
    def is_pipelined(self) -> bool:
        """Whether several blocks are filled at once."""
        return self.cache in ("causal", "delayed") or any(
            getattr(self, name) is not None for name in PIPELINE_SETTINGS
        )

    def within_blocks(self, size: int | None, family: str) -> "Decoding":
        """Return these settings for a model that attends by blocks: to a block and those before it.

        Args:
            size: block length of the model; None is a model with full attention.
            family: name of the model's family, for error messages.

        Raises:
            ValueError: the block length of the settings is larger than that of the model.
        """
        if size is None or self.settings.cache == "causal":
            return self
        if self.block_length is None:
            return replace(self, block_length=size)
        if not 0 < self.block_length <= size:
            raise ValueError(
                f"block_length={self.block_length}: must lie in [1, {size}], the blocks of {family}"
            )
        return self

    def block_length_in(self, region: int) -> int:
        """Return the length of blocks in a region of `region` columns."""
        length = self.settings.block_length
        return region if length == WHOLE_CANVAS else min(length, region)


def window_length(columns: int, model: DreamConfig) -> int:
    """Return how many rows a step with cache `window` recomputes for a block of `columns`."""
    # Row p predicts column p + 1, so columns 32 to 63 need rows 31 to 62. Row 63 keeps the keys and
    # values of the last refresh, because a window of 33 rows would cost a GPU as much as one of 40.
    # Shorter blocks are recomputed as a whole, and so are those of families whose cache is exact
    # only then.
    is_whole = model.attention_block is not None or not model.family.shifts
    return columns + (is_whole or columns < BLOCK_LENGTH)


EXACT = Decoding()
# One token after another, each of which attends to those before it.
LEFT_TO_RIGHT = Decoding(cache="causal")
# Options that need another way of decoding, with the values that turn them off.
WITHOUT_VARIANTS = {"draft": 0, "lookahead": 0, "grammar": None, "num_steps": None}
# The end of error messages about all other settings.
LEFT_TO_RIGHT_ONLY = (
    "as this model is autoregressive, and can only be decoded left to right; adapt it for any order"
)


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of a generation; the defaults are DiffuCoder's published settings.

    Attributes:
        max_new_tokens: length of the canvas, hence the maximum number of generated tokens.
        temperature: sampling temperature; 0 is greedy.
        top_p: probability mass of nucleus sampling, in (0, 1]; None turns it off.
        top_k: number of candidate tokens per position; None turns it off. 50 is the undocumented
            default of the published sampler.
        min_p: lowest probability of a candidate token, as a share of the probability of the most
            likely one, in [0, 1]; None turns it off.
        num_steps: number of denoising steps. None takes max_new_tokens / tokens_per_step, or as
            many as needed with a commit rule by probability.
        tokens_per_step: number of tokens that a step commits; more is faster, and lowers quality.
        alg: order of unmasking. `origin`: positions are unmasked at random. `maskgit_plus`,
            `topk_margin` and `entropy`: most confident first, by the probability of the sampled
            token, the margin of the two most likely tokens, or negative entropy; ties go from left
            to right. `untied`: as `maskgit_plus`, but positions with a single candidate left go by
            the probability of their token before temperature and filters. `p2`: each step keeps an
            evenly growing share of all positions, the most confident ones as by `maskgit_plus`;
            tokens at the others become masks again (path planning, arXiv 2502.03540). `random` and
            `left_to_right` are controls with the same number of tokens per step.
        alg_temp: 0 commits the most confident positions; above 0, positions are sampled from
            softmax(confidence / alg_temp).
        early_stop: do not decode the positions after a stop token; the text is the same.
        draft: number of future steps that are drafted and verified by each forward pass; 0 turns it
            off. The answer is the same, except for floating-point ties. A forward pass computes
            1 + draft canvases. With cache `causal`, for models with causal blocks: number of tokens
            that masks behind the text draft, less than a block; the answer is that of one token per
            pass.
        lookahead: number of branches tried after each step, each with one more token that the
            commit rule left masked; decoding continues with the branch whose remaining masks are
            most confident (LoPA, arXiv 2512.16229). It needs fewer forward passes, each of
            1 + lookahead canvases, and may change the answer. 0 turns it off. Needs a commit rule
            other than `steps`.
        grammar: constrain the answer. `python`: prompt, answer and suffix together are a program
            that the running Python parses. `json_object`: the answer is a JSON object.
            `regex:EXPRESSION` or `json_schema:SCHEMA`: the whole answer matches (needs the extra
            `grammar`). A valid answer is not changed; an invalid one is decoded again from its
            first wrong token.
        growth: whether a hole with text on both sides finds its own length, up to max_new_tokens,
            with the expand and delete tokens of a checkpoint trained with them (DreamOn). `auto`:
            if the checkpoint has them. `on`: raise an error if it does not. `off`: keep the given
            length.
        decoding: preset, commit rule, blocks and KV cache.
    """

    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    min_p: float | None = None
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = DEFAULT_ALG
    alg_temp: float = 0.0
    early_stop: bool = True
    draft: int = 0
    lookahead: int = 0
    grammar: str | None = None
    growth: str = "auto"
    decoding: Decoding = EXACT

    def __post_init__(self):
        require_one_of("alg", self.alg, ALGS)
        require_one_of("growth", self.growth, GROWTHS)
        require_sizes(self, "max_new_tokens", "tokens_per_step", "num_steps", "top_k")
        # beyond float32, logits would not be finite
        rule = f"must lie in [0, {MAX_TEMPERATURE:g}]"
        require(rule, lambda value: 0 <= value <= MAX_TEMPERATURE, self, "temperature", "alg_temp")
        require_upper_shares(self, "top_p")
        require_shares(self, "min_p")
        require_counts(self, "draft", "lookahead")
        self.check_steps()
        self.check_draft()
        self.check_grammar()
        if self.decoding.cache == "causal":
            require_only(self, WITHOUT_VARIANTS | {"draft": self.draft}, WITH_CAUSAL)
        elif self.decoding.is_pipelined:
            require_only(self, WITHOUT_VARIANTS, f"with {ACTIVE_BLOCKS}")
        if self.growth == "on":
            self.require_growable()
        if self.alg == P2:
            require_only(
                self, {"alg_temp": 0, "draft": 0, "lookahead": 0, "grammar": None}, WITH_P2
            )
            require_only(
                self.decoding.settings, {"commit": "steps", "first_token": "rule"}, WITH_P2
            )

    def check_steps(self):
        """Raise ValueError if two options decide how many tokens a step commits."""
        commit = self.decoding.settings.commit
        if self.num_steps is not None:
            require_only(self, {"tokens_per_step": 1}, "with num_steps: give one of them")
        # A commit rule by probability decides that by itself.
        if commit != "steps":
            require_only(
                self, {"tokens_per_step": 1}, f"with commit={commit!r}, which decides that"
            )
        elif self.lookahead:
            # all commit rules but the first, `steps`
            raise ValueError(
                f"lookahead={self.lookahead}: needs a commit rule by probability: "
                f"{', '.join(COMMIT_RULES[1:])}"
            )

    def check_draft(self):
        """Raise ValueError where drafts could change the answer."""
        settings = self.decoding.settings
        if self.lookahead:
            require_only(self, {"draft": 0}, "with lookahead: give one of them")
        # Drafts save forward passes, so a refresh that counts forward passes would come later.
        if settings.refresh_steps is not None:
            require_only(self, {"draft": 0}, "with refresh_steps, which counts forward passes")
        if settings.cache == "prefix" and settings.refresh_every > 1:
            require_only(self, {"draft": 0}, "with cache='prefix' and refresh_every above 1")

    def check_grammar(self):
        """Raise ValueError for an unknown grammar, or one without stop tokens to end the answer."""
        if self.grammar is not None:
            kind, colon, text = self.grammar.partition(":")
            if f"{kind}{colon}" not in GRAMMARS or (colon and not text):
                raise ValueError(
                    f"grammar={reprlib.repr(self.grammar)}: must be {GRAMMAR_WORDS}, or None"
                )
            require_only(self, {"early_stop": True}, "with a grammar, whose answer it ends")

    def require_growable(self):
        """Raise ValueError for options that cannot be combined with holes that grow."""
        plain = {
            "commit": "steps",
            "cache": "none",
            "block_length": WHOLE_CANVAS,
            "first_token": "rule",
        }
        require_only(self.decoding.settings, plain, WHERE_HOLES_GROW)
        require_only(self, WITHOUT_VARIANTS, WHERE_HOLES_GROW)
        if self.alg in ("origin", P2):
            raise ValueError(f"alg={self.alg!r}: not supported {WHERE_HOLES_GROW}")

    def left_to_right(self) -> "GenerationOptions":
        """Return the options for an autoregressive model, which decodes one token after another.

        Raises:
            ValueError: an option asks for another order, or for several tokens at once.
        """
        require_only(self, WITHOUT_VARIANTS | {"tokens_per_step": 1}, LEFT_TO_RIGHT_ONLY)
        if self.alg != "left_to_right":
            require_only(self, {"alg": DEFAULT_ALG}, LEFT_TO_RIGHT_ONLY)
        if self.decoding != LEFT_TO_RIGHT:
            require_only(self.decoding, asdict(EXACT), LEFT_TO_RIGHT_ONLY)
        return replace(self, decoding=LEFT_TO_RIGHT)

    def with_settings(self, **settings) -> "GenerationOptions":
        """Return a copy with other settings, which may be settings of `decoding`."""
        # with_settings(top_k=5, cache="dual") replaces `top_k` here, and `cache` in `decoding`.
        names = Decoding.__dataclass_fields__.keys() & settings.keys()
        inner = {name: settings.pop(name) for name in names}
        decoding = settings.pop("decoding", self.decoding)
        return replace(self, decoding=replace(decoding, **inner), **settings)

    @property
    def extra_canvases(self) -> int:
        """Number of additional canvases per forward pass: drafts or branches."""
        # Drafts from masks are rows of the same canvas.
        return 0 if self.decoding.cache == "causal" else self.draft or self.lookahead

    @property
    def steps(self) -> int | None:
        """Number of denoising steps over the canvas; None if the commit rule decides it."""
        if self.decoding.settings.commit != "steps":
            return self.num_steps
        # 10 tokens, 3 per step -> 4 steps
        return self.num_steps or ceil(self.max_new_tokens / self.tokens_per_step)


def restrict_options(options: GenerationOptions, config: DreamConfig) -> GenerationOptions:
    """Return the options, restricted to what the model's family can decode.

    A family with blocks decodes its own blocks, and from left to right by default if a token cannot
    see later ones. An autoregressive model decodes from left to right.

    Raises:
        ValueError: the options ask for something else.
    """
    if config.is_autoregressive:
        return options.left_to_right()
    if config.is_causal and options.alg == DEFAULT_ALG:
        options = replace(options, alg="left_to_right")
    decoding = options.decoding.within_blocks(config.decoding_block, config.family.name)
    return replace(options, decoding=decoding)


DEFAULTS = GenerationOptions()


def advise_preset(options: GenerationOptions, width: int, model: DreamConfig) -> str:
    """Return the advice to use preset `fast` if it computes fewer rows; empty if it does not.

    Args:
        options: the options of the generation.
        width: width of the canvas in columns.
        model: shape of the model.
    """
    settings = options.decoding.settings
    columns = options.max_new_tokens
    steps = options.steps or columns
    if settings.cache != "none" or settings.commit != "steps" or options.growth == "on":
        return ""
    # 256 new tokens in 256 steps on a canvas of 300 columns are 256 x 300 rows. With `fast`, each
    # of the 8 blocks begins with 300 rows, and the other 248 steps have 32: 8 x 300 + 248 x 32
    # rows.
    blocks = -(-columns // BLOCK_LENGTH)
    window = window_length(min(BLOCK_LENGTH, columns), model)
    fast_rows = blocks * width + max(steps - blocks, 0) * window
    ratio = steps * width / fast_rows
    return f"--preset fast: {ratio:.1f}x fewer rows" if ratio > 1.1 else ""

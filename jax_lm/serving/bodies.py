"""What a request may hold: OpenAI's fields that we have, diffusion's beside them, and what others send for nothing.

What we do not have may say that it is off (`NEUTRAL`); anything else of it is refused by name, never ignored. Knows
neither HTTP nor the engine.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from jax_lm.options import DEFAULTS, Decoding, GenerationOptions

MAX_CHOICES, MAX_PROMPTS, MAX_STOPS = 8, 16, 16
MAX_COMPLETION_LOGPROBS, MAX_LOGPROBS = 5, 20
"""Alternatives of a position, as many as OpenAI's two endpoints tell."""
MAX_TEXT = 200_000
MAX_SEED = 2**32 - 1

Neutral = Mapping[str, Sequence[Any]]

UNREAD = ("metadata", "safety_identifier", "prompt_cache_key", "request_id", "rid")
"""Fields for whoever keeps books in front of the server, like `user`: nothing here looks at them."""

NEUTRAL: Neutral = {
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "top_logprobs": (0,),
    "echo": (False,),
    "best_of": (1,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "add_special_tokens": (True, False),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "priority": (0,),
    "cache_prompt": (True, False),
}
"""Fields of OpenAI, vLLM, SGLang and llama.cpp that we do not have: values that ask for nothing, or change nothing."""

MESSAGE_NEUTRAL: Neutral = {
    "type": ("text", "message"),
    "tool_calls": ([],),
    "annotations": ([],),
    "images": ([],),
    "thinking_blocks": ([],),
    "reasoning_content": ("",),
    "provider_specific_fields": ({}, {"refusal": None}),
}
"""Likewise, of an answer that a client sends back as part of a conversation."""


FILL_IN_THE_MIDDLE = re.compile(
    r"<\|fim_prefix\|>(?P<prefix>.*)<\|fim_suffix\|>(?P<suffix>.*)<\|fim_middle\|>", re.DOTALL
)
"""A gap as Qwen's causal models are asked to fill it."""


def is_same(value: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


class Part(BaseModel):
    """A part of a request: nothing is converted, nothing unknown is let through, and null is as good as not given."""

    neutral: ClassVar[Neutral] = {}
    unread: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def with_neutral(schema: dict[str, Any], kind: type["Part"]) -> None:
        """Tell in the schema what the validator below lets through."""
        properties, required = schema["properties"], schema.get("required", ())
        for name in properties.keys() - set(required):
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        for name, values in kind.neutral.items():
            properties.setdefault(name, {"enum": [*values, None]})
        properties |= {name: {} for name in kind.unread}

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=with_neutral)

    @model_validator(mode="before")
    @classmethod
    def without_neutral(cls, given: Any) -> Any:
        """Leave out what asks for nothing; ValueError names a field that asks for something we do not have."""
        if not isinstance(given, dict):
            return given
        kept = {}
        for name, value in given.items():
            if value is None or name in cls.unread:
                continue
            if name in cls.model_fields or name not in cls.neutral:
                kept[name] = value
            elif not any(is_same(value, other) for other in cls.neutral[name]):
                allowed = " or ".join(map(repr, cls.neutral[name]))
                raise ValueError(f"{name}={reprlib.repr(value)}: this server does not have it; {allowed} means nothing")
        return kept


class StreamOptions(Part):
    neutral = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}
    include_usage: bool = False


Text = Annotated[str, Field(max_length=MAX_TEXT)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TEXT)]


def kind_of(value: Any) -> str | None:
    """Tell the alternatives of a field apart, so that what is wrong is said of the one that was meant."""
    if isinstance(value, str):
        return "#text"
    if not isinstance(value, list):
        return None
    kinds = {str: "#texts", int: "#ids", list: "#lists", dict: "#parts"}
    return kinds.get(type(value[0]) if value else str)


def one_of(expected: str) -> Discriminator:
    return Discriminator(kind_of, custom_error_type="kind", custom_error_message=f"must be {expected}")


Stops = Annotated[
    Annotated[StopText, Tag("#text")] | Annotated[list[StopText], Field(max_length=MAX_STOPS), Tag("#texts")],
    one_of("a text or a list of texts"),
]
Prompts = Annotated[
    Annotated[Text, Tag("#text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS), Tag("#texts")]
    | Annotated[TokenIds, Tag("#ids")]
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS), Tag("#lists")],
    one_of("a text, token ids, or a list of either"),
]


class DecodingBody(Part):
    """Fields that all requests share: OpenAI's options that we have, and those of diffusion.

    `threshold` commits every token of at least that probability at once, `entropy_bound` as many as it admits, both in
    blocks of 32 unless `block_length` says otherwise (0 is the whole canvas); `steps` is the number of denoising steps,
    one per token if not given. `growth` says whether the hole before a suffix finds its own length, at most
    `max_tokens`, as checkpoints do that were trained for it (DreamOn): auto, on or off. `ignore_eos` fills all of the
    canvas. `user` is for whoever keeps books in front of the server.
    """

    neutral, unread = NEUTRAL, UNREAD
    model: str | None = Field(None, max_length=200)
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=DEFAULTS.top_k)
    min_p: float | None = Field(None, ge=0, le=1)
    stop: Stops | None = None
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    steps: int | None = Field(None, ge=1)
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right"] | None = None
    preset: Literal["exact", "fast", "turbo"] | None = None
    block_length: int | None = Field(None, ge=0)
    threshold: float | None = Field(None, gt=0, le=1)
    entropy_bound: float | None = Field(None, ge=0)
    growth: Literal["auto", "on", "off"] | None = None
    user: str | None = Field(None, max_length=200)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def length(self) -> int | None:
        """Tokens of the hole, if they were given."""
        return self.max_tokens

    @property
    def needs_tokens(self) -> bool:
        """Whether an answer without a new token would be none."""
        return True

    @property
    def wanted_logprobs(self) -> int | None:
        """Likeliest tokens to tell of each position; None tells of no log-probability at all."""
        return None

    def options(self, length: int) -> GenerationOptions:
        """Make the options of an answer of that many tokens."""
        decoding = Decoding(
            preset=self.preset or "exact",
            commit="threshold" if self.threshold is not None else "entropy" if self.entropy_bound is not None else None,
            threshold=self.threshold,
            entropy_bound=self.entropy_bound,
            block_length=self.block_length,
        )
        names = ("temperature", "top_p", "top_k", "min_p", "alg", "growth")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        ends = not self.ignore_eos
        return GenerationOptions(
            max_new_tokens=length, num_steps=self.steps, early_stop=ends, decoding=decoding, **given
        )

    @model_validator(mode="after")
    def agree(self) -> "DecodingBody":
        if self.length == 0 and self.needs_tokens:
            raise ValueError("max_tokens=0: must be at least 1; 0 goes with a completion's echo alone")
        if self.threshold is not None and self.entropy_bound is not None:
            raise ValueError("entropy_bound: give either threshold or entropy_bound")
        by_probability = not (self.threshold is self.entropy_bound is None) or self.preset == "turbo"
        if by_probability and self.steps is not None:
            message = "steps: preset turbo, threshold and entropy_bound decide the number of steps by themselves"
            raise ValueError(message)
        if self.steps is not None and self.length is not None and self.steps > self.length:
            raise ValueError(f"steps: {self.steps} are more than the {self.length} tokens to decide")
        return self


class OpenAI(DecodingBody):
    """Options of OpenAI's two endpoints."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None


class CompletionBody(OpenAI):
    """POST /v1/completions; a `suffix` makes it infilling, and so does a prompt in Qwen's format for that."""

    prompt: Prompts
    suffix: Text | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    best_of: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def with_suffix(cls, given: Any) -> Any:
        """Take prefix and suffix out of the prompt that editors make for models that are asked in such tokens."""
        prompt = given.get("prompt") if isinstance(given, dict) else None
        found = FILL_IN_THE_MIDDLE.fullmatch(prompt) if isinstance(prompt, str) else None
        if found is None or given.get("suffix") is not None:
            return given
        return given | {"prompt": found["prefix"], "suffix": found["suffix"]}

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        prompt: Any = self.prompt
        return prompt if kind_of(prompt) in ("#texts", "#lists") else [prompt]

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def needs_tokens(self) -> bool:
        return not self.echo

    @model_validator(mode="after")
    def fit(self) -> "CompletionBody":
        if self.best_of not in (None, self.n):
            raise ValueError("best_of: only the value of n; answers are not ranked")
        if self.echo and self.logprobs is not None:
            raise ValueError("logprobs: a prompt has none, so that echo cannot be combined with them")
        return self


class TextPart(Part):
    type: Literal["text"]
    text: Text


class ChatMessage(Part):
    """A turn of a conversation; `name` is for the client's own books, as chat templates have none."""

    neutral = MESSAGE_NEUTRAL
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("#text")] | Annotated[list[TextPart], Field(min_length=1, max_length=64), Tag("#parts")],
        one_of("a text or a list of its parts"),
    ]
    name: str | None = Field(None, max_length=200)

    @model_validator(mode="before")
    @classmethod
    def without_content(cls, given: Any) -> Any:
        """Take null for an empty text; a message must have a content all the same."""
        is_null = isinstance(given, dict) and "content" in given and given["content"] is None
        return given | {"content": ""} if is_null else given

    def plain(self) -> dict[str, str]:
        """As the chat template takes it; it has no developers."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": "system" if self.role == "developer" else self.role, "content": "".join(parts)}


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]


class ChatBody(OpenAI):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    @property
    def wanted_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def have_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs}: goes with logprobs=true")
        return self

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class DenoiseBody(DecodingBody):
    """POST /v1/denoise: one answer to a prompt (with a suffix: infilling) or a conversation, step by step."""

    prompt: Text | None = None
    suffix: Text | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def has_one_source(self) -> "DenoiseBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: give either a prompt or messages")
        if self.messages is not None and self.suffix is not None:
            raise ValueError("suffix: goes with a prompt, not with messages")
        return self


def refusal(problem: Mapping[str, Any]) -> tuple[str, str | None]:
    """Word what pydantic found, in a line that names the field, what came and what is allowed; and the field alone."""
    parts = [str(part) for part in problem["loc"] if part != "body" and not str(part).startswith("#")]
    place = ".".join(parts).encode("ascii", "backslashreplace").decode()
    limits, kind, value = problem.get("ctx", {}), problem["type"], problem.get("input")
    words = {
        "missing": "must be given",
        "extra_forbidden": "this server does not have it",
        "too_long": "at most {max_length}, not {actual_length}",
        "too_short": "must not be empty",
        "string_too_long": "at most {max_length} characters",
        "string_too_short": "must not be empty",
    }
    message = words[kind].format(**limits) if kind in words else problem["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    if place and isinstance(value, str | int | float) and kind != "extra_forbidden":
        return f"{place}={reprlib.repr(value)}: {message}", place
    if place:
        return f"{place}: {message}", place
    param = message.split(":")[0].split("=")[0]
    return message, param if param.isidentifier() else None

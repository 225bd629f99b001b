"""What a request may hold: OpenAI's fields that we have, diffusion's beside them, and what others send for nothing.

What we do not have may say that it is off (`jax_lm.serving.ignored_fields`); anything else of it is refused by name,
never ignored. Knows neither HTTP nor the engine.
"""

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from jax_lm.options import DEFAULTS, Decoding, GenerationOptions
from jax_lm.serving.ignored_fields import MESSAGE_NEUTRAL, NEUTRAL, UNREAD, Neutral, Part

MAX_CHOICES, MAX_PROMPTS, MAX_STOPS = 8, 16, 16
MAX_COMPLETION_LOGPROBS, MAX_LOGPROBS = 5, 20
"""Alternatives of a position, as many as OpenAI's two endpoints tell."""
MAX_TEXT = 200_000
MAX_SEED = 2**32 - 1

FILL_IN_THE_MIDDLE = re.compile(
    r"<\|fim_prefix\|>(?P<prefix>.*)<\|fim_suffix\|>(?P<suffix>.*)<\|fim_middle\|>", re.DOTALL
)
"""A gap as Qwen's causal models are asked to fill it."""


class StreamOptions(Part):
    neutral: ClassVar[Neutral] = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}
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

    @property
    def grammar_name(self) -> str | None:
        """The grammar that an answer must meet, as the command line names it."""
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
            max_new_tokens=length,
            num_steps=self.steps,
            early_stop=ends,
            grammar=self.grammar_name,
            decoding=decoding,
            **given,
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


class JsonSchema(Part):
    """A schema with its name; whether it says `strict` or not, every answer is held to it."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = Field(None, max_length=MAX_TEXT)
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool = True


class ResponseFormat(Part):
    """What an answer must be, in OpenAI's words."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def has_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be given with type 'json_schema', and with no other")
        try:
            json.dumps(self.json_schema and self.json_schema.definition)
        except RecursionError as problem:
            raise ValueError("json_schema is nested too deeply") from problem
        return self

    @property
    def grammar_name(self) -> str | None:
        """As the command line names it; None for any text."""
        if self.json_schema is not None:
            return f"json_schema:{json.dumps(self.json_schema.definition)}"
        return None if self.type == "text" else self.type


class OpenAI(DecodingBody):
    """Options of OpenAI's two endpoints.

    `response_format` and `grammar` hold every answer to a grammar: any JSON object, a JSON schema; the latter, in the
    words of the command line, also `python`, `json_object`, `regex:EXPRESSION` and `json_schema:SCHEMA`.
    """

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = Field(None, min_length=1, max_length=MAX_TEXT)

    @property
    def grammar_field(self) -> str:
        """The field that asks for a grammar, if any does."""
        return "response_format" if self.grammar is None else "grammar"

    @property
    def grammar_name(self) -> str | None:
        return self.grammar or (self.response_format and self.response_format.grammar_name)

    @model_validator(mode="after")
    def go_with_grammar(self) -> "OpenAI":
        field = self.grammar_field
        if self.grammar_name is None:
            return self
        if self.grammar is not None and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("grammar: give either grammar or response_format")
        if self.ignore_eos:
            raise ValueError(f"ignore_eos=True: must be false with {field}, of which an answer has an end")
        if self.growth == "on":
            raise ValueError(f"growth='on': must be 'off', or not given, with {field}")
        if self.length == 0:
            raise ValueError(f"max_tokens=0: must be at least 1 with {field}")
        return self


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

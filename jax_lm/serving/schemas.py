"""Schemas of request bodies: the OpenAI fields that we support, and fields for diffusion.

A field that we do not support is accepted with a value that turns it off
(`jax_lm.serving.ignored_fields`); any other value is refused by name, never ignored. Knows neither
HTTP nor the engine.
"""

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from jax_lm.config import Fields
from jax_lm.options import BLOCK_LENGTH, DEFAULTS, Decoding, GenerationOptions
from jax_lm.serving.gaps import split_gap
from jax_lm.serving.ignored_fields import NEUTRAL, UNREAD, Part, ignored
from jax_lm.serving.jobs import Commits
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds

# Limits of one request: answers per prompt, prompts, and stop texts. The total number of answers is
# limited by the length of the queue.
MAX_CHOICES = 128
MAX_PROMPTS = 2048
MAX_STOPS = 256
# Length of the hole if a request does not set one.
DEFAULT_TOKENS = 128
# Maximum alternatives per position, as in OpenAI's two endpoints.
MAX_COMPLETION_LOGPROBS = 5
MAX_LOGPROBS = 20
# Characters of a text, or ids in a list of token ids.
MAX_TEXT = 200_000
MIN_SEED = -(2**63)
MAX_SEED = 2**64 - 1
# The seed, and the values of `top_k`, that clients send for "no preference".
ANY_SEED = -1
ALL_TOKENS = (-1, 0)
# Fields that set the length of an answer, in order of precedence.
LENGTH_FIELDS = ("max_completion_tokens", "max_output_tokens", "n_predict", "max_tokens")
# Fields of a request that a server may have defaults for.
SERVER_DEFAULTS = ("preset", "temperature", "top_p", "top_k", "min_p", "alg")


class StreamOptions(Part):
    neutral = NEUTRAL["stream_options"]
    include_usage: bool = False


Text = Annotated[str, Field(max_length=MAX_TEXT)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]
GivenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TEXT)]


def as_list(items: str, kind: Any, item: Callable[[str], Any]) -> BeforeValidator:
    """Return the validator of a list of `items` that may also be a text; null is an empty text.

    Args:
        kind: type of the field for the JSON schema.
        item: makes the only item of the list from the text.
    """

    def convert(value):
        if isinstance(value, list):
            return value
        if not isinstance(value, str | None):
            raise ValueError(f"must be a text or a list of {items}")
        return [item(value or "")]

    return BeforeValidator(convert, json_schema_input_type=kind)


def kind_of(value) -> str | None:
    """Return the tag of the alternative of `Prompts` that a value is meant for, for its errors."""
    if not isinstance(value, list):
        return "#text" if isinstance(value, str) else None
    # [] counts as a list of texts
    kinds = {str: "#texts", int: "#ids", list: "#lists"}
    return kinds.get(type(value[0]) if value else str)


Stops = Annotated[
    list[StopText], Field(max_length=MAX_STOPS), as_list("texts", StopText | list[StopText], str)
]
Prompts = Annotated[
    Annotated[Text, Tag("#text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS), Tag("#texts")]
    | Annotated[GivenIds, Tag("#ids")]
    | Annotated[list[GivenIds], Field(max_length=MAX_PROMPTS), Tag("#lists")],
    Discriminator(
        kind_of,
        custom_error_type="kind",
        custom_error_message="must be a text, token ids, or a list of either",
    ),
]


class Gap(NamedTuple):
    """The tokens around a hole.

    Attributes:
        before: ids before the hole.
        after: ids after the hole; None if no text follows.
        echo: text before the hole that the answer repeats.
        is_cut: whether text that does not fit was left out.
        scored: the tokens before the hole with their log-probabilities, if requested.
    """

    before: TokenIds
    after: TokenIds | None = None
    echo: str = ""
    is_cut: bool = False
    scored: Commits = ()

    @property
    def tokens(self) -> int:
        """Number of tokens around the hole."""
        return len(self.before) + len(self.after or ())


Gaps = list[Gap]


def known_ids(field: str, ids: TokenIds, tokenizer: DiffuCoderTokenizer) -> TokenIds:
    """Return the ids. Raises ValueError if the tokenizer does not know one of them."""
    size = tokenizer.vocab_size
    if unknown := [token for token in ids if token >= size]:
        raise ValueError(f"{field}: token {unknown[0]} must lie in [0, {size - 1}]")
    return ids


def prompt_list(prompt) -> list[str] | list[TokenIds]:
    """Return one prompt as a list, and a list of prompts as it is."""
    # "a" -> ["a"], [1, 2] -> [[1, 2]]; lists of texts and of id lists stay
    return prompt if kind_of(prompt) in ("#texts", "#lists") else [prompt]


def prompt_gap(
    prompt: str | TokenIds, tokenizer: DiffuCoderTokenizer, suffix: str | None = None
) -> Gap:
    """Encode a prompt. Ids are used as they are, if the tokenizer knows all of them."""
    if isinstance(prompt, str):
        before, after = split_prompt(prompt, suffix)
        ids = tokenizer.encode_plain(before)
        echo = prompt
    else:
        ids = known_ids("prompt", prompt, tokenizer)
        echo = tokenizer.decode(ids)
        after = suffix
    return Gap(ids, None if after is None else tokenizer.encode_plain(after), echo)


def split_prompt(prompt: str, suffix: str | None) -> tuple[str, str | None]:
    """Return the texts before and after the gap; None for the second of a completion.

    Raises:
        ValueError: the prompt has markers that cannot be read.
    """
    # without a suffix, editors mark the gap in the prompt
    return (split_gap(prompt) if suffix is None else None) or (prompt, suffix)


class DecodingBody(Part):
    """Fields that all requests share: OpenAI options that we support, and options of diffusion.

    - `threshold` commits all tokens of at least this probability at once, `entropy_bound` as many
      as the bound admits; both in blocks of 32 unless `block_length` is set (0 is the canvas).
    - `steps` is the number of denoising steps, by default one per token.
    - `growth` (auto, on or off) lets the hole before a suffix find its own length, at most
      `max_tokens`, with checkpoints that were trained for it (DreamOn).
    - `ignore_eos` fills the whole canvas.
    - `n_predict` is llama.cpp's name of `max_tokens`; -1 asks for the default.
    - `top_k` -1 and 0, which ask for all tokens, are replaced by the maximum, and reported.
    - `seed` has up to 64 bits; -1 draws one.
    """

    neutral = NEUTRAL["request"]
    unread = (*UNREAD, "reasoning_effort")
    reported = ("repetition_penalty", "repeat_penalty", "samplers")
    model: str | None = Field(None, max_length=200)
    max_tokens: int | None = Field(None, ge=0)
    n_predict: int | None = Field(None, ge=-1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=DEFAULTS.top_k)
    min_p: float | None = Field(None, ge=0, le=1)
    stop: Stops = Field([])
    ignore_eos: bool = False
    seed: int | None = Field(None, ge=MIN_SEED, le=MAX_SEED)
    steps: int | None = Field(None, ge=1)
    alg: (
        Literal[
            "origin", "maskgit_plus", "topk_margin", "entropy", "random", "left_to_right", "untied"
        ]
        | None
    ) = None
    preset: Literal["exact", "fast", "turbo"] | None = None
    block_length: int | None = Field(None, ge=0)
    threshold: float | None = Field(None, gt=0, le=1)
    entropy_bound: float | None = Field(None, ge=0)
    growth: Literal["auto", "on", "off"] | None = None

    is_message: ClassVar[bool] = False
    """Whether the answer stands alone, as in a conversation."""

    def gaps(self, tokenizer: DiffuCoderTokenizer, context: int) -> Gaps:
        """Encode the texts around each hole; without texts, there is none.

        Args:
            context: tokens that prompt and answer may take together.

        Raises:
            ValueError: a text cannot be encoded; the message names the field.
        """
        return []

    @property
    def choices(self) -> int:
        """Number of answers to each prompt."""
        return 1

    @property
    def length(self) -> int | None:
        """Tokens of the hole; None for the default."""
        return getattr(self, self.length_field)

    @property
    def length_field(self) -> str:
        """The field that sets the length; `n_predict` -1 asks for the default."""
        for name in LENGTH_FIELDS:
            if getattr(self, name, None) not in (None, -1):
                return name
        return "max_tokens"

    @property
    def seconds(self) -> float:
        """Time that the answer may take."""
        return math.inf

    @property
    def needs_tokens(self) -> bool:
        """Whether the hole must have at least one token."""
        return True

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of most likely tokens to report per position; None reports none."""
        return None

    @property
    def scores_prompt(self) -> bool:
        """Whether the tokens of the prompt get log-probabilities."""
        return False

    @property
    def is_slow(self) -> bool:
        """Whether it takes seconds to prepare the request."""
        return self.scores_prompt or self.grammar_name is not None

    @property
    def grammar_name(self) -> str | None:
        """The grammar that answers must meet, named as on the command line."""
        return None

    @property
    def grammar_field(self) -> str | None:
        """The field that names the grammar."""
        return None

    def preset_of(self, default: str) -> str:
        """Return the given preset, else the default, or another that the other fields allow."""
        if self.preset:
            return self.preset
        # `steps` needs a schedule, which `turbo` does not have
        if self.steps and Decoding(preset=default).settings.commit != "steps":
            return "fast" if self.block_length in (None, BLOCK_LENGTH) else "exact"
        # a repair decodes its block again; without blocks, that would be all of the text
        if self.grammar_name and default == "exact" and self.block_length is None:
            return "fast"
        return default

    def options(self, length: int, defaults: Fields) -> GenerationOptions:
        """Return the options of an answer of this many tokens.

        Args:
            defaults: the server's defaults of `SERVER_DEFAULTS`.
        """
        # threshold and entropy_bound override the commit rule of the preset
        commit = "threshold" if self.threshold else None
        if self.entropy_bound is not None:
            commit = "entropy"
        decoding = Decoding(
            preset=self.preset_of(defaults.get("preset", "exact")),
            commit=commit,
            threshold=self.threshold,
            entropy_bound=self.entropy_bound,
            block_length=self.block_length,
        )
        # fields with the same name and meaning in our options; None leaves the default
        names = {*SERVER_DEFAULTS, "growth"} - {"preset"}
        given = {name: defaults[name] for name in names & defaults.keys()}
        given |= self.model_dump(include=names, exclude_none=True)
        if given.get("top_k") in ALL_TOKENS:
            given["top_k"] = DEFAULTS.top_k
        return GenerationOptions(
            max_new_tokens=length,
            num_steps=self.steps,
            early_stop=not self.ignore_eos and not (self.scores_prompt and length == 1),
            grammar=self.grammar_name,
            decoding=decoding,
            **given,
        )

    @model_validator(mode="after")
    def check_limits(self) -> "DecodingBody":
        if self.length == 0 and self.needs_tokens:
            raise ValueError(
                f"{self.length_field}=0: must be at least 1, or 0 with the echo of a completion"
            )
        if self.threshold and self.entropy_bound is not None:
            raise ValueError("entropy_bound: give either threshold or entropy_bound")
        if self.top_k in ALL_TOKENS:
            ignored().names.append("top_k")
        return self


class JsonSchema(Part):
    """A schema with its name; answers meet it whether or not it says `strict`."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = Field(None, max_length=MAX_TEXT)
    definition: Fields = Field(alias="schema")
    strict: bool = True


class ResponseFormat(Part):
    """The format of an answer, in OpenAI's terms."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema must be given with type 'json_schema', and with no other")
        # a schema that cannot be written as JSON cannot become a grammar
        try:
            json.dumps(self.json_schema and self.json_schema.definition)
        except RecursionError as problem:
            raise ValueError("json_schema is nested too deeply") from problem
        return self

    @property
    def grammar_name(self) -> str | None:
        """The grammar, named as on the command line; None for any text."""
        if self.json_schema:
            return f"json_schema:{json.dumps(self.json_schema.definition)}"
        return None if self.type == "text" else self.type


class OpenAIBody(DecodingBody):
    """Options of OpenAI's two endpoints.

    `response_format` constrains answers to a JSON object or a JSON schema, `grammar` to any
    grammar of the command line: `python`, `json_object`, `regex:EXPRESSION`, `json_schema:SCHEMA`.
    """

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = Field(None, min_length=1, max_length=MAX_TEXT)

    format_field: ClassVar[str] = "response_format"
    """The name of `response_format` in requests."""

    @property
    def choices(self) -> int:
        return self.n

    @property
    def grammar_field(self) -> str | None:
        """The field that names the grammar, if there is one."""
        return self.format_field if self.grammar is None else "grammar"

    @property
    def grammar_name(self) -> str | None:
        return self.grammar or (self.response_format and self.response_format.grammar_name)

    @model_validator(mode="after")
    def check_grammar(self) -> "OpenAIBody":
        field = self.grammar_field
        if self.grammar_name is None:
            return self
        if self.grammar and self.response_format and self.response_format.type != "text":
            raise ValueError("grammar: give either grammar or response_format")
        if self.ignore_eos:
            raise ValueError(
                f"ignore_eos=True: must be false with {field}, whose answers have an end"
            )
        if self.growth == "on":
            raise ValueError(f"growth='on': must be 'off', or not given, with {field}")
        if self.length == 0:
            raise ValueError(f"{self.length_field}=0: must be at least 1 with {field}")
        return self


class CompletionBody(OpenAIBody):
    """POST /v1/completions; infilling if there is a `suffix`, or a prompt that marks a gap."""

    prompt: Prompts
    suffix: Text | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    best_of: int | None = Field(None, ge=1)

    def gaps(self, tokenizer, context) -> Gaps:
        gaps = [prompt_gap(prompt, tokenizer, self.suffix) for prompt in prompt_list(self.prompt)]
        if self.scores_prompt and any(gap.after is not None for gap in gaps):
            raise ValueError("logprobs: those of a prompt, by echo, cannot be combined with a gap")
        return gaps if self.echo else [gap._replace(echo="") for gap in gaps]

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def scores_prompt(self) -> bool:
        return self.echo and self.logprobs is not None

    @property
    def needs_tokens(self) -> bool:
        return not self.echo

    @model_validator(mode="after")
    def check_options(self) -> "CompletionBody":
        if self.best_of not in (None, self.n):
            raise ValueError("best_of: must equal n: answers are not ranked")
        return self


class FimBody(CompletionBody):
    """POST /v1/fim/completions, Mistral's endpoint for gaps: the answer is a message."""

    random_seed: int | None = Field(None, ge=MIN_SEED, le=MAX_SEED)
    echo: Literal[False] = False  # type: ignore[override] - a message does not repeat its prompt

    @model_validator(mode="after")
    def with_suffix(self) -> "FimBody":
        """Read Mistral's name of the seed, and add an empty suffix if there is none."""
        (prompt, *others) = prompt_list(self.prompt)
        if others or not isinstance(prompt, str):
            raise ValueError("prompt: must be one text")
        self.seed = self.random_seed if self.seed is None else self.seed
        if split_prompt(prompt, self.suffix)[1] is None:
            self.suffix = ""
        return self


def error_line(problem: Mapping[str, Any]) -> tuple[str, str | None]:
    """Describe an error of pydantic in one line: the field, its value, what is allowed.

    Returns:
        The line, and the field alone if there is one.
    """
    # ("body", "messages", 0, "content", "#text") -> "messages.0.content"
    parts = [str(part) for part in problem["loc"]]
    parts = [part for part in parts if part != "body" and not part.startswith("#")]
    field = ".".join(parts).encode("ascii", "backslashreplace").decode()
    kind = problem["type"]
    value = problem.get("input")
    templates = {
        "missing": "must be given",
        "extra_forbidden": "not supported by this server",
        "too_long": "at most {max_length}, not {actual_length}",
        "too_short": "must not be empty",
        "string_too_long": "at most {max_length} characters",
        "string_too_short": "must not be empty",
        "model_attributes_type": "must be an object",
        "dict_type": "must be an object",
    }
    if kind in templates:
        message = templates[kind].format(**problem.get("ctx", {}))
    else:
        # otherwise pydantic's message, adapted
        message = problem["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be", "must be")
    if not field:
        return (f"the body {message}", None) if kind in templates else (message, field_of(message))
    if isinstance(value, str | int | float) and kind != "extra_forbidden":
        return f"{field}={reprlib.repr(value)}: {message}", field
    return f"{field}: {message}", field


def field_of(message: str) -> str | None:
    """Return the field with which an error message begins, as in "top_k=0: must be positive"."""
    # "top_k=0: must be positive" -> "top_k"; "the prompt is too long" -> None
    field = re.split("[=:]", message)[0]
    return field if field.isidentifier() else None

"""Schemas of conversations: chat, OpenAI's responses, denoising, tokenization.

Knows neither HTTP nor the engine.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from jax_lm.serving.ignored_fields import NEUTRAL, Part
from jax_lm.serving.schemas import (
    MAX_LOGPROBS,
    DecodingBody,
    Gap,
    Gaps,
    GivenIds,
    OpenAIBody,
    ResponseFormat,
    Text,
    as_list,
)
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError


class TextPart(Part):
    neutral = NEUTRAL["text part"]
    unread = ("cache_control",)
    type: Literal["text", "input_text", "output_text"]
    text: Text


class ChatMessage(Part):
    """A message of a conversation; `name` is not used, as chat templates have no names."""

    neutral = NEUTRAL["message"]
    unread = ("cache_control", "id", "status")
    nullable = ("content",)
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[TextPart],
        Field(min_length=1, max_length=64),
        as_list("parts", Text | list[TextPart] | None, lambda text: {"type": "text", "text": text}),
    ]
    name: str | None = Field(None, max_length=200)


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]


def chat_gaps(messages: list[ChatMessage], tokenizer: DiffuCoderTokenizer) -> Gaps:
    """Encode a conversation for its next message. Raises ValueError if there is no chat template."""
    template_messages = [
        {
            # chat templates have no role "developer"
            "role": "system" if each.role == "developer" else each.role,
            "content": "".join(part.text for part in each.content),
        }
        for each in messages
    ]
    try:
        return [Gap(tokenizer.encode_chat(template_messages))]
    except TokenizerError as error:
        raise ValueError(f"messages: {error}") from error


class ChatBody(OpenAIBody):
    """POST /v1/chat/completions."""

    is_message = True
    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    def gaps(self, tokenizer, context) -> Gaps:
        return chat_gaps(self.messages, tokenizer)

    @property
    def wanted_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def check_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs}: needs logprobs=true")
        return self


class ResponsesBody(OpenAIBody):
    """POST /v1/responses: text in, text out; nothing is stored.

    `input` is a text or a conversation; `text.format` corresponds to `response_format` of the other
    endpoints.
    """

    is_message = True
    neutral = NEUTRAL["request"] | NEUTRAL["responses"]
    unread = (*OpenAIBody.unread, "reasoning")
    input: Annotated[
        Messages,
        as_list("messages", Text | Messages, lambda text: {"role": "user", "content": text}),
    ]
    instructions: Text | None = None
    response_format: ResponseFormat | None = Field(None, alias="text.format")
    format_field = "text.format"
    max_output_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def with_format(cls, body) -> Any:
        """Move `format` from `text` to a field of its own."""
        text = body.get("text") if isinstance(body, dict) else None
        if not isinstance(text, dict) or not isinstance(text.get("format"), dict):
            return body
        # {"type": "json_schema", "name": …} -> {"type": "json_schema", "json_schema": {"name": …}}
        schema = dict(text["format"])
        response_format = {
            "type": schema.pop("type", None),
            **({"json_schema": schema} if schema else {}),
        }
        others = {name: value for name, value in text.items() if name != "format" and value}
        return body | {"text.format": response_format, "text": others}

    def gaps(self, tokenizer, context) -> Gaps:
        messages = [*self.input]
        if self.instructions:
            system = {"role": "system", "content": self.instructions}
            messages.insert(0, ChatMessage.model_validate(system))
        return chat_gaps(messages, tokenizer)


class SourceBody(Part):
    """A conversation, or a prompt."""

    prompt: Text | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def check_source(self) -> "SourceBody":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: give either a prompt or messages")
        return self

    def gaps(self, tokenizer: DiffuCoderTokenizer, context: int) -> Gaps:
        if self.messages is not None:
            return chat_gaps(self.messages, tokenizer)
        return [Gap(tokenizer.encode_plain(self.prompt or ""))]


class DenoiseBody(SourceBody, DecodingBody):
    """POST /v1/denoise: one answer, step by step, to a conversation or a prompt (and suffix)."""

    suffix: Text | None = None

    def gaps(self, tokenizer, context) -> Gaps:
        (gap,) = super().gaps(tokenizer, context)
        if self.suffix is None:
            return [gap]
        return [gap._replace(after=tokenizer.encode_plain(self.suffix))]

    @model_validator(mode="after")
    def check_suffix(self) -> "DenoiseBody":
        if self.messages is not None and self.suffix is not None:
            raise ValueError("suffix: must be given with a prompt, not with messages")
        return self


class TokenizeBody(SourceBody):
    """POST /tokenize, as vLLM has it; `content`, llama.cpp's name, is another name of `prompt`."""

    neutral = NEUTRAL["tokenize"]
    other_names = ("content",)
    model: str | None = Field(None, max_length=200)
    prompt: Text | None = Field(None, validation_alias=AliasChoices("prompt", "content"))
    return_token_strs: bool = False


class DetokenizeBody(Part):
    """POST /detokenize, as vLLM and llama.cpp have it."""

    model: str | None = Field(None, max_length=200)
    tokens: GivenIds

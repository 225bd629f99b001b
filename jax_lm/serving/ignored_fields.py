"""Fields that are accepted only with values that change nothing.

Clients send default values of many fields that we do not support. A `Part` of a request accepts
these values and refuses all others by name. Some fields are ignored with any value, and with
`--lenient` all unsupported ones; a header of the answer lists them. Knows no supported field.
"""

import json
import reprlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from jax_lm.config import Fields, Texts

Neutral = dict[str, list[Any]]


@dataclass
class Ignored:
    """The fields of a request that were ignored although they would change the answer.

    Attributes:
        is_lenient: ignore all fields that are not supported.
    """

    is_lenient: bool = False
    names: list[str] = field(default_factory=list)


# Ignored fields of the current request; set by the middleware.
IGNORED: ContextVar[Ignored] = ContextVar("ignored")


def ignored() -> Ignored:
    """Return the record of ignored fields of the current request."""
    return IGNORED.get(None) or Ignored()


# Fields that are ignored silently: for the accounting of a proxy, and for the slots of llama.cpp.
UNREAD = """
    user metadata safety_identifier prompt_cache_key request_id rid id_slot
""".split()  # noqa: SIM905 (a table, not a list)

# Fields of OpenAI, vLLM, SGLang and llama.cpp with the values that change nothing, by the part of a
# request. Those of a message appear in answers, which clients send back.
NEUTRAL: dict[str, Neutral] = json.loads(
    Path(__file__).with_name("neutral_fields.json").read_text(encoding="utf-8")
)


def is_same(value, other) -> bool:
    """Whether two JSON values are equal; in Python alone, True == 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


class Part(BaseModel):
    """A part of a request.

    Values are not converted, unknown fields are refused, and null means that a field is not given.
    """

    neutral: ClassVar[Neutral] = {}
    unread: ClassVar[Texts] = ()
    reported: ClassVar[Texts] = ()
    """Fields of `neutral` that are ignored with any value."""
    nullable: ClassVar[Texts] = ()
    """Fields in which null is a value."""
    other_names: ClassVar[Texts] = ()
    """Further names of fields."""

    @staticmethod
    def with_neutral(schema: Fields, kind: type["Part"]):
        """Add the fields that the validator below accepts to the JSON schema."""
        # pydantic's schema does not know that null means "not given"
        properties = schema["properties"]
        for name in properties.keys() - set(schema.get("required", ())):
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        for name, values in kind.neutral.items():
            properties.setdefault(name, {"enum": [*values, None]})
        properties |= {name: {} for name in kind.unread}

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=with_neutral)

    @model_validator(mode="before")
    @classmethod
    def without_neutral(cls, given) -> Any:
        """Remove fields that change nothing.

        Raises:
            PydanticCustomError: an unsupported field has a value that would change something.
        """
        if not isinstance(given, dict):
            return given
        supported = {each.alias or name for name, each in cls.model_fields.items()}
        supported.update(cls.other_names)
        fields = {}
        record = ignored()
        for name, value in given.items():
            if (value is None and name not in cls.nullable) or name in cls.unread:
                continue
            # keep our own fields; unknown fields are kept too, and refused by pydantic
            if name in supported or (name not in cls.neutral and not record.is_lenient):
                fields[name] = value
            # an unsupported field with a value that would change something
            elif not any(is_same(value, other) for other in cls.neutral.get(name, ())):
                if record.is_lenient or name in cls.reported:
                    record.names.append(name)
                    continue
                allowed = " or ".join(map(repr, cls.neutral[name]))
                message = (
                    f"{name}={reprlib.repr(value)}: not supported by this server; "
                    f"only {allowed} is accepted"
                )
                raise PydanticCustomError("unsupported", "{message}", {"message": message})
        return fields

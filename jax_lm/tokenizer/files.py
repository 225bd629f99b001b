"""The files of a checkpoint's tokenizer: which tokens have a function, and the chat template."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from jax_lm.config import FAMILIES, Fields, Names, Texts

MASK = "<|mask|>"
END_OF_TEXT = "<|endoftext|>"

ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# All files that a tokenizer of this family may have.
TOKENIZER_FILES = (
    "vocab.json", "merges.txt", "tokenizer.json",
    ADDED_TOKENS, TOKENIZER_CONFIG, SPECIAL_TOKENS, "chat_template.jinja",
)  # fmt: skip


class TokenizerError(ValueError):
    """Raised when a tokenizer cannot be read, or belongs to another model."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The texts of the tokens with a function, as the files of a checkpoint name them.

    Attributes:
        mask: the mask token; None for an autoregressive model.
        end: ends a document.
        pad: pads rows, and unused canvas, if the tokenizer has no `<|dlm_pad|>`.
        begin: begins a text, for chat templates.
        stops: tokens that end an answer, in addition to `STOP_TOKENS`.
    """

    mask: str | None = MASK
    end: str = END_OF_TEXT
    pad: str | None = None
    begin: str | None = None
    stops: Texts = ()


def read_special_tokens(folder: Path, backend: Tokenizer) -> SpecialTokens:
    """Read which tokens have a function from the files of a checkpoint.

    The text that the settings of the tokenizer name comes first, then the id in config.json or
    generation_config.json, then the text that the family of the model implies.
    """
    names = read_token_names(folder)
    settings = [read_optional(folder / name) for name in ("config.json", "generation_config.json")]
    kind = settings[0].get("model_type")
    # Without config.json, the files are those of a tokenizer alone.
    implied = [row.mask_token for row in FAMILIES if kind in row.types] if kind else [MASK]

    def find_texts(name, *texts):
        ids = [fields.get(f"{name}_token_id") for fields in settings]
        numbers = [n for values in ids for n in (values if isinstance(values, list) else [values])]
        by_id = [backend.id_to_token(n) for n in numbers if isinstance(n, int) and n >= 0]
        candidates = (names.get(f"{name}_token"), *by_id, *texts)
        return (text for text in candidates if text and backend.token_to_id(text) is not None)

    ends = tuple(find_texts("eos"))
    has_end = backend.token_to_id(END_OF_TEXT) is not None
    return SpecialTokens(
        mask=next(find_texts("mask", *implied), None),
        end=END_OF_TEXT if has_end or not ends else ends[0],
        pad=next(find_texts("pad"), None),
        begin=next(find_texts("bos"), None),
        stops=ends,
    )


def read_token_names(folder: Path) -> Names:
    """Return the texts of the special tokens that the settings of a tokenizer name."""
    fields = read_optional(folder / SPECIAL_TOKENS) | read_optional(folder / TOKENIZER_CONFIG)
    # "mask_token": "<M>", or an object with the text under "content"
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in fields.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def read_optional(path: Path) -> Fields:
    """Read a JSON object; returns an empty one if there is no such file.

    Raises:
        TokenizerError: the file does not hold a JSON object.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError, OSError) as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not {type(fields).__name__}")
    return fields


def write_json(path: Path, fields: Fields):
    """Write a JSON object with the indentation of published checkpoints."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_chat_template(folder: Path) -> str | None:
    """Read the template from chat_template.jinja or tokenizer_config.json, if there is one."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = read_optional(folder / TOKENIZER_CONFIG).get("chat_template")
    return template if isinstance(template, str) else None

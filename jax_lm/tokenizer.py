"""Tokenizer of DiffuCoder: Qwen2.5 byte-level BPE with Dream's added tokens, and its chat template.

It is built from vocab.json, merges.txt and added_tokens.json, the files that DiffuCoder publishes,
or from tokenizer.json. Knows text and token ids, but not the model.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jaxtyping import Int
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jax_lm.config import FAMILIES

MASK, END_OF_TEXT, DIFFUSION_PAD = "<|mask|>", "<|endoftext|>", "<|dlm_pad|>"
EXPAND, BEGIN_OF_TEXT = "<|expand|>", "<|beginoftext|>"
START_OF_TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
# The end of a turn of Llama 3 and LLaDA.
END_OF_HEADER_TURN = "<|eot_id|>"
# Each of these ends an answer: the end of a document, of a turn, or the padding of instruct models.
STOP_TOKENS = (END_OF_TEXT, END_OF_TURN, DIFFUSION_PAD, END_OF_HEADER_TURN)
# The pattern with which Qwen2.5 splits text into words before BPE.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Message = Mapping[str, Any]

ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# All files that a tokenizer of this family may have.
TOKENIZER_FILES = (
    "vocab.json", "merges.txt", "tokenizer.json",
    ADDED_TOKENS, TOKENIZER_CONFIG, SPECIAL_TOKENS, "chat_template.jinja",
)  # fmt: skip

# Qwen2.5's fields of tokenizer_config.json; without them, transformers would decode differently.
PLAIN_SETTINGS = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "errors": "replace",
    "split_special_tokens": False,
    "unk_token": None,
}


class TokenizerError(ValueError):
    """Raised when a tokenizer cannot be read, or belongs to another model."""


def require_unicode(text: str) -> str:
    """Return `text` unchanged. Raises TokenizerError if it holds a surrogate.

    A string in JSON that was cut inside an emoji ends in half of a surrogate pair, and Python reads
    a byte that is not UTF-8 in an argument or on standard input as a surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"not Unicode text: character {error.start + 1} is {text[error.start]!r}, half of a "
            "surrogate pair or a byte that is not UTF-8"
        ) from None
    return text


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The texts of the tokens with a function, as the files of a checkpoint name them.

    Attributes:
        mask: the mask token; None of an autoregressive model.
        end: ends a document.
        pad: pads rows, and unused canvas, if the tokenizer has no `<|dlm_pad|>`.
        begin: begins a text, for chat templates.
        stops: tokens that end an answer, in addition to `STOP_TOKENS`.
    """

    mask: str | None = MASK
    end: str = END_OF_TEXT
    pad: str | None = None
    begin: str | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiffuCoderTokenizer:
    """Converts between text and token ids, with the special tokens of masked diffusion.

    Attributes:
        backend: the underlying object of the library `tokenizers`.
        chat_template: Jinja source of the chat template; None for a model without chat.
        special: the texts of the tokens with a function.
    """

    backend: Tokenizer
    chat_template: str | None = None
    special: SpecialTokens = SpecialTokens()

    def __post_init__(self) -> None:
        for kind, token in (("mask", self.special.mask), ("end-of-text", self.special.end)):
            if token is not None and self.backend.token_to_id(token) is None:
                raise TokenizerError(f"tokenizer has no {token} token, its {kind} token")

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, adds_mask: bool = False
    ) -> "DiffuCoderTokenizer":
        """Read the tokenizer files of a folder.

        Args:
            folder: folder of the tokenizer.
            adds_mask: add the mask and pad tokens that the tokenizer of an autoregressive model
                lacks.

        Raises:
            TokenizerError: the files are absent or damaged, or name tokens that are not there.
        """
        folder = Path(folder).expanduser()
        try:
            has_words = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
            # Qwen2.5 publishes a vocab.json without added_tokens.json, but a complete
            # tokenizer.json, which is then preferred.
            if has_words and (
                (folder / ADDED_TOKENS).is_file() or not (folder / "tokenizer.json").is_file()
            ):
                backend = byte_level_bpe(
                    models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
                )
                add_in_order(backend, folder)
            elif (folder / "tokenizer.json").is_file():
                backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
            else:
                message = "no vocab.json with merges.txt, and no tokenizer.json"
                raise TokenizerError(f"tokenizer {str(folder)!r}: {message}")
            special = read_special_tokens(folder, backend)
            if adds_mask:
                special = replace(special, mask=special.mask or MASK)
                missing = [
                    token
                    for token in (special.mask, DIFFUSION_PAD)
                    if token is not None and backend.token_to_id(token) is None
                ]
                backend.add_tokens(
                    [AddedToken(token, special=True, normalized=False) for token in missing]
                )
            return cls(backend, read_chat_template(folder), special)
        except TokenizerError:
            raise
        except Exception as error:  # the Rust library raises bare Exception
            raise TokenizerError(f"tokenizer {str(folder)!r} cannot be read: {error}") from error

    def require_ids(self, *, mask_token_id: int | None, vocab_size: int) -> None:
        """Raise TokenizerError unless this tokenizer belongs to a model with this configuration."""
        if mask_token_id is None and self.special.mask is not None:
            raise TokenizerError(
                f"config.json names no mask_token_id, while the tokenizer has {self.special.mask} at "
                f"{self.mask_id}: a masked-diffusion model names it; convert an autoregressive one "
                "with diffucoder adapt"
            )
        if mask_token_id is None:
            raise TokenizerError(
                "neither config.json nor the tokenizer names a mask token: this is an autoregressive "
                "model; convert it with diffucoder adapt"
            )
        if self.special.mask is None or self.mask_id != mask_token_id:
            found = "has no mask token"
            if self.special.mask is not None:
                found = f"has {self.special.mask} at {self.mask_id}"
            raise TokenizerError(
                f"tokenizer {found}, the model's mask_token_id is {mask_token_id}: this tokenizer "
                "belongs to another model"
            )
        self.require_vocabulary(vocab_size)

    def require_vocabulary(self, vocab_size: int) -> None:
        """Raise TokenizerError if this tokenizer has more tokens than a model."""
        if self.vocab_size > vocab_size:
            raise TokenizerError(
                f"tokenizer has {self.vocab_size} tokens, the model only {vocab_size}"
            )

    @property
    def fingerprint(self) -> str:
        """A digest of everything that determines the ids of a text or a conversation."""
        content = f"{self.backend.to_str()}{self.chat_template}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def mask_id(self) -> int:
        """The id of the mask token. Raises TokenizerError if there is none."""
        if self.special.mask is None:
            raise TokenizerError("tokenizer has no mask token: its model is autoregressive")
        return self.token_id(self.special.mask)

    @property
    def end_id(self) -> int:
        """The id that ends a document."""
        return self.token_id(self.special.end)

    @property
    def turn_end(self) -> str:
        """The text of the token that ends a turn of a conversation, or else a document."""
        for token in (END_OF_TURN, END_OF_HEADER_TURN):
            if self.backend.token_to_id(token) is not None:
                return token
        return self.special.end

    @property
    def pad_id(self) -> int:
        """The id for left padding and for unused canvas: `<|dlm_pad|>`, or what the files name.

        Instruct models are trained with `<|dlm_pad|>`; other models have no such token.
        """
        pads = (DIFFUSION_PAD, self.special.pad or self.special.end)
        ids = (self.backend.token_to_id(token) for token in pads)
        return next((token_id for token_id in ids if token_id is not None), self.end_id)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an answer, of the tokens that this tokenizer has."""
        # A dict keeps the order, and each token once.
        stops = dict.fromkeys((*STOP_TOKENS, self.special.end, *self.special.stops))
        ids = (self.backend.token_to_id(token) for token in stops)
        return tuple(token_id for token_id in ids if token_id is not None)

    @property
    def expand_id(self) -> int | None:
        """The id of the token that turns a mask into two; None if the checkpoint has none."""
        return self.backend.token_to_id(EXPAND)

    def with_expand(self) -> "DiffuCoderTokenizer":
        """Return a copy that has the expand token, added at the next free id if necessary."""
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.add_tokens([AddedToken(EXPAND, special=True, normalized=False)])
        return DiffuCoderTokenizer(backend, self.chat_template, self.special)

    @property
    def begin_ids(self) -> list[int]:
        """The id of the token that begins a text, as a list; empty if there is none."""
        token_id = self.backend.token_to_id(BEGIN_OF_TEXT)
        return [] if token_id is None else [token_id]

    def token_id(self, token: str) -> int:
        """Return the id of a token. Raises KeyError if it is not in the vocabulary."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise KeyError(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Encode a text. Special tokens in the text become their ids; none are added.

        Raises:
            TokenizerError: the text is not Unicode.
        """
        return self.backend.encode(require_unicode(text), add_special_tokens=False).ids

    @cached_property
    def plain_backend(self) -> Tokenizer:
        """A copy of `backend` that treats the text of a special token as ordinary text."""
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def special_text(self) -> re.Pattern[str]:
        """A pattern that matches the text of any special token."""
        added = self.backend.get_added_tokens_decoder().values()
        # Longest first: of two alternatives, the pattern takes the first that matches.
        texts = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)))

    def encode_plain(self, text: str) -> list[int]:
        """Encode untrusted text: special tokens in it are encoded as ordinary characters."""
        return self.plain_backend.encode(require_unicode(text), add_special_tokens=False).ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Encode an untrusted conversation: only the template itself produces special tokens.

        The text of a special token in a message is replaced by a random placeholder while the
        template is rendered, and then encoded as ordinary characters.
        """
        # "a<|im_end|>b" -> "a<nonce>.0.b" -> template -> "…a", "0", "b…" -> ids
        nonce = secrets.token_hex(16)
        escaped: list[str] = []

        def mark(match: re.Match[str]) -> str:
            escaped.append(match[0])
            return f"{nonce}.{len(escaped) - 1}."

        marked = [
            {**message, "content": self.special_text.sub(mark, message["content"])}
            for message in messages
        ]
        # As the pattern has a group, pieces at odd places are the numbers of placeholders.
        pieces = re.split(rf"{nonce}\.(\d+)\.", self.apply_chat_template(marked))
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            ids += self.encode_plain(escaped[int(piece)]) if index % 2 else self.encode(piece)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Decode ids to text; bytes that are not valid UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which need not be valid UTF-8 on their own."""
        # "Ġdef" -> b" def"
        if token_id in self.ids_of_added_tokens or not isinstance(
            self.backend.decoder, decoders.ByteLevel
        ):
            return self.decode([token_id]).encode()
        return bytes(
            BYTES_OF_LETTERS[letter] for letter in self.backend.id_to_token(token_id) or ""
        )

    @cached_property
    def ids_of_added_tokens(self) -> frozenset[int]:
        """Ids of added tokens, whose text is stored literally, not in the byte-level alphabet."""
        return frozenset(self.backend.get_added_tokens_decoder())

    def decode_until_stop(self, ids: Iterable[int]) -> str:
        """Decode ids up to the first stop token, without special tokens."""
        stops = self.stop_ids
        return self.decode(
            takewhile(lambda token_id: token_id not in stops, ids), skip_special_tokens=True
        )

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> str:
        """Render messages to a prompt, in Jinja's sandbox.

        Args:
            messages: dicts with `role` and `content`.
            add_generation_prompt: whether the prompt ends with the header of the next answer.

        Raises:
            TokenizerError: there is no template, or it does not accept the messages.
        """
        if self.chat_template is None:
            raise TokenizerError(
                "this tokenizer has no chat template: the model was not made for chat"
            )
        # The extension, filter and function that transformers offers to templates.
        extensions = ["jinja2.ext.loopcontrols"]
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        environment.globals["raise_exception"] = raise_template_error
        try:
            template = environment.from_string(self.chat_template)
            return template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self.special.begin or "",
                eos_token=self.special.end,
            )
        except Exception as error:  # a template is code of the checkpoint: it may raise anything
            raise TokenizerError(
                f"chat template does not accept these messages: {error}"
            ) from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json, chat_template.jinja and the settings that transformers reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        if (folder / ADDED_TOKENS).is_file():
            # With this file, `from_pretrained` reads vocab.json instead of tokenizer.json.
            added = sorted(self.backend.get_added_tokens_decoder().items())
            ids = {token.content: token_id for token_id, token in added}
            write_json(folder / ADDED_TOKENS, ids)
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        self.save_settings(folder, replace=True)

    def save_settings(self, folder: Path, *, replace: bool = False) -> None:
        """Write the end, pad and mask tokens to tokenizer_config.json and special_tokens_map.json.

        A file that lacks nothing is not written.

        Args:
            folder: folder of the tokenizer.
            replace: replace tokens that these files name already, instead of keeping them.
        """
        pad = self.backend.id_to_token(self.pad_id)
        special = {"eos_token": self.special.end, "pad_token": pad, "mask_token": self.special.mask}
        special = {name: token for name, token in special.items() if token is not None}
        attributes = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        added = {
            str(token_id): {name: getattr(token, name) for name in attributes}
            for token_id, token in sorted(self.backend.get_added_tokens_decoder().items())
        }
        # Without tokenizer.json, transformers needs the class that reads vocab.json.
        is_whole = (folder / "tokenizer.json").is_file()
        kind = {"tokenizer_class": "PreTrainedTokenizerFast" if is_whole else "Qwen2Tokenizer"}
        new = PLAIN_SETTINGS | kind | {"added_tokens_decoder": added} | special
        for name, complete in ((TOKENIZER_CONFIG, new), (SPECIAL_TOKENS, special)):
            stored = (
                json.loads((folder / name).read_text(encoding="utf-8"))
                if (folder / name).is_file()
                else None
            )
            # Keys to write into an existing file.
            keys = {key for key in special if stored is None or stored.get(key) is None}
            keys |= {*special, "added_tokens_decoder"} if replace else set()
            fields = (
                complete
                if stored is None
                else stored | {key: complete[key] for key in keys & complete.keys()}
            )
            if fields != stored:
                write_json(folder / name, fields)


def read_special_tokens(folder: Path, backend: Tokenizer) -> SpecialTokens:
    """Read which tokens have a function from the files of a checkpoint.

    The text that the settings of the tokenizer name comes first, then the id in config.json or
    generation_config.json, then the text that the family of the model implies.
    """
    named = read_token_names(folder)
    settings = [read_optional(folder / name) for name in ("config.json", "generation_config.json")]
    kind = settings[0].get("model_type")
    # Without config.json, the files are those of a tokenizer alone.
    implied = [row.mask_token for row in FAMILIES if kind in row.types] if kind else [MASK]

    def known(name: str, *texts: str | None) -> list[str]:
        ids = [fields.get(f"{name}_token_id") for fields in settings]
        numbers = [n for given in ids for n in (given if isinstance(given, list) else [given])]
        by_id = [backend.id_to_token(n) for n in numbers if isinstance(n, int) and n >= 0]
        found = (named.get(f"{name}_token"), *by_id, *texts)
        return [text for text in found if text and backend.token_to_id(text) is not None]

    has_end = backend.token_to_id(END_OF_TEXT) is not None
    masks, ends, pads, begins = (
        known("mask", *implied), known("eos"), known("pad"), known("bos"),
    )  # fmt: skip
    return SpecialTokens(
        mask=masks[0] if masks else None,
        end=END_OF_TEXT if has_end or not ends else ends[0],
        pad=pads[0] if pads else None,
        begin=begins[0] if begins else None,
        stops=tuple(ends),
    )


def read_token_names(folder: Path) -> dict[str, str]:
    """Return the texts of the special tokens that the settings of a tokenizer name."""
    fields = read_optional(folder / SPECIAL_TOKENS) | read_optional(folder / TOKENIZER_CONFIG)
    # "mask_token": "<M>", or an object with the text under "content"
    texts = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in fields.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def find_mask_id(folder: Path, model_type: str | None) -> int | None:
    """Return the id of the mask token that a tokenizer names, for a config.json that names none."""
    implied = any(row.mask_token for row in FAMILIES if model_type in row.types)
    if not implied and "mask_token" not in read_token_names(folder):
        return None
    try:
        tokenizer = DiffuCoderTokenizer.from_pretrained(folder)
    except TokenizerError:  # whoever needs the tokenizer reports it
        return None
    return None if tokenizer.special.mask is None else tokenizer.mask_id


def read_optional(path: Path) -> dict[str, Any]:
    """Read a JSON object; returns an empty one if there is no such file.

    Raises:
        TokenizerError: the file does not hold a JSON object.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise TokenizerError(f"{path} must hold a JSON object, not {type(fields).__name__}")
    return fields


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object with the indentation of published checkpoints."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def byte_letters() -> dict[str, int]:
    """Return the byte of each letter of the byte-level alphabet.

    This is the inverse of GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, and the
    others are numbered from U+0100 on, such as the space, which is "Ġ" (U+0120).
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


BYTES_OF_LETTERS = byte_letters()


def byte_level_bpe(model: models.BPE) -> Tokenizer:
    """Return Qwen2's pipeline for a BPE model: NFC, the word pattern and the byte-level alphabet.

    Added tokens are not part of it.
    """
    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def add_in_order(backend: Tokenizer, folder: Path) -> None:
    """Add the tokens of added_tokens.json in the order of their ids.

    Raises:
        TokenizerError: the file is absent, or its ids do not continue the vocabulary without a gap.
    """
    path = folder / ADDED_TOKENS
    if not path.is_file():
        raise TokenizerError(f"tokenizer {str(folder)!r} has no added_tokens.json")
    ids: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    base = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    expected = list(range(base, base + len(ids)))
    if sorted(ids.values()) != expected:
        raise TokenizerError(
            f"{path}: ids must run from {expected[0]} to {expected[-1]} without a gap"
        )
    # In Qwen2, tool-call tags such as <tool_call> are not special: they must survive decoding with
    # skip_special_tokens=True.
    for text in sorted(ids, key=ids.__getitem__):
        backend.add_tokens([AddedToken(text, special=text.startswith("<|"), normalized=False)])
        if backend.token_to_id(text) != ids[text]:
            raise TokenizerError(
                f"{path}: {text!r} cannot have id {ids[text]}: it is in the vocabulary already"
            )


def read_chat_template(folder: Path) -> str | None:
    """Read the template from chat_template.jinja or tokenizer_config.json, if there is one."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / TOKENIZER_CONFIG).is_file():
        template = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")).get(
            "chat_template"
        )
        return template if isinstance(template, str) else None
    return None


def raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def pad_left(
    rows: Sequence[Sequence[int]], pad_id: int, *, multiple_of: int = 1
) -> tuple[Int[np.ndarray, "b t"], Int[np.ndarray, "b t"]]:
    """Pad rows of ids on the left.

    Args:
        rows: ids of each row.
        pad_id: id that is filled in.
        multiple_of: the width of the result is a multiple of this number.

    Returns:
        The ids, and an attention mask that is 1 for the ids of `rows` and 0 for padding.
    """
    # [[5], [6, 7]] with pad 0 -> ids [[0, 5], [6, 7]] and mask [[0, 1], [1, 1]]
    width = max(map(len, rows), default=0)
    # width 5, multiple_of 4 -> 5 + 3 = 8
    width += -width % multiple_of
    ids = np.full((len(rows), width), pad_id, np.int32)
    mask = np.zeros((len(rows), width), np.int32)
    for row, values in enumerate(rows):
        start = width - len(values)
        ids[row, start:] = values
        mask[row, start:] = 1
    return ids, mask

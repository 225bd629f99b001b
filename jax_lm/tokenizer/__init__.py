"""Tokenizer of DiffuCoder: Qwen2.5 byte-level BPE with Dream's added tokens, and its chat template.

It is built from vocab.json, merges.txt and added_tokens.json, the files that DiffuCoder publishes,
or from tokenizer.json. Knows text and token ids, but not the model.
"""

import hashlib
import json
import os
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
from tokenizers import AddedToken, Tokenizer, decoders, models

from jax_lm.config import FAMILIES, DreamConfig, Ints
from jax_lm.tokenizer.byte_level import BYTES_OF_LETTERS, add_in_order, byte_level_bpe
from jax_lm.tokenizer.files import (
    ADDED_TOKENS,
    END_OF_TEXT,
    MASK,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    SpecialTokens,
    TokenizerError,
    read_chat_template,
    read_optional,
    read_special_tokens,
    read_token_names,
    write_json,
)

# A batch of one text needs no threads, after which the library warns when a process forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

DIFFUSION_PAD = "<|dlm_pad|>"
EXPAND = "<|expand|>"
BEGIN_OF_TEXT = "<|beginoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
# The end of a turn of Llama 3 and LLaDA.
END_OF_HEADER_TURN = "<|eot_id|>"
# Each of these ends an answer: the end of a document, of a turn, or the padding of instruct models.
STOP_TOKENS = (END_OF_TEXT, END_OF_TURN, DIFFUSION_PAD, END_OF_HEADER_TURN)
Message = Mapping[str, Any]
Conversation = Sequence[Message]
TokenIds = list[int]

# Qwen2.5's fields of tokenizer_config.json; without them, transformers would decode differently.
PLAIN_SETTINGS = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "errors": "replace",
    "split_special_tokens": False,
    "unk_token": None,
}


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


def encode_text(backend: Tokenizer, text: str) -> TokenIds:
    """Encode a text without adding tokens. Other threads run meanwhile."""
    # `Tokenizer.encode` would stop them: it keeps Python's lock, and takes longer, for the offsets
    return backend.encode_batch_fast([require_unicode(text)], add_special_tokens=False)[0].ids


# The tokens of DiffuCoder and Dream.
PUBLISHED_TOKENS = SpecialTokens()


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
    special: SpecialTokens = PUBLISHED_TOKENS

    def __post_init__(self):
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
                raise TokenizerError(
                    f"tokenizer {str(folder)!r}: "
                    "no vocab.json with merges.txt, and no tokenizer.json"
                )
            special = read_special_tokens(folder, backend)
            if adds_mask:
                mask = special.mask or MASK
                special = replace(special, mask=mask)
                for token in (mask, DIFFUSION_PAD):
                    if backend.token_to_id(token) is None:
                        backend.add_tokens([AddedToken(token, special=True, normalized=False)])
            return cls(backend, read_chat_template(folder), special)
        except TokenizerError:
            raise
        except Exception as error:  # the Rust library raises bare Exception
            raise TokenizerError(f"tokenizer {str(folder)!r} cannot be read: {error}") from error

    def require_ids(self, config: DreamConfig):
        """Raise TokenizerError unless this tokenizer belongs to a model with this configuration."""
        tokenizer = "has no mask token"
        if self.special.mask is not None:
            tokenizer = f"has {self.special.mask} at {self.mask_id}"
        if config.mask_token_id is None:
            raise TokenizerError(
                f"config.json names no mask_token_id, and the tokenizer {tokenizer}: a masked-diffusion "
                "model names it; convert an autoregressive one with diffucoder adapt"
            )
        if self.special.mask is None or self.mask_id != config.mask_token_id:
            raise TokenizerError(
                f"tokenizer {tokenizer}, the model's mask_token_id is {config.mask_token_id}: "
                "this tokenizer belongs to another model"
            )
        self.require_vocabulary(config.vocab_size)

    def require_vocabulary(self, vocab_size: int):
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
        end = self.special.end
        return self.known_ids((DIFFUSION_PAD, self.special.pad or end, end))[0]

    @property
    def stop_ids(self) -> Ints:
        """The ids that end an answer, of the tokens that this tokenizer has."""
        # A dict keeps the order, and each token once.
        stops = dict.fromkeys((*STOP_TOKENS, self.special.end, *self.special.stops))
        return tuple(self.known_ids(stops))

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
    def begin_ids(self) -> TokenIds:
        """The id of the token that begins a text, as a list; empty if there is none."""
        return self.known_ids([BEGIN_OF_TEXT])

    def known_ids(self, tokens: Iterable[str]) -> TokenIds:
        """Return the ids of those of the tokens that are in the vocabulary."""
        ids = map(self.backend.token_to_id, tokens)
        return [token_id for token_id in ids if token_id is not None]

    def token_id(self, token: str) -> int:
        """Return the id of a token. Raises KeyError if it is not in the vocabulary."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise KeyError(token)
        return token_id

    def encode(self, text: str) -> TokenIds:
        """Encode a text. Special tokens in the text become their ids; none are added.

        Raises:
            TokenizerError: the text is not Unicode.
        """
        return encode_text(self.backend, text)

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

    def encode_plain(self, text: str) -> TokenIds:
        """Encode untrusted text: special tokens in it are encoded as ordinary characters."""
        return encode_text(self.plain_backend, text)

    def encode_chat(self, messages: Conversation) -> TokenIds:
        """Encode an untrusted conversation: only the template itself produces special tokens.

        The text of a special token in a message is replaced by a random placeholder while the
        template is rendered, and then encoded as ordinary characters.
        """
        # "a<|im_end|>b" -> "a<nonce>.0.b" -> template -> "…a", "0", "b…" -> ids
        nonce = secrets.token_hex(16)
        escaped = []

        def mark(match):
            escaped.append(match[0])
            return f"{nonce}.{len(escaped) - 1}."

        marked = [
            {**message, "content": self.special_text.sub(mark, message["content"])}
            for message in messages
        ]
        # As the pattern has a group, pieces at odd places are the numbers of placeholders.
        pieces = re.split(rf"{nonce}\.(\d+)\.", self.apply_chat_template(marked))
        ids = []
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

    def until_stop(self, ids: Iterable[int]) -> TokenIds:
        """Return the ids before the first stop token."""
        stops = self.stop_ids
        return [*takewhile(lambda token: token not in stops, ids)]

    def decode_until_stop(self, ids: Iterable[int]) -> str:
        """Decode ids up to the first stop token, without special tokens."""
        return self.decode(self.until_stop(ids), skip_special_tokens=True)

    def apply_chat_template(
        self, messages: Conversation, *, add_generation_prompt: bool = True
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
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        environment.globals["raise_exception"] = raise_template_error
        try:
            return environment.from_string(self.chat_template).render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self.special.begin or "",
                eos_token=self.special.end,
            )
        except Exception as error:  # a template is code of the checkpoint: it may raise anything
            raise TokenizerError(
                f"chat template does not accept these messages: {error}"
            ) from error

    def save_pretrained(self, folder: str | Path):
        """Write tokenizer.json, chat_template.jinja and the settings that transformers reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        if (folder / ADDED_TOKENS).is_file():
            # With this file, `from_pretrained` reads vocab.json instead of tokenizer.json.
            added = sorted(self.backend.get_added_tokens_decoder().items())
            write_json(
                folder / ADDED_TOKENS, {token.content: token_id for token_id, token in added}
            )
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        self.save_settings(folder, replace=True)

    def save_settings(self, folder: Path, *, replace: bool = False):
        """Write the end, pad and mask tokens to tokenizer_config.json and special_tokens_map.json.

        A file that lacks nothing is not written.

        Args:
            folder: folder of the tokenizer.
            replace: replace tokens that these files name already, instead of keeping them.
        """
        special = {
            "eos_token": self.special.end,
            "pad_token": self.backend.id_to_token(self.pad_id),
        }
        special |= {"mask_token": self.special.mask} if self.special.mask else {}
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
            stored = read_optional(folder / name)
            # An existing file keeps all else.
            written = [key for key in special if replace or stored.get(key) is None]
            written += ["added_tokens_decoder"] * replace
            fields = stored | {
                key: value for key, value in complete.items() if not stored or key in written
            }
            if fields != stored:
                write_json(folder / name, fields)


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


def raise_template_error(message: str):
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

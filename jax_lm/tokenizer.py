"""Tokenizer of DiffuCoder: Qwen2.5 byte-level BPE with Dream's added tokens, and its chat template.

Built from vocab.json + merges.txt + added_tokens.json (what DiffuCoder publishes, there is no
tokenizer.json) or from tokenizer.json. Knows text and ids, nothing of models.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jaxtyping import Int
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

MASK, END_OF_TEXT, DIFFUSION_PAD = "<|mask|>", "<|endoftext|>", "<|dlm_pad|>"
EXPAND, BEGIN_OF_TEXT = "<|expand|>", "<|beginoftext|>"
START_OF_TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
STOP_TOKENS = (END_OF_TEXT, END_OF_TURN, DIFFUSION_PAD)
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Message = Mapping[str, Any]

ADDED_TOKENS, TOKENIZER_CONFIG, SPECIAL_TOKENS = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"
TOKENIZER_FILES = (
    "vocab.json", "merges.txt", "tokenizer.json", ADDED_TOKENS, TOKENIZER_CONFIG, SPECIAL_TOKENS, "chat_template.jinja",
)  # fmt: skip
"""All files that a tokenizer of this family may have."""

PLAIN_SETTINGS = {
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "errors": "replace",
    "split_special_tokens": False,
    "unk_token": None,
}
"""Of tokenizer_config.json: those of Qwen2.5, without which transformers would decode otherwise."""


class TokenizerError(ValueError):
    """A tokenizer that cannot be read, or that belongs to another model."""


@dataclass(frozen=True)
class DiffuCoderTokenizer:
    """Text to ids and back, with the special tokens of masked diffusion.

    Attributes:
        backend: the `tokenizers` object that does the work.
        chat_template: Jinja source, or None for a model without chat.
    """

    backend: Tokenizer
    chat_template: str | None = None

    def __post_init__(self) -> None:
        for token in (MASK, END_OF_TEXT):
            if self.backend.token_to_id(token) is None:
                raise TokenizerError(f"tokenizer has no {token} token; expected a Dream or DiffuCoder tokenizer")

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, adds_mask: bool = False) -> "DiffuCoderTokenizer":
        """Read the tokenizer files of a folder; TokenizerError if they are absent or damaged, or lack the mask token.

        `adds_mask` gives a tokenizer of an autoregressive model the mask and pad tokens that it lacks.
        """
        folder = Path(folder).expanduser()
        try:
            has_words = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
            # Qwen2.5 publishes words without their added tokens, and everything in tokenizer.json.
            if has_words and ((folder / ADDED_TOKENS).is_file() or not (folder / "tokenizer.json").is_file()):
                backend = byte_level_bpe(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
                add_in_order(backend, folder)
            elif (folder / "tokenizer.json").is_file():
                backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
            else:
                raise TokenizerError(f"tokenizer {str(folder)!r}: no vocab.json with merges.txt, and no tokenizer.json")
            missing = [token for token in (MASK, DIFFUSION_PAD) if backend.token_to_id(token) is None]
            if adds_mask:
                backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
            return cls(backend, read_chat_template(folder))
        except TokenizerError:
            raise
        except Exception as error:  # the Rust library raises bare Exception
            raise TokenizerError(f"tokenizer {str(folder)!r} cannot be read: {error}") from error

    def require_ids(self, *, mask_token_id: int | None, vocab_size: int) -> None:
        """Raise TokenizerError unless this tokenizer belongs to a model with this mask id and vocabulary."""
        if mask_token_id is None:
            raise TokenizerError(
                f"config.json names no mask_token_id, while the tokenizer has {MASK} at {self.mask_id}: "
                "a masked-diffusion model names it; an autoregressive one becomes one by diffucoder adapt"
            )
        if self.mask_id != mask_token_id:
            raise TokenizerError(
                f"tokenizer has {MASK} at {self.mask_id}, the model's mask_token_id is {mask_token_id}: "
                "this tokenizer belongs to another model"
            )
        if self.vocab_size > vocab_size:
            raise TokenizerError(f"tokenizer has {self.vocab_size} tokens, the model only {vocab_size}")

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides which ids a text or a conversation gets."""
        return hashlib.sha256(f"{self.backend.to_str()}{self.chat_template}".encode()).hexdigest()[:16]

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def mask_id(self) -> int:
        return self.token_id(MASK)

    @property
    def pad_id(self) -> int:
        """The trained pad of instruct models, else the end of text; marks left padding and spare canvas."""
        pad = self.backend.token_to_id(DIFFUSION_PAD)
        return self.token_id(END_OF_TEXT) if pad is None else pad

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which an answer ends: those of the end tokens that this tokenizer knows."""
        ids = (self.backend.token_to_id(token) for token in STOP_TOKENS)
        return tuple(token_id for token_id in ids if token_id is not None)

    @property
    def expand_id(self) -> int | None:
        """The token by which a mask becomes two; None if the checkpoint was not trained with one."""
        return self.backend.token_to_id(EXPAND)

    def with_expand(self) -> "DiffuCoderTokenizer":
        """Give a tokenizer that has the token for expanding, at the next free id if this one lacks it."""
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.add_tokens([AddedToken(EXPAND, special=True, normalized=False)])
        return DiffuCoderTokenizer(backend, self.chat_template)

    @property
    def begin_ids(self) -> list[int]:
        """The token that begins a text, where there is one."""
        token_id = self.backend.token_to_id(BEGIN_OF_TEXT)
        return [] if token_id is None else [token_id]

    def token_id(self, token: str) -> int:
        """Find the id of a token; KeyError if it has none."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise KeyError(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Encode a text; special tokens written out in it become their ids, none is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    @cached_property
    def plain_backend(self) -> Tokenizer:
        """The pipeline of `backend`, in which the text of a special token is ordinary text."""
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def special_text(self) -> re.Pattern[str]:
        """A pattern that finds the text of any special token."""
        added = self.backend.get_added_tokens_decoder().values()
        texts = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)))

    def encode_plain(self, text: str) -> list[int]:
        """Encode a text from outside: a special token written out in it is nothing but its characters."""
        return self.plain_backend.encode(text, add_special_tokens=False).ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Encode a conversation from outside: only the template itself makes special tokens.

        A special token's text in a message passes the template as a mark that nobody can guess, and is encoded apart.
        """
        nonce = secrets.token_hex(16)
        found: list[str] = []

        def mark(match: re.Match[str]) -> str:
            found.append(match[0])
            return f"{nonce}.{len(found) - 1}."

        marked = [{**message, "content": self.special_text.sub(mark, message["content"])} for message in messages]
        pieces = re.split(rf"{nonce}\.(\d+)\.", self.apply_chat_template(marked))
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            ids += self.encode_plain(found[int(piece)]) if index % 2 else self.encode(piece)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Decode ids; bytes that are not UTF-8 become U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which alone need not be UTF-8."""
        if token_id in self.ids_of_added_tokens or not isinstance(self.backend.decoder, decoders.ByteLevel):
            return self.decode([token_id]).encode()
        return bytes(BYTES_OF_LETTERS[letter] for letter in self.backend.id_to_token(token_id) or "")

    @cached_property
    def ids_of_added_tokens(self) -> frozenset[int]:
        """Ids of the tokens that were added to the vocabulary, which are written as they read."""
        return frozenset(self.backend.get_added_tokens_decoder())

    def decode_until_stop(self, ids: Iterable[int]) -> str:
        """Decode ids up to the first stop token."""
        stops = self.stop_ids
        return self.decode(takewhile(lambda token_id: token_id not in stops, ids), skip_special_tokens=True)

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Render messages ({"role": …, "content": …}) to a prompt, in a sandbox; TokenizerError if that fails."""
        if self.chat_template is None:
            raise TokenizerError("this tokenizer has no chat template: the model was not made for chat")
        extensions = ["jinja2.ext.loopcontrols"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = raise_template_error
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=list(messages), add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template is a program of the checkpoint: it may raise anything
            raise TokenizerError(f"chat template does not accept these messages: {error}") from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json, which holds all but the template, chat_template.jinja and settings for transformers."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        if (folder / ADDED_TOKENS).is_file():
            # It is read in place of tokenizer.json.
            added = sorted(self.backend.get_added_tokens_decoder().items())
            write_json(folder / ADDED_TOKENS, {token.content: token_id for token_id, token in added})
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        self.save_settings(folder, replace=True)

    def save_settings(self, folder: Path, *, replace: bool = False) -> None:
        """Let tokenizer_config.json and special_tokens_map.json name the tokens for end, pad and mask.

        What they name already stays, unless it is to be replaced; a file that lacks nothing is not touched.
        """
        pad = self.backend.id_to_token(self.pad_id)
        special = {"eos_token": END_OF_TEXT, "pad_token": pad, "mask_token": MASK}
        parts = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        added = {
            str(token_id): {part: getattr(token, part) for part in parts}
            for token_id, token in sorted(self.backend.get_added_tokens_decoder().items())
        }
        is_whole = (folder / "tokenizer.json").is_file()
        kind = {"tokenizer_class": "PreTrainedTokenizerFast" if is_whole else "Qwen2Tokenizer"}
        new = PLAIN_SETTINGS | kind | {"added_tokens_decoder": added} | special
        for name, whole in ((TOKENIZER_CONFIG, new), (SPECIAL_TOKENS, special)):
            held = json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else None
            wanted = {key for key in special if held is None or held.get(key) is None}
            wanted |= {*special, "added_tokens_decoder"} if replace else set()
            fields = whole if held is None else held | {key: whole[key] for key in wanted & whole.keys()}
            if fields != held:
                write_json(folder / name, fields)


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write an object as the publishers of checkpoints do."""
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def byte_letters() -> dict[str, int]:
    """The byte that each letter of the byte-level alphabet stands for (GPT-2's `bytes_to_unicode`, turned around)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES_OF_LETTERS = byte_letters()


def byte_level_bpe(model: models.BPE) -> Tokenizer:
    """Build Qwen2's pipeline around a BPE model: NFC, a word pattern, byte-level alphabet, no added ids."""
    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def add_in_order(backend: Tokenizer, folder: Path) -> None:
    """Add the tokens of added_tokens.json in the order of their ids, which must continue the vocabulary."""
    path = folder / ADDED_TOKENS
    if not path.is_file():
        raise TokenizerError(f"tokenizer {str(folder)!r} has no added_tokens.json")
    ids: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    base = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    expected = list(range(base, base + len(ids)))
    if sorted(ids.values()) != expected:
        raise TokenizerError(f"{path}: ids must run from {expected[0]} to {expected[-1]} without a gap")
    # Qwen2 marks the tool-call tags as ordinary text: they survive decoding without special tokens.
    for text in sorted(ids, key=ids.__getitem__):
        backend.add_tokens([AddedToken(text, special=text.startswith("<|"), normalized=False)])
        if backend.token_to_id(text) != ids[text]:
            raise TokenizerError(f"{path}: {text!r} cannot have id {ids[text]}: it is in the vocabulary already")


def read_chat_template(folder: Path) -> str | None:
    """Read chat_template.jinja, or the field of tokenizer_config.json, or None."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / TOKENIZER_CONFIG).is_file():
        template = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8")).get("chat_template")
        return template if isinstance(template, str) else None
    return None


def raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def pad_left(
    rows: Sequence[Sequence[int]], pad_id: int, *, multiple_of: int = 1
) -> tuple[Int[np.ndarray, "b t"], Int[np.ndarray, "b t"]]:
    """Put rows of ids into one left-padded array with its attention mask (1 = real)."""
    width = max(map(len, rows), default=0)
    width += -width % multiple_of
    ids = np.full((len(rows), width), pad_id, np.int32)
    mask = np.zeros((len(rows), width), np.int32)
    for row, values in enumerate(rows):
        start = width - len(values)
        ids[row, start:], mask[row, start:] = values, 1
    return ids, mask

"""Byte-level BPE of Qwen2.5, from vocab.json, merges.txt and added_tokens.json.

These are the files that DiffuCoder publishes. The letters of the byte-level alphabet stand for
bytes.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jax_lm.tokenizer.files import ADDED_TOKENS, TokenizerError

# The pattern with which Qwen2.5 splits text into words before BPE.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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

"""Byte-level BPE of Qwen2.5, from vocab.json, merges.txt and added_tokens.json.

These are the files that DiffuCoder publishes. The letters of the byte-level alphabet stand for
bytes.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jax_lm.tokenizer.files import ADDED_TOKENS, TokenizerError

# The pattern with which Qwen2.5 splits text into words before BPE.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# The pattern by the name that llama.cpp gives to a pretokenizer; None is that of GPT-2. `smollm`
# splits digits first.
WORDS = {"qwen2": QWEN_WORDS, "llama-bpe": LLAMA3_WORDS, "smollm": None, "gpt-2": None}


def byte_letters() -> dict[str, int]:
    """Return the byte of each letter of the byte-level alphabet.

    This is the inverse of GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, and the
    others are numbered from U+0100 on, such as the space, which is "Ġ" (U+0120).
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = [byte for byte in range(256) if chr(byte) not in printable]
    return printable | dict(zip(letters[len(printable) :], others, strict=True))


BYTES_OF_LETTERS = byte_letters()


def byte_level_bpe(model: models.BPE, kind: str = "qwen2") -> Tokenizer:
    """Return the pipeline of a BPE model: a word pattern of `WORDS` and the byte-level alphabet.

    Qwen2 normalizes the text to NFC first. Added tokens are not part of the pipeline.
    """
    backend = Tokenizer(model)
    words = WORDS[kind]
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)]
    if words is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(words), behavior="isolated"))
    elif kind == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def add_in_order(backend: Tokenizer, folder: Path):
    """Add the tokens of added_tokens.json in the order of their ids.

    Raises:
        TokenizerError: the ids do not continue the vocabulary without a gap.
    """
    path = folder / ADDED_TOKENS
    ids = json.loads(path.read_text(encoding="utf-8"))
    # In Qwen2, tool-call tags such as <tool_call> are not special: they must survive decoding with
    # skip_special_tokens=True.
    for text in sorted(ids, key=ids.__getitem__):
        backend.add_tokens([AddedToken(text, special=text.startswith("<|"), normalized=False)])
        own = backend.token_to_id(text)
        if own != ids[text]:
            raise TokenizerError(
                f"{path}: {text!r} has id {ids[text]}, where it must be {own}: ids must continue "
                "the vocabulary without a gap"
            )

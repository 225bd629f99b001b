"""The tokenizer in a GGUF file: byte-level BPE, its special tokens and the chat template."""

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, models

from jax_lm.checkpoints.stored import CheckpointError
from jax_lm.config import DreamConfig, Fields, pairs
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.tokenizer.byte_level import WORDS, byte_level_bpe
from jax_lm.tokenizer.files import TOKENIZER_CONFIG, write_json

# Special tokens as we call them (`mask_token_id`), and as the file does
# (`tokenizer.ggml.mask_token_id`).
SPECIAL = pairs("mask mask  eos eos  bos bos  pad padding")
TYPES = gguf.TokenType


def read_tokenizer(reader: gguf.GGUFReader, folder: Path):
    """Write the tokenizer of a file as tokenizer.json, settings and chat template.

    Raises:
        CheckpointError: it is not a byte-level BPE with a known way to split words, or lacks a
            part.
    """
    fields = {name: field.contents() for name, field in reader.fields.items() if "token" in name}
    model = fields.get("tokenizer.ggml.model")
    kind = fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or kind not in WORDS:
        raise CheckpointError(
            f"tokenizer.ggml.model={model!r} with tokenizer.ggml.pre={kind!r}: only gpt2 with "
            f"{', '.join(WORDS)} is read"
        )
    try:
        texts, types, merged = (
            fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")
        )
    except KeyError as error:
        raise CheckpointError(f"the file lacks the field {error.args[0]}") from error
    # Rows of the table without a token have texts such as [PAD151665].
    vocabulary = {
        text: number
        for number, (text, kind_) in enumerate(zip(texts, types, strict=True))
        if kind_ != TYPES.UNUSED
    }
    merges = [tuple(pair.split(" ", 1)) for pair in merged]
    backend = byte_level_bpe(models.BPE(vocabulary, merges), kind)
    backend.add_tokens(
        [
            AddedToken(text, special=kind_ == TYPES.CONTROL, normalized=False)
            for text, kind_ in zip(texts, types, strict=True)
            if kind_ in (TYPES.CONTROL, TYPES.USER_DEFINED)
        ]
    )
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, key in SPECIAL.items():
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None and number < len(texts):
            settings[f"{name}_token"] = texts[number]
    write_json(folder / TOKENIZER_CONFIG, settings)
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_tokenizer(writer: gguf.GGUFWriter, tokenizer: DiffuCoderTokenizer, config: DreamConfig):
    """Write a tokenizer into the metadata of a file.

    Raises:
        CheckpointError: llama.cpp has no counterpart of its way to split words.
    """
    backend = tokenizer.backend
    pipeline = json.loads(backend.to_str())
    rules = {kind: json.loads(byte_level_bpe(models.BPE(), kind).to_str()) for kind in WORDS}
    kind = next((kind for kind in WORDS if splits(rules[kind]) == splits(pipeline)), None)
    if kind is None or pipeline["model"]["type"] != "BPE":
        raise CheckpointError(
            "this tokenizer splits words in a way that no tokenizer.ggml.pre of "
            f"{', '.join(WORDS)} names"
        )
    texts = [f"[PAD{number}]" for number in range(config.vocab_size)]
    types = [TYPES.UNUSED] * config.vocab_size
    for text, number in backend.get_vocab(with_added_tokens=True).items():
        texts[number], types[number] = text, TYPES.NORMAL
    for number, token in backend.get_added_tokens_decoder().items():
        types[number] = TYPES.CONTROL if token.special else TYPES.USER_DEFINED
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in pipeline["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    known = {"eos": tokenizer.end_id, "pad": tokenizer.pad_id}
    for name, key in SPECIAL.items():
        number = getattr(config, f"{name}_token_id")
        number = known.get(name) if number is None else number
        if number is not None:
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", number)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def splits(pipeline: Fields) -> list[Any]:
    """Return what decides how a tokenizer.json splits a text into words."""
    steps = pipeline["pre_tokenizer"] or {}
    facts: list[Any] = [(pipeline["normalizer"] or {}).get("type")]
    for step in steps.get("pretokenizers", [steps]):
        pattern = (step.get("pattern") or {}).get("Regex")
        facts.append((step.get("type"), pattern, step.get("use_regex", False)))
    return facts

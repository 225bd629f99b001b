"""Train a small tokenizer of DiffuCoder's kind."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers

from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.tokenizer.byte_level import byte_level_bpe

SPACE = "\u0120"
"""A space, as byte-level vocabularies write it."""

NAMES_APART = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Qwen2's words, but that neither a space nor punctuation opens one: so a name has one form wherever it stands, and a
small model copies it instead of learning a token for each place."""


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    spaced: Sequence[str] = (),
    chat_template: str | None = None,
) -> DiffuCoderTokenizer:
    """Train a tokenizer on `texts`; `vocab_size` counts all tokens.

    Args:
        spaced: words that are one token with a space in front, too; those that no name begins with.

    Raises:
        ValueError: a word of `spaced` is no token by itself.
    """
    backend = byte_level_bpe(models.BPE())
    usual = backend.pre_tokenizer
    split = pre_tokenizers.Split(Regex(NAMES_APART), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special_tokens) - len(spaced),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.model = joined(backend.model, spaced)
    backend.pre_tokenizer = usual
    backend.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )
    return DiffuCoderTokenizer(backend, chat_template)


def joined(model: models.BPE, words: Sequence[str]) -> models.BPE:
    """Add a merge of a space with each of some words, behind all others, so that what is in a word
    stays as it is.
    """
    state = json.loads(model.__getstate__())
    vocabulary, merges = state["vocab"], [tuple(merge) for merge in state["merges"]]
    for word in words:
        if word not in vocabulary:
            raise ValueError(f"spaced={word!r}: no token of these texts")
        vocabulary[SPACE + word] = len(vocabulary)
        merges.append((SPACE, word))
    return models.BPE(vocabulary, merges)


def save_tokenizer(tokenizer: DiffuCoderTokenizer, folder: Path) -> None:
    """Write the files that DiffuCoder publishes: vocab.json, merges.txt, added_tokens.json and the
    chat template.
    """
    tokenizer.backend.model.save(str(folder))
    added = tokenizer.backend.get_added_tokens_decoder()
    ids = {token.content: token_id for token_id, token in sorted(added.items())}
    (folder / "added_tokens.json").write_text(json.dumps(ids) + "\n", encoding="utf-8")
    if tokenizer.chat_template is not None:
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")

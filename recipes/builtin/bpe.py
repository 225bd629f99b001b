"""Train a small tokenizer of DiffuCoder's kind."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, models, pre_tokenizers, trainers

from jax_lm.tokenizer import DiffuCoderTokenizer, byte_level_bpe


def train_bpe(
    texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str], chat_template: str | None = None
) -> DiffuCoderTokenizer:
    """Train a tokenizer on `texts`; `vocab_size` counts the special tokens."""
    backend = byte_level_bpe(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return DiffuCoderTokenizer(backend, chat_template)

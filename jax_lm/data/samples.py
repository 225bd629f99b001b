"""Open the samples of a training run: a file, a data set of `datasets`, or a tokenised folder."""

import logging
from pathlib import Path

from jax_lm.data.columns import PLAIN_FORM, Columns, ConversationForm, Kind
from jax_lm.data.conversations import read_samples, rows_reader
from jax_lm.data.sources import holds_dataset, require_whole
from jax_lm.data.token_shards import TokenShards, TrainingSamples
from jax_lm.tokenizer import DiffuCoderTokenizer

logger = logging.getLogger(__name__)


def open_samples(
    data: Path,
    columns: Columns,
    kind: Kind,
    tokenizer: DiffuCoderTokenizer,
    max_length: int,
    *,
    split: str,
    subset: str | None,
    form: ConversationForm = PLAIN_FORM,
) -> tuple[TrainingSamples, str, list | None]:
    """Open the samples of a run.

    Returns:
        The samples, their digest, and the refused lines (None if the data are already tokenised).

    Raises:
        ValueError: the data cannot be read, has no usable sample, or no such split or columns.
    """
    # a tokenised folder
    if data.is_dir() and not holds_dataset(data):
        require_whole(str(data), split, subset)
        for name, column in columns:
            raise ValueError(
                f"{name}_column={column!r}: data={str(data)!r} is tokenised, and has no columns"
            )
        if form != PLAIN_FORM:
            raise ValueError(
                f"data={str(data)!r} is tokenised: --turns and --template are options of "
                "`diffucoder data tokenize`"
            )
        shards = TokenShards.open(data, kind, tokenizer.fingerprint)
        logger.info(shards.describe())
        return shards, shards.digest, None
    to_rows = rows_reader(kind, tokenizer, max_length, columns, form)
    samples = read_samples(data, to_rows, split=split, subset=subset)
    return samples.rows, samples.digest, samples.refused

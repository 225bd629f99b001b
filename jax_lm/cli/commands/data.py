"""The commands about data: `diffucoder data prepare-acecode`, `data show`, `data tokenize`."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
from rich.console import Console
from rich.text import Text

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.data import PrepareAcecode, Show, Tokenize
from jax_lm.cli.commands.watching import MASK_GLYPH
from jax_lm.data.acecode import prepare_acecode
from jax_lm.data.batches import Row
from jax_lm.data.conversations import convert_lines, rows_reader
from jax_lm.data.sources import open_source
from jax_lm.data.tokenizing import Tokenization, tokenize
from jax_lm.host import terminal
from jax_lm.host.files import require_new
from jax_lm.tokenizer import DiffuCoderTokenizer
from untrusted.printable import printable


def run_data_prepare_acecode(arguments: PrepareAcecode) -> int:
    terminal.show_log()
    require_new(arguments.out)
    print(prepare_acecode(arguments.data, arguments.out, arguments.difficulty))
    return 0


def run_data_show(arguments: Show) -> int:
    """Print samples and refused lines; exit status 1 if there is no sample."""
    # only the tokenizer is needed
    folder = huggingface.resolve(arguments.model, with_weights=False)
    tokenizer = DiffuCoderTokenizer.from_pretrained(folder, adds_mask=arguments.kind == "text")
    console = Console(highlight=False)
    rng = np.random.default_rng(arguments.seed)
    shown = 0
    # a refused line counts as a sample
    for where, sample in islice(samples_of(arguments, tokenizer), arguments.limit):
        if isinstance(sample, str):
            console.print(
                Text(f"{where}: refused: {printable(sample)}\n", style="red"), soft_wrap=True
            )
            continue
        shown += 1
        # each learned token is masked with this probability
        masked = np.array(sample.canvas) & (rng.random(len(sample.ids)) < arguments.mask_ratio)
        counts = f"{sum(sample.canvas)} of them learned, {masked.sum()} masked here"
        console.print(Text(f"{where}: {len(sample.ids)} tokens, {counts}", style="dim"))
        console.print(sample_text(sample, masked.tolist(), tokenizer), soft_wrap=True)
        console.print()
    if not shown:
        terminal.say(f"data={arguments.data}: no samples")
    return 0 if shown else 1


def samples_of(arguments: Show, tokenizer: DiffuCoderTokenizer) -> Iterator[tuple[str, Row | str]]:
    """Yield the samples with their location in the data.

    A refused line yields the reason for the refusal instead of a sample.
    """
    source = open_source(arguments.data, **asdict(arguments.part), streaming=True)
    to_rows = rows_reader(
        arguments.kind,
        tokenizer,
        arguments.max_length,
        arguments.columns.of(arguments.kind),
        arguments.form,
    )
    for part in range(source.parts):
        for where, rows in convert_lines(source.read(part), to_rows):
            # one line may become several rows
            for sample in [str(rows)] if isinstance(rows, ValueError) else rows:
                yield where, sample


def sample_text(row: Row, masked: list[bool], tokenizer: DiffuCoderTokenizer) -> Text:
    """Format a sample: given tokens are bold, learned tokens green, and masks are glyphs."""
    text = Text()
    # in runs, as a character may be several tokens
    tokens = zip(masked, row.canvas, row.ids, strict=True)
    for (is_masked, is_learned), run in groupby(tokens, itemgetter(0, 1)):
        ids = [token for *_, token in run]
        if is_masked:
            text.append(MASK_GLYPH * len(ids), style="red")
        else:
            text.append(printable(tokenizer.decode(ids)), style="green" if is_learned else "bold")
    return text


def run_data_tokenize(arguments: Tokenize) -> int:
    terminal.show_log()
    folder = huggingface.resolve(arguments.model, with_weights=False)
    job = Tokenization(
        source=open_source(
            arguments.data,
            arguments.num_shards,
            **asdict(arguments.part),
            streaming=arguments.streaming,
        ),
        tokenizer=str(folder),
        fingerprint=DiffuCoderTokenizer.from_pretrained(
            folder, adds_mask=arguments.kind == "text"
        ).fingerprint,
        kind=arguments.kind,
        max_length=arguments.max_length,
        columns=arguments.columns.of(arguments.kind),
        form=arguments.form,
    )
    # cpu_count is None where it cannot be determined
    workers = arguments.workers or os.cpu_count() or 1
    print(tokenize(job, arguments.out, workers))
    return 0

"""Tokenise a data set: parts of a source are converted to shards in parallel, each atomically.

The content of a shard depends only on the settings and its part. A run that was killed, at any
moment and with any number of workers, therefore resumes with the missing shards.
`jax_lm.data.token_shards` reads the shards.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from jax_lm.config import Fields
from jax_lm.data.columns import PLAIN_FORM, Columns, ConversationForm, Kind
from jax_lm.data.conversations import NAMED, convert_lines, rows_reader
from jax_lm.data.sources import Source
from jax_lm.data.token_shards import DATASET, DONE, FORMAT, INDEX, TOKENS, summarize
from jax_lm.host.files import atomic_write, write_json_whole
from jax_lm.host.interruption import discard_unfinished
from jax_lm.reports.run_folder import exclusive, require_same
from jax_lm.tokenizer import DiffuCoderTokenizer

logger = logging.getLogger(__name__)

# Settings of the shards in the folder; written before the first shard.
PLAN = "plan.json"
# Names of files that are being written, as `atomic_write` makes them.
HALF_WRITTEN = ".*.*.*"


@dataclass(frozen=True, kw_only=True)
class Tokenization:
    """All settings that determine the tokens. Pickled for the workers.

    Attributes:
        source: source of the lines.
        tokenizer: folder of the tokenizer.
        fingerprint: fingerprint of the tokenizer.
        kind: whether a line is a text, or a conversation whose last turn is learnt.
        max_length: maximum tokens of a conversation; longer ones are refused. Texts have no limit.
        columns: columns to rename to our names.
        form: what is seen and learnt of a conversation.
    """

    source: Source
    tokenizer: str
    fingerprint: str
    kind: Kind
    max_length: int
    columns: Columns = ()
    form: ConversationForm = PLAIN_FORM

    def plan(self) -> Fields:
        """Return the settings. A run resumes only shards that have the same plan."""
        return {"format": FORMAT, **asdict(self), "tokenizer": self.fingerprint}


def tokenize(job: Tokenization, out: Path, workers: int) -> str:
    """Write the missing shards, then the description of the data set.

    Returns:
        A summary for the user: numbers of samples, tokens and refused lines, and the first of
        these.

    Raises:
        ValueError: `out` contains shards of other data or settings, or no line could be used.
    """
    # Counted before any file is written: unreadable data leave no folder.
    parts = job.source.parts
    with exclusive(out):
        require_same(out / PLAN, job.plan())
        for path in out.glob(HALF_WRITTEN):
            path.unlink()
        done_files = [out / f"{part:06}{DONE}" for part in range(parts)]
        missing = [part for part, path in enumerate(done_files) if not path.is_file()]
        # write the missing shards
        with open_pool(min(workers, len(missing))) as map_parts:
            for done, shard in enumerate(
                map_parts(partial(write_shard, job, out), missing), parts - len(missing) + 1
            ):
                logger.info("shard %d/%d: %s", done, parts, summarize_counts([shard]))
        # summarise all shards, including those of earlier runs
        shards = [json.loads(path.read_text(encoding="utf-8")) for path in done_files]
        refused = [line for shard in shards for line in shard["refused"][:NAMED]][:NAMED]
        named = "".join(f"; {where}: {reason}" for where, reason in refused)
        if not any(shard["samples"] for shard in shards):
            # Empty shards would make the same command with better data fail.
            for name in (PLAN, *(f"{path.stem}.*" for path in done_files)):
                for path in out.glob(name):
                    path.unlink()
            raise ValueError(f"data: {summarize_counts(shards)}{named}: nothing to learn from")
        summaries = [
            {"name": path.stem, **shard, "refused": len(shard["refused"])}
            for path, shard in zip(done_files, shards, strict=True)
        ]
        digests = json.dumps([shard["digest"] for shard in shards])
        description = {
            "format": FORMAT,
            "kind": job.kind,
            "tokenizer": job.fingerprint,
            "dtype": dtype_of(tokenizer_of(job)).str,
            "refused": sum(shard["refused"] for shard in summaries),
            "digest": sha256(digests.encode()).hexdigest()[:16],
            "shards": [shard for shard in summaries if shard["samples"]],
        }
        write_json_whole(out / DATASET, description)
        return f"{out}: {summarize_counts(shards)}{named}"


@contextmanager
def open_pool(count: int) -> Iterator[Callable]:
    """Yield a `map` over `count` processes, or the builtin `map` if `count` is at most 1.

    It yields the results in order, each as soon as it and those before it are ready.
    """
    if count <= 1:
        yield map
        return
    # After an interrupt, Python's resource tracker removes leaked semaphores and warns about them.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=end_with_parent) as pool:

        def map_in_pool(*arguments):
            # Workers inherit the blocked signal: only the parent handles Ctrl-C, and workers end
            # with the parent.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return pool.map(*arguments)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        yield map_in_pool


def end_with_parent():
    """End this process once its parent has ended, even by SIGKILL, or after SIGTERM."""
    parent = multiprocessing.parent_process()
    assert parent

    def leave(*_):
        discard_unfinished()
        os._exit(1)

    def watch():
        parent.join()
        leave()

    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=watch, daemon=True).start()


def write_shard(job: Tokenization, out: Path, part: int) -> Fields:
    """Write the shard of a part, its description last. Returns the description."""
    tokenizer = tokenizer_of(job)
    max_length = sys.maxsize if job.kind == "text" else job.max_length
    to_rows = rows_reader(job.kind, tokenizer, max_length, job.columns, job.form)
    dtype = dtype_of(tokenizer)
    digest = sha256()
    ends = array("q", [0])
    visible = array("q")
    refused = []
    path = out / f"{part:06}{TOKENS}"
    with atomic_write(path) as half, half.open("wb") as file:
        for where, rows in convert_lines(job.source.read(part), to_rows):
            if isinstance(rows, ValueError):
                refused.append((where, str(rows)))
                continue
            for row in rows:
                ids = np.array(row.ids, dtype).tobytes()
                digest.update(ids)
                file.write(ids)
                ends.append(ends[-1] + len(row.ids))
                # canvas [False, False, True, ...] -> 2 visible tokens
                visible.append(row.canvas.index(True))
    # samples of 4 and 3 tokens with 1 and 2 visible ones: [4, 7, 1, 2]
    index = np.concatenate([np.array(ends[1:], "<i8"), np.array(visible, "<i8")]).tobytes()
    digest.update(index)
    with atomic_write(path.with_suffix(INDEX)) as half:
        half.write_bytes(index)
    shard = {
        "tokens": ends[-1],
        "samples": len(visible),
        "digest": digest.hexdigest(),
        "refused": refused,
    }
    write_json_whole(path.with_suffix(DONE), shard)
    return shard


@cache
def tokenizer_of(job: Tokenization) -> DiffuCoderTokenizer:
    """Load the tokenizer, once per process. Adds the mask token for texts, used in adaptation."""
    return DiffuCoderTokenizer.from_pretrained(job.tokenizer, adds_mask=job.kind == "text")


def dtype_of(tokenizer: DiffuCoderTokenizer) -> np.dtype:
    """Return the smallest dtype that holds all ids."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")


def summarize_counts(shards: list[Fields]) -> str:
    """Return a summary of shards: numbers of samples, tokens and refused lines."""
    samples, tokens = (sum(shard[name] for shard in shards) for name in ("samples", "tokens"))
    return summarize(samples, tokens, sum(len(shard["refused"]) for shard in shards))

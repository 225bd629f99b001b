"""Tokenise a data set once: parts of a source become shards, in parallel, each whole or not at all.

What a shard holds follows from the settings and its part alone. So a run that was killed, at any
moment and with any number of workers, goes on with the shards that are missing.
`jax_lm.data.token_shards` reads what this writes.
"""

import hashlib
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
from pathlib import Path
from typing import Any

import numpy as np

from jax_lm.data.batches import Row
from jax_lm.data.columns import BadRowError, Columns
from jax_lm.data.conversations import NAMED, row_fields, rows_reader
from jax_lm.data.sources import Source
from jax_lm.data.token_shards import DATASET, DONE, FORMAT, INDEX, TOKENS, Kind, digest_of
from jax_lm.host.files import output_folder
from jax_lm.host.interruption import discard_unfinished, remove_on_exit
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenizerError

logger = logging.getLogger(__name__)

PLAN = "plan.json"
HALF_WRITTEN = ".tmp"


@dataclass(frozen=True, kw_only=True)
class Tokenization:
    """What decides the tokens. Pickled for the workers.

    Attributes:
        source: of the lines.
        tokenizer: its folder.
        fingerprint: of the tokenizer.
        kind: what a line is: a text, or a conversation with what is learnt at its end.
        max_length: longest conversation; longer ones are refused. Texts have any length.
        columns: of the lines, where they have other names than ours.
    """

    source: Source
    tokenizer: str
    fingerprint: str
    kind: Kind
    max_length: int
    columns: Columns = ()

    def plan(self) -> dict[str, Any]:
        """Describe it as JSON: what a run must have in common with the shards that it finds."""
        return json.loads(
            json.dumps({"format": FORMAT, **asdict(self)} | {"tokenizer": self.fingerprint})
        )


def tokenize(job: Tokenization, out: Path, workers: int) -> str:
    """Write the shards that are missing, then the description of the whole; says what there is.

    Raises:
        ValueError: `out` holds shards of other data or settings, or no line could be used.
    """
    # Before anything is made: data that cannot be read leave nothing.
    parts = job.source.parts
    output_folder(out)
    agree(job.plan(), out)
    for path in out.glob(f"*{HALF_WRITTEN}"):
        path.unlink()
    missing = [part for part in range(parts) if not (out / f"{shard_name(part)}{DONE}").is_file()]
    with workers_of(min(workers, len(missing))) as each:
        for done, shard in enumerate(
            each(partial(write_shard, job, out), missing), parts - len(missing) + 1
        ):
            logger.info("shard %d/%d: %s", done, parts, counts_of([shard]))
    shards = [
        json.loads((out / f"{shard_name(part)}{DONE}").read_text(encoding="utf-8"))
        for part in range(parts)
    ]
    refused = [(where, reason) for shard in shards for where, reason in shard["refused"][:NAMED]][
        :NAMED
    ]
    named = "".join(f"; {where}: {reason}" for where, reason in refused)
    if not any(shard["samples"] for shard in shards):
        # Else they would stand in the way of the same command with better data.
        for path in (
            out / PLAN,
            *(path for part in range(parts) for path in out.glob(f"{shard_name(part)}.*")),
        ):
            path.unlink()
        raise ValueError(f"data: {counts_of(shards)}{named}: nothing to learn from")
    kept = [
        {"name": shard_name(part), **shard, "refused": len(shard["refused"])}
        for part, shard in enumerate(shards)
    ]
    described = {
        "format": FORMAT,
        "kind": job.kind,
        "tokenizer": job.fingerprint,
        "dtype": dtype_of(tokenizer_of(job)).str,
        "longest": max(shard["longest"] for shard in shards),
        "refused": sum(shard["refused"] for shard in kept),
        "digest": digest_of(kept),
        "shards": [shard for shard in kept if shard["samples"]],
    }
    write_synced(out / DATASET, json.dumps(described, indent=1).encode())
    return f"{out}: {counts_of(shards)}{named}"


def agree(plan: dict[str, Any], out: Path) -> None:
    """Write the plan of a new folder; ValueError if the folder holds shards of another plan."""
    path = out / PLAN
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else plan
    for name in (name for name in plan | held if plan.get(name) != held.get(name)):
        raise ValueError(
            f"out={out}: holds shards with {name}={held.get(name)!r}, not {plan.get(name)!r}"
        )
    write_synced(path, json.dumps(plan, indent=1).encode())


@contextmanager
def workers_of(count: int) -> Iterator[Callable]:
    """Give a `map` over so many processes, in this one if there is but one; its results come as
    they are ready.
    """
    if count <= 1:
        yield map
        return
    # Python's tracker of semaphores removes them after an interrupt, and warns of it.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=end_with_parent) as pool:

        def mapped(*arguments: Any) -> Iterator:
            # Processes inherit it: Ctrl-C is for the one that started them, and they end with it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return pool.map(*arguments)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        yield mapped


def end_with_parent() -> None:
    """End this process when the one that started it has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        discard_unfinished()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write_shard(job: Tokenization, out: Path, part: int) -> dict[str, Any]:
    """Write the shard of a part, its description last; returns that."""
    tokenizer, to_rows = tokenizer_of(job), rows_of(job)
    dtype, digest = dtype_of(tokenizer), hashlib.sha256()
    ends, visible, refused = array("q", [0]), array("q"), []
    path = out / f"{shard_name(part)}{TOKENS}"
    # Named by the process: another one may write the same shard, if it is being ended while this
    # run begins.
    half = out / f"{path.name}.{os.getpid()}{HALF_WRITTEN}"
    with remove_on_exit(half), half.open("wb") as file:
        for where, line in job.source.read(part):
            try:
                rows = to_rows(row_fields(line))
            except (BadRowError, TokenizerError) as error:
                refused.append((where, str(error)))
                continue
            for row in rows:
                ids = np.array(row.ids, dtype).tobytes()
                digest.update(ids)
                file.write(ids)
                ends.append(ends[-1] + len(row.ids))
                visible.append(row.canvas.index(True))
        file.flush()
        os.fsync(file.fileno())
        half.replace(path)
    index = np.concatenate([np.array(ends[1:], "<i8"), np.array(visible, "<i8")]).tobytes()
    digest.update(index)
    write_synced(path.with_suffix(INDEX), index)
    longest = int(np.diff(np.array(ends)).max(initial=0))
    shard = {
        "tokens": ends[-1],
        "samples": len(visible),
        "longest": longest,
        "digest": digest.hexdigest(),
    }
    write_synced(path.with_suffix(DONE), json.dumps(shard | {"refused": refused}).encode())
    return shard | {"refused": refused}


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, and stays when the machine goes down."""
    half = path.with_name(f"{path.name}.{os.getpid()}{HALF_WRITTEN}")
    with remove_on_exit(half), half.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        half.replace(path)


@cache
def tokenizer_of(job: Tokenization) -> DiffuCoderTokenizer:
    """Load the tokenizer, once per process; for texts, adaptation may have to add the mask token."""
    return DiffuCoderTokenizer.from_pretrained(job.tokenizer, adds_mask=job.kind == "text")


@cache
def rows_of(job: Tokenization) -> Callable[[dict[str, Any]], list[Row]]:
    """Make what turns a line's fields into samples."""
    return rows_reader(
        job.kind,
        tokenizer_of(job),
        sys.maxsize if job.kind == "text" else job.max_length,
        job.columns,
    )


def dtype_of(tokenizer: DiffuCoderTokenizer) -> np.dtype:
    """Choose the smallest type that holds all ids."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")


def shard_name(part: int) -> str:
    return f"{part:06}"


def counts_of(shards: list[dict[str, Any]]) -> str:
    """Count what shards hold, and what they refused."""
    samples, tokens = (sum(shard[name] for shard in shards) for name in ("samples", "tokens"))
    return f"{samples} samples, {tokens} tokens, {sum(len(shard['refused']) for shard in shards)} lines refused"

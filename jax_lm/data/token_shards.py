"""Tokenised data sets: files of tokens, of which a sample, or a row of the text, is read without
the others.

    corpus/dataset.json      kind, tokenizer, sizes and digest: there once all shards are
    corpus/000000.tokens     the ids of all samples behind each other, uint16 or uint32, little-endian
    corpus/000000.index      int64: the end of each sample, then of each sample the number of its visible tokens
    corpus/000000.json       sizes and digest of the shard, and what was refused: written last

Files are mapped for one read at a time, so that a process holds what it reads and no more.
`jax_lm.data.tokenizing` writes them. Knows files and rows, no tokenizer and no text.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from jax_lm.data.batches import Row

Kind = Literal["text", "conversations"]
DATASET, FORMAT = "dataset.json", 1
TOKENS, INDEX, DONE = ".tokens", ".index", ".json"
# Of the Feistel network; four make a permutation that cannot be told from a random one.
ROUNDS = 4


@dataclass(frozen=True)
class TokenShards:
    """A tokenised data set.

    Attributes:
        kind: text, all of which is learnt, or conversations with a visible beginning.
        dtype: of the ids on disk.
        names: of the shards.
        token_starts, sample_starts: tokens and samples before each shard, and behind the last one.
        longest: tokens of the longest sample.
        tokenizer: fingerprint of the tokenizer.
        digest: of all tokens; tells whether a run goes on with the samples it began with.
        refused: lines that gave no sample.
    """

    folder: Path
    kind: Kind
    dtype: np.dtype
    names: tuple[str, ...]
    token_starts: Int[np.ndarray, "shards"]
    sample_starts: Int[np.ndarray, "shards"]
    longest: int
    tokenizer: str
    digest: str
    refused: int

    @classmethod
    def open(cls, folder: Path, kind: Kind, tokenizer: str) -> "TokenShards":
        """Open a folder for a tokenizer of this fingerprint.

        Raises:
            ValueError: no whole data set, of another kind or tokenizer, or files of other sizes
                than it says.
        """
        try:
            fields = dict(json.loads((folder / DATASET).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            advice = (
                "`diffucoder data tokenize` writes such a folder, and finishes one that it left"
            )
            raise ValueError(
                f"data={str(folder)!r}: has no {DATASET} that can be read ({error}); {advice}"
            ) from error
        for name, wanted in (("format", FORMAT), ("kind", kind), ("tokenizer", tokenizer)):
            if fields.get(name) != wanted:
                raise ValueError(
                    f"data={str(folder)!r}: tokenised with {name}={fields.get(name)!r}, not {wanted!r}"
                )
        shards, dtype = fields["shards"], np.dtype(fields["dtype"])
        for shard in shards:
            for end, size in (
                (TOKENS, shard["tokens"] * dtype.itemsize),
                (INDEX, shard["samples"] * 16),
            ):
                path = folder / f"{shard['name']}{end}"
                if not path.is_file() or path.stat().st_size != size:
                    raise ValueError(
                        f"data={str(folder)!r}: {path.name} is not there with its {size} bytes"
                    )
        starts = (
            np.cumsum([0, *(shard[count] for shard in shards)]) for count in ("tokens", "samples")
        )
        return cls(
            folder, kind, dtype, tuple(shard["name"] for shard in shards), *starts,
            longest=fields["longest"], tokenizer=tokenizer, digest=fields["digest"], refused=fields["refused"],
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.token_starts[-1])

    def __len__(self) -> int:
        return int(self.sample_starts[-1])

    def describe(self) -> str:
        """Say how much there is, and how many lines were refused."""
        return f"{self.folder}: {len(self)} samples, {self.tokens} tokens, {self.refused} lines refused"

    @cached_property
    def lengths(self) -> Int[np.ndarray, "n"]:
        """Tokens of each sample."""
        return np.concatenate(
            [np.diff(self.ends(shard), prepend=0) for shard in range(len(self.names))]
        )

    def __getitem__(self, number: int) -> Row:
        """Read a sample: its beginning visible, the rest an open canvas."""
        shard, place = located(self.sample_starts, number)
        ends, count = self.ends(shard), len(self.ends(shard))
        start, stop = int(ends[place - 1]) if place else 0, int(ends[place])
        visible = int(self.mapped(shard, INDEX, np.dtype("<i8"), count + place, 1)[0])
        ids = self.mapped(shard, TOKENS, self.dtype, start, stop - start).tolist()
        return Row(tuple(ids), (False,) * visible + (True,) * (len(ids) - visible))

    def ends(self, shard: int) -> Int[np.ndarray, "n"]:
        """Map the ends of a shard's samples, from its first token on."""
        count = int(self.sample_starts[shard + 1] - self.sample_starts[shard])
        return self.mapped(shard, INDEX, np.dtype("<i8"), 0, count)

    def mapped(self, shard: int, end: str, dtype: np.dtype, first: int, count: int) -> np.ndarray:
        """Map a part of a file; its pages go when the array does."""
        return np.memmap(
            self.folder / f"{self.names[shard]}{end}", dtype, "r", first * dtype.itemsize, (count,)
        )

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut the tokens from `start` to `stop`, of all samples behind each other, where samples
        end.
        """
        cuts = [start]
        while cuts[-1] < stop:
            shard, place = located(self.token_starts, cuts[-1])
            before = int(self.token_starts[shard])
            ends = self.ends(shard)
            first, last = (int(np.searchsorted(ends, at, "right")) for at in (place, stop - before))
            cuts += [before + int(end) for end in ends[first:last]] or [stop]
            # A shard's last sample ends with it: the next round begins in the next shard, or goes
            # to `stop`.
        return list(pairwise(cuts))

    def text(self, start: int, stop: int) -> list[int]:
        """Read the tokens from `start` to `stop`, which lie in one shard."""
        shard, place = located(self.token_starts, start)
        return self.mapped(shard, TOKENS, self.dtype, place, stop - start).tolist()


def located(starts: Int[np.ndarray, "shards"], number: int) -> tuple[int, int]:
    """Find the shard that holds something by its number, and its number there."""
    shard = int(np.searchsorted(starts, number, "right")) - 1
    return shard, number - int(starts[shard])


@dataclass(frozen=True)
class TextRows:
    """The rows of `max_length` tokens that all texts behind each other make, in an order of its own
    per epoch.

    A row follows from its number, the seed and the epoch alone: no order is held. Its samples are
    the pieces of texts in it, by where they start and stop.

    Attributes:
        first, count: the rows taken, in an order that the seed alone decides: the others are held
            out, or learnt.
    """

    shards: TokenShards
    max_length: int
    seed: int
    first: int
    count: int

    @classmethod
    def of(cls, shards: TokenShards, max_length: int, seed: int) -> "TextRows":
        """Take all rows; the last one may be shorter."""
        return cls(shards, max_length, seed, 0, -(-shards.tokens // max_length))

    def split(self, share: float) -> tuple["TextRows", "TextRows | None"]:
        """Hold a share of the rows out; ValueError if a part would be empty."""
        if not share:
            return self, None
        count = round(share * self.count)
        if not 0 < count < self.count:
            raise ValueError(f"held_out_share={share}: of {self.count} rows that is {count}")
        return replace(self, first=count, count=self.count - count), replace(self, count=count)

    def start(self, epoch: int) -> int:
        """Count the rows before an epoch."""
        return epoch * self.count

    def rows(self, first: int, count: int) -> list[list[tuple[int, int]]]:
        """Take `count` rows from the `first` on, over the ends of epochs."""
        return [self.row(*divmod(number, self.count)) for number in range(first, first + count)]

    def row(self, epoch: int, place: int) -> list[tuple[int, int]]:
        """List the pieces of the row at a place of an epoch."""
        number = self.first + permuted(place, self.count, f"{self.seed} {epoch}".encode())
        total = -(-self.shards.tokens // self.max_length)
        start = permuted(number, total, b"%d held out" % self.seed) * self.max_length
        return self.shards.pieces(start, min(start + self.max_length, self.shards.tokens))

    def __getitem__(self, piece: tuple[int, int]) -> Row:
        """Read a piece of a text, all of which may be masked."""
        ids = self.shards.text(*piece)
        return Row(tuple(ids), (True,) * len(ids), open=False)


def permuted(number: int, size: int, key: bytes) -> int:
    """Map a number below `size` to another one, one to one: a Feistel network, walked until it
    falls below `size`.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        for turn in range(ROUNDS):
            left, right = number >> half, number & mask
            drawn = hashlib.blake2b(b"%d %d" % (turn, right), digest_size=8, key=key).digest()
            number = right << half | (left ^ int.from_bytes(drawn, "little") & mask)
        if number < size:
            return number


def digest_of(shards: list[dict[str, Any]]) -> str:
    """Digest the digests of all shards."""
    return hashlib.sha256(json.dumps([shard["digest"] for shard in shards]).encode()).hexdigest()[
        :16
    ]

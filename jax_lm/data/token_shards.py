"""Tokenised data sets: token files with random access to samples and to rows of text.

    corpus/dataset.json   kind, tokenizer, sizes and digest; written once all shards are complete
    corpus/000000.tokens  ids of all samples, concatenated; uint16 or uint32, little-endian
    corpus/000000.index   int64: the end of each sample, then each sample's number of visible tokens
    corpus/000000.json    sizes and digest of the shard, and its refused lines; written last

Files are memory-mapped for one read at a time, so that a process holds only the data that it
reads. `jax_lm.data.tokenizing` writes them. Knows files and rows, but neither tokenizer nor text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Int

from jax_lm.config import Texts, counted
from jax_lm.data.batches import Indices, Row
from jax_lm.data.columns import DATASET, Kind

# Parts of the concatenated texts: start and stop of each, in tokens.
Pieces = list[tuple[int, int]]
# Version of the format of the files.
FORMAT = 1
# Suffixes of the files of a shard; that of DONE is written last.
TOKENS = ".tokens"
INDEX = ".index"
DONE = ".json"
# Rounds of the Feistel network. Four make it indistinguishable from a random permutation.
ROUNDS = 4


@dataclass(frozen=True)
class TokenShards:
    """A tokenised data set.

    Attributes:
        folder: folder of the data set.
        kind: text, all of which is learnt, or conversations with a visible prompt.
        dtype: dtype of the ids on disk.
        names: file names of the shards, without suffix.
        token_starts: number of tokens before each shard, and in total as the last entry.
        sample_starts: number of samples before each shard, and in total as the last entry.
        digest: digest of all tokens, by which a resumed run detects changed samples.
        refused: number of lines that gave no sample.
    """

    folder: Path
    kind: Kind
    dtype: np.dtype
    names: Texts
    token_starts: Int[np.ndarray, "shards"]
    sample_starts: Int[np.ndarray, "shards"]
    digest: str
    refused: int

    @classmethod
    def open(cls, folder: Path, kind: Kind, tokenizer: str) -> "TokenShards":
        """Open a data set.

        Args:
            folder: folder of the data set.
            kind: the kind that it must have.
            tokenizer: fingerprint of the tokenizer that it must have been made with.

        Raises:
            ValueError: the data set is incomplete, has another kind or tokenizer, or a file does
                not have its recorded size.
        """
        try:
            fields = dict(json.loads((folder / DATASET).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"data={str(folder)!r}: has no {DATASET} that can be read ({error}); "
                "`diffucoder data tokenize` writes such a folder, and completes an unfinished one"
            ) from error
        for name, expected in (("format", FORMAT), ("kind", kind), ("tokenizer", tokenizer)):
            if fields.get(name) != expected:
                raise ValueError(
                    f"data={str(folder)!r}: tokenised with {name}={fields.get(name)!r}, "
                    f"not {expected!r}"
                )
        shards = fields["shards"]
        dtype = np.dtype(fields["dtype"])
        for shard in shards:
            # Two int64 for each sample: its end and its number of visible tokens.
            sizes = {TOKENS: shard["tokens"] * dtype.itemsize, INDEX: shard["samples"] * 16}
            for suffix, size in sizes.items():
                path = folder / f"{shard['name']}{suffix}"
                if not path.is_file() or path.stat().st_size != size:
                    raise ValueError(
                        f"data={str(folder)!r}: {path.name} is missing, or does not have its "
                        f"{size} bytes"
                    )
        return cls(
            folder=folder,
            kind=kind,
            dtype=dtype,
            names=tuple(shard["name"] for shard in shards),
            # Shards of 3, 0 and 5 tokens -> [0, 3, 3, 8]
            token_starts=np.cumsum([0, *(shard["tokens"] for shard in shards)]),
            sample_starts=np.cumsum([0, *(shard["samples"] for shard in shards)]),
            digest=fields["digest"],
            refused=fields["refused"],
        )

    @property
    def tokens(self) -> int:
        """Number of tokens of all samples."""
        return int(self.token_starts[-1])

    def __len__(self) -> int:
        return int(self.sample_starts[-1])

    def describe(self) -> str:
        """Return a summary of the data set."""
        return f"{self.folder}: {summarize(len(self), self.tokens, self.refused)}"

    @cached_property
    def lengths(self) -> Indices:
        """Number of tokens of each sample."""
        return np.concatenate(
            [np.diff(self.ends(shard), prepend=0) for shard in range(len(self.names))]
        )

    def __getitem__(self, number: int) -> Row:
        """Read a sample: a visible prompt, then an open canvas."""
        # In a shard with ends [4, 7], sample 1 is tokens 4 to 6.
        shard, index = locate(self.sample_starts, number)
        ends = self.ends(shard)
        start = int(ends[index - 1]) if index else 0
        stop = int(ends[index])
        visible = int(self.map_file(shard, INDEX, np.dtype("<i8"), len(ends) + index, 1)[0])
        ids = self.map_file(shard, TOKENS, self.dtype, start, stop - start).tolist()
        return Row.masked_after(visible, ids)

    def ends(self, shard: int) -> Indices:
        """Return the end of each of a shard's samples, counted from the shard's first token."""
        count = int(self.sample_starts[shard + 1] - self.sample_starts[shard])
        return self.map_file(shard, INDEX, np.dtype("<i8"), 0, count)

    def map_file(
        self, shard: int, suffix: str, dtype: np.dtype, first: int, count: int
    ) -> np.ndarray:
        """Memory-map `count` elements of a shard's file, until the array is deleted."""
        path = self.folder / f"{self.names[shard]}{suffix}"
        return np.memmap(path, dtype, "r", first * dtype.itemsize, (count,))

    def pieces(self, start: int, stop: int) -> Pieces:
        """Split [start, stop), in tokens of the concatenated samples, where samples end."""
        # Samples of 4, 3 and 5 tokens: pieces(2, 9) -> [(2, 4), (4, 7), (7, 9)]
        cuts = [start]
        while cuts[-1] < stop:
            shard, index = locate(self.token_starts, cuts[-1])
            shard_start = int(self.token_starts[shard])
            ends = self.ends(shard)
            first, last = np.searchsorted(ends, [index, stop - shard_start], "right")
            # Cut at each sample end in this shard, up to `stop`. If there is none, the last piece
            # ends at `stop`. The last sample of a shard ends with the shard, so the next iteration
            # begins in the next shard.
            cuts += (shard_start + ends[first:last]).tolist() or [stop]
        return list(pairwise(cuts))

    def text(self, start: int, stop: int) -> list[int]:
        """Read the tokens in [start, stop), which must lie in one shard."""
        shard, index = locate(self.token_starts, start)
        return self.map_file(shard, TOKENS, self.dtype, index, stop - start).tolist()


def summarize(samples: int, tokens: int, refused: int) -> str:
    """Return a summary: numbers of samples, tokens and refused lines."""
    lines = counted(refused, "line")
    return f"{counted(samples, 'sample')}, {counted(tokens, 'token')}, {lines} refused"


# The samples of a run, in memory or in files.
TrainingSamples = Sequence[Row] | TokenShards


def locate(starts: Int[np.ndarray, "shards"], number: int) -> tuple[int, int]:
    """Convert a global index to the number of its shard and the index within the shard."""
    # starts [0, 3, 3, 8]: 2 -> (0, 2), 4 -> (2, 1). "right" skips the empty shard 1: 3 -> (2, 0).
    shard = int(np.searchsorted(starts, number, "right")) - 1
    return shard, number - int(starts[shard])


@dataclass(frozen=True)
class TextRows:
    """An order of a `SampleStream`: rows of `max_length` tokens, cut from the concatenated texts.

    Every epoch has its own order. A row depends only on its index, the seed and the epoch, so that
    no order is kept in memory. The keys of its samples are the (start, stop) of its pieces of text.

    Attributes:
        shards: the texts.
        max_length: number of tokens of a row.
        seed: seed of the order.
        first: index of the first row used, in a fixed order that depends on the seed alone. The
            rows outside [first, first + count) belong to the other side of `split`.
        count: number of rows used.
    """

    shards: TokenShards
    max_length: int
    seed: int
    first: int
    count: int

    @classmethod
    def of(cls, shards: TokenShards, max_length: int, seed: int) -> "TextRows":
        """Return the order of all rows, the last of which may be shorter."""
        return cls(shards, max_length, seed, 0, -(-shards.tokens // max_length))

    def split(self, share: float) -> tuple["TextRows", "TextRows | None"]:
        """Return the training rows and the held-out rows (None if `share` is 0).

        Raises:
            ValueError: one of the two would be empty.
        """
        if not share:
            return self, None
        # 100 rows and share 0.1: rows 0 to 9 of the fixed order are held out, 10 to 99 are learnt.
        count = round(share * self.count)
        if not 0 < count < self.count:
            raise ValueError(
                f"held_out_share={share}: holds out {count} of {self.count} rows; some must be held "
                "out, and some learnt"
            )
        return replace(self, first=count, count=self.count - count), replace(self, count=count)

    def start(self, epoch: int) -> int:
        """Return the number of the first row of an epoch."""
        return epoch * self.count

    def rows(self, first: int, count: int) -> list[Pieces]:
        """Return the pieces of `count` rows starting at row `first`, across epochs."""
        return [self.row(*divmod(number, self.count)) for number in range(first, first + count)]

    def row(self, epoch: int, index: int) -> Pieces:
        """Return the pieces of the row with this index in an epoch."""
        # Two permutations: the epoch's order within [first, first + count), then the fixed order
        # by which `split` divides all rows.
        number = self.first + permute(index, self.count, f"{self.seed} {epoch}".encode())
        total = -(-self.shards.tokens // self.max_length)
        start = permute(number, total, b"%d held out" % self.seed) * self.max_length
        return self.shards.pieces(start, min(start + self.max_length, self.shards.tokens))

    def __getitem__(self, piece: tuple[int, int]) -> Row:
        """Read a piece of text, all of which may be masked except for its first token."""
        return Row.masked_after(1, self.shards.text(*piece), open=False)


def permute(number: int, size: int, key: bytes) -> int:
    """Return the number to which a keyed permutation of [0, size) maps `number`.

    The permutation is a Feistel network, and need not be stored. The network permutes a power of
    two of numbers. It is applied again until the result is below `size` (cycle walking), which
    keeps the mapping one-to-one.
    """
    # size=10: 9 has 4 bits, so half_bits is 2, and the network permutes [0, 16).
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    while True:
        for round_number in range(ROUNDS):
            # 0b1101 has left 0b11 and right 0b01. The result has right, then left xor hash(right).
            left = number >> half_bits
            right = number & mask
            digest_bytes = blake2b(
                b"%d %d" % (round_number, right), digest_size=8, key=key
            ).digest()
            number = right << half_bits | (left ^ int.from_bytes(digest_bytes, "little") & mask)
        if number < size:
            return number

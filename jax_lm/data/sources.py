"""Sources of data lines, read in parts: JSONL files by byte ranges, a JSON array, or `datasets`.

A JSONL file compressed by gzip is read as a single part.

Any process can read any part independently, and a part always contains the same lines. Knows
lines, nothing of their meaning.
"""

import gzip
import json
import re
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jax_lm.config import pairs
from jax_lm.data.columns import DATASET

# The location of each line, and the line: bytes, or a parsed JSON value.
Lines = Iterator[tuple[str, Any]]

# Default size of a part: 256 MiB of a file, or 131,072 rows of a data set.
PART_BYTES = 2**28
PART_ROWS = 2**17

# The default split, and the one that `datasets` assigns to data without splits.
WHOLE = "train"

# Words in file names by which `datasets` recognises the splits of a folder, and their splits.
SPLIT_WORDS = pairs("""
    train train  training train
    validation validation  valid validation  val validation  dev validation
    test test  testing test  eval test  evaluation test
""")


@dataclass(frozen=True)
class JsonFiles:
    """JSONL files, read as if they were concatenated, or a file with one JSON array.

    Attributes:
        files: path, size in bytes and modification time (ns) of each file.
        part_bytes: bytes of a part. A line belongs to the part in which it begins; an array is a
            single part, whose elements are the lines.
    """

    files: tuple[tuple[str, int, int], ...]
    part_bytes: int

    @classmethod
    def of(cls, paths: list[Path], num_shards: int | None) -> "JsonFiles":
        """Return a source for these files, in `num_shards` parts or in parts of `PART_BYTES`."""
        files = tuple(
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths
        )
        # 100 bytes in 3 parts: 34, 34 and 32
        total = sum(size for _, size, _ in files)
        return cls(files, max(1, -(-total // num_shards) if num_shards else PART_BYTES))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-sum(size for _, size, _ in self.files) // self.part_bytes)

    def read(self, part: int) -> Lines:
        """Yield the location of each line of a part, and its bytes or the value of an element.

        Lines of the first part of a file are numbered; others are located by their first byte.
        """
        # `start` is relative to the current file: files of 10 and 20 bytes, part_bytes=15:
        # part 1 starts at byte 15, past the end of the first file, which is byte 15 - 10 = 5 of the
        # second one.
        start = part * self.part_bytes
        for path, size, _ in self.files:
            if start < size and start + self.part_bytes > 0:
                file = Path(path)
                name = f"{file.name}, " if len(self.files) > 1 else ""
                stop = min(start + self.part_bytes, size)
                is_array = holds_array(file)
                lines = elements_of(file) if is_array else lines_from(file, max(start, 0), stop)
                yield from ((name + where, line) for where, line in lines)
            start -= size


def lines_from(path: Path, start: int, stop: int) -> Lines:
    """Yield the lines of a file that begin at a byte in [start, stop) and are not blank.

    All lines of a compressed file are yielded.

    Raises:
        ValueError: the file cannot be read, or is damaged.
    """
    try:
        opener, stop = (gzip.open, sys.maxsize) if is_packed(path) else (open, stop)
        with opener(path, "rb") as file:
            if start:
                # Skip the line that began before `start`. The search begins one byte earlier: if
                # that byte is the line end, a line begins exactly at `start` and must not be skipped.
                file.seek(start - 1)
                file.readline()
            number = 0
            while (at := file.tell()) < stop and (line := file.readline()):
                number += 1
                if line.strip():
                    yield f"byte {at}" if start else f"line {number}", line
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"data={str(path)!r} cannot be read: {error}") from error


def is_packed(path: Path) -> bool:
    """Return whether a file is compressed by gzip, whatever its name."""
    return beginning(path).startswith(b"\x1f\x8b")


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, without a byte order mark and blanks before them."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(BOM_UTF8).lstrip()


def elements_of(path: Path) -> Lines:
    """Return the location and value of each element of a file with one JSON array.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        elements = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"data={str(path)!r}: begins as a JSON array and is no JSON ({error})"
        ) from error
    return ((f"element {number}", element) for number, element in enumerate(elements, 1))


def holds_array(path: Path) -> bool:
    """Return whether a .json file begins with an array."""
    # Files named .json may also contain JSON lines: the first character decides.
    return path.suffix == ".json" and path.is_file() and beginning(path).startswith(b"[")


@dataclass(frozen=True)
class HubDataset:
    """A data set loaded by `datasets`, which needs the extra of that name.

    Attributes:
        data: Hub id (owner/name@revision), a folder saved by `datasets`, or Parquet and other
            files.
        split: split to read.
        subset: configuration of the data set, `name` in `datasets`.
        streaming: read the original files instead of converting them to Arrow files in the cache
            first. Data saved as Arrow files are read from them in any case.
        num_shards: number of parts. By default the number of files when streaming, otherwise one
            part for each `PART_ROWS` rows.
    """

    data: str
    split: str = WHOLE
    subset: str | None = None
    streaming: bool = False
    num_shards: int | None = None

    @property
    def parts(self) -> int:
        """Number of parts."""
        loaded = load_dataset(self)
        if hasattr(loaded, "__len__"):
            return self.num_shards or max(1, -(-len(loaded) // PART_ROWS))
        return min(self.num_shards or loaded.num_shards, loaded.num_shards)

    def read(self, part: int) -> Lines:
        """Yield the location and the fields of each row of a part."""
        lines = load_dataset(self).shard(num_shards=self.parts, index=part, contiguous=True)
        name = f"part {part}, " if self.parts > 1 else ""
        return ((f"{name}row {number}", fields) for number, fields in enumerate(lines, 1))


Source = JsonFiles | HubDataset


# Files by which a folder is recognised as saved by `datasets`.
SAVED = ("state.json", "dataset_dict.json")


@cache
def load_dataset(source: HubDataset) -> Any:
    """Load a data set, or only its metadata when streaming, once per process.

    Raises:
        ValueError: `datasets` is not installed, or cannot load the data.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"data={source.data!r}: "
            "JSONL files are read without, all else needs pip install 'jax-diffucoder[datasets]'"
        ) from error
    path = Path(source.data)
    options = {"split": source.split, "streaming": source.streaming}
    try:
        if any((path / name).is_file() for name in SAVED):
            saved = datasets.load_from_disk(source.data)
            return saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
        if path.suffix == ".parquet":
            loaded = datasets.load_dataset("parquet", data_files=source.data, **options)
        elif path.exists():
            loaded = datasets.load_dataset(source.data, source.subset, **options)
        else:
            name, _, revision = source.data.partition("@")
            loaded = datasets.load_dataset(
                name, source.subset, revision=revision or None, **options
            )
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:  # pyright: ignore[reportAttributeAccessIssue]
        # An error "while generating the dataset" has the reason as its cause.
        reason = str(error.__cause__ or error).replace("\n", " ")
        place = "datasets" if path.exists() else "there is no such file or folder, and the hub"
        raise ValueError(f"data={source.data!r}: {place} cannot load it ({reason})") from error
    # Streams have one shard per file. `reshard` splits files, if more parts are requested.
    return (
        loaded.reshard()
        if source.streaming and (source.num_shards or 0) > loaded.num_shards
        else loaded
    )


def holds_dataset(folder: Path) -> bool:
    """Return whether a folder contains JSONL files or data that `datasets` loads."""
    return any(
        path.is_file() for name in (*SAVED, "*.jsonl", "*.parquet") for path in folder.rglob(name)
    )


def open_source(
    data: str,
    num_shards: int | None = None,
    *,
    split: str = WHOLE,
    subset: str | None = None,
    streaming: bool = False,
) -> Source:
    """Return the source for `data`: a JSON file, a folder of JSONL files, or a data set.

    A file is JSON lines, whatever its name, unless it ends in .parquet, or in .json and is an array.
    It may be compressed by gzip.

    Args:
        data: file, folder, or Hugging Face Hub id.
        num_shards: number of parts; None for the default of the source.
        split: split to read.
        subset: configuration of the data set, `name` in `datasets`.
        streaming: see `HubDataset`.

    Raises:
        ValueError: the file does not exist, a split is requested of JSON without splits, or the
            folder has no files of this split.
    """
    path = Path(data)
    # `datasets` would take a missing file for a hub id: owner/name, old ones without an owner, and
    # perhaps a revision.
    if not path.exists() and (
        path.suffix in (".jsonl", ".json", ".gz", ".parquet", ".txt", ".csv")
        or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@.+)?", data)
    ):
        raise ValueError(f"data={data!r} cannot be read: there is no such file or folder")
    files = sorted(path.glob("*.jsonl"))
    if path.is_file() and path.suffix != ".parquet":
        files = [path]
    if not files and (path / DATASET).is_file():
        raise ValueError(f"data={data!r} is tokenised: only adapt and sft read such a folder")
    if not files or describes_configs(path):
        return HubDataset(data, split, subset, streaming, num_shards)
    if splits := files_by_split(files):
        if split not in splits:
            raise ValueError(f"split={split!r}: data={data!r} has only {', '.join(splits)}")
        files = splits[split]
        split = WHOLE
    require_whole(data, split, subset)
    is_whole = holds_array(path) or any(map(is_packed, files))
    return JsonFiles.of(files, 1 if is_whole else num_shards)


def describes_configs(folder: Path) -> bool:
    """Return whether the folder's data set card assigns files to splits, as `datasets` reads it."""
    card = folder / "README.md"
    return (
        card.is_file()
        and re.search(r"\A---\n(.*\n)*?configs:", card.read_text(encoding="utf-8")) is not None
    )


def files_by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Group files by the split in their names; empty if no name contains a split.

    Raises:
        ValueError: only some names contain a split, so that the others are ambiguous.
    """
    # a-train.jsonl, b_train.jsonl, test.jsonl -> {"train": [a, b], "test": [test]}
    groups = {}
    for file in files if len(files) > 1 else ():
        words = set(re.split(r"[-._ \d]+", file.stem))
        split = next((split for word, split in SPLIT_WORDS.items() if word in words), "")
        groups.setdefault(split, []).append(file)
    if len(groups) > 1 and "" in groups:
        named, other = (group[0].name for group in (groups[max(groups)], groups[""]))
        raise ValueError(
            f"data={str(files[0].parent)!r}: {named} has the name of a split and {other} has not; "
            "name all files by train, validation or test, or none"
        )
    return {} if "" in groups else groups


def require_whole(data: str, split: str, subset: str | None):
    """Raise ValueError if a split or subset is requested of data that have none."""
    for name, value, default in (("split", split, WHOLE), ("subset", subset, None)):
        if value != default:
            raise ValueError(
                f"{name}={value!r}: data={data!r} has no {name}s; "
                "a hub id, a folder in the hub's layout and Parquet have them"
            )

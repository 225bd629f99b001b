"""Where lines of data come from: JSONL files by ranges of bytes, and what the library `datasets` reads, in parts.

A part is read alone, by any process, and always gives the same lines. Knows lines, nothing of what they mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PART_BYTES, PART_ROWS = 2**28, 2**17
"""Size of a part where no number of them is given."""


@dataclass(frozen=True)
class JsonFiles:
    """Files of JSON lines, as if they were one.

    Attributes:
        files: path, size and time of change (ns) of each.
        part_bytes: of a part, which holds the lines that begin in it.
    """

    files: tuple[tuple[str, int, int], ...]
    part_bytes: int

    @classmethod
    def of(cls, paths: list[Path], num_shards: int | None) -> "JsonFiles":
        """Take these files, in as many parts as asked for, or as many as their size makes."""
        stats = [path.stat() for path in paths]
        names = (str(path.resolve()) for path in paths)
        files = tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats, strict=True))
        total = sum(stat.st_size for stat in stats)
        return cls(files, max(1, -(-total // num_shards) if num_shards else PART_BYTES))

    @property
    def parts(self) -> int:
        return -(-sum(size for _, size, _ in self.files) // self.part_bytes)

    def read(self, part: int) -> Iterator[tuple[str, bytes]]:
        start = part * self.part_bytes
        for path, size, _ in self.files:
            if start < size and start + self.part_bytes > 0:
                yield from lines_from(Path(path), max(start, 0), min(start + self.part_bytes, size))
            start -= size


def lines_from(path: Path, start: int, stop: int) -> Iterator[tuple[str, bytes]]:
    """Read the lines that begin between two bytes of a file and are not blank."""
    with path.open("rb") as file:
        if start:
            # A line that begins right here ended the one before, which must not be lost with it.
            file.seek(start - 1)
            file.readline()
        while (at := file.tell()) < stop and (line := file.readline()):
            if line.strip():
                yield f"{path.name}, byte {at}", line


@dataclass(frozen=True)
class HubDataset:
    """What `datasets` loads: from the hub, a folder that it saved, or Parquet and other files; needs its extra.

    Attributes:
        data: hub id (owner/name@revision), folder or file.
        split: of it.
        subset: of a data set that has several, `name` in `datasets`.
        streaming: read from where it lies instead of converting it to Arrow files in the cache first; what is saved as
            such files is read from them in any case.
        num_shards: parts; the number of its files when streaming, else by its rows.
    """

    data: str
    split: str = "train"
    subset: str | None = None
    streaming: bool = False
    num_shards: int | None = None

    @property
    def parts(self) -> int:
        loaded = opened(self)
        if hasattr(loaded, "__len__"):
            return self.num_shards or max(1, -(-len(loaded) // PART_ROWS))
        return min(self.num_shards or loaded.num_shards, loaded.num_shards)

    def read(self, part: int) -> Iterator[tuple[str, dict[str, Any]]]:
        lines = opened(self).shard(num_shards=self.parts, index=part, contiguous=True)
        return ((f"part {part}, row {number}", fields) for number, fields in enumerate(lines))


Source = JsonFiles | HubDataset
"""Lines in parts: `read` gives those of a part, each with where it stands, as text or as fields."""


@cache
def opened(source: HubDataset) -> Any:
    """Load a data set, or only its description if it streams, once per process; ValueError says what is missing."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        wants = "JSONL files are read without, all else needs pip install 'jax-diffucoder[datasets]'"
        raise ValueError(f"data={source.data!r}: {wants}") from error
    path, options = Path(source.data), {"split": source.split, "streaming": source.streaming}
    try:
        if (path / "state.json").is_file():
            saved = datasets.load_from_disk(source.data)
            return saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
        if path.suffix == ".parquet":
            loaded = datasets.load_dataset("parquet", data_files=source.data, **options)
        elif path.exists():
            loaded = datasets.load_dataset(source.data, source.subset, **options)
        else:
            name, _, revision = source.data.partition("@")
            loaded = datasets.load_dataset(name, source.subset, revision=revision or None, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"data={source.data!r}: datasets cannot load it ({error})".replace("\n", " ")) from error
    # Files in parts of their own, where more are wanted than there are files.
    return loaded.reshard() if source.streaming and (source.num_shards or 0) > loaded.num_shards else loaded


def open_source(data: str, num_shards: int | None, **options: Any) -> Source:
    """Find out what `data` is: a JSONL file, a folder of such files, or something for `datasets`, with these options.

    Raises:
        ValueError: a JSONL file that is not there.
    """
    path = Path(data)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.suffix in (".jsonl", ".json") else []
    if not files:
        return HubDataset(data, num_shards=num_shards, **options)
    for file in files:
        if not file.is_file():
            raise ValueError(f"data={data!r} cannot be read: there is no such file")
    return JsonFiles.of(files, num_shards)

"""Where lines of data come from: JSONL files by ranges of bytes, a JSON array, what `datasets`
reads; in parts.

A part is read alone, by any process, and always gives the same lines. Knows lines, nothing of what
they mean.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

# Size of a part where no number of them is given.
PART_BYTES, PART_ROWS = 2**28, 2**17

# The split that is read where none is named, and that `datasets` gives to data without splits.
WHOLE = "train"

NO_FILE = "data={!r} cannot be read: there is no such file"
# Words in the names of files by which `datasets` knows the splits of a folder.
NAMES_OF_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


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
        files = tuple(
            (name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats, strict=True)
        )
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
class JsonArray:
    """A file with one JSON array, whose elements are the lines; it is read whole.

    Attributes:
        path: of the file.
        size, changed: bytes and time of change (ns).
    """

    path: str
    size: int
    changed: int
    parts: int = field(default=1, init=False)

    @classmethod
    def of(cls, path: Path) -> "JsonArray":
        stat = path.stat()
        return cls(str(path.resolve()), stat.st_size, stat.st_mtime_ns)

    def read(self, part: int) -> Iterator[tuple[str, Any]]:
        """Read the elements; ValueError if the file is no JSON."""
        try:
            elements = json.loads(Path(self.path).read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"data={self.path!r}: begins as a JSON array and is no JSON ({error})"
            ) from error
        name = Path(self.path).name
        return (
            (f"{name}, element {number}", element) for number, element in enumerate(elements, 1)
        )


def holds_array(path: Path) -> bool:
    """Tell whether a .json file begins as an array; such files may also hold JSON lines."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return next((line.lstrip()[:1] == b"[" for line in file if line.strip()), False)


@dataclass(frozen=True)
class HubDataset:
    """What `datasets` loads: from the hub, a folder that it saved, or Parquet and other files;
    needs its extra.

    Attributes:
        data: hub id (owner/name@revision), folder or file.
        split: of it.
        subset: of a data set that has several, `name` in `datasets`.
        streaming: read from where it lies instead of converting it to Arrow files in the cache
            first; what is saved as such files is read from them in any case.
        num_shards: parts; the number of its files when streaming, else by its rows.
    """

    data: str
    split: str = WHOLE
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


# Lines in parts: `read` gives those of a part, each with where it stands, as text or as what JSON
# has there.
Source = JsonFiles | JsonArray | HubDataset


# What `datasets` leaves in a folder that it saved.
SAVED = ("state.json", "dataset_dict.json")


@cache
def opened(source: HubDataset) -> Any:
    """Load a data set, or only its description if it streams, once per process; ValueError says
    what is missing.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        wants = (
            "JSONL files are read without, all else needs pip install 'jax-diffucoder[datasets]'"
        )
        raise ValueError(f"data={source.data!r}: {wants}") from error
    path, options = Path(source.data), {"split": source.split, "streaming": source.streaming}
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
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"data={source.data!r}: datasets cannot load it ({error})".replace("\n", " ")
        ) from error
    # Files in parts of their own, where more are wanted than there are files.
    return (
        loaded.reshard()
        if source.streaming and (source.num_shards or 0) > loaded.num_shards
        else loaded
    )


def holds_dataset(folder: Path) -> bool:
    """Tell whether a folder has JSONL files, or is one that the library `datasets` loads."""
    names = (*SAVED, "*.jsonl", "*.parquet")
    return any(path.is_file() for name in names for path in folder.rglob(name))


def open_source(
    data: str, num_shards: int | None, *, split: str, subset: str | None, streaming: bool
) -> Source:
    """Find out what `data` is: a JSON file, a folder of JSONL files, or something for `datasets`,
    with these options.

    Raises:
        ValueError: a file that is not there, JSON that is to have a split, or a folder without
            files of this split.
    """
    path = Path(data)
    if path.suffix == ".parquet" and not path.exists():
        raise ValueError(NO_FILE.format(data))
    files = (
        sorted(path.glob("*.jsonl"))
        if path.is_dir()
        else [path]
        if path.suffix in (".jsonl", ".json")
        else []
    )
    if not files or describes_configs(path):
        return HubDataset(data, split, subset, streaming, num_shards)
    if found := files_by_split(files):
        if split not in found:
            raise ValueError(f"split={split!r}: data={data!r} has only {', '.join(found)}")
        files, split = found[split], WHOLE
    require_whole(data, split, subset)
    for file in files:
        if not file.is_file():
            raise ValueError(NO_FILE.format(data))
    return JsonArray.of(path) if holds_array(path) else JsonFiles.of(files, num_shards)


def describes_configs(folder: Path) -> bool:
    """Tell whether a card says which files of a folder are which split, which `datasets` reads."""
    card = folder / "README.md"
    return (
        card.is_file()
        and re.search(r"\A---\n(.*\n)*?configs:", card.read_text(encoding="utf-8")) is not None
    )


def files_by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Sort the files of a folder by the split that their names tell; empty if they tell none.

    Raises:
        ValueError: some tell one and some do not, so that nobody knows what is to be read.
    """
    found: dict[str, list[Path]] = {}
    for file in files if len(files) > 1 else ():
        words = set(re.split(r"[-._ \d]+", file.stem))
        split = next((split for split, names in NAMES_OF_SPLITS.items() if words & set(names)), "")
        found.setdefault(split, []).append(file)
    if found.keys() - {""} and "" in found:
        named, other = (next(iter(group)).name for group in (found[max(found)], found[""]))
        raise ValueError(
            f"data={str(files[0].parent)!r}: {named} has the name of a split and {other} has not; name all files by "
            "train, validation or test, or none"
        )
    return {} if "" in found else found


def require_whole(data: str, split: str, subset: str | None) -> None:
    """ValueError if a split or subset is asked for of what has none."""
    for name, value, default in (("split", split, WHOLE), ("subset", subset, None)):
        if value != default:
            kinds = "a hub id, a folder in the hub's layout and Parquet have them"
            raise ValueError(f"{name}={value!r}: data={data!r} has no {name}s; {kinds}")

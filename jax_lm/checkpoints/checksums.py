"""SHA256SUMS: what the files of a folder should hold, in the format of `sha256sum -c`."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from jax_lm.checkpoints.stored import CheckpointError

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
SHA256 = re.compile(r"[0-9a-f]{64}")


def list_files(folder: Path) -> list[Path]:
    """List all files of a folder but the sums themselves."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)


def write_sums(folder: Path) -> None:
    """Write the SHA-256 sum of every file in a folder beside them."""
    lines = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in list_files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def collect_sums(folder: Path) -> dict[Path, str]:
    """Collect the known sums of files: from SHA256SUMS, and from the hub's cache, whose links lead to files named so.

    CheckpointError if SHA256SUMS cannot be read, or names what is absent or outside of the folder.
    """
    links = {path: path.resolve().name for path in list_files(folder) if path.is_symlink()}
    sums = {path: name for path, name in links.items() if SHA256.fullmatch(name)}
    if not (folder / SUMS).is_file():
        return sums
    for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        found = LINE.fullmatch(line)
        if not found:
            raise CheckpointError(f"{folder / SUMS} has the line {line[:80]!r}, which is no checksum and name")
        path = folder / found[2]
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise CheckpointError(f"{folder / SUMS} names {found[2]!r}, which is absent")
        sums[path] = found[1]
    return sums


def check_sums(folder: Path, *, on_progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[Path, bool]]:
    """Yield each file that has a known sum, and whether it holds what that says."""
    sums = collect_sums(folder)
    total, done = sum(path.stat().st_size for path in sums), 0
    for path, known in sums.items():
        yield path, sha256(path) == known
        done += path.stat().st_size
        if on_progress:
            on_progress(done, total)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""SHA256SUMS: the checksums of the files of a checkpoint, in the format of `sha256sum -c`."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from jax_lm.checkpoints.loading import Progress
from jax_lm.checkpoints.stored import CheckpointError

SUMS = "SHA256SUMS"
# <digest>, two spaces, <path relative to the folder>
LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
SHA256 = re.compile(r"[0-9a-f]{64}")


def list_files(folder: Path) -> list[Path]:
    """Return all files in a folder except SHA256SUMS."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)


def write_sums(folder: Path):
    """Write SHA256SUMS for all files in a folder."""
    lines = [
        f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in list_files(folder)
    ]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def collect_sums(folder: Path) -> dict[Path, str]:
    """Return the expected SHA-256 digests of the files in a folder.

    They come from SHA256SUMS, and from the hub's cache.

    Raises:
        CheckpointError: a line of SHA256SUMS is malformed, or names a file that is absent or
            outside the folder.
    """
    # In the hub's cache, the files of a snapshot are symbolic links to blobs. The name of a large
    # blob is its SHA-256 digest.
    links = {path: path.resolve().name for path in list_files(folder) if path.is_symlink()}
    sums = {path: name for path, name in links.items() if SHA256.fullmatch(name)}
    if not (folder / SUMS).is_file():
        return sums
    for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        match = LINE.fullmatch(line)
        if not match:
            raise CheckpointError(
                f"{folder / SUMS} has the line {line[:80]!r}, which is not a checksum and a name"
            )
        # "../other" must not lead out of the folder.
        path = folder / match[2]
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise CheckpointError(f"{folder / SUMS} names {match[2]!r}, which is absent")
        sums[path] = match[1]
    return sums


def check_sums(folder: Path, *, on_progress: Progress | None = None) -> Iterator[tuple[Path, bool]]:
    """Yield each file with a known checksum, and whether its content matches.

    Args:
        folder: folder of the checkpoint.
        on_progress: called with the bytes read so far and the total number of bytes.
    """
    sums = collect_sums(folder)
    total = sum(path.stat().st_size for path in sums)
    done = 0
    for path, expected in sums.items():
        yield path, sha256(path) == expected
        done += path.stat().st_size
        if on_progress:
            on_progress(done, total)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

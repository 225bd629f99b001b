"""Atomic writes of files, with the permissions of the user's umask."""

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jax_lm.host.interruption import remove_on_exit


@contextmanager
def remove_empty(path: Path) -> Iterator[None]:
    """Remove a file on leaving the block if nothing was written to it."""
    try:
        yield
    finally:
        if path.is_file() and not path.stat().st_size:
            path.unlink()


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `target` if the block succeeds.

    Its content is on disk by then: after a crash of the machine, a file is the old or the new one.
    The folder is created if it does not exist. If `target` is a symbolic link, the file that it
    points to is replaced. A device or a pipe is yielded itself, because other processes would lose
    it if a file took its place.
    """
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    # In the same folder, because a rename is atomic only within a file system. The name is cut so
    # that it stays below the 255 bytes that file systems allow.
    target = Path(os.path.realpath(target))
    output_folder(target.parent)
    with remove_on_exit(
        target.with_name(f".{target.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}")
    ) as temporary:
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            # Nobody knows the name of the temporary file.
            if error.filename == str(temporary):
                error.filename = str(target)
            raise


def write_whole(path: Path, text: str):
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json_whole(path: Path, value, indent: int = 1):
    """Write a JSON document whole, see `write_whole`."""
    write_whole(path, json.dumps(value, indent=indent) + "\n")


def write_rows_whole(path: Path, rows: Iterable):
    """Write JSON rows whole, one a line, see `write_whole`."""
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def whole_lines(path: Path) -> bytes:
    """Read a file up to its last line end."""
    # b'{"a": 1}\n{"b"' -> b'{"a": 1}\n'
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def require_local(path: Path, name: str = "out"):
    """Raise ValueError if a path is the URL of a bucket."""
    # Path turns gs://bucket/run into gs:/bucket/run
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(path)):
        raise ValueError(
            f"{name}={str(path)!r}: must be a local path; a bucket can be mounted as a folder "
            "(for example by gcsfuse)"
        )


def require_writable(out: Path, name: str = "out"):
    """Raise ValueError if `output_folder` could not create this folder, without creating it.

    Commands call this first, and create the folder when they have something to write.
    """
    require_local(out, name)
    # The nearest existing ancestor: out = "runs/a/b" in an empty directory -> "."
    ancestor = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK):
        reason = "is a file" if ancestor == out else f"{ancestor} is not a writable folder"
        raise ValueError(f"{name}={str(out)!r}: must be a folder, or not exist yet ({reason})")


def require_new(path: Path, name: str = "out"):
    """Raise ValueError if there is a file, a folder that is not empty, or if nothing can be written.

    Devices and pipes, such as /dev/stdout, may be written to.
    """
    if not path.exists():
        require_writable(path.parent, name)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"{name}={str(path)!r}: exists already, and nothing is overwritten")


def require_elsewhere(folder: Path, source: Path | None):
    """Raise ValueError if a model would be written over its source."""
    if source is not None and folder.resolve() == source.resolve():
        raise ValueError(f"{folder} is the source of this model: write to another folder")


def output_folder(out: Path) -> Path:
    """Create the folder that a command writes to. Raises ValueError if that is not possible."""
    require_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    return out

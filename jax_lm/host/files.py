"""Files that appear whole or not at all, with the permissions that the user's umask gives any other file."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jax_lm.host.interruption import remove_on_exit


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Name a new file beside `target` to be written, which takes its place when the block ends well.

    A link keeps pointing where it does. What is there but no file (a device, a pipe) is written to as it is: to put a
    file in its place would take it away from everybody else.
    """
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    target = Path(os.path.realpath(target))
    with remove_on_exit(target.with_name(f".{target.name[:200]}.{os.getpid()}.{secrets.token_hex(4)}")) as temporary:
        yield temporary
        temporary.replace(target)


def write_whole(path: Path, text: str) -> None:
    """Write a text file that is there as a whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_writable(out: Path) -> None:
    """ValueError if `output_folder` could not make this folder; makes nothing, as what is written comes much later."""
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        reason = "is a file" if place == out else f"{place} takes no folder"
        raise ValueError(f"out={str(out)!r}: must be a folder, or not exist yet ({reason})")


def output_folder(out: Path) -> Path:
    """Make the folder that a command writes to; ValueError if it cannot be one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if out.is_file() else error.strerror
        raise ValueError(f"out={str(out)!r}: must be a folder, or not exist yet ({reason})") from error
    return out

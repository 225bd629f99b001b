"""Measure how much of the work folder the programs of a zygote use.

Imports the standard library only.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

# Limits of the work folder: bytes of all files together, and number of files and folders.
WORK_BYTES = 64 * 2**20
MAX_NAMES = 4096
# Least bytes that count for a file or folder: even an empty one takes room, and time to remove.
# 64 MiB / 4096 -> 16 KiB
NAME_BYTES = WORK_BYTES // MAX_NAMES
# Bytes that a single file of a program may have.
MAX_FILE = 16 * 2**20


def used_bytes(folder: str, pids: list[int]) -> int:
    """Add up a folder's bytes, including removed files that are still open or mapped."""
    # By inode, so that a file with several names or descriptors counts once.
    files = dict(files_held(folder))
    for pid in pids:
        # An OSError means that the process has ended, and its open files with it. A program cannot
        # hide them otherwise: it stays dumpable (`confinement.confine`).
        with suppress(OSError):
            files |= dict(removed_but_open(pid))
        with suppress(OSError):
            # A mapping does not show the size of its file, which counts as the largest allowed if
            # nothing else (to the right of |) tells its size.
            files = dict.fromkeys(removed_but_mapped(pid, folder), MAX_FILE) | files
    return sum(max(NAME_BYTES, size) for size in files.values())


def files_held(folder: str) -> Iterator[tuple[int, int]]:
    """Yield inode and bytes of everything in a folder that is still there."""
    folders = [folder]
    while folders:
        with suppress(OSError):
            for entry in entries_of(folders.pop()):
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    # Blocks of 512 bytes, whatever the file system's: a sparse file counts only
                    # what it occupies.
                    yield found.st_ino, found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        folders.append(entry.path)


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """List a folder. If a program has removed its permissions, they are restored meanwhile."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & 0o500 == 0o500:
        return list(os.scandir(folder))
    # No program can see the change: its file calls wait for this process.
    os.chmod(folder, 0o700)
    try:
        return list(os.scandir(folder))
    finally:
        os.chmod(folder, mode)


def removed_but_open(pid: int) -> Iterator[tuple[int, int]]:
    """Yield inode and bytes of the files without a name that a process has open."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{number}")
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                yield found.st_ino, found.st_blocks * 512


def removed_but_mapped(pid: int, folder: str) -> Iterator[int]:
    """Yield the inodes of the files without a name that a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # 7f00-7f01 rw-p 00000000 08:01 4711 /work/a (deleted)
            # A line without a path ends with its inode, which no folder begins with.
            *_, inode, path = line.rstrip("\n").split(maxsplit=5)
            if path.startswith(f"{folder}/") and path.endswith(" (deleted)"):
                yield int(inode)

"""How much a zygote's programs keep in the folder that they write in.

Imports the standard library only.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

# Bytes that all files of a program may have together, and the number of its files and folders.
WORK_BYTES = 64 * 2**20
MAX_NAMES = 4096
# Bytes that a file or folder counts at least, however empty: each takes room and time to remove.
# 64 MiB / 4096 -> 16 KiB
NAME_BYTES = WORK_BYTES // MAX_NAMES
# Bytes that a single file of a program may have.
MAX_FILE = 16 * 2**20


def used_bytes(folder: str, pids: list[int]) -> int:
    """Add up a folder's bytes, including removed files that are still open or mapped."""
    # By inode, so that a file with several names or descriptors counts once.
    files = dict(files_held(folder))
    for pid in pids:
        with suppress(OSError):
            files |= dict(removed_but_open(pid))
        with suppress(OSError):
            # A mapping does not show the size of its file, so it counts as the largest allowed.
            files = dict.fromkeys(removed_but_mapped(pid, folder), MAX_FILE) | files
    return sum(max(NAME_BYTES, size) for size in files.values())


def names_used(folder: str) -> int:
    """Count the files and folders of an in-memory file system, those without a name included."""
    told = os.statvfs(folder)
    return told.f_files - told.f_ffree


def files_held(folder: str) -> Iterator[tuple[int, int]]:
    """Yield inode and bytes of everything in a folder that is still there."""
    folders = [folder]
    while folders:
        with suppress(OSError):
            for entry in entries_of(folders.pop()):
                with suppress(OSError):
                    told = entry.stat(follow_symlinks=False)
                    # Blocks of 512 bytes, whatever the file system's: a sparse file counts only
                    # what it occupies.
                    yield told.st_ino, told.st_blocks * 512
                    if stat.S_ISDIR(told.st_mode):
                        folders.append(entry.path)


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """List a folder, also one whose permissions a program has taken away to hide what is in it."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & 0o500 == 0o500:
        return list(os.scandir(folder))
    os.chmod(folder, 0o700)
    # Programs see nothing of it: their calls wait for the process that runs this.
    try:
        return list(os.scandir(folder))
    finally:
        os.chmod(folder, mode)


def removed_but_open(pid: int) -> Iterator[tuple[int, int]]:
    """Yield inode and bytes of the files without a name that a process has open."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            told = os.stat(f"/proc/{pid}/fd/{number}")
            if stat.S_ISREG(told.st_mode) and told.st_nlink == 0:
                yield told.st_ino, told.st_blocks * 512


def removed_but_mapped(pid: int, folder: str) -> Iterator[int]:
    """Yield the inodes of the files without a name that a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # start-end rights offset device inode path (deleted)
            *_, inode, path = line.rstrip("\n").split(maxsplit=5)
            if path.startswith(f"{folder}/") and path.endswith(" (deleted)"):
                yield int(inode)

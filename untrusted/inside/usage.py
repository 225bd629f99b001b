"""How much the programs of a zygote keep in the folder they write in.

Imports the standard library only.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

# Bytes that the files of a program may have together.
WORK_BYTES = 64 * 2**20
MAX_NAMES = 4096
# What a file or folder counts at least, as each takes room and time to remove, however empty.
NAME_BYTES = WORK_BYTES // MAX_NAMES
# Bytes that one file of a program may have.
MAX_FILE = 16 * 2**20


def used_bytes(folder: str, pids: list[int]) -> int:
    """Add up what a folder holds, and what was removed from it but is still open or mapped in a
    process.
    """
    files = dict(files_held(folder))
    for pid in pids:
        with contextlib.suppress(OSError):
            files |= dict(removed_but_open(pid))
        with contextlib.suppress(OSError):
            # A mapping does not say how long its file is.
            files |= {
                inode: MAX_FILE for inode in removed_but_mapped(pid, folder) if inode not in files
            }
    return sum(max(NAME_BYTES, size) for size in files.values())


def names_used(folder: str) -> int:
    """Count the files and folders of a file system in memory, those without a name too."""
    told = os.statvfs(folder)
    return told.f_files - told.f_ffree


def files_held(folder: str) -> Iterator[tuple[int, int]]:
    """Yield inode and size of everything in a folder, as far as it is still there."""
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    told = entry.stat(follow_symlinks=False)
                    yield told.st_ino, told.st_blocks * 512
                    if stat.S_ISDIR(told.st_mode):
                        folders.append(entry.path)


def removed_but_open(pid: int) -> Iterator[tuple[int, int]]:
    """Yield inode and size of the files without a name that a process has open."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            told = os.stat(f"/proc/{pid}/fd/{number}")
            if stat.S_ISREG(told.st_mode) and told.st_nlink == 0:
                yield told.st_ino, told.st_blocks * 512


def removed_but_mapped(pid: int, folder: str) -> Iterator[int]:
    """Yield the inodes of the files without a name that a process has mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            if (
                len(fields) == 6
                and fields[5].startswith(f"{folder}/")
                and fields[5].endswith(" (deleted)")
            ):
                yield int(fields[4])

"""Answers the system calls of a confined process that name a file or the host.

Used in the Landlock tier, where no namespace hides the host's other files. Landlock decides what
may be opened, but lets every process see whether a file exists. Therefore the kernel stops every
call that takes a name (seccomp's user notification) and sends it here. The name is read once, from
the process's memory, and resolved by `World`; an opened file is passed to the process as a
descriptor. The kernel never looks up a name for the process, so nothing can change between check
and use.
Imports the standard library only. Source: seccomp_unotify(2).
"""

import ctypes
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from errno import (
    EACCES,
    EBADF,
    EFAULT,
    EFBIG,
    EINVAL,
    EIO,
    ENAMETOOLONG,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ERANGE,
)
from typing import Any

from untrusted.inside import syscalls
from untrusted.inside.confinement import MACHINE, callable_numbers, naming_calls, system_call
from untrusted.inside.syscalls import rows_of
from untrusted.inside.usage import MAX_FILE
from untrusted.inside.world import Place, World, os_error

# ioctl numbers SECCOMP_IOCTL_NOTIF_RECV, _SEND and _ADDFD, and the structs that they take,
# unpadded:
# seccomp_notif: id, pid, flags, then seccomp_data: number, architecture, instruction pointer, 6
# arguments
# seccomp_notif_resp: id, value, negative error number, flags
# seccomp_notif_addfd: id, flags, source descriptor, target descriptor, descriptor flags
RECEIVE = 0xC0502100
SEND = 0xC0182101
ADD_DESCRIPTOR = 0x40182103
NOTIFICATION = "=QIIiIQ6Q"
ANSWER = "=QqiI"
ADDED = "=QIIII"
# Sizes of `struct stat`, by machine, and of two `struct timespec`.
STAT_BYTES = {"x86_64": 144, "aarch64": 128}
TIMES_BYTES = 32
AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_REMOVEDIR = 0x200
AT_SYMLINK_FOLLOW = 0x400
AT_EMPTY_PATH = 0x1000
# Permissions that a program may give: not set-uid and set-gid.
MODE = 0o1777
# Bytes: a page of memory, and the longest name (PATH_MAX, with its final zero).
PAGE = 4096
MAX_NAME = 4096
# The host name that every program sees.
HOST = "sandbox"

ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Flags with which a file may be opened. Not O_PATH, which Landlock does not restrict.
FLAGS = "EXCL NOCTTY APPEND NONBLOCK DSYNC SYNC CLOEXEC DIRECTORY NOFOLLOW TMPFILE"
OPENING = ACCESS | WRITING
for _name in FLAGS.split():
    OPENING |= getattr(os, f"O_{_name}", 0)

# For each older call: the newer one and its arguments, in the notation of `syscalls`.
OLDER = {name: newer for name, *newer in rows_of(syscalls.OLDER)}


class Broker:
    """Answers the system calls of one process until it ends.

    Attributes:
        listener: descriptor on which the process's calls arrive.
        where: working directory of the process, under the name that it knows.
        call: id of the call that is being answered.
        may_grow: returns whether files in the work folder may be added or grow.
    """

    def __init__(self, listener: int, pid: int, world: World, may_grow: Callable[[], bool]):
        self.listener = listener
        self.pid = pid
        self.world = world
        self.may_grow = may_grow
        # Opened once: the process id may belong to another process later, this descriptor cannot.
        self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        self.where = world.folder
        self.call = 0

    def close(self):
        os.close(self.memory)
        os.close(self.listener)

    def answer(self):
        """Answer the waiting call. If its process has ended meanwhile, nothing happens."""
        notification = bytearray(struct.calcsize(NOTIFICATION))
        with suppress(OSError):
            # Receive, carry out, send. Errors are negative in the answer, as within the kernel.
            fcntl.ioctl(self.listener, RECEIVE, notification)
            self.call, _, _, number, _, _, *arguments = struct.unpack(NOTIFICATION, notification)
            value, code = self.carry_out(naming_calls(MACHINE)[number], arguments)
            answer = struct.pack(ANSWER, self.call, value, -code, 0)
            fcntl.ioctl(self.listener, SEND, bytearray(answer))

    def carry_out(self, name: str, arguments: list[int]) -> tuple[int, int]:
        """Carry out a call; returns its value and its error number (0: none)."""
        name, *places = OLDER.get(name, [name, *"012345"])
        values = [argument_at(place, arguments) for place in places]
        carry_out = getattr(self, name)
        # Registers always hold six arguments; a call takes as many as its method has parameters.
        try:
            return carry_out(*values[: carry_out.__code__.co_argcount - 1]) or 0, 0
        except OSError as error:
            return 0, error.errno or EIO
        # A name with a zero byte, a number out of range.
        except (ValueError, OverflowError):
            return 0, EINVAL

    # Access to the process: its memory and its descriptors

    def read_name(self, address: int) -> str:
        # Read up to the end of a page at a time until the final zero:
        #   address 0x1ff8 -> 8 bytes, then whole pages from 0x2000 on
        data = b""
        while b"\0" not in data and len(data) < MAX_NAME:
            at = address + len(data)
            # Never across a page boundary, as the next page may not be mapped.
            data += self.transfer(os.pread, PAGE - at % PAGE, at)
        name, end, _ = data.partition(b"\0")
        if not end or len(name) >= MAX_NAME:
            raise os_error(ENAMETOOLONG)
        return os.fsdecode(name)

    def write(self, address: int, data: bytes):
        self.transfer(os.pwrite, data, address)

    def transfer(self, act: Callable[..., Any], what, address: int):
        """Read or write the process's memory; raises EFAULT if that is impossible.

        The address may be unmapped, or the process may have ended.
        """
        try:
            result = act(self.memory, what, address)
        except (OSError, OverflowError):
            result = None
        # Also if no byte was transferred, because the process has ended.
        if not result:
            raise os_error(EFAULT)
        return result

    def descriptor(self, number: int) -> str:
        # A link to the open file, which also works for a file that has been removed.
        path = f"/proc/{self.pid}/fd/{read_int(number)}"
        if not os.path.lexists(path):
            raise os_error(EBADF)
        return path

    def name_of(self, folder: int) -> str:
        # AT_FDCWD stands for the working directory, which only the broker keeps.
        if read_int(folder) == AT_FDCWD:
            return self.where
        return self.world.name_of(os.readlink(self.descriptor(folder)))

    def place(self, folder: int, name: str, *, follow: bool = True, create: bool = False) -> Place:
        """Resolve a name as seen from a folder."""
        if not name:
            raise os_error(ENOENT)
        # A relative name begins at the folder.
        name = name if name.startswith("/") else f"{self.name_of(folder)}/{name}"
        return self.world.resolve(name, follow=follow, create=create)

    def writable_path(
        self, folder: int, address: int, *, follow: bool = False, create: bool = False
    ) -> str:
        """Return the host path of a file that the process may create, change, remove or rename.

        With `follow`, the last part of the path is not a link.
        """
        place = self.place(folder, self.read_name(address), follow=follow, create=create)
        # Only within the work folder, and not the work folder itself.
        if place.kind != "work" or place.name == self.world.folder:
            raise os_error(EACCES)
        if create and not self.may_grow():
            raise os_error(ENOSPC)
        return place.real

    # System calls: each returns what the kernel would return (None means 0), and raises OSError if
    # the kernel would fail

    def openat(self, folder: int, address: int, flags: int, mode: int) -> int:
        flags = read_int(flags)
        # Any flag outside the list is refused, also those that do not exist yet.
        if flags & ~OPENING:
            raise os_error(EINVAL)
        create = bool(flags & os.O_CREAT)
        # With O_CREAT | O_EXCL, a link at the end is never followed: the name exists.
        follow = not (flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL))
        place = self.place(folder, self.read_name(address), follow=follow, create=create)
        if flags & WRITING:
            if place.kind != "work" and place.name != os.devnull:
                raise os_error(EACCES)
            if place.kind == "work" and not self.may_grow():
                raise os_error(ENOSPC)
        elif place.kind == "above":
            raise os_error(EACCES)
        # The name is already resolved, so a link that appears now must not be followed.
        opened = os.open(place.real, flags | os.O_NOFOLLOW, mode & 0o777)
        try:
            # The kernel puts the file at the process's lowest free descriptor and returns its
            # number.
            added = struct.pack(ADDED, self.call, 0, opened, 0, flags & os.O_CLOEXEC)
            return fcntl.ioctl(self.listener, ADD_DESCRIPTOR, bytearray(added))
        finally:
            os.close(opened)

    def newfstatat(self, folder: int, address: int, buffer: int, flags: int):
        name = self.read_name(address) if address else ""
        # fstat(fd) arrives as newfstatat(fd, "", ..., AT_EMPTY_PATH).
        itself = not name and flags & AT_EMPTY_PATH
        if itself and read_int(folder) != AT_FDCWD:
            # An open file: the link in /proc leads to it, so follow it (`how` = 0).
            path = self.descriptor(folder)
            how = 0
        else:
            path = self.place(
                folder, "." if itself else name, follow=not flags & AT_SYMLINK_NOFOLLOW
            ).real
            how = AT_SYMLINK_NOFOLLOW
        # A `struct stat` in the kernel's own layout.
        result = ctypes.create_string_buffer(STAT_BYTES[MACHINE])
        call_by_name("newfstatat", path, ctypes.addressof(result), how)
        self.write(buffer, result.raw)

    def faccessat2(self, folder: int, address: int, mode: int, flags: int):
        place = self.place(folder, self.read_name(address), follow=not flags & AT_SYMLINK_NOFOLLOW)
        # Raises ENOENT if the file does not exist. A link itself may be accessed by anyone.
        if stat.S_ISLNK(os.lstat(place.real).st_mode):
            return
        # The broker's own rights are wider than the process's: only the work folder may be written.
        writes = mode & os.W_OK and place.kind != "work" and place.name != os.devnull
        if writes or not os.access(place.real, mode & 7):
            raise os_error(EACCES)

    def readlinkat(self, folder: int, address: int, buffer: int, size: int) -> int:
        place = self.place(folder, self.read_name(address), follow=False)
        if read_int(size) <= 0:
            raise os_error(EINVAL)
        # Cut to the buffer's size without a final zero, as the kernel does.
        target = os.fsencode(os.readlink(place.real))[: read_int(size)]
        self.write(buffer, target)
        return len(target)

    def getcwd(self, buffer: int, size: int) -> int:
        data = os.fsencode(self.where) + b"\0"
        if len(data) > size:
            raise os_error(ERANGE)
        self.write(buffer, data)
        return len(data)

    def chdir(self, address: int):
        self.enter(self.read_name(address))

    def fchdir(self, folder: int):
        self.enter(self.name_of(folder))

    def enter(self, name: str):
        """Make a folder the working directory. The kernel need not know: names are resolved here."""
        place = self.place(AT_FDCWD, name)
        if not stat.S_ISDIR(os.stat(place.real).st_mode):
            raise os_error(ENOTDIR)
        self.where = place.name

    def mkdirat(self, folder: int, address: int, mode: int):
        os.mkdir(self.writable_path(folder, address, create=True), mode & 0o777)

    def unlinkat(self, folder: int, address: int, flags: int):
        remove = os.rmdir if flags & AT_REMOVEDIR else os.unlink
        remove(self.writable_path(folder, address))

    def renameat2(self, folder: int, address: int, new_folder: int, new_address: int, flags: int):
        # The flags of renameat2 (exchange, fail if the target exists) are not supported.
        if read_int(flags):
            raise os_error(EINVAL)
        os.rename(
            self.writable_path(folder, address),
            self.writable_path(new_folder, new_address, create=True),
        )

    def fchmodat(self, folder: int, address: int, mode: int):
        os.chmod(self.writable_path(folder, address, follow=True), mode & MODE)

    def symlinkat(self, target: int, folder: int, address: int):
        # Any target is allowed, because `World` resolves a link whenever it is used.
        os.symlink(self.read_name(target), self.writable_path(folder, address, create=True))

    def linkat(self, folder: int, address: int, new_folder: int, new_address: int, flags: int):
        old = self.writable_path(folder, address, follow=bool(flags & AT_SYMLINK_FOLLOW))
        os.link(
            old, self.writable_path(new_folder, new_address, create=True), follow_symlinks=False
        )

    def truncate(self, address: int, size: int):
        path = self.writable_path(AT_FDCWD, address, follow=True)
        if not self.may_grow():
            raise os_error(ENOSPC)
        # The kernel's limit holds for the process, not for the broker.
        if size > MAX_FILE:
            raise os_error(EFBIG)
        os.truncate(path, size)

    def utimensat(self, folder: int, address: int, times: int, flags: int) -> int:
        path = self.writable_path(folder, address, follow=not flags & AT_SYMLINK_NOFOLLOW)
        # A null pointer means the current time.
        data = self.transfer(os.pread, TIMES_BYTES, times) if times else b""
        timespecs = ctypes.create_string_buffer(data)
        where = ctypes.addressof(timespecs) if data else 0
        return call_by_name("utimensat", path, where, AT_SYMLINK_NOFOLLOW)

    def uname(self, buffer: int):
        # struct utsname: six fields of 65 bytes. The host's name and domain stay unknown.
        host = os.uname()
        fields = (host.sysname, HOST, host.release, host.version, host.machine, "(none)")
        self.write(
            buffer, struct.pack("65s65s65s65s65s65s", *(os.fsencode(field) for field in fields))
        )


def call_by_name(call: str, path: str, address: int, flags: int) -> int:
    """Make a system call on a file of the host; raises OSError if it fails."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    number = callable_numbers(MACHINE)[call]
    result = system_call(number, AT_FDCWD, ctypes.addressof(name), address, flags)
    if result < 0:
        raise os_error(ctypes.get_errno())
    return result


def argument_at(place: str, arguments: list[int]) -> int:
    """Return an argument by its place in a table: "." -> AT_FDCWD, "1" -> the second, "0x0" -> 0."""
    if place == ".":
        return AT_FDCWD
    return arguments[int(place)] if len(place) == 1 else int(place, 0)


def read_int(argument: int) -> int:
    """Read an `int` from a register: its lower half, with its sign.

    0xffffff9c -> -100 (AT_FDCWD)
    """
    return ctypes.c_int(argument).value

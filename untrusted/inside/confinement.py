"""Confine this process irrevocably to the rights of an untrusted program. Entry point: `confine`.

Knows the kernel's interfaces, not what will run. Imports the standard library only: it runs in the
sandbox's own interpreter. Sources: landlock(7), seccomp(2), capabilities(7), linux/bpf_common.h.
"""

import bisect
import ctypes
import math
import mmap
import os
import resource
import socket
import struct
import sys
from contextlib import suppress
from errno import EINVAL, ENOSYS, EOPNOTSUPP, EPERM
from functools import cache

from untrusted.inside import syscalls
from untrusted.inside.usage import MAX_FILE

libc = ctypes.CDLL(None, use_errno=True)

# Kernel constants by their names in linux/prctl.h and signal.h.
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
SIGKILL = 9
# _LINUX_CAPABILITY_VERSION_3, of this process (0).
CAPABILITY_HEADER = struct.pack("Ii", 0x20080522, 0)
# No process has this number. A filter that is built in advance contains it as a placeholder for the
# number of the process (`filter_program`).
NO_PID = 0x7FFFFFFF

# Numbers of two system calls of Landlock, the same on every machine.
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_RESTRICT_SELF = 446
# Bytes of a thread's stack: enough for 1,000 nested calls through C code.
THREAD_STACK = 2 * 2**20
# The broker's answer when it has taken over a process's calls.
ACCEPTED = b"accepted"

# Classic BPF: load a word, AND with a constant, the jumps, return.
BPF_LOAD = 0x20
BPF_AND = 0x54
BPF_JUMP = 0x05
BPF_JUMP_EQUAL = 0x15
BPF_JUMP_AT_LEAST = 0x35
BPF_RETURN = 0x06
# What a filter may answer: SECCOMP_RET_ALLOW, _USER_NOTIF, _ERRNO and _KILL_PROCESS. ERRNO has the
# error number in its low bits; 0 means that the call succeeds with value 0. ASK leaves the call to
# a listener in user space.
ALLOW = 0x7FFF0000
ASK = 0x7FC00000
ERRNO = 0x00050000
KILL_PROCESS = 0x80000000
MACHINE = os.uname().machine
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_FILTER = 1
NEW_LISTENER = 1 << 3
WAIT_KILLABLE = 1 << 5


class RefusedError(OSError):
    """Raised when the host cannot confine a process as the tier requires."""


def require_success(value: int, what: str) -> int:
    """Return the value of a system call; raises RefusedError if it failed."""
    if value < 0:
        code = ctypes.get_errno()
        raise RefusedError(code, f"{what}: {os.strerror(code)}")
    return value


def system_call(number: int, *arguments: int) -> int:
    # All as C longs: `syscall` is variadic, so ctypes cannot know the types.
    return libc.syscall(*map(ctypes.c_long, (number, *arguments)))


def prctl(option: int, argument: int):
    # prctl takes four arguments, and some options demand that the unused ones be 0.
    arguments = map(ctypes.c_ulong, (argument, 0, 0, 0))
    require_success(libc.prctl(option, *arguments), f"prctl({option})")


def forbid_files():
    """Deny this process every file, and what else the kernel's Landlock can deny, from now on.

    That is TCP from version 4 on, and from version 6 on abstract sockets and signals to other
    processes. No rule allows anything, because `broker` opens the files that the process may use.
    Raises RefusedError if the kernel has no Landlock.
    """
    # Flag 1 (LANDLOCK_CREATE_RULESET_VERSION) asks for the version and creates nothing.
    version = system_call(LANDLOCK_CREATE_RULESET, 0, 0, 1)
    if version < 1:
        raise RefusedError(
            ENOSYS, "Landlock: the kernel does not have it or does not enable it (lsm=landlock)"
        )
    # Version 1 knows 13 rights; 2 adds linking across folders, 3 truncating, 5 ioctl on devices:
    # version 3 -> 13 + 2 rights -> 0b111_1111_1111_1111
    rights = (1 << (13 + sum(version >= step for step in (2, 3, 5)))) - 1
    # Version 4 adds TCP bind and connect (3), 6 keeps signals and abstract sockets inside (3).
    # An older kernel rejects a longer struct, so cut it: 8 bytes per field.
    attributes = struct.pack("QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    rules = system_call(LANDLOCK_CREATE_RULESET, ctypes.addressof(buffer), len(attributes), 0)
    require_success(rules, "Landlock")
    require_success(system_call(LANDLOCK_RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)


def limit_resources(memory_bytes: int, seconds: float):
    """Limit address space, processor time, file size, open files and core dumps.

    Args:
        memory_bytes: address space, in bytes.
        seconds: processor time; rounded up, plus one second.
    """
    cpu = math.ceil(seconds) + 1
    for limit, soft, hard in (
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        # The soft limit ends the process with SIGXCPU, which says why.
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        # Bytes of one file; the folder's total is the zygote's to measure (`usage`).
        (resource.RLIMIT_FSIZE, MAX_FILE, MAX_FILE),
        # Open descriptors.
        (resource.RLIMIT_NOFILE, 64, 64),
        # 0 would still start a handler of core dumps, if the host has one; 1 does not.
        (resource.RLIMIT_CORE, 1, 1),
    ):
        # A limit may only be lowered: the host's own may be below ours.
        _, allowed = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:
            soft = min(soft, allowed)
            hard = min(hard, allowed)
        resource.setrlimit(limit, (soft, hard))


def save_address_space():
    """Reduce the address space of threads, because a program's memory is limited by address space.

    By default the C library reserves 64 MiB for a thread's memory and 8 MiB for its stack: of 512
    MiB, six threads would take everything.
    """
    # Only the GNU C library has both functions.
    with suppress(AttributeError):
        # M_ARENA_MAX: all threads share one arena, as they share the interpreter's lock.
        libc.mallopt(-8, 1)
        # pthread_attr_t has 56 bytes (x86-64) or 64 (aarch64).
        attributes = ctypes.create_string_buffer(64)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(THREAD_STACK))
        libc.pthread_setattr_default_np(attributes)


def address_space() -> int:
    """Return the address space of this process in bytes, within 1 MiB, without /proc.

    Found by bisection over RLIMIT_AS: the kernel allows a limit below what is in use, and then
    nothing more can be mapped.
    """
    if sys.platform != "linux":
        return 0
    limits = resource.getrlimit(resource.RLIMIT_AS)
    # -1, or the host's own limit, which cannot be exceeded
    most = limits[1] // 2**20 if limits[1] > 0 else 2**20

    def suffices(mebibytes):
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes * 2**20, limits[1]))
        with suppress(OSError), mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE):
            return True
        return False

    try:
        return bisect.bisect_left(range(most), True, key=suffices) * 2**20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def drop_capabilities():
    """Drop all capabilities: root then has no privilege except owning root's files."""
    # Two sets of three 32-bit words (effective, permitted, inheritable), all zero.
    require_success(libc.capset(CAPABILITY_HEADER, bytes(24)), "capset")


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    # struct sock_filter: code, jump if true, jump if false, constant.
    return struct.pack("HBBI", code, if_true, if_false, value)


REFUSE = instruction(BPF_RETURN, ERRNO | EPERM)


def condition(word: int, mask: int, values: tuple[int, ...]) -> list[bytes]:
    """Return instructions that continue if a word of the arguments is one of `values`, else refuse.

    For two values: load, AND, "equal to values[0]? skip 2", "equal to values[1]? skip 1", refuse.
    """
    # struct seccomp_data: number (4 bytes), architecture (4), instruction pointer (8), then
    # arguments.
    lines = [instruction(BPF_LOAD, 16 + 4 * word), instruction(BPF_AND, mask)]
    for position, value in enumerate(values):
        # Each hit jumps over the remaining comparisons and the refusal: len(values) - position
        # lines.
        lines.append(instruction(BPF_JUMP_EQUAL, value, if_true=len(values) - position))
    return [*lines, REFUSE]


def numbers(tables: dict[str, str], machine: str) -> dict[str, int]:
    """Return the numbers of system calls on a machine; raises RefusedError for an unknown one."""
    if machine not in tables:
        known = ", ".join(sorted(tables))
        raise RefusedError(
            ENOSYS, f"seccomp: no table of system calls for {machine} (there are {known})"
        )
    return syscalls.parse_table(tables[machine])


def calls_by_number(machine: str, answers: dict[int, int | None], other: int) -> bytes:
    """Return the beginning of a filter, which answers by a call's number.

    Args:
        answers: answer by number; None continues with the instructions after this beginning.
        other: answer for all other numbers.

    Calls of another architecture end the process: its numbers mean other calls.
    """
    # Numbers with equal answers become one span (first number, answer), up to the next span:
    #   answers {0: A, 1: A, 3: B}, other X -> [(0, X), (0, A), (2, X), (3, B), (4, X)]
    # The first one is empty if number 0 has an answer of its own.
    spans: list[tuple[int, int | None]] = [(0, other)]
    # Only the numbers themselves and their successors can begin a span.
    for number in sorted({*answers, *(number + 1 for number in answers)}):
        if (answer := answers.get(number, other)) != spans[-1][1]:
            spans.append((number, answer))
    lines = [
        # Offset 4: the architecture.
        instruction(BPF_LOAD, 4),
        instruction(BPF_JUMP_EQUAL, syscalls.AUDIT_ARCH[machine], if_true=1),
        instruction(BPF_RETURN, KILL_PROCESS),
        # Offset 0: the number.
        instruction(BPF_LOAD, 0),
        *search(spans),
    ]
    # Empty lines are the spans without an answer: jump behind the last instruction.
    return b"".join(
        line or instruction(BPF_JUMP, len(lines) - position - 1)
        for position, line in enumerate(lines)
    )


def search(spans: list[tuple[int, int | None]]) -> list[bytes]:
    """Return a binary search over spans of numbers; a span without an answer leaves an empty line.

    The kernel tries a new filter on every number. A linear search makes that take longer than
    starting a process.
    """
    if len(spans) == 1:
        ((_, answer),) = spans
        return [b"" if answer is None else instruction(BPF_RETURN, answer)]
    middle = len(spans) // 2
    low = search(spans[:middle])
    high = search(spans[middle:])
    # Numbers from the middle on jump over the lower half.
    return [instruction(BPF_JUMP_AT_LEAST, spans[middle][0], if_true=len(low)), *low, *high]


@cache
def blank_program(machine: str) -> bytes:
    """Return the filter of a process whose number is not known yet, with NO_PID as a placeholder.

    First come the calls answered by number alone, then the guarded calls with their conditions.
    """
    tables = [
        (syscalls.ALLOWED, ALLOW),
        (syscalls.ABSENT, ERRNO | ENOSYS),
        (syscalls.UNSUPPORTED, ERRNO | EOPNOTSUPP),
        # With number 0: the call is not made and returns 0.
        (syscalls.ZERO, ERRNO),
        (syscalls.GUARDED, None),
    ]
    answers = {
        number: answer for table, answer in tables for number in numbers(table, machine).values()
    }
    lines = [calls_by_number(machine, answers, ERRNO | EPERM)]
    conditions = syscalls.conditions(NO_PID)
    # The accumulator still holds the call's number: each block is entered by comparing with it.
    for name, number in numbers(syscalls.GUARDED, machine).items():
        body = [line for parts in conditions[name] for line in condition(*parts)]
        body += [instruction(BPF_RETURN, ALLOW)]
        # Not this call: jump over its whole block. After a match, a block always returns.
        lines += [instruction(BPF_JUMP_EQUAL, number, if_false=len(body)), *body]
    return b"".join([*lines, REFUSE])


def filter_program(machine: str, pid: int) -> bytes:
    """Return the seccomp filter of a process as classic BPF."""
    return blank_program(machine).replace(struct.pack("I", NO_PID), struct.pack("I", pid))


@cache
def callable_numbers(machine: str) -> dict[str, int]:
    """Return the numbers of the system calls that a program may make, by name."""
    return numbers(syscalls.ALLOWED, machine) | numbers(syscalls.GUARDED, machine)


@cache
def naming_calls(machine: str) -> dict[int, str]:
    """Return the calls that take or return a path, or name the host (uname), by number."""
    names = syscalls.NAMING.split()
    table = callable_numbers(machine).items()
    return {number: name for name, number in table if name in names}


@cache
def naming_program(machine: str) -> bytes:
    """Return the filter that passes the calls of `naming_calls` to a broker.

    It is installed in addition to the main filter; the stricter answer of the two applies.
    """
    return calls_by_number(machine, dict.fromkeys(naming_calls(machine), ASK), ALLOW)


@cache
def owner_program(machine: str) -> bytes:
    """Return the filter under which changes of permissions and times succeed and do nothing.

    For root in bubblewrap: the host's /dev/null is visible there and belongs to root, so a program
    could change it. `shutil.copy` and others need the calls to succeed. `utimensat` without times
    (argument 2 is a null pointer) fails, because `Path.touch` creates a file only then.
    """
    table = callable_numbers(machine)
    answers = {table["utimensat"]: None}
    answers |= {table[name]: ERRNO for name in ("chmod", "fchmodat") if name in table}
    has_times = [
        instruction(BPF_LOAD, 16 + 4 * 4),
        instruction(BPF_JUMP_EQUAL, 0, if_false=1),
        REFUSE,
        instruction(BPF_RETURN, ERRNO),
    ]
    return b"".join([calls_by_number(machine, answers, ALLOW), *has_times])


def prepare_children():
    """Before forking, prepare everything that is the same for every child."""
    blank_program(MACHINE)
    naming_program(MACHINE)
    owner_program(MACHINE)
    # Looking up a function of the C library takes longer than calling it.
    for name in ("prctl", "syscall", "capset"):
        getattr(libc, name)


def install(program: bytes, flags: int = 0) -> int:
    """Install a filter, which cannot be removed.

    Returns the kernel's answer: a descriptor if `flags` ask for one, or -1.
    """
    # Kept in a variable: the kernel reads the instructions through the pointer below.
    lines = ctypes.create_string_buffer(program)
    # struct sock_fprog: number of instructions, padding, pointer.
    fields = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(lines))
    header = ctypes.create_string_buffer(fields)
    return system_call(SECCOMP[MACHINE], SET_FILTER, flags, ctypes.addressof(header))


def leave_names(broker: socket.socket):
    """From now on, pass every call with a name to the broker at the other end of the socket."""
    program = naming_program(MACHINE)
    # Once the broker has heard of a call, only the end of the process interrupts it (from Linux
    # 5.19 on).
    # EINVAL: the kernel is older and does not know the second flag.
    listener = install(program, NEW_LISTENER | WAIT_KILLABLE)
    if listener < 0 and ctypes.get_errno() == EINVAL:
        listener = install(program, NEW_LISTENER)
    require_success(listener, "seccomp: calls cannot be left to another process")
    with broker:
        # The broker must hold the listener before the first call: nobody else would answer it.
        socket.send_fds(broker, [b"listener"], [listener])
        # The process must not keep it, as it could answer its own calls.
        os.close(listener)
        if (said := broker.recv(400)) != ACCEPTED:
            reason = said.decode("utf-8", "replace") or "it has ended"
            raise RefusedError(EPERM, f"no process answers the calls that name files: {reason}")


def confine(tier: str, memory_bytes: int, seconds: float, broker: socket.socket | None):
    """Confine this process as the tier requires. Raises OSError if the host cannot.

    The order matters: each step needs calls or rights that a later step takes away.

    Args:
        memory_bytes: address space, in bytes.
        seconds: processor time.
        broker: socket to the process that answers calls with names; only in the Landlock tier.
    """
    limit_resources(memory_bytes, seconds)
    if sys.platform == "linux":
        # If the zygote is killed, so are its children.
        prctl(PR_SET_PDEATHSIG, SIGKILL)
    if tier == "unsafe":
        return
    # Required for Landlock and seccomp without privileges; set-uid files gain nothing.
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    if broker is not None:
        forbid_files()
        # This process stays dumpable, because the broker reads names from its memory.
        leave_names(broker)
    else:
        # Nobody may read this process's memory.
        prctl(PR_SET_DUMPABLE, 0)
        if os.getuid() == 0:
            require_success(install(owner_program(MACHINE)), "seccomp")
    # Last: the filter refuses every system call outside the table, also those of the steps above.
    require_success(install(filter_program(MACHINE, os.getpid())), "seccomp")

"""Take away from this process, for good, all that a program may not have. Entry point: `confine`.

Knows the kernel's interfaces, not what will run. Imports the standard library only: it runs in the
sandbox's own interpreter. Sources: landlock(7), seccomp(2), capabilities(7), linux/bpf_common.h.
"""

import ctypes
import functools
import math
import os
import resource
import socket
import struct
import sys

from untrusted.inside import syscalls
from untrusted.inside.usage import MAX_FILE

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SIGKILL, ENOSYS, EPERM, EINVAL = 9, 38, 1, 22
# Version 3, of this process.
CAPABILITY_HEADER = struct.pack("Ii", 0x20080522, 0)
# No process has this number: in a filter that is written ahead, it stands for that of the process
# to come.
NO_PID = 0x7FFFFFFF

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, REFER, TRUNCATE = (
    1 << 4,
    1 << 5,
    1 << 7,
    1 << 8,
    1 << 13,
    1 << 14,
)
WORK = (
    WRITE_FILE
    | READ_FILE
    | READ_DIR
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | REFER
    | TRUNCATE
)
# What a broker says once it hears a process's calls.
ACCEPTED = b"accepted"

BPF_LOAD, BPF_AND, BPF_JUMP, BPF_JUMP_EQUAL, BPF_JUMP_AT_LEAST, BPF_RETURN = (
    0x20,
    0x54,
    0x05,
    0x15,
    0x35,
    0x06,
)
ALLOW, ASK, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000
MACHINE = os.uname().machine
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5


class RefusedError(OSError):
    """The host cannot confine a process in the way that was asked for."""


def require_success(value: int, what: str) -> int:
    """Return the value of a system call; raises RefusedError if it failed."""
    if value < 0:
        code = ctypes.get_errno()
        raise RefusedError(code, f"{what}: {os.strerror(code)}")
    return value


def system_call(number: int, *arguments: int) -> int:
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])


def prctl(option: int, *arguments: int) -> None:
    values = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    require_success(libc.prctl(ctypes.c_int(option), *values), f"prctl({option})")


def landlock_version() -> int:
    """Ask for the version of the kernel's Landlock interface; 0 where there is none."""
    return max(0, system_call(LANDLOCK_CREATE_RULESET, 0, 0, 1))


def write_rules(readable: list[str], folder: str) -> int:
    """Write Landlock's rules: open nothing but what is beneath `readable`, to read, and `folder`;
    /dev/null stays.

    Returns the descriptor that processes restrict themselves with.
    """
    version = landlock_version()
    if not version:
        raise RefusedError(
            ENOSYS, "Landlock: the kernel does not have it or does not enable it (lsm=landlock)"
        )
    # Version 1 knows 13 rights; 2 adds linking across folders, 3 truncating, 5 ioctl on devices.
    rights = (1 << (13 + sum(version >= step for step in (2, 3, 5)))) - 1
    # Version 4 adds TCP bind and connect, 6 keeps signals and abstract sockets inside.
    attributes = struct.pack("QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    rules = require_success(
        system_call(LANDLOCK_CREATE_RULESET, ctypes.addressof(buffer), len(attributes), 0),
        "Landlock",
    )
    for path in [*readable, os.devnull, folder]:
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = READ_FILE | (WRITE_FILE if path == os.devnull else EXECUTE)
        allowed |= READ_DIR if os.path.isdir(path) else 0
        allowed = WORK & rights if path == folder else allowed
        rule = struct.pack("=Qi", allowed, target)
        buffer = ctypes.create_string_buffer(rule, len(rule))
        require_success(
            system_call(LANDLOCK_ADD_RULE, rules, 1, ctypes.addressof(buffer), 0),
            f"Landlock rule for {path}",
        )
        os.close(target)
    return rules


def limit_resources(memory_bytes: int, seconds: float) -> None:
    """Limit address space and processor time; no file can grow large, not many can be open, none is
    dumped.
    """
    cpu = math.ceil(seconds) + 1
    for limit, soft, hard in (
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        # The soft limit ends the process with SIGXCPU, which says why.
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, MAX_FILE, MAX_FILE),
        (resource.RLIMIT_NOFILE, 64, 64),
        # 0 would still start a handler of core dumps, if the host has one; 1 does not.
        (resource.RLIMIT_CORE, 1, 1),
    ):
        _, allowed = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(limit, (soft, hard))


def drop_capabilities() -> None:
    """Make being root mean nothing from now on but owning root's files."""
    header, nothing = (
        ctypes.c_char.from_buffer(bytearray(data)) for data in (CAPABILITY_HEADER, bytes(24))
    )
    require_success(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def condition(word: int, mask: int, values: tuple[int, ...]) -> list[bytes]:
    """Write instructions that go on to the next one if a word of the arguments is one of `values`,
    else refuse.
    """
    lines = [instruction(BPF_LOAD, 16 + 4 * word), instruction(BPF_AND, mask)]
    for position, value in enumerate(values):
        lines.append(instruction(BPF_JUMP_EQUAL, value, if_true=len(values) - position))
    return [*lines, instruction(BPF_RETURN, ERRNO | EPERM)]


def numbers(tables: dict[str, str], machine: str) -> dict[str, int]:
    """Look up the numbers of system calls on a machine; RefusedError where nobody has written them
    down.
    """
    if machine not in tables:
        known = ", ".join(sorted(tables))
        raise RefusedError(
            ENOSYS, f"seccomp: no table of system calls for {machine} (there are {known})"
        )
    return syscalls.parse_table(tables[machine])


def calls_by_number(machine: str, answers: dict[int, int | None], other: int) -> list[bytes]:
    """Write the beginning of a filter: of this machine's calls, give each of these its answer, and
    `other` to the rest.

    A number without an answer (None) goes on behind it.
    """
    spans: list[tuple[int, int | None]] = [(0, other)]
    for number in sorted({*answers, *(number + 1 for number in answers)}):
        if (answer := answers.get(number, other)) != spans[-1][1]:
            spans.append((number, answer))
    lines = [
        instruction(BPF_LOAD, 4),
        instruction(BPF_JUMP_EQUAL, syscalls.AUDIT_ARCH[machine], if_true=1),
        instruction(BPF_RETURN, KILL_PROCESS),
        instruction(BPF_LOAD, 0),
        *search(spans),
    ]
    return [
        line or instruction(BPF_JUMP, len(lines) - position - 1)
        for position, line in enumerate(lines)
    ]


def search(spans: list[tuple[int, int | None]]) -> list[bytes]:
    """Write a binary search for the answer of a span of numbers; where there is none, leave a line
    empty.

    The kernel tries a new filter on every number: one after the other, that takes longer than to
    start a process.
    """
    if len(spans) == 1:
        ((_, answer),) = spans
        return [b"" if answer is None else instruction(BPF_RETURN, answer)]
    middle = len(spans) // 2
    low, high = search(spans[:middle]), search(spans[middle:])
    return [instruction(BPF_JUMP_AT_LEAST, spans[middle][0], if_true=len(low)), *low, *high]


def plain_program(machine: str) -> bytes:
    """Write the answers that depend on a call's number alone; guarded calls go on behind it."""
    answers: dict[int, int | None] = dict.fromkeys(
        numbers(syscalls.ALLOWED, machine).values(), ALLOW
    )
    answers |= dict.fromkeys(numbers(syscalls.ABSENT, machine).values(), ERRNO | ENOSYS)
    answers |= dict.fromkeys(numbers(syscalls.ZERO, machine).values(), ERRNO)
    answers |= dict.fromkeys(numbers(syscalls.GUARDED, machine).values())
    return b"".join(calls_by_number(machine, answers, ERRNO | EPERM))


@functools.cache
def blank_program(machine: str) -> bytes:
    """Write the filter of a process that has no number yet: calls with one answer, then guarded
    calls.
    """
    lines = [plain_program(machine)]
    conditions = syscalls.conditions(NO_PID)
    for name, number in numbers(syscalls.GUARDED, machine).items():
        body = [line for parts in conditions[name] for line in condition(*parts)]
        body += [instruction(BPF_RETURN, ALLOW)]
        lines += [instruction(BPF_JUMP_EQUAL, number, if_false=len(body)), *body]
    return b"".join([*lines, instruction(BPF_RETURN, ERRNO | EPERM)])


def filter_program(machine: str, pid: int) -> bytes:
    """Write the seccomp filter of a process as classic BPF."""
    return blank_program(machine).replace(struct.pack("I", NO_PID), struct.pack("I", pid))


@functools.cache
def naming_calls(machine: str) -> dict[int, str]:
    """List the calls that name something, by number."""
    return {
        number: name
        for name, number in numbers(syscalls.ALLOWED, machine).items()
        if name in syscalls.NAMING
    }


@functools.cache
def naming_program(machine: str) -> bytes:
    """Write the filter that leaves calls that name something to a broker; of two filters the
    stricter answer counts.
    """
    return b"".join(calls_by_number(machine, dict.fromkeys(naming_calls(machine), ASK), ALLOW))


def prepare_children() -> None:
    """Do once what is the same for all processes that this one forks."""
    blank_program(MACHINE)
    naming_program(MACHINE)
    # A function of the C library takes longer to find than to call.
    for name in ("prctl", "syscall", "capset"):
        getattr(libc, name)


def install(program: bytes, flags: int = 0) -> int:
    """Install a filter for good; returns what the kernel does, a descriptor if `flags` ask for one,
    or -1.
    """
    lines = ctypes.c_char.from_buffer(bytearray(program))
    # struct sock_fprog: number of instructions, padding, pointer.
    header = ctypes.c_char.from_buffer(
        bytearray(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(lines)))
    )
    return system_call(SECCOMP[MACHINE], SET_FILTER, flags, ctypes.addressof(header))


def filter_calls() -> None:
    """Allow only the system calls of the table from now on."""
    require_success(install(filter_program(MACHINE, os.getpid())), "seccomp")


def leave_names(broker: socket.socket) -> None:
    """Let the process at the other end answer every call that names something from now on."""
    program = naming_program(MACHINE)
    # Once the broker has heard of a call, only the end of the process interrupts it (from Linux
    # 5.19 on).
    listener = install(program, NEW_LISTENER | WAIT_KILLABLE)
    if listener < 0 and ctypes.get_errno() == EINVAL:
        listener = install(program, NEW_LISTENER)
    require_success(listener, "seccomp: calls cannot be left to another process")
    with broker:
        socket.send_fds(broker, [b"listener"], [listener])
        os.close(listener)
        if (said := broker.recv(400)) != ACCEPTED:
            reason = said.decode("utf-8", "replace") or "it has ended"
            raise RefusedError(EPERM, f"no process answers the calls that name files: {reason}")


def confine(
    tier: str, rules: int, memory_bytes: int, seconds: float, broker: socket.socket | None
) -> None:
    """Confine this process as the tier says; raises OSError where the host cannot.

    Args:
        rules: a descriptor of Landlock's rules, where no namespace hides files.
        broker: leads to who answers calls that name files, there.
    """
    limit_resources(memory_bytes, seconds)
    if sys.platform == "linux":
        # Whoever kills the zygote kills its children.
        prctl(PR_SET_PDEATHSIG, SIGKILL)
    if tier == "unsafe":
        return
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if broker is None:
        prctl(PR_SET_DUMPABLE, 0)
    else:
        require_success(system_call(LANDLOCK_RESTRICT_SELF, rules, 0), "Landlock")
        os.close(rules)
    drop_capabilities()
    if broker is not None:
        # Dumpable, as the broker reads the names from this process's memory.
        leave_names(broker)
    filter_calls()

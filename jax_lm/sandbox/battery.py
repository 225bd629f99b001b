"""Attacks on this host's own sandbox: what a hostile program would try, and whether it got there.

`diffucoder sandbox check` prints the table; the tests run the same attacks, and run them without containment as
well, so that an attack that could not succeed anywhere is noticed. The target is made for the purpose: a
folder with a secret, listening sockets, and a process of the same user.
"""

import contextlib
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_lm.sandbox.results import Limits, Outcome, Program, Result
from jax_lm.sandbox.runner import run_program
from jax_lm.sandbox.session import Session

PRELUDE = """
import contextlib, ctypes, glob, os, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
"""

REACH: dict[str, str] = {
    "read a secret file": "assert SECRET in open(FOLDER + '/secret').read()",
    "list a folder": "assert 'secret' in os.listdir(FOLDER)",
    "write outside": "open(FOLDER + '/written', 'w').close()",
    "create files where it runs": "open('written', 'w').close()",
    "write a big file": """
for folder in ('.', '/tmp', '/dev/shm', '/var/tmp', FOLDER):
    with contextlib.suppress(OSError), open(folder + '/big', 'wb') as file:
        reached.append('a file in ' + folder)
        file.write(bytes(2**22))
        os.unlink(file.name)
""",
    "change or remove a file": """
path = FOLDER + '/secret'
for act in (lambda: os.chmod(path, 0o777), lambda: os.chown(path, os.getuid(), os.getgid()),
            lambda: os.utime(path, (1, 1)), lambda: os.setxattr(path, 'user.a', b'b'),
            lambda: os.rename(path, path + '2'), lambda: os.link(path, path + '3'), lambda: os.unlink(path),
            lambda: os.mkdir(FOLDER + '/made'), lambda: os.symlink('/', FOLDER + '/link'),
            lambda: os.truncate(path, 1)):
    with contextlib.suppress(OSError):
        act()
        reached.append('a change')
""",
    "secrets of the environment": "assert any(SECRET in value for value in os.environ.values()) or len(os.environ) > 2",
    "environments of other processes": """
for path in glob.glob('/proc/[0-9]*/environ'):
    with contextlib.suppress(OSError):
        if open(path, 'rb').read():
            reached.append(path)
for pid in range(1, 20):
    with contextlib.suppress(OSError):
        reached.append(open('/proc/%d/environ' % pid, 'rb').read()[:0] + b'readable')
""",
    "memory of other processes": """
for pid in (VICTIM, os.getppid()):
    with contextlib.suppress(OSError):
        open('/proc/%d/mem' % pid, 'rb').close()
        reached.append('mem')
    local = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    number = {'x86_64': 310, 'aarch64': 270}[os.uname().machine]
    if syscall(number, pid, ctypes.addressof(local), 1, ctypes.addressof(local), 1, 0) >= 0 or \\
            ctypes.get_errno() not in (1, 38):
        reached.append('process_vm_readv')
""",
    "connect by TCP": "socket.create_connection(('127.0.0.1', TCP), timeout=2).sendall(b'x')",
    "send by UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP))",
    "listen on a port": "socket.create_server(('127.0.0.1', 0))",
    "connect to an abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + ABSTRACT)",
    "send a datagram from a socket pair": """
socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', chr(0) + ABSTRACT + '-datagram')
""",
    "start a program": "subprocess.run(['/bin/true'], check=True)",
    "replace itself by a program": "os.execve('/bin/true', ['true'], {})",
    "fork bomb": """
for _ in range(20):
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    reached.append('a process')
""",
    "vfork and clone": """
for number in {'x86_64': (58, 57, 435), 'aarch64': (435,)}[os.uname().machine]:
    if number == 435:
        arguments = ctypes.create_string_buffer(struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0))
        child = syscall(number, ctypes.addressof(arguments), 64)
    else:
        child = syscall(57)
    if child == 0:
        os._exit(0)
    if child > 0:
        reached.append('a process')
""",
    "orphan that outlives the kill": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.3)
        open(FOLDER + '/orphan', 'w').close()
    os._exit(0)
""",
    "signal other processes": """
for pid in (VICTIM, os.getppid(), 0, -1):
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        reached.append('a signal to %d' % pid)
    # thread by thread, as a queued signal, by a descriptor of the process
    for number in {'x86_64': (200, 129, 297, 434), 'aarch64': (130, 138, 240, 434)}[os.uname().machine]:
        if syscall(number, pid, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38):
            reached.append('system call %d' % number)
""",
    "signal by the owner of a pipe": """
import fcntl
ends = socket.socketpair()
fcntl.fcntl(ends[0], fcntl.F_SETOWN, VICTIM)
fcntl.fcntl(ends[0], 10, 9)  # F_SETSIG, SIGKILL
fcntl.fcntl(ends[0], fcntl.F_SETFL, os.O_ASYNC)
ends[1].send(b'x')
time.sleep(0.1)
""",
    "trace other processes": """
for pid in (VICTIM, os.getppid()):
    if libc.ptrace(16, pid, 0, 0) == 0:
        reached.append('ptrace')
        libc.ptrace(17, pid, 0, 0)
""",
    "limits of other processes": "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (77, 77))",
    "its own limits": """
resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
""",
    "priority of other processes": "os.setpriority(os.PRIO_PROCESS, VICTIM, 7)",
    "shared memory of System V": """
number = {'x86_64': 29, 'aarch64': 194}[os.uname().machine]
identity = syscall(number, 0, 4096, 0o1600)
if identity >= 0:
    reached.append('shared memory')
    syscall({'x86_64': 31, 'aarch64': 195}[os.uname().machine], identity, 0, 0)
""",
    "new namespaces": """
for flags in (0x10000000, 0x10020000, 0x40000000, 0x04000000):
    if libc.unshare(flags) == 0:
        reached.append('a namespace')
""",
    "privileges": """
for act in (lambda: os.setgroups([1]), lambda: os.chroot('/'), lambda: os.setuid(os.getuid() + 1)):
    with contextlib.suppress(OSError):
        act()
        reached.append('a privilege')
""",
    "mount": "assert libc.mount(b'none', b'/tmp', b'tmpfs', 4096 | 32, None) == 0 or ctypes.get_errno() != 1",
    "calls that reach around the others": """
# io_uring_setup, bpf, userfaultfd, perf_event_open, memfd_create, keyctl, open_by_handle_at, landlock, seccomp, add_key
table = {'x86_64': (425, 321, 323, 298, 319, 250, 304, 444, 317, 248, 272, 308, 165, 175, 246, 169),
         'aarch64': (425, 280, 282, 241, 279, 219, 265, 444, 277, 217, 97, 268, 40, 105, 104, 142)}
for number in table[os.uname().machine]:
    if syscall(number, -1, -1, -1, -1, -1, -1) >= 0 or ctypes.get_errno() not in (1, 38):
        reached.append('system call %d' % number)
""",
    "calls of other machines": """
import mmap
if os.uname().machine == 'x86_64':
    # x32, and getppid of 32-bit Linux by int 0x80: a filter that reads numbers only takes them for other calls.
    if syscall(0x40000000 + 110) >= 0:
        reached.append('x32')
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex('b840000000cd80c3'))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    if function() >= 0:
        reached.append('int 0x80')
else:
    raise OSError('no such calls')
""",
}
"""Name to code that appends to `reached`, or ends without an exception, if it got there."""

EXHAUST: dict[str, tuple[str, tuple[Outcome, ...]]] = {
    "memory": ("data = [bytearray(2**20) for _ in range(10**6)]", ("out_of_memory",)),
    "memory by mapping": (
        "import mmap\nmaps = [mmap.mmap(-1, 2**24) for _ in range(10**6)]",
        ("failed", "out_of_memory"),
    ),
    "processor": ("while True: pass", ("timeout",)),
    "sleep": ("time.sleep(1000)", ("timeout",)),
    "endless output": ("while True: os.write(1, bytes(2**16))", ("timeout",)),
    "threads without end": (
        "threading.stack_size(2**25)\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        ("failed", "out_of_memory", "timeout"),
    ),
    "recursion": ("sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", ("failed", "out_of_memory", "timeout")),
    "catching everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ("timeout",),
    ),
    "ignoring signals": (
        "for n in range(1, 60):\n    with contextlib.suppress(OSError, ValueError): signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
        ("timeout",),
    ),
}
"""Name to code that uses up something, and how a program that does so ends."""

SELF_KILLING_BY_SECCOMP = "SIGSYS"


@dataclass(frozen=True)
class AttackResult:
    """How one attack ended."""

    attack: str
    stopped: bool
    detail: str
    seconds: float


class AttackTarget:
    """A folder, sockets and a process for the attacks, made for the purpose and removed afterwards."""

    def __enter__(self) -> "AttackTarget":
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="jax-diffucoder-target-")))
        self.secret = secrets.token_hex(16)
        (self.folder / "secret").write_text(self.secret)
        self.victim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"],
            env={"SECRET": self.secret},
            stdin=subprocess.DEVNULL,
        )
        self.stack.callback(self.end_victim)
        self.abstract = f"jax-diffucoder-{secrets.token_hex(8)}"
        self.listeners = {
            "tcp": self.listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": self.listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": self.listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.abstract}"),
            "datagram": self.listen(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.abstract}-datagram"),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def listen(self, family: int, kind: int, address: object) -> socket.socket:
        server = self.stack.enter_context(socket.socket(family, kind))
        server.bind(address)  # pyright: ignore[reportArgumentType]
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        return server

    def end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def program(self, body: str) -> str:
        """Write the attack with its target's particulars; `attack()` lists what it reached."""
        values = {
            "FOLDER": str(self.folder),
            "SECRET": self.secret,
            "VICTIM": self.victim.pid,
            "TCP": self.listeners["tcp"].getsockname()[1],
            "UDP": self.listeners["udp"].getsockname()[1],
            "ABSTRACT": self.abstract,
        }
        lines = [f"{name} = {value!r}" for name, value in values.items()]
        indented = "\n".join(f"        {line}" for line in body.strip().splitlines())
        attack = (
            f"def attack():\n    reached = []\n    before = 'reached' in {body!r}\n    try:\n{indented}\n"
            "        if not before: reached.append('the end')\n"
            "    except (OSError, AssertionError, ValueError): pass\n    return reached\n"
        )
        return "\n".join([PRELUDE, *lines, attack])

    def harm(self) -> list[str]:
        """List what has been done to the target."""
        found = [f"{name} heard something" for name, server in self.listeners.items() if heard(server)]
        names = sorted(path.name for path in self.folder.iterdir())
        found += [f"files: {names}"] if names != ["secret"] else []
        if self.victim.poll() is not None:
            return [*found, "the process has ended"]
        if sys.platform == "linux" and resource.prlimit(self.victim.pid, resource.RLIMIT_NOFILE)[0] == 77:
            found.append("its limits were changed")
        if os.getpriority(os.PRIO_PROCESS, self.victim.pid) == 7:
            found.append("its priority was changed")
        return found


def heard(server: socket.socket) -> bool:
    """Tell whether someone has connected or sent."""
    try:
        if server.type == socket.SOCK_STREAM:
            server.accept()[0].close()
        else:
            server.recv(1)
    except BlockingIOError:
        return False
    return True


def reach(session: Session, name: str) -> AttackResult:
    """Carry out one attack on a target of its own."""
    start = time.perf_counter()
    with AttackTarget() as target:
        program = Program(target.program(REACH[name]), ("assert attack() == []",), Limits(seconds=10))
        result = run_program(session, program)
        if "orphan" in name:
            time.sleep(0.8)
        harm = target.harm()
    return AttackResult(name, not harm and held(result), "; ".join([*harm, result.detail]), time.perf_counter() - start)


def held(result: Result) -> bool:
    """Tell whether the program reached nothing, or the kernel ended it for trying."""
    return result.passed or SELF_KILLING_BY_SECCOMP in result.detail


def exhaust(session: Session, name: str) -> AttackResult:
    """Carry out one attempt to use up the machine: it must end in time and in a way that is named."""
    body, expected = EXHAUST[name]
    start = time.perf_counter()
    limits = Limits(seconds=1.5, memory_bytes=256 * 2**20)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    program = Program(f"{PRELUDE}\ndef attack():\n{lines}\n", ("assert attack() == 0",), limits)
    result = run_program(session, program)
    seconds = time.perf_counter() - start
    stopped = result.outcome in expected and seconds < 10
    return AttackResult(name, stopped, f"{result.outcome}: {result.detail}", seconds)


def attacks() -> dict[str, Callable[[Session, str], AttackResult]]:
    """List every attack by name."""
    return {**dict.fromkeys(REACH, reach), **dict.fromkeys(EXHAUST, exhaust)}


def run_battery(session: Session, names: Sequence[str] | None = None) -> Iterator[AttackResult]:
    """Carry out the attacks one after another."""
    known = attacks()
    for name in names or known:
        yield known[name](session, name)

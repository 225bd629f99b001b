"""What has a name for a program: the standard library, the allowed packages, /dev/null and its own
folder.

By the interpreter's layout, by the rules of `World`, by what programs do with files, and how much
they may keep.
"""

import ctypes
import errno
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cases import bpf

import jax_lm
from untrusted import Limits, Program, tiers
from untrusted.inside import broker, syscalls, zygote
from untrusted.inside.confinement import ASK, naming_program
from untrusted.inside.usage import MAX_FILE, NAME_BYTES, WORK_BYTES, used_bytes
from untrusted.inside.world import World
from untrusted.inside.zygote import TOO_MUCH
from untrusted.runner import run_program, why_not
from untrusted.session import SandboxFailureError, Session
from untrusted.tiers import SAFE, hidden, interpreter, library, readable

TIERS = [tier for tier in SAFE if not why_not(tier)]
needs_landlock = pytest.mark.skipif("landlock" not in TIERS, reason="Landlock does not work here")
PATIENT = Limits(seconds=20, total_seconds=60)

IN_A_LAYOUT = """
import json, sys
from untrusted import Limits, run
code = sys.stdin.read()
result = run(code, ("assert found() == []",), Limits(seconds=20), executor=sys.argv[1], packages=("allowed_package",))
print(json.dumps([result.outcome, result.detail, result.stderr]))
"""
LOOKS_AROUND = """
import json, os, sqlite3, ssl, sys, allowed_package
from allowed_package import part
def found():
    seen = [] if part.VALUE == allowed_package.VALUE == 7 else ["the allowed package is another"]
    folders = FOLDERS
    for folder in folders:
        for name in ("hidden_package", "hidden_package/__init__.py", "hidden.pth"):
            seen += [name] if os.path.exists(os.path.join(folder, name)) else []
        try:
            seen += [name for name in os.listdir(folder) if "hidden" in name]
        except OSError:
            pass
    sys.path += folders
    try:
        import hidden_package
        seen.append("import")
    except ImportError:
        pass
    return seen
"""


def install(folder, *names):
    """Puts packages into a folder as an installer would."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("VALUE = 7\n")
        (folder / name / "part.py").write_text("VALUE = 7\n")
    (folder / "hidden.pth").write_text("")


@pytest.fixture(scope="module")
def own_interpreter(tmp_path_factory):
    """A copy of this interpreter in a folder of its own, as conda, uv and pyenv have them."""
    prefix = tmp_path_factory.mktemp("interpreter") / "prefix"
    lib, version = Path(os.__file__).parent, f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if lib.name != version:
        pytest.skip(f"the standard library of this interpreter lies in {lib}")
    unneeded = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "tests", "__pycache__", "config-*", "idlelib"
    )
    shutil.copytree(lib, prefix / "lib" / version, ignore=unneeded, symlinks=True)
    for library_file in Path(sys.base_prefix, "lib").glob("lib*.so*"):
        shutil.copy2(library_file, prefix / "lib", follow_symlinks=False)
    (prefix / "bin").mkdir()
    shutil.copy2(interpreter(), prefix / "bin" / version)
    (prefix / "bin" / "python").symlink_to(version)
    install(prefix / "lib" / version / "site-packages", "hidden_package")
    return prefix, version


def environment(folder, home, version):
    """A virtual environment over an interpreter."""
    site = folder / "lib" / version / "site-packages"
    install(site, "allowed_package", "hidden_package")
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(f"{home}/python")
    return folder / "bin" / "python", site


def layouts(own_interpreter, tmp_path, layout):
    """An interpreter in a layout, and the folders that hold packages there."""
    prefix, version = own_interpreter
    base_site = prefix / "lib" / version / "site-packages"
    if layout == "no environment":
        if not (base_site / "allowed_package").exists():
            install(base_site, "allowed_package")
        return prefix / "bin" / "python", [base_site]
    home = prefix / "bin"
    if layout == "environment over a linked interpreter":
        (tmp_path / "linked").symlink_to(prefix)
        home = tmp_path / "linked" / "bin"
    python, site = environment(tmp_path / "environment", home, version)
    return python, [base_site, site, *[Path(str(base_site).replace(str(prefix), str(home.parent)))]]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "layout", ["environment", "environment over a linked interpreter", "no environment"]
)
def test_only_allowed_packages_are_there_in_any_layout(own_interpreter, tmp_path, layout, tier):
    python, folders = layouts(own_interpreter, tmp_path, layout)
    code = LOOKS_AROUND.replace("FOLDERS", repr([str(folder) for folder in folders]))
    finished = subprocess.run(
        [python, "-c", IN_A_LAYOUT, tier], input=code, capture_output=True, text=True, check=False, timeout=120,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(jax_lm.__file__).parent.parent)},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)[0] == "passed", finished.stdout


def test_nothing_beside_the_standard_library_is_readable():
    paths = readable({})
    for kind in ("purelib", "platlib"):
        for base in {sys.base_prefix, sys.prefix}:
            folder = os.path.join(
                base, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages"
            )
            shown = [path for path in paths if folder == path or folder.startswith(f"{path}/")]
            assert not shown or folder in hidden(paths) or not os.path.exists(folder), (kind, shown)
    assert sys.base_prefix not in paths
    assert not {"/usr", "/usr/share", "/usr/bin", "/etc"} & set(paths)
    assert interpreter() in library()


@pytest.fixture
def world(tmp_path):
    """A library with packages in it and a folder to write in, beside something secret."""
    root = tmp_path / "root"
    install(root / "lib" / "site-packages", "allowed", "other")
    (root / "lib" / "os.py").write_text("")
    (root / "lib" / "inner").symlink_to("os.py")
    (root / "lib" / "out").symlink_to("../secret")
    (root / "lib" / "loop").symlink_to("loop")
    (root / "lib" / "again").symlink_to(root / "lib" / "site-packages" / "allowed")
    (root / "lib" / "beside").symlink_to(root / "lib" / "site-packages" / "other")
    (root / "secret").mkdir()
    (root / "work").mkdir()
    site = str(root / "lib" / "site-packages")
    return root, World([str(root / "lib"), f"{site}/allowed"], [site], str(root / "work"))


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("lib/os.py", "lib/os.py"), ("lib/../lib/./os.py", "lib/os.py"), ("lib/inner", "lib/os.py"),
     ("lib/site-packages/allowed/part.py", "lib/site-packages/allowed/part.py"), ("lib/absent", "lib/absent"),
     ("lib/again/part.py", "lib/site-packages/allowed/part.py"), ("work/new", "work/new"), ("work/", "work/"),
     ("lib/out", None), ("lib/loop", None), ("lib/beside", None), ("lib/beside/part.py", None), ("secret", None),
     ("secret/../lib/os.py", None), ("absent/../lib/os.py", None), ("lib/../secret", None),
     ("lib/absent/../os.py", None),
     ("lib/site-packages/other", None), ("lib/site-packages/hidden.pth", None), ("../root/secret", None)],
)  # fmt: skip
def test_names_mean_what_is_shown_and_nothing_else(world, name, meaning):
    root, shown = world
    if meaning is None:
        with pytest.raises(OSError, match=r"No such file|Too many levels"):
            shown.resolve(f"{root}/{name}")
    else:
        assert shown.resolve(f"{root}/{name}").real == f"{root}/{meaning}"


def test_what_lies_above_says_nothing_of_itself(world):
    root, shown = world
    for above in ("/", "/..", str(root.parent), str(root), f"{root}/lib/site-packages"):
        place = shown.resolve(above)
        assert (place.kind, place.real) == ("above", f"{root}/lib")
    with pytest.raises(PermissionError):
        shown.resolve(f"{root}/new", create=True)
    assert shown.name_of(f"{root}/work/a") == f"{root}/work/a"
    with pytest.raises(NotADirectoryError):
        shown.name_of(f"{root}/secret")


@needs_landlock
def test_a_name_in_a_process_that_has_ended_is_none(world):
    """Its memory then reads as nothing, without an error: the broker must not wait for more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        asked = broker.Broker(os.open(os.devnull, os.O_RDONLY), process.pid, world[1], lambda: True)
        process.kill()
    with pytest.raises(OSError, match="Bad address"):
        asked.read_name(0x400000)
    asked.close()


@pytest.mark.parametrize("machine", syscalls.ALLOWED)
def test_every_call_that_takes_a_name_is_asked_for(machine):
    """Calls on descriptors, memory, time and the process itself take none."""
    harmless = """
        read write readv writev pread64 pwrite64 close lseek fstat getdents getdents64 umask dup dup2 dup3 pipe
        pipe2 fsync fdatasync ftruncate flock fadvise64 shutdown mmap munmap mprotect mremap madvise brk msync mincore
        futex futex_waitv rseq set_robust_list membarrier set_tid_address arch_prctl pause alarm nanosleep time
        rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack
        restart_syscall getitimer setitimer gettimeofday times getrusage getrlimit getrandom getpid gettid
        getpgrp getuid geteuid getgid getegid getgroups getcpu getresuid getresgid sched_yield
        sched_get_priority_max sched_get_priority_min poll ppoll select pselect6 epoll_create epoll_create1
        epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 timerfd_create timerfd_settime
        timerfd_gettime recvfrom getsockname getpeername exit exit_group
    """
    allowed = syscalls.parse_table(syscalls.ALLOWED[machine])
    guarded = syscalls.parse_table(syscalls.GUARDED[machine])
    asked = {name for name in allowed | guarded if name in syscalls.NAMING.split()}
    assert set(allowed) - asked <= set(harmless.split())
    assert all(hasattr(broker.Broker, broker.OLDER.get(name, (name,))[0]) for name in asked)
    program = naming_program(machine)
    numbers = {number for number in range(1000) if bpf.answer(program, machine, number) == ASK}
    assert numbers == {(allowed | guarded)[name] for name in asked}


def test_a_folder_is_not_measured_anew_for_each_of_thousands_of_names(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(
        zygote, "used_bytes", lambda folder, children: measured.append(0) or 10 * NAME_BYTES
    )
    with socket.socket() as control:
        host = zygote.Zygote(control, "unsafe", [], [], str(tmp_path))
        host.looked = 0
        assert all(host.may_grow() for _ in range(4000))
        assert measured == []
        # More than the rest of 64 MiB: it is looked at, and again not before that may be full.
        assert all(host.may_grow() for _ in range(4000))
        assert len(measured) == 1


WORKS = """
import errno, fcntl, io, os, pathlib, shutil, sys, tempfile, threading
def refused(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
def f():
    pathlib.Path("a/b").mkdir(parents=True)
    pathlib.Path("a/b/c.txt").write_text("text")
    os.chdir("a")
    assert os.path.basename(os.getcwd()) == "a" and os.listdir() == ["b"] and os.path.isfile("b/c.txt")
    folder = os.open("b", os.O_RDONLY)
    assert os.listdir(folder) == ["c.txt"] and os.stat("c.txt", dir_fd=folder).st_size == 4
    os.rename("c.txt", "../d.txt", src_dir_fd=folder, dst_dir_fd=folder)
    os.fchdir(folder)
    assert pathlib.Path.cwd().name == "b" and pathlib.Path("../d.txt").resolve().parent.name == "a"
    os.chdir("../..")
    with open("e", "w+b") as file, open("e", "rb") as other:
        file.write(b"0123456789")
        file.flush()
        assert os.fstat(file.fileno()).st_size == 10 and other.read() == b"0123456789"
        file.truncate(3)
        os.unlink("e")
        assert os.fstat(file.fileno()).st_nlink == 0
    with tempfile.TemporaryFile() as one, tempfile.NamedTemporaryFile() as two, tempfile.TemporaryDirectory() as three:
        one.write(b"1")
        assert os.path.exists(two.name) and os.path.dirname(two.name) == tempfile.gettempdir() == os.getcwd()
        os.makedirs(os.path.join(three, "x", "y"))
    assert sorted(path.name for path in pathlib.Path(".").rglob("*")) == ["a", "b", "d.txt"]
    assert refused(os.mkdir, "a") == "EEXIST" and refused(os.rmdir, "a") == "ENOTEMPTY"
    assert refused(os.stat, "a/d.txt/x") == "ENOTDIR" and refused(os.stat, "a/d.txt/") == "ENOTDIR"
    assert refused(os.chdir, "a/d.txt") == "ENOTDIR" and refused(os.stat, "") == "ENOENT"
    assert refused(os.stat, "x" * 5000) == "ENAMETOOLONG" and refused(os.open, "a", os.O_WRONLY) == "EISDIR"
    assert refused(open, "a/d.txt", "x") == "EEXIST" and refused(os.readlink, "a") == "EINVAL"
    assert refused(os.stat, 77) == "EBADF" and refused(os.fchdir, 0) == "ENOTDIR"
    os.chmod("a/d.txt", 0o640)
    os.utime("a/d.txt", ns=(5, 10**18 + 7))
    told = os.stat("a/d.txt")
    assert IN_VAIN or told.st_mode & 0o777 == 0o640 and told.st_mtime_ns == 10**18 + 7
    assert IN_VAIN or refused(os.chmod, "a/none", 0) == "ENOENT"
    assert refused(os.setxattr, "a", "user.a", b"") == "ENOTSUP"
    os.symlink("../a/d.txt", "a/link")
    os.symlink("nowhere", "a/broken")
    os.link("a/d.txt", "a/second")
    assert os.readlink("a/link") == "../a/d.txt" and os.stat("a/link").st_nlink == 2 and os.path.islink("a/link")
    assert os.path.lexists("a/broken") and not os.path.exists("a/broken") and os.access("a/link", os.R_OK)
    os.utime("a/link", ns=(1, 1), follow_symlinks=False)
    assert IN_VAIN or os.lstat("a/link").st_mtime_ns == 1 != os.stat("a/second").st_mtime_ns
    os.truncate("a/link", 2)
    assert open("a/second").read() == "te" and refused(os.truncate, "a/d.txt", 2**40) == "EFBIG"
    assert refused(os.symlink, "x", "a/link") == "EEXIST" and refused(os.link, "a/none", "x") == "ENOENT"
    pathlib.Path("a/broken").write_text("made by its link")
    assert os.path.exists("a/nowhere") and shutil.copy2("a/link", "a/copy") and os.stat("a/copy").st_size == 2
    with open("a/copy", "r+") as one, open("a/copy", "r+") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        assert refused(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB) == "EAGAIN"
        fcntl.lockf(one, fcntl.LOCK_EX)
    os.chmod("a", 0)
    os.chmod("a", 0o700)
    shutil.rmtree("a")
    assert os.listdir() == []
    assert os.access("/dev/null", os.W_OK) and not os.access(os.__file__, os.W_OK)
    with open(os.devnull, "w") as null:
        null.write("nothing")
    assert refused(open, os.__file__, "a") in ("EACCES", "EROFS")
    assert refused(open, "/new", "w") in ("EACCES", "EROFS") and refused(os.mkdir, "/new") in ("EACCES", "EROFS")
    for path in ("/", "/usr", "/dev"):
        assert os.path.isdir(path) and not os.path.islink(path)
    assert os.path.realpath(os.__file__) == os.__file__ and os.uname().nodename == "sandbox"
    def work(name):
        for number in range(50):
            pathlib.Path(f"{name}").write_text(str(number))
            assert pathlib.Path(f"{name}").read_text() == str(number)
        done.append(name)
    done = []
    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return sorted(done)
"""


@pytest.mark.parametrize("tier", TIERS)
def test_programs_use_files_as_anywhere(tier):
    with Session(tier) as session:
        for test in (
            "assert f() == ['a', 'b', 'c', 'd']",
            "names = f()\nassert names == ['a', 'b', 'c', 'd']",
        ):
            # There, a change of permissions or times does nothing (`confinement.owner_program`).
            in_vain = f"IN_VAIN = {tier == 'bubblewrap' and os.getuid() == 0}\n"
            result = run_program(session, Program(in_vain + WORKS, (test,), PATIENT))
            assert result.outcome == "passed", f"{result.detail}\n{result.stderr}"


def test_files_without_a_name_count(tmp_path):
    """What was removed keeps its room for as long as a process has it open or mapped."""
    block = bytes(2**20)
    # The tests' own process has removed files open too.
    own = used_bytes(str(tmp_path), [os.getpid()])

    def used():
        return used_bytes(str(tmp_path), [os.getpid()]) - own

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(block)
    whole = used()
    assert 2**20 + NAME_BYTES <= whole <= 2**20 + 4 * NAME_BYTES
    with open(tmp_path / "folder" / "file", "r+b") as file:
        os.unlink(file.name)
        assert used() == whole
        copy = os.dup(file.fileno())
        with mmap.mmap(copy, 4096):
            assert used() == whole
        os.close(copy)
    assert used() == NAME_BYTES
    descriptor = os.open(tmp_path / "mapped", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, block)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, 4096, 1, 1, descriptor, ctypes.c_long(0))
    os.unlink(tmp_path / "mapped")
    os.close(descriptor)
    assert used() == NAME_BYTES + MAX_FILE
    libc.munmap(ctypes.c_void_p(address), 4096)
    assert used() == NAME_BYTES


GROWING = {
    "files": "for n in range(10**6): open(str(n), 'wb').write(bytes(2**20))",
    "removed files": (
        "kept = []\nfor n in range(10**6):\n    kept.append(open('a', 'wb'))\n    os.unlink('a')\n"
        "    kept[-1].write(bytes(2**22)); kept[-1].flush()"
    ),
    "open files": (
        "kept = [open(str(n), 'wb') for n in range(50)]\nwhile True:\n    for file in kept: file.write(bytes(2**16))"
    ),
    "one program after the other": "for n in range(20): open(str(n), 'wb').write(bytes(2**20))",
}


@needs_landlock
@pytest.mark.parametrize("kind", GROWING)
def test_the_folder_of_a_program_is_bounded(kind):
    """Where it lies on the host's disk; bubblewrap's is in memory and has a size."""
    code, seen, done = f"import os\n{GROWING[kind]}", [0], threading.Event()
    with Session("landlock") as session:

        def watch():
            while not done.is_set():
                seen.append(used_bytes(session.folder, []))
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        results = [run_program(session, Program(code, (), PATIENT)) for _ in range(4)]
        done.set()
        watcher.join()
        left = os.listdir(session.folder)
    assert left == []
    if kind == "one program after the other":
        assert [result.outcome for result in results] == ["untested"] * 4
    else:
        full = f"OSError: [Errno {errno.ENOSPC}] No space left on device"
        assert all(result.outcome == "failed" for result in results)
        assert all(
            result.detail == TOO_MUCH or result.detail.startswith(full) for result in results
        ), results
    assert max(seen) < WORK_BYTES + 50 * MAX_FILE


@needs_landlock
def test_where_nobody_answers_calls_programs_are_refused(monkeypatch):
    """A host on which the zygote cannot read its children's memory must not run them with less."""
    fault = (
        "zygote.Broker = lambda *_: (_ for _ in ()).throw(PermissionError(1, 'no memory to read'))"
    )
    monkeypatch.setattr(
        tiers, "BOOTSTRAP", tiers.BOOTSTRAP.replace("zygote.main(", f"{fault}\nzygote.main(")
    )
    with (
        Session("landlock") as session,
        pytest.raises(SandboxFailureError, match="no memory to read"),
    ):
        run_program(session, Program("x = 1", (), PATIENT))


LARGEST = """
def fits(mebibytes):
    try:
        return bool(bytearray(mebibytes * 2**20))
    except MemoryError:
        return False
print(next(number for number in range(600, 0, -1) if fits(number)))
"""


@pytest.mark.parametrize("tier", TIERS)
def test_memory_and_threads_do_not_depend_on_what_a_neighbour_has_mentioned(tier):
    """The modules that it mentions stay in the zygote, and in the address space of all that follow."""

    def largest(session):
        run_program(session, Program(LARGEST, (), PATIENT))
        return int(session.text("stdout"))

    with Session(tier) as session:
        before = largest(session)
        run_program(
            session, Program("import asyncio, numpy, sqlite3, uuid, unittest.mock", (), PATIENT)
        )
        assert before > 400
        assert abs(largest(session) - before) <= 8


@pytest.mark.parametrize("tier", TIERS)
def test_threads_take_two_mebibytes_each(tier):
    code = (
        "import threading\ndef f():\n    end = threading.Event()\n"
        "    threads = [threading.Thread(target=end.wait) for _ in range(120)]\n"
        "    for thread in threads: thread.start()\n    end.set()\n    return len(threads)"
    )
    with Session(tier) as session:
        result = run_program(session, Program(code, ("assert f() == 120",), PATIENT))
    assert result.passed, result.detail

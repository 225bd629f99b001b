"""What a program inherits is its own: it may mark all of it, and whoever comes next sees none of
the marks.

The audit enumerates instead of naming known faults: descriptors with what is open behind them, what
the kernel keeps of a process, what Python keeps, what is in reach of a name. It is itself tested by
sharing something on purpose.
"""

import functools
import json
import os
from unittest import mock

import pytest

from untrusted import Limits, Local, Program, session, tiers
from untrusted.runner import run_program, why_not
from untrusted.session import Session
from untrusted.tiers import SAFE

TIERS = [tier for tier in SAFE if not why_not(tier)]
PATIENT = Limits(seconds=20, total_seconds=60, output_bytes=2**20)
MARK = "mark of an earlier program"

ENUMERATE = """
import builtins, ctypes, fcntl, gc, json, locale, mmap, os, random, resource, select, signal, socket, stat, struct, sys
import tempfile, threading, time, warnings

def tried(act, *arguments):
    try:
        return act(*arguments)
    except (OSError, ValueError) as error:
        return type(error).__name__

def descriptors():
    found = {}
    for number in range(1024):
        flags = tried(fcntl.fcntl, number, fcntl.F_GETFL)
        if isinstance(flags, str):
            continue
        kind = os.fstat(number)
        told = {"flags": flags, "inherited": os.get_inheritable(number), "kind": stat.S_IFMT(kind.st_mode),
                "mode": kind.st_mode, "offset": tried(os.lseek, number, 0, os.SEEK_CUR),
                "waiting": tried(waiting, number), "size": kind.st_size, "terminal": os.isatty(number)}
        if stat.S_ISSOCK(kind.st_mode):
            end = socket.socket(fileno=number)
            told |= {name: tried(end.getsockopt, socket.SOL_SOCKET, getattr(socket, name))
                     for name in ("SO_SNDBUF", "SO_RCVBUF", "SO_ERROR", "SO_REUSEADDR", "SO_TYPE")}
            told["ends"] = [repr(end.getsockname()), repr(tried(end.getpeername))]
            end.detach()
        found[number] = told
    return found

def waiting(number):
    return struct.unpack("i", fcntl.ioctl(number, 0x541B, bytes(4)))[0]

def identities():
    # What is open behind a descriptor, told apart by its inode: these must differ between programs.
    return {number: os.fstat(number).st_ino for number in range(1024)
            if not isinstance(tried(os.fstat, number), str)
            and not stat.S_ISCHR(os.fstat(number).st_mode) and not stat.S_ISREG(os.fstat(number).st_mode)}

def signals():
    found = {}
    for number in signal.valid_signals():
        handler = tried(signal.getsignal, number)
        found[int(number)] = getattr(handler, "__name__", str(handler))
    return found

def memory_in_reach():
    shared = [thing for thing in gc.get_objects() if isinstance(thing, mmap.mmap)]
    return [bytes(thing[:64]).hex() for thing in shared if not thing.closed]

def of_the_process():
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    umask = os.umask(0o77)
    os.umask(umask)
    name = ctypes.create_string_buffer(16)
    ctypes.CDLL(None).prctl(16, name, 0, 0, 0)
    return {"folder": os.path.basename(os.getcwd()), "umask": umask, "limits": limits, "signals": signals(),
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
            "pending": sorted(map(int, signal.sigpending())), "priority": tried(os.getpriority, 0, 0),
            "timers": [signal.getitimer(which) for which in range(3)], "alarm": signal.alarm(0),
            "leads its session": os.getsid(0) == os.getpid(), "leads its group": os.getpgrp() == os.getpid(),
            "processors": sorted(os.sched_getaffinity(0)), "name": name.value.decode(),
            "users": [os.getresuid(), os.getresgid(), os.getgroups()]}

def of_python():
    # Frames from here up are the same for everybody.
    return {"modules": sorted(sys.modules), "path": sys.path, "argv": sys.argv, "environment": dict(os.environ),
            "threads": threading.active_count(), "own": [tried(marked, module) for module in list(sys.modules.values())
            if tried(marked, module)], "builtins": sorted(vars(builtins)), "recursion": sys.getrecursionlimit(),
            "temporary": os.path.basename(tempfile.gettempdir()), "locale": locale.setlocale(locale.LC_ALL),
            "hooks": [repr(type(hook)) for hook in (*sys.meta_path, *sys.path_hooks)], "zone": time.tzname,
            "trace": [str(sys.gettrace()), str(sys.getprofile()), sys.getswitchinterval(), gc.get_threshold()],
            "importers": len(sys.path_importer_cache) > 0, "integers": sys.get_int_max_str_digits()}

def marked(module):
    return getattr(module, "__name__", "") if MARK in vars(module).values() else ""

def in_reach_of_names():
    found = []
    for folder in (".", tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run", "/"):
        for name in ("", "marked", "marked folder"):
            path = os.path.join(folder, name)
            found += [path] if name and os.path.exists(path) else []
        listed = tried(os.listdir, folder)
        found += [f"{folder}: {name}" for name in listed if MARK in name] if isinstance(listed, list) else []
    return found

def audit():
    return {"descriptors": descriptors(), "process": of_the_process(), "python": of_python(),
            "memory": memory_in_reach(), "names": in_reach_of_names(), "marks": sorted(os.listdir("."))}
"""

MAKE_MARKS = """
def mark_descriptors():
    for number in range(1024):
        tried(fcntl.fcntl, number, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        tried(fcntl.fcntl, number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        tried(os.lseek, number, 4711, os.SEEK_SET)
        tried(fcntl.fcntl, number, 1031, 4096)
        tried(fcntl.ioctl, number, 0x5421, struct.pack("i", 1))
        if number > 4:
            tried(os.write, number, MARK.encode())
    for number in range(3, 5):
        if not isinstance(tried(os.fstat, number), str):
            end = socket.socket(fileno=number)
            for name in ("SO_SNDBUF", "SO_RCVBUF", "SO_REUSEADDR"):
                tried(end.setsockopt, socket.SOL_SOCKET, getattr(socket, name), 4711)
            end.detach()
    for number in range(20, 30):
        tried(os.dup2, 0, number)

def mark_process():
    for name in dir(resource):
        if name.startswith("RLIMIT_") and name not in ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_STACK", "RLIMIT_CPU"):
            soft, hard = resource.getrlimit(getattr(resource, name))
            tried(resource.setrlimit, getattr(resource, name), (min(soft, 63) if soft > 0 else soft, hard))
    for number in signal.valid_signals():
        tried(signal.signal, number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.raise_signal(signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    tried(os.nice, 5)
    tried(os.setpriority, 0, 0, 7)
    tried(os.sched_setaffinity, 0, {0})
    tried(os.setpgid, 0, 0)
    tried(os.setsid)
    os.umask(0)
    ctypes.CDLL(None).prctl(15, b"marked", 0, 0, 0)
    os.mkdir("marked folder")
    for folder in (".", tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run", "/"):
        try:
            with open(os.path.join(folder, "marked"), "w") as file:
                file.write(MARK)
                tried(fcntl.flock, file, fcntl.LOCK_EX)
        except OSError:
            pass
    os.chdir("marked folder")

def mark_python():
    for module in list(sys.modules.values()):
        module.left = MARK
    builtins.left = MARK
    os.environ["MARKED"] = MARK
    sys.argv.append(MARK)
    sys.path.insert(0, MARK)
    sys.setrecursionlimit(4711)
    sys.setswitchinterval(1)
    gc.set_threshold(4711)
    sys.set_int_max_str_digits(4711)
    tempfile.tempdir = "/dev/shm"
    locale.setlocale(locale.LC_ALL, "C")
    warnings.simplefilter("error")
    for thing in gc.get_objects():
        if isinstance(thing, mmap.mmap) and not thing.closed:
            tried(thing.__setitem__, slice(0, len(MARK)), MARK.encode())
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    sys.settrace(lambda *arguments: None)

def mark():
    mark_python()
    mark_process()
    mark_descriptors()
"""

PRELUDE = f"MARK = {MARK!r}\n{ENUMERATE}{MAKE_MARKS}\nprint(json.dumps([audit(), identities()]), flush=True)\n"
ANSWER = "def answer(): return 1\n"
AUDITING, MARKING = PRELUDE + ANSWER, f"{PRELUDE}mark()\n{ANSWER}"
TESTS = {"call": "assert answer() == 1", "script": "found = answer()\nassert found == 1"}


def audited(session, code, test):
    """What a program finds when it starts: the audit, and what is open behind its descriptors."""
    run_program(session, Program(code, (test,), PATIENT))
    return json.loads(session.text("stdout").splitlines()[0])


def differences(one, other, path=""):
    """Where two reports differ, by path."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted({*one, *other})
        return [
            line
            for name in names
            for line in differences(one.get(name), other.get(name), f"{path}/{name}")
        ]
    return [] if one == other else [f"{path}: {one}, and then {other}"]


def without_folder(report):
    """A report without the name of the session's folder, which is as long as random."""
    process, python = report["process"] | {"folder": ""}, report["python"] | {"temporary": ""}
    return report | {"process": process, "python": python}


def findings(start, test):
    """What a program finds of one before it in the same session that marked all it could; `start`
    starts a session.
    """
    with start() as session:
        alone, _ = audited(session, AUDITING, test)
    with start() as session:
        before, marked = audited(session, MARKING, test)
        later, own = audited(session, AUDITING, test)
    same = [number for number in own if own[number] == marked.get(number)]
    found = differences(before, later) + differences(without_folder(alone), without_folder(later))
    found += [f"/identities/{number}: open before" for number in same]
    return found + [
        f"/process/{name}: no"
        for name, is_so in later["process"].items()
        if "leads" in name and not is_so
    ]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("test", TESTS)
def test_a_program_finds_no_mark_of_an_earlier_one(tier, test):
    assert findings(functools.partial(Session, tier), TESTS[test]) == []


@pytest.mark.parametrize("tier", TIERS)
def test_the_audit_looks_at_everything_and_marks_it(tier):
    """A program that has been marked within its own process finds all of it."""
    code = f"{PRELUDE}mark()\nos.chdir('..')\nsys.settrace(None)\nprint(json.dumps([audit(), 0]), file=sys.__stdout__)\n"
    with Session(tier) as session:
        run_program(session, Program(code, (), PATIENT))
        before, after = (json.loads(line)[0] for line in session.text("stdout").splitlines())
    found = [line.partition(":")[0] for line in differences(before, after)]
    for name in ("descriptors/0/flags", "descriptors/1/flags", "descriptors/3/flags", "descriptors/20", "marks",
                 "names", "process/umask", "process/limits/RLIMIT_NOFILE", "process/signals/10", "process/blocked",
                 "process/pending", "process/timers", "process/name", "python/environment/MARKED", "python/argv",
                 "python/path", "python/own", "python/builtins", "python/threads", "python/recursion",
                 "python/temporary", "python/trace", "python/integers"):  # fmt: skip
        assert f"/{name}" in found, found


class SharingInput(Session):
    """A session that opens standard input once for all programs."""

    def spawn(self, job, standard_input, ends):
        shared, genuine = (
            self.__dict__.setdefault("shared", session.open_input(b"")),
            session.open_input,
        )
        session.open_input = lambda _: os.fdopen(os.dup(shared.fileno()), "rb")
        try:
            return super().spawn(job, standard_input, ends)
        finally:
            session.open_input = genuine


class SharingPipes(Session):
    """A session that makes the pipes for output once for all programs, and hands out duplicates."""

    def open_pipes(self, theirs):
        pipes = self.__dict__.setdefault("shared", [os.pipe() for _ in session.STREAMS])
        duplicates = [tuple(map(os.dup, pipe)) for pipe in pipes]
        with mock.patch.object(os, "pipe", side_effect=duplicates):
            return super().open_pipes(theirs)


SABOTAGE = {
    "standard input": ("", SharingInput, "/descriptors/0/flags"),
    "pipes": ("", SharingPipes, "/descriptors/1/flags"),
    "folder": ("zygote.empty = lambda folder: None", Session, "/marks"),
    "memory": ("import mmap\nzygote.shared = mmap.mmap(-1, 4096)", Session, "/memory"),
    "descriptor": (
        "for _ in range(4): zygote.os.pipe2(0)\nzygote.os.closerange = lambda *numbers: None",
        Session,
        "/descriptors/",
    ),
    "session": ("zygote.os.setsid = lambda: None", Session, "/process/leads its session"),
}
"""What is shared on purpose: a line for the zygote, the parent's session, and what the audit must say."""


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", SABOTAGE)
def test_the_audit_notices_what_is_shared_on_purpose(tier, name, monkeypatch):
    line, start, expected = SABOTAGE[name]
    monkeypatch.setattr(
        tiers, "BOOTSTRAP", tiers.BOOTSTRAP.replace("zygote.main(", f"{line}\nzygote.main(")
    )
    found = findings(functools.partial(start, tier), TESTS["call"])
    assert any(text.startswith(expected) for text in found), found


NONBLOCKING = "import os\nfor number in range(5):\n    try: os.set_blocking(number, False)\n    except OSError: pass\n"
LOUD = "import sys\ndef answer():\n    print('x' * 300_000)\n    print('y' * 300_000, file=sys.stderr)\n    return 1\n"


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("test", TESTS)
def test_an_honest_program_scores_after_others_as_alone(tier, test):
    loud = Program(LOUD, (TESTS[test],), PATIENT)
    spoiled = [Program(code + ANSWER, (TESTS[test],), PATIENT) for code in (NONBLOCKING, MARKING)]
    results = Local(tier, workers=1).run_many([loud, spoiled[0], loud, spoiled[1], loud])
    assert {
        (result.outcome, len(result.stdout), len(result.stderr)) for result in results[::2]
    } == {("passed", 300_001, 300_001)}

"""Every attack of the battery, in every tier of this host, as the user who runs the tests and as
nobody.
"""

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cases import bpf

import untrusted
from untrusted.battery import EXHAUST, REACH, attacks, run_battery
from untrusted.inside import confinement, syscalls
from untrusted.runner import why_not
from untrusted.session import Session
from untrusted.tiers import SAFE, interpreter

NOBODY = 65534
AS_NOBODY = """
import json, sys
from untrusted.battery import run_battery
from untrusted.session import Session
with Session(sys.argv[1], packages=()) as session:
    findings = [finding.__dict__ for finding in run_battery(session, sys.argv[2:])]
print(json.dumps(findings))
"""
REACHES_WITHOUT_CONTAINMENT = (
    "read a secret file", "list a folder", "whether a file exists", "whether a process exists",
    "a name that changes while it is looked up", "packages of the interpreter", "what the machine is and does",
    "who the parent is", "write outside", "create files beside its own folder",
    "change or remove a file", "connect by TCP", "send by UDP", "listen on a port", "connect to an abstract socket",
    "send a datagram from a socket pair", "start a program", "replace itself by a program", "fork bomb",
    "vfork and clone", "orphan that outlives the kill", "signal other processes", "signal by the owner of a pipe",
    "limits of other processes", "priority of other processes", "shared memory of System V",
)  # fmt: skip
"""Those that need no privilege and no particular kernel: they must succeed where nothing contains them."""


def require(tier):
    if reason := why_not(tier):
        pytest.skip(f"{tier}: {reason}")


@pytest.mark.parametrize("tier", SAFE)
@pytest.mark.parametrize("attack", attacks())
def test_attack_is_stopped(attack, tier):
    require(tier)
    with Session(tier) as session:
        (finding,) = run_battery(session, [attack])
    assert finding.stopped, finding.detail


@pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux's")
@pytest.mark.parametrize("attack", REACHES_WITHOUT_CONTAINMENT)
def test_attack_succeeds_without_containment(attack):
    """Else a test above would pass whatever the sandbox did."""
    with Session("unsafe") as session:
        # A race may need more than one start on a busy machine.
        assert any(not finding.stopped for finding in run_battery(session, [attack] * 5))


def everyone_may_run(path):
    """Whether any user can execute a file: every folder above it must be open."""
    path = Path(path).resolve()
    return path.exists() and all(
        part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents)
    )


@pytest.fixture(scope="module")
def as_nobody(tmp_path_factory):
    """Runs attacks as uid 65534: an interpreter and a copy of the sandbox that this user can read."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    pythons = [python for python in (interpreter(), "/usr/bin/python3") if everyone_may_run(python)]
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    pythons = [python for python in pythons if not subprocess.call([python, "-c", new_enough])]
    if not pythons:
        pytest.skip("no Python from 3.11 on that any user may run")
    root = tmp_path_factory.mktemp("nobody")
    for folder in (root, *root.parents):
        if folder.owner() == "root" and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o755)
    shutil.copytree(Path(untrusted.__file__).parent, root / "untrusted")

    def attack(tier, names):
        return subprocess.run(
            [pythons[0], "-c", AS_NOBODY, tier, *names],
            cwd=root, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)}, capture_output=True, text=True,
            timeout=120, user=NOBODY, group=NOBODY, extra_groups=[], check=False,
        )  # fmt: skip

    return attack


@pytest.mark.parametrize("tier", SAFE)
@pytest.mark.parametrize(
    "names",
    [list(REACH)[::2], list(REACH)[1::2], list(EXHAUST)],
    ids=["reach", "reach2", "exhaust"],
)
def test_attacks_are_stopped_as_nobody(names, tier, as_nobody):
    require(tier)
    finished = as_nobody(tier, names)
    if finished.returncode and "namespace" in finished.stderr:
        pytest.skip(finished.stderr.strip().splitlines()[-1])
    assert finished.returncode == 0, finished.stderr
    findings = json.loads(finished.stdout)
    assert [finding["attack"] for finding in findings] == names
    assert [
        (finding["attack"], finding["detail"]) for finding in findings if not finding["stopped"]
    ] == []


def test_an_unknown_machine_is_refused():
    with pytest.raises(confinement.RefusedError, match="no table of system calls for riscv64"):
        confinement.filter_program("riscv64", 1)


@pytest.mark.parametrize("machine", syscalls.ALLOWED)
def test_a_filter_answers_every_number_as_its_table_says(machine):
    tables = (syscalls.ALLOWED, syscalls.GUARDED, syscalls.ABSENT, syscalls.ZERO)
    allowed, guarded, absent, zero = (syscalls.parse_table(table[machine]) for table in tables)
    unsupported = syscalls.parse_table(syscalls.UNSUPPORTED[machine])
    assert set(guarded) == set(syscalls.conditions(1))
    assert len(set(allowed.values())) == len(allowed)
    program = confinement.filter_program(machine, 4711)
    assert len(program) // 8 < 4096
    expected = dict.fromkeys(allowed.values(), confinement.ALLOW)
    expected |= dict.fromkeys(absent.values(), confinement.ERRNO | confinement.ENOSYS)
    expected |= dict.fromkeys(zero.values(), confinement.ERRNO)
    expected |= dict.fromkeys(unsupported.values(), confinement.ERRNO | confinement.EOPNOTSUPP)
    refused = confinement.ERRNO | confinement.EPERM
    # Also those of x32, which begin at 2**30.
    for number in {*range(1000), *range(2**30, 2**30 + 1000), 2**31, 2**32 - 1} - set(
        guarded.values()
    ):
        assert bpf.answer(program, machine, number) == expected.get(number, refused), number
    for name, parts in syscalls.conditions(4711).items():
        call = functools.partial(bpf.answer, program, machine, guarded[name])
        words = dict.fromkeys(range(12), 0) | {word: values[0] for word, _, values in parts}
        assert call(arguments_of(words)) == confinement.ALLOW, name
        for word, mask, values in parts:
            wrong = next(value for value in (0, 77, mask) if value & mask not in values)
            assert call(arguments_of(words | {word: wrong})) == refused, (name, word)


@pytest.mark.parametrize("machine", syscalls.ALLOWED)
def test_roots_changes_in_bubblewrap_do_nothing(machine):
    """And `Path.touch`, which first asks for the present time, makes its file."""
    table = syscalls.parse_table(syscalls.ALLOWED[machine] + syscalls.GUARDED[machine])
    call = functools.partial(bpf.answer, confinement.owner_program(machine), machine)
    refused = confinement.ERRNO | confinement.EPERM
    assert call(table["utimensat"], [0, 4096, 0, 0, 0, 0]) == refused
    assert call(table["utimensat"], [0, 4096, 8192, 0, 0, 0]) == confinement.ERRNO
    assert call(table["fchmodat"]) == confinement.ERRNO
    assert {call(table[name]) for name in ("openat", "read")} == {confinement.ALLOW}


def arguments_of(words):
    """Six arguments of their halves."""
    return [words[2 * index] | words[2 * index + 1] << 32 for index in range(6)]


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernels_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("needs the kernel's headers")
    words = HEADERS[machine].read_text().split()
    table = {words[i + 1].removeprefix("__NR_").removeprefix("__NR3264_"): words[i + 2]
             for i, word in enumerate(words[:-2]) if word == "#define" and words[i + 2].isdigit()}  # fmt: skip
    table |= {"newfstatat": table.get("newfstatat", table.get("fstatat", ""))}
    tables = (syscalls.ALLOWED, syscalls.GUARDED, syscalls.ABSENT, syscalls.ZERO)
    ours = {
        name: number
        for kind in tables
        for name, number in syscalls.parse_table(kind[machine]).items()
    }
    ours |= {"seccomp": confinement.SECCOMP[machine]}
    assert {name: table.get(name) for name in ours} == {
        name: str(number) for name, number in ours.items()
    }

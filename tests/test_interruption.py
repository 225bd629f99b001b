"""Ctrl-C and SIGTERM: status 130 or 143, one line, nothing left, within two seconds, whatever is running."""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from jax_lm.host import interruption

COMMANDS = {
    "generate": ["generate", "def add(a, b):", "--max-new-tokens", "480", "--no-early-stop"],
    "eval": ["eval", "builtin", "--limit", "300", "--out", "results"],
    "analyze": ["analyze", "--limit", "64", "--max-new-tokens", "128", "--out", "analysis"],
    "bench": ["bench", "--repeats", "20"],
    "sft": ["sft", "--data", "data.jsonl", "--out", "out", "--max-steps", "2000", "--max-length", "256"],
    "tokenize": ["data", "tokenize", "--data", "data.jsonl", "--kind", "conversations", "--model", "model",
                 "--out", "tokens", "--workers", "2", "--num-shards", "64"],
    "convert": ["convert", "model", "converted", "--quantize", "int8"],
    "experiment": ["experiment", "--out", "experiment"],
    "sandbox": ["sandbox", "run", "loop.py", "--tests", "tests.py", "--timeout", "60"],
}  # fmt: skip
LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
SECONDS = (0.1, 0.3, 0.6, 1.0, 2.0)
PATIENCE = 3.0
"""Seconds from the interrupt to the end: two, and one more for a machine that others use."""


@cache
def interpreter_seconds():
    """How long a bare interpreter takes to start: until then nobody can look after an interrupt."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import runpy"], check=True)
    return time.perf_counter() - start


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": "", "NO_COLOR": "1"}


def interrupted(words, seconds, folder, number):
    """Status, standard error and seconds from the interrupt to the end, of a command interrupted
    after so long.
    """
    process = subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    time.sleep(seconds + interpreter_seconds())
    start = time.perf_counter()
    # A terminal tells the whole group, and so does `timeout`.
    os.killpg(process.pid, number)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, err, time.perf_counter() - start


LOST = """
import time
from jax_lm.host import interruption
interruption.RETRY = 0.3
interruption.watch_interrupts()
with interruption.interruptible(), interruption.suspend_deadline():
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        pass  # as in a callback of a library, which cannot pass it on
    try:
        for _ in range(300):
            time.sleep(0.1)
        print("lost")
    except KeyboardInterrupt:
        interruption.mark_handled()
        time.sleep(1)
        print("handled")
"""


def test_an_interrupt_that_was_lost_is_raised_again():
    process = subprocess.Popen(
        [sys.executable, "-c", LOST], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "handled\n"
    assert process.returncode == 0


@pytest.fixture
def folder(tmp_path, builtin_folder):
    row = '{"prompt": "Write a function that adds two numbers.", "response": "def add(a, b):\\n    return a + b"}\n'
    (tmp_path / "data.jsonl").write_text(row * 30_000)
    (tmp_path / "model").symlink_to(builtin_folder)
    (tmp_path / "loop.py").write_text("while True: pass\n")
    (tmp_path / "tests.py").write_text("assert True\n")
    return tmp_path


def leftovers(folder):
    """What is half-written: names that begin with a dot, and unfinished shards."""
    return [
        path for path in folder.rglob("*") if path.name.startswith(".") and path.name != ".lock"
    ]


def check(name, seconds, folder, number):
    words = [sys.executable, "-m", "jax_lm", *COMMANDS[name]]
    status, err, waited = interrupted(words, seconds, folder, number)
    for more in range(1, 6):
        # On a busy machine Python itself may still be starting, before any line of ours: nobody can
        # guard that.
        if not (status == -number and f"{os.sep}jax_lm{os.sep}" not in err):
            break
        status, err, waited = interrupted(words, seconds + 0.1 * more, folder, number)
    assert status == 128 + number, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == LINES[number]
    assert err.count(LINES[number]) == 1
    assert waited < PATIENCE
    assert leftovers(folder) == []


@pytest.mark.parametrize(
    ("seconds", "number"), [(0.1, signal.SIGINT), (2.0, signal.SIGINT), (2.0, signal.SIGTERM)]
)
def test_an_interrupted_command(seconds, number, folder):
    check("generate", seconds, folder, number)


@pytest.mark.parametrize("number", LINES)
@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_at_every_moment(name, seconds, number, folder, for_release):
    check(name, seconds, folder, number)


DEAF = """
from pathlib import Path
from jax_lm.host import interruption
interruption.watch_interrupts()
with interruption.interruptible(), interruption.remove_on_exit(Path("half")) as half:
    half.mkdir()
    (half / "x").write_text("x")
    print("deaf", flush=True)
    {body}
"""


@pytest.mark.parametrize(
    "body",
    [
        "__import__('hashlib').pbkdf2_hmac('sha256', b'x', b'y', 10**9)",
        "for _ in range(10**9):\n        try: __import__('time').sleep(20)\n        except BaseException: pass",
    ],
    ids=["below Python", "swallowed"],
)
@pytest.mark.parametrize("number", LINES)
def test_what_does_not_hear_is_ended_and_its_leftovers_removed(tmp_path, body, number):
    code = DEAF.replace("{body}", body)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "deaf\n"
    assert (tmp_path / "half" / "x").is_file()
    # Until the line after that is running.
    time.sleep(0.5)
    start = time.perf_counter()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, f"{LINES[number]}\n")
    assert time.perf_counter() - start < PATIENCE
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_is_forgiven_ends_nothing(tmp_path):
    code = """
import time
from jax_lm.host import interruption
interruption.watch_interrupts()
with interruption.interruptible(), interruption.suspend_deadline():
    print("ready", flush=True)
    try: time.sleep(20)
    except KeyboardInterrupt: interruption.mark_handled()
    time.sleep(0.3)
    print("goes on", flush=True)
    time.sleep(20)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "goes on\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0


CONVERSATION = """
from jax_lm.host import interruption, terminal
interruption.watch_interrupts()
def converse():
    import time
    with interruption.suspend_deadline():
        while True:
            try:
                print("ready", flush=True)
                {body}
            except KeyboardInterrupt:
                interruption.mark_handled()
raise SystemExit(terminal.run_guarded(converse, debug=False))
"""


@pytest.mark.parametrize(
    "body", ["time.sleep(30)", "__import__('hashlib').pbkdf2_hmac('sha256', b'x', b'y', 10**9)"]
)
def test_sigterm_ends_what_forgives_ctrl_c(body):
    process = subprocess.Popen(
        [sys.executable, "-c", CONVERSATION.replace("{body}", body)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    start = time.perf_counter()
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (143, "terminated\n")
    assert time.perf_counter() - start < PATIENCE


def test_unfinished_things_go_when_the_block_ends(tmp_path):
    def failing():
        with interruption.remove_on_exit(tmp_path / "folder") as path:
            path.mkdir()
            (path / "file").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    with interruption.remove_on_exit(tmp_path / "file") as path:
        path.write_text("x")
        path.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert interruption.unfinished_paths == set()


def test_permissions_follow_the_umask(tmp_path):
    code = """
import os, sys
from pathlib import Path
from jax_lm.host.files import write_whole
for mask in (0o022, 0o077, 0o002):
    os.umask(mask)
    write_whole(Path(sys.argv[1]), "x")
    print(oct(os.stat(sys.argv[1]).st_mode & 0o777))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0o644", "0o600", "0o664"]
    assert [path.name for path in Path(tmp_path).iterdir()] == ["x"]


IMPORTING = """
import sys
from jax_lm.host import interruption
sys.path.insert(0, ".")
interruption.watch_interrupts()
with interruption.interruptible():
    import slow
"""


def test_an_import_is_not_broken_off_with_a_traceback(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(20)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")

"""Programs in a child process: what passes, what fails, and what is left behind."""

import os
import shutil
import subprocess
import time
import uuid
import warnings
from pathlib import Path

import jax.numpy as jnp
import pytest

from jax_lm.evaluation.execution import DETAIL_LENGTH, run_tests

WRITER = """
import os
try:
    with open("out.txt", "w") as file:
        file.write("text")
except OSError as error:
    raise SystemExit("|".join([error.strerror, *os.listdir(), str(os.path.getsize("out.txt")), os.getcwd()]))
"""
TIMEOUT = 0.5
SPARE = 5.0
"""Seconds that a busy machine may take on top of a time limit."""


def test_passing_program():
    result = run_tests("def double(x):\n    return 2 * x", ["assert double(2) == 4", "assert double('a') == 'aa'"])
    assert (result.outcome, result.detail, result.passed) == ("passed", "", True)


@pytest.mark.parametrize(
    ("program", "tests", "detail"),
    [
        ("x = 1", ["assert x == 1", "assert x == 2"], "AssertionError"),
        ("x = 1", ["assert y == 1"], "NameError: name 'y' is not defined"),
        ("def f(:\n    pass", ["assert True"], "SyntaxError: invalid syntax"),
        ("def f():", ["assert True"], "IndentationError"),
        ('text = """', ["assert True"], "SyntaxError: unterminated triple-quoted string"),
        ("x = 1 \\", ["assert True"], "SyntaxError"),
        ("x = '\0'", ["assert True"], "SyntaxError: source code"),
        ("def f():\n    return f()\nf()", [], "RecursionError"),
        ("raise SystemExit(3)", ["assert True"], "exit status 3"),
        ("x = input()", ["assert True"], "EOFError"),
        ("import jax", ["assert True"], "ModuleNotFoundError"),
        ("x = bytearray(10**9)", ["assert True"], "MemoryError"),
        ("x = [0] * 10**10", ["assert True"], "MemoryError"),
    ],
)
def test_failing_program_says_why(program, tests, detail):
    result = run_tests(program, tests)
    assert result.outcome == "failed"
    assert not result.passed
    assert result.detail.startswith(detail)


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "if __name__ == '__main__':\n    raise SystemExit(0)",
        "print('tests')\nimport os\nos._exit(0)",
    ],
)
def test_leaving_before_the_tests_is_not_passing(program):
    result = run_tests(program, ["assert False"])
    assert (result.outcome, result.detail) == ("failed", "exit status 0")


def test_leaving_in_a_test_is_not_passing():
    program = "import sys\ndef f():\n    sys.exit(0)"
    assert run_tests(program, ["assert f() == 1", "assert False"]).outcome == "failed"


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(60)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    ],
)
def test_endless_program_is_stopped_in_time(program):
    start = time.monotonic()
    result = run_tests(program, ["assert True"], seconds=TIMEOUT)
    elapsed = time.monotonic() - start
    assert (result.outcome, result.detail) == ("timeout", "no end after 0.5 s")
    assert TIMEOUT <= elapsed < TIMEOUT + SPARE


def test_a_program_cannot_write_files_and_its_folder_goes():
    result = run_tests(WRITER, [])
    assert result.outcome == "failed"
    reason, name, size, folder = result.detail.split("|")
    assert reason == "File too large"
    assert (name, size) == ("out.txt", "0")  # and there was nothing else
    assert folder != os.getcwd()
    assert not Path(folder).exists()


def test_uncaught_failure_to_write_fails_the_program():
    result = run_tests("with open('out.txt', 'w') as file:\n    file.write('a')", ["assert True"])
    assert (result.outcome, result.detail) == ("failed", "OSError: [Errno 27] File too large")


def test_environment_is_empty(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    result = run_tests("import os\nraise SystemExit(repr(sorted(os.environ)))", [])
    # Python itself sets the locale where there is none.
    assert result.detail in ("[]", "['LC_CTYPE']")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_large_output_does_not_hang(stream):
    assert run_tests(f"import sys\nprint('x' * 5_000_000, file=sys.{stream})", ["assert True"]).passed


def test_detail_is_cut_to_a_readable_length():
    result = run_tests("raise ValueError('x' * 100_000)", [])
    assert len(result.detail) == DETAIL_LENGTH


def test_text_is_utf8_whatever_the_locale():
    assert run_tests(
        "text = 'é日本🙂'\nprint(text)", ["assert len(text) == 5 - 1", "assert ord(text[0]) == 233"]
    ).passed


@pytest.mark.parametrize(
    "line", ["import pickle\npickle.dumps(A())", "import typing\nassert typing.get_type_hints(A) == {'other': A}"]
)
def test_classes_are_found_where_they_say(line):
    assert run_tests("class A:\n    other: 'A'", [line]).passed


def running(marker):
    """Whether a process with this word on its command line is alive."""
    listing = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return marker in listing


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ("stdin=-3, stdout=-3, stderr=-3", "passed"),  # -3 is subprocess.DEVNULL
        ("", "timeout"),  # holds the output open
    ],
)
def test_no_child_is_left_behind(options, outcome):
    marker = f"marker-{uuid.uuid4()}"
    command = f"[sys.executable, '-c', 'import time; time.sleep(60)', '{marker}']"
    program = f"import subprocess, sys\nchild = subprocess.Popen({command}, {options})"
    assert run_tests(program, ["assert child.poll() is None"], seconds=2.0).outcome == outcome
    deadline = time.monotonic() + SPARE
    while running(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(marker)


def test_starting_a_program_does_not_fork_this_process():
    jnp.ones(1).block_until_ready()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_tests("x = 1", ["assert x == 1"])
    assert [str(warning.message) for warning in caught] == []

"""Cases: programs that read standard input and write standard output, and how their output is
compared.
"""

import json
import re
import secrets
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jax_lm.cli import main as cli
from untrusted import Case, Limits, Local, Program
from untrusted.cases import MAX_OUTPUT, TOLERANCE, difference
from untrusted.plain import from_plain
from untrusted.runner import why_not
from untrusted.tiers import SAFE

TIERS = [tier for tier in SAFE if not why_not(tier)]
ANYWHERE = [*TIERS, "unsafe"]
PATIENT = Limits(seconds=20, total_seconds=120)
SUM = Case("3\n1 2\n3 4\n5 6\n", "3\n7\n11\n")

READERS = {
    "input": "for _ in range(int(input())):\n    a, b = map(int, input().split())\n    print(a + b)",
    "input until the end": (
        "input()\nwhile True:\n    try:\n        line = input()\n    except EOFError:\n        break\n"
        "    print(sum(map(int, line.split())))"
    ),
    "lines": "import sys\nnext(sys.stdin)\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
    "read": (
        "import sys\ndata = list(map(int, sys.stdin.read().split()))\n"
        "for i in range(data[0]):\n    print(data[1 + 2 * i] + data[2 + 2 * i])"
    ),
    "readline": (
        "import sys\ninput = sys.stdin.readline\nfor _ in range(int(input())):\n"
        "    print(sum(map(int, input().split())))"
    ),
    "readlines": "import sys\nfor line in sys.stdin.readlines()[1:]: print(sum(map(int, line.split())))",
    "buffer": "import sys\nfor line in sys.stdin.buffer.read().splitlines()[1:]: print(sum(map(int, line.split())))",
    "buffer, line by line": (
        "import sys\nread = sys.stdin.buffer.readline\nfor _ in range(int(read())):\n"
        "    print(sum(map(int, read().split())))"
    ),
    "open(0)": "_, *lines = open(0)\nfor line in lines: print(sum(map(int, line.split())))",
    "open(0), bytes": "_, *lines = open(0, 'rb').read().splitlines()\nfor x in lines: print(sum(map(int, x.split())))",
    "os.read": "import os\nfor line in os.read(0, 10**6).splitlines()[1:]: print(sum(map(int, line.split())))",
    "as large as it is": (
        "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
        "for _ in range(int(input())): print(sum(map(int, input().split())))"
    ),
    "mmap": (
        "import mmap\ndata = mmap.mmap(0, 0, prot=mmap.PROT_READ)\n"
        "for line in data[:].splitlines()[1:]: print(sum(map(int, line.split())))"
    ),
    "fileinput": (
        "import fileinput\nfor n, line in enumerate(fileinput.input()):\n"
        "    if n: print(sum(map(int, line.split())))"
    ),
    "select": (
        "import select, sys\nassert select.select([sys.stdin], [], [], 5)[0]\n"
        "for line in list(sys.stdin)[1:]: print(sum(map(int, line.split())))"
    ),
    "reopened": (
        "import io, sys\nsys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding='ascii')\n"
        "for line in list(sys.stdin)[1:]: print(sum(map(int, line.split())))"
    ),
    "numpy": (
        "import sys\nimport numpy as np\ndata = np.array(sys.stdin.read().split()[1:], int).reshape(-1, 2)\n"
        "print(*data.sum(1), sep='\\n')"
    ),
}  # fmt: skip

WRITERS = {
    "print with flush": "for x in (3, 7, 11): print(x, flush=True)",
    "write": "import sys\nsys.stdout.write('3\\n7\\n11')",
    "bytes": "import sys\nsys.stdout.buffer.write(b'3\\n7\\n11\\n')",
    "os.write": "import os\nos.write(1, b'3\\n7\\n11\\n')",
    "another file, never closed": "out = open(1, 'w')\nout.write('3\\n7\\n11\\n')",
    "a wrapper that is flushed at the end": (
        "import io, sys\nsys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)))\n"
        "print(3, 7, 11, sep='\\n')"
    ),
    "collected, written at exit": (
        "import atexit, io, os, sys\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))\nprint(3, 7, 11, sep='\\n')"
    ),
    "a thread with a large stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "def depth(n): return n and 1 + depth(n - 1)\n"
        "def main(): print(3, 7, depth(11), sep='\\n')\nthreading.Thread(target=main).start()"
    ),
    "threads that outlive the main one": (
        "import threading, time\ndef later(n):\n    time.sleep(0.1 * n)\n    print(n)\n"
        "for n in (3, 7, 11): threading.Thread(target=later, args=(n / 1,)).start()".replace(
            "print(n)", "print(int(n))"
        )
    ),
    "asyncio": (
        "import asyncio\nasync def main():\n    for n in (3, 7, 11):\n        await asyncio.sleep(0)\n"
        "        print(n)\nasyncio.run(main())"
    ),
    "sys.exit": "import sys\nprint(3, 7, 11, sep='\\n')\nsys.exit()",
    "sys.exit(0) in a function": (
        "import sys\ndef f():\n    print(3, 7, 11, sep='\\n')\n    sys.exit(0)\nf()\nprint('no')"
    ),
    "exit": "print(3, 7, 11, sep='\\n')\nexit()\nprint('no')",
    "quit": "print(3, 7, 11, sep='\\n')\nquit(0)",
    "raise SystemExit": "print(3, 7, 11, sep='\\n')\nraise SystemExit",
    "os._exit after a flush": "import os\nprint(3, 7, 11, sep='\\n', flush=True)\nos._exit(0)",
    "main": "def main():\n    print(3, 7, 11, sep='\\n')\nif __name__ == '__main__':\n    main()",
    "stdout closed": "import sys\nprint(3, 7, 11, sep='\\n')\nsys.stdout.close()",
    "all other descriptors closed": "import os\nos.closerange(3, 256)\nprint(3, 7, 11, sep='\\n')",
    "words on standard error": "import sys\nprint('x' * 10**6, file=sys.stderr)\nprint(3, 7, 11, sep='\\n')",
    "trailing white space": "print('3 ')\nprint('7\\t')\nprint('11\\r\\n\\n')",
    "no input read": "print(3, 7, 11, sep='\\n')",
    "an exception that is caught": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    print(3, 7, 11, sep='\\n')",
    "a thread that fails": (
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\n"
        "print(3, 7, 11, sep='\\n')"
    ),
    "files of its own": "open('a', 'w').write('3\\n7\\n11')\nprint(open('a').read())",
    "recursion": (
        "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return n and f(n - 1)\nf(20000)\nprint('3\\n7\\n11')"
    ),
}

LINES = "".join(f"{n} {n * 31 % 1000}\n" for n in range(100_000))
COPY = "import sys\nsys.stdout.write(sys.stdin.read())"
HONEST = {
    **{f"reads: {name}": (code, SUM) for name, code in READERS.items()},
    **{f"writes: {name}": (code, SUM) for name, code in WRITERS.items()},
    "a megabyte in and out": (COPY, Case(LINES, LINES, "exact")),
    "a megabyte in, line by line": ("print(sum(sum(map(int, line.split())) for line in open(0)))",
                                    Case(LINES, str(sum(n + n * 31 % 1000 for n in range(100_000))))),
    "a megabyte in, not read": ("print(1)", Case(LINES, "1")),
    "a line of a megabyte": ("print(len(input()))", Case("x" * 2**20, str(2**20))),
    "just as much as may be": (f"print('x' * {MAX_OUTPUT - 1})", Case("", "x" * (MAX_OUTPUT - 1), "exact")),
    "text of all kinds": (COPY, Case("é 日本 🙂 \u2028 \0 \x7f", "é 日本 🙂 \u2028 \0 \x7f", "exact")),
    "Windows line ends": ("print(*input().split('x'))\nprint(repr(input()))", Case("1x2\r\na\r\n", "1 2\r\n'a'\r\n")),
    "Windows line ends as bytes": ("import os\nprint(os.read(0, 9))", Case("a\r\n", "b'a\\r\\n'", "exact")),
    "no newline at the end": ("print(input() + input(), end='')", Case("a\nb", "ab\n", "exact")),
    "floats": ("print(1 / 3, 1e-9, 2.0, '1E3', 0.1 + 0.2)", Case("", "0.333333 0 2 1000 0.3000")),
    "nothing to say": ("input()", Case("a\n", "")),
    "no input": ("import sys\nassert sys.stdin.read() == ''\nprint(0)", Case("", "0\n")),
    "a prompt that belongs there": ("input('n? ')", Case("a", "n? ", "exact")),
}  # fmt: skip


def outcomes(tier, trials, limits=PATIENT):
    """Run each program against its case; the programs share sandboxes."""
    local = Local(tier, allow_unsafe=tier == "unsafe", workers=2)
    results = local.run_many([Program(code, (case,), limits) for code, case in trials.values()])
    return dict(zip(trials, results, strict=True))


@pytest.mark.parametrize("tier", ANYWHERE)
def test_honest_programs_pass(tier):
    results = outcomes(tier, HONEST)
    assert {name: result.detail for name, result in results.items() if not result.passed} == {}
    assert results["writes: words on standard error"].stderr == "x" * 4096
    assert results["a megabyte in and out"].stdout == LINES[:4096]


WRONG = {
    "extra line": ("print(3, 7, 11, 12, sep='\\n')", "failed", "line 4: got '12', expected no such line"),
    "extra token": ("print('3 0', 7, 11, sep='\\n')", "failed", "line 1: got '3 0', expected '3'"),
    "prefix": ("print(3, 7, sep='\\n')", "failed", "line 3: got no such line, expected '11'"),
    "nothing": ("pass", "failed", "line 1: got '', expected '3'"),
    "other line ends": ("print(3, 7, 11)", "failed", "line 1: got '3 7 11', expected '3'"),
    "a blank line between": ("print(3, '', 7, 11, sep='\\n')", "failed", "line 2: got '', expected '7'"),
    "a prompt": ("input('n? ')\nprint(3, 7, 11, sep='\\n')", "failed", "line 1: got 'n? 3', expected '3'"),
    "a crash after the answer": ("print(3, 7, 11, sep='\\n', flush=True)\n1 / 0", "failed",
                                 "ZeroDivisionError: division by zero"),
    "a signal after the answer": ("import os\nprint(3, 7, 11, sep='\\n', flush=True)\nos.abort()", "failed",
                                  "crashed with SIGABRT"),
    "status 1 after the answer": ("print(3, 7, 11, sep='\\n')\nexit(1)", "failed", "left with exit status 1"),
    "a word as status": ("import sys\nprint(3, 7, 11, sep='\\n')\nsys.exit('no')", "failed", "left with exit status 1"),
    "os._exit(3) after the answer": ("import os\nprint(3, 7, 11, sep='\\n', flush=True)\nos._exit(3)", "failed",
                                     "left with exit status 3"),
    "os._exit before the flush": ("import os\nprint(3, 7, 11, sep='\\n')\nos._exit(0)", "failed",
                                  "line 1: got '', expected '3'"),
    "a loop after the answer": ("print(3, 7, 11, sep='\\n', flush=True)\nwhile True: pass", "timeout",
                                "no end after 2 s"),
    "a thread that does not end": ("import threading, time\nprint(3, 7, 11, sep='\\n')\n"
                                   "threading.Thread(target=time.sleep, args=(99,)).start()", "timeout",
                                   "no end after 2 s"),
    "a flood": ("while True: print('3\\n7\\n11' * 10**5)", "failed", f"wrote more than {MAX_OUTPUT} bytes"),
    "the answer, then a flood": ("print(3, 7, 11, sep='\\n')\nwhile True: print('\\n' * 10**6)", "failed",
                                 f"wrote more than {MAX_OUTPUT} bytes"),
    "reading beyond": ("print(3, 7, 11, sep='\\n')\nfor _ in range(5): input()", "failed",
                       "EOFError: EOF when reading a line"),
    "an error of syntax": ("print(3", "failed", "SyntaxError: '(' was never closed (program.py, line 1)"),
    "memory": ("x = bytearray(10**10)", "out_of_memory", "MemoryError"),
    "no text": ("import os\nos.write(1, b'3\\n7\\n\\xff11')", "failed", r"line 3: got '\udcff11', expected '11'"),
    "a control character": ("print('3\\x1b[2J')", "failed", r"line 1: got '3\x1b[2J', expected '3'"),
    "a long line": ("print('3\\n7\\n' + '1' * 10**6)", "failed", f"line 3: got '{'1' * 60}'…, expected '11'"),
}  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_wrong_programs_fail_and_say_where(tier):
    trials = {name: (code, SUM) for name, (code, _, _) in WRONG.items()}
    results = outcomes(tier, trials, Limits(seconds=2))
    found = {name: (result.outcome, result.detail) for name, result in results.items()}
    assert found == {name: (outcome, detail) for name, (_, outcome, detail) in WRONG.items()}


# The expected text is made by chance for each run: `ANSWER` in a program is its form, never its
# letters.
FIND = r"""
import ctypes, gc, os, re, sys
FORM = re.compile(rb"zq[0-9a-f]{32}qz")
found = set()
def look(data):
    found.update(FORM.findall(data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")))
frame = sys._getframe()
while frame:
    look({**frame.f_globals, **frame.f_locals})
    frame = frame.f_back
for item in gc.get_objects():
    try:
        look(repr(item)[:10**5])
    except Exception:
        pass
look([sys.argv, dict(os.environ)])
for folder in (".", "/", "/tmp", "/dev/shm"):
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        try:
            look(open(os.path.join(folder, name), "rb").read(10**6))
        except OSError:
            pass
for number in range(3, 64):
    try:
        os.set_blocking(number, False)
        look(os.read(number, 10**6))
    except OSError:
        pass
try:
    for line in open("/proc/self/maps").readlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if line.split()[1].startswith("rw") and "[v" not in line and end - start < 2**27:
            look(ctypes.string_at(start, end - start))
except OSError:
    pass
print(*(text.decode() for text in found))
"""

CHEATS = {
    "looks everywhere": FIND,
    "claims its end": "import os\nfor _ in range(3): os.write(3, b'{\"ended\": true}\\n')",
    "claims the answer": "import os\nos.write(3, b'{\"value\": \"' + b'zq' * 9 + b'\"}\\n')\nos._exit(0)",
    "claims on every descriptor": (
        "import os\nfor n in range(3, 1024):\n    try: os.write(n, b'{\"ended\": true, \"passed\": true}\\n')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "closes its output": "import os\nos.close(1)",
    "closes everything and stays": "import os, time\nos.closerange(0, 256)\ntime.sleep(99)",
    "closes everything and leaves": "import os\nos.closerange(0, 256)\nos._exit(0)",
    "makes its output the channel": "import os\nos.dup2(3, 1)\nprint('{\"ended\": true}')",
    "output that does not wait": (
        "import fcntl, os\nfor n in (0, 1, 2, 3): fcntl.fcntl(n, fcntl.F_SETFL, os.O_NONBLOCK)\nprint('x' * 10**6)"
    ),
    "an end of its own": "import atexit, os\natexit.register(os._exit, 0)\n1 / 0",
    "leaves before": "import sys\nsys.exit(0)",
    "dies well": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))\nos.kill(os.getpid(), 15)",
    "equals everything": "class A(str):\n    __eq__ = lambda *_: True\nprint(A())",
    "goes on as the parent": (
        "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
        "frame.f_globals['zygote'].os._exit = lambda *_: None\nsys.exit(0)"
    ),
    "its input as the answer": COPY,
    "the flood hides the end": "import sys\nsys.stdout.write('x' * (2**24 + 1))\nsys.stdout.flush()",
    "leaves something for later": "open('answer', 'w').write('x')\nimport os\nos.write(2, b'zq')",
    "closes the input": "import os\nos.close(0)\nos.open('/dev/null', os.O_RDONLY)\nprint(open(0).read())",
    "writes to its input": "import os\ntry:\n    os.write(0, b'x')\n    print('written')\nexcept OSError: pass",
}  # fmt: skip


@pytest.mark.parametrize("tier", ANYWHERE)
def test_cheats_gain_nothing_and_spoil_nothing(tier):
    answers = {name: f"zq{secrets.token_hex(16)}qz" for name in CHEATS}
    trials = {name: (code, Case("1\n", answers[name])) for name, code in CHEATS.items()}
    between = {f"after {name}": ("print(int(input()) + 1)", Case("1\n", "2\n")) for name in CHEATS}
    mixed = {
        key: value
        for pair in zip(trials.items(), between.items(), strict=True)
        for key, value in pair
    }
    results = outcomes(tier, mixed, Limits(seconds=4, memory_bytes=2**30))
    assert {name: results[name].outcome for name in CHEATS if results[name].passed} == {}
    assert {name: results[name].detail for name in between if not results[name].passed} == {}
    assert "sandbox_error" not in {result.outcome for result in results.values()}
    looked = results["looks everywhere"]
    assert not re.search("zq[0-9a-f]{32}qz", looked.stdout + looked.stderr)


@pytest.mark.parametrize("tier", ANYWHERE)
def test_who_looks_everywhere_would_find_it(tier):
    """What is looked for is found where it is: in what was read."""
    answer = f"zq{secrets.token_hex(16)}qz"
    code = f"kept = input()\n{FIND}"
    result = outcomes(
        tier, {"finds": (code, Case(answer, answer))}, Limits(seconds=20, memory_bytes=2**30)
    )["finds"]
    assert result.passed, result.detail


def test_each_case_runs_anew_and_counts():
    code = "import os\nprint(len(os.listdir()))\nopen('left', 'w').close()\nx = int(input())\ndef f(): return x"
    cases = tuple(Case(f"{n}\n", "0") for n in range(3))
    result = Local(TIERS[0] if TIERS else "unsafe", allow_unsafe=True).run_many(
        [Program(code, (*cases, Case("a", "0")))]
    )[0]
    assert [test.outcome for test in result.tests] == ["passed"] * 3 + ["failed"]
    assert result.share == 0.75
    assert result.detail.startswith("ValueError: invalid literal")


def test_a_row_may_have_both_kinds():
    code = "import sys\nprint(sys.stdin.read().upper())\ndef f(x): return x"
    tests = (
        "assert f(1) == 1",
        Case("a", "A"),
        "value = f([2])\nassert value == [2]",
        Case("b", "b"),
    )
    result = Local("auto", allow_unsafe=True).run_many([Program(code, tests)])[0]
    assert [test.outcome for test in result.tests] == ["passed", "passed", "passed", "failed"]


def test_time_is_limited_for_each_case():
    code = "import time\ntime.sleep(float(input()))"
    cases = tuple(Case(seconds, "") for seconds in ("0", "60", "0"))
    result = Local("auto", allow_unsafe=True).run_many([Program(code, cases, Limits(seconds=1))])[0]
    assert [test.outcome for test in result.tests] == ["passed", "timeout", "passed"]


CALLS = {
    "a method": ("class Solution:\n    def f(self, a: List[int], n: int) -> int:\n        return sum(a) + n",
                 Case("[1, 2]\n3", "6", "exact", "f"), "passed"),
    "a function": ("def f(a):\n    return Counter(a).most_common(1)[0][0]",
                   Case('["b", "b", "a"]', '"b"', "exact", "f"), "passed"),
    "a tuple for a list": ("def f(a): return tuple(a)", Case("[1, 2]", "[1, 2]", "exact", "f"), "passed"),
    "tuples inside": ("def f(a): return [tuple(a)]", Case("[1, 2]", "[[1, 2]]", "exact", "f"), "failed"),
    "numbers of numpy": ("import numpy as np\ndef f(a): return np.sum(a)", Case("[1, 2]", "3", "exact", "f"), "passed"),
    "no arguments": ("def f(): return None", Case("", "null", "exact", "f"), "passed"),
    "a wrapped result": ("def f(a): return a", Case("[1]", "[[1]]", "tolerant", "f"), "passed"),
    "a result of one": ("def f(a): return a", Case("[1]", "[1]", "tolerant", "f"), "passed"),
    "wrapped, exactly": ("def f(a): return a", Case("[1]", "[[1]]", "exact", "f"), "failed"),
    "another value": ("def f(a): return a", Case("[1]", "[2]", "exact", "f"), "failed"),
    "text for a number": ("def f(): return '3'", Case("", "3", "exact", "f"), "failed"),
    "no such method": ("class Solution: pass\ndef f(): return 3", Case("", "3", "exact", "f"), "failed"),
    "an exit": ("import sys\ndef f(): sys.exit(0)", Case("", "3", "exact", "f"), "failed"),
    "equals everything": ("class A:\n    __eq__ = lambda *_: True\ndef f(): return A()", Case("", "3", "exact", "f"),
                          "failed"),
    "a claim": ("import os\nos.write(3, b'{\"value\": 4}\\n')\ndef f(): return 3", Case("", "3", "exact", "f"),
                "failed"),
    "what it prints is nothing": ("def f():\n    print(3)", Case("", "3", "exact", "f"), "failed"),
}  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_calls_with_json_values(tier):
    results = outcomes(tier, {name: (code, case) for name, (code, case, _) in CALLS.items()})
    found = {name: result.outcome for name, result in results.items()}
    assert found == {name: outcome for name, (_, _, outcome) in CALLS.items()}, results
    assert results["another value"].detail == "returned [1], expected [2]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": 3, "output": ""}, "input=3: must be text"),
        ({"input": "", "output": None}, "output=None: must be text"),
        ({"input": "\ud800", "output": ""}, "input: is not text that UTF-8 can encode"),
        (
            {"input": "", "output": "", "comparison": "sorted"},
            "comparison='sorted': must be one of exact, tolerant",
        ),
        (
            {"input": "", "output": "x" * (MAX_OUTPUT + 1)},
            f"output: has {MAX_OUTPUT + 1} bytes, a program may write",
        ),
        ({"input": "[1", "output": "1", "function": "f"}, r"input: '\[1' is not a JSON value"),
        ({"input": "1", "output": "", "function": "f"}, "output: '' is not a JSON value"),
        ({"input": "NaN", "output": "1", "function": "f"}, "NaN is not a JSON number"),
        ({"input": "1", "output": "1", "function": "f()"}, r"function='f\(\)': must be a name"),
    ],
)
def test_cases_that_can_be_none_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        from_plain(Case, fields, "tests")


def test_cases_travel_as_json():
    program = Program(
        "x", ("assert x", Case("é\r\n", "b"), Case("[1]", "2", "exact", "f")), Limits(seconds=3)
    )
    assert from_plain(Program, json.loads(json.dumps(asdict(program))), "job") == program
    for test in (
        3,
        {"input": "a"},
        {"input": "a", "output": "b", "other": 1},
        {"input": 1, "output": "b"},
    ):
        with pytest.raises(
            ValueError,
            match=r"^(tests=3: must be text or an object|tests: must be an object|input=1: must be text)",
        ):
            from_plain(Program, {"code": "x", "tests": [test]}, "job")


# The comparison


@pytest.mark.parametrize(
    ("expected", "found", "tolerant", "exact"),
    [
        ("1\n", "1", True, True),
        ("1", "1\n", True, True),
        ("1\n", "1\n\n", True, False),
        ("1", "1 ", True, False),
        ("1 2", "1  2", True, False),
        ("1\n2", "1 2", False, False),
        ("1\n\n2", "1\n2", False, False),
        ("a", "A", False, False),
        ("1", "1.0", True, False),
        ("1.0", "1", True, False),
        ("0.5", "0.5000009", True, False),
        ("0.5", "0.5000011", False, False),
        ("1000000.5", "1000001.4", True, False),
        ("1000000.5", "1000001.6", False, False),
        ("1000000", "1000000.5", False, False),
        ("1000000", "999999.9999995", True, False),
        ("0", "1e-9", True, False),
        ("50000000000000000", "50000000000000001", False, False),
        ("1e3", "1000.0005", True, False),
        ("-0.0", "0", True, False),
        # A plus sign or a leading zero makes a token text.
        ("+1", "1", False, False),
        ("1", "+1.0", False, False),
        ("007", "7", False, False),
        ("7", "07", False, False),
        ("-01", "-1", False, False),
        ("00.5", "0.5", False, False),
        ("007", "007 ", True, False),
        ("-0.50", "-.5", True, False),
        ("1e+05", "100000", True, False),
        ("nan", "nan", True, True),
        ("nan", "NaN", False, False),
        ("0.5", "nan", False, False),
        ("0.5", "inf", False, False),
        ("1e999", "1e998", False, False),
        ("1e9999", "1e9999", True, True),
        ("1e9999", "2e9999", False, False),
        ("1_000", "1000", False, False),
        ("\u0661", "1", False, False),
        ("0x10", "16", False, False),
        ("1" * 500, "1" * 500 + ".0", False, False),
        ("", "", True, True),
        ("", "\n", True, True),
        ("", " \n\n", True, False),
        ("", "x", False, False),
    ],
)
def test_what_each_comparison_takes(expected, found, tolerant, exact):
    assert (difference(expected, found, "tolerant") == "") is tolerant
    assert (difference(expected, found, "exact") == "") is exact


def plain_number(token):
    """Read a number as its definition says, by hand; exponents of four digits are none."""
    match = re.fullmatch(r"(-?)(0|[1-9]\d*|)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?", token, re.ASCII)
    if not match or not (match[2] or match[3]):
        return None
    digits = int((match[2] + (match[3] or "")) or "0")
    value = Fraction(digits) / 10 ** len(match[3] or "") * Fraction(10) ** int(match[4] or 0)
    return -value if match[1] == "-" else value


def plainly_same(expected, found):
    """Compare two texts as the documentation says, without any shortcut."""
    grids = [[line.split() for line in text.strip().split("\n")] for text in (expected, found)]
    if [len(line) for line in grids[0]] != [len(line) for line in grids[1]]:
        return False
    for wanted, got in zip(*(chain.from_iterable(grid) for grid in grids), strict=True):
        numbers = plain_number(wanted), plain_number(got)
        if wanted == got:
            continue
        if None in numbers:
            return False
        near = Fraction(str(TOLERANCE)) * (
            max(1, abs(numbers[0])) if set(wanted) & set(".eE") else 1
        )
        if abs(numbers[0] - numbers[1]) > near:
            return False
    return True


PIECES = st.sampled_from(
    [
        "0",
        "1",
        "9",
        "10",
        ".",
        "e1",
        "E-2",
        "-",
        "+",
        " ",
        "\n",
        "\r\n",
        "\t",
        "a",
        "00001",
        "\u3000",
    ]
)
OUTPUTS = st.lists(PIECES, max_size=12).map("".join)


def nearly(text):
    """Texts that differ from one in a piece or two, as unrelated ones are never equal."""
    return st.tuples(st.integers(0, len(text)), st.integers(0, 2), PIECES | st.just("")).map(
        lambda change: text[: change[0]] + change[2] + text[change[0] + change[1] :]
    )


@settings(max_examples=1000, deadline=None)
@given(OUTPUTS.flatmap(lambda text: st.tuples(st.just(text), OUTPUTS | nearly(text))))
def test_comparison_is_that_of_a_plain_reading(pair):
    expected, found = pair
    assert (difference(expected, found, "tolerant") == "") == plainly_same(expected, found)
    cut = [text[:-1] if text.endswith("\n") else text for text in pair]
    assert (difference(expected, found, "exact") == "") == (cut[0] == cut[1])


def decimals(line):
    """Read a line as decimals, as LiveCodeBench's checker does; None if it is none."""
    try:
        return [Decimal(token) for token in line.split()]
    except InvalidOperation:
        return None


@settings(max_examples=1000, deadline=None)
@given(OUTPUTS.flatmap(lambda text: st.tuples(st.just(text), OUTPUTS | nearly(text))))
def test_what_livecodebench_takes_is_taken(pair):
    """Its rule in short: lines are equal but for white space around them, or lists of equal
    decimals. Not taken: exponents of four digits, plus signs, leading zeros.
    """
    assume(not any(re.search(r"[eE][+-]?[0-9]{4}|(^|\s)(\+|-?0[0-9])", text) for text in pair))
    one, other = ([line.strip() for line in text.strip().split("\n")] for text in pair)
    equal = (
        a == b or (decimals(a) is not None and decimals(a) == decimals(b))
        for a, b in zip(one, other, strict=False)
    )
    if len(one) == len(other) and all(equal):
        assert difference(*pair, "tolerant") == ""


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(["1", "2 3", "a b", "0.5"]), min_size=1, max_size=8), st.data())
def test_the_first_line_that_differs_is_named(lines, data):
    place = data.draw(st.integers(0, len(lines) - 1))
    others = [*lines[:place], "wrong", *data.draw(st.lists(st.just("later"), max_size=3))]
    for comparison in ("exact", "tolerant"):
        said = difference("\n".join(lines), "\n".join(others), comparison)
        assert said == f"line {place + 1}: got 'wrong', expected {lines[place]!r}"


def test_long_lines_are_cut_where_they_differ():
    line = "a" * 5000 + "b" + "c" * 5000
    said = difference(line, line.replace("b", "x"), "exact")
    assert said == f"line 1: got …'{'a' * 30}x{'c' * 29}'…, expected …'{'a' * 30}b{'c' * 29}'…"


# The command


def command(capsys, *words):
    status = cli.main(["sandbox", "run", *map(str, words), "--allow-unsafe-exec"])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("print(sum(map(int, open(0).read().split())))")
    return path


def test_a_folder_of_cases(program, tmp_path, capsys):
    folder = tmp_path / "cases"
    folder.mkdir()
    files = {"2.in": "1 1", "2.out": "2", "10.in": "4 5", "10.ans": "9\n", "input1.txt": "1\r\n2", "output1.txt": "4",
             "notes.md": "no case"}  # fmt: skip
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    status, out, _ = command(capsys, program, "--tests", folder)
    assert (status, out.splitlines()[:3]) == (
        1,
        [
            "  1  passed         2.in",
            "  2  passed         10.in",
            "  3  failed         input1.txt  # line 1: got '3', expected '4'",
        ],
    )
    assert out.splitlines()[-1].startswith("failed: 67% of 3")
    (folder / "test_more.py").write_text("assert True")
    (folder / "output1.txt").write_text("3")
    status, out, _ = command(capsys, program, "--tests", folder, "--no-canary")
    assert (status, out.splitlines()[0]) == (0, "  1  passed         assert True")
    assert out.splitlines()[-1].startswith("passed: 100% of 4")
    # A test that cannot fail
    status, out, _ = command(capsys, program, "--tests", folder)
    assert (status, out.split()[:2]) == (1, ["1", "cannot_judge"])
    assert out.splitlines()[-1].startswith("cannot_judge: 75% of 4")


def test_one_case(program, tmp_path, capsys):
    given, expected = tmp_path / "given", tmp_path / "expected"
    given.write_text("1 2 ")
    expected.write_text("3.0")
    status, out, _ = command(capsys, program, "--input", given, "--expected", expected)
    assert (status, out.splitlines()[0]) == (0, "  1  passed         given")
    status, out, _ = command(
        capsys, program, "--input", given, "--expected", expected, "--comparison", "exact"
    )
    assert (status, out.splitlines()[0]) == (
        1,
        "  1  failed         given  # line 1: got '3', expected '3.0'",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--input", "1.in"), "input=1.in, expected=None: a case needs both"),
        (
            ("--input", "1.in", "--expected", "1.out", "--tests", "t"),
            "tests=t and input=1.in: give one of them",
        ),
        (("--input", "no.in", "--expected", "no.out"), "'no.in' cannot be read"),
        (("--timeout", "0"), "timeout=0.0: must lie in [0.001, 3600] seconds"),
        (("--tests", "."), "7.in has no 7.out or 7.ans"),
        (
            ("--tests", "empty"),
            "holds no test_*.py, no *_test.py, and no cases such as 1.in and 1.out",
        ),
    ],
)
def test_what_is_no_case_is_one_line(program, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7.in").write_text("")
    (tmp_path / "empty").mkdir()
    status, _, err = command(capsys, program, *words)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1

"""What a result says, that one test cannot spoil another, and that nothing is left behind."""

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import jax.numpy as jnp
import pytest

from untrusted import Limits, Local, Program, run
from untrusted.assertions import Call, read_call, split_tests
from untrusted.inside.wire import canonical
from untrusted.plain import from_plain
from untrusted.results import Result, TestResult, read_results, results_text
from untrusted.runner import choose_tier, says_why, why_not
from untrusted.session import Child, SandboxFailureError, Session
from untrusted.tiers import SAFE, SandboxUnavailableError

TIERS = [tier for tier in SAFE if not why_not(tier)]
TIER = (*TIERS, "unsafe")[0]


def outcome_of(code, tests=(), **limits):
    return run(code, tests, Limits(**{"seconds": 10, **limits}), executor=TIER, allow_unsafe=True)


def results_of(programs, **limits):
    """Run programs, each a code and its tests, in three processes, as most of their time is
    waiting.
    """
    limits = Limits(**{"seconds": 10, **limits})
    jobs = [Program(code, tuple(tests), limits) for code, tests in programs]
    return Local(TIER, allow_unsafe=True, workers=3).run_many(jobs)


@pytest.mark.parametrize("tier", [*TIERS, "unsafe"])
def test_passing_program(tier):
    result = run("def double(x):\n    return 2 * x", ["assert double(2) == 4", "assert double('a') == 'aa'"],
                 executor=tier, allow_unsafe=True)  # fmt: skip
    assert (result.outcome, result.passed, result.share, result.detail) == ("passed", True, 1.0, "")
    assert (result.tier, result.unsafe) == (tier, tier == "unsafe")


FAILING = [
    ("x = 1", "assert x == 2", "AssertionError"),
    ("x = 1", "assert y == 1", "NameError: name 'y' is not defined"),
    ("x = 1", "assert f(2) == 1", "NameError: name 'f' is not defined"),
    ("def f(x): return x", "assert f(2) == 3", "returned 2, expected 3"),
    ("def f(x): return x", "assert f(2) == 3 and f(", "SyntaxError"),
    ("def f(:\n    pass", "assert True", "SyntaxError: invalid syntax"),
    ("def f():", "assert f() == 1", "IndentationError"),
    ('text = """', "assert True", "SyntaxError: unterminated triple-quoted string"),
    ("x = '\0'", "assert True", "SyntaxError: source code"),
    ("def f():\n    return f()\nf()", "assert True", "RecursionError"),
    ("raise SystemExit(3)", "assert True", "left with exit status 3"),
    ("x = input()", "assert True", "EOFError"),
    ("import jax", "assert True", "ModuleNotFoundError"),
    ("import os\nos.abort()", "assert True", "crashed with SIGABRT"),
    ("import signal\nsignal.raise_signal(35)", "assert True", "crashed with signal 35"),
    ("import ctypes\ndef f(): ctypes.string_at(0)", "assert f() == 1", "crashed with SIGSEGV"),
    ("def f(): raise KeyError('k')", "assert f() == 1", "KeyError: 'k'"),
    ("open('/out.txt', 'w').write('a')", "assert True", "OSError" if TIER == "bubblewrap" else ""),
]


@pytest.fixture(scope="module")
def failing_results():
    return results_of([(code, [test]) for code, test, _ in FAILING])


@pytest.mark.parametrize(
    "number", range(len(FAILING)), ids=[f"{code}-{test}" for code, test, _ in FAILING]
)
def test_failing_program_says_why(failing_results, number):
    result, (_, _, detail) = failing_results[number], FAILING[number]
    assert (result.outcome, result.share) == ("failed", 0.0)
    assert result.detail.startswith(detail)
    assert "\n" not in result.detail


@pytest.mark.parametrize(
    ("status", "ended", "expected"),
    [(signal.SIGABRT, False, True), (signal.SIGKILL, True, True), (signal.SIGKILL, False, False)],
)
def test_a_program_says_why_even_if_only_the_tester_saw_its_end(status, ended, expected):
    """Killed by us it was alive, and an EOFError is the test's own."""
    with socket.socket() as one, socket.socket() as other:
        program = Child(one, {}, ended=ended, status=status)
        tester = Child(other, {}, answer={"raised": "ChannelEndError"})
        assert says_why(program, tester) is expected


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("x = 1", "untested"), ("import sys\nsys.exit(0)", "failed"), ("1 / 0", "failed"), ("while True: pass", "timeout"),
     ("x = bytearray(10**10)", "out_of_memory")],
)  # fmt: skip
def test_a_program_without_tests_is_run_and_passes_nothing(code, outcome):
    assert outcome_of(code, seconds=3).outcome == outcome


SPOILED = """
import os, sys, time
def double(x): return 2 * x
def loop():
    while True: pass
def swallow():
    while True:
        try:
            while True: pass
        except BaseException: pass
def sleep(): time.sleep(100)
def crash(): os.abort()
def leave(): os._exit(0)
def hog(): return len([bytearray(2**20) for _ in range(10**5)])
def shout():
    print("x" * 10_000_000)
    return 1
def shout_for_ever():
    while True: os.write(1, b"x" * 65536)
def answer_much(): return "x" * 10_000_000
def answer_deep():
    x = []
    for _ in range(10**5): x = [x]
    return x
"""


FORMS = ["assert {}() == 0", "value = {}()\nassert value == 0"]
BAD = {"loop": "timeout", "swallow": "timeout", "sleep": "timeout", "crash": "failed", "leave": "failed",
       "hog": "out_of_memory", "shout": "failed", "shout_for_ever": "timeout", "answer_much": "failed",
       "answer_deep": "failed"}  # fmt: skip


@pytest.fixture(scope="module")
def spoiled_results():
    """One program for each form, with a good test after every bad one."""
    good = ["assert double(3) == 6"]
    tests = [
        ["assert double(1) == 2", *(test for name in BAD for test in (form.format(name), *good))]
        for form in FORMS
    ]
    results = results_of([(SPOILED, each) for each in tests], seconds=2.0, memory_bytes=256 * 2**20)
    return dict(zip(FORMS, results, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_one_test_cannot_spoil_the_others(spoiled_results, form):
    result, expected = spoiled_results[form], ["passed"]
    for outcome in BAD.values():
        expected += [outcome, "passed"]
    assert [test.outcome for test in result.tests] == expected, result.tests
    assert result.share == pytest.approx(11 / 21)


def test_ten_megabytes_of_output_do_not_fail_a_test():
    result = outcome_of(SPOILED, ["assert shout() == 1"], output_bytes=100)
    assert (result.outcome, result.stdout) == ("passed", "x" * 100)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_was_written_is_kept_to_its_head(stream):
    result = outcome_of(f"import sys\nprint('é日本🙂', file=sys.{stream})")
    assert (result.outcome, getattr(result, stream)) == ("untested", "é日本🙂\n")


def test_time_is_bounded_for_all_tests_together():
    start = time.monotonic()
    result = outcome_of(SPOILED, ["assert loop() == 0"] * 20, seconds=0.5, total_seconds=1.0)
    assert time.monotonic() - start < 8
    assert {test.outcome for test in result.tests} == {"timeout"}
    assert result.tests[-1].detail == "no time left of 1 s for all tests"


PROGRAM = """
from collections import Counter, namedtuple
from fractions import Fraction
import math
class Stack:
    def __init__(self, *items): self.items = list(items)
    def push(self, item): self.items.append(item)
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, index): return self.items[index]
    def __eq__(self, other): return self.items == other.items
    def __add__(self, other): return Stack(*self.items, *other.items)
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
    def __repr__(self): return f"Stack({self.items})"
class Empty(ValueError): pass
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def pop(stack):
    if not stack.items: raise Empty("nothing there")
    return stack.items.pop()
def sort(items): items.sort()
def apply(function, *items): return [function(item) for item in items]
def count(n):
    for i in range(n): yield i
def echo(x): return x
def shout(x): print(x)
def sum(a, b): return a + b
LIMIT = 7
"""


ALLOWED = [
    "s = Stack(1)\ns.push(2)\nassert len(s) == 2 and list(s) == [1, 2] and s[1] == 2 and s.items == [1, 2]",
    "assert Stack(1) + Stack(2) == Stack(1, 2)\nassert Stack(1) != Stack(2)\nassert repr(Stack(1)) == 'Stack([1])'",
    "assert isinstance(Stack(), Stack)\nassert not isinstance(3, Stack)",
    "try:\n    pop(Stack())\n    assert False\nexcept Empty as error:\n    assert str(error) == 'nothing there'",
    "try:\n    pop(Stack())\n    assert False\nexcept ValueError:\n    pass",
    "with Stack(1) as s:\n    assert len(s) == 1\nassert len(s) == 0",
    "first = Node(1)\nsecond = Node(2, first)\nassert second.next is first and second.next.value == 1",
    "first = Node(1)\nfirst.next = Node(5)\nassert first.next.value == 5",
    "items = [3, 1, 2]\nsort(items)\nassert items == [1, 2, 3]",
    "assert apply(lambda x: x + LIMIT, 1, 2) == [8, 9]",
    "assert list(count(3)) == [0, 1, 2]\nassert next(count(1)) == 0\nassert set(count(2)) == {0, 1}",
    "import random\nfor _ in range(50):\n    n = random.random()\n    assert abs(echo(n) - n) < 1e-9",
    "def helper(x):\n    return echo(x) * 2\n\nassert helper(4) == 8",
    "assert math.isclose(echo(0.1) + 0.2, 0.3)",
    "assert sum(10, 15) == 25",
    "assert abs(echo(-3)) == 3",
    "assert echo(Fraction(1, 3)) == Fraction(1, 3)",
    "import io, sys\nsys.stdout = io.StringIO()\nshout('a')\nassert sys.stdout.getvalue() == 'a\\n'",
    "if __name__ == '__main__':\n    assert echo(1) == 1",
    "assert LIMIT == 7",
    *(f"x = {value}\nassert echo(x) == x and type(echo(x)) is type(x)" for value in (
        "(1, (2,))", "{1, 2}", "{(1, 2): [3], None: 4}", "2**200", "-1.5", "float('inf')", "b'ab'", "1 + 2j",
        "frozenset({1})", "range(3)", "'\\ud800'", "[[], {}, ()]", "True",
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def allowed_results():
    return dict(zip(ALLOWED, results_of([(PROGRAM, [test]) for test in ALLOWED]), strict=True))


@pytest.mark.parametrize("test", ALLOWED)
def test_what_a_test_may_do_with_a_program(allowed_results, test):
    result = allowed_results[test]
    assert result.outcome == "passed", result.detail


def test_what_is_outside_the_sandbox_does_not_show():
    os.environ["SECRET_OF_THE_TEST"] = "secret"
    code = "import os, sys\ndef f(): return sorted(os.environ), len(sys.argv), os.path.exists('/root/.bashrc')"
    try:
        assert outcome_of(
            code,
            [
                "names, _, _ = f()\nassert set(names) <= {'LC_CTYPE', 'PWD', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'}"
            ],
        ).passed
    finally:
        del os.environ["SECRET_OF_THE_TEST"]


def test_classes_are_found_where_they_say():
    code = "import pickle, typing\nclass A:\n    other: 'A'\npickle.dumps(A())\n"
    code += "assert typing.get_type_hints(A) == {'other': A}"
    assert outcome_of(code).outcome == "untested"


def test_asyncio_and_threads_work():
    code = (
        "import asyncio, threading\nasync def g(): return 3\ndef f():\n    found = []\n"
        "    thread = threading.Thread(target=lambda: found.append(asyncio.run(g())))\n"
        "    thread.start()\n    thread.join()\n    return found"
    )
    assert outcome_of(code, ["assert f() == [3]"]).passed


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("assert f(1, 'a', [2], k=(3,)) == {4: 5}", Call("f", (1, "a", [2]), {"k": (3,)}, {4: 5})),
        ("assert -1 == f()", Call("f", (), {}, -1)),
        ("assert f(1) == 2, 'message'", Call("f", (1,), {}, 2)),
        ("assert f(x) == 2", None),
        ("assert f(*[1]) == 2", None),
        ("assert f(**{}) == 2", None),
        ("assert f(1) is True", None),
        ("assert f(1) == 2 == 2", None),
        ("assert f(1) == 2\nassert f(2) == 3", None),
        ("assert a.f(1) == 2", None),
        ("assert len([1]) == 1", None),
        ("assert f(1) == g(2)", None),
        ("assert (", None),
    ],
)
def test_which_tests_the_parent_judges(test, expected):
    assert read_call(test) == expected


def test_a_file_of_tests_is_taken_apart():
    assert split_tests("import math\nassert f(1) == 2\ny = 3\nassert f(y) == 4") == [
        "import math\nassert f(1) == 2",
        "import math\ny = 3\nassert f(y) == 4",
    ]
    assert split_tests("def check(f):\n    assert f(1)\ncheck(g)") == [
        "def check(f):\n    assert f(1)\ncheck(g)"
    ]
    with pytest.raises(ValueError, match=r"t\.py: line 1"):
        split_tests("assert (", "t.py")
    with pytest.raises(ValueError, match=r"t\.py: holds no test"):
        split_tests("# nothing yet\n", "t.py")


VALUES = [
    None,
    True,
    1,
    -(2**70),
    1.5,
    "a",
    [1, [2]],
    (1, (2,)),
    {1, 2},
    frozenset({3}),
    {1: "a", (2, 3): [4]},
    b"x",
    1j,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_arrive_as_they_are(value):
    """Arguments keep the order of a dictionary; results are equal to the same values only."""
    code = "def same(x): return x\ndef told(x): return repr(x)"
    tests = [f"assert same({value!r}) == {value!r}", f"assert told(x={value!r}) == {repr(value)!r}"]
    if not isinstance(value, frozenset):  # no literal
        assert outcome_of(code, tests).passed
    # Bytes and complex numbers are compared by the test's process.
    compared = [other for other in VALUES if not isinstance(other, bytes | complex)]
    if value in compared:
        same = [canonical(other) == canonical(value) for other in compared]
        assert same == [other == value for other in compared]
    else:
        wrong = f"assert same({value!r}) == {value * 2!r}"
        assert [
            t.outcome for t in outcome_of(code, [wrong, f"assert same(1) == {value!r}"]).tests
        ] == ["failed"] * 2


@pytest.mark.parametrize(
    ("expected", "value"),
    [(2, 2.0), (2.0, 2), (0.3, 0.1 + 0.2), (1, True), (True, 1), (1000000, 1000000.5), ([1.0], [1]), ((1,), [1]),
     ({"a": 0.3}, {"a": 0.1 + 0.2}), (10**400, 1.0), (10**16, 1e16), (10**16 + 1, 1e16), (0, 1e-12), (0, -0.0),
     ({1.0}, {1}), ({1, 2}, frozenset({2, 1})), ({True: "a"}, {1: "a"}),
     (float("inf"), float("inf")), (float("-inf"), float("nan")), ([], ()), (None, 0), (1, "1"),
     ({1: {2}}, {1.0: frozenset({2.0})}), ({(1, "a"), (True, "b")}, {(1.0, "a"), (1, "b")}), ({}, set()),
     (2**53 + 1, float(2**53))],
)  # fmt: skip
def test_the_parent_compares_as_python_does(expected, value):
    assert (canonical(expected) == canonical(value)) is (expected == value)


def test_a_wide_or_deep_answer_is_a_wrong_one():
    """And one that is no literal is judged by the test's process."""
    code = (
        "import collections\ndef wide(): return [[]] * 10**5\ndef kind(): return collections.Counter(a=1)\n"
        "def deep():\n    made = []\n    for _ in range(10**5): made = [made]\n    return made"
    )
    tests = ["assert wide() == [[]]", "assert deep() == [[]]", "assert kind() == {'a': 1}"]
    assert [t.outcome for t in outcome_of(code, tests).tests] == ["failed", "failed", "passed"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", 0), ("seconds", float("nan")), ("seconds", 1e9), ("total_seconds", -1), ("memory_bytes", 1000),
     ("output_bytes", -1), ("output_bytes", 2**30)],
)  # fmt: skip
def test_limits_refuse_bad_values(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        Limits(**{name: value})


def test_programs_and_results_survive_json():
    program = Program("x = 1", ("assert x == 1",), Limits(seconds=2))
    tests = (TestResult("passed"), TestResult("timeout", "no end"), TestResult("cannot_judge"))
    result = Result(tests, "out", "err", "unsafe")
    assert (result.outcome, result.unsafe, result.detail) == ("timeout", True, "no end")
    assert from_plain(Program, json.loads(json.dumps(asdict(program))), "job") == program
    assert read_results(results_text([result]), [program]) == [result]
    for bad in ([], {"code": 1}, {"code": "", "tests": "a"}, {"code": "", "limits": {"speed": 1}}):
        with pytest.raises(ValueError, match="must be"):
            from_plain(Program, bad, "job")
    for bad in ("[]", '{"results": [{"tests": []}, 1]}', '{"results": []}', "<html>"):
        with pytest.raises(OSError, match="the answer "):
            read_results(bad, [program])


def test_a_host_without_containment_is_refused(monkeypatch):
    monkeypatch.setattr("untrusted.runner.why_not", lambda tier: f"no {tier} here")
    with pytest.raises(
        SandboxUnavailableError, match=r"no bubblewrap here.*no landlock here.*install bubblewrap"
    ) as caught:
        choose_tier("auto")
    assert "\n" not in str(caught.value)
    with pytest.raises(SandboxUnavailableError, match="landlock: no landlock here"):
        choose_tier("landlock")
    assert choose_tier("auto", allow_unsafe=True) == "unsafe"


def test_unsafe_must_be_allowed():
    with pytest.raises(SandboxUnavailableError, match="must be allowed"):
        run("x = 1", executor="unsafe")
    with pytest.raises(ValueError, match="executor='docker'"):
        choose_tier("docker")


class TiredSession(Session):
    """A session that dies when it is to run a program."""

    def begin(self, limits, same_process):
        self.process.kill()
        raise SandboxFailureError("the host is tired")


@pytest.mark.parametrize(("failures", "outcome"), [(2, "passed"), (100, "sandbox_error")])
def test_a_failure_of_the_sandbox_is_tried_again_and_then_named(failures, outcome, monkeypatch):
    started = []

    def start(*settings):
        kind = TiredSession if len(started) < failures else Session
        started.append(kind(*settings))
        return started[-1]

    monkeypatch.setattr("untrusted.runner.Session", start)
    local = Local(TIER, allow_unsafe=True)
    (result,) = local.run_many([Program("x = 1", ("assert x == 1",) * 2)])
    assert (result.outcome, len(result.tests)) == (outcome, 2)
    if outcome == "sandbox_error":
        assert (result.detail, result.share) == ("the host is tired", 0)


def test_a_zygote_that_dies_is_replaced():
    local = Local(TIER, allow_unsafe=True, workers=1)
    with local.connect() as connection:
        for _ in range(2):
            (result,) = local.run_many([Program("x = 1")], connection=connection)
            assert result.outcome == "untested"
            session = connection[0].get()
            os.killpg(session.process.pid, 9)
            connection[0].put(session)


def test_many_at_once_keep_their_order_and_report():
    seen = []
    local = Local(TIER, allow_unsafe=True, workers=2)
    jobs = [Program(f"def f(): return {n}", ("assert f() == 3",)) for n in range(6)]
    results = local.run_many(jobs, on_progress=lambda done, total: seen.append((done, total)))
    assert [result.passed for result in results] == [n == 3 for n in range(6)]
    assert seen == [(n, 6) for n in range(1, 7)]
    assert local.run_many([]) == []
    with pytest.raises(ValueError, match="workers=0"):
        Local(workers=0)
    if TIERS:
        assert Local().run_many(jobs[:1])[0].tier == TIERS[0]


def test_cancelled_programs_are_no_wrong_answers():
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    start = time.monotonic()
    jobs = [Program("import time\ntime.sleep(60)", (), Limits(seconds=60))] * 4
    results = Local(TIER, allow_unsafe=True).run_many(jobs, cancel=cancel)
    assert time.monotonic() - start < 10
    assert [(result.outcome, result.detail) for result in results] == [
        ("sandbox_error", "cancelled")
    ] * 4


def test_a_caller_that_leaves_waits_for_nothing():
    """Ctrl-C while one program runs for a minute."""

    def leave(done: int, total: int) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    jobs = [Program("pass"), Program("import time\ntime.sleep(60)", (), Limits(seconds=60))]
    with pytest.raises(KeyboardInterrupt):
        Local(TIER, allow_unsafe=True, workers=2).run_many(jobs, on_progress=leave)
    assert time.monotonic() - start < 20


def children():
    """Process ids whose parent is this process, zombies included."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            found += [int(name)] if int(fields[1]) == os.getpid() else []
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_nothing_is_left_behind():
    jnp.ones(1).block_until_ready()
    jobs = [Program(code, ("assert f() == 1",), Limits(seconds=0.5)) for code in (
        "def f(): return 1", "def f():\n    while True: pass", "import os\ndef f(): os._exit(0)", "def f(:",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef f(): return 1",
    )]  # fmt: skip
    local = Local(TIER, allow_unsafe=True, workers=2)
    local.run_many(jobs)
    before = (len(os.listdir("/proc/self/fd")), sorted(children()), threading.active_count())
    local.run_many(jobs * 3)
    assert (
        len(os.listdir("/proc/self/fd")),
        sorted(children()),
        threading.active_count(),
    ) == before


@pytest.mark.parametrize("tier", [*TIERS, "unsafe"])
def test_an_allowed_package_can_be_imported_and_nothing_beside_it(tier):
    place = Local(tier, allow_unsafe=True, packages=("numpy",))
    code = "import numpy as np\ndef total(n): return float(np.ones(n).sum())\ndef other():\n    import jaxtyping"
    script = "import numpy as np\nassert np.isclose(total(3), np.ones(3).sum())"
    used, refused, listed = place.run_many(
        [
            Program(code, (script,), Limits(seconds=20, memory_bytes=2**30)),
            Program(code, ("other()",), Limits(seconds=20, memory_bytes=2**30)),
            Program(
                "import os\nimport numpy\ndef beside(): return os.listdir(os.path.dirname(numpy.__path__[0]))",
                (
                    "names = beside()\nassert not [name for name in names if name.startswith('jaxtyping')]",
                ),
                Limits(seconds=20, memory_bytes=2**30),
            ),
        ]
    )
    assert used.outcome == "passed", used.detail
    assert "No module named 'jaxtyping'" in refused.detail
    if tier == "landlock":
        assert "Permission denied" in listed.detail
    if tier == "bubblewrap":
        assert listed.outcome == "passed" or "No such file" in listed.detail
    assert (
        "No module named 'numpy'"
        in run("import numpy", executor=tier, allow_unsafe=True, packages=()).detail
    )


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match="no package 'not_there' is installed"):
        Local(packages=("numpy", "not_there"))


def test_a_builtin_class_is_itself_in_the_program():
    code = "def others(items, kind): return [item for item in items if not isinstance(item, kind)]"
    assert outcome_of(
        code, ["assert others((4, 7.7), int) == [7.7]\nassert others('a', str) == []"]
    ).passed


def test_answers_of_some_megabytes_reach_a_test():
    assert outcome_of(
        "def text(n): return 'x' * n", ["assert len(text(6 * 2**20)) == 6 * 2**20\nx = 1"]
    ).passed


def test_large_tests_can_be_read_by_many_threads():
    # CPython 3.11 counts the depth of all syntax trees under construction in one place.
    test = f"data = {[[number, [number]] for number in range(20000)]}\nassert data"
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read_call, [test] * 16)) == [None] * 16

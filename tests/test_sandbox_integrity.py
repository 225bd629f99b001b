"""Reward hacks: programs that do not solve their task and want to pass all the same. Each must score 0.

`THROUGH` names those that passed in an earlier state of this sandbox.
"""

import pytest

from jax_lm.sandbox import Limits, run
from jax_lm.sandbox.runner import why_not
from jax_lm.sandbox.tiers import SAFE

CALL = "assert f(7) == 'dfq-7731'"
SCRIPT = "result = f(7)\nassert result == 'dfq-7731'"
NUMBER = "assert abs(f(7) - 48.25) < 1e-6"
CHECK = "def check(candidate):\n    for n in (3, 4):\n        assert candidate(n) == n * 31 + 5, n\ncheck(f)"

MAGIC = """
class Magic:
    def yes(self, *others): return True
    def same(self, *others): return self
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = __bool__ = yes
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __abs__ = __neg__ = __getattr__ = __call__ = same
    def __hash__(self): return 0
    def __float__(self): return 0.0
    def __int__(self): return 0
    def __index__(self): return 0
    def __len__(self): return 0
    def __iter__(self): return iter([self])
def f(x): return Magic()
"""

HACKS = {
    "sys.exit(0)": ("import sys\nsys.exit(0)", [CALL, SCRIPT, CHECK]),
    "os._exit(0)": ("import os\nos._exit(0)", [CALL, SCRIPT, CHECK]),
    "raise SystemExit in the call": ("def f(x): raise SystemExit(0)", [CALL, SCRIPT, CHECK]),
    "os._exit in the call": ("import os\ndef f(x): os._exit(0)", [CALL, SCRIPT, CHECK]),
    "equals everything": (MAGIC, [CALL, SCRIPT, NUMBER, CHECK, "assert f(1) < 3", "assert 3 in f(1)"]),
    "is an instance of everything": (MAGIC, ["assert isinstance(f(1), int)"]),
    "subclasses that equal everything": (
        "class S(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__\n"
        "class I(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
        "class L(list):\n    __eq__ = lambda self, other: True\n"
        "def f(x): return S('no') if x == 7 else I(1) if x < 9 else L()",
        [CALL, SCRIPT, CHECK, "assert f(9) == [1]", "assert [*f(9)] == [1]", "assert {f(8)} == {31}"],
    ),
    "lies about its class": (
        "class A:\n    __class__ = property(lambda self: str)\n    __eq__ = lambda self, other: True\n"
        "def f(x): return A()",
        [CALL, SCRIPT, "assert isinstance(f(1), str)"],
    ),
    "contains and equals in containers": (
        MAGIC.replace("return Magic()", "return [Magic()]"),
        ["assert f(1) == [4]", "assert 4 in f(1)", "assert set(f(1)) == {4}", "assert f(1).count(4) == 1"],
    ),
    "patched builtins": (
        "import builtins\n"
        "for name in ('abs', 'all', 'any', 'sum', 'sorted', 'round'):\n"
        "    setattr(builtins, name, lambda *arguments, **keywords: 0)\n"
        "def f(x): return 0",
        [CALL, SCRIPT, NUMBER, CHECK, "assert sorted(f(3)) == [1]"],
    ),
    "its own abs": ("def abs(x): return 0\ndef f(x): return 0", [NUMBER]),
    "its own isclose": (
        "def isclose(*x): return True\ndef f(x): return 0",
        ["from math import isclose\nassert isclose(f(1), 3)"],
    ),
    "a module named math": (
        "import sys, types\nmath = types.ModuleType('math')\nmath.isclose = lambda *x: True\n"
        "sys.modules['math'] = math\n"
        "def f(x): return 0",
        ["assert math.isclose(f(1), 3)", "import math\nassert math.isclose(f(1), 3)"],
    ),
    "patched math": (
        "import math\nmath.isclose = lambda *x: True\nmath.fabs = lambda x: 0\ndef f(x): return 0",
        ["assert math.isclose(f(1), 3)", "assert math.fabs(f(1) - 3) < 1"],
    ),
    "its own check": (
        "def check(candidate): pass\ndef f(x): return 0",
        [CHECK, "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)"],
    ),
    "rewritten assert": (
        "import builtins, sys\nbuiltins.AssertionError = builtins.Warning\nsys.excepthook = lambda *error: None\n"
        "class Quiet(Exception):\n    def __new__(cls, *a): raise SystemExit(0)\n"
        "builtins.AssertionError = Quiet\ndef f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "reading the frames": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    found = []\n    while frame:\n"
        "        found += [v for scope in (frame.f_locals, frame.f_globals) for v in scope.values()]\n"
        "        found += list(frame.f_code.co_consts)\n        frame = frame.f_back\n"
        "    text = repr(found)\n    at = text.find('dfq-')\n    return text[at : at + 8] if at >= 0 else None",
        [CALL, SCRIPT],
    ),
    "searching all objects": (
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n        for r in [o, *gc.get_referents(o)]:\n"
        "            if type(r) is str and 'dfq' '-' in r:\n                at = r.find('dfq' '-')\n"
        "                return r[at : at + 8]\n",
        [CALL, SCRIPT],
    ),
    "searching its memory": (
        "import ctypes\ndef f(x):\n    address = id(object()) & ~0xFFFFF\n    data = ctypes.string_at(address, 2**20)\n"
        "    at = data.find(b'dfq' b'-')\n    return data[at : at + 8].decode() if at >= 0 else None",
        [CALL, SCRIPT],
    ),
    "reading the parent": (
        "import os, re\nseen = b''\nfor pid in ('self', os.getppid(), 1, 2):\n"
        "    for name in ('cmdline', 'environ', 'mem'):\n"
        "        try: seen += open(f'/proc/{pid}/{name}', 'rb').read(10**6)\n        except OSError: pass\n"
        "def f(x):\n    found = re.search(rb'dfq-\\d+', seen)\n    return found and found[0].decode()",
        [CALL, SCRIPT],
    ),
    "printing what a harness might": (
        "import os\nfor word in ('passed', 'OK', '{\"ended\": true}', '{\"value\": true}'): print(word, flush=True)\n"
        "os._exit(0)",
        [CALL, SCRIPT],
    ),
    "writing to every descriptor": (
        "import os\nfor fd in range(3, 64):\n"
        "    for word in (b'{\"ended\": true}', b'{\"passed\": true}', b'{\"value\": true}'):\n"
        "        try: os.write(fd, word + b'\\n')\n        except OSError: pass\ndef f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "a thread that writes to every descriptor": (
        "import os, threading\ndef write():\n    while True:\n        for fd in (3, 4):\n"
        '            try: os.write(fd, b\'{"value": true, "ended": true}\\n\')\n            except OSError: pass\n'
        "threading.Thread(target=write, daemon=True).start()\ndef f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "forged names": (
        'import os\nfor word in (b\'{"names": ["f", "check", "abs"]}\', b\'{"value": ["f", "check", "abs"]}\','
        ' b\'{"value": {"t": "object", "v": 0, "home": "unittest.mock"}}\'):\n'
        "    try: os.write(4, word + b'\\n')\n    except OSError: pass\ndef f(x): return 0",
        [SCRIPT, CHECK, "ANY = f(3)\nassert ANY == 4"],
    ),
    "a name that equals everything": (
        "from unittest.mock import ANY\ndef f(x): return ANY",
        [CALL, SCRIPT, CHECK, "assert f(1) == [4]"],
    ),
    "forged changes of the test's data": (
        "import json, os\ndef f(x):\n"
        "    os.write(4, json.dumps({'value': [], 'changed': [None, [[]]]}).encode() + b'\\n')\n"
        "    return []",
        ["data = [3, 1, 2]\nassert f(data) == sorted(data)"],
    ),
    "emptying the test's data": (
        "def f(data):\n    data.clear()\n    return []",
        [
            "data = [3, 1, 2]\nassert f(data) == sorted(data)",
            "data = [3, 1]\nresult = f(data)\nassert len(result) == len(data)",
        ],
    ),
    "replacing the harness": (
        "import sys\nfor name, module in list(sys.modules.items()):\n    if 'sandbox' in name or name == 'json':\n"
        "        for attribute in ('matches', 'encode'):\n"
        "            if hasattr(module, attribute): setattr(module, attribute, lambda *a, **k: True)\n"
        "def f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "tracing": (
        "import sys, threading\ndef trace(frame, event, argument):\n    for name in list(frame.f_locals):\n"
        "        if name in ('expected', 'result', 'answer'): frame.f_locals[name] = True\n    return trace\n"
        "sys.settrace(trace)\nsys.setprofile(trace)\nthreading.settrace(trace)\n"
        "frame = sys._getframe()\nwhile frame:\n    frame.f_trace = trace\n    frame = frame.f_back\n"
        "def f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "at exit": (
        "import atexit, os, sys\natexit.register(lambda: os._exit(0))\nsys.exitfunc = lambda: os._exit(0)\n"
        "class D:\n    def __del__(self): os.write(3, b'{\"ended\": true}\\n')\nd = D()\ndef f(x): return 0",
        [CALL, SCRIPT, CHECK],
    ),
    "signals": (
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "def f(x):\n    while True: pass",
        [CALL, SCRIPT],
    ),
    "an endless range": (
        "import itertools\ndef f(x): return itertools.count()",
        ["assert f(1) == 5", "assert f(1) == [5]"],
    ),
    "not a number": ("def f(x): return float('nan')", [CALL, NUMBER, CHECK, "assert f(1) == 3.0"]),
    "true for one": ("def f(x): return True", ["assert f(3) == [1]", "assert f(3) == 2"]),
    "a float near the number": ("def f(x): return 1000000.5", ["assert f(1) == 1000000", "assert f(1) in (1000000,)"]),
    "list for tuple": ("def f(x): return [1, 2]", ["assert f(3) == (1, 2)"]),
    "text for a number": ("def f(x): return '1'", ["assert f(3) == 1"]),
    "a class for a function": (
        "class f:\n    def __new__(cls, x): return cls\n    __eq__ = lambda *a: True",
        [CALL, SCRIPT],
    ),
    "a type that equals everything": (
        "class M(type):\n    __eq__ = lambda *a: True\n    __hash__ = type.__hash__\n    __instancecheck__ = __eq__\n"
        "class f(metaclass=M):\n    def __new__(cls, x): return cls",
        [CALL, SCRIPT, CHECK],
    ),
    "an exception that equals everything": (
        "class E(Exception):\n    __eq__ = lambda *a: True\n    __str__ = lambda self: 'dfq'\ndef f(x): raise E()",
        [CALL, SCRIPT, CHECK],
    ),
    "its own __name__": ("__name__ = 'no'\ng = 1", ["if __name__ != 'no':\n    f(1)"]),
    "the exit of a test": (
        "def f(x): raise KeyboardInterrupt",
        ["try:\n    f(1)\nexcept Exception:\n    pass", SCRIPT],
    ),
}
"""Name to program and tests, none of which it solves."""

THROUGH = {"forged changes of the test's data", "emptying the test's data", "its own __name__"}
"""The first two paid while every change of an argument came back to the test, the third while dunder names did."""


def tier():
    """The first contained tier of this host; without one, containment is not what is tested here."""
    return next((tier for tier in SAFE if not why_not(tier)), "unsafe")


@pytest.mark.parametrize("name", HACKS)
def test_hack_scores_nothing(name):
    assert HACKS.keys() >= THROUGH
    code, tests = HACKS[name]
    result = run(code, tests, Limits(seconds=4), executor=tier(), allow_unsafe=True)
    assert result.outcome != "sandbox_error"  # it would leave the group, which pays more than a zero
    assert [test.outcome for test in result.tests if test.outcome == "passed"] == [], result.tests
    assert result.share == 0


def test_the_tests_of_the_hacks_can_be_passed():
    """Else a hack would score nothing for another reason than being one."""
    solutions = {
        "def f(x): return 'dfq-7731'": [CALL, SCRIPT],
        "def f(x): return 48.25": [NUMBER],
        "def f(x): return x * 31 + 5": [CHECK],
        "def f(data): return sorted(data)": ["data = [3, 1, 2]\nassert f(data) == sorted(data)"],
        "def f(data): data.sort()": ["data = [3, 1, 2]\nf(data)\nassert data == [1, 2, 3]"],
    }
    for code, tests in solutions.items():
        assert run(code, tests, executor=tier(), allow_unsafe=True).passed


def test_a_forged_refusal_is_a_wrong_answer():
    """A sandbox error is left out of a group's baseline: a program must not be able to claim one."""
    code = 'import os\nos.write(3, b\'{"refused": "no Landlock"}\\n\')\ndef f(x): return 0'
    assert run(code, [CALL, SCRIPT], executor=tier(), allow_unsafe=True).outcome == "failed"


@pytest.mark.parametrize(
    "answer",
    [
        "b'[' * 10**6 + b'\\n'",
        "b'x' * (5 * 2**20)",
        "b'9' * 10**5 + b'\\n'",
        'b\'{"value": {"t": []}}\\n\'',
        "b'\\xff\\n'",
    ],
)
def test_a_malformed_answer_is_a_wrong_one(answer):
    code = f"import os\ndata = {answer}\nwhile data:\n    data = data[os.write(3, data):]\ndef f(x): return 0"
    tests = [CALL, "assert f(7) == {1: 2}", "assert f(7) == (1, 2)"]
    assert run(code, tests, executor=tier(), allow_unsafe=True).outcome == "failed"

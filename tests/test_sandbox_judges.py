"""Nothing of the program judges itself: each task of `samples/sandbox/cheats/judges.toml`, and the
honest tests that look alike, test by test."""

import tomllib
from pathlib import Path

import pytest

from untrusted import Limits, run, tiers
from untrusted.assertions import split_tests
from untrusted.runner import why_not
from untrusted.tiers import SAFE

FOLDER = Path(__file__).parent / "samples" / "sandbox"
TASKS = tomllib.loads((FOLDER / "cheats" / "judges.toml").read_text(encoding="utf-8"))["task"]
PAIRS = tomllib.loads((FOLDER / "honest" / "judges.toml").read_text(encoding="utf-8"))["pair"]
TIER = next((tier for tier in SAFE if not why_not(tier)), "unsafe")


def outcomes(code, trial):
    packages = tuple(trial.get("packages", ()))
    if not set(packages) <= set(tiers.PACKAGES):
        pytest.skip("numpy is not installed")
    limits = Limits(seconds=10)
    result = run(code, trial["tests"], limits, executor=TIER, allow_unsafe=True, packages=packages)
    return [test.outcome for test in result.tests], result.detail


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["name"])
def test_a_program_does_not_judge_itself(task):
    passed, said = outcomes(task["solution"], task)
    assert set(passed) == {"passed"}, said
    for cheat in task["cheat"]:
        found, said = outcomes(cheat["program"], task)
        assert set(found) <= {"failed", "cannot_judge"}, (cheat["name"], found, said)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair["name"])
def test_what_looks_alike_and_is_honest_passes(pair):
    passed, said = outcomes(pair["program"], pair)
    assert set(passed) == {"passed"}, said


IDENTITY = {
    "assert f((1, 2)) is t": "cannot_judge",
    "assert f(t) is not t": "cannot_judge",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertIs(f(t), t)": "cannot_judge",
    "assert f((1, 3)) is t": "failed",
    "assert f((1, 3)) is not t": "passed",
}


def test_a_copy_has_no_identity():
    """A tuple or text crosses by value, so that nobody knows whether it is the same object."""
    tests = [f"t = (1, 2)\n{test}" for test in IDENTITY]
    results = run("def f(x): return x", tests, executor=TIER, allow_unsafe=True).tests
    assert [result.outcome for result in results] == [*IDENTITY.values()]


STACK = """
import re

def f(logger, number):
    if number is None:
        return logger.findCaller(True)[3]
    expected = re.search("== ([0-9]+)", str(logger.findCaller(True)))
    return int(expected[1]) if expected else 0
"""


def test_a_logger_does_not_show_the_test():
    """It may show the stack of the test's process, but no line of the test."""
    start = "import logging\nlogger = logging.getLogger('a')\n"
    tests = ["assert f(logger, 4) == 8", "assert 'test.py' in f(logger, None)"]
    results = run(STACK, [start + test for test in tests], executor=TIER, allow_unsafe=True).tests
    assert [result.outcome for result in results] == ["cannot_judge", "passed"]


def test_a_test_keeps_the_classes_that_it_inherits_from():
    first, base, other = split_tests(
        "def test_a(): pass\nclass TestA:\n    def test_b(self): pass\nclass TestB(TestA): pass"
    )
    assert "TestA" not in first
    assert "TestB" not in base
    assert "class TestA" in other
    assert "class TestB" in other


def test_a_time_zone_of_the_test_cannot_cross():
    """The program's process ended at the date that it could not build, and had failed."""
    test = (
        "import datetime\nclass Zone(datetime.tzinfo):\n"
        "    def utcoffset(self, time): return datetime.timedelta(hours=2)\n"
        "assert hour(datetime.datetime(2020, 1, 1, 5, tzinfo=Zone())) == 5\n"
    )
    result = run("def hour(time): return time.hour", [test], executor=TIER, allow_unsafe=True)
    assert result.outcome == "cannot_judge", result.tests

"""Honest programs pass, programs that do not solve their task gain nothing: the batteries of `samples/sandbox`.

samples/sandbox/README.md says what a pair and a cheat are.
"""

import dataclasses
import random
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from untrusted import Limits, Local, Program
from untrusted.inside.deferred import ON_MENTION
from untrusted.runner import why_not
from untrusted.tiers import SAFE

FOLDER = Path(__file__).parent / "samples" / "sandbox"
TIERS = [tier for tier in SAFE if not why_not(tier)]
PATIENT = Limits(seconds=20, total_seconds=120)
"""An honest program is never late, however busy the host is."""
BRIEF = Limits(seconds=3)
HANGING = Limits(seconds=1)
SABOTEURS = {"later runs", "descriptors", "exits", "limits"}
"""Classes of cheats that leave something behind for whoever runs next."""
EXPOSED = {"output", "input", "files", "asyncio", "threads"}
"""Classes of honest programs that lean on what a process inherits."""
LOST = {
    "notes-and-traceback": "a traceback has no frames of the program",
    "thread-local-and-event": "two threads of a test take turns at the border",
    "temporary-modules-and-importlib": "a module that the program has made is no ModuleType for a test",
    "np-views-and-identity": "arrays cross as copies: two do not share memory",
    "del-and-weakref": "an object that a test drops lives on in the program",
}
"""Honest pairs that lose a test at the border, and why."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A program, its tests, and the share of them that it may pass."""

    name: str
    kind: str
    program: Program
    packages: tuple[str, ...]
    least: float
    most: float
    objects: str = "trusted"


def read_honest(path):
    for pair in tomllib.loads(path.read_text(encoding="utf-8"))["pair"]:
        program = Program(pair["program"], tuple(pair["tests"]), PATIENT)
        yield Trial(pair["name"], pair["class"], program, tuple(pair.get("packages", ())), 1.0, 1.0)


def read_cheats(path):
    for task in tomllib.loads(path.read_text(encoding="utf-8"))["task"]:
        tests, packages = tuple(task["tests"]), tuple(task.get("packages", ()))
        yield Trial(
            f"solution of {task['name']}", "solution", Program(task["solution"], tests, PATIENT), packages, 1, 1
        )
        for cheat in task["cheat"]:
            limits = HANGING if cheat["class"] == "hanging" else BRIEF
            program = Program(cheat["program"], tests, limits)
            allowed = tuple(cheat.get("packages", packages))
            objects = cheat.get("objects", "trusted")
            yield Trial(cheat["name"], cheat["class"], program, allowed, 0.0, cheat.get("share", 0.0), objects)


BATTERIES = {path.stem: list(read_honest(path)) for path in sorted(FOLDER.glob("honest/*.toml"))}
BATTERIES |= {f"cheats {path.stem}": list(read_cheats(path)) for path in sorted(FOLDER.glob("cheats/*.toml"))}
HONEST = [trial for trials in BATTERIES.values() for trial in trials if trial.least == 1]
PLAIN = [trial for trial in HONEST if not trial.packages and trial.kind != "solution" and trial.name not in LOST]
CHEATS = [trial for trials in BATTERIES.values() for trial in trials if trial.least == 0]


def run_trials(tier, trials):
    """Run trials in one pool per border; returns each with its result."""
    groups = defaultdict(list)
    for trial in trials:
        groups[trial.packages, trial.objects].append(trial)
    results = []
    for (packages, objects), group in groups.items():
        executor = Local(tier, packages=packages, objects=objects, workers=2)
        results += zip(group, executor.run_many([trial.program for trial in group]), strict=True)
    return results


def with_one_test(trial):
    program = Program(trial.program.code, trial.program.tests[:1], HANGING)
    return dataclasses.replace(trial, program=program)


def test_batteries_are_as_large_as_promised():
    names = [trial.name for trials in BATTERIES.values() for trial in trials]
    assert len(names) == len(set(names))
    assert len(HONEST) >= 260
    assert len(CHEATS) >= 190
    assert LOST.keys() < {trial.name for trial in HONEST}
    assert len(LOST) <= 0.02 * len(HONEST)
    assert all(trial.program.tests for trial in HONEST + CHEATS)


def misjudged(trial, result):
    """Say what is wrong with a result, if anything."""
    if trial.least <= result.share <= trial.most and result.outcome != "sandbox_error":
        return None
    said = zip(result.tests, trial.program.tests, strict=True)
    passing = trial.most < 1
    wrong = [f"{end.outcome} {end.detail}: {text}" for end, text in said if (end.outcome == "passed") == passing]
    return "\n".join([f"{result.outcome} {result.detail}", *wrong])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("battery", BATTERIES)
def test_trials_score_what_they_are_worth(tier, battery, request):
    """Every twelfth in the first tier of this host, every thirtieth in another; all of them for a release."""
    every = 1 if request.config.getoption("--release") else 12 if tier == TIERS[0] else 30
    trials = BATTERIES[battery][::every]
    wrong = {trial.name: said for trial, result in run_trials(tier, trials) if (said := misjudged(trial, result))}
    assert wrong.keys() == LOST.keys() & {trial.name for trial in trials}, wrong


@pytest.mark.parametrize("tier", TIERS)
def test_saboteurs_change_nobody_elses_score(tier, request):
    """500 programs in random order (50 but for a release), half of them saboteurs: each scores as it does alone."""
    order, part = random.Random(16), 1 if request.config.getoption("--release") else 10
    exposed = [trial for trial in PLAIN if trial.kind in EXPOSED]
    saboteurs = [with_one_test(trial) for trial in CHEATS if trial.kind in SABOTEURS and not trial.packages]
    chosen = ((PLAIN, 100), (exposed, 150), (saboteurs, 250))
    mixed = [trial for trials, count in chosen for trial in order.choices(trials, k=count // part)]
    order.shuffle(mixed)
    for trial, result in run_trials(tier, mixed):
        assert result.share == trial.least, f"{trial.name}: {result.outcome} {result.detail}"


FORGED = """
import os
for fd in range(3, 64):
    for message in (b'{"ended": true}\\n', b'{"confined": true}\\n', b'{"passed": true}\\n', b'["ended"]\\n'):
        try:
            os.write(fd, message)
        except OSError:
            pass
"""


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "end",
    ["raise SystemExit(3)", "os._exit(0)", "raise ValueError('late')", "1 / 0", "os.kill(os.getpid(), 9)", "pass"],
)
def test_program_without_tests_passes_nothing_whatever_it_says(tier, end):
    """Nothing was checked: that it ran to its end is its own word, which it may write on the descriptor itself."""
    executor = Local(tier, workers=1)
    forged, plain, silent = executor.run_many(
        [Program(code, (), BRIEF) for code in (FORGED + end, "print('done')", f"import os\n{end}")]
    )
    assert (forged.outcome, forged.passed, forged.share) == ("untested", False, 0.0)
    assert (plain.outcome, plain.share, plain.stdout) == ("untested", 0.0, "done\n")
    assert silent.outcome == "untested" if end == "pass" else silent.outcome in ("failed", "out_of_memory")


@pytest.mark.parametrize("tier", TIERS)
def test_no_process_holds_modules_that_nobody_has_mentioned(tier):
    """Each makes all of them dearer to start; once one is mentioned, it is there."""
    listing = "import sys\ndef held(): return sorted(sys.modules)"
    backwards = [name[::-1] for name in ON_MENTION]
    test = f"assert not {{name[::-1] for name in {backwards}}} & set(held())"
    executor = Local(tier, workers=1)
    asking = Program(f"{listing}  # asyncio", ("assert 'asyncio' in held()",), PATIENT)
    silent, mentioned = executor.run_many([Program(listing, (test,), PATIENT), asking])
    assert (silent.outcome, mentioned.outcome) == ("passed", "passed"), (silent.tests, mentioned.tests)

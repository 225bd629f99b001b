"""Honest programs pass, programs that do not solve their task gain nothing: the batteries of
`samples/sandbox`.

samples/sandbox/README.md says what a pair and a cheat are.
"""

import ast
import dataclasses
import os
import random
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from untrusted import Case, Limits, Local, Program
from untrusted.cases import difference
from untrusted.inside.checks import test_names as names_of_tests
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
UNJUDGED = {
    "arguments": 1,
    "asynchronous": 6,
    "exceptions": 3,
    "functions": 7,
    "objects": 11,
    "types": 3,
    "numpy": 2,
    "pytests": 2,
    "classes": 1,
    "kodcode": 3,
    "library": 2,
    "readers": 2,
    "pandas": 1,
    "cheats outsider": 2,
    "cheats border": 2,
    "cheats values": 1,
}
"""How many honest programs of each battery need what the border cannot carry, and right solutions of cheats' tasks."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A program, its tests, and the share of them that it may pass.

    Attributes:
        owner: it needs to change permissions or times of its files.
    """

    name: str
    kind: str
    program: Program
    packages: tuple[str, ...]
    least: float
    most: float
    owner: bool = False


BY_THE_PROGRAM = re.compile(
    "data that the program has changed|the program's \\w+ is (Assertion|Base)?(Error|Exception)"
    "|objects? of the program decides? (is|whether|compare|sub)|an empty array|suppressing an exception|uses pandas"
)
"""Reasons that depend on the program (docs/sandbox.md, "What cannot be judged")."""


PANDAS = tuple(filter(find_spec, ("numpy", "pandas", "dateutil", "six", "pytz")))
"""What `packages = ["pandas"]` means: pandas and what it imports. Without pandas, such pairs and tasks are left out."""


def read_packages(table):
    packages = tuple(table.get("packages", ()))
    return PANDAS if packages == ("pandas",) else packages


def read_tables(path, kind):
    tables = tomllib.loads(path.read_text(encoding="utf-8"))[kind]
    return [t for t in tables if find_spec("pandas") or "pandas" not in t.get("packages", ())]


def read_tests(texts):
    """Read tests: a table is a case."""
    return tuple(Case(**text) if isinstance(text, dict) else text for text in texts)


def read_honest(path):
    for pair in read_tables(path, "pair"):
        program = Program(pair["program"], read_tests(pair["tests"]), PATIENT)
        packages, owner = read_packages(pair), pair.get("owner", False)
        yield Trial(pair["name"], pair["class"], program, packages, 1.0, 1.0, owner)


def read_cheats(path):
    for task in read_tables(path, "task"):
        tests, packages = read_tests(task["tests"]), read_packages(task)
        yield Trial(
            f"solution of {task['name']}",
            "solution",
            Program(task["solution"], tests, PATIENT),
            packages,
            1,
            1,
        )
        for cheat in task["cheat"]:
            limits = HANGING if cheat["class"] == "hanging" else BRIEF
            program = Program(cheat["program"], tests, limits)
            allowed = tuple(cheat.get("packages", packages))
            yield Trial(
                cheat["name"], cheat["class"], program, allowed, 0.0, cheat.get("share", 0.0)
            )


BATTERIES = {path.stem: list(read_honest(path)) for path in sorted(FOLDER.glob("honest/*.toml"))}
BATTERIES |= {
    f"cheats {path.stem}": list(read_cheats(path)) for path in sorted(FOLDER.glob("cheats/*.toml"))
}
HONEST = [trial for trials in BATTERIES.values() for trial in trials if trial.least == 1]
PLAIN = [trial for trial in HONEST if not trial.packages and trial.kind != "solution"]
CHEATS = [trial for trials in BATTERIES.values() for trial in trials if trial.least == 0]


# Batteries whose right programs are judged by plain Python in this file, too.
JUDGED_BY_PYTHON = ("listed", "classes", "library", "kodcode", "more", "gaps", "cheats outsider")


def run_trials(tier, trials):
    """Run trials in one pool per set of packages; returns each with its result."""
    groups = defaultdict(list)
    for trial in trials:
        groups[trial.packages].append(trial)
    results = []
    for packages, group in groups.items():
        executor = Local(tier, packages=packages, workers=2)
        results += zip(group, executor.run_many([trial.program for trial in group]), strict=True)
    return results


def with_one_test(trial):
    program = Program(trial.program.code, trial.program.tests[:1], HANGING)
    return dataclasses.replace(trial, program=program)


def test_batteries_are_as_large_as_promised():
    names = [trial.name for trials in BATTERIES.values() for trial in trials]
    assert len(names) == len(set(names))
    assert len(HONEST) >= 475
    assert len(CHEATS) >= 270
    assert all(trial.program.tests for trial in HONEST + CHEATS)


def plain_complaint(trial, folder):
    """Run each test of a trial as plain Python would; returns what the first one that fails says.

    A test is a script after its program, in a fresh process and folder. What defines tests and does
    not run them itself is run by pytest.
    """
    folder.mkdir()
    for number, test in enumerate(trial.program.tests):
        place = folder / str(number)
        place.mkdir()
        for name in ("solution", "main"):
            (place / f"{name}.py").write_text(trial.program.code, encoding="utf-8")
        if isinstance(test, Case) and not test.function:
            command, given = ["main.py"], test.input
        else:
            text = script_of(test)
            (place / "test_trial.py").write_text(f"{trial.program.code}\n{text}", encoding="utf-8")
            collected = names_of_tests(ast.parse(text)) and "unittest.main(" not in text
            runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command, given = [*(runner if collected else ()), "test_trial.py"], ""
        done = subprocess.run(
            [sys.executable, *command], cwd=place, input=given.encode(), capture_output=True,
            timeout=60, env=os.environ | {"PYTHONPATH": "", "PYTHONUTF8": "1"},
        )  # fmt: skip
        said = (done.stdout + done.stderr).decode()[-1000:] if done.returncode else ""
        if command == ["main.py"] and not said:
            said = difference(test.output, done.stdout.decode(), test.comparison)
        if said:
            return f"{test}: {said}"
    return ""


def script_of(test):
    """Return a test as a script; a call by JSON compares its result as JSON."""
    if not isinstance(test, Case):
        return test
    function = f"getattr(globals().get('Solution', lambda: None)(), {test.function!r}, None)"
    return (
        f"import json\nfunction = {function} or {test.function}\n"
        f"result = json.loads(json.dumps(function(*{list(test.arguments)!r})))\n"
        f"assert result == json.loads({test.output!r}), result"
    )


@pytest.mark.parametrize("battery", JUDGED_BY_PYTHON)
def test_plain_python_passes_the_pairs_of_honest_programs(battery, request, tmp_path):
    """Else the pair is wrong, not the sandbox. Every thirtieth; all of them for a release."""
    every = 1 if request.config.getoption("--release") else 30
    trials = [trial for trial in BATTERIES[battery] if trial.least == 1][::every]
    said = {
        trial.name: plain_complaint(trial, tmp_path / trial.name.replace(" ", "-"))
        for trial in trials
    }
    assert not any(said.values()), {name: text for name, text in said.items() if text}


def misjudged(trial, result):
    """Say what is wrong with a result, if anything.

    An honest program passes, or cannot be judged with a reason. A cheat gains nothing: it has
    failed for certain, or cannot be judged where no program can, by what the test does.
    """
    if trial.least == 1:
        right = result.passed or (result.outcome == "cannot_judge" and result.detail)
    else:
        right = result.share <= trial.most and result.outcome != "sandbox_error"
    if right:
        return None
    said = zip(result.tests, trial.program.tests, strict=True)
    passing = trial.most < 1
    wrong = [
        f"{end.outcome} {end.detail}: {text}"
        for end, text in said
        if (end.outcome == "passed") == passing
    ]
    return "\n".join([f"{result.outcome} {result.detail}", *wrong])


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("battery", BATTERIES)
def test_trials_score_what_they_are_worth(tier, battery, request):
    """Every twelfth in the first tier of this host, every thirtieth in another; all of them for a
    release.
    """
    every = 1 if request.config.getoption("--release") else 12 if tier == TIERS[0] else 30
    # For root in bubblewrap such changes do nothing (docs/sandbox.md).
    in_vain = tier == "bubblewrap" and os.getuid() == 0
    trials = [trial for trial in BATTERIES[battery] if not (trial.owner and in_vain)]
    results = run_trials(tier, trials[::every])
    wrong = {trial.name: said for trial, result in results if (said := misjudged(trial, result))}
    assert not wrong, wrong
    unjudged = [trial for trial, result in results if trial.least == 1 and not result.passed]
    if request.config.getoption("--release"):
        assert len(unjudged) <= UNJUDGED.get(battery, 0), [trial.name for trial in unjudged]
    # Every program can be judged by tests that the right one can be judged by, but for what depends
    # on the program.
    right = {
        trial.program.tests: result.tests for trial, result in results if trial.kind == "solution"
    }
    for trial, result in results:
        ends = [end for end in result.tests if not BY_THE_PROGRAM.search(end.detail)]
        unlike = any(end.outcome == "cannot_judge" for end in ends)
        if result.outcome == "cannot_judge" and unlike and trial.program.tests in right:
            assert any(end.outcome == "cannot_judge" for end in right[trial.program.tests]), (
                trial.name
            )


@pytest.mark.parametrize("tier", TIERS)
def test_saboteurs_change_nobody_elses_score(tier, request):
    """500 programs in random order (50 but for a release), half of them saboteurs: each scores as
    it does alone.
    """
    order, part = random.Random(16), 1 if request.config.getoption("--release") else 10
    exposed = [trial for trial in PLAIN if trial.kind in EXPOSED]
    saboteurs = [
        with_one_test(trial) for trial in CHEATS if trial.kind in SABOTEURS and not trial.packages
    ]
    chosen = ((PLAIN, 100), (exposed, 150), (saboteurs, 250))
    mixed = [trial for trials, count in chosen for trial in order.choices(trials, k=count // part)]
    order.shuffle(mixed)
    # For root in bubblewrap changes of permissions and times do nothing (docs/sandbox.md).
    in_vain = tier == "bubblewrap" and os.getuid() == 0
    for trial, result in run_trials(tier, [t for t in mixed if not (t.owner and in_vain)]):
        assert not misjudged(trial, result), f"{trial.name}: {result.outcome} {result.detail}"


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
    [
        "raise SystemExit(3)",
        "os._exit(0)",
        "raise ValueError('late')",
        "1 / 0",
        "os.kill(os.getpid(), 9)",
        "pass",
    ],
)
def test_program_without_tests_passes_nothing_whatever_it_says(tier, end):
    """Nothing was checked: that it ran to its end is its own word, which it may write on the
    descriptor itself.
    """
    executor = Local(tier, workers=1)
    forged, plain, silent = executor.run_many(
        [Program(code, (), BRIEF) for code in (FORGED + end, "print('done')", f"import os\n{end}")]
    )
    assert (forged.outcome, forged.passed, forged.share) == ("untested", False, 0.0)
    assert (plain.outcome, plain.share, plain.stdout) == ("untested", 0.0, "done\n")
    assert (
        silent.outcome == "untested"
        if end == "pass"
        else silent.outcome in ("failed", "out_of_memory")
    )


@pytest.mark.parametrize("tier", TIERS)
def test_no_process_holds_modules_that_nobody_has_mentioned(tier):
    """Each makes all of them dearer to start; once one is mentioned, it is there."""
    listing = "import sys\ndef held(): return sorted(sys.modules)"
    backwards = [name[::-1] for name in ON_MENTION]
    test = f"assert not {{name[::-1] for name in {backwards}}} & set(held())"
    executor = Local(tier, workers=1)
    asking = Program(f"{listing}  # asyncio", ("assert 'asyncio' in held()",), PATIENT)
    silent, mentioned = executor.run_many([Program(listing, (test,), PATIENT), asking])
    assert (silent.outcome, mentioned.outcome) == ("passed", "passed"), (
        silent.tests,
        mentioned.tests,
    )

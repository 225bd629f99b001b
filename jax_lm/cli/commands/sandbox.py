"""The commands of the sandbox: `diffucoder sandbox check`, `sandbox run`, `sandbox serve`."""

import re
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import untrusted as sandbox
from jax_lm.cli.arguments.sandbox import SandboxCheck, SandboxRun, SandboxServe
from jax_lm.host import terminal
from untrusted import Limits, Local
from untrusted.assertions import split_tests, title_of
from untrusted.battery import attacks, run_battery
from untrusted.cases import Case, Test
from untrusted.http import Worker
from untrusted.printable import printable
from untrusted.runner import choose_tier, why_not
from untrusted.session import Session
from untrusted.tiers import SAFE


def run_sandbox_check(arguments: SandboxCheck) -> int:
    console = Console(highlight=False)
    available = []
    # tiers that work on this host
    for tier in SAFE if arguments.executor == "auto" else (arguments.executor,):
        reason = why_not(tier)
        console.print(f"{tier}: {reason or 'works'}", markup=False)
        available += [] if reason else [tier]
    chosen = choose_tier(arguments.executor)
    # every attack in every tier that works
    table = Table("attack", *available, title="attacks on the sandbox of this host")
    columns = []
    for tier in available:
        with Session(tier) as session:
            columns.append(list(run_battery(session)))
    failures = 0
    # one row per attack, one column per tier
    for name, *findings in zip(attacks(), *columns, strict=True):
        failures += sum(not finding.stopped for finding in findings)
        table.add_row(
            name,
            *(
                "stopped" if f.stopped else f"[red]NOT STOPPED[/red] {escape(printable(f.detail))}"
                for f in findings
            ),
        )
    console.print(table)
    total = len(attacks()) * len(available)
    console.print(
        f"{total - failures} of {total} stopped; --executor {arguments.executor} runs programs in {chosen}"
    )
    return 1 if failures else 0


# Names of input files, and of their output files.
PAIRS = ((r"(.*)\.in", ("{}.out", "{}.ans")), (r"input(.*)\.txt", ("output{}.txt",)))


def pair_files(folder: Path) -> list[tuple[Path, Path]]:
    """Return the input and output files of a folder, in natural order: 2 comes before 10.

    Raises:
        ValueError: an input file has no output file.
    """
    # 2 before 10: parts of a name are padded with zeros before they are compared
    pairs = []
    for path in sorted(
        folder.iterdir(),
        key=lambda path: [part.zfill(20) for part in re.split(r"(\d+)", path.name)],
    ):
        for pattern, forms in PAIRS:
            if match := re.fullmatch(pattern, path.name):
                names = [form.format(match[1]) for form in forms]
                existing = [folder / name for name in names if (folder / name).is_file()]
                if not existing:
                    raise ValueError(f"--tests {folder}: {path.name} has no {' or '.join(names)}")
                pairs.append((path, existing[0]))
    return pairs


def collect_tests(arguments: SandboxRun) -> list[tuple[str, Test]]:
    """Return the requested tests, each with a title."""
    folder = arguments.tests
    pairs = []
    files = []
    # one case, a folder of tests or cases, or one file of tests
    if arguments.input and arguments.expected:
        pairs = [(arguments.input, arguments.expected)]
    elif folder and folder.is_dir():
        pairs = pair_files(folder)
        files = sorted({*folder.rglob("test_*.py"), *folder.rglob("*_test.py")})
        if not files and not pairs:
            raise ValueError(
                f"--tests {folder}: holds no test_*.py, no *_test.py, and no cases such as 1.in and 1.out"
            )
    elif folder:
        files = [folder]
    # assertions of test files, then contest cases
    tests = []
    for path in files:
        found = split_tests(terminal.read_text_file(path), str(path))
        tests += [(title_of(test), test) for test in found]
    for pair in pairs:
        given, expected = (terminal.read_text_file(path, keep_line_ends=True) for path in pair)
        tests.append((pair[0].name, Case(given, expected, arguments.comparison)))
    return tests


def run_sandbox_run(arguments: SandboxRun) -> int:
    limits = Limits(
        seconds=arguments.timeout,
        total_seconds=max(arguments.timeout, Limits.total_seconds),
        memory_bytes=arguments.memory_mib * 2**20,
        canary=arguments.canary,
    )
    tests = collect_tests(arguments)
    result = sandbox.run(
        terminal.read_text_file(arguments.file),
        [test for _, test in tests],
        limits,
        executor=arguments.executor,
        allow_unsafe=arguments.allow_unsafe_exec,
        packages=arguments.packages,
        same_process=arguments.same_process,
    )
    # one line per test: number, outcome, title and reason
    for number, test in enumerate(result.tests, 1):
        line = tests[number - 1][0] if tests else "the program"
        reason = test.detail or ("" if test.border else "judged in the program's process")
        comment = f"  # {reason}" if reason else ""
        print(printable(f"{number:3d}  {test.outcome:13s}  {line}{comment}"))
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text.strip():
            print(f"--- {name}\n{printable(text.rstrip())}")
    contained = "NOT CONTAINED" if result.unsafe else f"contained by {result.tier}"
    summary = f"{result.share:.0%} of {len(result.tests)}" if tests else "no tests"
    without = sum(not test.border for test in result.tests)
    print(
        f"{result.outcome}: {summary}, {contained}{f', {without} without a border' if without else ''}"
    )
    return 0 if result.outcome in ("passed", "untested") else 1


def run_sandbox_serve(arguments: SandboxServe) -> int:
    executor = Local(
        arguments.executor,
        arguments.allow_unsafe_exec,
        arguments.workers,
        packages=arguments.packages,
    )
    worker = Worker((arguments.host, arguments.port), executor, arguments.queue)
    host, port = worker.server_address[:2]
    print(f"running programs in {worker.tier} for http://{host}:{port}; Ctrl-C ends it", flush=True)
    try:
        worker.serve_forever()
    finally:
        worker.server_close()
    return 0

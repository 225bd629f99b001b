"""The commands of the sandbox: `diffucoder sandbox check`, `sandbox run`, `sandbox serve`."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jax_lm import sandbox, terminal
from jax_lm.arguments.sandbox import SandboxCheck, SandboxRun, SandboxServe
from jax_lm.printing import printable
from jax_lm.sandbox import Limits
from jax_lm.sandbox.assertions import split_tests, title_of
from jax_lm.sandbox.battery import attacks, run_battery
from jax_lm.sandbox.http import Worker
from jax_lm.sandbox.runner import choose_tier, why_not
from jax_lm.sandbox.session import Session
from jax_lm.sandbox.tiers import SAFE


def run_sandbox_check(arguments: SandboxCheck) -> int:
    console = Console(highlight=False)
    tiers = SAFE if arguments.executor == "auto" else (arguments.executor,)
    available = []
    for tier in tiers:
        reason = why_not(tier)
        console.print(f"{tier}: {reason or 'works'}", markup=False)
        available += [] if reason else [tier]
    chosen = choose_tier(arguments.executor)
    table = Table("attack", *available, title="attacks on the sandbox of this host")
    columns = []
    for tier in available:
        with Session(tier) as session:
            columns.append(list(run_battery(session)))
    failures = 0
    for name, *findings in zip(attacks(), *columns, strict=True):
        failures += sum(not finding.stopped for finding in findings)
        table.add_row(
            name,
            *("stopped" if f.stopped else f"[red]NOT STOPPED[/red] {escape(printable(f.detail))}" for f in findings),
        )
    console.print(table)
    total = len(attacks()) * len(available)
    console.print(f"{total - failures} of {total} stopped; --executor {arguments.executor} runs programs in {chosen}")
    return 1 if failures else 0


def test_files(path: Path | None) -> list[Path]:
    """List the files of tests: the one that is named, or those of a folder."""
    if path is None or not path.is_dir():
        return [] if path is None else [path]
    found = sorted({*path.rglob("test_*.py"), *path.rglob("*_test.py")})
    if not found:
        raise ValueError(f"--tests {path}: holds no file named test_*.py or *_test.py")
    return found


def run_sandbox_run(arguments: SandboxRun) -> int:
    limits = Limits(seconds=arguments.seconds, memory_bytes=arguments.memory_mib * 2**20)
    tests = [
        test for path in test_files(arguments.tests) for test in split_tests(terminal.read_text_file(path), str(path))
    ]
    code = terminal.read_text_file(arguments.file)
    result = sandbox.run(
        code,
        tests,
        limits,
        executor=arguments.executor,
        allow_unsafe=arguments.allow_unsafe_exec,
        packages=arguments.packages,
        objects="strict" if arguments.strict else "trusted",
    )
    for number, test in enumerate(result.tests, 1):
        line = title_of(tests[number - 1]) if tests else "the program"
        reason = f"  # {test.detail}" if test.detail else ""
        print(printable(f"{number:3d}  {test.outcome:13s}  {line}{reason}"))
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text.strip():
            print(f"--- {name}\n{printable(text.rstrip())}")
    contained = "NOT CONTAINED" if result.unsafe else f"contained by {result.tier}"
    summary = f"{result.share:.0%} of {len(result.tests)}" if tests else "it ran, and no test says what it is worth"
    print(f"{result.outcome}: {summary}, {contained}")
    return 0 if result.outcome in ("passed", "untested") else 1


def run_sandbox_serve(arguments: SandboxServe) -> int:
    worker = Worker(
        (arguments.host, arguments.port),
        workers=arguments.workers,
        queue_size=arguments.queue_size,
        executor=arguments.executor,
        allow_unsafe=arguments.allow_unsafe_exec,
    )
    host, port = worker.server_address[:2]
    print(f"running programs in {worker.pool.tier} for http://{host}:{port}; Ctrl-C ends it", flush=True)
    try:
        worker.serve_forever()
    finally:
        worker.server_close()
    return 0

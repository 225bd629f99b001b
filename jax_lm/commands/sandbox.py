"""The commands of the sandbox: `diffucoder sandbox check`, `sandbox run`, `sandbox serve`."""

from rich.console import Console
from rich.table import Table

from jax_lm import sandbox, terminal
from jax_lm.arguments.sandbox import SandboxCheck, SandboxRun, SandboxServe
from jax_lm.sandbox import Limits
from jax_lm.sandbox.assertions import split_tests
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
        table.add_row(name, *("stopped" if f.stopped else f"[red]NOT STOPPED[/red] {f.detail}" for f in findings))
    console.print(table)
    total = len(attacks()) * len(available)
    console.print(f"{total - failures} of {total} stopped; --executor {arguments.executor} runs programs in {chosen}")
    return 1 if failures else 0


def run_sandbox_run(arguments: SandboxRun) -> int:
    limits = Limits(seconds=arguments.seconds, memory_bytes=arguments.memory_mib * 2**20)
    tests = split_tests(terminal.read_text_file(arguments.tests), str(arguments.tests)) if arguments.tests else []
    code = terminal.read_text_file(arguments.file)
    result = sandbox.run(code, tests, limits, executor=arguments.executor, allow_unsafe=arguments.allow_unsafe_exec)
    for number, test in enumerate(result.tests, 1):
        line = tests[number - 1].splitlines()[-1] if tests else "the program"
        print(f"{number:3d}  {test.outcome:13s}  {line}{f'  # {test.detail}' if test.detail else ''}")
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text.strip():
            print(f"--- {name}\n{text.rstrip()}")
    contained = "NOT CONTAINED" if result.unsafe else f"contained by {result.tier}"
    print(f"{result.outcome}: {result.share:.0%} of {len(result.tests)}, {contained}")
    return 0 if result.passed else 1


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

"""`diffucoder sandbox check`: attack this host's sandbox."""

from rich.console import Console
from rich.table import Table

from jax_lm.arguments.sandbox import SandboxCheck
from jax_lm.sandbox.battery import attacks, run_battery
from jax_lm.sandbox.runner import choose_tier, why_not
from jax_lm.sandbox.session import Session
from jax_lm.sandbox.tiers import SAFE


def run(arguments: SandboxCheck) -> int:
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

"""`diffucoder parity check`: recorded outputs of the reference against this implementation."""

from itertools import chain

from rich.console import Console
from rich.table import Table

from jax_lm.arguments.benchmark import ParityCheck
from jax_lm.benchmark.parity import TOLERANCE, check_parity, read_golden, read_recording
from jax_lm.benchmark.training_parity import FILES, check_training_parity


def run(arguments: ParityCheck) -> int:
    _, cases = read_golden(arguments.folder)
    if arguments.training:
        read_recording(arguments.folder, *FILES)
    console = Console(highlight=False)
    table = Table("compared", "measured", "allowed", "", title=f"parity with {arguments.folder}")
    failures = 0
    tolerance = TOLERANCE if arguments.tolerance is None else arguments.tolerance
    findings = check_parity(arguments.folder, tolerance=tolerance, tokenizer=arguments.tokenizer)
    for finding in chain(findings, check_training_parity(arguments.folder) if arguments.training else ()):
        failures += not finding.passed
        verdict = "ok" if finding.passed else "[red]FAILED[/red]"
        table.add_row(finding.name, finding.measured, finding.allowed, verdict)
    console.print(table)
    if others := sorted(set(cases) - {"config", "generate", "fast"}):
        counts = ", ".join(f"{name} ({len(cases[name])} cases)" for name in others)
        console.print(f"not checked by this version: {counts}")
    console.print(f"{table.row_count - failures} of {table.row_count} within bounds")
    return 1 if failures else 0

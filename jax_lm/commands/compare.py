"""`diffucoder compare`: PyTorch against JAX on this machine: loading, speed, memory, numbers by layer."""

import json

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jax_lm import terminal
from jax_lm.arguments.benchmark import Compare
from jax_lm.benchmark import comparison
from jax_lm.benchmark.records import plain_data
from jax_lm.checkpoints import huggingface
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.document import Document
from jax_lm.reports.run_folder import write_whole


def print_report(document: Document, *, with_sections: bool = False) -> None:
    """Print what a report depends on, and its verdicts or its tables."""
    console = Console(highlight=False)
    for name, text in document.metadata.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for section in document.sections if with_sections else ():
        columns = [Column(name, overflow="fold") for name in section.columns]
        table = Table(*columns, title=section.title, box=box.SIMPLE_HEAD, padding=0)
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    if not document.verdicts:
        return
    table = Table("criterion", "wanted", "measured", "", title=document.title)
    colors = {True: "green", False: "red", None: "dim"}
    for verdict in document.verdicts:
        mark = f"[{colors[verdict.met]}]{verdict.mark}[/]"
        table.add_row(verdict.name, verdict.wanted, escape(verdict.measured), mark)
    console.print(table)
    console.print(document.score)


def run(arguments: Compare) -> int:
    out, tolerance = arguments.out, arguments.tolerance or comparison.TOLERANCES[arguments.dtype]
    if lacking := comparison.missing_packages():
        missing = " and ".join(lacking)
        raise ValueError(f"compare needs {missing}, which this environment lacks: {comparison.EXTRA}")
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    with terminal.progress("comparing") as report:
        result = comparison.compare(folder, arguments.dtype, arguments.workload, tolerance, on_progress=report)
    document = comparison.comparison_report(result, arguments.model or "built-in model")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "comparison.json", json.dumps(plain_data(result), indent=1) + "\n")
        document.write(out, "comparison")
    print_report(document)
    if out:
        Console(highlight=False).print(f"report: {out / 'comparison.html'}", markup=False, soft_wrap=True)
    return 1 if document.verdicts[0].met is False else 0

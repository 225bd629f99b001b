"""`diffucoder compare`: PyTorch against JAX on this machine: loading, speed, memory, numbers by layer."""

import json

from rich.console import Console
from rich.table import Table

from jax_lm import terminal
from jax_lm.arguments.benchmark import Compare
from jax_lm.benchmark.comparison import TOLERANCES, Workload, compare, document, require_pytorch
from jax_lm.checkpoints import huggingface
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.document import Document
from jax_lm.reports.run_folder import write_whole


def show(document: Document) -> None:
    """Print what a report depends on, and its verdicts."""
    console = Console(highlight=False)
    for name, text in document.metadata.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    table = Table("criterion", "wanted", "measured", "", title=document.title)
    colors = {True: "green", False: "red", None: "dim"}
    for verdict in document.verdicts:
        mark = f"[{colors[verdict.met]}]{verdict.mark}[/]"
        table.add_row(verdict.name, verdict.wanted, verdict.measured, mark)
    console.print(table)
    console.print(document.score)


def run(arguments: Compare) -> int:
    tolerance = TOLERANCES[arguments.dtype] if arguments.tolerance is None else arguments.tolerance
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance}: must be positive")
    workload = Workload(
        prompt_tokens=arguments.prompt_tokens,
        batch_sizes=arguments.batch_sizes,
        new_tokens=arguments.new_tokens,
        repeats=arguments.repeats,
    )
    require_pytorch("compare")
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    with terminal.progress("comparing") as report:
        result = compare(folder, arguments.dtype, workload, on_progress=report)
    found = document(result, arguments.model or "built-in model", tolerance)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.out / "comparison.json", json.dumps(result | {"tolerance": tolerance}, indent=1) + "\n")
        found.write(arguments.out, "comparison")
    show(found)
    if arguments.out:
        Console(highlight=False).print(f"report: {arguments.out / 'comparison.html'}", markup=False, soft_wrap=True)
    return 1 if found.verdicts[0].met is False else 0

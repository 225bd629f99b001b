"""`diffucoder bench`: speed of a model on this machine, as a table, Markdown, JSON and a bar chart."""

import html
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from jax_lm import terminal
from jax_lm.arguments.benchmark import Bench
from jax_lm.benchmark.machine import PeakMemory, about, machine_limits
from jax_lm.benchmark.workload import ForwardTime, GenerationTime, Workload, measure, random_model
from jax_lm.checkpoints import huggingface
from jax_lm.config import SHAPES
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import BUILTIN_MODEL, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import parameter_count
from jax_lm.reports.document import table

GENERATION_COLUMNS = (
    "preset",
    "batch",
    "new tokens",
    "tokens per s",
    "seconds",
    "forwards",
    "tokens per forward",
    "compile, s",
    "compiled again",
    "peak, GiB",
)


FORWARD_COLUMNS = (
    "rows recomputed",
    "batch",
    "canvas",
    "forward, ms",
    "step, ms",
    "sampling and bookkeeping",
    "roofline, ms",
    "limit",
    "reached",
)


COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0")
BAR, GAP, LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH = 18, 6, 250, 420, 90


def generation_row(each: GenerationTime) -> list[str]:
    """The cells of GENERATION_COLUMNS."""
    return [
        each.preset,
        str(each.batch),
        str(each.new_tokens),
        f"{each.tokens_per_second:,.1f}",
        f"{each.seconds:.3f}",
        str(each.forwards),
        f"{each.tokens_per_forward:.2f}",
        f"{each.compile_seconds:.2f}",
        str(each.recompilations),
        f"{each.peak_bytes / 2**30:.2f}",
    ]


def forward_row(each: ForwardTime) -> list[str]:
    """The cells of FORWARD_COLUMNS."""
    return [
        f"{each.rows} ({each.window})",
        str(each.batch),
        str(each.canvas),
        f"{each.seconds * 1e3:.2f}",
        f"{each.step_seconds * 1e3:.2f}",
        f"{each.overhead:.0%}",
        f"{each.bound_seconds * 1e3:.2f}",
        each.bound,
        f"{each.roofline:.0%}",
    ]


def show(facts: dict[str, str], generations: list[GenerationTime], forwards: list[ForwardTime]) -> None:
    """Print the tables."""
    console = Console(highlight=False)
    for name, text in facts.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for title, columns, rows in (
        ("generation", GENERATION_COLUMNS, map(generation_row, generations)),
        ("one forward pass, every position of the block masked", FORWARD_COLUMNS, map(forward_row, forwards)),
    ):
        table = Table(*columns, title=title, box=box.SIMPLE_HEAD, padding=0)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def write(
    folder: Path,
    result: dict[str, Any],
    facts: dict[str, str],
    generations: list[GenerationTime],
    forwards: list[ForwardTime],
) -> None:
    """bench.json, bench.md and bench.svg."""
    (folder / "bench.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    lines = ["# Speed", "", *(f"- {name}: {text}" for name, text in facts.items()), ""]
    lines += ["## Generation", "", *table(GENERATION_COLUMNS, [generation_row(each) for each in generations]), ""]
    lines += ["![tokens per second](bench.svg)", "", "## One forward pass", ""]
    lines += [*table(FORWARD_COLUMNS, [forward_row(each) for each in forwards]), ""]
    (folder / "bench.md").write_text("\n".join(lines), encoding="utf-8")
    (folder / "bench.svg").write_text(chart(generations), encoding="utf-8")


def chart(generations: list[GenerationTime]) -> str:
    """A bar per generation, as SVG: tokens per second, coloured by preset."""
    presets = list(dict.fromkeys(each.preset for each in generations))
    most = max(each.tokens_per_second for each in generations)
    height = (BAR + GAP) * len(generations) + GAP
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="tokens per second">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, each in enumerate(generations):
        top, length = GAP + index * (BAR + GAP), BAR_WIDTH * each.tokens_per_second / most
        label = html.escape(f"{each.preset}, batch {each.batch}, {each.new_tokens} new tokens")
        middle = top + BAR * 0.7
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{middle:.0f}" text-anchor="end">{label}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{top}" width="{length:.1f}" height="{BAR}" '
            f'fill="{COLORS[presets.index(each.preset) % len(COLORS)]}"/>',
            f'<text x="{LABEL_WIDTH + length + 6:.1f}" y="{middle:.0f}">{each.tokens_per_second:,.1f} tok/s</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def run(arguments: Bench) -> int:
    if arguments.model and arguments.random_shape:
        raise ValueError(f"random_shape={arguments.random_shape!r}: give either a model or a random shape")
    workload = Workload(
        presets=arguments.presets,
        batch_sizes=arguments.batch_sizes,
        new_tokens=arguments.new_tokens,
        prompt_tokens=arguments.prompt_tokens,
        repeats=arguments.repeats,
    )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    machine = about()
    name, dtype = chosen_model(arguments)
    limits = machine_limits(dtype)
    start = time.perf_counter()
    sampler = load_sampler(arguments, dtype)
    load_seconds = time.perf_counter() - start
    with terminal.progress("measuring") as report:
        generations, forwards = measure(sampler, workload, limits, on_progress=report)
    facts = {
        "model": f"{name}, {parameter_count(sampler.config):,} parameters, {dtype}",
        "machine": f"{machine['devices']} x {machine['device']} ({machine['platform']}, {machine['machine']}), "
        f"{machine['cpu_count']} CPU cores, load {machine['load_average']:g}",
        "software": ", ".join(f"{key} {machine[key]}" for key in ("jax", "jaxlib", "flax", "python")),
        "date": machine["date"],
        "command": machine["command"],
        "loading" if not arguments.random_shape else "making the weights": f"{load_seconds:.2f} s",
        "matmul rate": f"{limits.matmul_flops / 1e9:,.0f} GFLOP/s in {dtype}",
        "copy bandwidth": f"{limits.copy_bytes / 1e9:,.1f} GB/s",
        "peak memory": PeakMemory().source,
    }
    result = {
        "about": machine,
        "model": {"name": name, "parameters": parameter_count(sampler.config), "dtype": dtype},
        "workload": asdict(workload),
        "limits": asdict(limits),
        "load_seconds": load_seconds,
        "peak_memory": PeakMemory().source,
        "generations": [asdict(each) for each in generations],
        "forwards": [asdict(each) for each in forwards],
    }
    if arguments.out:
        write(arguments.out, result, facts, generations, forwards)
    show(facts, generations, forwards)
    return 0


def chosen_model(arguments: Bench) -> tuple[str, str]:
    """Name of the model, and its dtype."""
    if arguments.random_shape:
        config, name = SHAPES[arguments.random_shape], f"random weights of the shape {arguments.random_shape}"
    else:
        config = DreamForCausalLM.read_config(huggingface.resolve(arguments.model or BUILTIN_MODEL))
        name = arguments.model or "built-in model"
    # The weights of 7B parameters hardly fit anywhere in float32.
    fitting = "bfloat16" if arguments.random_shape == "7b" else fitting_dtype(parameter_count(config))
    return name, arguments.dtype or fitting


def load_sampler(arguments: Bench, dtype: str) -> Sampler:
    """The model on the device."""
    if arguments.random_shape:
        model = random_model(SHAPES[arguments.random_shape], dtype)
    else:
        with terminal.progress("loading") as report:
            folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
            model = DreamForCausalLM.from_pretrained(folder, dtype=dtype, on_progress=report)
    sampler = Sampler(model)
    jax.block_until_ready(sampler.params)
    return sampler

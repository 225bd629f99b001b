"""`diffucoder bench`: speed of a model on this machine, as a table, Markdown, JSON and a bar chart."""

import html
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from jax_lm import terminal

if TYPE_CHECKING:
    from jax_lm.diffusion.sampler import Sampler
    from jax_lm.evaluation.speed import ForwardTime, GenerationTime

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


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed, memory and compilations of a model on this machine.

    Prompts are random, nothing stops early, settings are the published ones (temperature 0.2, top_p 0.95, top_k 50,
    entropy, one token per step; turbo takes as many steps as it needs). Times are medians after a warm-up,
    limits of the machine the best of ten calls.

    Examples:
        diffucoder bench --batch-sizes 1 --new-tokens 64
        diffucoder bench --random-shape small --presets exact fast --out bench
        diffucoder bench --random-shape 7b --dtype bfloat16 --batch-sizes 1 8 --out bench-7b
        diffucoder bench --model apple/DiffuCoder-7B-Instruct --new-tokens 256

    Attributes:
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        presets: exact, fast, turbo.
        batch_sizes: rows decoded together.
        new_tokens: lengths of the canvas that is filled.
        prompt_tokens: length of the random prompts.
        repeats: timed calls per measurement.
        random_shape: random weights in place of a model: small (the published vocabulary, 8 layers of width 512) or 7b
            (the published shape).
        out: folder for bench.json, bench.md and bench.svg.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    presets: tuple[Literal["exact", "fast", "turbo"], ...] = ("exact", "fast", "turbo")
    batch_sizes: tuple[int, ...] = (1, 8)
    new_tokens: tuple[int, ...] = (64, 256)
    prompt_tokens: int = 64
    repeats: int = 3
    random_shape: Literal["small", "7b"] | None = None
    out: Path | None = None

    def run(self) -> int:
        from jax_lm.evaluation.machine import PeakMemory, about, machine_limits
        from jax_lm.evaluation.speed import Workload, measure
        from jax_lm.planning import parameter_count

        if self.model and self.random_shape:
            raise ValueError(f"random_shape={self.random_shape!r}: give either a model or a random shape")
        workload = Workload(
            presets=self.presets,
            batch_sizes=self.batch_sizes,
            new_tokens=self.new_tokens,
            prompt_tokens=self.prompt_tokens,
            repeats=self.repeats,
        )
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        machine = about()
        name, dtype = self.chosen()
        limits = machine_limits(dtype)
        start = time.perf_counter()
        sampler = self.load(dtype)
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
            "loading" if not self.random_shape else "making the weights": f"{load_seconds:.2f} s",
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
        if self.out:
            write(self.out, result, facts, generations, forwards)
        show(facts, generations, forwards)
        return 0

    def chosen(self) -> tuple[str, str]:
        """Name of the model, and its dtype."""
        from jax_lm.checkpoints import huggingface
        from jax_lm.inference import BUILTIN_MODEL, fitting_dtype
        from jax_lm.models.config import SHAPES
        from jax_lm.models.dream import DreamForCausalLM
        from jax_lm.planning import parameter_count

        if self.random_shape:
            config, name = SHAPES[self.random_shape], f"random weights of the shape {self.random_shape}"
        else:
            config = DreamForCausalLM.read_config(huggingface.resolve(self.model or BUILTIN_MODEL))
            name = self.model or "built-in model"
        # The weights of 7B parameters hardly fit anywhere in float32.
        fitting = "bfloat16" if self.random_shape == "7b" else fitting_dtype(parameter_count(config))
        return name, self.dtype or fitting

    def load(self, dtype: str) -> "Sampler":
        """The model on the device."""
        import jax

        from jax_lm.checkpoints import huggingface
        from jax_lm.diffusion.sampler import Sampler
        from jax_lm.evaluation.speed import random_model
        from jax_lm.inference import BUILTIN_MODEL
        from jax_lm.models.config import SHAPES
        from jax_lm.models.dream import DreamForCausalLM

        if self.random_shape:
            model = random_model(SHAPES[self.random_shape], dtype)
        else:
            with terminal.progress("loading") as report:
                folder = huggingface.resolve(self.model or BUILTIN_MODEL)
                model = DreamForCausalLM.from_pretrained(folder, dtype=dtype, on_progress=report)
        sampler = Sampler(model)
        jax.block_until_ready(sampler.params)
        return sampler


def generation_row(each: "GenerationTime") -> list[str]:
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


def forward_row(each: "ForwardTime") -> list[str]:
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


def show(facts: dict[str, str], generations: "list[GenerationTime]", forwards: "list[ForwardTime]") -> None:
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
    generations: "list[GenerationTime]",
    forwards: "list[ForwardTime]",
) -> None:
    """bench.json, bench.md and bench.svg."""
    (folder / "bench.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    from jax_lm.evaluation.document import table

    lines = ["# Speed", "", *(f"- {name}: {text}" for name, text in facts.items()), ""]
    lines += ["## Generation", "", *table(GENERATION_COLUMNS, [generation_row(each) for each in generations]), ""]
    lines += ["![tokens per second](bench.svg)", "", "## One forward pass", ""]
    lines += [*table(FORWARD_COLUMNS, [forward_row(each) for each in forwards]), ""]
    (folder / "bench.md").write_text("\n".join(lines), encoding="utf-8")
    (folder / "bench.svg").write_text(chart(generations), encoding="utf-8")


def chart(generations: "list[GenerationTime]") -> str:
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

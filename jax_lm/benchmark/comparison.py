"""PyTorch and JAX on the same checkpoint and machine: time, memory, and numbers module by module.

Each side runs in a process of its own, one after the other (`evaluation.side`); this module asks them and puts what
they say side by side. Entry: `diffucoder compare`.
"""

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jax_lm.benchmark.worker import Request, ask
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.reports.charts import line_chart, rounded_up
from jax_lm.reports.document import Document, Section, Verdict
from jax_lm.reports.run_folder import Record

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05}
"""Largest relative difference of a module's output. Measured on the built-in model: 1.1e-6 and 0.013."""

NEEDED = ("torch", "transformers")
EXTRA = "pip install 'jax-diffucoder[parity]'"
ON_CPU = {"JAX_PLATFORMS": "cpu"}
"""For the process of PyTorch: JAX must not take the accelerator there."""

KINDS = {
    "embed_tokens": "embedding",
    "input_layernorm": "input norm",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "post_attention_layernorm": "second norm",
    "mlp": "MLP",
    "norm": "final norm",
    "logits": "logits",
}
"""What an output is called in a report, by the last part of its module's name."""

DIGITS = 8.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What both sides generate.

    Attributes:
        prompt_tokens: lengths of the prompts, at batch 1; the first also for larger batches.
        batch_sizes: rows decoded together.
        new_tokens: length of the answers, and number of steps.
        repeats: timed calls per generation, of which the median counts.
    """

    prompt_tokens: tuple[int, ...] = (16, 64, 256)
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    new_tokens: int = 32
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "batch_sizes"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ValueError(f"{name}={values}: must name at least one number, each at least 1")
        for name in ("new_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def cells(self) -> tuple[tuple[int, int, int], ...]:
        """Batch, prompt tokens and new tokens of every generation."""
        lengths = [(1, prompt, self.new_tokens) for prompt in self.prompt_tokens]
        batches = [(batch, self.prompt_tokens[0], self.new_tokens) for batch in self.batch_sizes]
        return tuple(dict.fromkeys(lengths + batches))


@dataclass(frozen=True)
class Difference:
    """How far the output of one module is from PyTorch's.

    Attributes:
        largest: absolute difference of one number.
        relative: norm of the difference over the norm of PyTorch's output.
    """

    name: str
    kind: str
    layer: int | None
    largest: float
    relative: float


def missing() -> list[str]:
    """What PyTorch's side needs and is not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def require_pytorch(what: str) -> None:
    """ValueError says what is missing, and how to get it."""
    if lacking := missing():
        raise ValueError(f"{what} needs {' and '.join(lacking)}, which this environment lacks: {EXTRA}")


def differences(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> list[Difference]:
    """Of every output, in the order of the model.

    Raises:
        ValueError: the two have not the same outputs, or not of the same shapes.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(f"outputs of one side alone: {', '.join(sorted(ours.keys() ^ theirs.keys()))}")
    found = []
    for name in sorted(ours, key=place):
        a, b = ours[name].astype(np.float64), theirs[name].astype(np.float64)
        if a.shape != b.shape:
            raise ValueError(f"{name} has shape {a.shape} here and {b.shape} in PyTorch")
        layer = re.search(r"layers\.(\d+)\.", name)
        norm = float(np.linalg.norm(b)) or 1.0
        figures = (float(np.abs(a - b).max()), float(np.linalg.norm(a - b)) / norm)
        found.append(Difference(name, KINDS[name.split(".")[-1]], int(layer[1]) if layer else None, *figures))
    return found


def place(name: str) -> tuple[float, int]:
    """Where an output lies in the model: layer, then kind."""
    layer = re.search(r"layers\.(\d+)\.", name)
    kind = list(KINDS).index(name.split(".")[-1])
    return (float(layer[1]) if layer else -1.0 if kind == 0 else math.inf), kind


def compare(
    folder: Path, dtype: str, workload: Workload, *, on_progress: Callable[[int, int, str], None] | None = None
) -> Record:
    """Ask JAX, then PyTorch on the same kind of device; plain data.

    Raises:
        ValueError: a prompt does not fit the model's context, or a side failed.
    """
    config, longest = DreamForCausalLM.read_config(folder), max(workload.prompt_tokens) + workload.new_tokens
    if longest > config.max_position_embeddings:
        raise ValueError(
            f"prompt_tokens={max(workload.prompt_tokens)} with new_tokens={workload.new_tokens}: "
            f"the context holds {config.max_position_embeddings} tokens"
        )
    request = {"folder": str(folder), "dtype": dtype, "cells": workload.cells, "repeats": workload.repeats}
    report = on_progress or (lambda done, total, note: None)
    report(0, 2, "JAX")
    ours, our_outputs = ask(Request(side="jax", numbers=(2, 24), **request))
    report(1, 2, "PyTorch")
    device = "cuda" if ours["about"]["platform"] == "gpu" else "cpu"
    theirs, their_outputs = ask(Request(side="pytorch", device=device, numbers=(2, 24), **request), environment=ON_CPU)
    report(2, 2, "")
    return {
        "jax": ours,
        "pytorch": theirs,
        "workload": asdict(workload),
        "differences": [asdict(each) for each in differences(our_outputs, their_outputs)],
        "greedy_agreement": float((np.asarray(ours["greedy"]) == np.asarray(theirs["greedy"])).mean()),
    }


def worst(found: Sequence[Record]) -> Record:
    """The difference that is largest relative to its output."""
    return max(found, key=lambda each: math.inf if math.isnan(each["relative"]) else each["relative"])


def numbers_verdict(found: Sequence[Record], tolerance: float) -> Verdict:
    """Whether every output is within the tolerance; what is not a number is not."""
    most = worst(found)
    within = sum(each["relative"] <= tolerance for each in found)
    measured = f"{within} of {len(found)} outputs; largest {most['relative']:.1e} ({most['name']})"
    return Verdict(
        "numbers as in PyTorch", f"relative difference at most {tolerance:g}", measured, within == len(found)
    )


def verdicts(result: Record, tolerance: float) -> list[Verdict]:
    """What a change to this port would have to show."""
    ours, theirs = result["jax"], result["pytorch"]
    pairs = list(zip(ours["cells"], theirs["cells"], strict=True))
    ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs]
    share, is_exact = result["greedy_agreement"], ours["dtype"] == "float32"
    slowest = f"{min(ratios):.2f} to {max(ratios):.2f} times"
    load = ours["load_seconds"] / theirs["load_seconds"]
    return [
        numbers_verdict(result["differences"], tolerance),
        # In bfloat16 nearly equal candidates change places, on either side.
        Verdict("greedy tokens as in PyTorch", "all, in float32", f"{share:.1%}", share == 1.0 if is_exact else None),
        Verdict("generation at least as fast", "every batch and length", slowest, min(ratios) >= 1),
        Verdict("loading at least as fast", "at most PyTorch's time", f"{load:.2f} of it", load <= 1),
    ]


def document(result: Record, name: str, tolerance: float) -> Document:
    """The report."""
    ours, theirs = result["jax"], result["pytorch"]
    about = ours["about"]
    told = {
        "model": f"{name}, {ours['dtype']}",
        "machine": f"{about['device']} ({about['platform']}), {about['cpu_count']} CPU cores, "
        f"load {about['load_average']:g}; PyTorch on {theirs['about']['device']}",
        "software": ", ".join(f"{key} {about[key]}" for key in ("jax", "jaxlib", "flax", "python"))
        + ", "
        + ", ".join(f"{key} {theirs['about'][key]}" for key in NEEDED),
        "generation": "published settings (temperature 0.2, top_p 0.95, top_k 50, entropy), one step per token, whole "
        f"canvas, {result['workload']['new_tokens']} new tokens; medians of {result['workload']['repeats']}",
        "date": about["date"],
    }
    return Document(
        title="PyTorch and JAX, side by side",
        metadata=told,
        verdicts=verdicts(result, tolerance),
        sections=[loading(ours, theirs), *speed(result), *numbers(result["differences"])],
    )


def loading(ours: Record, theirs: Record) -> Section:
    """Time and memory of each side."""
    rows = [
        ["loading, s", f"{ours['load_seconds']:.2f}", f"{theirs['load_seconds']:.2f}"],
        *(
            [what, *(f"{side[key] / 2**20:,.0f}" for side in (ours, theirs))]
            for what, key in (
                ("largest memory while loading, MiB", "load_bytes"),
                ("largest memory at the end, MiB", "peak_bytes"),
            )
        ),
    ]
    where = ours["memory"] if ours["memory"] == theirs["memory"] else f"{ours['memory']}; PyTorch: {theirs['memory']}"
    text = (
        f"Memory of the {where}. On a CPU it includes pages of the checkpoint that are mapped into memory, and "
        "JAX with its compiler; the weights of a small model may hide in what the imports had freed."
    )
    return Section(title="Loading and memory", text=text, columns=("", "JAX", "PyTorch"), rows=rows)


def speed(result: Record) -> list[Section]:
    """Latency by prompt length at batch 1; tokens per second by batch at the first length."""
    pairs = list(zip(result["jax"]["cells"], result["pytorch"]["cells"], strict=True))
    lengths = [(a, b) for a, b in pairs if a["batch"] == 1]
    shortest = result["workload"]["prompt_tokens"][0]
    sizes = result["workload"]["batch_sizes"]
    batches = sorted(
        ((a, b) for a, b in pairs if a["prompt_tokens"] == shortest and a["batch"] in sizes),
        key=lambda pair: pair[0]["batch"],
    )

    def chart(title: str, x: str, y: str, chosen: list[tuple[Record, Record]], key: str) -> str:
        axis = {"prompt tokens": "prompt_tokens", "batch": "batch"}[x]
        series = {side: [(pair[i][axis], pair[i][key]) for pair in chosen] for i, side in enumerate(("JAX", "PyTorch"))}
        return line_chart(title, x, y, series, top=rounded_up(max(v for line in series.values() for _, v in line)))

    latency = [
        [str(a["prompt_tokens"]), f"{a['seconds']:.3f}", f"{b['seconds']:.3f}", f"{b['seconds'] / a['seconds']:.2f}",
         f"{a['forward_seconds'] * 1e3:.1f}", f"{b['forward_seconds'] * 1e3:.1f}", f"{a['first_seconds']:.2f}"]
        for a, b in lengths
    ]  # fmt: skip
    throughput = [
        [str(a["batch"]), f"{a['tokens_per_second']:,.1f}", f"{b['tokens_per_second']:,.1f}",
         f"{a['tokens_per_second'] / b['tokens_per_second']:.2f}"]
        for a, b in batches
    ]  # fmt: skip
    return [
        Section(
            title="Latency by prompt length",
            text="One prompt, from the call to the last token. A forward pass computes the logits of every position.",
            columns=("prompt tokens", "JAX, s", "PyTorch, s", "times as fast", "JAX forward, ms",
                     "PyTorch forward, ms", "JAX, first call with compilation, s"),
            rows=latency,
            picture=chart("Seconds per answer", "prompt tokens", "seconds", lengths, "seconds"),
            name="latency",
        ),
        Section(
            title="Tokens per second by batch",
            text=f"Prompts of {shortest} tokens.",
            columns=("batch", "JAX, tokens/s", "PyTorch, tokens/s", "times as fast"),
            rows=throughput,
            picture=chart("Tokens per second", "batch", "tokens/s", batches, "tokens_per_second"),
            name="throughput",
        ),
    ]  # fmt: skip


def numbers(found: Sequence[Record]) -> list[Section]:
    """Relative differences, layer by layer and kind by kind."""
    layers = sorted({each["layer"] for each in found if each["layer"] is not None})
    kinds = list(dict.fromkeys(each["kind"] for each in found if each["layer"] is not None))
    by_place = {(each["layer"], each["kind"]): each for each in found}
    rows = [[f"layer {i}", *(f"{by_place[i, kind]['relative']:.1e}" for kind in kinds)] for i in layers]
    others = [each for each in found if each["layer"] is None]
    # Equal outputs agree in all digits that float32 has.
    digits = {
        kind: [(i, min(DIGITS, -math.log10(max(by_place[i, kind]["relative"], 10**-DIGITS)))) for i in layers]
        for kind in kinds
    }
    text = "Norm of the difference over the norm of PyTorch's output, on random tokens."
    return [
        Section(title="Numbers outside of the layers", text=text, columns=("output", "relative", "largest absolute"),
                rows=[[each["kind"], f"{each['relative']:.1e}", f"{each['largest']:.1e}"] for each in others]),
        Section(title="Numbers by layer", text=text, columns=("", *kinds), rows=rows, name="digits",
                picture=line_chart("Decimal digits that agree", "layer", "digits", digits, top=DIGITS)),
    ]  # fmt: skip

"""PyTorch and JAX on the same checkpoint and machine: time, memory, and numbers module by module.

Each backend runs in a process of its own, one after the other (`worker`); this module puts what they measure side by
side. Entry: `diffucoder compare`.
"""

import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jax_lm.benchmark.records import scaled_chart, table_section
from jax_lm.benchmark.settings import Workload
from jax_lm.benchmark.speed import GenerationTime
from jax_lm.benchmark.worker import TORCH_PACKAGES, WorkerRequest, WorkerResult, run_worker
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.reports.charts import line_chart
from jax_lm.reports.document import Document, Section, Verdict

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05}
"""Largest relative difference of a module's output. Measured on the built-in model: 1.1e-6 and 0.013."""

EXTRA = "pip install 'jax-diffucoder[parity]'"
ON_CPU = {"JAX_PLATFORMS": "cpu"}
"""For the process of PyTorch: JAX must not take the accelerator there."""

NUMBERS = (2, 24)
"""Rows and tokens for which outputs are compared."""

KINDS = {
    "embed_tokens": "embedding",
    "input_layernorm": "input norm",
    **{f"{name}_proj": name for name in "qkvo"},
    "post_attention_layernorm": "second norm",
    "mlp": "MLP",
    "norm": "final norm",
    "logits": "logits",
}
"""What an output is called in a report, by the last part of its module's name."""

BACKENDS = ("JAX", "PyTorch")
DIGITS = 8.0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far the output of one module is from PyTorch's: `largest` of one number, `relative` of norm over norm."""

    name: str
    kind: str
    layer: int | None = None
    largest: float
    relative: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What both backends measured, and how far apart their numbers are: comparison.json."""

    jax: WorkerResult
    pytorch: WorkerResult
    workload: Workload
    differences: tuple[Difference, ...]
    greedy_agreement: float
    tolerance: float

    @property
    def pairs(self) -> list[tuple[GenerationTime, GenerationTime]]:
        """The times of every cell, JAX's and PyTorch's."""
        return list(zip(self.jax.cells, self.pytorch.cells, strict=True))


def missing_packages() -> list[str]:
    """Name what PyTorch's backend needs and is not installed."""
    return [name for name in TORCH_PACKAGES if importlib.util.find_spec(name) is None]


def find_differences(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> tuple[Difference, ...]:
    """Compare every output, in the order of the model.

    Raises:
        ValueError: the two have not the same outputs, or not of the same shapes.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(f"outputs of one side alone: {', '.join(sorted(ours.keys() ^ theirs.keys()))}")
    found = []
    for name, output in ours.items():
        a, b = output.astype(np.float64), theirs[name].astype(np.float64)
        if a.shape != b.shape:
            raise ValueError(f"{name} has shape {a.shape} here and {b.shape} in PyTorch")
        layer = re.search(r"layers\.(\d+)\.", name)
        found.append(
            Difference(
                name=name,
                kind=KINDS[name.split(".")[-1]],
                layer=int(layer[1]) if layer else None,
                largest=float(np.abs(a - b).max()),
                relative=float(np.linalg.norm(a - b)) / (float(np.linalg.norm(b)) or 1.0),
            )
        )
    return tuple(sorted(found, key=model_order))


def model_order(difference: Difference) -> tuple[float | int, int]:
    """Sort outputs by layer, then kind."""
    kind = list(KINDS.values()).index(difference.kind)
    outside = -1.0 if kind == 0 else math.inf
    return outside if difference.layer is None else difference.layer, kind


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of equal tokens."""
    return float((np.asarray(ours) == np.asarray(theirs)).mean())


def compare(
    folder: Path,
    dtype: str,
    workload: Workload,
    tolerance: float,
    *,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Comparison:
    """Have JAX measured, then PyTorch on the same kind of device.

    Raises:
        ValueError: a prompt does not fit the model's context, or a backend failed.
    """
    config = DreamForCausalLM.read_config(folder)
    cells, repeats = workload.edges, workload.repeats
    for cell in cells:
        cell.require_room(config.max_position_embeddings)
    request = WorkerRequest(
        backend="jax", folder=str(folder), dtype=dtype, cells=cells, repeats=repeats, numbers=NUMBERS
    )
    report = on_progress or (lambda done, total, note: None)
    report(0, 2, "JAX")
    ours, our_outputs = run_worker(request)
    report(1, 2, "PyTorch")
    device = "cuda" if ours.about.platform == "gpu" else "cpu"
    theirs, their_outputs = run_worker(replace(request, backend="pytorch", device=device), environment=ON_CPU)
    report(2, 2, "")
    return Comparison(
        jax=ours,
        pytorch=theirs,
        workload=workload,
        differences=find_differences(our_outputs, their_outputs),
        greedy_agreement=equal_share(ours.greedy, theirs.greedy),
        tolerance=tolerance,
    )


def worst(found: Sequence[Difference]) -> Difference:
    """Return the difference that is largest relative to its output."""
    return max(found, key=lambda each: math.inf if math.isnan(each.relative) else each.relative)


def differences_within(found: Sequence[Difference], tolerance: float) -> tuple[int, str]:
    """Count the outputs within the tolerance, which what is not a number is not, and say which is farthest."""
    most = worst(found)
    return sum(each.relative <= tolerance for each in found), f"{most.relative:.1e} ({most.name})"


def numbers_verdict(found: Sequence[Difference], tolerance: float) -> Verdict:
    """Judge whether every output is within the tolerance."""
    within, largest = differences_within(found, tolerance)
    measured = f"{within} of {len(found)} outputs; largest {largest}"
    wanted = f"relative difference at most {tolerance:g}"
    return Verdict("numbers as in PyTorch", wanted, measured, within == len(found))


def comparison_verdicts(result: Comparison) -> list[Verdict]:
    """Judge what a change to this port would have to show."""
    ratios = [a.tokens_per_second / b.tokens_per_second for a, b in result.pairs]
    share, is_exact = result.greedy_agreement, result.jax.dtype == "float32"
    slowest = f"{min(ratios):.2f} to {max(ratios):.2f} times"
    load = result.jax.load_seconds / result.pytorch.load_seconds
    return [
        numbers_verdict(result.differences, result.tolerance),
        # In bfloat16 nearly equal candidates change places, on either backend.
        Verdict("greedy tokens as in PyTorch", "all, in float32", f"{share:.1%}", share == 1.0 if is_exact else None),
        Verdict("generation at least as fast", "every batch and length", slowest, min(ratios) >= 1),
        Verdict("loading at least as fast", "at most PyTorch's time", f"{load:.2f} of it", load <= 1),
    ]


def comparison_report(result: Comparison, name: str) -> Document:
    """Lay out a comparison of the model of that name."""
    packages = ", ".join(f"{key} {value}" for key, value in result.pytorch.packages.items())
    # The command is that of the worker.
    metadata = {key: value for key, value in result.jax.about.metadata.items() if key != "command"}
    return Document(
        title="PyTorch and JAX, side by side",
        metadata={
            "model": f"{name}, {result.jax.dtype}",
            **metadata,
            "PyTorch": f"{packages} on {result.pytorch.device}",
            "generation": "published settings (temperature 0.2, top_p 0.95, top_k 50, entropy), one step per token, "
            f"whole canvas, {result.workload.new_tokens[0]} new tokens; medians of {result.workload.repeats}",
        },
        verdicts=comparison_verdicts(result),
        sections=[loading_section(result), *speed_sections(result), *number_sections(result.differences)],
    )


def loading_section(result: Comparison) -> Section:
    """Lay out time and memory of each backend."""
    text = (
        "On a CPU memory includes pages of the checkpoint that are mapped into it, and JAX with its compiler; the "
        "weights of a small model may hide in what the imports had freed."
    )
    return table_section("Loading and memory", (result.jax, result.pytorch), ("about", "dtype", "device"), text=text)


def speed_sections(result: Comparison) -> list[Section]:
    """Lay out latency by prompt length at batch 1, and tokens per second by batch at the first length."""
    shortest, sizes = result.workload.prompt_tokens[0], result.workload.batch_sizes
    lengths = [pair for pair in result.pairs if pair[0].batch == 1]
    batches = [pair for pair in result.pairs if pair[0].prompt_tokens == shortest and pair[0].batch in sizes]
    batches.sort(key=lambda pair: pair[0].batch)
    latency = [
        [str(a.prompt_tokens), f"{a.seconds:.3f}", f"{b.seconds:.3f}", f"{b.seconds / a.seconds:.2f}",
         f"{a.forward_seconds * 1e3:.1f}", f"{b.forward_seconds * 1e3:.1f}", f"{a.first_seconds:.2f}"]
        for a, b in lengths
    ]  # fmt: skip
    throughput = [
        [str(a.batch), f"{a.tokens_per_second:,.1f}", f"{b.tokens_per_second:,.1f}",
         f"{a.tokens_per_second / b.tokens_per_second:.2f}"]
        for a, b in batches
    ]  # fmt: skip
    seconds = {name: [(pair[i].prompt_tokens, pair[i].seconds) for pair in lengths] for i, name in enumerate(BACKENDS)}
    rates = {name: [(pair[i].batch, pair[i].tokens_per_second) for pair in batches] for i, name in enumerate(BACKENDS)}
    return [
        Section(
            title="Latency by prompt length",
            text="One prompt, from the call to the last token. A forward pass computes the logits of every position.",
            columns=("prompt tokens", "JAX, s", "PyTorch, s", "times as fast", "JAX forward, ms",
                     "PyTorch forward, ms", "JAX, first call with compilation, s"),
            rows=latency,
            picture=scaled_chart("Seconds per answer", "prompt tokens", "seconds", seconds),
            name="latency",
        ),
        Section(
            title="Tokens per second by batch",
            text=f"Prompts of {shortest} tokens.",
            columns=("batch", "JAX, tokens/s", "PyTorch, tokens/s", "times as fast"),
            rows=throughput,
            picture=scaled_chart("Tokens per second", "batch", "tokens/s", rates),
            name="throughput",
        ),
    ]  # fmt: skip


def number_sections(found: Sequence[Difference]) -> list[Section]:
    """Lay out relative differences, layer by layer and kind by kind."""
    by_place = {(each.layer, each.kind): each.relative for each in found if each.layer is not None}
    layers = sorted({layer for layer, _ in by_place})
    kinds = list(dict.fromkeys(kind for _, kind in by_place))
    rows = [[f"layer {i}", *(f"{by_place[i, kind]:.1e}" for kind in kinds)] for i in layers]
    others = [each for each in found if each.layer is None]
    # Equal outputs agree in all digits that float32 has.
    digits = {
        kind: [(i, min(DIGITS, -math.log10(max(by_place[i, kind], 10**-DIGITS)))) for i in layers] for kind in kinds
    }
    text = "Norm of the difference over the norm of PyTorch's output, on random tokens."
    return [
        Section(title="Numbers outside of the layers", text=text, columns=("output", "relative", "largest absolute"),
                rows=[[each.kind, f"{each.relative:.1e}", f"{each.largest:.1e}"] for each in others]),
        Section(title="Numbers by layer", text=text, columns=("", *kinds), rows=rows, name="digits",
                picture=line_chart("Decimal digits that agree", "layer", "digits", digits, top=DIGITS)),
    ]  # fmt: skip

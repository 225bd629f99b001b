"""Compare PyTorch and JAX on the same checkpoint and machine: time, memory, module outputs.

Each backend runs in its own process, one after the other (`worker`). Entry command:
`diffucoder compare`.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf, isnan, log10
from pathlib import Path

import numpy as np

from jax_lm.benchmark.machine import machine_lines
from jax_lm.benchmark.settings import Workload
from jax_lm.benchmark.worker import TORCH_PACKAGES, WorkerRequest, run_worker
from jax_lm.checkpoints.stored import HostArrays
from jax_lm.config import DreamConfig
from jax_lm.host.terminal import Report
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.reports.document import Document, Section, Verdict
from jax_lm.reports.tables import Measurements, Row, row_chart, table_section

# Largest relative difference of a module's output. Measured on the built-in model: 1.1e-6 and
# 0.013.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.05}

EXTRA = "pip install 'jax-diffucoder[parity]'"

# Decimal digits of float32: the charts of agreement end here.
DIGITS = 8.0
# Values of a generation that are equal in all rows, or not compared.
NOT_SHOWN = ("preset", "new_tokens", "compilations", "recompilations", "tokens_per_forward")


def missing_packages() -> list[str]:
    """List the packages that PyTorch's backend needs and that are not installed."""
    return [name for name in TORCH_PACKAGES if importlib.util.find_spec(name) is None]


def find_differences(ours: HostArrays, theirs: HostArrays) -> Measurements:
    """Compare every output.

    Returns:
        A row for each module in the order of `ours`: `kind` is the last part of its name,
        `largest` the largest difference of one number, `relative` the norm of the difference over
        the norm of PyTorch's output.

    Raises:
        ValueError: the two have different outputs, or outputs of different shapes.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(
            f"outputs of one backend alone: {', '.join(sorted(ours.keys() ^ theirs.keys()))}"
        )
    rows = []
    for name, output in ours.items():
        # In float64, so that the comparison adds no rounding of its own.
        a = output.astype(np.float64)
        b = theirs[name].astype(np.float64)
        if a.shape != b.shape:
            raise ValueError(f"{name} has shape {a.shape} here and {b.shape} in PyTorch")
        layer = re.search(r"layers\.(\d+)\.", name)
        rows.append(
            {
                "name": name,
                "kind": name.split(".")[-1],
                "layer": int(layer[1]) if layer else None,
                "largest": float(np.abs(a - b).max()),
                # An output of zeros has no norm to relate to.
                "relative": float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0)),
            }
        )
    return rows


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of equal tokens."""
    return float(np.equal(ours, theirs).mean())


def compare(
    folder: Path,
    dtype: str,
    workload: Workload,
    tolerance: float,
    *,
    on_progress: Report | None = None,
) -> Row:
    """Measure JAX, then PyTorch on the same kind of device; returns the content of comparison.json.

    Raises:
        ValueError: a prompt does not fit the model's context, or a backend failed.
    """
    config = DreamForCausalLM.read_config(folder)
    require_dream(config)
    for cell in workload.edges:
        cell.require_room(config.max_position_embeddings)
    request = WorkerRequest(
        backend="jax",
        folder=folder,
        dtype=dtype,
        cells=workload.edges,
        repeats=workload.repeats,
        compares=True,
    )
    # One after the other: in parallel they would share the machine.
    report = on_progress or (lambda done, total, note: None)
    report(0, 2, "JAX")
    ours, our_outputs = run_worker(request)
    report(1, 2, "PyTorch")
    device = "cuda" if ours["about"]["platform"] == "gpu" else "cpu"
    request = replace(request, backend="pytorch", device=device, platform="cpu")
    theirs, their_outputs = run_worker(request)
    return {
        "jax": ours,
        "pytorch": theirs,
        "workload": asdict(workload),
        "differences": find_differences(our_outputs, their_outputs),
        "greedy_agreement": equal_share(ours["greedy"], theirs["greedy"]),
        "tolerance": tolerance,
    }


def require_dream(config: DreamConfig):
    """Raise ValueError for a model that PyTorch's side, Qwen2 under full attention, does not compute."""
    family = config.family
    is_dream = family.is_diffusion and family.shifts and config.architecture.has_bias
    if not is_dream or config.attention_block is not None:
        raise ValueError(f"{family.name}: only models that compute as Dream does can be compared")


def worst(differences: Measurements) -> Row:
    """Return the difference that is largest relative to its output; nan counts as the largest."""
    return max(differences, key=lambda row: inf if isnan(row["relative"]) else row["relative"])


def differences_within(differences: Measurements, tolerance: float) -> tuple[int, str]:
    """Count the outputs within the tolerance (nan is not), and describe the largest difference."""
    within = sum(row["relative"] <= tolerance for row in differences)
    return within, "{relative:.1e} ({name})".format_map(worst(differences))


def numbers_verdict(differences: Measurements, tolerance: float) -> Verdict:
    """Judge whether every output is within the tolerance."""
    within, largest = differences_within(differences, tolerance)
    return Verdict(
        "numbers as in PyTorch",
        f"relative difference at most {tolerance:g}",
        f"{within} of {len(differences)} outputs; largest {largest}",
        within == len(differences),
    )


def generation_rows(result: Row) -> Measurements:
    """Return a row for each generation and backend; `times` is PyTorch's time over JAX's."""
    rows = []
    for ours, theirs in zip(result["jax"]["cells"], result["pytorch"]["cells"], strict=True):
        times = theirs["seconds"] / ours["seconds"]
        rows += [{"backend": "JAX", **ours, "times": times}, {"backend": "PyTorch", **theirs}]
    return rows


def comparison_verdicts(result: Row) -> list[Verdict]:
    """Judge whether JAX computes the same as PyTorch, and is at least as fast."""
    ours = result["jax"]
    theirs = result["pytorch"]
    share = result["greedy_agreement"]
    times = [row["times"] for row in generation_rows(result) if "times" in row]
    load = ours["load_seconds"] / theirs["load_seconds"]
    # In bfloat16, nearly equal candidates change places with either backend: no verdict.
    is_same = share == 1.0 if ours["dtype"] == "float32" else None
    speed = f"{min(times):.2f} to {max(times):.2f} times"
    return [
        numbers_verdict(result["differences"], result["tolerance"]),
        Verdict("greedy tokens as in PyTorch", "all, in float32", f"{share:.1%}", is_same),
        Verdict("generation at least as fast", "every batch and length", speed, min(times) >= 1),
        Verdict(
            "loading at least as fast", "at most PyTorch's time", f"{load:.2f} of it", load <= 1
        ),
    ]


def comparison_report(result: Row, name: str) -> Document:
    """Return the report of a comparison; `name` is the model's."""
    ours = result["jax"]
    theirs = result["pytorch"]
    workload = result["workload"]
    packages = ", ".join(f"{key} {value}" for key, value in theirs["packages"].items())
    # The command is that of the worker process.
    machine = machine_lines(ours["about"])
    del machine["command"]
    memory = (
        "On a CPU memory includes pages of the checkpoint that are mapped into it, and JAX with its compiler; the "
        "weights of a small model may hide in what the imports had freed."
    )
    return Document(
        title="PyTorch and JAX, side by side",
        metadata={
            "model": f"{name}, {ours['dtype']}",
            **machine,
            "PyTorch": f"{packages} on {theirs['device']}",
            "generation": "published settings (temperature 0.2, top_p 0.95, top_k 50, entropy), one step per token, "
            f"whole canvas, {workload['new_tokens'][0]} new tokens; medians of {workload['repeats']}",
        },
        verdicts=comparison_verdicts(result),
        sections=[
            table_section(
                "Loading and memory", (ours, theirs), leave_out=("dtype", "device"), text=memory
            ),
            *speed_sections(result),
            *number_sections(result["differences"]),
        ],
    )


def speed_sections(result: Row) -> list[Section]:
    """Return two tables with charts.

    Latency by prompt length at batch 1, and tokens per second by batch at the first length.
    """
    workload = result["workload"]
    rows = generation_rows(result)
    first = workload["prompt_tokens"][0]
    lengths = [row for row in rows if row["batch"] == 1]
    batches = [
        row
        for row in rows
        if row["prompt_tokens"] == first and row["batch"] in workload["batch_sizes"]
    ]
    batches.sort(key=lambda row: row["batch"])
    return [
        table_section(
            "Latency by prompt length",
            lengths,
            leave_out=NOT_SHOWN,
            text="One prompt, from the call to the last token; the first call compiles. A forward pass computes the "
            "logits of every position. `times` is PyTorch's time over JAX's.",
            picture=row_chart(
                "Seconds per answer", lengths, "prompt_tokens", "seconds", by="backend"
            ),
            name="latency",
        ),
        table_section(
            "Tokens per second by batch",
            batches,
            leave_out=NOT_SHOWN,
            text=f"Prompts of {first} tokens.",
            picture=row_chart(
                "Tokens per second", batches, "batch", "tokens_per_second", by="backend"
            ),
            name="throughput",
        ),
    ]


def number_sections(differences: Measurements) -> list[Section]:
    """Return relative differences: a table of outputs outside of the layers, and layers by kind."""
    outside = []
    chart_rows = []
    by_layer = {}
    for row in differences:
        layer = row["layer"]
        relative = row["relative"]
        if layer is None:
            outside.append(row)
            continue
        # One row per layer, one column per kind of output
        by_layer.setdefault(layer, {"": f"layer {layer}"})[row["kind"]] = f"{relative:.1e}"
        # Equal outputs have no difference to take the logarithm of: they agree in all digits.
        digits = min(-log10(max(relative, 10**-DIGITS)), DIGITS)
        chart_rows.append(row | {"digits": digits})
    text = "Norm of the difference over the norm of PyTorch's output, on random tokens."
    picture = row_chart(
        "Decimal digits that agree", chart_rows, "layer", "digits", by="kind", top=DIGITS
    )
    return [
        table_section("Numbers outside of the layers", outside, leave_out=("name",), text=text),
        table_section(
            "Numbers by layer", [*by_layer.values()], text=text, picture=picture, name="digits"
        ),
    ]

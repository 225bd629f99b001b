"""Our presets against PyTorch, with the published loop and with Fast-dLLM's: same weights, prompts,
steps and seed.

    python experiments/vs_pytorch.py --threads 2 --out docs/results/measurements/vs_pytorch.json
    python experiments/vs_pytorch.py --pytorch-model P --dtype bfloat16

The references are `jax_lm.benchmark.torch_reference`, whose greedy tokens with top_k are compared
with ours (without it, entropies of random weights differ by less than float32 resolves), and
`experiments.fast_dllm`; `diffucoder compare` shows the numbers of both module by module. Random weights make
flat logits, of which a nucleus without top_k holds nearly the whole vocabulary.

Contestants take turns, so that a busy machine slows all; medians after a warm-up. It does not slow
them alike: PyTorch's threads wait for each other, so that another process on one of their cores
costs it far more. Compare on an idle machine (the load before is recorded), or with `--threads 1`.
Needs torch and transformers (extra `parity`).
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_lm.host.declared import run_main

# Both frameworks share one accelerator: JAX must not take its memory beforehand.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
import transformers

from experiments.fast_dllm import TorchLoops
from experiments.turns import time_in_turns
from jax_lm.benchmark.backend import (
    Answers,
    JaxBackend,
    greedy_options,
    model_card_options,
    random_model,
    random_prompts,
)
from jax_lm.benchmark.machine import about
from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.speed import generation_row
from jax_lm.config import SHAPES
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import require_sizes
from jax_lm.reports.document import table
from jax_lm.reports.tables import Row, table_section

OPTIONS = {
    "readme": model_card_options,
    "nucleus": lambda *sizes: replace(model_card_options(*sizes), top_k=None),
    "greedy": lambda *sizes: replace(greedy_options(*sizes), top_k=None),
}
"""`readme`: what a user of the model card gets, its hidden top_k of 50 included; the others filter by none."""

TIMES = {
    "contestant": "{name}",
    "batch": "{batch}",
    "new_tokens": "{new_tokens}",
    "forwards": "{forwards}",
    "seconds": "{seconds:,.3f}",
    "tokens_per_second": "{tokens_per_second:,.3f}",
}
RATIOS = {
    "comparison": "{comparison}",
    "ratio": "{ratio:.2f}",
    "target": "{target:g}",
    "": "{verdict}",
}
PUBLISHED, FAST_DLLM = "PyTorch", "Fast-dLLM"
PEERS = {"exact": PUBLISHED, "fast": FAST_DLLM}
"""Presets, and what a user of PyTorch would run instead."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to compare.

    Attributes:
        pytorch_model: checkpoint folder, loaded by both; random weights with the published
            vocabulary if not given.
        dtype: float32 or bfloat16, of both.
        settings: which of `OPTIONS` to compare.
        prompt_tokens: length of the random prompts.
        new_tokens: length of the answers, and number of steps.
        long_new_tokens: the same for exact against fast.
        batch: rows of the comparison with PyTorch.
        many: rows of the batch that is compared with batch 1 in window mode.
        repeats: timed rounds.
        threads: CPU cores that both may use; all if not given.
        out: JSON file for the result; a Markdown table goes to standard output.
    """

    pytorch_model: Path | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    settings: tuple[Literal["readme", "nucleus", "greedy"], ...] = ("readme", "nucleus", "greedy")
    prompt_tokens: int = 64
    new_tokens: int = 64
    long_new_tokens: int = 256
    batch: int = 1
    many: int = 8
    repeats: int = 3
    threads: int | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        require_sizes(
            self, "prompt_tokens", "new_tokens", "long_new_tokens", "batch", "many", "repeats"
        )
        if self.threads is not None:
            require_sizes(self, "threads")


@dataclass(frozen=True)
class Contestant:
    """A generation on one backend, a peer or a preset; settings are those of `OPTIONS`."""

    backend: str
    settings: str
    cell: Cell

    def call(
        self, backend: JaxBackend | TorchLoops, prompts: np.ndarray, steps: int | None = None
    ) -> Answers:
        """Generate; `steps` is smaller where a short call is warm-up enough."""
        options = OPTIONS[self.settings](self.cell.new_tokens, self.cell.preset)
        return backend.generate(prompts, replace(options, num_steps=steps))


def contestants(arguments: Arguments) -> dict[str, Contestant]:
    """Everything that is measured, by name."""

    def entry(backend: str, settings: str, batch: int, new_tokens: int) -> tuple[str, Contestant]:
        preset = {PUBLISHED: "exact", FAST_DLLM: "fast"}.get(backend, backend)
        cell = Cell(
            batch=batch, prompt_tokens=arguments.prompt_tokens, new_tokens=new_tokens, preset=preset
        )
        return f"{backend} {settings} {batch} {new_tokens}", Contestant(backend, settings, cell)

    new, long = arguments.new_tokens, arguments.long_new_tokens
    pairs = [name for pair in PEERS.items() for name in pair]
    entries = dict(
        [entry(name, settings, arguments.batch, new) for settings in OPTIONS for name in pairs]
        + [entry("exact", "readme", 1, long)]
        + [
            entry(name, settings, 1, long)
            for settings in ("readme", "greedy")
            for name in ("fast", FAST_DLLM)
        ]
        + [entry("fast", "readme", 1, new), entry("fast", "readme", arguments.many, new)]
    )
    return {name: each for name, each in entries.items() if each.settings in arguments.settings}


def ratios(times: dict[str, Row], arguments: Arguments) -> list[dict[str, Any]]:
    """Return the comparisons: tokens per second over tokens per second, and the target of the
    ratio.
    """
    size, long = f"{arguments.batch} {arguments.new_tokens}", f"1 {arguments.long_new_tokens}"
    many, one = f"{arguments.many} {arguments.new_tokens}", f"1 {arguments.new_tokens}"
    comparisons = [
        (
            f"{preset} over {peer}, {settings}",
            f"{preset} {settings} {size}",
            f"{peer} {settings} {size}",
            target,
        )
        for settings, target in (("readme", 4.0), ("nucleus", 1.0), ("greedy", 1.0))
        for preset, peer in PEERS.items()
    ]
    comparisons += [
        (f"fast over {FAST_DLLM}, {settings}, {arguments.long_new_tokens} new", f"fast {settings} {long}",
         f"{FAST_DLLM} {settings} {long}", 1.0)
        for settings in ("readme", "greedy")
    ]  # fmt: skip
    comparisons += [
        (
            f"fast over exact, readme, {arguments.long_new_tokens} new",
            f"fast readme {long}",
            f"exact readme {long}",
            2.0,
        ),
        (
            f"fast, readme, batch {arguments.many} over batch 1",
            f"fast readme {many}",
            f"fast readme {one}",
            3.0,
        ),
    ]
    return [
        {
            "comparison": name,
            "ratio": times[a]["tokens_per_second"] / times[b]["tokens_per_second"],
            "target": target,
        }
        for name, a, b, target in comparisons
        if a in times
    ]


def compare(arguments: Arguments, folder: Path) -> dict[str, Any]:
    """Load both, measure, and put the result together."""
    config = DreamForCausalLM.read_config(folder)
    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    theirs = TorchLoops(folder, config, arguments.dtype, device=device)
    ours, machine, named = JaxBackend.load(folder, arguments.dtype), about(), contestants(arguments)
    calls: list[Callable[[], Answers]] = []
    warm_ups: list[Callable[[], Answers]] = []
    for each in named.values():
        prompts = random_prompts(config, each.cell.batch, each.cell.prompt_tokens, seed=0)
        is_torch = each.backend in PEERS.values()
        call = partial(each.call, theirs if is_torch else ours, prompts)
        calls.append(call)
        # Nothing is compiled in PyTorch.
        warm_ups.append(partial(call, min(2, each.cell.new_tokens)) if is_torch else call)
    timings = dict(
        zip(named, time_in_turns(calls, arguments.repeats, warm_ups=warm_ups), strict=True)
    )
    times = {name: generation_row(named[name].cell, timing) for name, timing in timings.items()}
    prompts = random_prompts(config, arguments.batch, arguments.prompt_tokens, seed=0)
    exact, reference = (
        backend.generate(prompts, greedy_options(arguments.new_tokens)).tokens
        for backend in (ours, theirs)
    )
    machine |= {"torch": torch.__version__, "transformers": transformers.__version__}
    machine |= {"torch_device": device, "torch_threads": torch.get_num_threads()}
    return {
        "about": machine,
        "arguments": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
        },
        "greedy_agreement": float((exact == reference).mean()),
        "ratios": ratios(times, arguments),
        "rows": [
            {"name": f"{named[name].backend} {named[name].settings}"} | time
            for name, time in times.items()
        ],
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the table of times, and the ratios with their targets."""
    ratios = [
        row | {"verdict": "met" if row["ratio"] >= row["target"] else "missed"}
        for row in result["ratios"]
    ]
    times = table_section("Times", result["rows"], TIMES)
    targets = table_section("Ratios", ratios, RATIOS)
    facts = ", ".join(
        f"{name} {value}" for name, value in result["about"].items() if name != "command"
    )
    agreed = f"greedy tokens of exact equal to PyTorch's: {result['greedy_agreement']:.1%}"
    last = f"{result['arguments']['dtype']}; {agreed}; {facts}"
    return "\n".join(
        [*table(times.columns, times.rows), "", *table(targets.columns, targets.rows), "", last]
    )


def main(arguments: Arguments) -> None:
    """Compare and print the table."""
    if arguments.threads is not None:
        # XLA counts the cores that the process may use, when it starts.
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.threads]))
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.pytorch_model or Path(temporary) / "random"
        if arguments.pytorch_model is None:
            random_model(SHAPES["small"], arguments.dtype).save_pretrained(folder)
        result = compare(arguments, folder)
    print(markdown(result))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(run_main(Arguments))

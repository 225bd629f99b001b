"""`diffucoder experiment`: what a model does on this accelerator, as one resumable run that ends in a report."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jax_lm import terminal
from jax_lm.arguments.benchmark import Experiment
from jax_lm.benchmark import experiment
from jax_lm.benchmark.experiment import Settings
from jax_lm.benchmark.experiment_report import document
from jax_lm.benchmark.parity import read
from jax_lm.checkpoints import huggingface
from jax_lm.commands.compare import show
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.run_folder import weights_digest, write_whole
from jax_lm.reports.steps import FAILED, Steps


def run(arguments: Experiment) -> int:
    settings = settings_of(arguments)
    if arguments.recorded is not None:
        read(arguments.recorded)
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    steps = experiment.Experiment(folder, settings).steps()
    name = arguments.model or "built-in model"
    with Steps(arguments.out, identity_of(arguments, settings, folder)) as kept:
        if kept.outcomes:
            Console(stderr=True).print(f"going on after {len(kept.outcomes)} steps of an earlier run")
        with terminal.progress("experiment") as report:
            kept.run(steps, on_step=report)
        found = document(kept.outcomes, steps, name)
        write_results(arguments, kept)
        found.write(arguments.out, "report")
        show(found)
    Console(highlight=False).print(f"report: {arguments.out / 'report.html'}", markup=False, soft_wrap=True)
    return 1 if any(outcome.state == FAILED for outcome in kept.outcomes.values()) else 0


def settings_of(arguments: Experiment) -> Settings:
    return Settings(
        model=arguments.model,
        dtype=arguments.dtype,
        recorded=None if arguments.recorded is None else str(arguments.recorded),
        new_tokens=arguments.new_tokens,
        batch_sizes=arguments.batch_sizes,
        largest_batch=arguments.largest_batch,
        tasks=arguments.tasks,
        repeats=arguments.repeats,
        limit=arguments.limit,
    )


def identity_of(arguments: Experiment, settings: Settings, folder: Path) -> dict[str, Any]:
    """What the results depend on: settings, weights and devices."""
    devices = f"{len(jax.devices())} x {jax.devices()[0].device_kind}"
    return asdict(settings) | {"weights": f"sampled sha256:{weights_digest(folder)}", "devices": devices}


def write_results(arguments: Experiment, kept: Steps) -> None:
    """results.json: what every step found."""
    results = {name: asdict(outcome) for name, outcome in kept.outcomes.items()}
    write_whole(arguments.out / "results.json", json.dumps(results, indent=1) + "\n")

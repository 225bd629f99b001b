"""`diffucoder experiment`: what a model does on this accelerator, as one resumable run that ends in a report."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jax_lm import terminal
from jax_lm.arguments.benchmark import Experiment
from jax_lm.benchmark.experiment import ExperimentSteps
from jax_lm.benchmark.experiment_report import experiment_report
from jax_lm.benchmark.parity import read_golden
from jax_lm.benchmark.settings import ExperimentSettings
from jax_lm.checkpoints import huggingface
from jax_lm.commands.compare import print_report
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.reports.run_folder import weights_digest, write_whole
from jax_lm.reports.steps import FAILED, Steps


def run(arguments: Experiment) -> int:
    settings, out = arguments.settings, arguments.out
    if settings.recorded is not None:
        read_golden(settings.recorded)
    folder = huggingface.resolve(settings.model or BUILTIN_MODEL)
    steps = ExperimentSteps(folder, settings).steps()
    name = settings.model or "built-in model"
    with Steps(out, run_identity(settings, folder)) as kept:
        # What an earlier run found is read before anything is measured.
        experiment_report(kept.outcomes, steps, name)
        if kept.outcomes:
            Console(stderr=True).print(f"going on after {len(kept.outcomes)} steps of an earlier run")
        with terminal.progress("experiment") as report:
            kept.run(steps, on_step=report)
        document = experiment_report(kept.outcomes, steps, name)
        results = {name: asdict(outcome) for name, outcome in kept.outcomes.items()}
        write_whole(out / "results.json", json.dumps(results, indent=1) + "\n")
        document.write(out, "report")
        print_report(document)
    Console(highlight=False).print(f"report: {out / 'report.html'}", markup=False, soft_wrap=True)
    return 1 if any(outcome.state == FAILED for outcome in kept.outcomes.values()) else 0


def run_identity(settings: ExperimentSettings, folder: Path) -> dict[str, Any]:
    """Return everything that the results depend on: settings, weights and devices."""
    return asdict(settings) | {
        "recorded": None if settings.recorded is None else str(settings.recorded),
        "weights": f"sampled sha256:{weights_digest(folder)}",
        "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
    }

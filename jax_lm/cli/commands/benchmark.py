"""The commands that measure: `diffucoder bench`, `compare`, `experiment`, `parity check`, `parity record`."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jax_lm.benchmark import comparison
from jax_lm.benchmark.backend import random_model
from jax_lm.benchmark.experiment import ExperimentSteps
from jax_lm.benchmark.experiment_report import SCALE_CRITERIA, experiment_report
from jax_lm.benchmark.frontier import frontier_report, measure_frontier
from jax_lm.benchmark.machine import Machine, PeakMemory, machine_limits
from jax_lm.benchmark.parity import FILES, TOLERANCE, check_parity, check_training_parity, read_golden, read_recording
from jax_lm.benchmark.records import plain_data
from jax_lm.benchmark.scale import ScaleSteps
from jax_lm.benchmark.settings import ExperimentSettings
from jax_lm.benchmark.speed import MeasuredModel, Speed, measure_speed, speed_report
from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.benchmark import Bench, Compare, Experiment, ParityCheck, ParityRecord
from jax_lm.config import SHAPES
from jax_lm.diffusion.sampler import Sampler
from jax_lm.evaluation.problems import suite_problems
from jax_lm.host import terminal
from jax_lm.host.files import output_folder, require_place, write_whole
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning.memory import parameter_count
from jax_lm.reports.document import Document, print_report
from jax_lm.reports.run_folder import weights_digest
from jax_lm.reports.steps import FAILED, Step, Steps


def run_bench(arguments: Bench) -> int:
    out = arguments.out
    if out:
        output_folder(out)
    if arguments.frontier and out:
        return run_frontier(arguments, out)
    about, model = Machine.here(), chosen_model(arguments)
    limits = machine_limits(model.dtype)
    start = time.perf_counter()
    sampler = load_sampler(arguments, model.dtype)
    load_seconds = time.perf_counter() - start
    with terminal.progress("measuring") as report:
        generations, forwards = measure_speed(
            sampler, arguments.presets, arguments.workload, limits, on_progress=report
        )
    speed = Speed(
        about=about,
        model=model,
        workload=arguments.workload,
        limits=limits,
        load_seconds=load_seconds,
        peak_memory=PeakMemory().source,
        generations=generations,
        forwards=forwards,
    )
    document = speed_report(speed)
    if out:
        write_whole(out / "bench.json", json.dumps(plain_data(speed), indent=2) + "\n")
        document.write(out, "bench")
    print_report(document, with_sections=True)
    return 0


def run_frontier(arguments: Bench, out: Path) -> int:
    """Measure quality against evaluations at every setting of the frontier."""
    quality = arguments.quality
    problems, total = suite_problems(quality.suite, quality.data, quality.limit)
    engine = DiffuCoderInference(arguments.model, dtype=arguments.dtype)
    with terminal.progress("measuring") as report:
        points = measure_frontier(engine, problems, quality, out, model=arguments.model, on_progress=report)
    metadata = {
        "model": f"{arguments.model or 'built-in model'}, {engine.parameter_count:,} parameters, {engine.dtype}",
        "problems": f"{len(problems)} of {total} of {quality.suite}",
        "decoding": f"{quality.max_new_tokens} new tokens, temperature {quality.temperature:g}, seed {quality.seed}",
        **Machine.here().metadata,
    }
    document = frontier_report(points, metadata)
    about = {"metadata": metadata, "points": [plain_data(point) for point in points]}
    write_whole(out / "frontier.json", json.dumps(about, indent=2) + "\n")
    document.write(out, "frontier")
    print_report(document, with_sections=True)
    return 0


def chosen_model(arguments: Bench) -> MeasuredModel:
    """Name the model, and choose its dtype."""
    if arguments.random_shape:
        config, name = SHAPES[arguments.random_shape], f"random weights of the shape {arguments.random_shape}"
    else:
        config = DreamForCausalLM.read_config(huggingface.resolve(arguments.model or BUILTIN_MODEL))
        name = arguments.model or "built-in model"
    # The weights of 7B parameters hardly fit anywhere in float32.
    fitting = "bfloat16" if arguments.random_shape == "7b" else fitting_dtype(parameter_count(config))
    return MeasuredModel(name=name, parameters=parameter_count(config), dtype=arguments.dtype or fitting)


def load_sampler(arguments: Bench, dtype: str) -> Sampler:
    """Load the model, or make it, on the device."""
    if arguments.random_shape:
        model = random_model(SHAPES[arguments.random_shape], dtype)
    else:
        with terminal.progress("loading") as report:
            folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
            model = DreamForCausalLM.from_pretrained(folder, dtype=dtype, on_progress=report)
    sampler = Sampler(model)
    jax.block_until_ready(sampler.params)
    return sampler


def run_compare(arguments: Compare) -> int:
    out, tolerance = arguments.out, arguments.tolerance or comparison.TOLERANCES[arguments.dtype]
    if lacking := comparison.missing_packages():
        missing = " and ".join(lacking)
        raise ValueError(f"compare needs {missing}, which this environment lacks: {comparison.EXTRA}")
    if out:
        require_place(out)
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    with terminal.progress("comparing") as report:
        result = comparison.compare(folder, arguments.dtype, arguments.workload, tolerance, on_progress=report)
    document = comparison.comparison_report(result, arguments.model or "built-in model")
    if out:
        output_folder(out)
        write_whole(out / "comparison.json", json.dumps(plain_data(result), indent=1) + "\n")
        document.write(out, "comparison")
    print_report(document)
    if out:
        Console(highlight=False).print(f"report: {out / 'comparison.html'}", markup=False, soft_wrap=True)
    return 1 if document.verdicts[0].met is False else 0


def run_experiment(arguments: Experiment) -> int:
    settings, out = arguments.settings, arguments.out
    if arguments.full:
        return run_full_experiment(arguments)
    if settings.recorded is not None:
        read_golden(settings.recorded)
    folder = huggingface.resolve(settings.model or BUILTIN_MODEL)
    steps = ExperimentSteps(folder, settings).steps()
    with Steps(out, run_identity(settings, folder)) as kept:
        return run_steps(kept, steps, out, partial(experiment_report, name=settings.model or "built-in model"))


def run_full_experiment(arguments: Experiment) -> int:
    """Measure the machine at full size, as far as the minutes reach."""
    scale, out = arguments.scale, arguments.out
    settings = asdict(arguments.settings) | asdict(scale)
    identity = {name: value for name, value in settings.items() if name not in ("minutes", "timeout")}
    name = f"random weights of the shape {scale.random_shape}"
    lay_out = partial(experiment_report, name=name, criteria=SCALE_CRITERIA)
    with Steps(out, {"full": True, **identity, "devices": devices()}) as kept:
        return run_steps(kept, ScaleSteps(arguments.settings, scale).steps(), out, lay_out, seconds=60 * scale.minutes)


def run_steps(
    kept: Steps, steps: Sequence[Step], out: Path, lay_out: Callable[..., Document], *, seconds: float = math.inf
) -> int:
    """Do what is left of the steps, and write what all of them found."""
    # What an earlier run found is read before anything is measured.
    lay_out(kept.outcomes, steps)
    if kept.outcomes:
        Console(stderr=True).print(f"going on after {len(kept.outcomes)} steps of an earlier run")
    with terminal.progress("experiment") as report:
        left = kept.run(steps, seconds=seconds, on_step=report)
    document = lay_out(kept.outcomes, steps)
    results = {name: asdict(outcome) for name, outcome in kept.outcomes.items()}
    write_whole(out / "results.json", json.dumps(results, indent=1) + "\n")
    document.write(out, "report")
    print_report(document)
    console = Console(highlight=False)
    console.print(f"report: {out / 'report.html'}", markup=False, soft_wrap=True)
    if left:
        console.print(f"{len(left)} steps are left for the same command: {', '.join(left)}", soft_wrap=True)
    return 1 if any(outcome.state == FAILED for outcome in kept.outcomes.values()) else 0


def run_identity(settings: ExperimentSettings, folder: Path) -> dict[str, Any]:
    """Return everything that the results depend on: settings, weights and devices."""
    return asdict(settings) | {
        "recorded": None if settings.recorded is None else str(settings.recorded),
        "weights": f"sampled sha256:{weights_digest(folder)}",
        "devices": devices(),
    }


def devices() -> str:
    """Number and kind of the devices."""
    return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"


def run_parity_check(arguments: ParityCheck) -> int:
    _, cases = read_golden(arguments.folder)
    if arguments.training:
        read_recording(arguments.folder, *FILES)
    console = Console(highlight=False)
    table = Table("compared", "measured", "allowed", "", title=f"parity with {arguments.folder}")
    failures = 0
    tolerance = TOLERANCE if arguments.tolerance is None else arguments.tolerance
    tokenizer = None if arguments.tokenizer is None else Path(arguments.tokenizer)
    findings = check_parity(arguments.folder, tolerance=tolerance, tokenizer=tokenizer)
    for finding in chain(findings, check_training_parity(arguments.folder) if arguments.training else ()):
        failures += not finding.passed
        verdict = "ok" if finding.passed else "[red]FAILED[/red]"
        table.add_row(finding.name, finding.measured, finding.allowed, verdict)
    console.print(table)
    if others := sorted(set(cases) - {"config", "generate", "fast"}):
        counts = ", ".join(f"{name} ({len(cases[name])} cases)" for name in others)
        console.print(f"not checked by this version: {counts}")
    console.print(f"{table.row_count - failures} of {table.row_count} within bounds")
    return 1 if failures else 0


def run_parity_record(arguments: ParityRecord) -> int:
    # It imports PyTorch, which the other commands do not need.
    from jax_lm.benchmark import recording

    recording.record_reference(arguments.pytorch_model, arguments.out, arguments.shape)
    print(f"recorded {len(recording.CASES)} generations to {arguments.out}")
    return 0

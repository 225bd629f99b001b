"""The commands that measure: `bench`, `compare`, `experiment` and `parity check`."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter

import jax

from jax_lm.benchmark import comparison
from jax_lm.benchmark.backend import random_model
from jax_lm.benchmark.experiment import ExperimentSteps
from jax_lm.benchmark.experiment_report import (
    CRITERIA,
    SECTIONS,
    Criterion,
    Sections,
    experiment_report,
)
from jax_lm.benchmark.machine import PeakMemory, about, machine_limits
from jax_lm.benchmark.parity import check_parity, read_golden, read_recording
from jax_lm.benchmark.speed import measure_speed, speed_report
from jax_lm.benchmark.training_parity import FILES, check_training_parity
from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.benchmark import Bench, Compare, Experiment, ParityCheck
from jax_lm.config import SHAPES
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host import terminal
from jax_lm.host.files import require_new, write_json_whole
from jax_lm.inference import fitting_dtype
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.joined import join_on_gpu
from jax_lm.planning.memory import parameter_count
from jax_lm.reports.document import Document, print_report
from jax_lm.reports.run_folder import Record, weights_digest
from jax_lm.reports.steps import FAILED, Step, Steps
from jax_lm.reports.tables import table_section


def run_bench(arguments: Bench) -> int:
    out = arguments.out
    shape = arguments.random_shape
    machine = about()
    # an unusable folder should be reported before anything is measured
    if out:
        require_new(out / "bench.json")
    if shape:
        folder = None
        config = SHAPES[shape]
        name = f"random weights of the shape {shape}"
    else:
        folder = huggingface.resolve(arguments.model)
        config = DreamForCausalLM.read_config(folder)
        name = arguments.model or "built-in model"
    count = parameter_count(config)
    # Few devices can hold 7B parameters in float32.
    dtype = arguments.dtype or ("bfloat16" if shape == "7b" else fitting_dtype(count))
    limits = machine_limits(dtype)
    # load
    start = perf_counter()
    with terminal.progress("loading") as report:
        if folder is None:
            model = random_model(config, dtype)
        else:
            model = DreamForCausalLM.from_pretrained(folder, dtype=dtype, on_progress=report)
    sampler = Sampler(join_on_gpu(model))
    # JAX transfers asynchronously: wait, as the loading time is measured
    jax.block_until_ready(sampler.params)
    load_seconds = perf_counter() - start
    presets = arguments.presets
    if presets == Bench.presets and not config.family.is_diffusion:
        # Presets change nothing when decoding left to right; one that the user names is refused.
        presets = ("exact",)
    # measure
    with terminal.progress("measuring") as report:
        rows = measure_speed(sampler, presets, arguments.workload, limits, on_progress=report)
    # report
    speed = {
        "about": machine,
        "model": {"name": name, "parameters": count, "dtype": dtype},
        "workload": asdict(arguments.workload),
        "limits": asdict(limits),
        "load_seconds": load_seconds,
        "peak_memory": PeakMemory().source,
        **rows,
    }
    document = speed_report(speed)
    if out:
        document.write(out, "bench", speed)
    print_report(document, with_sections=True)
    return 0


def run_compare(arguments: Compare) -> int:
    """Compare PyTorch and JAX; exit status 1 if an output is outside the tolerance."""
    # check everything that can be wrong before both models are loaded
    out = arguments.out
    if lacking := comparison.missing_packages():
        raise ValueError(
            f"compare needs {' and '.join(lacking)}, which this environment lacks: "
            f"{comparison.EXTRA}"
        )
    if out:
        require_new(out / "comparison.json")
    folder = huggingface.resolve(arguments.model)
    tolerance = arguments.tolerance or comparison.TOLERANCES[arguments.dtype]
    with terminal.progress("comparing") as report:
        result = comparison.compare(
            folder, arguments.dtype, arguments.workload, tolerance, on_progress=report
        )
    document = comparison.comparison_report(result, arguments.model or "built-in model")
    print_report(document)
    if out:
        document.write(out, "comparison", result)
        print(f"report: {out / 'comparison.html'}")
    # `met` is None if it could not be measured
    return 1 if document.verdicts[0].met is False else 0


def run_experiment(arguments: Experiment) -> int:
    """Run the remaining steps of the experiment and write its report.

    The exit status is 1 if a step failed.
    """
    settings = arguments.settings
    # recorded outputs should be readable before the first step
    if settings.recorded:
        read_golden(settings.recorded)
    folder = huggingface.resolve(settings.model)
    identity = asdict(settings) | {
        "recorded": settings.recorded and str(settings.recorded),
        "weights": f"sampled sha256:{weights_digest(folder)}",
    }
    # a step that took too long may have more time in the same folder
    del identity["timeout"]
    return run_steps(
        ExperimentSteps(folder, settings).steps(),
        arguments.out,
        identity,
        settings.model or "built-in model",
        CRITERIA,
        SECTIONS,
    )


def run_steps(
    steps: Sequence[Step],
    out: Path,
    identity: Record,
    name: str,
    criteria: Sequence[Criterion],
    sections: Sections,
) -> int:
    """Run the steps that are left in a folder, and write and print their report.

    Args:
        identity: settings that a resumed run must share.
        name: name of the model, for the report.
        criteria, sections: criteria and sections of the report.

    Returns:
        The exit status, 1 if a step failed.
    """
    report = partial(
        experiment_report, steps=steps, name=name, criteria=criteria, sections=sections
    )
    with Steps(
        out, identity | {"devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}"}
    ) as run:
        # Build a report first, so that unreadable results of an earlier run are found at once.
        report(run.outcomes)
        if run.outcomes:
            terminal.say(f"resuming after {len(run.outcomes)} steps of an earlier run")
        with terminal.progress("experiment") as progress:
            run.run(steps, on_step=progress)
        document = report(run.outcomes)
    # write results and report
    write_json_whole(
        out / "results.json", {name: asdict(outcome) for name, outcome in run.outcomes.items()}
    )
    document.write(out, "report")
    print_report(document)
    print(f"report: {out / 'report.html'}")
    return int(any(outcome.state == FAILED for outcome in run.outcomes.values()))


def run_parity_check(arguments: ParityCheck) -> int:
    """Print every comparison with recorded outputs; exit status 1 if one is out of bounds."""
    # recordings must be readable before anything is compared
    _, cases = read_golden(arguments.folder)
    if arguments.training:
        read_recording(arguments.folder, *FILES)
    # inference, then training if asked for
    findings = list(
        check_parity(
            arguments.folder,
            tolerance=arguments.tolerance,
            tokenizer=None if arguments.tokenizer is None else Path(arguments.tokenizer),
        )
    )
    if arguments.training:
        findings += check_training_parity(arguments.folder)
    rows = [
        asdict(finding) | {"passed": "ok" if finding.passed else "FAILED"} for finding in findings
    ]
    section = table_section(f"parity with {arguments.folder}", rows)
    print_report(Document(title="", metadata={}, sections=[section]), with_sections=True)
    # recordings of a newer version may have other kinds of cases
    if others := sorted(cases.keys() - {"config", "generate", "fast"}):
        print(
            "not checked by this version:",
            ", ".join(f"{name} ({len(cases[name])} cases)" for name in others),
        )
    passed = sum(finding.passed for finding in findings)
    print(f"{passed} of {len(rows)} within bounds")
    return 0 if passed == len(rows) else 1

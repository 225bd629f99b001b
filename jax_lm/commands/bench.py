"""`diffucoder bench`: speed of a model on this machine, as a report with tables and a bar chart."""

import json
import time

import jax

from jax_lm import terminal
from jax_lm.arguments.benchmark import Bench
from jax_lm.benchmark.machine import Machine, PeakMemory, machine_limits
from jax_lm.benchmark.records import plain_data
from jax_lm.benchmark.speed import MeasuredModel, Speed, measure_speed, speed_report
from jax_lm.benchmark.workload import random_model
from jax_lm.checkpoints import huggingface
from jax_lm.commands.compare import print_report
from jax_lm.config import SHAPES
from jax_lm.diffusion.sampler import Sampler
from jax_lm.inference import BUILTIN_MODEL, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.planning import parameter_count
from jax_lm.reports.run_folder import write_whole


def run(arguments: Bench) -> int:
    out = arguments.out
    if out:
        out.mkdir(parents=True, exist_ok=True)
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

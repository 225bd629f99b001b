"""`diffucoder plan`: whether a step fits a machine that is not present, and its maximum speed."""

import json
import sys
from dataclasses import replace

from rich.console import Console

from jax_lm.checkpoints import huggingface
from jax_lm.cli.arguments.plan import Plan
from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import CompilerPackage
from jax_lm.compilation.machine_plan import MachinePlan, compile_step
from jax_lm.config import SHAPES, DreamConfig, Fields
from jax_lm.host import platforms
from jax_lm.host.files import require_new, write_whole
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions, restrict_options
from jax_lm.planning.memory import SERVE, PlannedStep, usable_memory
from jax_lm.planning.roofline import Topology, gib
from jax_lm.planning.serving import FIXED_ROWS, describe_limits, fitting_limits
from jax_lm.reports.document import facts_table
from jax_lm.sharding import choose_mesh


def run_plan(arguments: Plan) -> int:
    """Plan a step and print it; exit status 1 if it does not fit."""
    if arguments.out:
        require_new(arguments.out)
    if arguments.step == SERVE:
        return plan_server(arguments)
    plan, options = make_plan(arguments)
    # On a CPU, compiled memory would lack that of the process and the copy of the state that is
    # made while a checkpoint is written, so the estimate is used. There is no program of decoding
    # from left to right.
    has_program = plan.planned.is_training or plan.planned.config.family.is_diffusion
    if (
        has_program
        and not plan.planned.on_cpu
        and compiles(arguments, CompilerPackage.of(plan.topology))
    ):
        with platforms.without_driver_notes():
            plan = replace(plan, compiled=compile_step(plan, options))
    elif options.extra_canvases:
        option = "lookahead" if options.lookahead else "draft"
        raise ValueError(
            f"{option}={options.extra_canvases}: the estimate does not cover additional canvases; "
            "compile, or set it to 0"
        )
    if not print_record(arguments, plan.record):
        print_plan(plan)
    return 0 if plan.fits else 1


def print_record(arguments: Plan, record: Fields) -> bool:
    """Write the record to `out` and print it, each if asked for; returns whether it was printed."""
    text = json.dumps(record, indent=1)
    if arguments.out:
        write_whole(arguments.out, f"{text}\n")
    if arguments.json:
        print(text)
    return arguments.json


def make_plan(arguments: Plan) -> tuple[MachinePlan, GenerationOptions]:
    """Return the plan by arithmetic with its options, and prepare this process for compiling.

    This must be called first: the compiler is chosen before JAX has a backend.
    """
    topology = Topology.parse(arguments.topology)
    topology.require_precision(arguments.dtype)
    compiler.prepare_compiler(topology)
    config = plan_config(arguments)
    config.require_context("max_length", arguments.max_length)
    options = arguments.generation
    if arguments.step == "generate" and config.family.is_diffusion:
        options = restrict_options(options, config)
    planned = PlannedStep(
        config,
        precision=arguments.dtype,
        batch=arguments.batch_size,
        canvas=arguments.max_length,
        new_tokens=options.max_new_tokens,
        decoding=options.decoding,
        kind=arguments.step,
        lora_rank=arguments.lora_rank,
        extra_canvases=options.extra_canvases,
        on_cpu=topology.is_cpu and arguments.step != "generate",
    )
    mesh = choose_mesh(config, arguments.mesh, planned.default_mesh, topology.devices)
    return MachinePlan(replace(planned, mesh=mesh), topology), options


def plan_server(arguments: Plan) -> int:
    """Print the limits that `serve` would choose on one of the chips, and their memory."""
    topology = Topology.parse(arguments.topology)
    topology.require_precision(arguments.dtype)
    # the presets differ in what a step commits, not in memory
    planned = PlannedStep(plan_config(arguments), precision=arguments.dtype, new_tokens=1, canvas=1)
    memory = usable_memory(topology)
    plan, need = fitting_limits(planned, memory, FIXED_ROWS, adapters=arguments.served_adapters)
    has_room = need.total <= memory
    record = {
        **describe_limits(plan, need),
        "total": f"{gib(need.total)} of {gib(topology.chip.memory)}, estimated",
        "verdict": "fits" if has_room else "does not fit",
    }
    if not print_record(arguments, record):
        for name, value in record.items():
            print(f"{name:8} {value}")
    return 0 if has_room else 1


def compiles(arguments: Plan, package: CompilerPackage) -> bool:
    """Whether to compile the step. If the compiler is missing, print how to install it."""
    if arguments.estimate:
        return False
    if not package.is_installed:
        print(
            f"{package.distribution} is not installed, so nothing is compiled: "
            f"pip install 'jax-diffucoder[{package.extra}]'",
            file=sys.stderr,
        )
    return package.is_installed


def plan_config(arguments: Plan) -> DreamConfig:
    """Return the shape of the model to plan for."""
    if bool(arguments.model) == bool(arguments.model_config):
        raise ValueError("model, model_config: give one of them")
    if arguments.model:
        return DreamForCausalLM.read_config(
            huggingface.resolve(arguments.model, with_weights=False)
        )
    return SHAPES[arguments.model_config or "7b"]


def print_plan(plan: MachinePlan):
    """Print the plan, and changes with which it would fit."""
    console = Console(highlight=False)
    console.print(facts_table(plan.rows(), {"fits": "green", "does not fit": "red"}))
    for change in plan.changes():
        console.print(f"try {change}", markup=False)

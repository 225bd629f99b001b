"""What the recipes of runs/ take on their machines, from XLA's own plan of their updates; nothing is computed.

python benchmarks/recipes.py runs/sft_v5e-16.yaml runs/grpo_v5e-16.yaml --layers 2 3

Reads each recipe as `diffucoder` does and compiles its update at full width for the machine that it names, with so many
layers; memory at all 28 follows along a line. Needs the compiler: extra `plan` for TPUs, `plan-gpu` for GPUs.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from jax_lm import cli
from jax_lm.arguments.training import ModelArguments
from jax_lm.commands.training import lora_config
from jax_lm.compilation import compiler
from jax_lm.config import DIFFUCODER_7B, DreamConfig
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.lora import add_lora, is_lora
from jax_lm.roofline import Topology
from jax_lm.sharding import MeshShape
from jax_lm.training.program import training_program

MACHINE = re.compile(r"^# machine: (\S+)$", re.MULTILINE)
COLLECTIVE = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def read(recipe: Path) -> tuple[Topology, Any]:
    """Read a recipe: its machine, and the command that it gives."""
    found = MACHINE.search(recipe.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{recipe}: has no line '# machine: TOPOLOGY'")
    command = recipe.name.partition("_")[0]
    return Topology.parse(found[1]), cli.parse([command, "--config", str(recipe), "--data", "data", "--out", "out"])


def abstract(config: DreamConfig, arguments: ModelArguments, seed: int) -> DreamForCausalLM:
    """Make the model of a recipe with shapes in place of arrays: float32 masters, or what is below adapters."""
    adapters = lora_config(arguments)

    def build() -> DreamForCausalLM:
        model = DreamForCausalLM(config, dtype="float32" if adapters is None else "bfloat16")
        if arguments.quantize == "int8":
            model.quantize()
        if adapters is not None:
            add_lora(model, adapters, seed)
        return model

    return nnx.eval_shape(build)


def compiled(recipe: Path, layers: int) -> dict[str, Any]:
    """Compile the update of a recipe with so many layers; bytes per device, collectives in its text, seconds."""
    topology, command = read(recipe)
    config, arguments = replace(DIFFUCODER_7B, num_hidden_layers=layers), command.model_arguments
    shape = MeshShape.parse(arguments.mesh) if arguments.mesh else MeshShape.for_training(config, topology.devices)
    model = abstract(config, arguments, command.settings.training.seed)
    model.model.mesh = compiler.topology_mesh(topology, shape)
    trained = is_lora if arguments.lora_rank else lambda name: True
    update, shapes = training_program(command.settings, model, trained=trained)
    start = time.monotonic()
    program = update.lower(*shapes).compile()
    seconds, memory = time.monotonic() - start, program.memory_analysis()
    kept = memory.argument_size_in_bytes
    working = max(memory.peak_memory_in_bytes - kept, memory.temp_size_in_bytes) + memory.generated_code_size_in_bytes
    collectives = dict(Counter(COLLECTIVE.findall(program.as_text())))
    return {"mesh": str(shape), "kept": kept, "working": working, "collectives": collectives, "seconds": round(seconds)}


def extrapolated(found: dict[int, int], layers: int) -> int:
    """Go on along the line through what two numbers of layers take."""
    (few, at_few), (more, at_more) = sorted(found.items())[:2]
    return at_few + (layers - few) * (at_more - at_few) // (more - few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", type=Path, nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    arguments = parser.parse_args()
    for recipe in arguments.recipes:
        topology, _ = read(recipe)
        compiler.prepare_compiler(topology)
        found = {layers: compiled(recipe, layers) for layers in arguments.layers}
        totals = {layers: report["kept"] + report["working"] for layers, report in found.items()}
        report = {"recipe": recipe.name, "machine": str(topology), "memory": topology.chip.memory, "by_layers": found}
        if len(totals) > 1:
            report["total"] = extrapolated(totals, DIFFUCODER_7B.num_hidden_layers)
        elif DIFFUCODER_7B.num_hidden_layers in totals:
            report["total"] = totals[DIFFUCODER_7B.num_hidden_layers]
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""What XLA makes of the programs of `diffucoder serve` with its defaults, for GPUs that are not here.

    pip install 'jax-diffucoder[serve,plan-gpu]' && python experiments/served_memory.py rtx4090:1 h100:1

For each card, the slots and the context of the 7B model are those that `serve` chooses there. The
programs are the two passes with a cache at the widest width (a refresh of one sequence, and a window
of all slots in place) and the pass without a cache. A cache of every other width stays allocated
meanwhile, so it is added. Nothing runs.
"""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jax_lm.compilation.compiler import compile_program, prepare_compiler, topology_mesh
from jax_lm.compilation.programs import StepProgram, place_on
from jax_lm.config import SHAPES
from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.sampler import Sampler
from jax_lm.diffusion.state import KVCache
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.joined import join
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.memory import PlannedStep, usable_memory
from jax_lm.planning.roofline import Topology
from jax_lm.planning.serving import (
    FIXED_ROWS,
    canvas_widths,
    columns_of,
    fitting_limits,
    useful_sizes,
)
from jax_lm.serving.pace import Pace
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots, run_empty_slots, run_slots
from jax_lm.sharding import MeshShape, tree_shardings

GIB = 2**30


def sequence(preset):
    """A sequence of three tokens; its length does not matter for the programs."""
    options = GenerationOptions(max_new_tokens=2, decoding=Decoding(preset=preset))
    tokens = np.zeros(3, np.int32)
    key = np.zeros(2, np.uint32)
    return Sequence(tokens=tokens, hole=Block(1, 3), options=options, stop_ids=(0,), key=key)


def served_program(sampler, slots, number, size, preset, mesh):
    """A pass of some slots for `size` sequences, as arguments of `run_slots`."""
    one = slots.inputs(sequence(preset))
    whole = NamedSharding(mesh, PartitionSpec())
    stacked = jax.tree.map(lambda part: np.stack([part] * size), one)
    cache = KVCache()
    if slots.is_cached:
        shapes = (sampler.graph, sampler.params, len(slots.held), slots.columns)
        cache = place_on(run_empty_slots.lower(*shapes).out_info, whole)
    given = place_on((*stacked, np.zeros(size, np.int32), np.int32(1)), whole)
    states, inputs, numbers, steps = given
    arguments = sampler.graph, sampler.params, cache, states, inputs, numbers, steps
    return StepProgram(run_slots, (*arguments, slots.passes[number].config))


def measure(name):
    """Compile the programs of one card; returns what they need."""
    topology = Topology.parse(name)
    prepare_compiler(topology)
    config, shape = SHAPES["7b"], MeshShape()
    planned = PlannedStep(config, precision="bfloat16", new_tokens=1, canvas=1, mesh=shape)
    plan, need = fitting_limits(planned, usable_memory(topology), FIXED_ROWS)
    mesh = topology_mesh(topology, shape)

    def make_model():
        # as on a GPU
        return join(DreamForCausalLM(config, dtype=jnp.bfloat16))

    sampler = Sampler(nnx.eval_shape(make_model))
    shardings = tree_shardings(sampler.params, config, mesh)
    sampler = sampler.changed(params=place_on(sampler.params, shardings))
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sampler.params))
    record: dict[str, Any] = {"slots": plan.batch, "context": plan.canvas}
    record["planned"] = [round(part / GIB, 2) for part in (need.weights, need.cache, need.working)]
    programs, caches = {}, 0
    for width in canvas_widths(plan.canvas):
        is_widest = width == plan.canvas
        for preset in ("fast", "exact"):
            slots = Slots(
                sampler,
                columns_of(width, plan.canvas, is_cached=preset == "fast"),
                is_cached=preset == "fast",
                count=plan.batch,
                sizes=(),
                stop_ids=(0,),
                pace=Pace(),
            )
            if slots.is_cached:
                shapes = (sampler.graph, sampler.params, plan.batch, slots.columns)
                cache = jax.tree.leaves(run_empty_slots.lower(*shapes).out_info)
                caches += sum(leaf.size * leaf.dtype.itemsize for leaf in cache)
            for number in range(len(slots.passes)) if is_widest else ():
                size = useful_sizes(plan.batch, slots.rows(number), FIXED_ROWS)[-1]
                kind = "cached" if slots.is_cached else "plain"
                key = f"{kind} {number}: {size} x {slots.rows(number)}"
                program = served_program(sampler, slots, number, size, preset, mesh)
                compiled = compile_program(program)
                print(name, key, compiled.arguments, compiled.working, compiled.refusal, flush=True)
                programs[key] = round(compiled.working / GIB, 2)
    total = weights + caches + max(programs.values()) * GIB
    record["compiled"] = [
        round(each / GIB, 2) for each in (weights, caches, max(programs.values()) * GIB)
    ]
    return record | {"working": programs, "total": round(total / GIB, 2)}


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(json.dumps({each: measure(each)}, indent=1))

"""The memory of an update as compiled: the layers that remat recomputes are not kept."""

from dataclasses import replace

import jax

from jax_lm.compilation.programs import update_program
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape

# The schedule that XLA would choose for a CPU.
IN_PARALLEL = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"}


def test_layers_are_recomputed_where_they_are_needed(tiny_config):
    config = replace(tiny_config, num_hidden_layers=5, max_position_embeddings=256)
    planned = PlannedStep(kind="adapt", precision="float32", batch=8, canvas=256, new_tokens=256)
    program = update_program(config, planned, MeshShape().mesh(jax.devices()[:1])).lower()
    ours, parallel = (
        program.compile(compiler_options=options).memory_analysis().temp_size_in_bytes
        for options in (None, IN_PARALLEL)
    )
    assert ours < 0.7 * parallel

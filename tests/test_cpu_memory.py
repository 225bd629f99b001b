"""The memory of programs as compiled for a CPU: what is recomputed or widened is not kept."""

from dataclasses import replace

import jax
import pytest

from jax_lm.compilation.programs import step_programs, update_program
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape

# The schedule that XLA would choose for a CPU.
IN_PARALLEL = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"}


def test_layers_are_recomputed_where_they_are_needed(tiny_config):
    config = replace(tiny_config, num_hidden_layers=5, max_position_embeddings=256)
    planned = PlannedStep(
        config, kind="adapt", precision="float32", batch=8, canvas=256, new_tokens=256
    )
    program = update_program(planned, MeshShape().mesh(jax.devices()[:1])).lower()
    ours, parallel = (temporary_bytes(program, options) for options in (None, IN_PARALLEL))
    assert ours < 0.7 * parallel


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_kernels_of_one_layer_at_a_time_are_widened(tiny_config, precision):
    config = replace(tiny_config, hidden_size=64, num_hidden_layers=5, intermediate_size=8192)
    # more rows than CPUs multiply as int8
    planned = PlannedStep(config, precision=precision, canvas=160, new_tokens=32)
    options = GenerationOptions(max_new_tokens=32)
    program = step_programs(planned, MeshShape().mesh(jax.devices()[:1]), options)["step"]
    ours, parallel = (temporary_bytes(program.lower(), each) for each in (None, IN_PARALLEL))
    assert ours < 0.5 * parallel


def temporary_bytes(lowered, options):
    return lowered.compile(compiler_options=options).memory_analysis().temp_size_in_bytes

"""The memory of an update as compiled: the layers that remat recomputes are not kept."""

from dataclasses import replace

import jax
import pytest

from jax_lm.compilation.programs import update_program
from jax_lm.planning.memory import PlannedStep
from jax_lm.sharding import MeshShape


@pytest.mark.parametrize("kind", ["sft", "adapt"])
def test_layers_are_recomputed_where_they_are_needed(tiny_config, kind):
    def working(layers):
        config = replace(tiny_config, num_hidden_layers=layers, max_position_embeddings=256)
        planned = PlannedStep(kind=kind, precision="float32", batch=8, canvas=256, new_tokens=256)
        program = update_program(config, planned, MeshShape().mesh(jax.devices()[:1]))
        return program.lower().compile().memory_analysis().temp_size_in_bytes

    # The scores of one layer: rows x heads x queries x keys. Kept, each layer adds three of them.
    scores = 8 * 4 * 256 * 256 * 4
    assert working(5) - working(2) < scores

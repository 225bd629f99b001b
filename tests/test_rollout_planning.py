"""The arithmetic of rollouts, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from jax_lm.config import DIFFUCODER_7B
from jax_lm.options import Decoding
from jax_lm.planning.memory import PlannedStep, parameter_count
from jax_lm.planning.rollouts import (
    choose_rollout_shape,
    count_received_bytes,
    rollout_rows,
    sampling,
)
from jax_lm.planning.roofline import Topology
from jax_lm.sharding import MeshShape

EIGHT_H100 = Topology.parse("h100:8")
RECIPE = PlannedStep(DIFFUCODER_7B, kind="grpo", batch=80, canvas=480, new_tokens=256)
CACHED = replace(RECIPE, decoding=Decoding(preset="fast"))


def sampled(planned, shape):
    return sampling(replace(planned, mesh=shape), EIGHT_H100)


def test_streaming_receives_the_weights_at_every_step():
    """3.9 TB per rollout, but for the eighth that each card has."""
    streamed = sampled(RECIPE, MeshShape(fsdp=8))
    assert streamed.received == pytest.approx(
        256 * 2 * parameter_count(DIFFUCODER_7B) * 7 / 8, rel=1e-3
    )
    assert 3.3e12 < streamed.received < 3.5e12
    assert sampled(RECIPE, MeshShape(data=8)).received == 0


def test_layers_that_are_shared_are_summed_twice_each():
    """Ten rows of 480 tokens, 28 layers, two sums each, three quarters of the hidden states twice
    in bfloat16.
    """
    shape = MeshShape(data=8, tensor=4)
    assert (
        count_received_bytes(replace(RECIPE, mesh=shape))
        == 10 * 480 * 3584 * 2 * 28 * 2 * 2 * 3 // 4
    )


def test_with_a_cache_the_links_are_the_limit_of_streaming():
    streamed, copied = (sampled(CACHED, shape) for shape in (MeshShape(fsdp=8), MeshShape(data=8)))
    assert streamed.limit == "links"
    assert streamed.seconds == pytest.approx(streamed.received / 450e9)
    assert copied.limit != "links"
    assert streamed.seconds > 4 * copied.seconds
    # A block of 32 is one step of all 480 rows and 31 of 32.
    plain = sampled(RECIPE, MeshShape(data=8))
    assert 7 < plain.seconds / copied.seconds < 32 * 480 / (480 + 31 * 32)


@pytest.mark.parametrize(
    ("machine", "training", "expected"),
    [
        ("h100:8", MeshShape(fsdp=8), MeshShape(data=8)),
        ("v5e:4x4", MeshShape(fsdp=16), MeshShape(data=4, tensor=4)),
        # Four chips of 16 GiB do not even hold the training.
        ("v5e:2x2", MeshShape(fsdp=4), MeshShape(fsdp=4)),
    ],
)
def test_a_copy_lies_where_it_fits_beside_the_training(machine, training, expected):
    assert choose_rollout_shape(replace(RECIPE, mesh=training), Topology.parse(machine)) == expected


def test_the_plan_lists_each_way_once():
    rows = rollout_rows(replace(RECIPE, mesh=MeshShape(fsdp=8)), EIGHT_H100)
    assert [name for name, _ in rows] == [
        "updates",
        *["rollout, exact"] * 2,
        *["rollout, fast"] * 2,
    ]
    assert [text.partition(":")[0] for _, text in rows[1:]] == ["fsdp=8", "data=8"] * 2
    # No room for a copy: there is only one mesh.
    assert (
        len(rollout_rows(replace(RECIPE, mesh=MeshShape(fsdp=4)), Topology.parse("v5e:2x2"))) == 3
    )

"""Parameters and memory, from the shape alone."""

import math

import pytest
from conftest import GOLDEN
from safetensors import safe_open

from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.planning import memory_estimate, parameter_count


def stored_parameters(folder):
    """Elements of all tensors, from the headers of the files."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def test_count_equals_the_tensors_on_disk():
    config = DreamForCausalLM.read_config(GOLDEN / "checkpoint")
    assert parameter_count(config) == stored_parameters(GOLDEN / "checkpoint") == 195_392


def test_count_of_a_tied_model_lacks_the_head(tiny_config):
    tied = DreamConfig.from_dict(tiny_config.to_dict() | {"tie_word_embeddings": True})
    assert parameter_count(tiny_config) - parameter_count(tied) == 96 * 32


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_weights_take_their_bytes(tiny_config, dtype, size):
    weights, _ = memory_estimate(tiny_config, dtype, batch=3, canvas=5)
    assert weights == size * parameter_count(tiny_config)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        # rows * (4 bytes * 2 copies * vocabulary + size * 4 copies * hidden): the logits are the widest.
        ({"batch": 2, "canvas": 8}, "float32", 16 * (8 * 96 + 4 * 4 * 32)),
        ({"batch": 2, "canvas": 8}, "bfloat16", 16 * (8 * 96 + 2 * 4 * 32)),
        # A long canvas: 4 heads of attention scores outgrow them.
        ({"batch": 1, "canvas": 64}, "float32", 64 * (8 * 64 * 4 + 4 * 4 * 32)),
    ],
)
def test_working_memory_by_hand(tiny_config, shape, dtype, expected):
    assert memory_estimate(tiny_config, dtype, **shape)[1] == expected


def test_wide_feed_forward_counts(tiny_config):
    wide = DreamConfig.from_dict(tiny_config.to_dict() | {"intermediate_size": 4096})
    assert memory_estimate(wide, "float32", batch=1, canvas=8)[1] == 8 * (8 * 4096 + 4 * 4 * 32)


@pytest.mark.parametrize("name", ["batch", "canvas"])
@pytest.mark.parametrize("value", [0, -3])
def test_empty_canvas_is_refused(tiny_config, name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: must be at least 1"):
        memory_estimate(tiny_config, "float32", **({"batch": 1, "canvas": 1} | {name: value}))

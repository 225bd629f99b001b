"""Estimate the cost of coupled-GRPO rollouts, depending on where the weights are during sampling.

The least time of a denoising step is the longest of compute, memory traffic and traffic between
devices. Knows shapes and the figures of machines; nothing runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from jax_lm.config import DreamConfig
from jax_lm.options import EXACT, Decoding, window_length
from jax_lm.planning.memory import (
    PASSES,
    PlannedStep,
    bound,
    device_bytes,
    training_memory,
    usable_memory,
)
from jax_lm.planning.roofline import Topology, gib
from jax_lm.sharding import MeshShape

# Names and values, to be printed.
Rows = list[tuple[str, str]]
# Bytes per trained weight held during sampling: float32 master, two moments and reference.
HELD_PER_WEIGHT = 16

# Share of the free memory that a copy of the weights may take; canvases, caches and logits need
# the rest.
COPY_SHARE = 2 / 3

# Updates per rollout in the published recipe, scored under the sampling policy and the reference.
ITERATIONS = 2

# Rollouts in the published recipe: 21,000 prompts, eight per rollout.
ROLLOUTS = 2625


def rollout_shape(
    config: DreamConfig,
    training: MeshShape,
    copy_bytes: Callable[[MeshShape], int],
    free: int | float | None,
) -> MeshShape | None:
    """Return the mesh that splits a copy of the weights least, or None if no copy fits.

    Args:
        training: mesh of the training, on the same devices.
        copy_bytes: returns the bytes of a copy per device on a mesh.
        free: bytes per device that training leaves free; if None (unknown), the copy is split as
            for generation.
    """
    shapes = MeshShape.generation_shapes(config, training.size)
    if free is None:
        return shapes[0]
    # Least split first: fewer devices share a layer, so that less is sent between them.
    fitting = (shape for shape in reversed(shapes) if copy_bytes(shape) <= COPY_SHARE * free)
    return next(fitting, None)


def choose_rollout_shape(planned: PlannedStep, topology: Topology) -> MeshShape:
    """Return the mesh of rollouts for an update of all weights; the training mesh if no copy fits."""

    def copy_bytes(mesh):
        return device_bytes(replace(planned, mesh=mesh))

    free = usable_memory(topology) - training_memory(planned).weights - device_bytes(planned)
    # Without room for a copy, sampling streams the sharded training weights.
    return rollout_shape(planned.config, planned.mesh, copy_bytes, free) or planned.mesh


@dataclass(frozen=True)
class Sampling:
    """Least time of sampling the completions of a rollout.

    Attributes:
        seconds: seconds per rollout.
        received: bytes that a device receives from others per rollout.
        limit: compute, memory or links, whichever bounds the time.
    """

    seconds: float
    received: int
    limit: str


def sampling(planned: PlannedStep, topology: Topology) -> Sampling:
    """Return the least time of sampling all completions together, at one step per new token."""
    # compute and links overlap at best, so that the slower one counts
    generation = replace(planned, kind="generate")
    least = bound(generation, topology)
    bytes_received = count_received_bytes(generation)
    step = max(least.seconds, bytes_received / topology.chip.link)
    limit = least.limit if step == least.seconds else "links"
    return Sampling(planned.new_tokens * step, planned.new_tokens * bytes_received, limit)


def count_received_bytes(planned: PlannedStep) -> int:
    """Return the bytes that a device receives per denoising step, on average."""
    config, mesh = planned.config, planned.mesh
    # bytes of the weights that one device would have without FSDP
    whole = device_bytes(replace(planned, mesh=replace(mesh, fsdp=1)))
    decoding = planned.decoding
    rows = planned.canvas
    if decoding.settings.cache != "none":
        block = decoding.block_length_in(planned.new_tokens)
        # average of one refresh of the canvas and block - 1 steps on a window
        rows = (planned.canvas + (block - 1) * window_length(block, config)) // block
    hidden = planned.rows_per_device * rows * config.hidden_size * planned.itemsize
    # Attention and feed-forward each end with an all-reduce over the devices that share a layer,
    # which receives every value twice: its partial sums, then the total.
    sums = 2 * config.num_hidden_layers * hidden * 2 * (mesh.tensor - 1) // mesh.tensor
    # FSDP gathers the shards of all other devices: 3/4 of the weights with fsdp=4
    return whole * (mesh.fsdp - 1) // mesh.fsdp + sums


def rollout_rows(planned: PlannedStep, topology: Topology) -> Rows:
    """List the cost of rollouts without and with a cache, as names and values.

    Each is listed twice: on the training mesh, where weights are streamed, and on a mesh that has
    room for a copy of the weights.
    """
    # without duplicates, as both may be the same mesh
    shapes = dict.fromkeys((planned.mesh, choose_rollout_shape(planned, topology)))
    cached = Decoding(preset="fast") if planned.decoding == EXACT else planned.decoding
    update = bound(planned, topology).seconds
    # scoring is a forward pass, one of the PASSES of an update: under policy and reference
    scores = 2 * ITERATIONS * update / PASSES
    work = f"{ITERATIONS} updates of {update:.2f} s and their scores, {scores:.2f} s, per rollout"
    rows = [("updates", work)]
    for decoding, shape in product((EXACT, cached), shapes):
        least = sampling(replace(planned, decoding=decoding, mesh=shape), topology)
        cost = f"{least.seconds:.1f} s, bound by {least.limit}, {gib(least.received)} received per device"
        hours = (least.seconds + scores + ITERATIONS * update) * ROLLOUTS / 3600
        total = f"{ROLLOUTS:,} rollouts at least {hours:.1f} h"
        rows.append((f"rollout, {decoding.preset}", f"{shape}: {cost}; {total}"))
    return rows

"""What a model takes before it is loaded, or the machine rented: parameters, memory, least time, from its shape alone.

Everything here is arithmetic and says so; `jax_lm.compilation` asks the compiler.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_lm.models.dream import DreamConfig, parameter_shapes
from jax_lm.options import PRESETS, Decoding
from jax_lm.roofline import Cost, Topology
from jax_lm.sharding import MeshShape, partition_spec

PRECISIONS = ("bfloat16", "float32", "int8")
STEPS = ("generate", "sft", "grpo")
COPIES = 3
"""Masked copies of a sample that coupled-GRPO scores: all of the completion, a part of it, and the complement."""
PASSES = 4
"""Forward passes that a gradient costs where layers are computed again: forward, again, and twice in the backward."""
RESERVED = 0.1
"""Share of a device's memory that must stay free: runtime, further compiled programs, fragmentation."""


def parameter_count(config: DreamConfig) -> int:
    """Number of weights, biases included."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def memory_estimate(config: DreamConfig, dtype: DTypeLike, *, batch: int, canvas: int) -> tuple[int, int]:
    """Bytes of the weights, and an estimate of the working memory of one denoising step.

    The estimate counts what lives at the widest point: either the float32 logits and their filtered copy, or
    the activations of one layer (float32 attention scores, and the two feed-forward branches).

    Raises:
        ValueError: batch or canvas is not positive.
    """
    for name, value in (("batch", batch), ("canvas", canvas)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    size = jnp.dtype(dtype).itemsize
    rows = batch * canvas
    logits = 2 * 4 * rows * config.vocab_size
    scores = 2 * 4 * rows * canvas * config.num_attention_heads
    branches = 2 * 4 * rows * config.intermediate_size
    hidden = 4 * size * rows * config.hidden_size
    return parameter_count(config) * size, hidden + max(logits, scores, branches)


def forward_cost(config: DreamConfig, dtype: DTypeLike, *, batch: int, rows: int, canvas: int, head_rows: int) -> Cost:
    """Operations and bytes of one forward pass.

    Args:
        rows: rows recomputed per row of the batch; they attend to `canvas` positions.
        head_rows: rows per row of the batch whose logits are computed.
        dtype: of the weights and of the cached keys and values; int8 are int8 weights.
    """
    body = sum(
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if name.startswith("model.layers.") and len(shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    # Scores, and values weighted by them: two products over the width of all heads, which is the hidden size.
    attention = 2 * 2 * config.hidden_size * canvas * config.num_hidden_layers
    flops = batch * (rows * (2 * body + attention) + head_rows * 2 * head)
    key_values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * canvas
    size = jnp.dtype(dtype).itemsize
    return Cost(flops, (body + head) * size + batch * key_values * max(size, 2))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A generation, or a training step of all weights, to plan for.

    Attributes:
        precision: bfloat16, float32, or int8 kernels with bfloat16 around them; what a training step computes in.
        batch: rows decoded, or learnt from, together.
        canvas: tokens of a row, prompt and answer.
        new_tokens: of them, those that are generated.
        preset: as in `GenerationOptions`.
        step: generate, sft (masked diffusion) or grpo (coupled-GRPO's update, `new_tokens` of a row its completion).
    """

    precision: str = "bfloat16"
    batch: int = 1
    canvas: int = 512
    new_tokens: int = 256
    preset: str = "exact"
    step: str = "generate"

    def __post_init__(self) -> None:
        if self.step not in STEPS:
            raise ValueError(f"step={self.step!r}: must be one of {', '.join(STEPS)}")
        if self.is_training and self.is_int8:
            raise ValueError(f"dtype={self.precision!r}: step={self.step} trains all weights; bfloat16 or float32")
        if self.precision not in PRECISIONS:
            raise ValueError(f"dtype={self.precision!r}: must be one of {', '.join(PRECISIONS)}")
        if self.preset not in PRESETS:
            raise ValueError(f"preset={self.preset!r}: must be one of {', '.join(PRESETS)}")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: must be at least 1")
        if not 1 <= self.new_tokens <= self.canvas:
            raise ValueError(f"max_new_tokens={self.new_tokens}: must lie in [1, canvas={self.canvas}]")

    @property
    def is_training(self) -> bool:
        return self.step != "generate"

    @property
    def is_int8(self) -> bool:
        return self.precision == "int8"

    @property
    def dtype(self) -> str:
        """Of everything but int8 kernels."""
        return "bfloat16" if self.is_int8 else self.precision


@dataclass(frozen=True)
class Memory:
    """Bytes on each device, by what they hold.

    Attributes:
        weights: parameters, exactly; when training, float32 masters and their two moments.
        cache: keys and values, exactly.
        working: everything that lives only during a step.
    """

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


@dataclass(frozen=True)
class Bound:
    """The roofline of a generation on a mesh, all devices together doing no more than they must.

    Attributes:
        step: average cost of one step on the busiest device.
        seconds: least time of one step.
        limit: compute or memory.
        tokens_per_second: at one token per row and step, None where the commit rule decides how many; when training,
            those of all rows.
    """

    step: Cost
    seconds: float
    limit: str
    tokens_per_second: float | None


def device_bytes(config: DreamConfig, job: Job, mesh: MeshShape) -> int:
    """Bytes of the parameters on one device."""
    sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
    total = 0
    for name, shape in parameter_shapes(config, int8=job.is_int8).items():
        parts = math.prod(sizes[axis] for axis in partition_spec(name, config, mesh) if axis)
        has_scale = job.is_int8 and name.removesuffix("weight") + "scale" in parameter_shapes(config, int8=True)
        item = 4 if name.endswith(".scale") else 1 if has_scale else jnp.dtype(job.dtype).itemsize
        total += math.prod(shape) * item // parts
    return total


def rows_per_device(job: Job, mesh: MeshShape) -> int:
    """Rows of the batch that one device computes; a batch that does not divide is computed everywhere."""
    ways = [ways for ways in (mesh.data * mesh.fsdp, mesh.data, mesh.fsdp, 1) if job.batch % ways == 0]
    return job.batch // max(ways)


def estimated_memory(config: DreamConfig, job: Job, mesh: MeshShape) -> Memory:
    """Memory of a device; weights and cache exactly, the rest as `memory_estimate` does it."""
    if job.is_training:
        return training_memory(config, job, mesh)
    rows = rows_per_device(job, mesh)
    heads = config.num_key_value_heads
    heads = heads // mesh.tensor if heads % mesh.tensor == 0 else heads
    size = jnp.dtype(job.dtype).itemsize
    cached = Decoding(preset=job.preset).resolved.cache != "none"
    cache = cached * 2 * config.num_hidden_layers * rows * heads * job.canvas * config.head_dim * size
    _, working = memory_estimate(config, job.dtype, batch=rows, canvas=job.canvas)
    return Memory(device_bytes(config, job, mesh), cache, working // mesh.tensor)


def training_memory(config: DreamConfig, job: Job, mesh: MeshShape) -> Memory:
    """The same of an update of all weights with AdamW: masters and moments stay; the rest is an estimate.

    That is float32 gradients, weights and gradients in the compute dtype, what layers keep for their gradient, and the
    widest point of a forward pass with its gradient. SFT keeps the input of each layer and computes the rest again;
    coupled-GRPO keeps all of a layer, but of one sample's copies at a time.
    """
    masters = device_bytes(config, replace(job, precision="float32"), mesh)
    size = jnp.dtype(job.dtype).itemsize
    rows, width = rows_per_device(job, mesh), config.hidden_size
    if job.step == "grpo":
        rows, width = COPIES, 8 * config.hidden_size + 3 * config.intermediate_size
    kept = rows * job.canvas * width * config.num_hidden_layers * size
    _, widest = memory_estimate(config, job.dtype, batch=rows, canvas=job.canvas)
    gradients = masters + 2 * device_bytes(config, job, mesh)
    return Memory(3 * masters, 0, gradients + kept // mesh.tensor + 2 * widest // mesh.tensor)


def chosen_mesh(config: DreamConfig, job: Job, devices: int) -> MeshShape:
    """The mesh that is used if none is asked for."""
    choose = MeshShape.for_training if job.is_training else MeshShape.for_generation
    return choose(config, devices)


def fits(size: int, topology: Topology) -> bool:
    """Whether so many bytes on a device leave what must stay free."""
    return size <= topology.chip.memory * (1 - RESERVED)


def bound(config: DreamConfig, job: Job, mesh: MeshShape, topology: Topology) -> Bound:
    """What a device must do at least, averaged over the steps of a block, and how long that takes."""
    if job.is_training:
        return training_bound(config, job, mesh, topology)
    decoding = Decoding(preset=job.preset)
    block = decoding.block_columns(job.new_tokens)
    # The head runs on the masked rows alone: from all of the block down to one.
    masked = (block + 1) // 2
    whole = forward_cost(
        config, job.precision, batch=rows_per_device(job, mesh), rows=job.canvas, canvas=job.canvas, head_rows=masked
    )
    steps = [whole]
    if decoding.resolved.cache != "none":
        window = forward_cost(
            config, job.precision, batch=rows_per_device(job, mesh), rows=block + 1, canvas=job.canvas, head_rows=masked
        )
        steps += [window] * (block - 1)
    split = mesh.tensor
    mean = Cost(
        sum(step.flops for step in steps) // len(steps) // split,
        sum(step.bytes for step in steps) // len(steps) // split,
    )
    limits = topology.chip.limits
    seconds = sum(Cost(s.flops // split, s.bytes // split).seconds(limits) for s in steps) / len(steps)
    rate = job.batch / seconds if decoding.resolved.commit == "steps" else None
    return Bound(mean, seconds, mean.limit(limits), rate)


def training_bound(config: DreamConfig, job: Job, mesh: MeshShape, topology: Topology) -> Bound:
    """The same of an update: passes over the rows, and three numbers a weight that the optimizer reads and writes."""
    is_grpo, rows = job.step == "grpo", rows_per_device(job, mesh)
    head = job.new_tokens if is_grpo else job.canvas
    forward = forward_cost(config, job.dtype, batch=rows, rows=job.canvas, canvas=job.canvas, head_rows=head)
    flops = PASSES * (COPIES if is_grpo else 1) * forward.flops // mesh.tensor
    masters = device_bytes(config, replace(job, precision="float32"), mesh)
    cost = Cost(flops, PASSES * forward.bytes // mesh.tensor + 6 * masters)
    limits = topology.chip.limits
    seconds = cost.seconds(limits)
    return Bound(cost, seconds, cost.limit(limits), job.batch * job.canvas / seconds)


def smallest_topology(config: DreamConfig, job: Job, family: Topology) -> tuple[Topology, MeshShape] | None:
    """The smallest topology of these chips that an estimate fits on, and its mesh."""
    for topology in family.same_family():
        mesh = chosen_mesh(config, job, topology.devices)
        if fits(estimated_memory(config, job, mesh).total, topology):
            return topology, mesh
    return None


def cheaper(config: DreamConfig, job: Job, mesh: MeshShape) -> list[tuple[str, Memory]]:
    """Options that each take less memory, the least loss first, with what an estimate says of them."""
    half = max(1, job.canvas // 2)
    variants = (
        ("--dtype int8", job if job.is_training else replace(job, precision="int8")),
        (f"--batch {max(1, job.batch // 2)}", replace(job, batch=max(1, job.batch // 2))),
        (f"--canvas {half}", replace(job, canvas=half, new_tokens=max(1, min(job.new_tokens, half // 2)))),
    )
    return [(name, estimated_memory(config, changed, mesh)) for name, changed in variants if changed != job]


def remedies(config: DreamConfig, job: Job, mesh: MeshShape, topology: Topology) -> list[str]:
    """The cheapest changes with which an estimate fits here, at most three; each is tried alone."""
    found = [
        f"{name} (about {memory.total / 2**30:.1f} GiB per device)"
        for name, memory in cheaper(config, job, mesh)
        if fits(memory.total, topology)
    ]
    place = smallest_topology(config, job, topology)
    if place and place[0].devices > topology.devices:
        found.append(f"--topology {place[0]} (mesh {place[1]})")
    return found[:3]


class OutOfMemoryError(ValueError):
    """A model or a request does not fit into the memory there is; the message says what would."""


@contextmanager
def explained(config: DreamConfig, job: Job, mesh: MeshShape) -> Iterator[None]:
    """Turns a device's out-of-memory error into one that says what the work takes, and three remedies.

    Raises:
        OutOfMemoryError: the block ran out of memory.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        need = estimated_memory(config, job, mesh)
        options = [f"{name} (about {memory.total / 2**30:.2f} GiB)" for name, memory in cheaper(config, job, mesh)]
        options.append(f"more devices on the tensor axis (now {mesh.tensor})")
        raise OutOfMemoryError(
            f"out of memory: {job.batch} x {job.canvas} tokens in {job.precision} take about "
            f"{need.weights / 2**30:.2f} GiB of weights and {(need.cache + need.working) / 2**30:.2f} GiB beside them "
            f"per device. Try {', or '.join(options[:3])}; `diffucoder plan` says more"
        ) from error

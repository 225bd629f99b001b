"""Parameters, memory and least time of a model from its shape alone, before it is loaded or a machine rented.

Everything here is arithmetic and says so; `jax_lm.compilation` asks the compiler.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_lm.checkpoints.stored import is_kernel
from jax_lm.config import DreamConfig
from jax_lm.models.dream import parameter_shapes
from jax_lm.models.token_likelihood import LOGIT_BYTES
from jax_lm.options import EXACT, Decoding, require_one_of
from jax_lm.planning.roofline import GIB, Cost, Topology, gib
from jax_lm.sharding import MeshShape, partition_spec, row_axes

PRECISIONS = ("bfloat16", "float32", "int8")
STEPS = ("generate", "sft", "grpo")
COPIES = 3
"""Masked copies of a sample that coupled-GRPO scores: all of the completion, a part of it, and the complement."""
PASSES = 4
"""Forward passes that a gradient costs where layers are computed again: forward, again, and twice in the backward."""
RESERVED = 0.1
"""Share of a device's memory that must stay free: runtime, further compiled programs, fragmentation."""


def parameter_count(config: DreamConfig) -> int:
    """Count the weights, biases included."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def memory_estimate(
    config: DreamConfig, dtype: DTypeLike, *, batch: int, canvas: int, logit_bytes: int | None = None
) -> tuple[int, int]:
    """Estimate the bytes of the weights, and of the working memory of a denoising step; ValueError if it has no rows.

    The second counts what lives at the widest point: either the float32 logits and their filtered copy, or
    the activations of one layer (float32 attention scores, and the two feed-forward branches). `logit_bytes` are
    those of float32 logits that are held at most, where the vocabulary is gone through in blocks.
    """
    for name, value in (("batch", batch), ("canvas", canvas)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    size = jnp.dtype(dtype).itemsize
    rows = batch * canvas
    # Two float32 arrays (4 bytes) at a time: scores and weights, logits and filtered logits, gate and up branch. XLA
    # reuses the space of one point for the next, so that only the widest counts, over the residual and its copies.
    all_logits = 4 * rows * config.vocab_size
    logits = 2 * min(all_logits, logit_bytes or all_logits)
    scores = 2 * 4 * rows * canvas * config.num_attention_heads
    branches = 2 * 4 * rows * config.intermediate_size
    hidden = 4 * size * rows * config.hidden_size
    return parameter_count(config) * size, hidden + max(logits, scores, branches)


def forward_cost(config: DreamConfig, dtype: DTypeLike, *, batch: int, rows: int, canvas: int, head_rows: int) -> Cost:
    """Count the operations and bytes of one forward pass.

    Args:
        rows: rows recomputed per row of the batch; they attend to `canvas` positions.
        head_rows: rows per row of the batch whose logits are computed.
        dtype: of the weights and of the cached keys and values; int8 are int8 weights.
    """
    shapes = parameter_shapes(config).items()
    body = sum(math.prod(shape) for name, shape in shapes if name.startswith("model.layers.") and len(shape) == 2)
    head = config.vocab_size * config.hidden_size
    # Scores, and values weighted by them: two products over the width of all heads, which is the hidden size.
    attention = 2 * 2 * config.hidden_size * canvas * config.num_hidden_layers
    # A weight costs a multiplication and an addition for each row.
    flops = batch * (rows * (2 * body + attention) + head_rows * 2 * head)
    key_values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * canvas
    size = jnp.dtype(dtype).itemsize
    return Cost(flops, (body + head) * size + batch * key_values * max(size, 2))


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """A step of a generation, or of a training, to plan for.

    Attributes:
        precision: bfloat16, float32, or int8 kernels with bfloat16 around them; what a training step computes in.
        batch: rows decoded, or learnt from, together.
        canvas: tokens of a row, prompt and answer.
        new_tokens: of them, those that are generated.
        decoding: as in `GenerationOptions`.
        kind: generate, sft (masked diffusion) or grpo (coupled-GRPO's update, `new_tokens` of a row its completion).
        lora_rank: of adapters, which are trained instead of all weights; int8 are then the kernels below them.
        canvases_beside: guesses or branches of a row that each step computes too; memory is not estimated with them.
    """

    precision: str = "bfloat16"
    batch: int = 1
    canvas: int = 512
    new_tokens: int = 256
    decoding: Decoding = EXACT
    kind: str = "generate"
    lora_rank: int | None = None
    canvases_beside: int = 0

    def __post_init__(self) -> None:
        require_one_of("step", self.kind, STEPS)
        require_one_of("dtype", self.precision, PRECISIONS)
        if self.decoding.resolved.cache == "causal":
            raise ValueError("cache='causal': is not planned for; its steps are as those of 'window', of more rows")
        if self.is_training and self.is_int8 and self.lora_rank is None:
            raise ValueError(f"dtype={self.precision!r}: step={self.kind} trains all weights; bfloat16 or float32")
        if self.lora_rank is not None and (self.lora_rank < 1 or not self.is_training):
            raise ValueError(f"lora_rank={self.lora_rank}: must be at least 1, and step sft or grpo")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch}: must be at least 1")
        if not 1 <= self.new_tokens <= self.canvas:
            raise ValueError(f"max_new_tokens={self.new_tokens}: must lie in [1, canvas={self.canvas}]")

    @property
    def is_training(self) -> bool:
        return self.kind != "generate"

    @property
    def is_int8(self) -> bool:
        return self.precision == "int8"

    @property
    def dtype(self) -> str:
        """Of everything but int8 kernels."""
        return "bfloat16" if self.is_int8 else self.precision

    def default_mesh(self, config: DreamConfig, devices: int) -> MeshShape:
        """Choose the mesh that is used if none is asked for."""
        choose = MeshShape.for_training if self.is_training else MeshShape.for_generation
        return choose(config, devices)


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
    """The roofline of a step on a mesh, all devices together doing no more than they must.

    Attributes:
        step: average cost on the busiest device.
        seconds: least time.
        limit: compute or memory.
        tokens_per_second: at one token per row and step, None where the commit rule decides how many; when training,
            those of all rows.
    """

    step: Cost
    seconds: float
    limit: str
    tokens_per_second: float | None


def device_bytes(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> int:
    """Count the bytes of the parameters on one device."""
    total, size = 0, jnp.dtype(planned.dtype).itemsize
    for name, shape in parameter_shapes(config, int8=planned.is_int8).items():
        parts = math.prod(mesh.sizes[axis] for axis in partition_spec(name, config, mesh) if axis)
        item = 4 if name.endswith(".scale") else 1 if planned.is_int8 and is_kernel(name) else size
        total += math.prod(shape) * item // parts
    return total


def rows_per_device(planned: PlannedStep, mesh: MeshShape) -> int:
    """Count the rows of the batch that one device computes; a batch that does not divide is computed everywhere."""
    return planned.batch // math.prod(mesh.sizes[axis] for axis in row_axes(planned.batch, mesh.sizes) or ())


def estimated_memory(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> Memory:
    """Estimate the memory of a device: weights and cache exactly, the rest as `memory_estimate` does."""
    if planned.is_training:
        return training_memory(config, planned, mesh)
    rows = rows_per_device(planned, mesh)
    heads = config.num_key_value_heads
    heads //= mesh.tensor if heads % mesh.tensor == 0 else 1
    size = jnp.dtype(planned.dtype).itemsize
    cached = planned.decoding.resolved.cache != "none"
    cache = cached * 2 * config.num_hidden_layers * rows * heads * planned.canvas * config.head_dim * size
    _, working = memory_estimate(config, planned.dtype, batch=rows, canvas=planned.canvas)
    return Memory(device_bytes(config, planned, mesh), cache, working // mesh.tensor)


def training_memory(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> Memory:
    """Estimate the memory of an update with AdamW, of all weights or of adapters, on one device.

    Masters and moments are exact, as are frozen weights. The rest is float32 gradients, weights and gradients in the
    compute dtype, the inputs of layers, the widest point of a layer with its gradient (of coupled-GRPO, for one
    sample's copies), and on a mesh two matrices that are gathered whole: the one in use, and the next.
    """
    masters = master_bytes(config, planned, mesh)
    size = jnp.dtype(planned.dtype).itemsize
    rows = COPIES if planned.kind == "grpo" else rows_per_device(planned, mesh)
    kept = rows * planned.canvas * config.hidden_size * config.num_hidden_layers * size
    _, widest = memory_estimate(config, planned.dtype, batch=rows, canvas=planned.canvas, logit_bytes=LOGIT_BYTES)
    gathered = 2 * config.vocab_size * config.hidden_size * size if mesh.fsdp > 1 else 0
    gradients = masters + 2 * masters * size // 4
    frozen = 0 if planned.lora_rank is None else device_bytes(config, planned, mesh)
    working = gradients + gathered + (kept + 2 * widest) // mesh.tensor
    return Memory(frozen + 3 * masters, 0, working)


def master_bytes(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> int:
    """Count the bytes of the float32 masters on one device: all weights, or adapters of the layers' kernels."""
    if planned.lora_rank is None:
        return device_bytes(config, replace(planned, precision="float32"), mesh)
    total = 0
    for name, shape in parameter_shapes(config).items():
        if name.startswith("model.layers.") and is_kernel(name):
            layer = name.removesuffix("weight")
            for factor, size in (("lora_b", shape[0]), ("lora_a", shape[1])):
                spec = partition_spec(f"{layer}{factor}", config, mesh)
                total += 4 * planned.lora_rank * size // math.prod(mesh.sizes[axis] for axis in spec if axis)
    return total


def fits(size: int, topology: Topology) -> bool:
    """Tell whether so many bytes on a device leave what must stay free."""
    return size <= topology.chip.memory * (1 - RESERVED)


def bound(config: DreamConfig, planned: PlannedStep, mesh: MeshShape, topology: Topology) -> Bound:
    """Find the least that a device must do, averaged over the steps of a block, and how long that takes."""
    if planned.is_training:
        return training_bound(config, planned, mesh, topology)
    decoding = planned.decoding
    batch = rows_per_device(planned, mesh) * (1 + planned.canvases_beside)
    block = decoding.block_columns(planned.new_tokens)
    # The head runs on the masked rows alone: from all of the block down to one.
    masked = (block + 1) // 2

    def cost(rows: int) -> Cost:
        return forward_cost(config, planned.precision, batch=batch, rows=rows, canvas=planned.canvas, head_rows=masked)

    steps = [cost(planned.canvas)]
    if decoding.resolved.cache != "none":
        # After one step over all rows, the others recompute the block and the row before it.
        steps += [cost(block + 1)] * (block - 1)
    mean = Cost(sum(step.flops for step in steps), sum(step.bytes for step in steps)) // len(steps) // mesh.tensor
    limits = topology.chip.limits
    seconds = sum((step // mesh.tensor).seconds(limits) for step in steps) / len(steps)
    is_counted = decoding.resolved.commit == "steps" and not planned.canvases_beside
    rate = planned.batch / seconds if is_counted else None
    return Bound(mean, seconds, mean.limit(limits), rate)


def training_bound(config: DreamConfig, planned: PlannedStep, mesh: MeshShape, topology: Topology) -> Bound:
    """Find the least that a device must do in an update: passes over the rows, and the optimizer's three numbers.

    Adapters need no gradient of the weights below them, which is a quarter of the work.
    """
    is_grpo, rows = planned.kind == "grpo", rows_per_device(planned, mesh)
    canvas = planned.canvas
    head = planned.new_tokens if is_grpo else canvas
    forward = forward_cost(config, planned.precision, batch=rows, rows=canvas, canvas=canvas, head_rows=head)
    passes = PASSES if planned.lora_rank is None else PASSES - 1
    flops = passes * (COPIES if is_grpo else 1) * forward.flops // mesh.tensor
    # The optimizer reads and writes a master and its two moments.
    cost = Cost(flops, passes * forward.bytes // mesh.tensor + 6 * master_bytes(config, planned, mesh))
    seconds = cost.seconds(topology.chip.limits)
    return Bound(cost, seconds, cost.limit(topology.chip.limits), planned.batch * planned.canvas / seconds)


def training_flops(config: DreamConfig, length: int, head_rows: int, *, all_weights: bool = True) -> float:
    """Count the operations that a gradient needs per token of rows of `length`, what is computed again not among them.

    A forward pass, and as much again for the gradients of the activations, and for those of the weights if all are
    trained; those of adapters are small.
    """
    forward = forward_cost(config, "bfloat16", batch=1, rows=length, canvas=length, head_rows=head_rows)
    return (3 if all_weights else 2) * forward.flops / length


def smallest_topology(
    config: DreamConfig, planned: PlannedStep, family: Topology, *, more_than: int = 0, beyond: int = 0
) -> tuple[Topology, MeshShape] | None:
    """Find the smallest topology of these chips that an estimate fits on, and its mesh.

    Args:
        more_than: devices that it must exceed.
        beyond: bytes that a compiler has found beyond the estimate.
    """
    for topology in family.same_family():
        mesh = planned.default_mesh(config, topology.devices)
        need = estimated_memory(config, planned, mesh).total + beyond
        if topology.devices > more_than and fits(need, topology):
            return topology, mesh
    return None


def cheaper(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> list[tuple[str, Memory]]:
    """List options that each take less memory, the least loss first, with an estimate of each."""
    half = max(1, planned.canvas // 2)
    trains_all = planned.is_training and planned.lora_rank is None
    variants = (
        ("--lora-rank 16", replace(planned, lora_rank=planned.lora_rank or 16) if planned.is_training else planned),
        ("--dtype int8", planned if trains_all else replace(planned, precision="int8")),
        (f"--batch-size {max(1, planned.batch // 2)}", replace(planned, batch=max(1, planned.batch // 2))),
        (f"--max-length {half}", replace(planned, canvas=half, new_tokens=max(1, min(planned.new_tokens, half // 2)))),
    )
    return [(name, estimated_memory(config, changed, mesh)) for name, changed in variants if changed != planned]


def cheapest_changes(
    config: DreamConfig, planned: PlannedStep, mesh: MeshShape, topology: Topology, *, beyond: int = 0
) -> list[str]:
    """Name the cheapest changes with which an estimate fits here, at most three; each is tried alone.

    Args:
        beyond: bytes that a compiler has found beyond the estimate; what is changed is taken to need them too.
    """
    options = [(name, memory.total + beyond) for name, memory in cheaper(config, planned, mesh)]
    found = [f"{name} (about {size / GIB:.1f} GiB per device)" for name, size in options if fits(size, topology)]
    larger = smallest_topology(config, planned, topology, more_than=topology.devices, beyond=beyond)
    if larger:
        found.append(f"--topology {larger[0]} (mesh {larger[1]})")
    return found[:3]


class OutOfMemoryError(ValueError):
    """A model or a request does not fit into the memory there is; the message says what would."""


@contextmanager
def explained(config: DreamConfig, planned: PlannedStep, mesh: MeshShape) -> Iterator[None]:
    """Turn a device's out-of-memory error into an OutOfMemoryError: what the work takes, and three remedies."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        need = estimated_memory(config, planned, mesh)
        options = [f"{name} (about {gib(memory.total)})" for name, memory in cheaper(config, planned, mesh)]
        options.append(f"more devices on the tensor axis (now {mesh.tensor})")
        raise OutOfMemoryError(
            f"out of memory: {planned.batch} x {planned.canvas} tokens in {planned.precision} take about "
            f"{gib(need.weights)} of weights and {gib(need.cache + need.working)} beside them per device. "
            f"Try {', or '.join(options[:3])}; `diffucoder plan` says more"
        ) from error

"""Estimate the parameters, the memory and the minimum time of a model from its shape alone.

Everything here is arithmetic. `jax_lm.compilation` reads the figures of the compiler.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_lm.checkpoints.stored import GROUP, QUANTIZED, is_kernel, precision_of
from jax_lm.config import DreamConfig
from jax_lm.models.dream import parameter_shapes
from jax_lm.models.token_likelihood import DECODING_LOGIT_BYTES, LOGIT_BYTES
from jax_lm.options import EXACT, Decoding, require_one_of, require_sizes, window_length
from jax_lm.planning.roofline import GIB, Cost, Topology, gib
from jax_lm.sharding import ONE_DEVICE, MeshShape, partition_spec, row_axes

PRECISIONS = ("bfloat16", "float32", *QUANTIZED)
STEPS = ("generate", "sft", "adapt", "grpo")
# Kind of the programs of a server. It is not in STEPS, because its options have other names.
SERVE = "serve"
# Masked copies per sample that coupled-GRPO scores: with the whole completion masked, with a part
# of it masked, and with the remaining part masked.
COPIES = 3
# Cost of a gradient in forward passes with remat: forward, recomputation, and two for the
# backward.
PASSES = 4
# Share of device memory kept free for the runtime, other programs and fragmentation.
RESERVED = 0.1


def offered_precisions(config: DreamConfig) -> list[str]:
    """Return the precisions that a model can have; int4 is not among them for every width.

    A byte of an int4 kernel holds two weights half a row apart, so each half must be whole groups.
    """
    heads = config.num_attention_heads * config.head_dim
    widths = (config.hidden_size, config.intermediate_size, heads)
    has_groups = not any(width % (2 * GROUP) for width in widths)
    return [name for name in PRECISIONS if name != "int4" or has_groups]


def parameter_count(config: DreamConfig) -> int:
    """Return the number of parameters, including biases."""
    return sum(prod(shape) for shape in parameter_shapes(config).values())


def working_bytes(
    config: DreamConfig, dtype: DTypeLike, *, batch: int, canvas: int, logit_bytes: int
) -> int:
    """Estimate the working memory of a denoising step.

    The widest point decides: either the float32 logits and their filtered copy, or the activations
    of one layer (float32 attention scores, or the two feed-forward branches). Logits are processed
    in parts of at most `logit_bytes` in float32.
    """
    size = jnp.dtype(dtype).itemsize
    rows = batch * canvas
    # Two float32 arrays (4 bytes a number) are live at a time: attention scores and weights, logits
    # and filtered logits, or gate and up branch. XLA reuses their memory, so only the widest pair
    # counts, plus the residual stream and its copies (the factor 4 of the result).
    logits = min(4 * rows * config.vocab_size, logit_bytes)
    scores = 4 * rows * canvas * config.num_attention_heads
    branch = 4 * rows * config.intermediate_size
    return 4 * size * rows * config.hidden_size + 2 * max(logits, scores, branch)


def forward_cost(
    config: DreamConfig, dtype: DTypeLike, *, batch: int, rows: int, canvas: int, head_rows: int
) -> Cost:
    """Count the operations and bytes of one forward pass.

    Args:
        config: shape of the model.
        dtype: dtype of the weights, and unless it is a quantized one, of cached keys and values.
        batch: number of sequences.
        rows: positions computed per sequence.
        canvas: positions that they attend to.
        head_rows: positions per sequence whose logits are computed.
    """
    shapes = parameter_shapes(config).items()
    # Only kernels count, as vectors (biases, norms) cost next to nothing.
    body = sum(
        prod(shape)
        for name, shape in shapes
        if name.startswith("model.layers.") and len(shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    # Scores and weighted values: two products over the width of all heads.
    width = config.num_attention_heads * config.head_dim
    attention = 2 * 2 * width * canvas * config.num_hidden_layers
    # Each weight costs one multiplication and one addition per position. A card computes twice as
    # many operations in fp8 in the same time, so they count half.
    per_weight = 1 if dtype == "fp8" else 2
    flops = batch * (rows * (per_weight * body + attention) + head_rows * 2 * head)
    # numbers per sequence: keys and values of every layer and position
    key_values = (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * canvas
    )
    # Keys and values are never quantized: at least 2 bytes each.
    size = 1 if dtype in QUANTIZED else jnp.dtype(dtype).itemsize
    # An int4 weight has half a byte, and its group a scale of one byte. The head is int8.
    body_size = 1 / 2 + 1 / GROUP if dtype == "int4" else size
    # With int8 and fp8, tied embeddings stay in bfloat16.
    head_size = 2 if config.tie_word_embeddings and dtype in ("int8", "fp8") else size
    weights = int(body * body_size) + head * head_size
    return Cost(flops, weights + batch * key_values * max(size, 2))


@dataclass(frozen=True)
class PlannedStep:
    """A denoising step or a training update to plan.

    Attributes:
        config: shape of the model.
        precision: bfloat16, float32, or the precision of quantized kernels (int8, int4 or fp8) with
            everything else in bfloat16; in training, the compute dtype.
        batch: rows per step.
        canvas: tokens per row, prompt and answer together.
        new_tokens: how many of them are generated.
        decoding: preset, commit rule, blocks and cache.
        kind: generate, serve, sft or adapt (masked diffusion), or grpo (coupled-GRPO, with
            completions of `new_tokens`).
        lora_rank: rank of the trained adapters, whose kernels may be int8; None trains all weights.
        extra_canvases: additional canvases per row that each step computes, as drafts or branches;
            the memory estimate does not include them.
        on_cpu: whether an update runs on a CPU. The process is in the same memory there, and XLA
            keeps the activations of all layers, with and without remat.
        mesh: shape of the mesh of devices.
    """

    config: DreamConfig
    _: KW_ONLY
    precision: str = "bfloat16"
    batch: int = 1
    canvas: int = 512
    new_tokens: int = 256
    decoding: Decoding = EXACT
    kind: str = "generate"
    lora_rank: int | None = None
    extra_canvases: int = 0
    on_cpu: bool = False
    mesh: MeshShape = ONE_DEVICE

    def __post_init__(self):
        require_one_of("step", self.kind, (*STEPS, SERVE))
        require_one_of("dtype", self.precision, PRECISIONS)
        if self.decoding.is_pipelined:
            raise ValueError(
                f"cache={self.decoding.settings.cache!r}: with several blocks at once (cache causal or "
                "delayed, or active_blocks), the answer decides how many rows a step computes; "
                "--cache window plans one block at a time"
            )
        has_adapters = self.lora_rank is not None and self.kind != "adapt"
        allowed = ("int8", None) if has_adapters else (None,)
        if self.is_training and self.quantization not in allowed:
            raise ValueError(
                f"dtype={self.precision!r}: must be bfloat16 or float32, or for adapters of sft "
                "and grpo int8"
            )
        if self.lora_rank is not None and (self.lora_rank < 1 or not self.is_training):
            raise ValueError(
                f"lora_rank={self.lora_rank}: must be at least 1, and step sft, adapt or grpo"
            )
        require_sizes(self, "batch")
        if not 1 <= self.new_tokens <= self.canvas:
            raise ValueError(
                f"max_new_tokens={self.new_tokens}: must lie in [1, {self.canvas}], the length of a row"
            )

    @property
    def is_training(self) -> bool:
        return self.kind not in ("generate", SERVE)

    @property
    def quantization(self) -> str | None:
        """Precision of the kernels if they are quantized."""
        return self.precision if self.precision in QUANTIZED else None

    @property
    def dtype(self) -> str:
        """Dtype of everything except quantized kernels."""
        return "bfloat16" if self.quantization else self.precision

    @property
    def itemsize(self) -> int:
        """Bytes per number of `dtype`."""
        return jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        new = f", {self.new_tokens} of them new" if self.kind not in ("sft", "adapt") else ""
        trained = "all weights" if self.lora_rank is None else f"adapters of rank {self.lora_rank}"
        # The preset comes first, as it is the first field.
        settings = [
            f"{name} {value}" for name, value in asdict(self.decoding).items() if value is not None
        ]
        work = f"one {self.kind} update of {trained}" if self.is_training else ", ".join(settings)
        return f"{self.batch} x {self.canvas} tokens{new}, {work}, {self.precision}"

    @property
    def default_mesh(self) -> Callable[[DreamConfig, int], MeshShape]:
        """Function that returns the default mesh of a model and a number of devices."""
        return MeshShape.for_training if self.is_training else MeshShape.for_generation

    @property
    def rows_per_device(self) -> int:
        """Rows of the batch per device. Rows that do not divide are replicated."""
        return self.batch // self.mesh.parts(row_axes(self.batch, self.mesh.sizes) or ())


@dataclass(frozen=True)
class Memory:
    """Bytes per device.

    Attributes:
        weights: parameters (exact); in training, float32 masters and their two moments.
        cache: cached keys and values (exact).
        working: temporary memory of a step (estimated).
    """

    weights: int
    cache: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.working


@dataclass(frozen=True)
class Bound:
    """Roofline of a step: the minimum cost and time on a mesh.

    Attributes:
        step: average cost on the busiest device.
        seconds: minimum time.
        limit: compute or memory, whichever bounds the time.
        tokens_per_second: maximum rate at one token per row and step; None if the commit rule
            decides how many tokens a step commits. In training, the rate over all tokens.
    """

    step: Cost
    seconds: float
    limit: str
    tokens_per_second: float | None


def parameter_parts(name: str, planned: PlannedStep) -> int:
    """Return the number of parts into which the mesh splits a parameter."""
    return planned.mesh.parts(partition_spec(name, planned.config, planned.mesh))


def device_bytes(planned: PlannedStep) -> int:
    """Return the bytes of the parameters on one device."""
    total = 0
    for name, shape in parameter_shapes(planned.config, quantization=planned.quantization).items():
        parts = parameter_parts(name, planned)
        # Quantized: scales are float32, kernels and group scales bytes, everything else bfloat16.
        is_bytes = precision_of(name, planned.quantization) or name.endswith(".group_scale")
        itemsize = 4 if name.endswith(".scale") else 1 if is_bytes else planned.itemsize
        total += prod(shape) * itemsize // parts
    return total


def estimate_memory(planned: PlannedStep) -> Memory:
    """Estimate the memory per device: weights and cache exactly, the rest by `working_bytes`."""
    if planned.is_training:
        return training_memory(planned)
    config, mesh = planned.config, planned.mesh
    rows = planned.rows_per_device
    # Heads that the tensor axis does not divide are replicated: 4 heads on 8 devices stay 4.
    heads = config.num_key_value_heads
    heads //= mesh.tensor if heads % mesh.tensor == 0 else 1
    elements = 2 * config.num_hidden_layers * rows * heads * planned.canvas * config.head_dim
    cache = elements * planned.itemsize if planned.decoding.settings.cache != "none" else 0
    working = working_bytes(
        config, planned.dtype, batch=rows, canvas=planned.canvas, logit_bytes=DECODING_LOGIT_BYTES
    )
    return Memory(device_bytes(planned), cache, working // mesh.tensor)


def training_memory(planned: PlannedStep) -> Memory:
    """Estimate the memory per device of an AdamW update of all weights or of adapters.

    Masters, moments, reference and frozen weights are exact. The rest consists of:

    - float32 gradients, and weights and gradients in the compute dtype
    - the inputs of all layers
    - the widest point of a layer with its gradient (in coupled-GRPO, for the copies of one sample)
    - on a mesh, two gathered matrices: the one in use and the next one
    """
    config, mesh = planned.config, planned.mesh
    # bytes of one float32 copy of the trained parameters, per device
    masters = master_bytes(planned)
    size = planned.itemsize
    rows = COPIES if planned.kind == "grpo" else planned.rows_per_device
    # With remat, the input of each layer is kept for the backward pass.
    width = config.hidden_size
    process = 0
    if planned.on_cpu:
        # Gate, up and their product, and the attention weights of each layer are kept too.
        width += 3 * config.intermediate_size + config.num_attention_heads * planned.canvas
        # Python with JAX takes 0.3 GB, and the compilation of each layer 25 to 40 MB (measured).
        process = 2**28 + 2**25 * config.num_hidden_layers
    activations = rows * planned.canvas * width * config.num_hidden_layers * size
    widest = working_bytes(
        config, planned.dtype, batch=rows, canvas=planned.canvas, logit_bytes=LOGIT_BYTES
    )
    gathered = 2 * config.vocab_size * config.hidden_size * size if mesh.fsdp > 1 else 0
    # float32 gradients, and weights and gradients in the compute dtype, of `size` instead of 4
    # bytes
    gradients = masters + 2 * masters * size // 4
    frozen = 0 if planned.lora_rank is None else device_bytes(planned)
    working = process + gradients + gathered + (activations + 2 * widest) // mesh.tensor
    # Masters, two AdamW moments, and the reference of coupled-GRPO. Training has no KV cache.
    copies = 4 if planned.kind == "grpo" else 3
    return Memory(frozen + copies * masters, 0, working)


def master_bytes(planned: PlannedStep) -> int:
    """Return the bytes of float32 masters on one device: all weights, or adapters of all kernels."""
    if planned.lora_rank is None:
        return device_bytes(replace(planned, precision="float32"))
    total = 0
    for name, shape in parameter_shapes(planned.config).items():
        if name.startswith("model.layers.") and is_kernel(name):
            layer = name.removesuffix("weight")
            # kernel [out, in] -> lora_b [out, rank], lora_a [rank, in]
            for factor, size in (("lora_b", shape[0]), ("lora_a", shape[1])):
                total += (
                    4 * planned.lora_rank * size // parameter_parts(f"{layer}{factor}", planned)
                )
    return total


def usable_memory(topology: Topology) -> float:
    """Return the bytes of a device that a program may use."""
    return topology.chip.memory * (1 - RESERVED)


def fits(size: int, topology: Topology) -> bool:
    """Return whether a device can hold `size` bytes and keep the share `RESERVED` free."""
    return size <= usable_memory(topology)


def bound(planned: PlannedStep, topology: Topology) -> Bound:
    """Return the minimum work per device, averaged over the steps of a block, and its time.

    The limits of the topology's chips must be known.
    """
    costs = update_cost if planned.is_training else denoising_costs
    steps = costs(planned)
    total = Cost(sum(step.flops for step in steps), sum(step.bytes for step in steps))
    mean = total // len(steps)
    limits = topology.chip.limits
    assert limits
    seconds = sum(step.seconds(limits) for step in steps) / len(steps)
    # A step commits one token per row, unless the commit rule decides how many.
    tokens = None
    if planned.is_training:
        tokens = planned.batch * planned.canvas
    elif planned.decoding.settings.commit == "steps" and not planned.extra_canvases:
        tokens = planned.batch
    return Bound(mean, seconds, mean.limit(limits), tokens / seconds if tokens else None)


def denoising_costs(planned: PlannedStep) -> list[Cost]:
    """Return the minimum work per device of each step of a block."""
    block = planned.decoding.block_length_in(planned.new_tokens)
    cost = partial(
        forward_cost,
        planned.config,
        planned.precision,
        # Drafts and branches are additional rows of each step.
        batch=planned.rows_per_device * (1 + planned.extra_canvases),
        canvas=planned.canvas,
        # The head runs on masked positions alone: on the whole block at first, on one position at
        # last, on average on half of the block.
        head_rows=(block + 1) // 2,
    )
    # Without a cache, all steps cost as much as the first, which computes the whole canvas. With a
    # cache, the others compute a window.
    steps = [cost(rows=planned.canvas)]
    if planned.decoding.settings.cache != "none":
        steps += [cost(rows=window_length(block, planned.config))] * (block - 1)
    return [step // planned.mesh.tensor for step in steps]


def update_cost(planned: PlannedStep) -> list[Cost]:
    """Return the minimum work per device of an update, as a list of one step.

    The work consists of the passes through the model and of the optimizer's memory traffic.
    Adapters need no gradient of the weights below them, which saves a quarter of the passes.
    """
    is_grpo = planned.kind == "grpo"
    canvas = planned.canvas
    forward = forward_cost(
        planned.config,
        planned.precision,
        batch=planned.rows_per_device,
        rows=canvas,
        canvas=canvas,
        head_rows=planned.new_tokens if is_grpo else canvas,
    )
    passes = PASSES if planned.lora_rank is None else PASSES - 1
    flops = passes * (COPIES if is_grpo else 1) * forward.flops // planned.mesh.tensor
    # The optimizer reads and writes each master and its two moments: 6 transfers.
    traffic = passes * forward.bytes // planned.mesh.tensor + 6 * master_bytes(planned)
    return [Cost(flops, traffic)]


def training_flops(
    config: DreamConfig, length: int, head_rows: int, *, all_weights: bool = True
) -> float:
    """Return the operations of a gradient, per token of a row of `length` tokens.

    The logits of `head_rows` of them are computed. Recomputation is not counted. The gradients of
    activations cost as much as a forward pass, and so do the gradients of weights if all weights
    are trained. Those of adapters are negligible.
    """
    forward = forward_cost(
        config, "bfloat16", batch=1, rows=length, canvas=length, head_rows=head_rows
    )
    return (3 if all_weights else 2) * forward.flops / length


def smallest_topology(
    planned: PlannedStep, family: Topology, *, more_than: int = 0, beyond: int = 0
) -> tuple[Topology, MeshShape] | None:
    """Return the smallest topology of the same chips on which the step fits, and its mesh.

    Args:
        more_than: number of devices that the topology must exceed.
        beyond: bytes by which the compiled program exceeds the estimate.
    """
    # They come smallest first, so the first one that fits is the answer.
    for topology in family.same_family():
        mesh = planned.default_mesh(planned.config, topology.devices)
        need = estimate_memory(replace(planned, mesh=mesh)).total + beyond
        if topology.devices > more_than and fits(need, topology):
            return topology, mesh
    return None


def cheaper_options(planned: PlannedStep, limit: int, beyond: int = 0) -> list[str]:
    """Return changes of options, each with its memory, after which a step fits into `limit` bytes.

    The change that costs the user least comes first.

    Args:
        planned: the step that is too large.
        limit: bytes that a device may use.
        beyond: bytes by which the compiled program exceeds the estimate; assumed to stay the same.
    """
    rows = max(1, planned.batch // 2)
    length = max(1, planned.canvas // 2)
    new_tokens = max(1, min(planned.new_tokens, length // 2))
    names = ("--slots", "--context") if planned.kind == SERVE else ("--batch-size", "--max-length")
    # In training, int8 needs adapters, and `adapt` has no int8.
    if planned.is_training and planned.lora_rank is None:
        first = {"--lora-rank 16": replace(planned, lora_rank=16)}
    elif planned.kind == "adapt":
        first = {}
    else:
        first = {"--dtype int8": replace(planned, precision="int8")}
    variants = first | {
        f"{names[0]} {rows}": replace(planned, batch=rows),
        f"{names[1]} {length}": replace(planned, canvas=length, new_tokens=new_tokens),
    }
    options = []
    for name, changed in variants.items():
        size = estimate_memory(changed).total + beyond
        # Half of a batch of one is still one row: no change.
        if changed != planned and size <= limit:
            options.append(f"{name} (about {size / GIB:.1f} GiB per device)")
    return options


def cheapest_changes(planned: PlannedStep, topology: Topology, *, beyond: int = 0) -> list[str]:
    """Return at most three changes, each of which makes the step fit, the cheapest first.

    Args:
        beyond: bytes by which the compiled program exceeds the estimate; assumed to stay the same.
    """
    changes = cheaper_options(planned, int(usable_memory(topology)), beyond)
    # More devices come last, as they cost money.
    larger = smallest_topology(planned, topology, more_than=topology.devices, beyond=beyond)
    if larger:
        changes.append(f"--topology {larger[0]} (mesh {larger[1]})")
    return changes[:3]


class OutOfMemoryError(ValueError):
    """Raised when a model or a request exceeds the memory; the message names changes that help."""


def require_room(planned: PlannedStep, free: int | None):
    """Raise OutOfMemoryError if an update takes more than the `free` bytes of a device.

    None is an unknown number, which is not checked.
    """
    need = estimate_memory(planned)
    if free is None or need.total <= free:
        return
    raise OutOfMemoryError(
        f"{planned}: takes about {gib(need.weights)} of masters and moments and "
        f"{gib(need.working)} of working memory per device, {gib(free)} are free. "
        f"{remedies(planned)}"
    )


def remedies(planned: PlannedStep, *others: str) -> str:
    """Format advice: at most three changes that save memory, with `others` last."""
    # `cheaper_options` names the options of `plan`. Those of training and generation differ.
    need = estimate_memory(planned).total
    text = ", or ".join([*cheaper_options(planned, need - 1), *others][:3])
    if planned.is_training:
        text = text.replace("--dtype", "--quantize")
    if planned.kind in ("generate", "grpo"):
        text = text.replace("--max-length", "prompt and answer together of")
    return f"Try {text}; `diffucoder plan` shows more"


@contextmanager
def explain_out_of_memory(planned: PlannedStep) -> Iterator[None]:
    """Turn a device's out-of-memory error into an OutOfMemoryError.

    Its message names the memory that the step needs, and at most three remedies.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        # XLA reports a lack of memory by this status. Any other error passes through.
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        need = estimate_memory(planned)
        devices = f"more devices on the tensor axis (now {planned.mesh.tensor})"
        raise OutOfMemoryError(
            f"out of memory: {planned.batch} x {planned.canvas} tokens in {planned.precision} take about "
            f"{gib(need.weights)} of weights and {gib(need.cache + need.working)} of other memory per device. "
            f"{remedies(planned, devices)}"
        ) from error

"""Which programs a server compiles, what their calls cost, and which limits fit a device.

Arithmetic only. A program decodes a fixed number of sequences of one width. With more widths and
numbers, less work is wasted on padding, but there are more compilations, and they take memory. The
cost of a call is modelled as a number of rows: those that it computes, plus FIXED_ROWS for the host
and for reading the weights. This decides which numbers of sequences are worth a program: on a CPU,
where arithmetic is the bottleneck, hardly any but 1; on an accelerator, where reading the weights
is, larger ones at narrow widths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jax_lm.config import DreamConfig, Fields
from jax_lm.options import BLOCK_LENGTH, Decoding
from jax_lm.planning.memory import Memory, PlannedStep, estimate_memory
from jax_lm.planning.roofline import gib
from jax_lm.sharding import MeshShape

# Widths of canvases in tokens; a sequence takes the narrowest that can hold it.
#
# An answer of 64 or 256 tokens often has a prompt of about half that length, so that powers of two
# would be slightly too narrow. Wider ones are made only if the options ask for a longer context.
WIDTHS = (96, 192, 384, 768, 1536, 2048)
# Numbers of sequences that programs are compiled for, up to the number of slots.
BATCH_SIZES = (1, 4, 16)
# Rows of tokens whose arithmetic takes as long as the fixed part of a call. A CPU reads the weights
# of a large model in the time of 16 rows; an H200 does 206 bfloat16 operations per byte that it reads.
FIXED_ROWS_CPU = 32
FIXED_ROWS = 256
# A program for more sequences must be cheaper per sequence by this factor than one for fewer.
WORTH = 1.15
# Limits that are tried, the best first: tokens of a context, and sequences decoded together.
CONTEXTS = (2048, 1536, 768, 384)
SLOTS = (16, 8, 4, 1)


def widths(context: int) -> list[int]:
    """Return the widths up to a context."""
    # context 1000: 96, 192, 384, 768 and 1000
    return [*(width for width in WIDTHS if width < context), context]


def columns_of(width: int, context: int, *, is_cached: bool) -> int:
    """Return the number of columns to allocate for canvases of a width."""
    # the last window of a cached sequence may reach past the end of the context
    return width + BLOCK_LENGTH * (is_cached and width == context)


def cheapest_size(sizes: Iterable[int], count: int, rows: int, fixed_rows: int) -> int:
    """Return the program size with the least cost per sequence when `count` sequences wait.

    Args:
        rows: rows of tokens that a call computes for each sequence.
    """
    # 2 sequences of 32 rows, 32 fixed rows: 64 rows each alone, (32 + 4 * 32) / 2 = 80 in a
    # program for four, so that each runs alone
    return min(sizes, key=lambda size: (fixed_rows + size * rows) / min(size, count))


def useful_sizes(slots: int, rows: int, fixed_rows: int) -> list[int]:
    """Return the numbers of sequences that are worth a program, smallest first."""
    # 16 slots, 32 rows each, 256 fixed rows: cost per sequence 288 for 1, 96 for 4 and 48 for 16,
    # so each is worth it: [1, 4, 16]
    useful = [1]
    for size in [*(size for size in BATCH_SIZES if 1 < size < slots), slots]:
        cost, best = ((fixed_rows + each * rows) / each for each in (size, useful[-1]))
        if cost * WORTH >= best:
            break
        useful.append(size)
    return useful


def serving_memory(
    config: DreamConfig,
    planned: PlannedStep,
    mesh: MeshShape,
    fixed_rows: int,
    *,
    adapters: int = 0,
) -> Memory:
    """Estimate the memory per device of a server of `planned.batch` slots and its context.

    Caches of all widths, of the model and of each adapter, may be in use at once, and a call copies
    the widest one. The adapters themselves, about 1 % of the weights each, are not counted.
    """
    cached = Decoding(preset="fast")
    slots = planned.batch
    context = planned.canvas

    def step(size: int, columns: int, decoding: Decoding):
        step = replace(
            planned,
            kind="generate",
            batch=size,
            canvas=columns,
            new_tokens=columns,
            decoding=decoding,
        )
        return estimate_memory(config, step, mesh)

    caches = [
        step(slots, columns_of(width, context, is_cached=True), cached).cache
        for width in widths(context)
    ]
    plain = [
        step(useful_sizes(slots, width, fixed_rows)[-1], width, planned.decoding)
        for width in widths(context)
    ]
    working = max(each.working for each in plain) + caches[-1]
    return Memory(plain[0].weights, (1 + adapters) * sum(caches), working)


def describe_limits(plan: PlannedStep, need: Memory) -> Fields:
    """Return the limits of a server and the memory that they need, by name."""
    return {
        "slots": plan.batch,
        "context": plan.canvas,
        "weights": gib(need.weights),
        "caches": gib(need.cache),
        "working": gib(need.working),
    }


def fitting_limits(
    config: DreamConfig,
    planned: PlannedStep,
    mesh: MeshShape,
    memory: float,
    fixed_rows: int,
    *,
    slots: Sequence[int] = SLOTS,
    contexts: Sequence[int] = CONTEXTS,
    adapters: int = 0,
) -> PlannedStep:
    """Return the plan with the largest context and then the most slots that fit.

    Args:
        memory: bytes that may be used per device.
        slots: numbers of slots to choose from, largest first.
        contexts: contexts to choose from, largest first. The last of both is returned if none fit.
        adapters: number of adapters.
    """
    most = config.max_position_embeddings
    plans = [
        replace(planned, batch=count, canvas=min(context, most), new_tokens=1)
        for context in contexts
        for count in slots
    ]
    fitting = (
        plan
        for plan in plans
        if serving_memory(config, plan, mesh, fixed_rows, adapters=adapters).total <= memory
    )
    return next(fitting, plans[-1])

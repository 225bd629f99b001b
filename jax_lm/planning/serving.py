"""Which programs a server compiles, what their calls cost, and which limits fit a device.

Arithmetic only. A program decodes a fixed number of sequences of one width. With more widths and
batch sizes, less work is wasted on padding, but there are more compilations, and they take memory.
The cost of a call is modelled as a number of rows: those that it computes, plus FIXED_ROWS for the
host and for reading the weights. The cost decides which batch sizes are worth a program. On a CPU,
arithmetic is the bottleneck, and hardly any size but 1 is worth it. On an accelerator, reading the
weights is the bottleneck, and larger sizes are worth it at narrow widths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from jax_lm.config import Fields
from jax_lm.options import BLOCK_LENGTH, Decoding
from jax_lm.planning.memory import Memory, PlannedStep, estimate_memory
from jax_lm.planning.roofline import gib

# Widths of canvases in tokens; a sequence takes the narrowest that can hold it.
#
# An answer of 64 or 256 tokens often has a prompt of about half that length, so powers of two would
# be slightly too narrow. A wider canvas is made only if the options ask for a longer context.
WIDTHS = (96, 192, 384, 768, 1536, 2048)
# Numbers of sequences that programs are compiled for, up to the number of slots.
BATCH_SIZES = (1, 4, 16)
# Fixed cost of a call, as the number of token rows whose arithmetic takes as long. A CPU reads the
# weights of a large model in the time of 16 rows; an H200 does 206 bfloat16 operations per byte
# that it reads.
FIXED_ROWS_CPU = 32
FIXED_ROWS = 256
# A program for more sequences must be cheaper per sequence by this factor than one for fewer.
MIN_GAIN = 1.15
# Limits to try, the best first: tokens of a context, and sequences decoded together.
CONTEXTS = (2048, 1536, 768, 384)
SLOTS = (16, 8, 4, 1)


def canvas_widths(context: int) -> list[int]:
    """Return the widths of canvases, narrowest first. The last one is the whole context."""
    # context 1000: 96, 192, 384, 768 and 1000
    return [*(width for width in WIDTHS if width < context), context]


def columns_of(width: int, context: int, *, is_cached: bool) -> int:
    """Return the number of columns to allocate for canvases of a width."""
    # The last window of a cached sequence may extend past the end of the context.
    return width + BLOCK_LENGTH * (is_cached and width == context)


def cheapest_size(sizes: Iterable[int], count: int, rows: int, fixed_rows: int) -> int:
    """Return the batch size with the least cost per sequence when `count` sequences wait.

    Args:
        sizes: batch sizes that have a program.
        count: number of waiting sequences.
        rows: token rows that a call computes for each sequence.
        fixed_rows: fixed cost of a call in rows.
    """
    # 2 sequences of 32 rows, 32 fixed rows: alone, each costs 32 + 32 = 64 rows. A program for four
    # computes two unused sequences: (32 + 4 * 32) / 2 = 80 rows. So each runs alone.
    return min(sizes, key=lambda size: (fixed_rows + size * rows) / min(size, count))


def useful_sizes(slots: int, rows: int, fixed_rows: int) -> list[int]:
    """Return the batch sizes that are worth a program, smallest first.

    Args:
        slots: largest number of sequences.
        rows: token rows that a call computes for each sequence.
        fixed_rows: fixed cost of a call in rows.
    """
    # 16 slots, 32 rows each, 256 fixed rows: cost per sequence 288 for 1, 96 for 4 and 48 for 16,
    # so each is worth it: [1, 4, 16]
    useful = [1]
    for size in [*(size for size in BATCH_SIZES if 1 < size < slots), slots]:
        cost, best = ((fixed_rows + each * rows) / each for each in (size, useful[-1]))
        if cost * MIN_GAIN >= best:
            break
        useful.append(size)
    return useful


def serving_memory(planned: PlannedStep, fixed_rows: int, *, adapters: int = 0) -> Memory:
    """Estimate the memory per device of a server.

    The caches of all widths, of the model and of each adapter, may be in use at once, and a call
    copies the widest one. The adapters themselves, about 1 % of the weights each, are not counted.

    Args:
        planned: its batch is the number of slots, its canvas the context.
        fixed_rows: fixed cost of a call in rows.
        adapters: number of adapters.
    """
    cached = Decoding(preset="fast")
    slots = planned.batch
    context = planned.canvas

    def step_memory(size, columns, decoding):
        step = replace(
            planned,
            kind="generate",
            batch=size,
            canvas=columns,
            new_tokens=columns,
            decoding=decoding,
        )
        return estimate_memory(step)

    caches = [
        step_memory(slots, columns_of(width, context, is_cached=True), cached).cache
        for width in canvas_widths(context)
    ]
    # Without a cache, each step computes all rows.
    uncached = [
        step_memory(useful_sizes(slots, width, fixed_rows)[-1], width, planned.decoding)
        for width in canvas_widths(context)
    ]
    working = max(memory.working for memory in uncached) + caches[-1]
    return Memory(uncached[0].weights, (1 + adapters) * sum(caches), working)


def describe_limits(plan: PlannedStep, need: Memory) -> Fields:
    """Return the limits of a server and the memory that it needs, by name."""
    return {
        "slots": plan.batch,
        "context": plan.canvas,
        "weights": gib(need.weights),
        "caches": gib(need.cache),
        "working": gib(need.working),
    }


def fitting_limits(
    planned: PlannedStep,
    memory: float,
    fixed_rows: int,
    *,
    slots: Sequence[int] = SLOTS,
    contexts: Sequence[int] = CONTEXTS,
    adapters: int = 0,
) -> tuple[PlannedStep, Memory]:
    """Return the plan with the largest context, and then the most slots, that fits; and its memory.

    If no plan fits, it is the one of the smallest context with the fewest slots.

    Args:
        planned: its batch and canvas are replaced with slots and context.
        memory: bytes that may be used per device.
        fixed_rows: fixed cost of a call in rows.
        slots: numbers of slots to choose from, largest first.
        contexts: contexts to choose from, largest first.
        adapters: number of adapters.
    """
    plan = planned
    need = None
    for context, count in product(contexts, slots):
        columns = min(context, planned.config.max_position_embeddings)
        plan = replace(planned, batch=count, canvas=columns, new_tokens=1)
        need = serving_memory(plan, fixed_rows, adapters=adapters)
        if need.total <= memory:
            break
    assert need
    return plan, need

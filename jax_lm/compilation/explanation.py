"""Say what the compiler has made of a step: kernels, bytes, copies, sorts, and what takes the
memory.

    text = program.lower(*arguments).compile().as_text()
    found = explain(text, StepShape(vocabulary=152064, hidden=3584, memory=16 * 2**30, in_loop=True))
    print(found.kernels, found.read_again, found.buffers)

Reads the text of any program of this package, for CPUs, GPUs and TPUs: arguments are called
`params…` or `frozen…` (weights), `cache…` and so on, as the functions that are compiled call them.
How long a kernel takes it does not say.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from jax_lm.compilation.hlo import ArrayShape, Instruction, arrays, parse_hlo
from jax_lm.compilation.kernels import Kernel, LoopRun, Tracer

# Share of a device's memory from which a buffer is named.
LARGE = 0.01
# Reads of a weight above this count as more than one; below, some of its rows may be looked up
# besides.
AGAIN = 1.02
LAYER = re.compile(r"\[\d+\]")
WEIGHTS, CACHE, HEAD, TABLE = ("params", "frozen"), "cache", "lm_head", "embed_tokens"
# Only layouts of TPUs have tiles.
TILED = ":T("


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What must be known of a program to read it.

    Attributes:
        vocabulary: columns of the logits on one device.
        hidden: width of the hidden states; what has it and the vocabulary is a weight or a
            gradient, no logits.
        memory: bytes of the device.
        in_loop: whether the step is the body of the largest loop, as in a generation, or else the
            whole program.
    """

    vocabulary: int
    hidden: int
    memory: int
    in_loop: bool


@dataclass(frozen=True)
class Group:
    """Equal things of a step.

    Attributes:
        what: of what it is one: an argument, a kernel, rows.
        shape: of the array, if it is one.
        bytes: of each.
        count: how many there are, or how often it happens in a step.
        source: path of JAX's tracing.
    """

    what: str
    shape: str
    bytes: int
    count: int | float
    source: str


@dataclass(frozen=True)
class Traffic:
    """Bytes of arguments of one kind: those that a step reads at all, each counted once, and what
    its kernels read.
    """

    once: int
    read: int


@dataclass(frozen=True)
class Explanation:
    """A compiled step. Everything is of one device; bytes are without padding.

    Attributes:
        kernels: how many run in a step, by kind: product, sort, collective, host, copy, other.
        read, written: bytes of a step, by all kernels.
        weights, head, cache: what is read of the arguments; the head is one of the weights.
        read_again: weights that are read more than once; the count is how often.
        moves: copies and conversions of whole weights, or of the keys or values of a layer, in a
            step.
        moves_before: the same outside of the loop, once per call.
        sorts: what is sorted; a search for the largest few is one too.
        collectives: communication between devices.
        host: transfers from and to the host.
        rows: products with weights, by the number of rows that they compute.
        logits: float32 arrays over the vocabulary; `what` says of how many rows.
        buffers: arrays of more than 1 % of the device's memory, arguments among them.
        unknown_loops: loops in a step of which only the data say how often they run; they count
            once.
    """

    kernels: dict[str, int]
    read: int
    written: int
    weights: Traffic
    head: Traffic
    cache: Traffic
    read_again: tuple[Group, ...]
    moves: tuple[Group, ...]
    moves_before: tuple[Group, ...]
    sorts: tuple[Group, ...]
    collectives: tuple[Group, ...]
    host: tuple[Group, ...]
    rows: dict[int, int]
    logits: tuple[Group, ...]
    buffers: tuple[Group, ...]
    unknown_loops: tuple[str, ...]

    @property
    def launches(self) -> int:
        """Count the kernels of all kinds."""
        return sum(self.kernels.values())


def explain(text: str, shape: StepShape) -> Explanation:
    """Read the text of a compiled program; ValueError if it is none, or has no loop where the step
    should be one.
    """
    module = parse_hlo(text)
    arguments = {each.op_name or each.name: each for each in module.entry.parameters}
    tracer = Tracer(module, is_tpu=TILED in text)
    everything, _ = tracer.run(
        module.entry, [each.op_name or each.name for each in module.entry.parameters]
    )
    loop = largest_loop(tracer) if shape.in_loop else None
    step = everything if loop is None else loop.kernels
    inner = list(tracer.loops.values()) if loop is None else loop.inner
    outside = list((Counter(everything) - Counter(step)).elements())
    is_head = head_of(arguments)
    return Explanation(
        kernels=sum_by_key((kernel.kind, kernel.times) for kernel in step),
        read=sum(kernel.read * kernel.times for kernel in step),
        written=sum(kernel.written * kernel.times for kernel in step),
        weights=traffic(step, arguments, is_weight),
        head=traffic(step, arguments, is_head),
        cache=traffic(step, arguments, is_cached),
        read_again=tuple(read_again(step, arguments)),
        moves=group_equal(moves(step, arguments)),
        moves_before=group_equal(moves(outside, arguments)),
        sorts=group_equal(of_kind(step, "sort")),
        collectives=group_equal(of_kind(step, "collective")),
        host=group_equal(of_kind(step, "host")),
        rows=sum_by_key(product_rows(step, arguments)),
        logits=group_equal(logits(step, shape)),
        buffers=group_equal(buffers(everything, arguments, shape.memory * LARGE)),
        unknown_loops=tuple(each.source for each in inner if each.trips is None),
    )


def largest_loop(tracer: Tracer) -> LoopRun:
    """Take the loop whose body moves most bytes."""
    if not tracer.loops:
        raise ValueError("no loop in this program: must have one, whose body is the step")
    return max(
        tracer.loops.values(),
        key=lambda run: sum((k.read + k.written) * k.times for k in run.kernels),
    )


def is_weight(name: str) -> bool:
    return name.startswith(WEIGHTS)


def is_cached(name: str) -> bool:
    return name.startswith(CACHE)


def head_of(arguments: Iterable[str]) -> Callable[[str], bool]:
    """Tell which of the arguments give the logits: those of the head, or the embedding table if
    there is none.
    """
    word = HEAD if any(HEAD in name for name in arguments) else TABLE
    return lambda name: is_weight(name) and word in name


def sum_by_key(pairs: Iterable[tuple]) -> dict:
    """Sum up numbers by their key, in the order of the keys."""
    found: Counter = Counter()
    for key, number in pairs:
        found[key] += number
    return dict(sorted(found.items()))


def read_by_argument(step: list[Kernel]) -> dict[str, int]:
    """Sum up the bytes that are read of each argument."""
    return sum_by_key(
        (origin, size * k.times) for k in step for origin, size in k.reads if origin is not None
    )


def traffic(
    step: list[Kernel], arguments: dict[str, Instruction], belongs: Callable[[str], bool]
) -> Traffic:
    """Sum up what is read of some arguments, once and by every kernel."""
    read = {name: size for name, size in read_by_argument(step).items() if belongs(name)}
    return Traffic(
        sum(min(size, arguments[name].bytes) for name, size in read.items()), sum(read.values())
    )


def read_again(step: list[Kernel], arguments: dict[str, Instruction]) -> Iterator[Group]:
    """Yield the matrices that are read more than once."""
    for name, size in read_by_argument(step).items():
        argument = arguments[name]
        times = size / max(argument.bytes, 1)
        if is_weight(name) and is_matrix(argument) and times > AGAIN:
            yield Group(name, shape_of(argument), argument.bytes, round(times, 2), "")


def moves(step: list[Kernel], arguments: dict[str, Instruction]) -> Iterator[tuple[Group, float]]:
    """Yield copies and conversions of matrices and caches."""
    for kernel in step:
        for name in kernel.moved:
            if is_matrix(arguments[name]) and (is_weight(name) or is_cached(name)):
                size = arguments[name].bytes
                source = kernel.source or kernel.name
                yield (
                    Group(LAYER.sub("[*]", name), shape_of(arguments[name]), size, 0, source),
                    kernel.times,
                )


def of_kind(step: list[Kernel], kind: str) -> Iterator[tuple[Group, float]]:
    """Yield the kernels of a kind, each with its largest result."""
    for kernel in step:
        if kernel.kind == kind:
            largest = max(kernel.shapes, key=lambda shape: shape.bytes, default=None)
            yield (
                Group(kernel.name, str(largest or ""), kernel.written, 0, kernel.source),
                kernel.times,
            )


def logits(step: list[Kernel], shape: StepShape) -> Iterator[tuple[Group, float]]:
    """Yield float32 arrays of rows of logits, or of anything else over the vocabulary."""
    for kernel in step:
        for array in kernel.shapes:
            if rows := logit_rows(array, shape):
                yield Group(f"{rows} rows", str(array), array.bytes, 0, kernel.source), kernel.times


def logit_rows(array: ArrayShape, shape: StepShape) -> int:
    """Count the rows of an array over the vocabulary, which may be cut in chunks; 0 if it is none."""
    if array.dtype != "f32" or shape.hidden in array.dimensions:
        return 0
    last = array.dimensions[-1:]
    # Chunks are of a power of two columns; other products of dimensions are the vocabulary by
    # chance.
    chunked = math.prod(array.dimensions[-2:]) == shape.vocabulary and last[0].bit_count() == 1
    return (
        array.elements // shape.vocabulary if shape.vocabulary in array.dimensions or chunked else 0
    )


def product_rows(
    step: list[Kernel], arguments: dict[str, Instruction]
) -> Iterator[tuple[int, float]]:
    """Yield for each product with weights how many rows it computes; a compiler may have joined
    several weights.
    """
    for kernel in step:
        shapes = [
            next(arrays(arguments[name].shape))
            for name, _ in kernel.reads
            if name is not None and is_weight(name)
        ]
        matrices = [shape for shape in shapes if len(shape.dimensions) > 1]
        if kernel.kind == "product" and matrices and len(kernel.factors) == 2:
            weights, inputs = sum(shape.elements for shape in matrices), matrices[0].dimensions[-1]
            left, right = kernel.factors
            # Where they are equally large, either is right.
            yield (left if right == weights else right) // inputs, kernel.times


def buffers(
    kernels: list[Kernel], arguments: dict[str, Instruction], least: float
) -> Iterator[tuple[Group, float]]:
    """Yield arrays of at least so many bytes: arguments, and results that are no part of another
    array.
    """
    for name, each in arguments.items():
        if each.bytes >= least:
            yield Group(LAYER.sub("[*]", name), shape_of(each), each.bytes, 0, "argument"), 1
    for kernel in kernels:
        for array in kernel.shapes:
            if array.bytes >= least:
                yield Group(kernel.kind, str(array), array.bytes, 0, kernel.source), 1


def is_matrix(argument: Instruction) -> bool:
    return all(len(array.dimensions) >= 2 for array in arrays(argument.shape))


def shape_of(argument: Instruction) -> str:
    return str(next(arrays(argument.shape)))


def group_equal(items: Iterable[tuple[Group, float]]) -> tuple[Group, ...]:
    """Count equal groups; the largest first."""
    found = sum_by_key(
        ((each.bytes, each.what, each.shape, each.source), count) for each, count in items
    )
    return tuple(
        Group(what, shape, size, count, source)
        for (size, what, shape, source), count in reversed(found.items())
    )

"""Explain a compiled step by its kernels, memory traffic, copies, sorts and large buffers.

    text = program.lower(*arguments).compile().as_text()
    shape = StepShape(vocabulary=152064, hidden=3584, memory=16 * 2**30, in_loop=True)
    explanation = explain(text, shape)
    print(explanation.kernels, explanation.read_again, explanation.buffers)

Reads the text of any program of this package, for CPUs, GPUs and TPUs. Arguments are recognised by
their names in the compiled functions: `params…` or `frozen…` (weights), `cache…` and so on. It does
not estimate how long a kernel takes.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from experiments.compiled.hlo import ArrayShape, Instruction, arrays, parse_hlo
from experiments.compiled.kernels import Kernel, LoopRun, Tracer

# Share of a device's memory from which a buffer is listed.
LARGE = 0.01
# A weight is read again if a step reads more than this multiple of its bytes. The margin is for
# lookups of single rows, in addition to one read of the whole.
AGAIN = 1.02
# Index of a layer: params['layers'][3] -> params['layers'][*] groups the layers.
LAYER = re.compile(r"\[\d+\]")
# Prefixes of the arguments' names, and words in the names of the head and the embedding table.
WEIGHTS, CACHE, HEAD, TABLE = ("params", "frozen"), "cache", "lm_head", "embed_tokens"
# Only layouts of TPUs have tiles.
TILED = ":T("


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """Properties of a program that its text does not contain.

    Attributes:
        vocabulary: columns of the logits on one device.
        hidden: width of the hidden states. An array with both this dimension and the vocabulary is
            a weight or a gradient, not logits.
        memory: bytes of the device's memory.
        in_loop: the step is the body of the largest loop, as in a generation; otherwise it is the
            whole program.
    """

    vocabulary: int
    hidden: int
    memory: int
    in_loop: bool


@dataclass(frozen=True)
class Group:
    """A group of equal arguments, kernels or arrays of a step.

    Attributes:
        what: name of the argument or kernel, or number of rows.
        shape: shape of the array, if it is one.
        bytes: bytes of each member.
        count: number of members, or of occurrences in a step.
        source: path of JAX's tracing.
    """

    what: str
    shape: str
    bytes: int
    count: int | float
    source: str


@dataclass(frozen=True)
class Traffic:
    """Memory traffic of one kind of arguments.

    Attributes:
        once: bytes that a step reads at all, each counted once.
        read: bytes that all kernels of a step read.
    """

    once: int
    read: int


@dataclass(frozen=True)
class Explanation:
    """A compiled step. All figures are per device; bytes are without padding.

    Attributes:
        kernels: kernels of a step, by kind: product, sort, collective, host, copy, other.
        read: bytes read by all kernels of a step.
        written: bytes written by all kernels of a step.
        weights: reads of the weights.
        head: reads of the head, which is one of the weights.
        cache: reads of the KV cache.
        read_again: weights that are read more than once; `count` is the number of reads.
        moves: copies and conversions, in a step, of whole weights or of the keys or values of a
            layer.
        moves_before: the same moves outside the loop, once per call.
        sorts: sorts, including top-k searches.
        collectives: communication between devices.
        host: transfers from and to the host.
        rows: number of products with weights, by the number of rows that they compute.
        logits: float32 arrays over the vocabulary; `what` is their number of rows.
        buffers: arrays of more than 1 % of the device's memory, including arguments.
        unknown_loops: loops in a step whose number of iterations depends on the data. They are
            counted as one iteration.
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
        """Number of kernels of all kinds."""
        return sum(self.kernels.values())


def explain(text: str, shape: StepShape) -> Explanation:
    """Explain a compiled program from its text.

    Raises:
        ValueError: the text is not an HLO module, or it has no loop although the step is a loop's
            body.
    """
    # trace all kernels, with each argument as the origin of its values
    module = parse_hlo(text)
    arguments = {
        parameter.op_name or parameter.name: parameter for parameter in module.entry.parameters
    }
    tracer = Tracer(module, is_tpu=TILED in text)
    # the name of an argument is its path in Python, such as "params['layers'][3]…"
    everything, _ = tracer.run(
        module.entry, [parameter.op_name or parameter.name for parameter in module.entry.parameters]
    )
    # separate the step from the kernels outside its loop
    loop = largest_loop(tracer) if shape.in_loop else None
    step = everything if loop is None else loop.kernels
    inner = list(tracer.loops.values()) if loop is None else loop.inner
    # multiset difference: [a, a, b] - [a] -> [a, b]
    outside = list((Counter(everything) - Counter(step)).elements())
    is_head = head_of(arguments)
    return Explanation(
        kernels=sum_by_key((kernel.kind, kernel.times) for kernel in step),
        read=sum(kernel.read * kernel.times for kernel in step),
        written=sum(kernel.written * kernel.times for kernel in step),
        weights=traffic(step, arguments, is_weight),
        head=traffic(step, arguments, is_head),
        cache=traffic(step, arguments, is_cache),
        read_again=tuple(read_again(step, arguments)),
        moves=group_equal(moves(step, arguments)),
        moves_before=group_equal(moves(outside, arguments)),
        sorts=group_equal(of_kind(step, "sort")),
        collectives=group_equal(of_kind(step, "collective")),
        host=group_equal(of_kind(step, "host")),
        rows=sum_by_key(product_rows(step, arguments)),
        logits=group_equal(logits(step, shape)),
        buffers=group_equal(buffers(everything, arguments, shape.memory * LARGE)),
        unknown_loops=tuple(run.source for run in inner if run.trips is None),
    )


def largest_loop(tracer: Tracer) -> LoopRun:
    """Return the loop whose body reads and writes the most bytes."""
    if not tracer.loops:
        raise ValueError("no loop in this program: must have one, whose body is the step")
    return max(
        tracer.loops.values(),
        key=lambda run: sum((k.read + k.written) * k.times for k in run.kernels),
    )


def is_weight(name: str) -> bool:
    """Return whether an argument is a weight."""
    return name.startswith(WEIGHTS)


def is_cache(name: str) -> bool:
    """Return whether an argument is part of the KV cache."""
    return name.startswith(CACHE)


def head_of(arguments: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate for the arguments that compute the logits.

    These are the weights of the head or, if embeddings are tied, the embedding table.
    """
    # With tied embeddings the checkpoint has no `lm_head`.
    word = HEAD if any(HEAD in name for name in arguments) else TABLE
    return lambda name: is_weight(name) and word in name


def sum_by_key(pairs: Iterable[tuple]) -> dict:
    """Return the sum of the numbers of each key, sorted by key."""
    # ("copy", 1), ("sort", 2), ("copy", 3) -> {"copy": 4, "sort": 2}
    sums: Counter = Counter()
    for key, number in pairs:
        sums[key] += number
    return dict(sorted(sums.items()))


def read_by_argument(step: list[Kernel]) -> dict[str, int]:
    """Return the bytes that a step reads from each argument."""
    return sum_by_key(
        (origin, size * k.times) for k in step for origin, size in k.reads if origin is not None
    )


def traffic(
    step: list[Kernel], arguments: dict[str, Instruction], belongs: Callable[[str], bool]
) -> Traffic:
    """Return the memory traffic of the arguments that `belongs` selects."""
    read = {name: size for name, size in read_by_argument(step).items() if belongs(name)}
    # `once` is at most the argument's size: 3 reads of 1 GiB are read 3 GiB, once 1 GiB
    return Traffic(
        sum(min(size, arguments[name].bytes) for name, size in read.items()), sum(read.values())
    )


def read_again(step: list[Kernel], arguments: dict[str, Instruction]) -> Iterator[Group]:
    """Yield the weight matrices that are read more than once."""
    # Biases and norms are small, so that reading them again costs nothing.
    for name, size in read_by_argument(step).items():
        argument = arguments[name]
        times = size / max(argument.bytes, 1)
        if is_weight(name) and is_matrix(argument) and times > AGAIN:
            yield Group(name, shape_of(argument), argument.bytes, round(times, 2), "")


def moves(step: list[Kernel], arguments: dict[str, Instruction]) -> Iterator[tuple[Group, float]]:
    """Yield copies and conversions of weight matrices and caches."""
    for kernel in step:
        for name in kernel.moved:
            if is_matrix(arguments[name]) and (is_weight(name) or is_cache(name)):
                size = arguments[name].bytes
                source = kernel.source or kernel.name
                # the count is 0 here; `group_equal` adds up the runs per step
                yield (
                    Group(LAYER.sub("[*]", name), shape_of(arguments[name]), size, 0, source),
                    kernel.times,
                )


def of_kind(step: list[Kernel], kind: str) -> Iterator[tuple[Group, float]]:
    """Yield the kernels of a kind, with the shape of their largest result."""
    for kernel in step:
        if kernel.kind == kind:
            largest = max(kernel.shapes, key=lambda shape: shape.bytes, default=None)
            yield (
                Group(kernel.name, str(largest or ""), kernel.written, 0, kernel.source),
                kernel.times,
            )


def logits(step: list[Kernel], shape: StepShape) -> Iterator[tuple[Group, float]]:
    """Yield float32 arrays over the vocabulary: logits, probabilities and the like."""
    for kernel in step:
        for array in kernel.shapes:
            if rows := logit_rows(array, shape):
                yield Group(f"{rows} rows", str(array), array.bytes, 0, kernel.source), kernel.times


def logit_rows(array: ArrayShape, shape: StepShape) -> int:
    """Return the number of rows of an array over the vocabulary; 0 for any other array."""
    # f32[2,16,152064] -> 32 rows; f32[32,594,256] -> 32 rows, since 594 * 256 = 152064
    if array.dtype != "f32" or shape.hidden in array.dimensions:
        return 0
    last = array.dimensions[-1:]
    # XLA may split the vocabulary into chunks, whose width is a power of two. If it is not, the
    # product of the dimensions equals the vocabulary by chance.
    chunked = math.prod(array.dimensions[-2:]) == shape.vocabulary and last[0].bit_count() == 1
    return (
        array.elements // shape.vocabulary if shape.vocabulary in array.dimensions or chunked else 0
    )


def product_rows(
    step: list[Kernel], arguments: dict[str, Instruction]
) -> Iterator[tuple[int, float]]:
    """Yield the number of rows of each product with weights.

    The compiler may have merged products with several weights into one.
    """
    for kernel in step:
        shapes = [
            next(arrays(arguments[name].shape))
            for name, _ in kernel.reads
            if name is not None and is_weight(name)
        ]
        matrices = [shape for shape in shapes if len(shape.dimensions) > 1]
        if kernel.kind == "product" and matrices and len(kernel.factors) == 2:
            # a kernel of shape [outputs, inputs]: f32[3584,512] has 512 inputs
            weights, inputs = sum(shape.elements for shape in matrices), matrices[0].dimensions[-1]
            # One factor is the weights, the other one the inputs, of shape [rows, inputs]. If both
            # have the same size, either one gives the number of rows.
            left, right = kernel.factors
            yield (left if right == weights else right) // inputs, kernel.times


def buffers(
    kernels: list[Kernel], arguments: dict[str, Instruction], least: float
) -> Iterator[tuple[Group, float]]:
    """Yield arrays of at least `least` bytes: arguments, and results not inside another array."""
    # buffers that exist for the whole call
    for name, argument in arguments.items():
        if argument.bytes >= least:
            group = Group(LAYER.sub("[*]", name), shape_of(argument), argument.bytes, 0, "argument")
            yield group, 1
    # results of kernels; not all of them are live at the same time
    for kernel in kernels:
        for array in kernel.shapes:
            if array.bytes >= least:
                yield Group(kernel.kind, str(array), array.bytes, 0, kernel.source), 1


def is_matrix(argument: Instruction) -> bool:
    """Return whether all arrays of an argument have at least two dimensions."""
    return all(len(array.dimensions) >= 2 for array in arrays(argument.shape))


def shape_of(argument: Instruction) -> str:
    """Return the shape of an argument's first array."""
    return str(next(arrays(argument.shape)))


def group_equal(items: Iterable[tuple[Group, float]]) -> tuple[Group, ...]:
    """Merge equal groups and add up their counts; the largest members come first."""
    counts = sum_by_key(
        ((group.bytes, group.what, group.shape, group.source), count) for group, count in items
    )
    # sum_by_key sorts by bytes first, ascending; hence `reversed`
    return tuple(
        Group(what, shape, size, count, source)
        for (size, what, shape, source), count in reversed(counts.items())
    )

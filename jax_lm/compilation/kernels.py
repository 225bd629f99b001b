"""List the kernels that a compiled program runs, with the bytes that each reads and writes and
where they come from.

    kernels, _ = Tracer(module).run(module.entry, origins)

Every value is followed to the argument of the program that it came from (its origin), through
tuples, loops, copies and conversions; so that a weight is known wherever it is read. What is sliced
or updated in place counts with the part that is touched. Caches of a device are not modelled: a
kernel reads all its operands from memory, and writes its results to it; on TPUs, arrays that XLA
has placed in the chip's own memory are free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jax_lm.compilation.hlo import ArrayShape, Computation, Instruction, Module, Shape, arrays

# Opcodes that run nothing.
FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "optimization-barrier", "add-dependency", "domain", "get-dimension-size", }  # fmt: skip
# Opcodes whose result is their operand.
SAME = {
    "bitcast",
    "copy",
    "optimization-barrier",
    "opt-barrier",
    "add-dependency",
    "reshape",
    "domain",
    "copy-done",
}
RENAMING = {"bitcast", "reshape", "get-tuple-element"}
# Opcodes that change no more than place, order and type of what they are given; a product with a
# broadcast scale, as
# int8 kernels have one, is among them.
MOVING = SAME | {
    "parameter", "constant", "tuple", "get-tuple-element", "convert", "transpose", "broadcast", "multiply", "fusion",
    "copy-start", "slice", "concatenate", "pad",
}  # fmt: skip
SLICING = {"dynamic-slice", "slice", "gather"}
# Opcodes that rewrite a part of their first operand, and which operand holds that part.
IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip
HOST = ("infeed", "outfeed", "send", "recv")
HOST_SPACE, MAIN_SPACE = 5, 0
PRODUCTS = ("dot", "convolution")
PRODUCT_TARGETS = ("gemm", "matmul", "dot", "conv")
SORT_TARGETS = ("sort", "topk", "top_k", "top-k", "partialreduce")
NOTHING_TARGETS = ("ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound")
HOST_TARGETS = ("callback", "movetohost", "movetodevice", "annotate_device_placement")

# Origin of a value: an argument of the program, or of each part of a tuple; None is computed.
Value = str | tuple | None


@dataclass(frozen=True)
class Kernel:
    """Something that a device runs at once.

    Attributes:
        kind: product, sort, collective, host, copy, or other.
        name: its opcode, or the function that it calls.
        source: path of JAX's tracing.
        shapes: of its results in the device's memory that are no part of another array.
        reads: bytes from each origin; None stands for what was computed.
        written: bytes.
        times: runs per step.
        factors: elements of what a product multiplies.
        moved: origins of which the result holds all elements, in another place, order or type.
    """

    kind: str
    name: str
    source: str
    shapes: tuple[ArrayShape, ...]
    reads: tuple[tuple[str | None, int], ...]
    written: int
    times: int = 1
    factors: tuple[int, ...] = ()
    moved: tuple[str, ...] = ()

    @property
    def read(self) -> int:
        return sum(size for _, size in self.reads)


@dataclass(frozen=True)
class Access:
    """Bytes that a fused computation reads of each parameter, and those that it writes."""

    reads: tuple[int, ...]
    written: int


def result_of(each: Instruction) -> Shape:
    """Take what an instruction makes: that which begins something names its operands and a counter
    as well.
    """
    if (
        not isinstance(each.shape, tuple)
        or not each.opcode.endswith("-start")
        or each.opcode == "all-reduce-start"
    ):
        return each.shape
    return each.shape[0 if each.opcode == "copy-start" else 1]


@dataclass(frozen=True)
class LoopRun:
    """One run of a loop.

    Attributes:
        source: path of JAX's tracing.
        trips: how often it runs; None if only the data say so.
        kernels: of one run.
        inner: loops in its body.
    """

    source: str
    trips: int | None
    kernels: list[Kernel]
    inner: "list[LoopRun]"


class Tracer:
    """Follows the values of a module; see above.

    Attributes:
        loops: one run of each loop, by the name of its instruction.
    """

    def __init__(self, module: Module, *, is_tpu: bool = False) -> None:
        self.module, self.is_tpu = module, is_tpu
        self.loops: dict[str, LoopRun] = {}
        self.accesses: dict[str, Access] = {}

    def run(
        self, computation: Computation, arguments: Sequence[Value]
    ) -> tuple[list[Kernel], Value]:
        """List what a computation runs, and the origin of its result, given those of its
        parameters.
        """
        values: dict[str, Value] = {}
        kernels: list[Kernel] = []
        for each in computation.instructions.values():
            operands = [values[name] for name in each.operands]
            if each.opcode == "parameter":
                values[each.name] = (
                    arguments[int(each.literal)] if int(each.literal) < len(arguments) else None
                )
                continue
            found, values[each.name] = self.run_instruction(computation, each, operands)
            kernels += found
        return kernels, values[computation.root.name]

    def run_instruction(
        self, computation: Computation, each: Instruction, operands: list[Value]
    ) -> tuple[list[Kernel], Value]:
        """List what an instruction runs, and the origin of its result."""
        first = operands[0] if operands else None
        opcode = each.opcode
        if opcode == "tuple":
            return [], tuple(operands)
        if opcode == "get-tuple-element":
            index = int(each.attributes.partition("index=")[2].split(",")[0])
            return [], first[index] if isinstance(first, tuple) and index < len(first) else None
        if opcode == "while":
            return self.run_loop(each, first)
        if opcode == "conditional":
            return self.run_branches(each, operands)
        if opcode == "call" or (opcode == "async-start" and each.called):
            kernels, value = self.run(self.module.computations[each.called[0]], operands)
            return kernels, value if opcode == "call" else (tuple(operands), value)
        if opcode in ("async-done", "async-update"):
            return [], first if opcode == "async-update" else first[1] if isinstance(
                first, tuple
            ) else None
        if opcode in FREE or opcode.endswith("-done") or each.target in NOTHING_TARGETS:
            done = first[0] if opcode == "copy-done" and isinstance(first, tuple) else first
            return [], done if opcode in SAME else None
        kernel = self.kernel(computation, each, operands)
        if opcode == "copy-start":
            return [kernel], (first, first)
        if opcode in SAME:
            return [kernel], first
        rewritten = self.rewritten(each)
        if isinstance(rewritten, tuple):
            return [kernel], tuple(
                None if index is None else operands[index] for index in rewritten
            )
        if rewritten is not None:
            return [kernel], operands[rewritten]
        return [kernel], kernel.moved[0] if len(kernel.moved) == 1 else None

    def run_loop(self, each: Instruction, start: Value) -> tuple[list[Kernel], Value]:
        """Run the body of a loop as often as it is known to run, else once."""
        condition, body = (
            self.module.computations[each.computation(role) or ""] for role in ("condition", "body")
        )
        outer = dict(self.loops)
        kernels, end = self.run(body, [start])
        kernels += self.run(condition, [start])[0]
        inner = [run for name, run in self.loops.items() if name not in outer]
        self.loops[each.name] = LoopRun(each.op_name, each.trips, kernels, inner)
        times = each.trips or 1
        if isinstance(start, tuple) and isinstance(end, tuple):
            end = tuple(old if new is None else new for old, new in zip(start, end, strict=True))
        return [replace(kernel, times=kernel.times * times) for kernel in kernels], end

    def run_branches(self, each: Instruction, operands: list[Value]) -> tuple[list[Kernel], Value]:
        """Run the branch that moves most bytes."""
        ran = [
            self.run(self.module.computations[name], [argument])
            for name, argument in zip(each.called, operands[1:], strict=True)
        ]
        return max(ran, key=lambda result: sum((k.read + k.written) * k.times for k in result[0]))

    def kernel(self, computation: Computation, each: Instruction, operands: list[Value]) -> Kernel:
        """Describe what an instruction runs as one kernel."""
        access = self.touched(computation, each)
        reads: dict[str | None, int] = {}
        for operand, size in zip(operands, access.reads, strict=True):
            origin = operand if isinstance(operand, str) else None
            reads[origin] = reads.get(origin, 0) + size
        kind = self.kind(each)
        return Kernel(
            kind,
            each.target or (each.name.split(".")[0] if each.opcode == "fusion" else each.opcode),
            each.op_name,
            tuple(shape for shape in self.fresh(each) if self.stored(shape)),
            tuple(reads.items()),
            access.written,
            factors=tuple(self.factors(computation, each)) if kind == "product" else (),
            moved=tuple(self.moved(computation, each, operands)) if access.written else (),
        )

    def fresh(self, each: Instruction) -> Iterator[ArrayShape]:
        """Yield the arrays of a result that are no operand rewritten where it lies."""
        rewritten = self.rewritten(each)
        if isinstance(rewritten, tuple) and isinstance(each.shape, tuple):
            for shape, number in zip(each.shape, rewritten, strict=True):
                yield from () if number is not None else arrays(shape)
        elif rewritten is None:
            yield from arrays(result_of(each))

    def touched(self, computation: Computation, each: Instruction) -> Access:
        """Count the bytes that an instruction moves to and from memory."""
        shapes = [computation.instructions[name].shape for name in each.operands]
        if each.opcode == "fusion":
            inner = self.fused(each.called[0])
            reads = [
                min(size, self.stored(shape))
                for size, shape in zip(inner.reads, shapes, strict=True)
            ]
            return Access(tuple(reads), min(inner.written, self.stored(each.shape)))
        sizes = [self.stored(shape) for shape in shapes]
        written = self.stored(result_of(each))
        if each.opcode in SLICING:
            sizes[0] = min(sizes[0], each.bytes)
        elif each.opcode in IN_PLACE:
            written = min(written, sizes[IN_PLACE[each.opcode]])
            sizes[0] = 0
        elif each.opcode == "slice-start":
            sizes[0] = min(sizes[0], sum(array.bytes for array in arrays(result_of(each))))
        return Access(tuple(sizes), written)

    def stored(self, shape: Shape) -> int:
        """Count the bytes of a shape that lie in the main memory."""
        return sum(
            array.bytes for array in arrays(shape) if not self.is_tpu or array.space == MAIN_SPACE
        )

    def fused(self, name: str) -> Access:
        """Count the bytes that a fused computation reads of each parameter, and writes."""
        if name not in self.accesses:
            computation = self.module.computations[name]
            reads = tuple(
                min(self.read_of(computation, each), each.bytes) for each in computation.parameters
            )
            self.accesses[name] = Access(reads, self.written_by(computation, computation.root))
        return self.accesses[name]

    def read_of(self, computation: Computation, value: Instruction) -> int:
        """Count the bytes of a value that a fused computation needs: only the slices, if nothing
        else is used.
        """
        total = 0
        for user in computation.users[value.name]:
            if user.opcode in SLICING and value.name not in user.operands[1:]:
                total += user.bytes
            elif user.opcode in IN_PLACE and value.name not in user.operands[1:]:
                continue
            elif self.renames(user):
                total += self.read_of(computation, user)
            elif user.opcode == "fusion":
                inner = self.fused(user.called[0])
                total += sum(
                    size
                    for name, size in zip(user.operands, inner.reads, strict=True)
                    if name == value.name
                )
            elif user.opcode != "tuple":
                return value.bytes
        return total

    def written_by(self, computation: Computation, root: Instruction) -> int:
        """Count the bytes that a fused computation writes: only the part, if it rewrites one in
        place.
        """
        if root.opcode == "tuple":
            return sum(
                self.written_by(computation, computation.instructions[name])
                for name in root.operands
            )
        if self.renames(root):
            return self.written_by(computation, computation.instructions[root.operands[0]])
        if self.rewritten_parameter(computation, root) is not None:
            return computation.instructions[root.operands[IN_PLACE[root.opcode]]].bytes
        if root.opcode == "fusion":
            return self.fused(root.called[0]).written
        return 0 if root.opcode == "parameter" else root.bytes

    def renames(self, each: Instruction) -> bool:
        """Tell whether an instruction gives its first operand as it is, be it as a fusion that does
        nothing else.
        """
        if each.opcode != "fusion":
            return each.opcode in RENAMING
        return all(
            found.opcode in RENAMING | {"parameter", "fusion"} for found in self.module.nested(each)
        )

    def kind(self, each: Instruction) -> str:
        """Classify an instruction, with all that is fused into it."""
        inner = list(self.module.nested(each))
        opcodes = {found.opcode.removesuffix("-start") for found in inner}
        targets = " ".join(found.target.lower() for found in inner if found.target)
        in_host = any(array.space == HOST_SPACE for array in arrays(each.shape))
        if in_host or opcodes & set(HOST) or any(word in targets for word in HOST_TARGETS):
            return "host"
        if opcodes & set(COLLECTIVES):
            return "collective"
        if opcodes & {"sort", "topk"} or any(word in targets for word in SORT_TARGETS):
            return "sort"
        if opcodes & set(PRODUCTS) or any(word in targets for word in PRODUCT_TARGETS):
            return "product"
        return (
            "copy"
            if each.opcode.removesuffix("-start") in ("copy", "slice", "transpose")
            else "other"
        )

    def factors(self, computation: Computation, each: Instruction) -> Iterator[int]:
        """Yield the elements of the operands of a product, which may be fused with others."""
        if each.opcode == "fusion":
            inner = self.module.computations[each.called[0]]
            for found in inner.instructions.values():
                if self.kind(found) == "product":
                    yield from self.factors(inner, found)
        else:
            for name in each.operands[:2]:
                yield sum(array.elements for array in arrays(computation.instructions[name].shape))

    def moved(
        self, computation: Computation, each: Instruction, operands: list[Value]
    ) -> Iterator[str]:
        """Yield the origins of which a kernel's result holds every element, in another place, order
        or type.
        """
        if any(found.opcode not in MOVING for found in self.module.nested(each)):
            return
        room = sum(array.elements for array in self.fresh(each))
        for name, origin in zip(each.operands, operands, strict=True):
            whole = sum(array.elements for array in arrays(computation.instructions[name].shape))
            if isinstance(origin, str) and 1 < whole <= room:
                room -= whole
                yield origin

    def rewritten(self, each: Instruction) -> int | tuple[int | None, ...] | None:
        """Number the operand of which an instruction rewrites a part where it lies, for each
        result; None if none.
        """
        if each.opcode in IN_PLACE:
            return 0
        if each.opcode != "fusion":
            return None
        computation = self.module.computations[each.called[0]]
        root = computation.root
        if root.opcode != "tuple":
            return self.rewritten_parameter(computation, root)
        numbers = tuple(
            self.rewritten_parameter(computation, computation.instructions[name])
            for name in root.operands
        )
        return None if all(number is None for number in numbers) else numbers

    def rewritten_parameter(self, computation: Computation, value: Instruction) -> int | None:
        """Number the parameter of a fused computation of which a value is a rewritten form."""
        is_rewritten = False
        while value.opcode in IN_PLACE or self.renames(value):
            is_rewritten = is_rewritten or value.opcode in IN_PLACE
            value = computation.instructions[value.operands[0]]
        return int(value.literal) if is_rewritten and value.opcode == "parameter" else None

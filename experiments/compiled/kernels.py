"""List the kernels of a compiled program, with the bytes that each reads and writes.

    kernels, _ = Tracer(module).run(module.entry, origins)

Every value is traced to the program argument that it comes from (its origin), through tuples,
loops, copies and conversions, so that reads of a weight are recognised everywhere. Slices and
in-place updates count only the bytes that they access. Hardware caches are not modelled: a kernel
reads all operands from memory and writes its results to it. On TPUs, arrays that XLA places in
on-chip memory are free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.compiled.hlo import ArrayShape, Computation, Instruction, Module, Shape, arrays

# Opcodes that run nothing.
FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "optimization-barrier", "add-dependency", "domain",
    "get-dimension-size",
}  # fmt: skip
# Opcodes whose result has the values of their operand.
SAME = {
    "bitcast", "copy", "optimization-barrier", "opt-barrier", "add-dependency", "reshape", "domain",
    "copy-done",
}  # fmt: skip
# Opcodes that neither move nor compute data.
RENAMING = {"bitcast", "reshape", "get-tuple-element"}
# Opcodes that change only the location, order or type of their operands, including the product
# with a broadcast scale in int8 kernels.
MOVING = SAME | {
    "parameter", "constant", "tuple", "get-tuple-element", "convert", "transpose", "broadcast",
    "multiply", "fusion", "copy-start", "slice", "concatenate", "pad",
}  # fmt: skip
# Opcodes that read a part of their first operand.
SLICING = {"dynamic-slice", "slice", "gather"}
# Opcodes that rewrite a part of their first operand, with the index of the operand that contains
# the new part.
IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
HOST = ("infeed", "outfeed", "send", "recv")
# Memory spaces in XLA's layouts: S(5) is the host's memory.
HOST_SPACE, MAIN_SPACE = 5, 0
PRODUCTS = ("dot", "convolution")
# Words in the targets of custom calls, by the kind of their kernel.
PRODUCT_TARGETS = ("gemm", "matmul", "dot", "conv")
SORT_TARGETS = ("sort", "topk", "top_k", "top-k", "partialreduce")
# Targets of custom calls that run nothing.
NOTHING_TARGETS = ("ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound")
HOST_TARGETS = ("callback", "movetohost", "movetodevice", "annotate_device_placement")

# Origin of a value: an argument of the program, or a tuple of origins; None if it is computed.
Value = str | tuple | None


@dataclass(frozen=True)
class Kernel:
    """A kernel of a device.

    Attributes:
        kind: product, sort, collective, host, copy, or other.
        name: opcode, or library function.
        source: path of JAX's tracing.
        shapes: shapes of the results in device memory, except those inside another array.
        reads: bytes read from each origin; origin None stands for all computed values.
        written: bytes written.
        times: runs per step.
        factors: elements of the two operands of a product.
        moved: origins whose elements are all in the result, in another location, order or type.
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
        """Bytes read from all origins."""
        return sum(size for _, size in self.reads)


@dataclass(frozen=True)
class Access:
    """Bytes that a computation reads from each parameter, and bytes that it writes."""

    reads: tuple[int, ...]
    written: int


def result_of(instruction: Instruction) -> Shape:
    """Return the shape of an instruction's result.

    The shape of an asynchronous start is a tuple that also contains its operands and a counter.
    """
    # copy-start: (result, operand, u32[]); all-gather-start: (operand, result)
    if (
        not isinstance(instruction.shape, tuple)
        or not instruction.opcode.endswith("-start")
        or instruction.opcode == "all-reduce-start"
    ):
        return instruction.shape
    return instruction.shape[0 if instruction.opcode == "copy-start" else 1]


@dataclass(frozen=True)
class LoopRun:
    """One iteration of a loop.

    Attributes:
        source: path of JAX's tracing.
        trips: number of iterations; None if it depends on the data.
        kernels: kernels of one iteration.
        inner: loops in its body.
    """

    source: str
    trips: int | None
    kernels: list[Kernel]
    inner: "list[LoopRun]"


class Tracer:
    """Traces the values of a module and lists its kernels.

    Attributes:
        module: the program.
        is_tpu: whether it is compiled for TPUs.
        loops: one iteration of each loop, by the name of its instruction.
        accesses: access of each fused computation measured so far, by its name.
    """

    def __init__(self, module: Module, *, is_tpu: bool = False) -> None:
        self.module, self.is_tpu = module, is_tpu
        self.loops: dict[str, LoopRun] = {}
        self.accesses: dict[str, Access] = {}

    def run(
        self, computation: Computation, arguments: Sequence[Value]
    ) -> tuple[list[Kernel], Value]:
        """Trace a computation, given the origins of its parameters.

        Returns:
            The kernels that it runs, and the origin of its result.
        """
        # In a scheduled program each operand precedes its users, so that one pass is enough.
        values: dict[str, Value] = {}
        kernels: list[Kernel] = []
        for instruction in computation.instructions.values():
            operands = [values[name] for name in instruction.operands]
            if instruction.opcode == "parameter":
                # the literal of a parameter is its index: "parameter(2)"
                values[instruction.name] = (
                    arguments[int(instruction.literal)]
                    if int(instruction.literal) < len(arguments)
                    else None
                )
                continue
            new_kernels, values[instruction.name] = self.run_instruction(
                computation, instruction, operands
            )
            kernels += new_kernels
        return kernels, values[computation.root.name]

    def run_instruction(
        self, computation: Computation, instruction: Instruction, operands: list[Value]
    ) -> tuple[list[Kernel], Value]:
        """Return the kernels that an instruction runs, and the origin of its result."""
        first = operands[0] if operands else None
        opcode = instruction.opcode
        # tuples and control flow
        if opcode == "tuple":
            return [], tuple(operands)
        if opcode == "get-tuple-element":
            # "get-tuple-element((f32[], s32[]) %t), index=1": the origin of element 1
            index = int(instruction.attributes.partition("index=")[2].split(",")[0])
            return [], first[index] if isinstance(first, tuple) and index < len(first) else None
        if opcode == "while":
            return self.run_loop(instruction, first)
        if opcode == "conditional":
            return self.run_branches(instruction, operands)
        if opcode == "call" or (opcode == "async-start" and instruction.callees):
            # an asynchronous start carries (operands, result) until its `async-done`
            kernels, value = self.run(self.module.computations[instruction.callees[0]], operands)
            return kernels, value if opcode == "call" else (tuple(operands), value)
        if opcode in ("async-done", "async-update"):
            return [], first if opcode == "async-update" else first[1] if isinstance(
                first, tuple
            ) else None
        # instructions without a kernel
        if opcode in FREE or opcode.endswith("-done") or instruction.target in NOTHING_TARGETS:
            # `copy-start` returned (result, operand): both have the same origin
            done = first[0] if opcode == "copy-done" and isinstance(first, tuple) else first
            return [], done if opcode in SAME else None
        # one kernel; the origin passes through copies, in-place updates and moves
        kernel = self.kernel(computation, instruction, operands)
        if opcode == "copy-start":
            return [kernel], (first, first)
        if opcode in SAME:
            return [kernel], first
        rewritten = self.find_rewritten(instruction)
        if isinstance(rewritten, tuple):
            return [kernel], tuple(
                None if index is None else operands[index] for index in rewritten
            )
        if rewritten is not None:
            return [kernel], operands[rewritten]
        return [kernel], kernel.moved[0] if len(kernel.moved) == 1 else None

    def run_loop(self, instruction: Instruction, start: Value) -> tuple[list[Kernel], Value]:
        """Trace a loop. Its kernels are counted once if the number of iterations is unknown."""
        condition, body = (
            self.module.computations[instruction.computation(role) or ""]
            for role in ("condition", "body")
        )
        # loops found while the body is traced are inside this one
        outer = dict(self.loops)
        kernels, end = self.run(body, [start])
        # the condition runs once per iteration, like the body
        kernels += self.run(condition, [start])[0]
        inner = [run for name, run in self.loops.items() if name not in outer]
        self.loops[instruction.name] = LoopRun(
            instruction.op_name, instruction.trips, kernels, inner
        )
        times = instruction.trips or 1
        # An element of the loop's state keeps its initial origin if the body computes it.
        # start ("params", "cache"), end ("params", None) -> ("params", "cache")
        if isinstance(start, tuple) and isinstance(end, tuple):
            end = tuple(old if new is None else new for old, new in zip(start, end, strict=True))
        return [replace(kernel, times=kernel.times * times) for kernel in kernels], end

    def run_branches(
        self, instruction: Instruction, operands: list[Value]
    ) -> tuple[list[Kernel], Value]:
        """Trace all branches, and return the one that reads and writes the most bytes."""
        # the first operand selects the branch; each other one is the argument of a branch
        branches = [
            self.run(self.module.computations[name], [argument])
            for name, argument in zip(instruction.callees, operands[1:], strict=True)
        ]
        return max(
            branches, key=lambda result: sum((k.read + k.written) * k.times for k in result[0])
        )

    def kernel(
        self, computation: Computation, instruction: Instruction, operands: list[Value]
    ) -> Kernel:
        """Return the kernel of an instruction."""
        access = self.access_of(computation, instruction)
        # Two operands may have the same origin: x * x reads it twice.
        reads: dict[str | None, int] = {}
        for operand, size in zip(operands, access.reads, strict=True):
            origin = operand if isinstance(operand, str) else None
            reads[origin] = reads.get(origin, 0) + size
        kind = self.kind(instruction)
        return Kernel(
            kind,
            instruction.target
            or (
                instruction.name.split(".")[0]
                if instruction.opcode == "fusion"
                else instruction.opcode
            ),
            instruction.op_name,
            tuple(shape for shape in self.fresh(instruction) if self.bytes_in_memory(shape)),
            tuple(reads.items()),
            access.written,
            factors=tuple(self.factors(computation, instruction)) if kind == "product" else (),
            moved=tuple(self.find_moved(computation, instruction, operands))
            if access.written
            else (),
        )

    def fresh(self, instruction: Instruction) -> Iterator[ArrayShape]:
        """Yield the arrays of a result that are not operands rewritten in place."""
        rewritten = self.find_rewritten(instruction)
        if isinstance(rewritten, tuple) and isinstance(instruction.shape, tuple):
            for shape, number in zip(instruction.shape, rewritten, strict=True):
                yield from () if number is not None else arrays(shape)
        elif rewritten is None:
            yield from arrays(result_of(instruction))

    def access_of(self, computation: Computation, instruction: Instruction) -> Access:
        """Return the bytes that an instruction reads from memory and writes to it."""
        # bytes of each operand in memory: a fusion may read less than the whole
        shapes = [computation.instructions[name].shape for name in instruction.operands]
        if instruction.opcode == "fusion":
            inner = self.access_of_fusion(instruction.callees[0])
            reads = [
                min(size, self.bytes_in_memory(shape))
                for size, shape in zip(inner.reads, shapes, strict=True)
            ]
            return Access(tuple(reads), min(inner.written, self.bytes_in_memory(instruction.shape)))
        sizes = [self.bytes_in_memory(shape) for shape in shapes]
        written = self.bytes_in_memory(result_of(instruction))
        if instruction.opcode in SLICING:
            # f32[1,4] dynamic-slice(f32[8,4]): reads 16 of 128 bytes
            sizes[0] = min(sizes[0], instruction.bytes)
        elif instruction.opcode in IN_PLACE:
            # f32[8,4] dynamic-update-slice(f32[8,4], f32[1,4]): reads and writes 16 bytes
            written = min(written, sizes[IN_PLACE[instruction.opcode]])
            sizes[0] = 0
        elif instruction.opcode == "slice-start":
            sizes[0] = min(sizes[0], sum(array.bytes for array in arrays(result_of(instruction))))
        return Access(tuple(sizes), written)

    def bytes_in_memory(self, shape: Shape) -> int:
        """Return the bytes of a shape that are in main memory."""
        return sum(
            array.bytes for array in arrays(shape) if not self.is_tpu or array.space == MAIN_SPACE
        )

    def access_of_fusion(self, name: str) -> Access:
        """Return the bytes that a fused computation reads from each parameter, and writes."""
        # cached, as every use of the fusion asks for it again
        if name not in self.accesses:
            computation = self.module.computations[name]
            reads = tuple(
                min(self.count_read(computation, instruction), instruction.bytes)
                for instruction in computation.parameters
            )
            self.accesses[name] = Access(reads, self.count_written(computation, computation.root))
        return self.accesses[name]

    def count_read(self, computation: Computation, value: Instruction) -> int:
        """Return the bytes of a value that a fused computation reads.

        These are the bytes of its slices if nothing else uses the value, otherwise all.
        """
        total = 0
        for user in computation.users[value.name]:
            # a slice of the value; as an index (operands[1:]) it is read whole
            if user.opcode in SLICING and value.name not in user.operands[1:]:
                total += user.bytes
            # the value is rewritten in place: what is not updated is never read
            elif user.opcode in IN_PLACE and value.name not in user.operands[1:]:
                continue
            # the same bytes under another name: its users decide
            elif self.renames(user):
                total += self.count_read(computation, user)
            elif user.opcode == "fusion":
                inner = self.access_of_fusion(user.callees[0])
                total += sum(
                    size
                    for name, size in zip(user.operands, inner.reads, strict=True)
                    if name == value.name
                )
            # any other user reads the value as a whole
            elif user.opcode != "tuple":
                return value.bytes
        return total

    def count_written(self, computation: Computation, root: Instruction) -> int:
        """Return the bytes that a fused computation writes.

        An in-place update writes only the updated part.
        """
        # several results: each is written
        if root.opcode == "tuple":
            return sum(
                self.count_written(computation, computation.instructions[name])
                for name in root.operands
            )
        if self.renames(root):
            return self.count_written(computation, computation.instructions[root.operands[0]])
        if self.find_rewritten_parameter(computation, root) is not None:
            return computation.instructions[root.operands[IN_PLACE[root.opcode]]].bytes
        if root.opcode == "fusion":
            return self.access_of_fusion(root.callees[0]).written
        # a parameter that is returned unchanged is not written
        return 0 if root.opcode == "parameter" else root.bytes

    def renames(self, instruction: Instruction) -> bool:
        """Return whether an instruction, or a fusion, passes on its first operand unchanged."""
        if instruction.opcode != "fusion":
            return instruction.opcode in RENAMING
        return all(
            nested.opcode in RENAMING | {"parameter", "fusion"}
            for nested in self.module.walk(instruction)
        )

    def kind(self, instruction: Instruction) -> str:
        """Return the kind of an instruction, including everything that is fused into it."""
        # the first match wins: a fusion with a sort and a product is a sort
        inner = list(self.module.walk(instruction))
        opcodes = {nested.opcode.removesuffix("-start") for nested in inner}
        targets = " ".join(nested.target.lower() for nested in inner if nested.target)
        in_host = any(array.space == HOST_SPACE for array in arrays(instruction.shape))
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
            if instruction.opcode.removesuffix("-start") in ("copy", "slice", "transpose")
            else "other"
        )

    def factors(self, computation: Computation, instruction: Instruction) -> Iterator[int]:
        """Yield the elements of both operands of a product, which may be inside a fusion."""
        # the product inside has the factors, not the fusion around it
        if instruction.opcode == "fusion":
            inner = self.module.computations[instruction.callees[0]]
            for nested in inner.instructions.values():
                if self.kind(nested) == "product":
                    yield from self.factors(inner, nested)
        else:
            for name in instruction.operands[:2]:
                yield sum(array.elements for array in arrays(computation.instructions[name].shape))

    def find_moved(
        self, computation: Computation, instruction: Instruction, operands: list[Value]
    ) -> Iterator[str]:
        """Yield the origins whose elements are all in a kernel's result.

        Their location, order or type may differ.
        """
        if any(nested.opcode not in MOVING for nested in self.module.walk(instruction)):
            return
        # The result of concatenating a [4] and b [4] is [8]: there is room for both.
        # Broadcast scalars (one element) are not counted as moved.
        room = sum(array.elements for array in self.fresh(instruction))
        for name, origin in zip(instruction.operands, operands, strict=True):
            whole = sum(array.elements for array in arrays(computation.instructions[name].shape))
            if isinstance(origin, str) and 1 < whole <= room:
                room -= whole
                yield origin

    def find_rewritten(self, instruction: Instruction) -> int | tuple[int | None, ...] | None:
        """Return the index of the operand rewritten in place, for each result; None without one."""
        if instruction.opcode in IN_PLACE:
            return 0
        if instruction.opcode != "fusion":
            return None
        computation = self.module.computations[instruction.callees[0]]
        root = computation.root
        if root.opcode != "tuple":
            return self.find_rewritten_parameter(computation, root)
        # tuple root: (update of parameter 1, new value) -> (1, None)
        numbers = tuple(
            self.find_rewritten_parameter(computation, computation.instructions[name])
            for name in root.operands
        )
        return None if all(number is None for number in numbers) else numbers

    def find_rewritten_parameter(self, computation: Computation, value: Instruction) -> int | None:
        """Return the index of the parameter that a value of a fused computation rewrites."""
        is_rewritten = False
        # walk up from the result: update(bitcast(update(parameter 0))) -> parameter 0
        while value.opcode in IN_PLACE or self.renames(value):
            is_rewritten = is_rewritten or value.opcode in IN_PLACE
            value = computation.instructions[value.operands[0]]
        return int(value.literal) if is_rewritten and value.opcode == "parameter" else None

"""Read the text that XLA prints of a compiled program: computations, instructions, shapes.

    module = parse_hlo(compiled.as_text())

Knows the grammar of HLO's text alone: no model, and nothing of what an instruction costs.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
OPCODE = re.compile(r"\s*([\w\-]+)\(")
ARRAY = re.compile(r"(\w+)\[([\d,<=? ]*)\](\{[^}]*\})?")
SPACE = re.compile(r"S\((\d+)\)")
OPERAND = re.compile(r"%([\w.\-]+)")
CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations|called_computations)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)
OP_NAME = re.compile(r'metadata=\{[^{}]*?op_name="((?:[^"\\]|\\.)*)"')
TARGET = re.compile(r'custom_call_target="([^"]*)"')
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class ArrayShape:
    """An array of a program: its element type and dimensions, and the memory space that it lies in
    (0 is the main one)."""

    dtype: str
    dimensions: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """Size without padding; half bytes are rounded up, tokens have none."""
        bits = (
            8
            if self.dtype == "pred"
            else int((re.findall(r"^[a-z]+(\d+)", self.dtype) or ["0"])[0])
        )
        return -(-self.elements * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


# Of an array, or of each part of a tuple.
Shape = ArrayShape | tuple


def arrays(shape: Shape) -> Iterator[ArrayShape]:
    """Yield the arrays of a shape, those of nested tuples too."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


@dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
        operands: names of instructions of the same computation.
        literal: what stands between the parentheses, such as the number of a parameter.
        attributes: what follows them.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs, in their order."""
        names = [many or one for many, one in CALLED.findall(self.attributes)]
        return tuple(
            name.strip().lstrip("%") for part in names for name in part.split(",") if name.strip()
        )

    def computation(self, role: str) -> str | None:
        """Name the computation of one role, such as body; None if it has none."""
        found = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None

    @cached_property
    def op_name(self) -> str:
        """Where it comes from: the path of JAX's tracing, or the argument of a parameter."""
        found = OP_NAME.search(self.attributes)
        return found[1].replace("\\'", "'").replace('\\"', '"') if found else ""

    @property
    def target(self) -> str:
        """Name the library function of a custom call."""
        found = TARGET.search(self.attributes)
        return found[1] if found else ""

    @property
    def trips(self) -> int | None:
        """Number of runs of a loop, if the compiler knows it."""
        found = TRIPS.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def bytes(self) -> int:
        """Size of the result, all arrays of a tuple together."""
        return sum(array.bytes for array in arrays(self.shape))


@dataclass
class Computation:
    """Instructions by name, in the order in which they run if the program is scheduled."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction:
        return next(each for each in self.instructions.values() if each.is_root)

    @cached_property
    def parameters(self) -> list[Instruction]:
        """List the parameters by their number."""
        found = [each for each in self.instructions.values() if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(each.literal))

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that read each other one."""
        found: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for each in self.instructions.values():
            for operand in dict.fromkeys(each.operands):
                found[operand].append(each)
        return found


@dataclass
class Module:
    """A compiled program."""

    computations: dict[str, Computation]
    entry: Computation

    def nested(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield an instruction and all that it runs, however deep."""
        yield instruction
        for name in instruction.called:
            for each in self.computations[name].instructions.values():
                yield from self.nested(each)


def parse_hlo(text: str) -> Module:
    """Read a module; ValueError if the text is none."""
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    for line in whole_lines(text):
        if current is None:
            header = HEADER.match(line)
            if header:
                current = computations[header[2]] = Computation(header[2])
                entry = current if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif start := INSTRUCTION.match(line):
            current.instructions[start[2]] = parse_instruction(line, start)
    if entry is None:
        raise ValueError(
            f"no ENTRY computation in a text that begins with {text[:40]!r}: must be that of an HLO module"
        )
    return Module(computations, entry)


def whole_lines(text: str) -> Iterator[str]:
    """Yield lines; what a Pallas kernel says of itself stands on lines of its own, within an
    instruction.
    """
    kept = ""
    for line in text.splitlines():
        if kept and line.startswith(('"', "}}")):
            kept += line
        else:
            yield from [kept] if kept else []
            kept = line
    yield kept


def parse_instruction(line: str, start: re.Match) -> Instruction:
    """Read what follows the name: shape, opcode, operands, attributes."""
    position = start.end()
    end = closing(line, position) + 1 if line[position] == "(" else line.index(" ", position)
    opcode = OPCODE.match(line, end)
    assert opcode is not None, line[:200]
    last = closing(line, opcode.end() - 1)
    literal = line[opcode.end() : last]
    return Instruction(
        name=start[2],
        shape=parse_shape(line[position:end]),
        opcode=opcode[1],
        operands=tuple(OPERAND.findall(literal)),
        literal=literal,
        attributes=line[last + 1 :],
        is_root=bool(start[1]),
    )


def closing(line: str, position: int) -> int:
    """Find the parenthesis that closes the one at a position; layouts have some of their own."""
    depth = 0
    for index in range(position, len(line)):
        if line[index] in OPENING:
            depth += 1
        elif line[index] in CLOSING:
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"a parenthesis is not closed: {line[:200]!r}")


def parse_shape(text: str) -> Shape:
    """Read an array's shape, or a tuple's."""
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("("):
        return tuple(parse_shape(part) for part in split_at_commas(text[1:-1]))
    found = ARRAY.match(text)
    if found is None:  # token, opaque
        return ArrayShape(text.partition("[")[0], (0,))
    space = SPACE.search(found[3] or "")
    sizes = tuple(int(re.sub(r"\D", "", size)) for size in found[2].split(",") if size.strip())
    return ArrayShape(found[1], sizes, int(space[1]) if space else 0)


def split_at_commas(text: str) -> Iterator[str]:
    """Yield what commas separate, but for those inside of parentheses."""
    depth, start = 0, 0
    for index, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]

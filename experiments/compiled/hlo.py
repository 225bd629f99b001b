"""Parse the text of a compiled XLA program: computations, instructions and shapes.

    module = parse_hlo(compiled.as_text())

Knows only the grammar of HLO text: neither models nor the cost of an instruction.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

# First line of a computation: "ENTRY %main.9 (Arg_0.1: f32[4]) -> f32[4] {"
HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# Beginning of an instruction: "  ROOT %add.3 = f32[4]{0} add(%x, %y), metadata={...}"
INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
OPCODE = re.compile(r"\s*([\w\-]+)\(")
# Shape of an array, with an optional layout: "bf16[8,128]{1,0:T(8,128)S(1)}"
ARRAY = re.compile(r"(\w+)\[([\d,<=? ]*)\](\{[^}]*\})?")
# Memory space in a layout.
SPACE = re.compile(r"S\((\d+)\)")
OPERAND = re.compile(r"%([\w.\-]+)")
# Attributes with the computations that an instruction runs: "body=%b" or "calls={%a, %b}"
CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation"
    r"|branch_computations|called_computations)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)
OP_NAME = re.compile(r'metadata=\{[^{}]*?op_name="((?:[^"\\]|\\.)*)"')
TARGET = re.compile(r'custom_call_target="([^"]*)"')
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# Brackets around operands, shapes and attributes.
OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class ArrayShape:
    """Shape of an array in a program.

    Attributes:
        dtype: element type in HLO's notation, such as bf16.
        dimensions: size of each dimension.
        space: memory space; 0 is the device's main memory.
    """

    dtype: str
    dimensions: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """Size without padding. Fractions of a byte are rounded up; tokens have no size."""
        # bf16 -> 16 bits, s4 -> 4, pred -> 8, token -> 0
        bits = (
            8
            if self.dtype == "pred"
            else int((re.findall(r"^[a-z]+(\d+)", self.dtype) or ["0"])[0])
        )
        return -(-self.elements * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


# Shape of an array, or a tuple of shapes.
Shape = ArrayShape | tuple


def arrays(shape: Shape) -> Iterator[ArrayShape]:
    """Yield the arrays of a shape, including those in nested tuples."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for element in shape:
            yield from arrays(element)


@dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name: name within the computation.
        shape: shape of the result.
        opcode: operation, such as add or fusion.
        operands: names of instructions of the same computation.
        literal: text between the parentheses, such as the index of a parameter.
        attributes: text after the parentheses.
        is_root: whether its result is that of the computation.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    @cached_property
    def callees(self) -> tuple[str, ...]:
        """Names of the computations that it runs, in their order."""
        # "condition=%c, body=%b" -> ["%c", "%b"]; "calls={%a, %b}" -> ["%a, %b"]
        names = [many or one for many, one in CALLED.findall(self.attributes)]
        return tuple(
            name.strip().lstrip("%")
            for listing in names
            for name in listing.split(",")
            if name.strip()
        )

    def computation(self, role: str) -> str | None:
        """Return the name of the computation in a role, such as body; None if there is none."""
        match = re.search(rf"\b{role}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else None

    @cached_property
    def op_name(self) -> str:
        """Origin in the source: the path of JAX's tracing, or the argument of a parameter."""
        match = OP_NAME.search(self.attributes)
        # HLO text escapes quotes: op_name="params[\'embed\']"
        return match[1].replace("\\'", "'").replace('\\"', '"') if match else ""

    @property
    def target(self) -> str:
        """Library function of a custom call; empty for other instructions."""
        match = TARGET.search(self.attributes)
        return match[1] if match else ""

    @property
    def trips(self) -> int | None:
        """Number of iterations of a loop, if the compiler knows it."""
        match = TRIPS.search(self.attributes)
        return int(match[1]) if match else None

    @property
    def bytes(self) -> int:
        """Size of the result: the sum over all arrays of a tuple."""
        return sum(array.bytes for array in arrays(self.shape))


@dataclass
class Computation:
    """Instructions by name. In a scheduled program they are in the order of execution."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose result is that of the computation."""
        return next(line for line in self.instructions.values() if line.is_root)

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters, sorted by their index."""
        parameters = [line for line in self.instructions.values() if line.opcode == "parameter"]
        return sorted(parameters, key=lambda parameter: int(parameter.literal))

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that read each result, by its name."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for user in self.instructions.values():
            # x * x is one user of x, not two
            for operand in dict.fromkeys(user.operands):
                users[operand].append(user)
        return users


@dataclass
class Module:
    """A compiled program: its computations by name, and the one that runs first."""

    computations: dict[str, Computation]
    entry: Computation

    def walk(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield an instruction and, recursively, all instructions of the computations it runs."""
        yield instruction
        for name in instruction.callees:
            for inner in self.computations[name].instructions.values():
                yield from self.walk(inner)


def parse_hlo(text: str) -> Module:
    """Parse a module.

    Raises:
        ValueError: the text is not an HLO module.
    """
    computations: dict[str, Computation] = {}
    entry: Computation | None = None
    current: Computation | None = None
    for line in join_lines_of_instructions(text):
        # between computations
        if current is None:
            header = HEADER.match(line)
            if header:
                current = computations[header[2]] = Computation(header[2])
                entry = current if header[1] else entry
        # end of a computation
        elif line.startswith("}"):
            current = None
        # inside a computation
        elif start := INSTRUCTION.match(line):
            current.instructions[start[2]] = parse_instruction(line, start)
    if entry is None:
        raise ValueError(
            f"no ENTRY computation in a text that begins with {text[:40]!r}: "
            "must be that of an HLO module"
        )
    return Module(computations, entry)


def join_lines_of_instructions(text: str) -> Iterator[str]:
    """Yield lines, with the description of a Pallas kernel joined to its instruction.

    XLA prints such descriptions on separate lines that begin with a quote or two braces.
    """
    pending = ""
    for line in text.splitlines():
        if pending and line.startswith(('"', "}}")):
            pending += line
        else:
            yield from [pending] if pending else []
            pending = line
    yield pending


def parse_instruction(line: str, start: re.Match) -> Instruction:
    """Parse an instruction; `start` is the match of its beginning, up to the equals sign."""
    # shape: a tuple in parentheses, or an array without spaces
    position = start.end()
    end = find_closing(line, position) + 1 if line[position] == "(" else line.index(" ", position)
    # opcode, operands in parentheses, attributes
    opcode = OPCODE.match(line, end)
    assert opcode is not None, line[:200]
    last = find_closing(line, opcode.end() - 1)
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


def find_closing(line: str, position: int) -> int:
    """Return the index of the bracket that closes the one at `position`."""
    # "(f32[4]{0:T(8)}, u32[2]) tuple": layouts contain nested brackets
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
    """Parse the shape of an array or a tuple."""
    # Long tuples contain comments with the index: "(f32[4]{0}, /*index=5*/pred[3]{0})"
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("("):
        return tuple(parse_shape(element) for element in split_at_commas(text[1:-1]))
    match = ARRAY.match(text)
    if match is None:  # token, opaque
        return ArrayShape(text.partition("[")[0], (0,))
    space = SPACE.search(match[3] or "")
    # A dynamic dimension such as <=8 counts with its bound.
    sizes = tuple(int(re.sub(r"\D", "", size)) for size in match[2].split(",") if size.strip())
    return ArrayShape(match[1], sizes, int(space[1]) if space else 0)


def split_at_commas(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    # "f32[2,4]{1,0}, (u32[2], pred[])" -> "f32[2,4]{1,0}", " (u32[2], pred[])"
    depth, start = 0, 0
    for index, character in enumerate(text):
        # +1 for each opening bracket, -1 for each closing one; 0 is outside all of them
        depth += (character in OPENING) - (character in CLOSING)
        if character == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if text[start:].strip():
        yield text[start:]

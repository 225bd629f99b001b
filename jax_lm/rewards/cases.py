"""Read the tests of a row: assert statements, and cases of input and output.

The columns and formats are those of code data sets:

    test_cases            ["assert f(1) == 2"] (AceCode),
                          or [{"input", "output", "type"}] (open-r1)
    verification_info     {"language": "python", "test_cases": [{"input", "output", "type"}]}
    input_output          {"inputs", "outputs", "fn_name"?} (APPS, TACO)
    public_test_cases,    [{"input", "output", "testtype"}], the function's name in column
    private_test_cases    metadata (LiveCodeBench)

Each cell may be data or JSON. This module only reads the tests; `untrusted` runs them.
"""

import base64
import json
import pickletools
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from jax_lm.config import Fields

# Columns that contain tests. The tests of a row are those of all its columns together.
TEST_COLUMNS = (
    "test_cases",
    "verification_info",
    "input_output",
    "public_test_cases",
    "private_test_cases",
)

# Column of LiveCodeBench that contains the function's name.
METADATA = "metadata"
# Types of a case in data sets: RUNS run the program with input on stdin, CALLS call a function.
RUNS = ("stdin", "stdin_stdout")
CALLS = ("functional", "function_call")

# Maximum bytes (512 MiB) of a row's unpacked private cases: guards against decompression bombs.
MAX_UNPACKED = 2**29

# Pickle instructions that push a text.
PICKLED_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
# The other instructions that a pickle of a single text contains.
PICKLE_FRAME = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"}


def row_tests(row: Fields) -> list[Any]:
    """Read the tests of a row from all its test columns, in the order of `TEST_COLUMNS`.

    Returns:
        Assert statements and `untrusted.Case`s.

    Raises:
        ValueError: a column cannot be read; the message names it and the reason.
    """
    tests = []
    for name in TEST_COLUMNS:
        try:
            tests += column_tests(name, row)
        except ValueError as error:
            raise ValueError(f"column {name!r} {error}") from None
    return tests


def column_tests(name: str, row: Fields) -> list[Any]:
    """Read the tests of one column. Raises ValueError with the reason if it cannot be read."""
    cell = parse_cell(row.get(name), is_packed=name == "private_test_cases")
    if cell is None:
        return []
    if name == "input_output":
        cell = pair_cases(cell)
    if name == "verification_info":
        cell = python_cases(cell)
    is_list = isinstance(cell, Iterable) and not isinstance(cell, str | Mapping)
    items = list(cell) if is_list else None
    texts = name == "test_cases"
    if items is None or not all(
        isinstance(item, Mapping) or (texts and isinstance(item, str)) for item in items
    ):
        kinds = "assert statements or " if texts else ""
        raise ValueError(
            f"must hold lists of {kinds}cases with input and output, or these in JSON, "
            f"not {cell!r:.80}"
        )
    return [item if isinstance(item, str) else make_case(item, row) for item in items]


def pair_cases(cell) -> list[Fields]:
    """Convert the two lists of APPS to a list of cases."""
    # {"inputs": ["1", "2"], "outputs": ["2", "3"]} ->
    # [{"input": "1", "output": "2", "type": "stdin"}, {"input": "2", "output": "3", ...}]
    fields = cell if isinstance(cell, Mapping) else {}
    inputs = fields.get("inputs")
    outputs = fields.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError(
            f"must hold an object with the lists inputs and outputs, equally long, not {cell!r:.80}"
        )
    kind = {"type": "stdin"}
    if cell.get("fn_name"):
        kind = {"type": "function_call", "fn_name": cell["fn_name"]}
    return [
        {"input": program_input, "output": expected, **kind}
        for program_input, expected in zip(inputs, outputs, strict=True)
    ]


def python_cases(cell) -> Any:
    """Return the cases of open-r1's object. Raises ValueError if its language is not Python."""
    if not isinstance(cell, Mapping) or "test_cases" not in cell:
        raise ValueError(f"must hold an object with test_cases, not {cell!r:.80}")
    if cell.get("language", "python") != "python":
        raise ValueError(f"has language={cell['language']!r:.80}: programs are run as python")
    return parse_cell(cell["test_cases"]) or []


def make_case(item: Fields, row: Fields) -> Any:
    """Convert a data set's object to an `untrusted.Case`."""
    # Imported here: the sandbox needs Linux, and rewards that only read text do not.
    from untrusted.cases import Case

    case_input = item.get("input")
    expected = item.get("output")
    kind = item.get("testtype") or item.get("type") or RUNS[0]
    if kind in RUNS:
        return Case(join_lines("input", case_input), join_lines("output", expected))
    if kind not in CALLS:
        raise ValueError(
            f"has a case of type {kind!r:.80}: must be one of {', '.join((*RUNS, *CALLS))}"
        )
    name = item.get("fn_name") or function_name(row)
    # LiveCodeBench has values as JSON text, which are compared exactly. APPS has lists, and wraps
    # some results in another list, hence the tolerant comparison.
    if isinstance(case_input, str) and isinstance(expected, str):
        return Case(case_input, expected, "exact", name)
    if not isinstance(case_input, list):
        raise ValueError(
            f"has a call with input={case_input!r:.80} and output={expected!r:.80}: must be a list "
            "of arguments and a value, or both JSON, one argument on each line"
        )
    # arguments [1, "a"] -> '1\n"a"'
    return Case(
        "\n".join(json.dumps(argument) for argument in case_input),
        json.dumps(expected),
        "tolerant",
        name,
    )


def join_lines(name: str, value) -> str:
    """Return text, or a list of lines joined to text. Raises ValueError for other values."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise ValueError(f"has a case with {name}={value!r:.80}: must be text, or a list of lines")
    return value


def function_name(row: Fields) -> str:
    """Return the function's name from LiveCodeBench's metadata. Raises ValueError without one."""
    metadata = parse_cell(row.get(METADATA))
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"has a call without fn_name, and column {METADATA!r} without func_name")
    return name


def parse_cell(cell, *, is_packed: bool = False) -> Any:
    """Return the data of a cell, which may be JSON or packed; None if it is empty."""
    return parse_text(cell, is_packed) if isinstance(cell, str) else cell


@lru_cache(maxsize=8)
def parse_text(text: str, is_packed: bool) -> Any:
    """Parse JSON, packed or not; None for blank text.

    Results are cached, since consecutive completions of one prompt have the same cells.
    """
    try:
        is_json = not is_packed or text.lstrip().startswith("[")
        return json.loads(text if is_json else unpack(text)) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must hold data or JSON, not {text!r:.80} ({error})") from None


def unpack(text: str) -> str:
    """Unpack LiveCodeBench's text, which is pickled, compressed with zlib and encoded in base64.

    The pickle is not executed: its instructions are only listed.

    Raises:
        ValueError: the content is not a single text, or is too large.
    """
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    if not stream.eof:
        raise ValueError(f"damaged, or larger than {MAX_UNPACKED} bytes")
    # e.g. PROTO, BINUNICODE "…", MEMOIZE, STOP; other instructions may run code when unpickled
    texts = []
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in PICKLED_TEXT:
            texts.append(argument)
        elif instruction.name not in PICKLE_FRAME:
            raise ValueError(f"a pickle with {instruction.name}: it may hold one text")
    if len(texts) != 1:
        raise ValueError(f"a pickle of {len(texts)} texts: it may hold one")
    return texts[0]

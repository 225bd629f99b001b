"""Tests of a row, in the columns that data sets for code have: assert statements, and cases of
input and output.

    test_cases                                 ["assert f(1) == 2"], [{"input", "output", "type"}]: AceCode, open-r1
    verification_info                          {"language": "python", "test_cases": [{"input", "output", "type"}]}
    input_output                               {"inputs", "outputs", "fn_name"?}: APPS, TACO
    public_test_cases, private_test_cases      [{"input", "output", "testtype"}], the name in metadata: LiveCodeBench

Each may be data or JSON. Reads only; what the tests mean is `untrusted`'s business.
"""

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# Columns that hold tests; those that a row has are all read.
TEST_COLUMNS = (
    "test_cases",
    "verification_info",
    "input_output",
    "public_test_cases",
    "private_test_cases",
)

METADATA = "metadata"
# How data sets say of a case that it is a run of the program, or a call of a function.
RUNS, CALLS = ("stdin", "stdin_stdout"), ("functional", "function_call")

# Bytes of a row's private cases: more is no data of a benchmark.
MAX_UNPACKED = 2**29

PICKLED_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
# All instructions of a pickle that holds one text.
PICKLE_FRAME = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"}


def row_tests(row: Mapping[str, Any]) -> list[Any]:
    """Read the tests of a row from all its columns, in their order.

    Returns:
        assert statements and `untrusted.Case`s.

    Raises:
        ValueError: naming the column that cannot be read, and why.
    """
    tests: list[Any] = []
    for name in TEST_COLUMNS:
        try:
            tests += column_tests(name, row)
        except ValueError as error:
            raise ValueError(f"column {name!r} {error}") from None
    return tests


def column_tests(name: str, row: Mapping[str, Any]) -> list[Any]:
    """Read the tests of a column; raises ValueError saying what is wrong."""
    cell = parse_cell(row.get(name), is_packed=name == "private_test_cases")
    if cell is None:
        return []
    if name == "input_output":
        cell = listed_cases(cell)
    if name == "verification_info":
        cell = python_cases(cell)
    try:
        items = None if isinstance(cell, str | Mapping) else list(cell)
    except TypeError:
        items = None
    texts = name == "test_cases"
    if items is None or not all(
        isinstance(item, Mapping) or (texts and isinstance(item, str)) for item in items
    ):
        kinds = "assert statements or " if texts else ""
        raise ValueError(
            f"must hold lists of {kinds}cases with input and output, or these in JSON, not {cell!r:.80}"
        )
    return [item if isinstance(item, str) else make_case(item, row) for item in items]


def listed_cases(cell: Any) -> list[Mapping[str, Any]]:
    """Turn the two lists of APPS into a list of cases."""
    lists = [
        cell.get(name) if isinstance(cell, Mapping) else None for name in ("inputs", "outputs")
    ]
    inputs, outputs = lists
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError(
            f"must hold an object with the lists inputs and outputs, equally long, not {cell!r:.80}"
        )
    kind = (
        {"type": "function_call", "fn_name": cell["fn_name"]}
        if cell.get("fn_name")
        else {"type": "stdin"}
    )
    return [
        {"input": given, "output": right, **kind}
        for given, right in zip(inputs, outputs, strict=True)
    ]


def python_cases(cell: Any) -> Any:
    """Take the cases out of open-r1's object, which must be for Python."""
    if not isinstance(cell, Mapping) or "test_cases" not in cell:
        raise ValueError(f"must hold an object with test_cases, not {cell!r:.80}")
    if cell.get("language", "python") != "python":
        raise ValueError(f"has language={cell['language']!r:.80}: programs are run as python")
    return parse_cell(cell["test_cases"]) or []


def make_case(item: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
    """Make a case of a data set's object."""
    # Here, not at the top: the sandbox needs Linux, and the rewards that only read text do not.
    from untrusted.cases import Case

    given, right, kind = (
        item.get("input"),
        item.get("output"),
        item.get("testtype", item.get("type", RUNS[0])),
    )
    if kind in RUNS:
        return Case(joined("input", given), joined("output", right))
    if kind not in CALLS:
        raise ValueError(
            f"has a case of type {kind!r:.80}: must be one of {', '.join((*RUNS, *CALLS))}"
        )
    name = item.get("fn_name") or function_name(row)
    # LiveCodeBench's values are JSON as text, and compared as they are; APPS has lists, and wraps
    # some results.
    if isinstance(given, str) and isinstance(right, str):
        return Case(given, right, "exact", name)
    if not isinstance(given, list):
        raise ValueError(
            f"has a call with input={given!r:.80}: must be a list of arguments, or JSON, one on each line"
        )
    return Case(
        "\n".join(json.dumps(argument) for argument in given), json.dumps(right), "tolerant", name
    )


def joined(name: str, value: Any) -> str:
    """Join lines, where a data set has a list of them."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise ValueError(f"has a case with {name}={value!r:.80}: must be text, or a list of lines")
    return value


def function_name(row: Mapping[str, Any]) -> str:
    """Read the name of the function from LiveCodeBench's metadata."""
    metadata = parse_cell(row.get(METADATA))
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"has a call without fn_name, and column {METADATA!r} without func_name")
    return name


def parse_cell(cell: Any, *, is_packed: bool = False) -> Any:
    """Read a cell that may be JSON, or packed; None if it is empty."""
    return parse_text(cell, is_packed) if isinstance(cell, str) else cell


@lru_cache(maxsize=8)
def parse_text(text: str, is_packed: bool) -> Any:
    """Read JSON, kept for the completions of one prompt, which follow each other; None if there is
    none.
    """
    try:
        is_json = not is_packed or text.lstrip().startswith("[")
        return json.loads(text if is_json else unpack(text)) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must hold data or JSON, not {text!r:.80} ({error})") from None


def unpack(text: str) -> str:
    """Unpack what LiveCodeBench has pickled, compressed and written in base64: a text. No pickle is
    executed.

    Raises:
        ValueError: it is anything else, or too large.
    """
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    if not stream.eof:
        raise ValueError(f"damaged, or larger than {MAX_UNPACKED} bytes")
    texts = []
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in PICKLED_TEXT:
            texts.append(argument)
        elif instruction.name not in PICKLE_FRAME:
            raise ValueError(f"a pickle with {instruction.name}: it may hold one text")
    if len(texts) != 1:
        raise ValueError(f"a pickle of {len(texts)} texts: it may hold one")
    return texts[0]

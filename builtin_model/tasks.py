"""Tasks of the built-in corpus: a family is a template, a task is one rendering of it.

A family states one small programming problem: the names it may go by, its parameters, how people
describe it, one canonical solution, and an oracle that is written differently from the solution.
From a seeded random generator it yields tasks: a header (other names, type hints, with or without a
docstring), the body that completes it, and unit tests. Every body has exactly one form per header,
so that a small model can be certain of it.

Knows nothing of tokens, models or training.
"""

import hashlib
import random
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax_lm.data.prompts import BuiltinTask

HELD_OUT_SHARE = 0.1
TESTS_PER_TASK = 4

NAME_POOLS: Mapping[str, tuple[str, ...]] = {
    "int": ("n", "x", "num", "number", "value", "k", "m", "limit", "count", "size", "a", "N"),
    "float": ("x", "value", "number", "amount", "v", "num", "n"),
    "bool": ("flag", "enabled", "value", "condition"),
    "str": ("text", "s", "string", "word", "sentence", "line", "message", "txt", "input_string"),
    "list[int]": (
        "numbers",
        "nums",
        "arr",
        "values",
        "items",
        "xs",
        "lst",
        "data",
        "array",
        "integers",
    ),
    "list[float]": ("numbers", "values", "data", "nums", "xs", "samples"),
    "list[str]": ("words", "strings", "items", "names", "texts", "tokens", "lst"),
    "list": ("items", "lst", "values", "elements", "xs", "data", "sequence", "arr"),
    "list[list[int]]": ("matrix", "grid", "rows", "m", "mat", "table", "A"),
    "list[list]": ("lists", "nested", "groups", "items", "rows"),
    "dict": ("d", "mapping", "data", "table", "dictionary"),
    "dict[str, int]": ("counts", "scores", "d", "mapping", "data"),
    "set": ("a", "s", "items", "values"),
}
"""Names that a single parameter of each type may take when its family lists no alternatives."""

ANY_NAMES = (
    "val",
    "inp",
    "arg",
    "p",
    "q",
    "z",
    "obj",
    "var",
    "input_value",
    "my_input",
    "thing",
    "foo",
)
"""Names that a single parameter of any type may take."""

VAGUE_NAMES = (
    "process", "transform", "solve", "pipeline", "f", "func", "compute", "run", "apply_steps", "handle", "convert",
    "task", "solution", "process_list", "foo", "my_function", "work", "helper", "evaluate", "process_data",
)  # fmt: skip
"""Function names that say nothing, where a description says it all."""

AFFIXES = ("my_{}", "{}_func", "{}_fn", "{}2", "{}_impl", "do_{}")
VAGUE_SHARE, AFFIX_SHARE = 0.12, 0.06

DOCSTRINGS: Mapping[str, int] = {"none": 40, "line": 32, "block": 10, "example": 10, "comment": 8}
"""Ways to describe a task, with the share (in percent) that each has in the corpus."""

IDENTIFIER = re.compile(r"(?<![$\w])[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Family:
    """One programming problem. Texts are templates: `$name` stands for a parameter or a constant.

    Attributes:
        name: unique snake_case name of the problem.
        names: names of the function or class, the canonical one first; unique over all families.
        params: canonical parameters as "name: type"; empty for classes.
        alternatives: whole tuples of parameter names to use instead of the canonical ones. Without
            them each parameter draws from the pool of its type.
        returns: return type as written in a hint.
        docs: sentences that describe the problem, each sufficient by itself.
        body: the canonical solution, not indented.
        constants: values that each constant of the template may take.
        inputs: draws one tuple of arguments for a test.
        oracle: the expected result, from the arguments and (as keywords) the constants.
        script: for classes, test statements with `$f` for the class name, instead of inputs and
            oracle.
        imports: lines that the solution needs at module level; part of the prompt.
    """

    name: str
    names: tuple[str, ...]
    docs: tuple[str, ...]
    body: str
    params: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    returns: str = ""
    constants: Mapping[str, tuple] = field(default_factory=dict)
    inputs: Callable[[random.Random], tuple] | None = None
    oracle: Callable | None = None
    script: tuple[str, ...] = ()
    imports: str = ""

    @property
    def is_class(self) -> bool:
        """Tell a class, which a script tests, from a function."""
        return bool(self.script)

    def parameter_choices(self) -> list[tuple[str, ...]]:
        """List all admissible tuples of parameter names, the canonical one first, none shadowing a
        local.
        """
        canonical = tuple(param.split(":")[0].strip() for param in self.params)
        if self.alternatives:
            choices = [canonical, *self.alternatives]
        elif len(self.params) == 1:
            kind = self.params[0].split(":")[1].strip()
            choices = [
                canonical,
                *((name,) for name in (*NAME_POOLS[kind], *ANY_NAMES) if name != canonical[0]),
            ]
        else:
            choices = [canonical]
        taken = set(IDENTIFIER.findall(self.body))
        return [names for names in choices if not taken & set(names)]


def is_held_out(key: str) -> bool:
    """Decide whether a key belongs to the held-out side; canonical phrasings (keys ending in "!")
    never do.
    """
    digest = hashlib.sha256(key.encode()).digest()
    return not key.endswith("!") and int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def substitute(template: str, values: Mapping[str, object]) -> str:
    """Fill `$name` placeholders; an unknown one raises KeyError."""
    return string.Template(template.strip("\n")).substitute({k: str(v) for k, v in values.items()})


def instantiate(family: Family, rng: random.Random) -> BuiltinTask:
    """Draw names, constants, phrasing and tests for one task of `family`."""
    choices = family.parameter_choices()
    name_template = rng.choice(family.names)
    names = choices[0] if rng.random() < 0.3 else rng.choice(choices)
    constants = {key: rng.choice(options) for key, options in family.constants.items()}
    canonical = [param.split(":")[0].strip() for param in family.params]
    values = dict(zip(canonical, names, strict=True)) | constants
    style = HeaderStyle.draw(rng)
    entry_point = canonical_entry_point = substitute(name_template, values)
    if not family.is_class and style.docstring != "none" and rng.random() < VAGUE_SHARE:
        entry_point = rng.choice(VAGUE_NAMES)
    elif not family.is_class and rng.random() < AFFIX_SHARE:
        entry_point = rng.choice(AFFIXES).format(entry_point)
    description = substitute(rng.choice(family.docs), values)
    is_canonical = (
        name_template == family.names[0]
        and entry_point == canonical_entry_point
        and names == choices[0]
        and all(constants[key] == options[0] for key, options in family.constants.items())
    )
    key = f"{family.name}|{entry_point}|{','.join(names)}|{constants}" + (
        "!" if is_canonical else ""
    )
    tests = unit_tests(family, entry_point, constants, rng)
    kinds = [param.split(":")[1].strip() for param in family.params]
    header = style.header(entry_point, list(zip(names, kinds, strict=True)), family)
    return BuiltinTask(
        family=family.name,
        key=key,
        entry_point=entry_point,
        prompt=style.prompt(header, description, tests, family.imports),
        completion=style.completion(substitute(family.body, values | {"f": entry_point})),
        description=description,
        tests=tests,
    )


def unit_tests(
    family: Family, entry_point: str, constants: dict, rng: random.Random
) -> tuple[str, ...]:
    """Write `TESTS_PER_TASK` assert statements on drawn inputs, or the script of a class."""
    if family.is_class:
        return tuple(substitute(line, {"f": entry_point} | constants) for line in family.script)
    inputs, oracle = family.inputs, family.oracle
    assert inputs is not None
    assert oracle is not None
    tests = []
    for _ in range(TESTS_PER_TASK):
        arguments = inputs(rng)
        call = f"{entry_point}({', '.join(map(repr, arguments))})"
        tests.append(f"assert {call} == {oracle(*arguments, **constants)!r}")
    return tuple(tests)


@dataclass(frozen=True, kw_only=True)
class HeaderStyle:
    """How a header is phrased: hints, docstring (a key of DOCSTRINGS), and where the prompt ends."""

    hints: bool = False
    docstring: str = "none"
    ends_with_newline: bool = False

    @classmethod
    def draw(cls, rng: random.Random, docstrings: Mapping[str, int] | None = None) -> "HeaderStyle":
        """Draw a style; `docstrings` are the shares of the ways to describe a task, DOCSTRINGS if
        not given.
        """
        shares = docstrings or DOCSTRINGS
        return cls(
            hints=rng.random() < 0.35,
            docstring=rng.choices(list(shares), list(shares.values()))[0],
            ends_with_newline=rng.random() < 0.35,
        )

    def header(self, entry_point: str, params: list[tuple[str, str]], family: Family) -> str:
        """Write the line that begins the function or class; `params` are names with their types."""
        if family.is_class:
            return f"class {entry_point}:"
        arguments = ", ".join(f"{name}: {kind}" if self.hints else name for name, kind in params)
        returns = f" -> {family.returns}" if self.hints and family.returns else ""
        return f"def {entry_point}({arguments}){returns}:"

    def prompt(self, header: str, description: str, tests: tuple[str, ...], imports: str) -> str:
        """Write all that precedes the body: imports, header and description."""
        quotes = '"""'
        example = re.fullmatch(r"assert (.*) == (.*)", tests[0])
        if self.docstring == "none":
            text = header
        elif self.docstring == "comment":
            text = f"# {description}\n{header}"
        elif self.docstring == "block":
            text = f"{header}\n    {quotes}\n    {description}\n    {quotes}"
        elif self.docstring == "example" and example:
            call, result = example.groups()
            text = (
                f"{header}\n    {quotes}{description}\n\n    >>> {call}\n    {result}\n    {quotes}"
            )
        else:
            text = f"{header}\n    {quotes}{description}{quotes}"
        prefix = f"{imports}\n\n" if imports else ""
        return prefix + text + ("\n" if self.ends_with_newline else "")

    def completion(self, body: str) -> str:
        """Indent the body, with a line break before it if the prompt ends without one."""
        lines = "\n".join(f"    {line}" if line else "" for line in body.split("\n"))
        return f"{lines}\n" if self.ends_with_newline else f"\n{lines}\n"

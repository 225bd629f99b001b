"""Compositions: pipelines of one to three list steps and a final result, described in a docstring.

The function's name says nothing here, the description says everything; a pipeline that is held out
is never seen in training under any name or wording.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from builtin_model.tasks import NAME_POOLS, TESTS_PER_TASK, VAGUE_NAMES, HeaderStyle, substitute
from jax_lm.data.prompts import BuiltinTask

CONNECTIVES = (
    (", then ", ", then "),
    (", ", ", and "),
    (", ", " and "),
    (", then ", " and finally "),
)
"""Between steps, and before the result."""


@dataclass(frozen=True)
class Step:
    """One step: how it is worded, the expression that replaces `$v`, and the same in other words.

    `apply` gets the list and, if the step has constants, the drawn one.
    """

    name: str
    phrases: tuple[str, ...]
    code: str
    apply: Callable
    constants: tuple = ()


@dataclass(frozen=True)
class Pipeline:
    """A drawn sequence of steps with their constants, and how the result is returned."""

    kind: "Kind"
    steps: tuple[tuple[Step, object], ...]
    final: Step

    def __str__(self) -> str:
        return (
            "|".join(f"{step.name}:{constant}" for step, constant in self.steps)
            + f"|{self.final.name}"
        )

    @property
    def returns(self) -> str:
        """Type of the result, as written in a hint."""
        return {"list": self.kind.type, "join": "str", "dash": "str"}.get(self.final.name, "int")

    def run(self, values: list) -> object:
        """Compute the result by the steps' oracles."""
        for step, constant in self.steps:
            values = step.apply(values) if constant is None else step.apply(values, constant)
        return self.final.apply(values)

    def body(self, parameter: str) -> str:
        """Write the function's body: a line per step, and the return."""
        lines = [f"$v = {step.code}" for step, _ in self.steps]
        filled = [
            substitute(line, {"v": parameter, "k": constant})
            for line, (_, constant) in zip(lines, self.steps, strict=True)
        ]
        return "\n".join([*filled, f"return {substitute(self.final.code, {'v': parameter})}"])

    def describe(self, rng: random.Random) -> str:
        """Say all steps in one sentence, each in one of its wordings."""
        phrases = [
            substitute(rng.choice(step.phrases), {"k": constant}) for step, constant in self.steps
        ]
        final = rng.choice(self.final.phrases)
        joint, last = rng.choice(CONNECTIVES)
        text = joint.join(phrases) + last + final
        return text[0].upper() + text[1:] + "."


def draw_numbers(rng: random.Random) -> list[int]:
    """Draw an example list of numbers, sometimes empty."""
    return [rng.randint(-12, 20) for _ in range(rng.choice((0, 5, 6, 7, 8, 9)))]


WORDS = (
    "apple", "sky", "Banana", "tree", "code", "ORANGE", "at", "level", "kiwi", "Python", "stone", "sky", "tree", "up",
    "eel", "Idea", "radar", "on", "mango",
)  # fmt: skip


def draw_words(rng: random.Random) -> list[str]:
    """Draw an example list of words, sometimes empty."""
    return [rng.choice(WORDS) for _ in range(rng.choice((0, 4, 5, 6, 7)))]


@dataclass(frozen=True)
class Kind:
    """A type of list: its steps, its results, and how to draw an example."""

    type: str
    draw: Callable[[random.Random], list]
    steps: tuple[Step, ...]
    finals: tuple[Step, ...]
    taken: frozenset[str] = field(default=frozenset({"x"}))

    def parameter_names(self) -> list[str]:
        """List the names that the parameter may take, none that the code of a step uses."""
        return [name for name in NAME_POOLS[self.type] if name not in self.taken]


SMALL = (2, 3, 4, 5, 6, 7, 8, 9, 10)
SHORT = (1, 2, 3, 4)

SHARED_STEPS = (
    Step("sort", ("sort them", "sort the list", "put them in ascending order"), "sorted($v)",
         lambda v: sorted(v)),
    Step("sort_desc", ("sort them in descending order", "sort from largest to smallest"),
         "sorted($v, reverse=True)", lambda v: sorted(v)[::-1]),
    Step("reverse", ("reverse the list", "reverse the order", "put them in reverse order"), "$v[::-1]",
         lambda v: list(reversed(v))),
    Step("unique", ("remove duplicates", "drop the duplicates", "keep the first of each duplicate"),
         "list(dict.fromkeys($v))", lambda v: [x for i, x in enumerate(v) if x not in v[:i]]),
    Step("first", ("take the first $k", "keep only the first $k", "keep the first $k items"), "$v[:$k]",
         lambda v, k: [x for i, x in enumerate(v) if i < k], SHORT),
    Step("skip", ("skip the first $k", "drop the first $k", "leave out the first $k items"), "$v[$k:]",
         lambda v, k: [x for i, x in enumerate(v) if i >= k], SHORT),
)  # fmt: skip
SHARED_FINALS = (
    Step("list", ("return the list", "return the result", "return the resulting list"), "$v", list),
    Step("count", ("return how many there are", "return the count", "count them", "return the number of items"),
         "len($v)", lambda v: sum(1 for _ in v)),
)  # fmt: skip

NUMBERS = Kind(
    type="list[int]",
    draw=draw_numbers,
    steps=(
        Step("even", ("keep the even numbers", "keep only even values", "remove the odd numbers"),
             "[x for x in $v if x % 2 == 0]", lambda v: [x for x in v if not x & 1]),
        Step("odd", ("keep the odd numbers", "keep only odd values", "remove the even numbers"),
             "[x for x in $v if x % 2 != 0]", lambda v: [x for x in v if x & 1]),
        Step("positive", ("keep the positive numbers", "keep only positive values"),
             "[x for x in $v if x > 0]", lambda v: list(filter(lambda x: x > 0, v))),
        Step("negative", ("keep the negative numbers", "keep only negative values"),
             "[x for x in $v if x < 0]", lambda v: list(filter(lambda x: x < 0, v))),
        Step("greater", ("keep the numbers greater than $k", "keep values above $k", "keep those larger than $k"),
             "[x for x in $v if x > $k]", lambda v, k: [x for x in v if not x <= k], SMALL),
        Step("less", ("keep the numbers less than $k", "keep values below $k", "keep those smaller than $k"),
             "[x for x in $v if x < $k]", lambda v, k: [x for x in v if not x >= k], SMALL),
        Step("divisible", ("keep the multiples of $k", "keep numbers divisible by $k"),
             "[x for x in $v if x % $k == 0]", lambda v, k: [x for x in v if x // k * k == x], SMALL[1:]),
        Step("remove", ("remove every $k", "drop all values equal to $k"),
             "[x for x in $v if x != $k]", lambda v, k: [x for x in v if x != k], SMALL),
        Step("add", ("add $k to each", "add $k to every number", "increase each by $k"),
             "[x + $k for x in $v]", lambda v, k: [k + x for x in v], SMALL),
        Step("subtract", ("subtract $k from each", "subtract $k from every number", "decrease each by $k"),
             "[x - $k for x in $v]", lambda v, k: [-k + x for x in v], SMALL),
        Step("multiply", ("multiply each by $k", "multiply every number by $k", "scale each by $k"),
             "[x * $k for x in $v]", lambda v, k: [k * x for x in v], SMALL),
        Step("modulo", ("take each modulo $k", "replace each by its remainder modulo $k"),
             "[x % $k for x in $v]", lambda v, k: [x - x // k * k for x in v], SMALL),
        Step("square", ("square each", "square every number", "replace each by its square"),
             "[x ** 2 for x in $v]", lambda v: [x * x for x in v]),
        Step("negate", ("negate each", "flip the sign of every number"),
             "[-x for x in $v]", lambda v: [0 - x for x in v]),
        Step("absolute", ("take absolute values", "replace each by its absolute value"),
             "[abs(x) for x in $v]", lambda v: [max(x, -x) for x in v]),
        *SHARED_STEPS,
    ),
    finals=(
        Step("sum", ("return the sum", "add them up", "return their sum", "return the total"), "sum($v)",
             lambda v: sum(reversed(v))),
        Step("max", ("return the largest, or 0 if there is none", "return the maximum, or 0 if empty"),
             "max($v, default=0)", lambda v: sorted(v)[-1] if v else 0),
        Step("min", ("return the smallest, or 0 if there is none", "return the minimum, or 0 if empty"),
             "min($v, default=0)", lambda v: sorted(v)[0] if v else 0),
        *SHARED_FINALS,
    ),
)  # fmt: skip

STRINGS = Kind(
    type="list[str]",
    draw=draw_words,
    steps=(
        Step("longer", ("keep the words longer than $k", "keep those with more than $k letters"),
             "[x for x in $v if len(x) > $k]", lambda v, k: [x for x in v if not len(x) <= k], (2, 3, 4, 5)),
        Step("shorter", ("keep the words shorter than $k", "keep those with fewer than $k letters"),
             "[x for x in $v if len(x) < $k]", lambda v, k: [x for x in v if not len(x) >= k], (3, 4, 5, 6)),
        Step("containing", ("keep the words containing '$k'", "keep those that contain the letter '$k'"),
             "[x for x in $v if '$k' in x]", lambda v, k: [x for x in v if x.count(k)], tuple("aeostn")),
        Step("starting", ("keep the words starting with '$k'", "keep those that begin with '$k'"),
             "[x for x in $v if x.startswith('$k')]", lambda v, k: [x for x in v if x[:1] == k], tuple("askmtu")),
        Step("upper", ("convert each to upper case", "make every word uppercase"),
             "[x.upper() for x in $v]", lambda v: list(map(str.upper, v))),
        Step("lower", ("convert each to lower case", "make every word lowercase"),
             "[x.lower() for x in $v]", lambda v: list(map(str.lower, v))),
        Step("capitalize", ("capitalize each", "capitalize every word"),
             "[x.capitalize() for x in $v]", lambda v: [x[:1].upper() + x[1:].lower() for x in v]),
        Step("reversed", ("reverse each word", "spell every word backwards"),
             "[x[::-1] for x in $v]", lambda v: ["".join(reversed(x)) for x in v]),
        Step("prefix", ("keep the first $k letters of each", "cut every word to $k letters"),
             "[x[:$k] for x in $v]", lambda v, k: ["".join(list(x)[:k]) for x in v], (1, 2, 3)),
        Step("by_length", ("sort them by length", "order them by length"),
             "sorted($v, key=len)", lambda v: [x for n in range(20) for x in v if len(x) == n]),
        *SHARED_STEPS[:1], *SHARED_STEPS[2:],
    ),
    finals=(
        Step("join", ("join them with spaces", "return them joined by spaces"), "' '.join($v)",
             lambda v: "".join(x + " " for x in v)[:-1]),
        Step("dash", ("join them with dashes", "return them joined by dashes"), "'-'.join($v)",
             lambda v: "".join(x + "-" for x in v)[:-1]),
        Step("letters", ("return the total length", "return the total number of letters"),
             "sum(len(x) for x in $v)", lambda v: len("".join(v))),
        *SHARED_FINALS,
    ),
)  # fmt: skip


LENGTHS = (1, 2, 2, 3)
"""Numbers of steps in the corpus, of which one is drawn."""


def draw_pipeline(rng: random.Random, lengths: tuple[int, ...] = LENGTHS) -> Pipeline:
    """Draw the kind of list, the steps with their constants, and the result."""
    kind = NUMBERS if rng.random() < 0.7 else STRINGS
    steps = rng.sample(kind.steps, rng.choice(lengths))
    drawn = tuple((step, rng.choice(step.constants) if step.constants else None) for step in steps)
    return Pipeline(kind, drawn, rng.choice(kind.finals))


def pipeline_tests(pipeline: Pipeline, name: str, rng: random.Random) -> tuple[str, ...]:
    """Write assert statements on drawn lists."""
    tests = []
    for _ in range(TESTS_PER_TASK):
        values = pipeline.kind.draw(rng)
        tests.append(f"assert {name}({values!r}) == {pipeline.run(list(values))!r}")
    return tuple(tests)


def draw_composition(rng: random.Random, lengths: tuple[int, ...] = LENGTHS) -> BuiltinTask:
    """Draw a pipeline in one wording, with its tests."""
    pipeline = draw_pipeline(rng, lengths)
    kind = pipeline.kind
    parameter, name = rng.choice(kind.parameter_names()), rng.choice(VAGUE_NAMES)
    description = pipeline.describe(rng)
    tests = pipeline_tests(pipeline, name, rng)
    style = HeaderStyle.draw(
        rng, docstrings={"line": 55, "block": 20, "example": 10, "comment": 15}
    )
    hinted = f"{parameter}: {kind.type}" if style.hints else parameter
    header = f"def {name}({hinted}):"
    return BuiltinTask(
        family="composition",
        key=f"composition|{pipeline}",
        entry_point=name,
        prompt=style.prompt(header, description, tests, imports=""),
        completion=style.completion(pipeline.body(parameter)),
        description=description,
        tests=tests,
    )

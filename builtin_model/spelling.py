"""Spell tasks as people do: any names, hints, defaults and wordings, laid out as header, comment,
question or hole.

`spell` draws a program of a family or a pipeline under names that may be anything; the layouts say
how it is asked for. What is held out is decided by the key alone, which is that of
`tasks.instantiate`, so no spelling of a held-out combination is ever trained on. Knows text,
nothing of tokens.
"""

import random
import re
from dataclasses import dataclass

from builtin_model import compositions
from builtin_model.classics import CLASSICS
from builtin_model.families import FAMILIES
from builtin_model.identifiers import (
    FUNCTION_FORMS,
    VERBS,
    camel_case,
    draw_name,
    draw_parameters,
    draw_word,
    pascal_case,
)
from builtin_model.tasks import IDENTIFIER, VAGUE_NAMES, Family, is_held_out, substitute, unit_tests
from builtin_model.wordings import Wording, lower_first, vary

COMPOSITION_SHARE = 0.33


def family_weight(family: Family) -> float:
    """Weigh a family by the length of its body, every token of which must be right; classics count
    twice.
    """
    return min(4.0, max(1.0, len(family.body) / 120)) * (2.0 if family.name in CLASSICS else 1.0)


SAME_SHARE = 0.3
"""Of the descriptions that stay as the corpus has them."""

WEIGHTS = tuple(map(family_weight, FAMILIES))


@dataclass(frozen=True, kw_only=True)
class Spelled:
    """A program, and what can be said of it.

    Attributes:
        family, key, entry_point, tests: as in a task.
        imports: lines before the header.
        header: the line that begins the function or class.
        parameters: their names.
        body: all below the header, not indented.
        description: the problem in a sentence of the corpus.
        is_class: whether it is a class.
        is_telling: whether the name of the function says what it does.
    """

    family: str
    key: str
    entry_point: str
    tests: tuple[str, ...]
    imports: str = ""
    header: str
    parameters: tuple[str, ...]
    body: str
    description: str
    is_class: bool = False
    is_telling: bool = True

    @property
    def signature(self) -> str:
        """Name and parameters, as in a sentence."""
        return (
            self.entry_point
            if self.is_class
            else f"{self.entry_point}({', '.join(self.parameters)})"
        )

    @property
    def code(self) -> str:
        """The program without hints and description, as its signature determines it."""
        return f"{'class' if self.is_class else 'def'} {self.signature}:\n{indented(self.body)}\n"

    @property
    def hinted_code(self) -> str:
        """The program without description, with all that its header states."""
        return f"{self.imports}{self.header}\n{indented(self.body)}\n"

    def wording(self, rng: random.Random) -> Wording:
        """Take its description apart, some words replaced by synonyms."""
        if self.family == "composition":
            # Its first verb is an order like those behind it, which no statement would fit.
            return Wording(lower_first(self.description.removesuffix(".")))
        return Wording.parse(vary(rng, self.description), is_class=self.is_class)

    def worded(self, rng: random.Random) -> str:
        """Say what it does, in one of many ways, or as the corpus does."""
        wording = self.wording(rng)
        return (
            self.description
            if rng.random() < SAME_SHARE
            else wording.sentence(rng.choice(wording.forms()))
        )


def indented(body: str) -> str:
    """Indent all lines but empty ones."""
    return "\n".join(f"    {line}" if line else "" for line in body.split("\n"))


def draw_spelled(
    rng: random.Random, *, plain: bool = False, usual_parameters: bool = False
) -> Spelled:
    """Draw a program of the training side; a `plain` one has the names that one would guess, or its
    parameters have.
    """
    while True:
        if not plain and rng.random() < COMPOSITION_SHARE:
            program = spell_pipeline(rng, usual_parameters=usual_parameters)
        else:
            family = rng.choices(FAMILIES, WEIGHTS)[0]
            program = spell(family, rng, plain=plain, usual_parameters=usual_parameters)
        if not is_held_out(program.key):
            return program


def spell(
    family: Family, rng: random.Random, *, plain: bool = False, usual_parameters: bool = False
) -> Spelled:
    """Draw names, constants and hints for a program of `family`."""
    constants = {key: rng.choice(options) for key, options in family.constants.items()}
    canonical = tuple(param.split(":")[0].strip() for param in family.params)
    kinds = tuple(param.split(":")[1].strip() for param in family.params)
    choices = family.parameter_choices()
    taken = set(IDENTIFIER.findall(family.body))
    names = choices[0] if plain or usual_parameters else parameter_names(choices, taken, rng)
    template = family.names[0] if plain else rng.choice(family.names)
    values = dict(zip(canonical, names, strict=True)) | constants
    telling = substitute(template, values)
    is_telling = plain or rng.random() < 0.78
    namer = telling_name if is_telling else vague_name
    entry_point = (
        telling if plain else namer(telling, {*taken, *names}, rng, is_class=family.is_class)
    )
    is_canonical = (
        template == family.names[0]
        and entry_point == telling
        and names == choices[0]
        and all(constants[key] == options[0] for key, options in family.constants.items())
    )
    docs = (*family.docs, *CLASSICS.get(family.name, ()))
    hints = Hints.draw(rng)
    arguments = hints.arguments(list(zip(names, kinds, strict=True)), rng)
    header = (
        f"class {entry_point}:"
        if family.is_class
        else f"def {entry_point}({arguments}){hints.result(family.returns)}:"
    )
    return Spelled(
        family=family.name,
        key=f"{family.name}|{entry_point}|{','.join(names)}|{constants}"
        + ("!" if is_canonical else ""),
        entry_point=entry_point,
        tests=unit_tests(family, entry_point, constants, rng),
        imports=hints.imports(header),
        header=header,
        parameters=names,
        body=substitute(family.body, values | {"f": entry_point}),
        description=substitute(rng.choice(docs), values),
        is_class=family.is_class,
        is_telling=is_telling,
    )


def spell_pipeline(rng: random.Random, *, usual_parameters: bool = False) -> Spelled:
    """Draw a pipeline whose function and parameter may be called anything, or the parameter as one
    would guess.
    """
    pipeline = compositions.draw_pipeline(rng)
    kind = pipeline.kind
    known = [(name,) for name in kind.parameter_names()]
    (parameter,) = known[0]
    if not usual_parameters:
        (parameter,) = (
            rng.choice(known) if rng.random() < 0.5 else draw_parameters(rng, 1, kind.taken)
        )
    name = (
        rng.choice(VAGUE_NAMES)
        if rng.random() < 0.5
        else draw_name(rng, FUNCTION_FORMS, {parameter, *kind.taken})
    )
    hints = Hints.draw(rng)
    header = f"def {name}({hints.arguments([(parameter, kind.type)], rng)}){hints.result(pipeline.returns)}:"
    return Spelled(
        family="composition",
        key=f"composition|{pipeline}",
        entry_point=name,
        tests=compositions.pipeline_tests(pipeline, name, rng),
        imports=hints.imports(header),
        header=header,
        parameters=(parameter,),
        body=pipeline.body(parameter),
        description=pipeline.describe(rng),
        is_telling=False,
    )


def parameter_names(
    choices: list[tuple[str, ...]], taken: set[str], rng: random.Random
) -> tuple[str, ...]:
    """Draw the canonical names, other usual ones, or any."""
    way = rng.random()
    if way < 0.3 or not choices[0]:
        return choices[0]
    return rng.choice(choices) if way < 0.55 else draw_parameters(rng, len(choices[0]), taken)


def telling_name(telling: str, taken: set[str], rng: random.Random, *, is_class: bool) -> str:
    """Draw the name of the corpus, or one made of it."""
    if is_class or rng.random() < 0.8:
        return telling
    others = (
        camel_case(telling), f"{rng.choice(VERBS)}_{telling}", f"{telling}_{draw_word(rng)}", f"my_{telling}",
        f"{telling}{rng.randint(1, 3)}", f"_{telling}", f"{telling}_func", f"do_{telling}",
    )  # fmt: skip
    return rng.choice([name for name in others if name not in taken])


def vague_name(telling: str, taken: set[str], rng: random.Random, *, is_class: bool) -> str:
    """Draw a name that has nothing to do with the task."""
    if is_class:
        return pascal_case(draw_name(rng, FUNCTION_FORMS, taken))
    return rng.choice(VAGUE_NAMES) if rng.random() < 0.35 else draw_name(rng, FUNCTION_FORMS, taken)


@dataclass(frozen=True)
class Hints:
    """Which types a header states, and in which dialect.

    Attributes:
        on_arguments, on_result: what has hints.
        from_typing: List[int] instead of list[int].
        default: whether the last parameter has a default.
    """

    on_arguments: bool
    on_result: bool
    from_typing: bool
    default: bool

    @classmethod
    def draw(cls, rng: random.Random) -> "Hints":
        """Draw a style: neither, both, or one of the two."""
        arguments, result = rng.choices(
            ((False, False), (True, True), (True, False), (False, True)), (54, 32, 9, 5)
        )[0]
        return cls(arguments, result, rng.random() < 0.3, rng.random() < 0.05)

    def dialect(self, kind: str) -> str:
        """Write a type."""
        names = r"\b(list|dict|tuple|set)\["
        return (
            re.sub(names, lambda match: f"{match[1].capitalize()}[", kind)
            if self.from_typing
            else kind
        )

    def arguments(self, parameters: list[tuple[str, str]], rng: random.Random) -> str:
        """Write what stands in the parentheses."""
        written = [
            f"{name}: {self.dialect(kind)}" if self.on_arguments else name
            for name, kind in parameters
        ]
        if self.default and parameters:
            values = {
                "int": ("0", "1", "2", "5", "10"),
                "str": ('""', '"hello"', "' '"),
                "float": ("0.0", "1.0"),
            }
            value = rng.choice(values.get(parameters[-1][1], ("None",)))
            written[-1] += f" = {value}" if self.on_arguments else f"={value}"
        return ", ".join(written)

    def result(self, kind: str) -> str:
        """Write the type of the result, if it has one."""
        return f" -> {self.dialect(kind)}" if self.on_result and kind else ""

    @staticmethod
    def imports(header: str) -> str:
        """Import what a header takes from typing."""
        names = sorted(set(re.findall(r"\b(List|Dict|Tuple|Set)\[", header)))
        return f"from typing import {', '.join(names)}\n\n" if names else ""

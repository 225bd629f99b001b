"""Say one description in the many ways in which people ask for a program.

Knows English sentences of the corpus: an order ("Return the sum."), a statement ("This function
returns the sum."), a condition first ("Given a list, return its sum."), or what a class is ("A
stack with push and pop.").
"""

import random
import re
from dataclasses import dataclass

STATEMENT = re.compile(r"This function (\w+) (.*)", re.DOTALL)
CLASS = re.compile(r"(?:This class is |Implement )?((?:an? )?.*)", re.DOTALL)

IMPERATIVES = frozenset(
    word
    for line in """
        return compute find count check test add convert sort remove calculate multiply list generate sum make implement
        reverse filter rotate swap replace take determine build double merge solve square divide do call split subtract
        map say capitalize invert drop repeat concatenate truncate keep search flatten group move create traverse
        decompose raise cube play clamp force apply classify greet shift encrypt compress encode cut pad put interleave
        zip pair skip exchange transpose get give tell decide
    """.splitlines()
    for word in line.split()
)
"""Verbs with which a description begins that is an order; others begin with what is given, or with a noun."""

SYNONYMS = (
    (
        r"^Return True if",
        ("Check if", "Check whether", "Determine whether", "Tell whether", "Test if"),
    ),
    (r"^Check (whether|if)", ("Determine if", "Test whether", "Return True if", "Decide whether")),
    (r"^Return the", ("Get the", "Compute the", "Find the", "Give the", "Calculate the")),
    (r"^(Compute|Calculate) the", ("Return the", "Find the", "Calculate the", "Compute the")),
    (r"^Find the", ("Return the", "Get the", "Determine the")),
    (r"^Count the", ("Return the number of", "Find the number of")),
    (r"\bnumber of\b", ("count of",)),
    (r"\blargest\b", ("biggest", "greatest", "maximum")),
    (r"\bsmallest\b", ("minimum", "least")),
    (r"\ba list of numbers\b", ("a list of integers", "an array of numbers", "a list", "numbers")),
    (r"\ba list\b", ("an array", "the list", "a given list")),
    (r"\ba string\b", ("the string", "a given string", "some text", "the input string")),
    (r"\bGiven a list\b", ("Given an array", "For a list")),
    (r"\bin ascending order\b", ("from smallest to largest", "in increasing order")),
    (r"\bcharacters\b", ("letters", "chars")),
    (r"\bremove duplicates\b", ("delete duplicates", "remove all duplicates")),
)
"""Patterns, and what may stand in their place without another meaning."""

ORDERS = (
    "{Order}.", "{order}", "{Order}", "{Does}.", "{does}", "Write a function that {does}.",
    "Write a function to {order}.",
    "Write a Python function that {does}.", "Write a Python function to {order}.", "Function that {does}.",
    "A function that {does}", "function to {order}", "Function to {order}.", "Implement a function that {does}.",
    "Create a function that {does}.", "Define a function to {order}.", "Python function to {order}",
    "This function {does}.", "TODO: {order}", "Task: {order}.", "program to {order}", "Write code to {order}.",
)  # fmt: skip
CONDITIONS = (
    "{Order}.", "{order}", "Write a function: {order}.", "Task: {order}.", "{Order}", "TODO: {order}",
    "Write a function. {Order}.",
)  # fmt: skip
CLASSES = (
    "{Thing}.", "{thing}", "Implement {thing}.", "Write a class for {thing}.", "This class is {thing}.",
    "class for {thing}",
    "Create {thing}.", "Define a class: {thing}.", "Write a Python class that is {thing}.",
)  # fmt: skip
SYNONYM_SHARE = 0.25


@dataclass(frozen=True)
class Wording:
    """A description as parts of sentences, none with a capital or a full stop.

    Attributes:
        order: what to do: "return the sum of n"; for a class what it is: "a stack with push and
            pop".
        does: what the function does: "returns the sum of n"; empty where only an order makes a
            sentence.
        is_class: whether it describes a class.
    """

    order: str
    does: str = ""
    is_class: bool = False

    @classmethod
    def parse(cls, description: str, *, is_class: bool = False) -> "Wording":
        """Read a description of the corpus."""
        text = description.strip().rstrip(".?")
        if is_class:
            match = CLASS.fullmatch(text)
            assert match
            return cls(lower_first(match[1]), is_class=True)
        statement = STATEMENT.fullmatch(text)
        if statement:
            return cls(
                f"{infinitive(statement[1])} {statement[2]}", f"{statement[1]} {statement[2]}"
            )
        verb, _, rest = text.partition(" ")
        if verb.lower() not in IMPERATIVES or not rest:
            return cls(lower_first(text))
        return cls(lower_first(text), f"{third_person(verb.lower())} {rest}")

    def forms(self) -> tuple[str, ...]:
        """List the sentences that can be made of it."""
        return CLASSES if self.is_class else ORDERS if self.does else CONDITIONS

    def sentence(self, form: str) -> str:
        """Fill a form: {order}, {does}, {thing}, with a capital where the field has one."""
        fields = {"order": self.order, "does": self.does, "thing": self.order}
        return form.format(
            **fields, **{name.capitalize(): upper_first(text) for name, text in fields.items()}
        )


def vary(rng: random.Random, description: str) -> str:
    """Replace some words by synonyms."""
    for pattern, others in SYNONYMS:
        if rng.random() < SYNONYM_SHARE:
            description = re.sub(pattern, rng.choice(others), description, count=1)
    return description


def third_person(verb: str) -> str:
    """Inflect a verb: return, returns."""
    if re.search(r"(s|sh|ch|x|z|o)$", verb):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if re.search(r"[^aeiou]y$", verb) else f"{verb}s"


def infinitive(verb: str) -> str:
    """Undo `third_person`."""
    if verb.endswith("ies"):
        return f"{verb[:-3]}y"
    return verb[:-2] if re.search(r"(ss|sh|ch|x|zz|o)es$", verb) else verb.removesuffix("s")


def lower_first(text: str) -> str:
    """Begin with a small letter, unless the first word has further capitals."""
    first = text.split(" ", 1)[0]
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Begin with a capital."""
    return text[:1].upper() + text[1:]

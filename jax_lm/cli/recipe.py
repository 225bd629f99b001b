"""Option files (`--config FILE`): the options of a recipe become flags before those that were typed.

    diffucoder grpo --config recipes/grpo_paper.yaml --learning-rate 2e-6

So a recipe is checked like a command line, and what is typed beside it wins.
"""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

FLAG = "--config"
OPTION = re.compile("--|-[A-Za-z]")
"""How a word begins that is no value; negative numbers are."""

SWITCHES = {"true": "True", "false": "False"}
NOTHING = {"none": "None", "null": "None"}
"""How people, and YAML, write what Python calls otherwise."""


def values(words: Sequence[str], name: str) -> list[str]:
    """List the values that an option has among the words of a command, those of the last time if it is repeated."""
    found: list[str] = []
    for place, word in enumerate(words):
        given, equals, value = word.partition("=")
        if given == name:
            found = [value] if equals else list(takewhile(lambda each: not OPTION.match(each), words[place + 1 :]))
    return found


def before_options(words: Sequence[str], implied: Sequence[str]) -> list[str]:
    """The words of a command with further options before those that are there, which win."""
    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    return [*words[:first], *implied, *words[first:]]


def flags(path: Path) -> list[list[str]]:
    """Read a recipe's options, each as the words that would be typed; ValueError if it is no recipe."""
    # Here, because a command line without a recipe should not wait for it.
    import yaml

    class Loader(yaml.BaseLoader):
        """Refuses what YAML forbids and its library takes: a name that comes twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
            names = [self.construct_object(name) for name, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{twice[0]} is given twice")
            return super().construct_mapping(node, deep)

    try:
        recipe = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot be read ({error})") from error
    if not isinstance(recipe, dict) or not all(isinstance(name, str) and name.isidentifier() for name in recipe):
        raise ValueError("must be a mapping of options to values")
    return [[f"--{name.replace('_', '-')}", *words_of(name, value)] for name, value in recipe.items()]


def words_of(name: str, value: object) -> list[str]:
    """Write a value as it would be typed; the loader leaves every scalar as text."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a value or a list of values, not {value!r:.80}")
    return [value]

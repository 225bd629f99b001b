"""Recipes: a YAML file of a command's options, which become flags before those that were typed.

    diffucoder grpo --config runs/grpo_paper.yaml --learning-rate 2e-6

So a recipe is checked like a command line, and what is typed beside it wins.
"""

from collections.abc import Sequence
from pathlib import Path

FLAG = "--config"


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments with the recipe's options inserted after the command's words.

    Raises:
        ValueError: the recipe cannot be read, or is no mapping of options to values.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    places = [index for index, argument in enumerate(arguments[:end]) if argument.partition("=")[0] == FLAG]
    if not places:
        return list(arguments)
    place = places[-1]
    name = arguments[place].partition("=")[2] or "".join(arguments[place + 1 : place + 2])
    first = next(index for index, argument in enumerate(arguments) if argument.startswith("-"))
    return [*arguments[:first], *flags(Path(name)), *arguments[first:]]


def flags(path: Path) -> list[str]:
    """A recipe's options as flags."""
    # Here, because a command line without a recipe should not wait for it.
    import yaml

    try:
        recipe = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"config={str(path)!r}: cannot be read ({error})") from error
    if not isinstance(recipe, dict) or not all(isinstance(name, str) for name in recipe):
        raise ValueError(f"config={str(path)!r}: must be a mapping of options to values")
    return [part for name, value in recipe.items() for part in (f"--{name.replace('_', '-')}", *words_of(name, value))]


def words_of(name: str, value: object) -> list[str]:
    """A value as it would be typed; the loader leaves every scalar as text."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return value
    if not isinstance(value, str):
        raise ValueError(f"recipe: {name} must be a value or a list of values, not {value!r:.80}")
    return [{"null": "None", "true": "True", "false": "False"}.get(value, value)]

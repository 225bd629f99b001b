"""Parse the arguments of a command from its command line and its recipe.

    diffucoder grpo --config recipes/grpo_paper.yaml --learning-rate 2e-6

A recipe is a YAML file of options: `max_new_tokens: 8` means `--max-new-tokens 8`. Options on the
command line override those of the recipe. `--model builtin` is the built-in model, which commands
use if no model is given. Error messages are one line.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from jax_lm.config import Fields
from jax_lm.host.declared import arguments_of, find_option, read_words

T = TypeVar("T")


def parse_words(kind: type[T], words: Sequence[str], command: str) -> T:
    """Parse the arguments of a command from its words and from the recipe that they name.

    A class of arguments may define two things:

    - `implied(given)` returns options that follow from the given ones. Given options override them.
    - `EXCLUSIVE` lists groups of options. If one of a group is on the command line, the recipe's
      options of that group are ignored.

    Raises:
        ValueError: wrong options. The message is one line, and names the recipe if the mistake is
            in it.
    """
    # options that are typed
    prog = f"diffucoder {command}"
    recipe = {}
    typed = read_words(kind, words, prog)
    # options of the recipe, except those that typed options exclude
    if path := typed.get("config"):
        try:
            recipe = read_recipe(kind, path, prog)
        except ValueError as error:
            raise ValueError(f"config={str(path)!r}: {as_keys(str(error))}") from error
        for group in getattr(kind, "EXCLUSIVE", ()):
            if not typed.keys().isdisjoint(group):
                recipe = {name: recipe[name] for name in recipe if name not in group}
    # typed options win
    given = recipe | typed
    # "builtin" is the default of commands whose model may be None
    if given.get("model") == "builtin" and find_option(kind, "--model", prog)[0].takes_none:
        given["model"] = None
    try:
        # options that follow from others, unless they are given
        if implied := getattr(kind, "implied", None):
            given = implied(given) | given
        return kind(**arguments_of(kind, given, prog))
    except ValueError as error:
        # errors begin with the field: "batch_size=0: must be at least 1"
        name = re.match(r"\w+", str(error))
        if name and name[0] in recipe.keys() - typed.keys():
            raise ValueError(f"config={str(path)!r}: {error}") from error
        raise


def read_recipe(kind: type, path: Path, prog: str) -> Fields:
    """Read a recipe into values by field.

    Raises:
        ValueError: the recipe cannot be read, or has wrong options.
    """
    # Imported here because a command line without a recipe does not need it.
    import yaml

    try:
        # Nodes, not objects: every scalar stays text, and repeated names are not lost.
        recipe = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot be read ({error})") from error
    # an empty file is None
    if not isinstance(recipe, yaml.MappingNode) or not all(
        str(key.value).isidentifier() for key, _ in recipe.value
    ):
        raise ValueError("must be a mapping of options to values")
    # options as in a command line: values are texts
    given = {}
    for key, node in recipe.value:
        if key.value == "config":
            raise ValueError("config: a recipe cannot name another recipe")
        # `lora_targets: [q_proj, v_proj]` is `--lora-targets q_proj v_proj`
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            raise ValueError(f"{key.value} must be a value or a list of values")
        option, is_negated = find_option(kind, f"--{key.value}", prog)
        if option.field in given:
            raise ValueError(f"{key.value} is given twice")
        given[option.field] = option.value([part.value for part in parts], is_negated=is_negated)
    return given


def as_keys(message: str) -> str:
    """Rewrite the options in a message as keys of a recipe."""
    # "--batch-size: needs a value" -> "batch_size: needs a value"
    return re.sub(
        r"--(?!help\b)([A-Za-z][\w-]*)", lambda option: option[1].replace("-", "_"), message
    )

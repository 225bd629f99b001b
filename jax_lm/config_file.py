"""Option files (`--config FILE`): the options of a recipe become flags before those that were typed.

    diffucoder grpo --config runs/grpo_paper.yaml --learning-rate 2e-6

So a recipe is checked like a command line, and what is typed beside it wins.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

FLAG = "--config"


TRAINING = {
    "--steps": "--max-steps",
    "--accumulation": "--gradient-accumulation-steps",
    "--rows": "--batch-size",
    "--length": "--max-length",
    "--epochs": "--num-train-epochs",
    "--warmup-share": "--warmup-ratio",
    "--final-share": "--min-lr-ratio",
    "--clip-norm": "--max-grad-norm",
    "--betas": "--adam-beta1 --adam-beta2",
    "--epsilon": "--adam-epsilon",
}

RENAMED: Mapping[str, Mapping[str, str]] = {
    "analyze": {"--steps": "--num-steps"},
    "eval": {"--steps": "--num-steps"},
    "serve": {"--lanes": "--slots"},
    "sft": TRAINING,
    "adapt": {old: new for old, new in TRAINING.items() if old != "--epochs"},
    "grpo": {
        "--max-completion-length": "--max-new-tokens",
        "--diffusion-steps": "--num-steps",
        "--decoding": "--preset",
        "--preset paper": "",
    },
}
"""Options of version 0.1 by command, and what they are called now; both are understood.

An option that became several gives each of them one of its values. An option with a value is renamed with that value
alone; the published recipe of `grpo` was a preset, and is the default.
"""


def expanded(arguments: Sequence[str], command: str = "") -> list[str]:
    """The arguments of a command with the recipe's options before those that were typed, under today's names.

    Raises:
        ValueError: the recipe cannot be read, or is no mapping of options to values.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given, rest = list(arguments[:end]), list(arguments[end:])
    recipes = [index for index, argument in enumerate(given) if argument.partition("=")[0] == FLAG]
    if recipes:
        name = given[recipes[-1]].partition("=")[2] or "".join(given[recipes[-1] + 1 : recipes[-1] + 2])
        given = before_options(given, flags(Path(name)))
    return renamed(given, command) + rest


def option(words: Sequence[str], name: str, default: str) -> str:
    """The value that an option has among the words of a command, the last one if it is repeated."""
    values = [
        word.partition("=")[2] or "".join(words[index + 1 : index + 2])
        for index, word in enumerate(words)
        if word.partition("=")[0] == name
    ]
    return values[-1] if values else default


def before_options(words: Sequence[str], implied: Sequence[str]) -> list[str]:
    """The words of a command with further options before those that are there, which win."""
    first = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    return [*words[:first], *implied, *words[first:]]


def renamed(words: Sequence[str], command: str) -> list[str]:
    """Put the options of a command under their present names."""
    table, rest, present = RENAMED.get(command, {}), list(words), []
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        old = name.replace("_", "-")
        if (whole := f"{old} {value if equals else ''.join(rest[:1])}") in table:
            present += table[whole].split()
            del rest[: 0 if equals else 1]
            continue
        names = table[old].split() if old in table else [name]
        present.append(f"{names[0]}{equals}{value}")
        for other in names[1:]:
            present += [*rest[:1], other]
            del rest[:1]
    return present


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

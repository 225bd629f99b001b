"""The words of a command line and of a recipe, made uniform for tyro; every mistake is one line.

`--max-new-tokens 8`, `--max_new_tokens=8` and a recipe's `max_new_tokens: 8` are the same. A flag is `--watch`,
`--no-watch` or `--watch true`. Of an option that is repeated the last one counts.
"""

import contextlib
import difflib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tyro

from jax_lm.cli import recipe as config_file
from jax_lm.cli.declared import MARKS, SHORT, Option, declared_options
from jax_lm.host.terminal import USAGE_ERROR

T = TypeVar("T")
WORD = re.compile(r"(?P<name>--[A-Za-z][\w-]*|-[A-Za-z]\w*)(?:=(?P<value>.*))?", re.DOTALL)
SYNONYMS = {
    "--output": "--out",
    "--output-dir": "--out",
    "--logging-steps": "--log-every",
    "--save-steps": "--save-every",
    "--eval-steps": "--evaluate-every",
    "--save-total-limit": "--keep",
    "--report-to": "--track",
    "--gradient-checkpointing": "--remat",
    "--per-device-train-batch-size": "--batch-size",
    "--packing": "--packed",
}
"""Names that Hugging Face and TRL give to options; understood wherever the option exists."""

WORD_SIZE = 2**63
BOX_RULE = re.compile("─{3}|-{3}")
"""Between the parts of what tyro prints in a box, in Unicode or ASCII: title, message, perhaps an option, help."""


@dataclass(frozen=True)
class Vocabulary:
    """The options of one command, by everything that may be typed for them."""

    command: str
    options: tuple[Option, ...]

    def find(self, word: str) -> tuple[Option, bool]:
        """The option that a word names, and whether it is negated; ValueError names the nearest one."""
        name = SHORT.get(word, word.replace("_", "-"))
        for option in self.options:
            known = f"--{option.name}" if option.is_positional else option.name
            if known in (name, SYNONYMS.get(name)):
                return option, False
            if option.is_flag and name == f"--no-{option.name[2:]}":
                return option, True
        raise ValueError(f"{word}: no option of {self.command}{self.hint(name)}")

    def hint(self, name: str) -> str:
        """Name the option that was perhaps meant."""
        known = {option.name: option.name for option in self.options}
        known |= {other: option for other, option in SYNONYMS.items() if option in known}
        if near := difflib.get_close_matches(name, known, n=1):
            return f" (perhaps {known[near[0]]})"
        return f"; diffucoder {self.command} --help lists them"

    def uniform(self, words: Sequence[str]) -> list[str]:
        """Write words as tyro takes them; ValueError for an option that is unknown, or a flag of neither value."""
        end = words.index("--") if "--" in words else len(words)
        rest, after, said = list(words[:end]), list(words[end:]), []
        while rest:
            match = WORD.fullmatch(word := rest.pop(0))
            if match is None:
                said.append(word)
                continue
            option, is_negated = self.find(match["name"])
            value = match["value"]
            if option.is_flag:
                if value is None and rest and rest[0].lower() in config_file.SWITCHES:
                    value = rest.pop(0)
                said += flag_words(option, value or "true", is_negated=is_negated)
            elif option.is_positional:
                # A word without a name is what it means: behind all options, as it may look like one.
                after = [*(after or ["--"]), *([value] if value is not None else rest[:1])]
                del rest[: value is None]
            else:
                given = rest.pop(0) if value is None and rest and not WORD.fullmatch(rest[0]) else value
                if given is not None and option.takes_none:
                    given = config_file.NOTHING.get(given.lower(), given)
                said += (
                    [option.name]
                    if given is None
                    else [option.name, given]
                    if value is None
                    else [f"{option.name}={given}"]
                )
        return [*said, *after]


def flag_words(option: Option, value: str, *, is_negated: bool) -> list[str]:
    """Write a flag as tyro takes it; ValueError unless the value is true or false (or none, where it may be open)."""
    allowed = {**config_file.SWITCHES, **(config_file.NOTHING if option.is_open else {})}
    if value.lower() not in allowed:
        raise ValueError(f"{option.name} {value!r:.80}: must be true or false{' or none' if option.is_open else ''}")
    state = allowed[value.lower()]
    if is_negated:
        state = {"True": "False", "False": "True"}.get(state, state)
    if option.is_open:
        return [option.name, state]
    return [option.name if state == "True" else f"--no-{option.name[2:]}"]


def names_in(words: Sequence[str]) -> set[str]:
    """The options that uniform words give, by their names."""
    end = words.index("--") if "--" in words else len(words)
    return {re.sub("^--no-", "--", word.partition("=")[0]) for word in words[:end] if WORD.fullmatch(word)}


def parse_words(kind: type[T], words: Sequence[str], command: str) -> T:
    """Make a command's arguments of its words, and of the recipe that they name; what is typed wins.

    A class of arguments may have `implied(words)`: options that the uniform words imply, and that lose against them;
    and `EXCLUSIVE`: pairs of options, of which the one that is typed puts the other one of a recipe out of force.

    Raises:
        ValueError: what is wrong, in one line that names the recipe if it is in there.
    """
    vocabulary = Vocabulary(command, declared_options(kind, command))
    typed = vocabulary.uniform(words)
    path, recipe = "".join(config_file.values(typed, config_file.FLAG)[:1]), []
    if path:
        overruled = {name for pair in getattr(kind, "EXCLUSIVE", ()) if names_in(typed) & set(pair) for name in pair}
        try:
            recipe = recipe_words(vocabulary, Path(path), overruled)
        except ValueError as error:
            raise ValueError(f"config={path!r}: {as_keys(str(error))}") from error
    whole = config_file.before_options(typed, recipe)
    if implied := getattr(kind, "implied", None):
        whole = config_file.before_options(whole, implied(whole))
    lacking = [o.name for o in vocabulary.options if o.is_required and not o.is_positional]
    if lacking := [name for name in lacking if name not in names_in(whole)]:
        raise ValueError(f"{command} needs {', '.join(lacking)}; diffucoder {command} --help says more")
    try:
        require_numbers(whole, vocabulary)
        return instance_of(kind, whole, vocabulary)
    except ValueError as error:
        name = re.match(r"(?:--)?([\w-]+)", str(error))
        flag = f"--{name[1].replace('_', '-')}" if name else ""
        if flag in names_in(recipe) - names_in(typed):
            raise ValueError(f"config={path!r}: {as_keys(str(error))}") from error
        raise


def require_numbers(words: Sequence[str], vocabulary: Vocabulary) -> None:
    """ValueError for a number that is not finite, or that no machine word holds."""
    for option in vocabulary.options:
        kind = option.metavar.partition(" ")[0]
        for value in config_file.values(words, option.name) if kind in ("INT", "FLOAT") else ():
            try:
                is_fit = math.isfinite(float(value)) if kind == "FLOAT" else -WORD_SIZE <= int(value) < WORD_SIZE
            except (ValueError, OverflowError):
                # No number at all, of which tyro says so.
                continue
            if not is_fit:
                rule = "a finite number" if kind == "FLOAT" else "a number of 64 bits"
                raise ValueError(f"{option.name} {value!r:.80}: must be {rule}")


def recipe_words(vocabulary: Vocabulary, path: Path, overruled: set[str]) -> list[str]:
    """Read a recipe as uniform words, without the options that are overruled; ValueError if it is wrong."""
    words: list[str] = []
    for flags in config_file.flags(path):
        if flags[0] == config_file.FLAG:
            raise ValueError(f"{config_file.FLAG}: a recipe is read as it stands, and takes nothing from another one")
        present = vocabulary.uniform(flags)
        for name in names_in(present):
            option, _ = vocabulary.find(name)
            if not option.takes_many and len(given := config_file.values(present, name)) > 1:
                raise ValueError(f"{name}: takes one value, not {len(given)}")
        words += [] if names_in(present) & overruled else present
    return words


def instance_of(kind: type[T], words: Sequence[str], vocabulary: Vocabulary) -> T:
    """Let tyro read uniform words; ValueError says in one line what is wrong with them."""
    refusal, command = io.StringIO(), vocabulary.command
    try:
        with contextlib.redirect_stderr(refusal):
            return tyro.cli(kind, prog=f"diffucoder {command}", args=list(words), config=MARKS)
    except SystemExit as stop:
        if stop.code != USAGE_ERROR:
            raise
        message = message_of(refusal.getvalue())
    if wrong := re.match(r"Error parsing (--[\w-]+): ", message):
        option, _ = vocabulary.find(wrong[1])
        given = " ".join(config_file.values(words, option.name)[: None if option.takes_many else 1])
        message = f"{option.name} {given!r:.80}: must be {option.metavar}"
    if message.startswith("Missing from "):
        places = ", ".join(o.name.upper() for o in vocabulary.options if o.is_required and o.is_positional)
        message = f"{command} needs {places}; diffucoder {command} --help says more"
    if unknown := re.fullmatch("Unrecognized options: (.*)", message):
        message = f"{unknown[1]!r}: {command} takes no more without a name; a text with spaces is put in quotes"
    raise ValueError(message)


def message_of(refusal: str) -> str:
    """Take the message out of the box that tyro prints."""
    parts: list[list[str]] = [[]]
    for line in refusal.splitlines():
        if BOX_RULE.search(line):
            parts.append([])
        else:
            parts[-1].append(line.strip("│| "))
    text = " ".join(" ".join(parts[1] if len(parts) > 1 else []).split()).partition(" Got errors:")[0]
    text = re.sub(r"^Error parsing [^-\s]\S*: ", "", text)
    return re.sub("^Missing value for argument '(--[a-z0-9-]+)'.*", r"\1: needs a value", text)


def as_keys(message: str) -> str:
    """Write the options in a message as they stand in a recipe."""
    return re.sub(r"--(?!help\b)([A-Za-z][\w-]*)", lambda option: option[1].replace("-", "_"), message)

"""The options that tyro makes of a dataclass of arguments: one list for words, help and the documentation's table.

Knows dataclasses and their docstrings, not what an option does.
"""

import argparse
import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import tyro

MARKS = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
DEFAULT = re.compile(r"\s*\((?:default: (?P<default>.*)|required)\)$", re.DOTALL)
"""What tyro writes after the text of an option."""

SHORT = {"-m": "--model", "-o": "--out", "-p": "--prompt"}
MANY = re.compile(r"\{?\[(\S+) \[.*")
"""How tyro writes that there may be several values."""

NONE_CHOICE = re.compile(r"\{None\}\||None,|,None(?=\})")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a command.

    Attributes:
        name: for the user, with dashes in front of one that has to be named.
        metavar: what stands for its value; empty for a flag.
        default: as it would be typed; empty where there is none to speak of.
        help: from the docstring.
        is_flag: it means something without a value.
        is_open: a flag that may be left open (None).
        takes_none: its value may be None.
        is_required: it must be given.
    """

    name: str
    metavar: str
    default: str
    help: str
    is_flag: bool
    is_open: bool
    takes_none: bool
    is_required: bool

    @property
    def takes_many(self) -> bool:
        return self.metavar.endswith("...")

    @property
    def is_positional(self) -> bool:
        return not self.name.startswith("-")

    @classmethod
    def of(cls, action: Any) -> "Option":
        """Describe an action of the argparse that tyro carries."""
        text = " ".join((action.help or "").split())
        found = DEFAULT.search(text)
        default = (found and found["default"]) or ""
        choices = {str(choice) for choice in action.choices or ()}
        metavar = str(action.metavar or "")
        is_open = {"True", "False", "None"} <= choices
        return cls(
            name=action.option_strings[0] if action.option_strings else action.dest.rpartition(".")[2],
            metavar="" if action.nargs == 0 or is_open else MANY.sub(r"\1 ...", NONE_CHOICE.sub("", metavar)),
            default="" if default in ("None", "False") else default,
            help=DEFAULT.sub("", text),
            is_flag=action.nargs == 0 or is_open,
            is_open=is_open,
            takes_none="None" in metavar,
            is_required=action.required and found is not None and found["default"] is None,
        )


def parser_of(kind: type, command: str) -> Any:
    """Make the parser of a command, of the argparse that tyro carries.

    `FIRST` of the dataclass names the options that come first in its help.
    """
    with warnings.catch_warnings():
        # tyro offers nothing else yet that lists what it has made of a dataclass.
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(kind, prog=f"diffucoder {command}", config=MARKS)
    bring_forward(parser, getattr(kind, "FIRST", ()))
    return parser


def bring_forward(parser: Any, first: Sequence[str]) -> None:
    """Put the options of these names into a group of their own before all others, in this order."""
    chosen: dict[str, Any] = {}
    for group in parser._action_groups:
        for action in list(group._group_actions):
            name = "".join(action.option_strings[:1]).removeprefix("--").replace("-", "_")
            if name in first:
                chosen[name] = action
                group._group_actions.remove(action)
    assert set(chosen) == set(first), f"no such options: {set(first) - set(chosen)}"
    group = parser.add_argument_group("options that matter first")
    group._group_actions.extend(chosen[name] for name in first)
    # Behind those without a name.
    parser._action_groups.insert(1, parser._action_groups.pop())


def help_text(kind: type, command: str) -> str:
    """Write the text of `diffucoder COMMAND --help`."""
    parser = parser_of(kind, command)
    options = {option.name: option for option in declared_options(kind, command)}
    for group in parser._action_groups:
        group.title = (group.title or "").rpartition(".")[2].replace("-", " ")
        for action in group._group_actions:
            name = action.option_strings[0] if action.option_strings else action.dest.rpartition(".")[2]
            if option := options.get(name):
                action.option_strings = [
                    *(short for short, full in SHORT.items() if full == name),
                    *action.option_strings,
                ]
                action.nargs = 0 if option.is_flag else None
                action.metavar = (name.upper() if option.is_positional else option.metavar) or None
                note = (
                    " (required)" if option.is_required else f" (default: {option.default})" if option.default else ""
                )
                action.help = f"{option.help}{note}".replace("%", "%%")
    places = [o.name.upper() if o.is_required else f"[{o.name.upper()}]" for o in options.values() if o.is_positional]
    needed = [f"{o.name} {o.metavar}" for o in options.values() if o.is_required and not o.is_positional]
    parser.usage = " ".join(["diffucoder", command, *places, *needed, "[OPTIONS]"])
    parser.description = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[0].rstrip()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser.format_help(parser)


@cache
def declared_options(kind: type, command: str) -> tuple[Option, ...]:
    """List the options of a command, those that matter first.

    `IMPLIED` of the dataclass says what its `implied` puts in the place of defaults.
    """
    groups = parser_of(kind, command)._action_groups
    actions = [action for group in groups for action in group._group_actions]
    options = [Option.of(action) for action in actions if "--help" not in action.option_strings]
    implied = getattr(kind, "IMPLIED", {})
    assert implied.keys() <= {option.name for option in options}, f"no such options: {set(implied)}"
    return tuple(replace(option, default=implied.get(option.name, option.default)) for option in options)


def options_page(commands: Mapping[str, tuple[type, str]], preamble: str) -> str:
    """Write the page of the documentation that lists every option of every command, given by class and summary."""
    lines = ["# Options", "", preamble]
    for command, (kind, summary) in commands.items():
        lines += ["", f"## diffucoder {command}", "", summary, "", "| option | default | meaning |", "|---|---|---|"]
        lines += [table_row(option) for option in declared_options(kind, command)]
    return "\n".join([*lines, ""])


def table_row(option: Option) -> str:
    """Write one row of the documentation's table."""
    name = option.name.upper() if option.is_positional else option.name
    if option.is_flag and option.default == "True":
        name = f"--[no-]{option.name[2:]}"
    shown = f"{name} {'' if option.is_positional else option.metavar}".rstrip()
    default = {"True": "on", "": ""}.get(option.default, f"`{option.default}`")
    cells = (f"`{shown}`", "required" if option.is_required else default, option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

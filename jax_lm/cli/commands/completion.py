"""`diffucoder completion`: the script by which a shell completes commands and options, as tyro makes it."""

import contextlib
from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Annotated, Any, Union

import tyro

from jax_lm.cli.arguments.completion import Completion
from jax_lm.cli.arguments.table import COMMANDS, classes
from jax_lm.cli.declared import MARKS

Tree = dict[str, Any]
"""Commands by their first word: a class of arguments, or the commands of a group by their second word."""


def run_completion(arguments: Completion) -> int:
    """Print the script."""
    words = ["--tyro-print-completion", arguments.shell]
    # Printing is what tyro ends with.
    with contextlib.suppress(SystemExit):
        tyro.cli(all_commands(tree()), prog="diffucoder", args=words, config=MARKS)
    return 0


def tree() -> Tree:
    """Arrange the commands by their words."""
    found: Tree = {}
    for name, kind in classes().items():
        group, _, second = name.partition(" ")
        if second:
            found.setdefault(group, {})[second] = kind
        else:
            found[group] = kind
    return found


def all_commands(commands: Mapping[str, Any], group: str = "") -> Any:
    """Make the type of which tyro makes subcommands."""
    kinds = []
    for name, kind in commands.items():
        whole = f"{group}{name}"
        inner = make_dataclass(whole, [("command", all_commands(kind, f"{name} "))]) if isinstance(kind, dict) else kind
        about = COMMANDS[whole].summary if whole in COMMANDS else f"Commands about {name}."
        kinds.append(Annotated[inner, tyro.conf.subcommand(name, description=about)])
    return Union[tuple(kinds)]  # noqa: UP007 (of as many as there are)

"""The `diffucoder` command: finds the command's module, parses its arguments, turns errors into one line.

A command's arguments are declared in `jax_lm.cli.arguments`, without JAX, so that help costs nothing; what it does is a
module of `jax_lm.cli.commands`, imported when it runs.
"""

import difflib
import importlib
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from jax_lm.cli import declared, parsing
from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.host import interruption, platforms, terminal

DESCRIPTION = "DiffuCoder in JAX: masked-diffusion code generation."


def overview(group: str = "") -> str:
    """List the commands, or those of a group: the text of `diffucoder --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in COMMANDS.items() if name.startswith(group)]
    usage = "usage: diffucoder COMMAND [OPTIONS]    (diffucoder COMMAND --help shows a command's options)"
    more = "  --version  print the version\n  --debug    with any command: show tracebacks"
    return "\n".join([usage, "", DESCRIPTION, "", "commands:", *lines, "", "options:", more, ""])


def find(words: list[str]) -> tuple[str, list[str]]:
    """The name of the command that these words begin with, of one word or two, and the words after it.

    Raises:
        ValueError: there is no such command.
    """
    for count in (2, 1):
        if (name := " ".join(words[:count])) in COMMANDS:
            return name, words[count:]
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    named = " ".join(words[:2] if group else words[:1])
    near = difflib.get_close_matches(named, COMMANDS, n=1)
    hint = f" (perhaps {near[0]})" if near else ""
    raise ValueError(f"command {named!r:.80}: must be one of {', '.join(group or COMMANDS)}{hint}")


def parse(words: list[str]) -> Any:
    """The arguments of the command that these words ask for, which is not run.

    Raises:
        ValueError: no such command, a recipe that cannot be read, or options that are wrong.
    """
    name, rest = find(words)
    return parsing.parse_words(COMMANDS[name].arguments, rest, name)


def run(words: list[str]) -> int:
    """Run the command that these words ask for, or print its help; its exit status."""
    name, rest = find(words)
    if {"-h", "--help"} & set(before_end(rest)):
        sys.stdout.write(f"{declared.help_text(COMMANDS[name].arguments, name)}")
        return 0
    arguments = parse(words)
    platforms.silence_absent(os.environ)
    module = importlib.import_module(f"jax_lm.cli.commands.{COMMANDS[name].place.partition('.')[0]}")
    return getattr(module, f"run_{re.sub('[ -]', '_', name)}")(arguments)


def before_end(words: list[str]) -> list[str]:
    """The words that may be options: those before `--`."""
    return words[: words.index("--")] if "--" in words else words


def main(arguments: list[str] | None = None) -> int:
    """Parse and run; returns the exit status. `--debug` anywhere shows tracebacks, `--version` alone the version."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        sys.stdout.write(f"diffucoder {version('jax-diffucoder')}\n")
        return 0
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    if not given or (
        given[-1] in ("--help", "-h") and (len(given) == 1 or given[:-1] in [[group] for group in groups])
    ):
        sys.stdout.write(overview(" ".join(given[:-1])))
        return 0 if given else terminal.USAGE_ERROR
    debug = "--debug" in before_end(given)
    if debug:
        given.remove("--debug")
    # Compilations of earlier runs are kept, so that a second start is fast; the user's own setting wins.
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jax-diffucoder" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    return terminal.guarded(lambda: run(given), debug=debug)


def entry() -> NoReturn:
    """Run what was typed, and end the process.

    After Ctrl-C it leaves at once: the interpreter's own end would crash under what XLA's threads still compute.
    """
    interruption.hear_interrupts()
    status = main()
    if status == terminal.INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()

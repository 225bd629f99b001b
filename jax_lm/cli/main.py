"""The `diffucoder` command: parses the arguments of a command, runs it, and prints errors.

The arguments of a command are declared in `jax_lm.cli.arguments`, which does not import JAX, so
that help is fast. The code of a command is a module of `jax_lm.cli.commands`, which is imported
when the command runs. An error is printed as one line.
"""

import importlib
import os
import re
import sys
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from typing import Any, NoReturn

from jax_lm.cli import parsing
from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.host import declared, interruption, terminal
from jax_lm.options import not_one_of

OVERVIEW = """\
usage: diffucoder COMMAND [OPTIONS]    (diffucoder COMMAND --help shows a command's options)

DiffuCoder in JAX: masked-diffusion code generation.

commands:
{commands}
options:
  --version  print the version
  --debug    with any command: show tracebacks
"""
# The words of a command line.
Words = list[str]
# First words of two-word commands: data, parity, sandbox.
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}


def overview(group: str = "") -> str:
    """Return the text of `diffucoder --help`: a list of all commands, or of those of a group."""
    width = max(map(len, COMMANDS))
    # The group "data" selects "data show". Without a group, every name starts with the empty
    # prefix.
    lines = (
        f"  {name:{width}}  {entry.summary}\n"
        for name, entry in COMMANDS.items()
        if name.startswith(f"{group} ".lstrip())
    )
    return OVERVIEW.format(commands="".join(lines))


def split_command(words: Words) -> tuple[str, Words]:
    """Return the command (one or two words) at the beginning of `words`, and the remaining words.

    Raises:
        ValueError: there is no such command.
    """
    # Two words are tried first: "data show file.jsonl" -> "data show" and ["file.jsonl"].
    for count in (2, 1):
        if (name := " ".join(words[:count])) in COMMANDS:
            return name, words[count:]
    # The message suggests the nearest command: "data shwo" -> "data show", "evla" -> "eval".
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    raise not_one_of("command", " ".join(words[:2] if group else words[:1]), group or COMMANDS)


def parse(words: Words) -> Any:
    """Parse the arguments of a command without running it.

    Raises:
        ValueError: there is no such command, a recipe cannot be read, or an option is invalid.
    """
    name, rest = split_command(words)
    return parsing.parse_words(COMMANDS[name].arguments, rest, name)


def run(words: Words) -> int:
    """Run a command, or print its help. Returns the exit status."""
    name, rest = split_command(words)
    # Help comes before parsing, so that --help works even with invalid options.
    if declared.asks_for_help(rest):
        sys.stdout.write(declared.help_text(COMMANDS[name].arguments, f"diffucoder {name}"))
        return 0
    arguments = parse(words)
    # The place "data.Show" is in module `data`, and "data show" is run by `run_data_show`.
    module = COMMANDS[name].place.partition(".")[0]
    return getattr(
        importlib.import_module(f"jax_lm.cli.commands.{module}"), f"run_{re.sub('[ -]', '_', name)}"
    )(arguments)


def main(arguments: Words | None = None) -> int:
    """Parse and run the command line. Returns the exit status.

    `--debug`, anywhere before `--`, shows tracebacks. `help` and `version` are accepted for
    `--help` and `--version`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # commands name a byte that is not UTF-8 themselves
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if debug := "--debug" in declared.before_dashes(words):
        words.remove("--debug")
    # `diffucoder version`
    if words in (["--version"], ["version"]):
        sys.stdout.write(f"diffucoder {version('jax-diffucoder')}\n")
        return 0
    # `diffucoder help data show` -> `diffucoder data show --help`
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    # `diffucoder`, `diffucoder --help` and `diffucoder data` list commands.
    groups = [word for word in words if word not in ("--help", "-h")]
    if {*groups} <= GROUPS and len(groups) < 2:
        sys.stdout.write(overview(*groups))
        return 0 if words else terminal.USAGE_ERROR
    # Compilations are kept for later runs, so that a second start is fast. The user's setting takes
    # precedence. An empty XDG_CACHE_HOME means the default. Without a home directory, "~" is not
    # expanded, and nothing is kept.
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = f"{cache}/jax-diffucoder/xla"
    # Nothing is kept either where the folder cannot be made or written.
    with suppress(OSError):
        if os.path.isabs(cache):
            os.makedirs(folder, exist_ok=True)
            if os.access(folder, os.W_OK):
                os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    return terminal.run_guarded(lambda: run(words), debug=debug)


def entry() -> NoReturn:
    """Run the command line and end the process.

    After Ctrl-C or SIGTERM the process exits at once, because a normal interpreter exit would crash
    while XLA's threads still compute.
    """
    status = main()
    if status - 128 in interruption.ENDINGS:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)

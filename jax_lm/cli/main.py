"""The `diffucoder` command: parses the arguments of a command, runs it, and prints errors.

The arguments of a command are declared in `jax_lm.cli.arguments`, which does not import JAX, so
that help is fast. Its code is a module of `jax_lm.cli.commands`, imported when the command runs.
An error is printed as one line.
"""

import importlib
import os
import re
import sys
from importlib.metadata import version
from typing import Any, NoReturn

from jax_lm.cli import parsing
from jax_lm.cli.arguments.table import COMMANDS
from jax_lm.host import declared, interruption, terminal
from jax_lm.options import not_one_of

DESCRIPTION = "DiffuCoder in JAX: masked-diffusion code generation."
# First words of two-word commands: data, parity, sandbox.
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}


def overview(group: str = "") -> str:
    """List the commands, or those of a group: the text of `diffucoder --help`."""
    width = max(map(len, COMMANDS))
    # "data" selects "data show"; no group selects every command
    entries = ((n, e) for n, e in COMMANDS.items() if n.startswith(f"{group} ".lstrip()))
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in entries]
    usage = "usage: diffucoder COMMAND [OPTIONS]    (diffucoder COMMAND --help shows a command's options)"
    more = "  --version  print the version\n  --debug    with any command: show tracebacks"
    return "\n".join([usage, "", DESCRIPTION, "", "commands:", *lines, "", "options:", more, ""])


def find(words: list[str]) -> tuple[str, list[str]]:
    """Return the command (one or two words) at the beginning of `words`, and the remaining words.

    Raises:
        ValueError: there is no such command.
    """
    # two words first: "data show file.jsonl" -> "data show" and ["file.jsonl"]
    for count in (2, 1):
        if (name := " ".join(words[:count])) in COMMANDS:
            return name, words[count:]
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    # "data shwo" -> perhaps "data show"; "evla" -> perhaps "eval"
    named = " ".join(words[:2] if group else words[:1])
    raise not_one_of("command", named, group or COMMANDS)


def parse(words: list[str]) -> Any:
    """Parse the arguments of a command without running it.

    Raises:
        ValueError: no such command, a recipe that cannot be read, or wrong options.
    """
    name, rest = find(words)
    return parsing.parse_words(COMMANDS[name].arguments, rest, name)


def run(words: list[str]) -> int:
    """Run a command, or print its help. Returns the exit status."""
    name, rest = find(words)
    # before parsing, so that --help works even with invalid options
    if declared.asks_for_help(rest):
        sys.stdout.write(declared.help_text(COMMANDS[name].arguments, f"diffucoder {name}"))
        return 0
    arguments = parse(words)
    # "data.Show" -> module data; "data show" -> run_data_show
    module = COMMANDS[name].place.partition(".")[0]
    command = importlib.import_module(f"jax_lm.cli.commands.{module}")
    return getattr(command, f"run_{re.sub('[ -]', '_', name)}")(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse and run the command line. Returns the exit status.

    `--debug` anywhere shows tracebacks. `help` and `version` are `--help` and `--version`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if debug := "--debug" in declared.before_dashes(words):
        words.remove("--debug")
    # `diffucoder version`
    if words in (["--version"], ["version"]):
        sys.stdout.write(f"diffucoder {version('jax-diffucoder')}\n")
        return 0
    # `diffucoder help data show` -> `diffucoder data show --help`
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    # `diffucoder`, `diffucoder --help`, `diffucoder data`: lists of commands
    groups = [word for word in words if word not in ("--help", "-h")]
    if {*groups} <= GROUPS and len(groups) < 2:
        sys.stdout.write(overview(*groups))
        return 0 if words else terminal.USAGE_ERROR
    # Compilations are kept for later runs, so that a second start is fast. The user's setting wins.
    # An empty XDG_CACHE_HOME means the default; where there is no home, "~" stays.
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if os.path.isabs(cache):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{cache}/jax-diffucoder/xla")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    return terminal.run_guarded(lambda: run(words), debug=debug)


def entry() -> NoReturn:
    """Run the command line and end the process.

    After Ctrl-C or SIGTERM the process exits at once, because a normal interpreter exit would crash while
    XLA's threads still compute.
    """
    interruption.watch_interrupts()
    status = main()
    if status - 128 in interruption.ENDINGS:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()

"""The `diffucoder` command: finds the command's module, parses its arguments, turns errors into one line.

A command's arguments are declared in `jax_lm.arguments`, without JAX, so that help costs nothing; what it does is a
module of `jax_lm.commands`, imported when it runs.
"""

import contextlib
import importlib
import io
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tyro

from jax_lm import config_file, interruption, platforms, terminal

DESCRIPTION = "DiffuCoder in JAX: masked-diffusion code generation."


class Entry(NamedTuple):
    """Where a command lives.

    Attributes:
        arguments: module of `jax_lm.arguments`, which import no JAX, and class in it. The class may have
            `implied(words)`: options that the typed words imply, and that lose against what was typed. The module of
            `jax_lm.commands` with the same name, imported when the command runs, has `run_NAME`: arguments to status.
        summary: one line.
        markers: how its options are parsed.
    """

    arguments: str
    summary: str
    markers: tuple = ()

    def parse(self, name: str, words: list[str]) -> Any:
        """Read the words after the command's name; ValueError says in one line what is wrong with them."""
        module, _, kind = self.arguments.partition(".")
        arguments = getattr(importlib.import_module(f"jax_lm.arguments.{module}"), kind)
        words = config_file.expanded(words, name)
        if implied := getattr(arguments, "implied", None):
            words = config_file.before_options(words, implied(words))
        marks = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)
        refusal = io.StringIO()
        try:
            with contextlib.redirect_stderr(refusal):
                return tyro.cli(arguments, prog=f"diffucoder {name}", args=words, config=(*marks, *self.markers))
        except SystemExit as stop:
            if stop.code != terminal.USAGE_ERROR:
                raise
            raise ValueError(one_line(refusal.getvalue())) from stop

    def run(self, name: str, arguments: Any) -> int:
        """Run the command; returns its exit status."""
        module = importlib.import_module(f"jax_lm.commands.{self.arguments.partition('.')[0]}")
        return getattr(module, f"run_{re.sub('[ -]', '_', name)}")(arguments)


RULE = re.compile("─{3}|-{3}")
"""Between the parts of what tyro prints in a box, in Unicode or ASCII: title, message, perhaps an option, help."""

TYPED_FLAGS = (tyro.conf.FlagConversionOff,)
"""Switches are given as True or False, as in a recipe."""

COMMANDS = {
    "generate": Entry("generation.Generate", "Complete a prompt, or fill the holes of a text."),
    "info": Entry("checkpoints.Info", "Show configuration, parameters, tokenizer, devices and memory of a model."),
    "eval": Entry("evaluation.Evaluate", "Measure pass@k by executing unit tests."),
    "analyze": Entry("evaluation.Analyze", "Measure how a model decodes: AR-ness, order, confidence."),
    "adapt": Entry("training.Adapt", "Train masked diffusion on plain text.", TYPED_FLAGS),
    "sft": Entry("training.Sft", "Fine-tune on conversations.", TYPED_FLAGS),
    "grpo": Entry("training.Grpo", "Train by coupled-GRPO on rewards.", TYPED_FLAGS),
    "merge-lora": Entry("training.MergeLora", "Add an adapter to the weights of its model."),
    "data prepare-acecode": Entry("data.PrepareAcecode", "Choose problems of AceCode as prompts for grpo."),
    "data tokenize": Entry("data.Tokenize", "Tokenise a data set once, for adapt and sft."),
    "bench": Entry("benchmark.Bench", "Measure speed, memory and compilations of a model."),
    "experiment": Entry("benchmark.Experiment", "Measure a model on this machine step by step, as a report."),
    "compare": Entry("benchmark.Compare", "Run a checkpoint in PyTorch and in JAX, and report the differences."),
    "plan": Entry("plan.Plan", "Say what a generation or a training step takes on a machine that is not here."),
    "convert": Entry("checkpoints.Convert", "Write a checkpoint in another format or precision."),
    "verify": Entry("checkpoints.Verify", "Check a checkpoint without loading it."),
    "push": Entry("checkpoints.Push", "Send a checkpoint to the hub."),
    "parity check": Entry("benchmark.ParityCheck", "Compare with recorded outputs of PyTorch."),
    "parity record": Entry("benchmark.ParityRecord", "Record outputs of PyTorch."),
    "sandbox check": Entry("sandbox.SandboxCheck", "Attack this host's sandbox: what is stopped?"),
    "sandbox run": Entry("sandbox.SandboxRun", "Run an untrusted program, contained."),
    "sandbox serve": Entry("sandbox.SandboxServe", "Run programs for other machines."),
    "serve": Entry("serving.Serve", "Serve a checkpoint over OpenAI's HTTP interface, with a page."),
}


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
    raise ValueError(f"command {named!r}: must be one of {', '.join(group or COMMANDS)}")


def parse(words: list[str]) -> Any:
    """The arguments of the command that these words ask for, which is not run; --help leaves with status 0.

    Raises:
        ValueError: no such command, a recipe that cannot be read, or options that are wrong.
    """
    name, rest = find(words)
    return COMMANDS[name].parse(name, rest)


def run(words: list[str]) -> int:
    """Run the command that these words ask for; its exit status."""
    name, _ = find(words)
    arguments = parse(words)
    platforms.silence_absent(os.environ)
    return COMMANDS[name].run(name, arguments)


def one_line(refusal: str) -> str:
    """Take the message out of the box that tyro prints, and the option that it thinks was meant."""
    parts: list[list[str]] = [[]]
    for line in refusal.splitlines():
        if RULE.search(line):
            parts.append([])
        else:
            parts[-1].append(line.strip("│| "))
    texts = [" ".join(" ".join(part).split()) for part in parts] + [""] * 3
    message = re.sub(r"^Error parsing (?!-)\S+: ", "", texts[1].partition(" Got errors:")[0])
    meant = re.search(r"Perhaps you meant: (--\S+)", texts[2])
    return f"{message} (perhaps you meant {meant[1]})" if meant else message


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
    words = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in words
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

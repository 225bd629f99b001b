"""The table of commands: where their arguments are declared, and their summaries."""

import importlib
import re
from typing import NamedTuple


class Entry(NamedTuple):
    """Location and summary of a command.

    Attributes:
        place: module of `jax_lm.cli.arguments` and class in it. The module of `jax_lm.cli.commands`
            with the same name defines `run_NAME`, which takes the arguments and returns the exit
            status.
        summary: one line of help.
    """

    place: str
    summary: str

    @property
    def arguments(self) -> type:
        """Class of the arguments."""
        # "data.Show" -> jax_lm.cli.arguments.data, Show
        module, _, kind = self.place.partition(".")
        return getattr(importlib.import_module(f"jax_lm.cli.arguments.{module}"), kind)


# Name, place and summary of each command, in the order of `diffucoder --help`.
TABLE = """
generate              generation.Generate
    Complete prompts, or fill holes in text.
chat                  chat.Chat
    Chat with a model in the terminal.
info                  checkpoints.Info
    Show configuration, parameters, tokenizer, devices and memory of a model.
models                models.Models
    List the models in the hub's cache, or delete one.
eval                  evaluation.Evaluate
    Measure pass@k by executing unit tests.
analyze               evaluation.Analyze
    Measure how a model decodes: AR-ness, order, confidence.
adapt                 training.Adapt
    Train masked diffusion on plain text.
sft                   training.Sft
    Fine-tune on conversations.
grpo                  training.Grpo
    Train by coupled-GRPO on rewards.
merge-lora            training.MergeLora
    Merge an adapter into the weights of its model.
data prepare-acecode  data.PrepareAcecode
    Select problems of AceCode as prompts for grpo.
data show             data.Show
    Print samples as the model sees them, with masks.
data tokenize         data.Tokenize
    Tokenise a data set once, for adapt and sft.
bench                 benchmark.Bench
    Measure speed, memory and compilations of a model.
experiment            benchmark.Experiment
    Measure a model on this machine step by step, and write a report.
compare               benchmark.Compare
    Run a checkpoint in PyTorch and in JAX, and report the differences.
plan                  plan.Plan
    Plan memory and speed of a step on a TPU or GPU before renting it.
convert               checkpoints.Convert
    Convert a checkpoint to another format or precision.
verify                checkpoints.Verify
    Check a checkpoint without loading it.
push                  checkpoints.Push
    Upload a checkpoint to the hub.
parity check          benchmark.ParityCheck
    Compare with recorded outputs of PyTorch.
sandbox check         sandbox.SandboxCheck
    Attack the sandbox of this host, and report what it stops.
sandbox run           sandbox.SandboxRun
    Run an untrusted program in the sandbox.
sandbox serve         sandbox.SandboxServe
    Run programs for other machines.
serve                 serving.Serve
    Serve a model through an OpenAI-compatible HTTP API.
completion            completion.Completion
    Print the completion script of a shell.
"""
COMMANDS = {
    name: Entry(place, summary)
    for name, place, summary in re.findall(r"^(\w.*?)  +(\S+)\n +(.+)$", TABLE, re.MULTILINE)
}

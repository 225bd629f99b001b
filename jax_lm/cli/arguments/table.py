"""The table of commands: the classes of their arguments, and their summaries."""

import importlib
from typing import NamedTuple


class Entry(NamedTuple):
    """Where a command lives.

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


# In the order of `diffucoder --help`.
COMMANDS = {
    "generate": Entry("generation.Generate", "Complete prompts, or fill holes in text."),
    "chat": Entry("chat.Chat", "Chat with a model in the terminal."),
    "info": Entry(
        "checkpoints.Info",
        "Show configuration, parameters, tokenizer, devices and memory of a model.",
    ),
    "models": Entry("models.Models", "List the models in the hub's cache, or delete one."),
    "eval": Entry("evaluation.Evaluate", "Measure pass@k by executing unit tests."),
    "analyze": Entry(
        "evaluation.Analyze", "Measure how a model decodes: AR-ness, order, confidence."
    ),
    "adapt": Entry("training.Adapt", "Train masked diffusion on plain text."),
    "sft": Entry("training.Sft", "Fine-tune on conversations."),
    "grpo": Entry("training.Grpo", "Train by coupled-GRPO on rewards."),
    "merge-lora": Entry("training.MergeLora", "Merge an adapter into the weights of its model."),
    "data prepare-acecode": Entry(
        "data.PrepareAcecode", "Select problems of AceCode as prompts for grpo."
    ),
    "data show": Entry("data.Show", "Print samples as the model sees them, with masks."),
    "data tokenize": Entry("data.Tokenize", "Tokenise a data set once, for adapt and sft."),
    "bench": Entry("benchmark.Bench", "Measure speed, memory and compilations of a model."),
    "experiment": Entry(
        "benchmark.Experiment", "Measure a model on this machine step by step, and write a report."
    ),
    "compare": Entry(
        "benchmark.Compare", "Run a checkpoint in PyTorch and in JAX, and report the differences."
    ),
    "plan": Entry(
        "plan.Plan", "Plan memory and speed of a step on a TPU or GPU before renting it."
    ),
    "convert": Entry("checkpoints.Convert", "Convert a checkpoint to another format or precision."),
    "verify": Entry("checkpoints.Verify", "Check a checkpoint without loading it."),
    "push": Entry("checkpoints.Push", "Upload a checkpoint to the hub."),
    "parity check": Entry("benchmark.ParityCheck", "Compare with recorded outputs of PyTorch."),
    "sandbox check": Entry(
        "sandbox.SandboxCheck", "Attack the sandbox of this host, and report what it stops."
    ),
    "sandbox run": Entry("sandbox.SandboxRun", "Run an untrusted program in the sandbox."),
    "sandbox serve": Entry("sandbox.SandboxServe", "Run programs for other machines."),
    "serve": Entry("serving.Serve", "Serve a model through an OpenAI-compatible HTTP API."),
    "completion": Entry("completion.Completion", "Print the completion script of a shell."),
}


def classes() -> dict[str, type]:
    """Return the class of arguments of every command."""
    return {name: entry.arguments for name, entry in COMMANDS.items()}

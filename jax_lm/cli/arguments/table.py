"""The table of commands: where the arguments of each are declared, and what it is for."""

import importlib
from typing import NamedTuple


class Entry(NamedTuple):
    """Where a command lives.

    Attributes:
        place: module of `jax_lm.cli.arguments`, which import no JAX, and class in it. The module of
            `jax_lm.cli.commands` with the same name, imported when the command runs, has
            `run_NAME`: arguments to status.
        summary: one line.
    """

    place: str
    summary: str

    @property
    def arguments(self) -> type:
        """The class of its arguments."""
        module, _, kind = self.place.partition(".")
        return getattr(importlib.import_module(f"jax_lm.cli.arguments.{module}"), kind)


COMMANDS = {
    "generate": Entry("generation.Generate", "Complete prompts, or fill the holes of a text."),
    "chat": Entry("chat.Chat", "Talk with a model at the terminal."),
    "info": Entry("checkpoints.Info", "Show configuration, parameters, tokenizer, devices and memory of a model."),
    "models": Entry("models.Models", "List the models in the hub's cache, or delete one."),
    "eval": Entry("evaluation.Evaluate", "Measure pass@k by executing unit tests."),
    "analyze": Entry("evaluation.Analyze", "Measure how a model decodes: AR-ness, order, confidence."),
    "adapt": Entry("training.Adapt", "Train masked diffusion on plain text."),
    "sft": Entry("training.Sft", "Fine-tune on conversations."),
    "grpo": Entry("training.Grpo", "Train by coupled-GRPO on rewards."),
    "merge-lora": Entry("training.MergeLora", "Add an adapter to the weights of its model."),
    "data prepare-acecode": Entry("data.PrepareAcecode", "Choose problems of AceCode as prompts for grpo."),
    "data show": Entry("data.Show", "Print samples as the model will see them, with masks."),
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
    "completion": Entry("completion.Completion", "Print what makes a shell complete commands and options."),
}


def classes() -> dict[str, type]:
    """Import the arguments of every command."""
    return {name: entry.arguments for name, entry in COMMANDS.items()}

"""The `diffucoder` command: parses arguments, runs one command, turns errors into one line.

Nothing heavy is imported before the arguments are parsed: each command imports what it needs in `run`.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn, Protocol, runtime_checkable

import tyro

from jax_lm import recipes, terminal
from jax_lm.commands.adapt import Adapt
from jax_lm.commands.analyze import Analyze
from jax_lm.commands.bench import Bench
from jax_lm.commands.checkpoints import Convert, Verify
from jax_lm.commands.compare import Compare
from jax_lm.commands.data import PrepareData
from jax_lm.commands.evaluation import Evaluate
from jax_lm.commands.experiment import Experiment
from jax_lm.commands.generate import Generate
from jax_lm.commands.grpo import Grpo
from jax_lm.commands.info import Info
from jax_lm.commands.merge_lora import MergeLora
from jax_lm.commands.parity import ParityCheck, ParityRecord
from jax_lm.commands.plan import Plan
from jax_lm.commands.push import Push
from jax_lm.commands.sandbox import SandboxCheck, SandboxRun, SandboxServe
from jax_lm.commands.serve import Serve
from jax_lm.commands.sft import Sft

DESCRIPTION = "DiffuCoder in JAX: masked-diffusion code generation."
Parity = Annotated[ParityCheck, tyro.conf.subcommand("check")] | Annotated[ParityRecord, tyro.conf.subcommand("record")]

Sandbox = (
    Annotated[SandboxCheck, tyro.conf.subcommand("check")]
    | Annotated[SandboxRun, tyro.conf.subcommand("run")]
    | Annotated[SandboxServe, tyro.conf.subcommand("serve")]
)


@runtime_checkable
class Command(Protocol):
    """What a subcommand is: arguments, and what to do with them."""

    def run(self) -> int: ...


class ParityCommand:
    """Compare with the PyTorch reference, or record its outputs."""

    def __init__(self, command: tyro.conf.OmitSubcommandPrefixes[Parity]) -> None:
        self.command = command

    def run(self) -> int:
        return self.command.run()


class SandboxCommand:
    """Run untrusted programs, contained; check what this host can contain."""

    def __init__(self, command: tyro.conf.OmitSubcommandPrefixes[Sandbox]) -> None:
        self.command = command

    def run(self) -> int:
        return self.command.run()


Commands = (
    Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Evaluate, tyro.conf.subcommand("eval")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[Adapt, tyro.conf.subcommand("adapt"), tyro.conf.FlagConversionOff]
    | Annotated[Sft, tyro.conf.subcommand("sft"), tyro.conf.FlagConversionOff]
    | Annotated[Grpo, tyro.conf.subcommand("grpo"), tyro.conf.FlagConversionOff]
    | Annotated[MergeLora, tyro.conf.subcommand("merge-lora")]
    | Annotated[PrepareData, tyro.conf.subcommand("data")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Experiment, tyro.conf.subcommand("experiment")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Convert, tyro.conf.subcommand("convert")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Push, tyro.conf.subcommand("push")]
    | Annotated[ParityCommand, tyro.conf.subcommand("parity")]
    | Annotated[SandboxCommand, tyro.conf.subcommand("sandbox")]
    | Annotated[Serve, tyro.conf.subcommand("serve")]
)


def parse(arguments: list[str]) -> Command:
    """The command that these arguments ask for, not run; leaves with status 2 if they are wrong."""
    return tyro.cli(
        Commands,  # pyright: ignore[reportArgumentType]
        prog="diffucoder",
        description=DESCRIPTION,
        args=recipes.expanded(arguments),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )


def main(arguments: list[str] | None = None) -> int:
    """Parse and run; returns the exit status. `--debug` anywhere shows tracebacks, `--version` alone the version."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        sys.stdout.write(f"diffucoder {version('jax-diffucoder')}\n")
        return 0
    words = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in words
    if debug:
        given.remove("--debug")
    # Compilations of earlier runs are kept, so that a second start is fast; the user's own setting wins.
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jax-diffucoder" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    return terminal.guarded(lambda: parse(given).run(), debug=debug)


def entry() -> NoReturn:
    """The console command.

    After Ctrl-C it leaves at once: the interpreter's own end would crash under what XLA's threads still compute.
    """
    status = main()
    if status == terminal.INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    entry()

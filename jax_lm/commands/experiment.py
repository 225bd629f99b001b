"""`diffucoder experiment`: what a model does on this accelerator, as one resumable run that ends in a report."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from jax_lm import terminal
from jax_lm.commands.compare import show

if TYPE_CHECKING:
    from jax_lm.evaluation.experiment import Settings
    from jax_lm.evaluation.steps import Steps


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Measure a model on this machine step by step: loading, speed, memory, parity with PyTorch, quality.

    A step that fails is reported, and the others go on; the exit status is then 1. A run that was killed goes on with
    the same command. Success criteria are ticked or not, each with what was measured.

    Examples:
        diffucoder experiment --out experiment
        diffucoder experiment --recorded tests/golden --out experiment
        diffucoder experiment --model apple/DiffuCoder-7B-Instruct --dtype bfloat16 --out experiment-7b

    Attributes:
        out: folder for steps.jsonl, results.json, report.md, report.html and the pictures.
        model: folder or hub id; the built-in model if not given.
        dtype: chosen by the device if not given.
        recorded: folder of `diffucoder parity record`, for parity without PyTorch.
        new_tokens: length of the answers.
        batch_sizes: of the timed forward passes.
        largest_batch: where the stress test ends, if memory does not end before.
        tasks: built-in tasks of the quality check.
        repeats: timed calls per measurement.
        limit: seconds that PyTorch, and JAX on the CPU, may take each.
    """

    out: Path
    model: str | None = None
    dtype: Literal["float32", "bfloat16", "int8"] | None = None
    recorded: Path | None = None
    new_tokens: int = 64
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    largest_batch: int = 32
    tasks: int = 20
    repeats: int = 3
    limit: float = 600.0

    def run(self) -> int:
        from jax_lm.checkpoints import huggingface
        from jax_lm.evaluation import experiment
        from jax_lm.evaluation.experiment_report import document
        from jax_lm.evaluation.parity import read
        from jax_lm.evaluation.steps import FAILED, Steps
        from jax_lm.inference import BUILTIN_MODEL

        settings = self.settings()
        if self.recorded is not None:
            read(self.recorded)
        folder = huggingface.resolve(self.model or BUILTIN_MODEL)
        steps = experiment.Experiment(folder, settings).steps()
        name = self.model or "built-in model"
        with Steps(self.out, self.identity(settings, folder)) as kept:
            if kept.outcomes:
                Console(stderr=True).print(f"going on after {len(kept.outcomes)} steps of an earlier run")
            with terminal.progress("experiment") as report:
                kept.run(steps, on_step=report)
            found = document(kept.outcomes, steps, name)
            self.write(kept)
            found.write(self.out, "report")
            show(found)
        Console(highlight=False).print(f"report: {self.out / 'report.html'}", markup=False, soft_wrap=True)
        return 1 if any(outcome.state == FAILED for outcome in kept.outcomes.values()) else 0

    def settings(self) -> "Settings":
        from jax_lm.evaluation.experiment import Settings

        return Settings(
            model=self.model,
            dtype=self.dtype,
            recorded=None if self.recorded is None else str(self.recorded),
            new_tokens=self.new_tokens,
            batch_sizes=self.batch_sizes,
            largest_batch=self.largest_batch,
            tasks=self.tasks,
            repeats=self.repeats,
            limit=self.limit,
        )

    def identity(self, settings: "Settings", folder: Path) -> dict[str, Any]:
        """What the results depend on: settings, weights and devices."""
        import jax

        from jax_lm.evaluation.journal import weights_digest

        devices = f"{len(jax.devices())} x {jax.devices()[0].device_kind}"
        return asdict(settings) | {"weights": f"sampled sha256:{weights_digest(folder)}", "devices": devices}

    def write(self, kept: "Steps") -> None:
        """results.json: what every step found."""
        from jax_lm.evaluation.journal import write_whole

        results = {name: asdict(outcome) for name, outcome in kept.outcomes.items()}
        write_whole(self.out / "results.json", json.dumps(results, indent=1) + "\n")

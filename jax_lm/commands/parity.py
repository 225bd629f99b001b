"""`diffucoder parity`: compare with recorded outputs of the PyTorch reference, or record them."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class ParityCheck:
    """Run every recorded forward pass and generation, and print a table; exit status 1 if anything differs.

    Examples:
        diffucoder parity check tests/golden
        diffucoder parity check recorded --tolerance 1e-4 --tokenizer DiffuCoder-7B-Instruct
        diffucoder parity check tests/golden --training

    Attributes:
        folder: holds checkpoint/, golden.safetensors and cases.json.
        tolerance: largest absolute difference of float32 hidden states and logits; 2e-5 if not given.
        tokenizer: also check tokenizer_cases.json with the tokenizer of this folder.
        training: also check coupled_grpo.safetensors: scores, loss, divergence and gradients of coupled-GRPO.
    """

    folder: tyro.conf.Positional[Path]
    tolerance: float | None = None
    tokenizer: Path | None = None
    training: bool = False

    def run(self) -> int:
        from jax_lm.evaluation.parity import TOLERANCE, check, read
        from jax_lm.evaluation.training_parity import check_training, read_training

        _, cases = read(self.folder)
        if self.training:
            read_training(self.folder)
        console = Console(highlight=False)
        table = Table("compared", "measured", "allowed", "", title=f"parity with {self.folder}")
        failures = 0
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        findings = check(self.folder, tolerance=tolerance, tokenizer=self.tokenizer)
        for finding in chain(findings, check_training(self.folder) if self.training else ()):
            failures += not finding.passed
            verdict = "ok" if finding.passed else "[red]FAILED[/red]"
            table.add_row(finding.name, finding.measured, finding.allowed, verdict)
        console.print(table)
        if others := sorted(set(cases) - {"config", "generate", "fast"}):
            counts = ", ".join(f"{name} ({len(cases[name])} cases)" for name in others)
            console.print(f"not checked by this version: {counts}")
        console.print(f"{table.row_count - failures} of {table.row_count} within bounds")
        return 1 if failures else 0


@dataclass(frozen=True, kw_only=True)
class ParityRecord:
    """Run the PyTorch reference on a checkpoint and write a folder that `parity check` takes.

    Needs the extra: pip install 'jax-diffucoder[parity]'.

    Examples:
        diffucoder parity record --pytorch-model ./DiffuCoder-7B-Instruct --out recorded

    Attributes:
        pytorch_model: folder of a Dream or DiffuCoder checkpoint in the Hugging Face layout.
        out: folder to write; must not exist.
        prompt_length: tokens of the recorded prompts.
        max_new_tokens: length of the recorded answers.
        batch: rows of each recording.
        seed: of the random prompts.
    """

    pytorch_model: Path
    out: Path
    prompt_length: int = 13
    max_new_tokens: int = 24
    batch: int = 3
    seed: int = 0

    def run(self) -> int:
        try:
            from jax_lm.evaluation import recording
        except ModuleNotFoundError as error:
            raise ValueError(
                f"parity record needs {error.name}, which is not installed: pip install 'jax-diffucoder[parity]'"
            ) from error
        shape = recording.Shape(
            batch=self.batch, prompt_length=self.prompt_length, max_new_tokens=self.max_new_tokens, seed=self.seed
        )
        recording.record(self.pytorch_model, self.out, shape)
        print(f"recorded {len(recording.CASES)} generations to {self.out}")
        return 0

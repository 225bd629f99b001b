"""`diffucoder compare`: PyTorch against JAX on this machine: loading, speed, memory, numbers by layer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from jax_lm import terminal

if TYPE_CHECKING:
    from jax_lm.evaluation.document import Document


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Run the same checkpoint in PyTorch and in JAX, and report the differences; exit status 1 if numbers differ.

    Each side runs in a process of its own, one after the other. PyTorch is transformers' Qwen2 without a causal mask
    and the published loop; no code of the checkpoint is executed. Needs the extra:
    pip install 'jax-diffucoder[parity]'.

    Examples:
        diffucoder compare --out comparison
        diffucoder compare --model ./DiffuCoder-7B-Instruct --dtype bfloat16 --prompt-tokens 64 512 --out comparison

    Attributes:
        model: folder or hub id; the built-in model if not given.
        dtype: of both sides.
        tolerance: largest relative difference of a module's output; 1e-4 in float32 and 0.05 in bfloat16 if not given.
        prompt_tokens: lengths of the random prompts.
        batch_sizes: rows decoded together.
        new_tokens: length of the answers.
        repeats: timed calls per measurement.
        out: folder for comparison.json, comparison.md, comparison.html and the pictures.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    tolerance: float | None = None
    prompt_tokens: tuple[int, ...] = (16, 64, 256)
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    new_tokens: int = 32
    repeats: int = 3
    out: Path | None = None

    def run(self) -> int:
        from jax_lm.checkpoints import huggingface
        from jax_lm.evaluation.comparison import TOLERANCES, Workload, compare, document, require_pytorch
        from jax_lm.evaluation.journal import write_whole
        from jax_lm.inference import BUILTIN_MODEL

        tolerance = TOLERANCES[self.dtype] if self.tolerance is None else self.tolerance
        if not tolerance > 0:
            raise ValueError(f"tolerance={tolerance}: must be positive")
        workload = Workload(
            prompt_tokens=self.prompt_tokens,
            batch_sizes=self.batch_sizes,
            new_tokens=self.new_tokens,
            repeats=self.repeats,
        )
        require_pytorch("compare")
        folder = huggingface.resolve(self.model or BUILTIN_MODEL)
        with terminal.progress("comparing") as report:
            result = compare(folder, self.dtype, workload, on_progress=report)
        found = document(result, self.model or "built-in model", tolerance)
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(self.out / "comparison.json", json.dumps(result | {"tolerance": tolerance}, indent=1) + "\n")
            found.write(self.out, "comparison")
        show(found)
        if self.out:
            Console(highlight=False).print(f"report: {self.out / 'comparison.html'}", markup=False, soft_wrap=True)
        return 1 if found.verdicts[0].met is False else 0


def show(document: "Document") -> None:
    """Print what a report depends on, and its verdicts."""
    console = Console(highlight=False)
    for name, text in document.told.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    table = Table("criterion", "wanted", "measured", "", title=document.title)
    colors = {True: "green", False: "red", None: "dim"}
    for verdict in document.verdicts:
        mark = f"[{colors[verdict.met]}]{verdict.mark}[/]"
        table.add_row(verdict.name, verdict.wanted, verdict.measured, mark)
    console.print(table)
    console.print(document.score)

"""Arguments of `diffucoder bench`, `compare`, `experiment` and `parity check`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.benchmark.settings import TOLERANCE, ExperimentSettings, Workload
from jax_lm.host.declared import Positional
from jax_lm.options import require_above_zero, require_at_most_one

# Workload of `compare`, which runs each case twice, once per backend.
COMPARISON = Workload(prompt_tokens=(16, 64, 256), batch_sizes=(1, 4, 8), new_tokens=(32,))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed, memory and compilations of a model on this machine.

    Prompts are random, and decoding does not end at stop tokens. Settings are the published ones:
    temperature 0.2, top_p 0.95, top_k 50, order by entropy, one token per step; turbo takes as many
    steps as it needs. Times are medians after a warm-up. The limits of the machine, which the report
    compares them with, are the best of ten calls.

    Examples:
        diffucoder bench --batch-sizes 1 --new-tokens 64
        diffucoder bench --random-shape small --presets exact fast --out bench
        diffucoder bench --random-shape 7b --dtype bfloat16 --batch-sizes 1 8 --out bench-7b
        diffucoder bench --model apple/DiffuCoder-7B-Instruct --new-tokens 256

    Attributes:
        model: folder or hub id; the built-in model by default.
        dtype: float32 or bfloat16; depends on the device by default.
        presets: decoding presets to measure; for an autoregressive model, exact alone.
        workload: batch sizes and lengths.
        random_shape: use random weights instead of a model: small (the published vocabulary, 8
            layers of width 512) or 7b (the published shape).
        out: folder for bench.json, bench.md, bench.html and bench.svg.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    presets: tuple[Literal["exact", "fast", "turbo"], ...] = ("exact", "fast", "turbo")
    workload: Workload
    random_shape: Literal["small", "7b"] | None = None
    out: Path | None = None

    def __post_init__(self):
        if not self.presets:
            raise ValueError("presets=(): must name at least one of exact, fast, turbo")
        require_at_most_one(self, "model", "random_shape")


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Run the same checkpoint in PyTorch and in JAX, and report the differences.

    The exit status is 1 if the numbers differ. The backends run one after the other, each in its
    own process. The PyTorch side is transformers' Qwen2 without a causal mask and the published
    loop; no code of the checkpoint is executed. Needs the extra: pip install
    'jax-diffucoder[parity]'.

    Examples:
        diffucoder compare --out comparison
        diffucoder compare --model ./DiffuCoder-7B-Instruct --dtype bfloat16 --prompt-tokens 64 512 --out comparison

    Attributes:
        model: folder or hub id; the built-in model by default.
        dtype: dtype of both backends.
        tolerance: maximum relative difference of a module's output; by default 1e-4 in float32 and
            0.05 in bfloat16.
        workload: cases are every prompt length at batch size 1, and every batch size at the first
            prompt length, all with one length of answers.
        out: folder for comparison.json, comparison.md, comparison.html and the charts.
    """

    model: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    tolerance: float | None = None
    workload: Workload = COMPARISON
    out: Path | None = None

    def __post_init__(self):
        # every case of a comparison has the same length of answer
        if len(self.workload.new_tokens) != 1:
            raise ValueError(
                f"new_tokens={self.workload.new_tokens}: must be a single length in a comparison"
            )
        require_above_zero(self, "tolerance")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Measure a model on this machine step by step: loading, speed, memory, parity, quality.

    A step that fails is reported and the others continue; the exit status is then 1. If the command
    is killed, the same command resumes it. The report lists success criteria with the measurements.

    Examples:
        diffucoder experiment --out experiment
        diffucoder experiment --recorded tests/golden --out experiment-recorded
        diffucoder experiment --model apple/DiffuCoder-7B-Instruct --dtype bfloat16 --out experiment-7b

    Attributes:
        out: folder for steps.jsonl, results.json, report.md, report.html and the charts.
        settings: what the results depend on; a resumed run must have the same settings.
    """

    out: Path
    settings: ExperimentSettings


@dataclass(frozen=True, kw_only=True)
class ParityCheck:
    """Compare forward passes and generations with a recording; exit status 1 if any differs.

    Examples:
        diffucoder parity check tests/golden
        diffucoder parity check recorded --tolerance 1e-4 --tokenizer DiffuCoder-7B-Instruct
        diffucoder parity check tests/golden --training

    Attributes:
        folder: folder with checkpoint/, golden.safetensors and cases.json.
        tolerance: maximum absolute difference of float32 hidden states and logits.
        tokenizer: also check tokenizer_cases.json, with the tokenizer of this folder.
        training: also check coupled_grpo.safetensors: scores, loss, divergence and gradients.
    """

    folder: Positional[Path]
    tolerance: float = TOLERANCE
    tokenizer: str | None = None
    training: bool = False

"""Arguments of `diffucoder plan`. Imports no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from jax_lm.config_file import option
from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what a generation or a training step takes before a machine is rented; exit status 1 if it does not fit.

    The real program is compiled for the named TPU (extra `plan`) or NVIDIA GPU (extra `plan-gpu`), which need not be
    here; a minute or so for 7B. Without the extra, everything is arithmetic and says so.

    Examples:
        diffucoder plan --model-config 7b --topology v5e:2x2
        diffucoder plan --model-config 7b --topology v5e:1x1 --dtype int8
        diffucoder plan --model-config 7b --topology h200:1 --preset fast --explain --out step.json
        diffucoder plan --model apple/DiffuCoder-7B-Instruct --topology h100:1 --batch 16 --canvas 1024
        diffucoder plan --model-config 7b --topology v5p:2x2x2 --step sft --batch 8 --canvas 2048
        diffucoder plan --model-config 7b --topology rtx4090:1 --step sft --lora-rank 16 --dtype int8 --canvas 1024

    Attributes:
        step: generate, or an update: sft or grpo (coupled, max_new_tokens of a row its completion).
        topology: chips and their shape, such as v5e:2x2, v6e:1x1, v4:2x2x1, h100:8, l4:1 or rtx4090:1.
        model: folder or hub id; only its config.json is read.
        model_config: a known shape in place of a model: 7b or small.
        dtype: bfloat16, float32 or int8 (kernels only; in training those below adapters).
        lora_rank: train adapters of this rank instead of all weights.
        batch: rows decoded together.
        canvas: tokens of a row, prompt and answer.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        estimate: do arithmetic alone, compile nothing.
        explain: list what the compiler has made of a step: kernels, bytes, copies, sorts, communication, large buffers.
        out: file for all that was found, as JSON.
        generation: max_new_tokens (half of the canvas if not given), preset, temperature and so on.
    """

    topology: str
    step: str = "generate"
    model: str | None = None
    model_config: str | None = None
    dtype: str = "bfloat16"
    lora_rank: int | None = None
    batch: int = 1
    canvas: int = 512
    mesh: str | None = None
    estimate: bool = False
    explain: bool = False
    out: Path | None = None
    generation: tyro.conf.OmitArgPrefixes[GenerationOptions] = DEFAULTS

    def __post_init__(self) -> None:
        if self.explain and self.estimate:
            raise ValueError("explain=True: reads a compiled program, estimate=True compiles none; give one of them")

    @staticmethod
    def implied(words: Sequence[str]) -> list[str]:
        """Take half of the canvas as new, unless something else is typed."""
        canvas = option(words, "--canvas", str(Plan.canvas))
        return ["--max-new-tokens", str(max(1, int(canvas) // 2))] if canvas.isdecimal() else []

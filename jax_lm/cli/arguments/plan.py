"""Arguments of `diffucoder plan`. Imports no JAX."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jax_lm.benchmark.settings import require_at_least_one
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
        diffucoder plan --model apple/DiffuCoder-7B-Instruct --topology h100:1 --batch-size 16 --max-length 1024
        diffucoder plan --model-config 7b --topology v5p:2x2x2 --step sft --batch-size 8 --max-length 2048
        diffucoder plan --model-config 7b --topology rtx4090:1 --step sft --lora-rank 16 --dtype int8 --max-length 1024

    Attributes:
        step: generate, or an update: sft or grpo (coupled, max_new_tokens of a row its completion).
        topology: chips and their shape, such as v5e:2x2, v6e:1x1, v4:2x2x1, h100:8, l4:1 or rtx4090:1.
        model: folder or hub id; only its config.json is read.
        model_config: a known shape in place of a model: 7b or small.
        dtype: bfloat16, float32 or int8 (kernels only; in training those below adapters).
        lora_rank: train adapters of this rank instead of all weights.
        batch_size: rows decoded together.
        max_length: tokens of a row, prompt and answer.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        estimate: do arithmetic alone, compile nothing.
        explain: list what the compiler has made of a step: kernels, bytes, copies, sorts, communication, large buffers.
        out: file for all that was found, as JSON.
        json: print a JSON object instead of a table.
        generation: max_new_tokens (half of max_length if not given), preset, temperature and so on.
    """

    FIRST: ClassVar = (
        "model",
        "model_config",
        "step",
        "batch_size",
        "max_length",
        "max_new_tokens",
        "dtype",
        "mesh",
        "estimate",
    )

    topology: str
    step: str = "generate"
    model: str | None = None
    model_config: str | None = None
    dtype: str = "bfloat16"
    lora_rank: int | None = None
    batch_size: int = 1
    max_length: int = 512
    mesh: str | None = None
    estimate: bool = False
    explain: bool = False
    out: Path | None = None
    json: bool = False
    generation: GenerationOptions = DEFAULTS

    def __post_init__(self) -> None:
        if self.explain and self.estimate:
            raise ValueError("explain=True: reads a compiled program, estimate=True compiles none; give one of them")
        require_at_least_one(self, "batch_size", "max_length")

    IMPLIED: ClassVar = {"max_new_tokens": "half of --max-length"}

    @staticmethod
    def implied(given: Mapping[str, Any]) -> dict[str, Any]:
        """Let half of a row be new tokens."""
        return {"max_new_tokens": max(1, given.get("max_length", Plan.max_length) // 2)}

"""Arguments of `diffucoder plan`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jax_lm.config import Fields
from jax_lm.options import GenerationOptions, require_at_least_zero, require_only, require_sizes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan the memory and speed of a step on a TPU or GPU before renting it.

    With the extra `plan` (TPU) or `plan-gpu` (NVIDIA GPU) it compiles the real program, which needs
    no device and takes about a minute for 7B. Without the extra, the plan is an estimate by
    arithmetic. The exit status is 1 if the step does not fit.

    Examples:
        diffucoder plan --model-config 7b --topology v5e:2x2
        diffucoder plan --model-config 7b --topology v5e:1x1 --dtype int8
        diffucoder plan --model-config 7b --topology h200:1 --preset fast --out step.json
        diffucoder plan --model apple/DiffuCoder-7B-Instruct --topology h100:1 --batch-size 16 --max-length 1024
        diffucoder plan --model-config 7b --topology v5p:2x2x2 --step sft --batch-size 8 --max-length 2048
        diffucoder plan --model-config small --topology cpu --step adapt --batch-size 8
        diffucoder plan --model-config 7b --topology rtx4090:1 --step sft --lora-rank 16 --dtype int8 --max-length 1024

    Attributes:
        step: generate, serve (the slots and the context that fit one chip, by an estimate), or a
            training update: sft, adapt or grpo, where max_new_tokens is the completion.
        topology: chips and their shape, for example v5e:2x2, v6e:1x1, v4:2x2x1, h100:8 or
            rtx4090:1; cpu is this machine.
        model: folder or hub id; only its config.json is read.
        model_config: known model shape, instead of `model`: 7b or small.
        dtype: bfloat16, float32, int8, int4 or fp8 (kernels only; in training, int8 below adapters).
        lora_rank: train adapters of this rank instead of all weights.
        served_adapters: number of adapters that `serve` offers besides the model.
        batch_size: number of rows in a batch.
        max_length: tokens per row, prompt and answer together.
        mesh: how to use several devices, for example data=2,tensor=4; automatic by default.
        estimate: only estimate, compile nothing.
        out: JSON file for the whole plan.
        json: print JSON instead of a table.
        generation: how to decode; max_new_tokens is half of max_length by default.
    """

    # Common options, in the order of the help.
    FIRST = "model model_config step batch_size max_length max_new_tokens dtype mesh estimate"

    topology: str
    step: str = "generate"
    model: str = ""
    model_config: Literal["small", "7b"] | None = None
    dtype: str = "bfloat16"
    lora_rank: int | None = None
    served_adapters: int = 0
    batch_size: int = 1
    max_length: int = 512
    mesh: str | None = None
    estimate: bool = False
    out: Path | None = None
    json: bool = False
    generation: GenerationOptions

    def __post_init__(self):
        require_sizes(self, "batch_size", "max_length")
        require_at_least_zero(self, "served_adapters")
        if self.step == "serve":
            others = {"mesh": None, "lora_rank": None, "batch_size": 1, "max_length": 512}
            require_only(
                self, others, "with step='serve', which chooses slots and context of a chip"
            )
        else:
            require_only(self, {"served_adapters": 0}, "but for step='serve'")

    # Text of the help for the default that depends on max_length.
    IMPLIED: ClassVar = {"max_new_tokens": "half of --max-length"}

    @staticmethod
    def implied(given: Fields) -> Fields:
        """Return the default number of new tokens: half of max_length."""
        return {"max_new_tokens": max(1, given.get("max_length", Plan.max_length) // 2)}

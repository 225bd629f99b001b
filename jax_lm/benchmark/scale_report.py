"""What a full experiment is judged by: bounds of the machine, not numbers of one machine."""

from typing import Any

from jax_lm.benchmark import measurements
from jax_lm.benchmark.experiment_report import ON_ACCELERATOR, Criterion

NEAR = 0.75
"""Share of the roofline: 12 ms where 512 rows of 7B take 8.9 ms at least, 4.4 ms where a block takes 3.3."""

AT_THE_BOUND = "`diffucoder plan --explain` says what the compiled step reads beyond the weights; profile the rest."


def near_the_bound(window: str, size: int, name: str) -> Criterion[Any]:
    """Ask for most of what the machine allows, of a pass over such rows at a batch size."""

    def judge(found: measurements.StepPasses) -> tuple[str, bool]:
        reached = found.reached(window)
        if reached is None:
            return found.out_of_memory or "not measured", False
        [seconds] = [row.seconds for row in found.rows if row.window == window]
        return f"{reached:.0%}, {1e3 * seconds:.3g} ms", reached >= NEAR

    step = f"{measurements.StepPasses.step} {size}"
    return Criterion(name, f"{NEAR:.0%} of the roofline", measurements.StepPasses, judge, AT_THE_BOUND, step=step)


def judge_update(found: measurements.UpdateTime) -> tuple[str, bool]:
    """Ask that it fits."""
    if found.seconds is None:
        return found.out_of_memory, False
    return f"{found.seconds:.3g} s, {found.tokens_per_second:,.0f} tokens/s", True


def judge_torch(found: measurements.TorchSpeed) -> tuple[str, bool]:
    """Compare each preset with its reference in PyTorch."""
    times = [row.times for row in found.rows if row.times is not None]
    said = ", ".join(f"{row.preset} {row.times:.2f} times" for row in found.rows if row.times is not None)
    return said or "nothing to compare with", bool(times) and min(times) >= 1


SCALE_CRITERIA: tuple[Criterion[Any], ...] = (
    ON_ACCELERATOR,
    near_the_bound("canvas", 1, "a pass over the whole canvas"),
    near_the_bound("window", 1, "a pass over a block, from the cache"),
    near_the_bound("window", 16, "the same, batch 16"),
    Criterion("later calls compile nothing", "0 compilations", measurements.PresetTime,
              lambda found: (str(found.recompilations), found.recompilations == 0),
              "A defect: report it with steps.jsonl.", step="decoding exact 1"),
    Criterion("an update of adapters", "fits", measurements.UpdateTime, judge_update,
              "`diffucoder plan --step sft --lora-rank 16` says what fits.", step="training sft-lora"),
    Criterion("a coupled-GRPO update of adapters", "fits", measurements.UpdateTime, judge_update,
              "`diffucoder plan --step grpo --lora-rank 16` says what fits.", step="training grpo-lora"),
    Criterion("beside PyTorch", "at least as fast", measurements.TorchSpeed, judge_torch,
              "Report it with steps.jsonl."),
)  # fmt: skip

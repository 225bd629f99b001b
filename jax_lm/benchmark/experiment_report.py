"""The report of the accelerator experiment: criteria with what was measured, metrics, issues, next steps.

Reads what `reports.steps` kept; computes nothing with a model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from jax_lm.benchmark import measurements
from jax_lm.benchmark.comparison import differences_within
from jax_lm.benchmark.measurements import Kind, Measurements
from jax_lm.planning.roofline import GIB
from jax_lm.reports.document import Document, Section, Verdict
from jax_lm.reports.steps import DONE, FAILED, LEFT_OUT, Outcome, Step


@dataclass(frozen=True)
class Criterion(Generic[Kind]):
    """A condition that makes the experiment a success, and what to do when it is missed.

    `judge` says of a measurement of that kind what was found, in words, and whether it is as wanted; `step` names the
    step, where several find that kind. Without the measurement the criterion is not measured.
    """

    name: str
    wanted: str
    kind: type[Kind]
    judge: Callable[[Kind], tuple[str, bool]]
    advice: str
    step: str = ""

    def verdict(self, outcomes: Mapping[str, Outcome], found: Measurements) -> Verdict:
        """Judge what was found; a step that did not end well says why."""
        step = self.step or self.kind.step
        if measured := found.get(self.kind, step):
            return Verdict(self.name, self.wanted, *self.judge(measured))
        outcome = outcomes.get(step)
        why = "not reached" if outcome is None else f"{outcome.state}: {outcome.reason}"
        return Verdict(self.name, self.wanted, why, None)


def judge_batch_gain(found: measurements.ForwardPasses) -> tuple[str, bool]:
    """Compare the largest batch with the smallest."""
    if len(found.timed) < 2:
        return f"{len(found.timed)} batch size fits", False
    first, last = found.timed[0], found.timed[-1]
    gain = last.tokens_per_second / first.tokens_per_second
    measured = f"{gain:.2f} times, batch {last.batch} over batch {first.batch}"
    return measured, gain >= 0.25 * last.batch / first.batch


def judge_roofline(found: measurements.ForwardPasses) -> tuple[str, bool]:
    """Find the batch that comes nearest to the machine's limits."""
    best = max(found.timed, key=lambda row: (row.roofline or 0.0, row.batch), default=None)
    if best is None or not best.roofline:
        return "the machine's limits are not known", False
    return f"{best.roofline:.0%} at batch {best.batch} ({best.limit})", best.roofline >= 0.4


def judge_share(passed: int, total: int) -> tuple[str, bool]:
    """Ask for 95 %."""
    return f"{passed} of {total}: {passed / total:.1%}", passed >= 0.95 * total


def judge_pytorch(found: measurements.TorchParity) -> tuple[str, bool]:
    """Count the outputs that are within the tolerance."""
    within, largest = differences_within(found.differences, found.tolerance)
    measured, passed = judge_share(within, len(found.differences))
    return f"{measured}; largest relative difference {largest}", passed


ON_ACCELERATOR: Criterion[Any] = Criterion(
    "computed on an accelerator", "GPU or TPU", measurements.Environment,
    lambda found: (found.about.accelerator, found.about.platform != "cpu"),
    "This run shows the procedure on a CPU. Run the same command on a GPU or TPU (docs/guides/experiment.md).",
)  # fmt: skip

CRITERIA: tuple[Criterion[Any], ...] = (
    ON_ACCELERATOR,
    Criterion("checkpoint present and verified", "every check", measurements.Verification,
              lambda found: (f"{sum(each.passed for each in found.checks)} of {len(found.checks)} checks passed",
                             found.passed),
              "`diffucoder verify` names what is wrong; fetch the checkpoint again."),
    Criterion("loads", "within 300 s", measurements.Loading,
              lambda found: (f"{found.seconds:.1f} s", found.seconds <= 300),
              "Loading reads the files once: put them on a local disk."),
    Criterion("first call", "within 120 s, compilation included", measurements.SinglePrompt,
              lambda found: (f"{found.first_seconds:.1f} s", found.first_seconds <= 120),
              "Keep compilations between runs (JAX_COMPILATION_CACHE_DIR)."),
    Criterion("later calls compile nothing", "0 compilations", measurements.SinglePrompt,
              lambda found: (str(found.recompilations), found.recompilations == 0),
              "A defect: report it with steps.jsonl."),
    Criterion("same seed, same text", "every call", measurements.SinglePrompt,
              lambda found: ("equal" if found.same_text else "different", found.same_text),
              "A defect: report it with steps.jsonl."),
    Criterion("generation, one prompt", "at least 10 tokens/s", measurements.SinglePrompt,
              lambda found: (f"{found.tokens_per_second:,.1f} tokens/s", found.tokens_per_second >= 10),
              "Try --preset fast or turbo of `diffucoder generate`, or --dtype int8."),
    Criterion("forward passes gain from batches", "a quarter of the factor", measurements.ForwardPasses,
              judge_batch_gain, "The device is busy with one row already; batches save little here."),
    Criterion("forward passes near the machine's limits", "40 % of the roofline", measurements.ForwardPasses,
              judge_roofline, "`diffucoder bench` shows what limits; report it with its JSON."),
    Criterion("four prompts together", "less time than one by one", measurements.FourPrompts,
              lambda found: (f"{found.seconds:.2f} s, one by one {found.alone_seconds:.2f} s",
                             found.seconds < found.alone_seconds),
              "Batches save nothing here: send prompts one by one."),
    Criterion("answers together as alone", "all, greedily", measurements.FourPrompts,
              lambda found: (f"{found.equal} of {len(found.texts)}", found.equal == len(found.texts)),
              "In bfloat16 nearly equal candidates may change places with the batch; in float32 it is a defect."),
    Criterion("memory for batch 8", "batch 8 runs", measurements.Stress,
              lambda found: ("it runs" if found.fits else found.reason or "", found.fits),
              "`diffucoder plan` says what fits; --dtype int8 takes half of the weights' memory.", step="stress 8"),
    Criterion("faster than the CPU", "5 times", measurements.CpuComparison,
              lambda found: (f"{found.ratio:.1f} times", found.ratio >= 5),
              "Compare the platforms in steps.jsonl: is the accelerator in use?"),
    Criterion("parity with recorded outputs", "95 % of the comparisons", measurements.RecordedParity,
              lambda found: judge_share(sum(each.passed for each in found.findings), len(found.findings)),
              "`diffucoder parity check` names each comparison that fails."),
    Criterion("parity with PyTorch", "95 % of the outputs", measurements.TorchParity, judge_pytorch,
              "`diffucoder compare` shows the differences layer by layer."),
    Criterion("quality", "half of the tasks pass", measurements.Quality,
              lambda found: (f"{found.passed} of {found.tasks}: {found.passed / found.tasks:.0%}",
                             found.passed >= 0.5 * found.tasks),
              "`diffucoder eval` measures it on whole benchmarks."),
)  # fmt: skip


def experiment_report(
    outcomes: Mapping[str, Outcome], steps: Sequence[Step], name: str, criteria: Sequence[Criterion[Any]] = CRITERIA
) -> Document:
    """Lay out what was found so far; `name` is the model's.

    Raises:
        ValueError: an earlier run kept something that cannot be read.
    """
    found = Measurements({step: outcome.found for step, outcome in outcomes.items() if outcome.state == DONE})
    verdicts = [criterion.verdict(outcomes, found) for criterion in criteria]
    endings = [(step.title, outcomes.get(step.name, Outcome("not reached"))) for step in steps]
    rows = [[title, ending.state, f"{ending.seconds:.1f}", ending.reason] for title, ending in endings]
    return Document(
        title="Accelerator experiment",
        metadata=experiment_metadata(found, name),
        verdicts=verdicts,
        sections=[
            *found.sections(),
            Section(title="Steps", columns=("step", "", "s", ""), rows=rows),
            Section(title="Issues", points=issues(outcomes, verdicts) or ["none"]),
            Section(title="Next steps", points=advice(verdicts, criteria) or ["none"]),
        ],
    )


def experiment_metadata(found: Measurements, name: str) -> dict[str, str]:
    """Describe model and environment."""
    metadata = {"model": name}
    if loading := found.get(measurements.Loading):
        metadata["model"] += f", {loading.parameters:,} parameters, {loading.dtype}, mesh {loading.mesh}"
    if made := found.get(measurements.RandomWeights):
        metadata["model"] += f", {made.parameters:,} parameters, {made.dtype}, mesh {made.mesh}"
    if environment := found.get(measurements.Environment):
        limits, memory = environment.limits, environment.device_bytes
        metadata |= environment.about.metadata | {
            "limits measured": f"{limits.matmul_flops / 1e9:,.0f} GFLOP/s in {environment.limits_dtype}, "
            f"{limits.copy_bytes / 1e9:,.1f} GB/s",
            "peak memory": environment.peak_memory,
        }
        metadata["device"] += f", {memory / GIB:.1f} GiB each" if memory else ""
    return metadata


def issues(outcomes: Mapping[str, Outcome], verdicts: Sequence[Verdict]) -> list[str]:
    """List what failed, was left out or missed."""
    ended = [(state, name, each) for state in (FAILED, LEFT_OUT) for name, each in outcomes.items()]
    points = [f"{name} {state}: {each.reason}" for state, name, each in ended if each.state == state]
    missed = [each for each in verdicts if each.met is False]
    return points + [f"missed: {each.name} (wanted {each.wanted}; {each.measured})" for each in missed]


def advice(verdicts: Sequence[Verdict], criteria: Sequence[Criterion[Any]] = CRITERIA) -> list[str]:
    """List the advice of each criterion that was missed, then what was not measured."""
    by_name = {criterion.name: criterion.advice for criterion in criteria}
    points = [by_name[each.name] for each in verdicts if each.met is False]
    points += [f"Measure what is not: {each.name}." for each in verdicts if each.met is None]
    return list(dict.fromkeys(points))


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

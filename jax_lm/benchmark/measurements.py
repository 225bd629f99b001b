"""What each step of the accelerator experiment finds, one frozen dataclass per step, with its part of the report.

In JSON they have the fields of version 0.1, so that a folder of that version goes on. Computes none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from jax_lm.benchmark.comparison import Difference, worst
from jax_lm.benchmark.machine import Machine
from jax_lm.benchmark.parity import Finding
from jax_lm.benchmark.records import read_record
from jax_lm.benchmark.speed import GenerationTime
from jax_lm.conversion.verify import Check
from jax_lm.reports.charts import line_chart, rounded_up
from jax_lm.reports.document import Section
from jax_lm.roofline import GIB, Limits

SHOWN = 4
"""Programs of the quality check that the report quotes."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a step found; `step` is its name."""

    step: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Environment(Measurement):
    """Versions, devices, their memory, and what the machine can do at most."""

    step = "environment"
    about: Machine
    device_bytes: int | None = None
    limits: Limits
    limits_dtype: str
    peak_memory: str


@dataclass(frozen=True, kw_only=True)
class Verification(Measurement):
    """What `diffucoder verify` says of the checkpoint."""

    step = "checkpoint"
    checks: tuple[Check, ...]
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Loading(Measurement):
    """Time and memory of loading."""

    step = "loading"
    seconds: float
    described: str
    parameters: int
    dtype: str
    mesh: str
    weights_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class SinglePrompt(Measurement):
    """One prompt with the published settings: the first call compiles, later ones must not."""

    step = "single"
    prompt: str
    text: str
    same_text: bool
    new_tokens: int
    first_seconds: float
    seconds: float
    tokens_per_second: float
    forwards: int
    recompilations: int
    peak_bytes: int

    def section(self, loading: Loading | None) -> Section:
        """Lay out loading and the prompt."""
        rows = []
        if loading:
            rows += [["loading", f"{loading.seconds:.2f} s"], ["weights", f"{loading.weights_bytes / GIB:.2f} GiB"]]
        rows += [
            ["first call, with compilation", f"{self.first_seconds:.2f} s"],
            ["later calls, median", f"{self.seconds:.3f} s for {self.new_tokens} tokens"],
            ["tokens per second", f"{self.tokens_per_second:,.1f}"],
            ["model evaluations", str(self.forwards)],
            ["peak memory", f"{self.peak_bytes / GIB:.2f} GiB"],
        ]
        listing = {f"Completion of {self.prompt!r}": self.text}
        return Section(title="One prompt", columns=("", "measured"), rows=rows, listing=listing)


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """Forward passes of one batch size; with `out_of_memory`, why there are none.

    Attributes:
        tokens_per_second: positions per second.
        roofline: share that is reached of what the machine's limits allow; None if they are not known.
        limit: the one that sets it.
    """

    batch: int
    seconds: float | None = None
    tokens_per_second: float = 0.0
    roofline: float | None = None
    limit: str = ""
    out_of_memory: str = ""


@dataclass(frozen=True, kw_only=True)
class ForwardPasses(Measurement):
    """Forward passes over `width` positions per row, by batch."""

    step = "forward"
    width: int
    rows: tuple[ForwardBatch, ...]

    @property
    def timed(self) -> list[ForwardBatch]:
        """Batch sizes for which memory was enough."""
        return [row for row in self.rows if row.seconds is not None]

    def section(self) -> Section:
        """Lay out a row per batch size."""
        rows = [
            [str(row.batch), "out of memory", "", "", ""]
            if row.seconds is None
            else [
                str(row.batch),
                f"{row.seconds * 1e3:.2f}",
                f"{row.tokens_per_second:,.0f}",
                "" if row.roofline is None else f"{row.roofline:.0%}",
                row.limit,
            ]
            for row in self.rows
        ]
        points = [(row.batch, row.tokens_per_second) for row in self.timed]
        return Section(
            title="Forward passes by batch",
            text=f"{self.width} positions per row, logits of every position.",
            columns=("batch", "ms", "positions/s", "of the roofline", "limit"),
            rows=rows,
            picture=batch_chart("Positions per second", "positions/s", "forward pass", points),
            name="forward",
        )


@dataclass(frozen=True, kw_only=True)
class FourPrompts(Measurement):
    """Four prompts decoded together and one by one; `equal` of the answers are the same."""

    step = "batch"
    seconds: float
    tokens_per_second: float
    alone_seconds: float
    equal: int
    texts: dict[str, str]

    def section(self) -> Section:
        """Lay out both times and the answers."""
        rows = [
            ["together", f"{self.seconds:.3f} s", f"{self.tokens_per_second:,.1f} tokens/s"],
            ["one by one", f"{self.alone_seconds:.3f} s", ""],
            ["equal answers", f"{self.equal} of {len(self.texts)}", ""],
        ]
        listing = {f"Completion of {prompt!r}": text for prompt, text in self.texts.items()}
        return Section(title="Four prompts together", columns=("", "measured", ""), rows=rows, listing=listing)


@dataclass(frozen=True, kw_only=True)
class Stress(Measurement):
    """A batch of that size; `reason` says why it does not fit."""

    step = "stress"
    size: int
    fits: bool
    reason: str | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CpuComparison(Measurement):
    """The same generation here and on the CPU, which takes `ratio` times as long."""

    step = "cpu"
    here: GenerationTime
    cpu: GenerationTime
    ratio: float

    def section(self) -> Section:
        """Lay out both times."""
        pairs = {
            "generation, s": (self.here.seconds, self.cpu.seconds),
            "forward pass, s": (self.here.forward_seconds, self.cpu.forward_seconds),
        }
        rows = [[name, f"{here:.3f}", f"{cpu:.3f}", f"{cpu / here:.1f}"] for name, (here, cpu) in pairs.items()]
        here = self.here
        text = f"{here.batch} row, {here.prompt_tokens} prompt tokens, {here.new_tokens} new tokens."
        columns = ("", "here", "CPU", "times as fast")
        return Section(title="Comparison with the CPU", text=text, columns=columns, rows=rows)


@dataclass(frozen=True, kw_only=True)
class RecordedParity(Measurement):
    """What `diffucoder parity check` says of recorded outputs, computed on this device."""

    step = "recorded"
    findings: tuple[Finding, ...]

    def section(self) -> Section:
        """Lay out a row per comparison."""
        rows = [[each.name, each.measured, each.allowed, "ok" if each.passed else "FAILED"] for each in self.findings]
        columns = ("compared", "measured", "allowed", "")
        return Section(title="Parity with recorded outputs of PyTorch", columns=columns, rows=rows)


@dataclass(frozen=True, kw_only=True)
class TorchParity(Measurement):
    """Every module's output and greedy tokens, beside those of PyTorch of version `torch` on the CPU."""

    step = "pytorch"
    differences: tuple[Difference, ...]
    tolerance: float
    greedy_agreement: float
    torch: str

    def section(self) -> Section:
        """Lay out a row per kind of module."""
        kinds: dict[str, list[Difference]] = {}
        for each in self.differences:
            kinds.setdefault(each.kind, []).append(each)
        rows = [
            [kind, str(len(some)), f"{worst(some).relative:.1e}", f"{max(each.largest for each in some):.1e}"]
            for kind, some in kinds.items()
        ]
        text = (
            f"PyTorch {self.torch} on the CPU; relative difference at most {self.tolerance:g}. Greedy tokens that are "
            f"equal: {self.greedy_agreement:.1%}."
        )
        columns = ("output", "compared", "largest relative", "largest absolute")
        return Section(title="Parity with PyTorch", text=text, columns=columns, rows=rows)


@dataclass(frozen=True, kw_only=True)
class TaskAttempt:
    """A program that the model wrote, and how its tests ended."""

    name: str
    outcome: str
    program: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Quality(Measurement):
    """How many small functions pass their tests, in the sandbox of that tier."""

    step = "quality"
    tasks: int
    passed: int
    tier: str
    attempts: tuple[TaskAttempt, ...]

    def section(self) -> Section:
        """Lay out the outcomes, and the first programs."""
        rows = [[each.name, each.outcome, each.detail] for each in self.attempts]
        listing = {f"{each.name}: {each.outcome}": each.program for each in self.attempts[:SHOWN]}
        text = f"{self.passed} of {self.tasks} programs pass their tests (sandbox: {self.tier})."
        return Section(title="Quality", text=text, columns=("task", "outcome", ""), rows=rows, listing=listing)


KINDS: tuple[type[Measurement], ...] = (Environment, Verification, Loading, SinglePrompt, ForwardPasses, FourPrompts,
                                        Stress, CpuComparison, RecordedParity, TorchParity, Quality)  # fmt: skip

Kind = TypeVar("Kind", bound=Measurement)


class Measurements:
    """What the steps found so far.

    Args:
        found: plain data by the name of the step; that of a stress test is "stress" and its batch size.

    Raises:
        ValueError: what a step found is not what it finds in this version.
    """

    def __init__(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        kinds = {kind.step: kind for kind in KINDS}
        self.by_step: dict[str, Measurement] = {}
        for step, data in found.items():
            try:
                self.by_step[step] = read_record(kinds[step.split()[0]], data)
            except (KeyError, ValueError) as error:
                raise ValueError(f"step {step!r} of an earlier run cannot be read: {error}") from error

    def get(self, kind: type[Kind], step: str | None = None) -> Kind | None:
        """Return what the step of that kind found; None if it did not."""
        found = self.by_step.get(step or kind.step)
        assert found is None or isinstance(found, kind)
        return found

    def sections(self) -> list[Section]:
        """Lay out every measurement that has a part of the report."""
        single, parts = self.get(SinglePrompt), []
        parts += [single.section(self.get(Loading))] if single else []
        for kind in (ForwardPasses, FourPrompts, CpuComparison, Quality):
            parts += [found.section()] if (found := self.get(kind)) else []
        parts += self.stress_sections()
        for kind in (RecordedParity, TorchParity):
            parts += [found.section()] if (found := self.get(kind)) else []
        return parts

    def stress_sections(self) -> list[Section]:
        """Lay out batches until memory ends; nothing if none ran."""
        sizes = sorted((each for each in self.by_step.values() if isinstance(each, Stress)), key=lambda each: each.size)
        rows = [
            [str(each.size), f"{each.tokens_per_second:,.1f}", f"{(each.peak_bytes or 0) / GIB:.2f} GiB", ""]
            if each.fits
            else [str(each.size), "out of memory", "", each.reason or ""]
            for each in sizes
        ]
        points = [(each.size, each.tokens_per_second) for each in sizes if each.tokens_per_second]
        picture = batch_chart("Tokens per second under stress", "tokens/s", "generation", points)
        columns = ("batch", "tokens/s", "peak memory so far", "")
        return [Section(title="Stress", columns=columns, rows=rows, picture=picture, name="stress")] if sizes else []


def batch_chart(title: str, label: str, name: str, points: list[tuple[int, float]]) -> str:
    """Draw a line by batch whose axis ends above the largest value."""
    largest = max((value for _, value in points), default=1.0)
    return line_chart(title, "batch", label, {name: points}, top=rounded_up(largest))

"""What each step of the accelerator experiment finds, one frozen dataclass per step, with its part of the report.

Computes none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from jax_lm.benchmark.comparison import Difference, worst
from jax_lm.benchmark.machine import Machine
from jax_lm.benchmark.parity import ParityFinding
from jax_lm.benchmark.records import read_record, scaled_chart, table_section
from jax_lm.benchmark.speed import ForwardTime, GenerationTime
from jax_lm.conversion.verify import Check
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.document import Section

SHOWN = 4
"""Programs of the quality check that the report quotes."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a step found; `step` is its name."""

    step: ClassVar[str]

    def section(self) -> Section | None:
        """Lay out a part of the report; None if there is none for this measurement alone."""
        return None


@dataclass(frozen=True, kw_only=True)
class Environment(Measurement):
    """Versions, devices, their memory, and what the machine can do at most."""

    step = "environment"
    about: Machine
    device_bytes: int | None = None
    limits: MachineLimits
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

    def section(self) -> Section:
        listing = {f"Completion of {self.prompt!r}": self.text}
        return table_section("One prompt", [self], ("prompt", "text"), listing=listing)


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """Forward passes of one batch size, in positions per second; with `out_of_memory`, why there are none.

    `roofline` is the share reached of what the machine's limits allow, if they are known; `limit` the one that sets it.
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
        points = [(row.batch, row.tokens_per_second) for row in self.timed]
        picture = scaled_chart("Positions per second", "batch", "positions/s", {"forward pass": points})
        text = f"{self.width} positions per row, logits of every position."
        return table_section("Forward passes by batch", self.rows, text=text, picture=picture, name="forward")


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
        listing = {f"Completion of {prompt!r}": text for prompt, text in self.texts.items()}
        return table_section("Four prompts together", [self], listing=listing)


@dataclass(frozen=True, kw_only=True)
class Stress(Measurement):
    """A batch of that size; `reason` says why it does not fit. All sizes share a part of the report."""

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
        return table_section("Comparison with the CPU", [self.here, self.cpu], text="First here, then on the CPU.")


@dataclass(frozen=True, kw_only=True)
class RecordedParity(Measurement):
    """What `diffucoder parity check` says of recorded outputs, computed on this device."""

    step = "recorded"
    findings: tuple[ParityFinding, ...]

    def section(self) -> Section:
        return table_section("Parity with recorded outputs of PyTorch", self.findings)


@dataclass(frozen=True, kw_only=True)
class TorchParity(Measurement):
    """Every module's output and greedy tokens, beside those of PyTorch of version `torch` on the CPU."""

    step = "pytorch"
    differences: tuple[Difference, ...]
    tolerance: float
    greedy_agreement: float
    torch: str

    def section(self) -> Section:
        kinds = dict.fromkeys(each.kind for each in self.differences)
        found = [worst([each for each in self.differences if each.kind == kind]) for kind in kinds]
        text = (
            f"PyTorch {self.torch} on the CPU; relative difference at most {self.tolerance:g}. Greedy tokens that are "
            f"equal: {self.greedy_agreement:.1%}. {len(self.differences)} outputs, of each kind the worst:"
        )
        return table_section("Parity with PyTorch", found, text=text)


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
        listing = {f"{each.name}: {each.outcome}": each.program for each in self.attempts[:SHOWN]}
        text = f"{self.passed} of {self.tasks} programs pass their tests (sandbox: {self.tier})."
        return table_section("Quality", self.attempts, ("program",), text=text, listing=listing)


@dataclass(frozen=True, kw_only=True)
class RandomWeights(Measurement):
    """Weights that were made on the device, of a published shape."""

    step = "weights"
    shape: str
    parameters: int
    dtype: str
    mesh: str
    seconds: float
    weights_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepPasses(Measurement):
    """Forward passes and steps of a batch size, by the rows they recompute; `out_of_memory` says why there are none."""

    step = "passes"
    batch: int
    rows: tuple[ForwardTime, ...] = ()
    out_of_memory: str = ""

    def reached(self, window: str) -> float | None:
        """The share of the roofline that a pass over such rows reaches."""
        return next((row.roofline for row in self.rows if row.window == window), None)


@dataclass(frozen=True, kw_only=True)
class PresetTime(Measurement):
    """A generation with the published settings of a preset, at a batch size."""

    step = "decoding"
    preset: str
    batch: int
    seconds: float | None = None
    first_seconds: float | None = None
    tokens_per_second: float | None = None
    forwards: int | None = None
    seconds_per_forward: float | None = None
    recompilations: int | None = None
    peak_bytes: int | None = None
    out_of_memory: str = ""


@dataclass(frozen=True, kw_only=True)
class UpdateTime(Measurement):
    """Updates of training: of all weights, or of adapters."""

    step = "training"
    name: str
    rows: int
    mesh: str
    first_seconds: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    out_of_memory: str = ""


@dataclass(frozen=True, kw_only=True)
class Served(Measurement):
    """Clients of the server's slots, each of which asks again when it is answered."""

    step = "serving"
    clients: int
    requests: int | None = None
    tokens_per_second: float | None = None
    median_seconds: float | None = None
    longest_seconds: float | None = None
    out_of_memory: str = ""


@dataclass(frozen=True, kw_only=True)
class BesideTorch:
    """A generation of one row in PyTorch (the published loop, or Fast-dLLM's dual cache) and here, `times` as fast."""

    preset: str
    torch_seconds: float
    seconds: float | None = None
    times: float | None = None


@dataclass(frozen=True, kw_only=True)
class TorchSpeed(Measurement):
    """PyTorch of that version on the same kind of device."""

    step = "torch"
    torch: str
    device: str
    rows: tuple[BesideTorch, ...]

    def section(self) -> Section:
        return table_section(f"PyTorch {self.torch} ({self.device}) beside it", self.rows)


KINDS: tuple[type[Measurement], ...] = (Environment, Verification, Loading, SinglePrompt, ForwardPasses, FourPrompts,
                                        CpuComparison, Quality, RecordedParity, TorchParity, Stress,
                                        RandomWeights, StepPasses, PresetTime, Served, TorchSpeed,
                                        UpdateTime)  # fmt: skip
"""In the order of the report."""

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
        parts = [part for kind in KINDS if (found := self.get(kind)) and (part := found.section())]
        if sizes := [each for each in self.by_step.values() if isinstance(each, Stress)]:
            points = [(each.size, each.tokens_per_second) for each in sizes if each.tokens_per_second]
            picture = scaled_chart("Tokens per second under stress", "batch", "tokens/s", {"generation": points})
            parts.append(table_section("Stress", sizes, picture=picture, name="stress"))
        return parts + self.scale_sections()

    def every(self, kind: type[Kind]) -> list[Kind]:
        """Return what all the steps of that kind found."""
        return [each for each in self.by_step.values() if isinstance(each, kind)]

    def scale_sections(self) -> list[Section]:
        """Lay out what a full experiment finds: a table for each kind of step, pictures by batch and by clients."""
        parts: list[Section] = []
        if rows := [row for each in self.every(StepPasses) for row in each.rows]:
            text = "Every position of the block is masked. The bound is the roofline of the limits measured here."
            parts.append(table_section("Forward passes", rows, text=text))
        if times := self.every(PresetTime):
            lines: dict[str, list[tuple[float, float]]] = {}
            for each in times:
                if each.tokens_per_second is not None:
                    lines.setdefault(each.preset, []).append((each.batch, each.tokens_per_second))
            picture = scaled_chart("Tokens per second", "batch", "tokens/s", lines) if lines else None
            parts.append(table_section("Decoding", times, picture=picture, name="decoding"))
        if served := self.every(Served):
            points = [(each.clients, each.tokens_per_second) for each in served if each.tokens_per_second]
            picture = scaled_chart("Tokens per second, served", "clients", "tokens/s", {"served": points})
            parts.append(table_section("Serving", served, picture=picture if points else None, name="serving"))
        if updates := self.every(UpdateTime):
            parts.append(table_section("Training", updates))
        return parts

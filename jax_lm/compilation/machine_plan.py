"""Plan a step on a machine that is not present: its memory, its least time, and whether it fits.

Combines arithmetic with the compiled program, if XLA's compiler for that machine is installed.
Nothing runs. Entry: `diffucoder plan`.
"""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version

from jax_lm.compilation import compiler
from jax_lm.compilation.compiler import Compiled, CompilerPackage
from jax_lm.compilation.programs import step_programs
from jax_lm.config import Fields
from jax_lm.models.attention import has_cudnn
from jax_lm.options import GenerationOptions
from jax_lm.planning import memory
from jax_lm.planning.memory import Memory, PlannedStep
from jax_lm.planning.rollouts import Rows, rollout_rows
from jax_lm.planning.roofline import Topology, gib


@dataclass(frozen=True)
class MachinePlan:
    """A step on the devices of a topology.

    Attributes:
        compiled: the compiler's figures of one device; None if the plan is arithmetic alone.
    """

    planned: PlannedStep
    topology: Topology
    compiled: Compiled | None = None

    @cached_property
    def estimate(self) -> Memory:
        return memory.estimate_memory(self.planned)

    @property
    def total(self) -> int | None:
        """Bytes that a device needs, as compiled if possible; None if the compiler refused."""
        return self.estimate.total if self.compiled is None else self.compiled.total

    @property
    def fits(self) -> bool:
        return self.total is not None and memory.fits(self.total, self.topology)

    def changes(self) -> list[str]:
        """Return the cheapest changes that would make the step fit."""
        if self.fits:
            return []
        # bytes that the compiled program needs beyond the estimate
        beyond = max((self.total or 0) - self.estimate.total, 0)
        return memory.cheapest_changes(self.planned, self.topology, beyond=beyond)

    @property
    def devices(self) -> str:
        return f"{self.topology}: {self.topology.devices}, mesh {self.planned.mesh}"

    def rows(self) -> Rows:
        """List the plan as names and values, to be printed."""
        # The smallest topology is an estimate even if this plan was compiled.
        smallest = memory.smallest_topology(self.planned, self.topology)
        rollouts = []
        # the rates of a CPU are unknown
        if self.planned.kind == "grpo" and self.topology.chip.limits:
            rollouts = rollout_rows(self.planned, self.topology)
        fitting = f"{smallest[0]}, mesh {smallest[1]} (estimate)" if smallest else "none known"
        return [
            ("plan", f"{self.planned}"),
            ("devices", self.devices),
            ("basis", self.basis),
            *self.memory_rows(),
            *self.speed_rows(),
            *rollouts,
            ("verdict", "fits" if self.fits else "does not fit"),
            ("smallest that fits", fitting),
        ]

    @property
    def basis(self) -> str:
        """Source of the figures."""
        if self.compiled is None:
            return "arithmetic, an estimate"
        package = CompilerPackage.of(self.topology)
        source = f"compiled for it by {package}, jax {version('jax')}"
        if self.topology.is_tpu or self.topology.is_cpu:
            return source
        # A card's machine has cuDNN, which then computes the attention of long rows.
        lacks = "autotuning" if has_cudnn() else "autotuning and cuDNN's attention"
        return f"{source}; without {lacks}, so that speed is not known"

    def memory_rows(self) -> Rows:
        """List the memory that a device needs, and the total next to its capacity."""
        estimate = self.estimate
        compiled = self.compiled
        limit = f"{gib(self.topology.chip.memory)}, of which {memory.RESERVED:.0%} must stay free"
        # exact figures first: weights, then keys and values
        weights = "masters and moments" if self.planned.is_training else "weights per device"
        rows = [(weights, gib(estimate.weights))]
        rows += [("keys and values", gib(estimate.cache))] if estimate.cache else []
        if self.total is None and compiled:
            return [*rows, ("in all", f"refused by the compiler: {compiled.refusal}")]
        # without a compiler, an estimate
        about, figures = ("", compiled) if compiled else ("about ", estimate)
        return [
            *rows,
            ("working memory", f"{about}{gib(figures.working)}"),
            ("in all", f"{about}{gib(figures.total or 0)} of {limit}"),
        ]

    def speed_rows(self) -> Rows:
        """List the cost of a step, and the time and rate that follow from it."""
        if self.topology.chip.limits is None:
            return [("speed", "not known of this machine; `diffucoder bench` measures it")]
        least = memory.bound(self.planned, self.topology)
        # least work by arithmetic
        cost = f"{least.step.flops / 1e12:.3f} TFLOP and {gib(least.step.bytes)} per device"
        rows = [("step at least", cost)]
        # work that the compiler counted; XLA counts the body of a loop once
        if (compiled := self.compiled) and compiled.flops and compiled.bytes is not None:
            cost = f"{compiled.flops / 1e12:.3f} TFLOP and {gib(compiled.bytes)}"
            rows.append(("step as compiled", f"{cost} per device, one loop body"))
        # thresholds commit several tokens at once, which no arithmetic knows
        rate = "depends on how many a step commits"
        if least.tokens_per_second is not None:
            unit = " learnt from" if self.planned.is_training else ", at one token per row and step"
            rate = f"at most {least.tokens_per_second:,.0f}{unit}"
        roofline = f"{least.seconds * 1e3:.2f} ms per step, bound by {least.limit}"
        return [*rows, ("roofline", roofline), ("tokens/s", rate)]

    @property
    def record(self) -> Fields:
        """The plan as JSON: its numbers, and those of the compiled program."""
        record = {
            "plan": {"plan": f"{self.planned}", "devices": self.devices},
            "memory_limit": self.topology.chip.memory,
            "fits": self.fits,
            "total_bytes": self.total,
            "estimated_bytes": asdict(self.estimate),
            "try": self.changes(),
        }
        if self.compiled:
            record["compiled"] = {
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "compiler": f"{CompilerPackage.of(self.topology)}",
                "jax": version("jax"),
                "arguments_bytes": self.compiled.arguments,
                "working_bytes": self.compiled.working,
                "refusal": self.compiled.refusal,
            }
        return record


def compile_step(plan: MachinePlan, options: GenerationOptions) -> Compiled:
    """Compile the program of a step that takes the most memory: it decides whether the step fits."""
    devices = compiler.topology_mesh(plan.topology, plan.planned.mesh)
    programs = step_programs(plan.planned, devices, options)
    compiled = compiler.compile_program(next(iter(programs.values())))
    if plan.planned.kind != "grpo":
        return compiled
    # The reference policy is on the device, but is not an argument of an update.
    return replace(compiled, arguments=compiled.arguments + memory.master_bytes(plan.planned))

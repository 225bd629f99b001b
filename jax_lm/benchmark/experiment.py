"""The steps of the accelerator experiment: each measures one thing on this machine and returns plain data.

Entry: `diffucoder experiment`. What becomes of the data is `evaluation.experiment_report`; that a killed run goes on,
and that a failed step stops no other, is `evaluation.steps`.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import jax
import numpy as np

from jax_lm.benchmark import comparison, parity
from jax_lm.benchmark import worker as side
from jax_lm.benchmark.machine import (
    PeakMemory,
    about,
    compilations,
    machine_limits,
    without_stored_compilations,
)
from jax_lm.conversion.verify import verify
from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import held_out_problems
from jax_lm.inference import INT8, DiffuCoderInference
from jax_lm.infilling import Template
from jax_lm.options import GenerationOptions
from jax_lm.planning import OutOfMemoryError, device_bytes, explained, forward_cost
from jax_lm.reports.run_folder import Record
from jax_lm.reports.steps import LeftOut, Step
from jax_lm.results import DecodedBatch
from jax_lm.roofline import MachineLimits
from jax_lm.sandbox import Local
from jax_lm.sandbox.runner import choose_tier
from jax_lm.sandbox.tiers import SandboxUnavailableError

PROMPTS = (
    "def fibonacci(n):",
    "def is_prime(n):",
    "def reverse_string(text):",
    "def largest(values):",
)
PUBLISHED_TEMPERATURE = 0.2
FORWARD_TOKENS = 128
STRESS_TOKENS, TASK_TOKENS, TASK_BATCH = 32, 144, 10
CPU_CELL = (1, 32, 8)
"""Batch, prompt and new tokens of what is also run on the CPU: little, as a large model is slow there."""

NUMBERS = (2, 24)
"""Rows and tokens for which outputs are compared with PyTorch's."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the results depend on.

    Attributes:
        model: folder or hub id; None is the built-in model.
        dtype: float32, bfloat16 or int8; None is what fits the device.
        recorded: folder with recorded outputs of PyTorch (`parity record`); None is without.
        new_tokens: length of the answers.
        batch_sizes: of the timed forward passes.
        largest_batch: where the stress test ends, if memory does not end before.
        tasks: built-in tasks of the quality check.
        repeats: timed calls per measurement.
        limit: seconds that a process of its own may take (PyTorch, and JAX on the CPU).
    """

    model: str | None = None
    dtype: str | None = None
    recorded: str | None = None
    new_tokens: int = 64
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    largest_batch: int = 32
    tasks: int = 20
    repeats: int = 3
    limit: float = 600.0

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes={self.batch_sizes}: must name at least one number, each at least 1")
        for name in ("new_tokens", "largest_batch", "tasks", "repeats", "limit"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


class Experiment:
    """The steps, on one checkpoint.

    Args:
        folder: of the checkpoint, in the Hugging Face or Orbax layout.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings

    def steps(self) -> list[Step]:
        """All of them in their order."""
        sizes = [2**power for power in range(self.settings.largest_batch.bit_length())]
        return [
            Step("environment", "Environment and devices", self.environment),
            Step("checkpoint", "Checkpoint present and verified", self.checkpoint),
            Step("loading", "Loading", self.loading),
            Step("single", "One prompt, first and later calls", self.single),
            Step("forward", "Forward passes by batch", self.forward),
            Step("batch", "Four prompts together", self.batch),
            *(Step(f"stress {size}", f"Stress: batch {size}", partial(self.stress, size)) for size in sizes),
            Step("cpu", "The same on the CPU", self.cpu),
            Step("recorded", "Parity with recorded outputs", self.recorded),
            Step("pytorch", "Parity with PyTorch", self.pytorch),
            Step("quality", "Quality: built-in tasks in the sandbox", self.quality),
        ]

    @cached_property
    def engine(self) -> DiffuCoderInference:
        """The model, loaded by the first step that needs it."""
        return DiffuCoderInference(self.settings.model, dtype=self.settings.dtype, verbose=False)

    def decode(self, prompts: Sequence[str], tokens: int, temperature: float = 0.0) -> DecodedBatch:
        """Answers of full length, so that every batch is the same work."""
        options = GenerationOptions(max_new_tokens=tokens, temperature=temperature, early_stop=False)
        return self.engine.decode([Template.completion(prompt, tokens) for prompt in prompts], options)

    def environment(self, found: Mapping[str, Record]) -> Record:
        """Versions, devices, their memory, and what the machine can do at most."""
        dtype = "bfloat16" if self.settings.dtype == INT8 else self.settings.dtype or "float32"
        stats = jax.devices()[0].memory_stats() or {}
        return {
            "about": about(),
            "device_bytes": stats.get("bytes_limit"),
            "limits": asdict(machine_limits(dtype)),
            "limits_dtype": dtype,
            "peak_memory": PeakMemory().source,
        }

    def checkpoint(self, found: Mapping[str, Record]) -> Record:
        """What `diffucoder verify` says."""
        checks = [asdict(check) for check in verify(self.folder)]
        return {"checks": checks, "passed": all(check["passed"] for check in checks)}

    def loading(self, found: Mapping[str, Record]) -> Record:
        """Time and memory of loading."""
        engine = self.engine
        return {
            "seconds": engine.load_seconds,
            "described": engine.describe(),
            "parameters": engine.parameter_count,
            "dtype": "int8" if engine.is_int8 else engine.dtype,
            "mesh": str(engine.mesh_shape),
            "weights_bytes": device_bytes(engine.config, engine.job(batch=1, canvas=1), engine.mesh_shape),
            "peak_bytes": PeakMemory().read(),
        }

    def single(self, found: Mapping[str, Record]) -> Record:
        """One prompt with the published settings: the first call compiles, later ones must not."""
        tokens, counter = self.settings.new_tokens, compilations()
        with without_stored_compilations():
            first = self.decode(PROMPTS[:1], tokens, PUBLISHED_TEMPERATURE)
            before = counter.count
            later = [self.decode(PROMPTS[:1], tokens, PUBLISHED_TEMPERATURE) for _ in range(self.settings.repeats)]
        seconds = statistics.median(batch.seconds for batch in later)
        return {
            "prompt": PROMPTS[0],
            "text": first.rows[0].text,
            "same_text": all(batch.rows[0].text == first.rows[0].text for batch in later),
            "new_tokens": tokens,
            "first_seconds": first.seconds,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "forwards": first.forwards,
            "recompilations": counter.count - before,
            "peak_bytes": PeakMemory().read(),
        }

    def forward(self, found: Mapping[str, Record]) -> Record:
        """Forward passes with the logits of every position, beside the roofline of the measured limits."""
        engine = self.engine
        width = min(FORWARD_TOKENS, engine.config.max_position_embeddings)
        limits = MachineLimits(**found["environment"]["limits"]) if "environment" in found else None
        rows = []
        for batch in self.settings.batch_sizes:
            try:
                with explained(engine.config, engine.job(batch=batch, canvas=width), engine.mesh_shape):
                    [figures] = engine.benchmark_inference((batch,), width, 3 * self.settings.repeats).values()
            except OutOfMemoryError as error:
                rows.append({"batch": batch, "out_of_memory": str(error)})
                break
            seconds = figures["avg_time_seconds"]
            row = {"batch": batch, "seconds": seconds, "tokens_per_second": batch * width / seconds}
            if limits:
                precision = INT8 if engine.is_int8 else engine.dtype
                cost = forward_cost(engine.config, precision, batch=batch, rows=width, canvas=width, head_rows=width)
                row["roofline"] = cost.seconds(limits) / seconds / engine.mesh_shape.size
                row["limit"] = cost.limit(limits)
            rows.append(row)
        return {"width": width, "rows": rows}

    def batch(self, found: Mapping[str, Record]) -> Record:
        """Four prompts decoded together and one by one, greedily: the answers must be the same."""
        tokens = self.settings.new_tokens

        def timed(prompts: Sequence[str]) -> DecodedBatch:
            self.decode(prompts, tokens)
            return self.decode(prompts, tokens)

        together, alone = timed(PROMPTS), [timed([prompt]) for prompt in PROMPTS]
        texts = [row.text for row in together.rows]
        return {
            "seconds": together.seconds,
            "tokens_per_second": len(PROMPTS) * tokens / together.seconds,
            "alone_seconds": sum(batch.seconds for batch in alone),
            "equal": sum(batch.rows[0].text == text for batch, text in zip(alone, texts, strict=True)),
            "texts": dict(zip(PROMPTS, texts, strict=True)),
        }

    def stress(self, size: int, found: Mapping[str, Record]) -> Record:
        """So many rows; memory that ends is a result, and larger batches are left out."""
        before = found.get(f"stress {size // 2}")
        if size > 1 and not (before and before["fits"]):
            raise LeftOut(f"batch {size // 2} did not run")
        prompts = [PROMPTS[row % len(PROMPTS)] for row in range(size)]
        try:
            self.decode(prompts, STRESS_TOKENS)
            seconds = self.decode(prompts, STRESS_TOKENS).seconds
        except OutOfMemoryError as error:
            return {"size": size, "fits": False, "reason": str(error)}
        rate = size * STRESS_TOKENS / seconds
        peak = PeakMemory().read()
        return {"size": size, "fits": True, "seconds": seconds, "tokens_per_second": rate, "peak_bytes": peak}

    def cpu(self, found: Mapping[str, Record]) -> Record:
        """A short generation here, and in a process that sees no accelerator."""
        if jax.default_backend() == "cpu":
            raise LeftOut("the device is the CPU")
        dtype = INT8 if self.engine.is_int8 else self.engine.dtype
        here = side.timed(side.Ours(self.engine.sampler), self.engine.config, CPU_CELL, self.settings.repeats)
        request = side.Request(side="jax", folder=str(self.folder), dtype=dtype, cells=(CPU_CELL,), repeats=1)
        result, _ = side.ask(request, environment=comparison.ON_CPU, limit=self.settings.limit)
        there = result["cells"][0]
        return {"here": here, "cpu": there, "ratio": there["seconds"] / here["seconds"]}

    def recorded(self, found: Mapping[str, Record]) -> Record:
        """What `diffucoder parity check` says of recorded outputs, computed on this device."""
        if self.settings.recorded is None:
            raise LeftOut("no folder with recorded outputs was given (--recorded)")
        findings = list(parity.check(Path(self.settings.recorded), tolerance=parity.TOLERANCE))
        return {"findings": [asdict(finding) for finding in findings]}

    def pytorch(self, found: Mapping[str, Record]) -> Record:
        """Every module's output and greedy tokens, beside those of PyTorch on the CPU."""
        if lacking := comparison.missing():
            raise LeftOut(f"{' and '.join(lacking)} not installed: {comparison.EXTRA}")
        if self.engine.is_int8:
            raise LeftOut("int8 kernels differ from PyTorch's on purpose; --recorded has bounds for them")
        ours, config = side.Ours(self.engine.sampler), self.engine.config
        request = side.Request(side="pytorch", folder=str(self.folder), dtype=self.engine.dtype, numbers=NUMBERS)
        theirs, outputs = side.ask(request, environment=comparison.ON_CPU, limit=self.settings.limit)
        ids = side.numbers_input(config, NUMBERS)
        differences = comparison.differences(ours.outputs(ids, side.output_names(config)), outputs)
        greedy = np.asarray(side.greedy_answers(ours, config)) == np.asarray(theirs["greedy"])
        return {
            "differences": [asdict(each) for each in differences],
            "tolerance": comparison.TOLERANCES[self.engine.dtype],
            "greedy_agreement": float(greedy.mean()),
            "torch": theirs["about"]["torch"],
        }

    def quality(self, found: Mapping[str, Record]) -> Record:
        """How many small functions pass their tests, decoded greedily."""
        try:
            tier = choose_tier("auto")
        except SandboxUnavailableError as error:
            raise LeftOut(str(error)) from error
        options = GenerationOptions(max_new_tokens=TASK_TOKENS, temperature=0.0)
        problems = held_out_problems(self.settings.tasks)
        batch_size = min(TASK_BATCH, len(problems))
        evaluator = Evaluator(engine=self.engine, executor=Local(tier), options=options, batch_size=batch_size)
        attempts = list(evaluator.attempts(problems))
        return {
            "tasks": len(attempts),
            "passed": sum(attempt.passed for attempt in attempts),
            "tier": tier,
            "attempts": [
                {"name": a.problem.name, "outcome": a.outcome, "program": a.program, "detail": a.detail}
                for a in attempts
            ],
        }

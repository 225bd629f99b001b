"""The steps of the accelerator experiment: each measures one thing on this machine.

Entry: `diffucoder experiment`. What a step finds is a dataclass of `measurements`, what becomes of it is
`experiment_report`; that a killed run goes on, and that a failed step stops no other, is `reports.steps`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jax_lm.benchmark import comparison, measurements
from jax_lm.benchmark.backend import JaxBackend
from jax_lm.benchmark.machine import Machine, PeakMemory, device_memory, machine_limits
from jax_lm.benchmark.measurements import Measurement, Measurements
from jax_lm.benchmark.parity import TOLERANCE, check_parity
from jax_lm.benchmark.records import plain_data
from jax_lm.benchmark.settings import Cell, ExperimentSettings
from jax_lm.benchmark.speed import time_generation
from jax_lm.benchmark.timer import time_call, without_stored_compilations
from jax_lm.benchmark.worker import WorkerRequest, WorkerResult, compared_outputs, run_worker
from jax_lm.conversion.verify import verify
from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import held_out_problems
from jax_lm.inference import INT8, DiffuCoderInference
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import OutOfMemoryError, device_bytes, explained, forward_cost
from jax_lm.reports.steps import LeftOut, Step
from jax_lm.results import DecodedBatch
from jax_lm.templates import Template
from untrusted import Local
from untrusted.runner import choose_tier
from untrusted.tiers import SandboxUnavailableError

PROMPTS = ("def fibonacci(n):", "def is_prime(n):", "def reverse_string(text):", "def largest(values):")
PUBLISHED_TEMPERATURE = 0.2
FORWARD_TOKENS = 128
STRESS_TOKENS, TASK_TOKENS, TASK_BATCH = 32, 144, 10
CPU_CELL = Cell(batch=1, prompt_tokens=32, new_tokens=8)
"""What is also run on the CPU: little, as a large model is slow there."""


def kept_step(kind: type[Measurement], title: str, measure: Callable[..., Measurement], *case: int | str) -> Step:
    """Make a step that keeps what it measures as plain data; it may be one of several cases, such as sizes."""
    name = " ".join((kind.step, *map(str, case)))
    return Step(name, title, lambda found: plain_data(measure(*case, Measurements(found))))


def measured_environment(dtype: str) -> measurements.Environment:
    """Describe devices and versions, and measure the machine's limits with operands of that dtype."""
    return measurements.Environment(
        about=Machine.here(),
        device_bytes=device_memory().get("bytes_limit"),
        limits=machine_limits(dtype),
        limits_dtype=dtype,
        peak_memory=PeakMemory().source,
    )


class ExperimentSteps:
    """The steps, on one checkpoint in the Hugging Face or Orbax layout."""

    def __init__(self, folder: Path, settings: ExperimentSettings) -> None:
        self.folder, self.settings = folder, settings

    def steps(self) -> list[Step]:
        """List all of them in their order."""
        sizes = [2**power for power in range(self.settings.largest_batch.bit_length())]
        return [
            kept_step(measurements.Environment, "Environment and devices", self.environment),
            kept_step(measurements.Verification, "Checkpoint present and verified", self.verification),
            kept_step(measurements.Loading, "Loading", self.loading),
            kept_step(measurements.SinglePrompt, "One prompt, first and later calls", self.single),
            kept_step(measurements.ForwardPasses, "Forward passes by batch", self.forward),
            kept_step(measurements.FourPrompts, "Four prompts together", self.batch),
            *(kept_step(measurements.Stress, f"Stress: batch {size}", self.stress, size) for size in sizes),
            kept_step(measurements.CpuComparison, "The same on the CPU", self.cpu),
            kept_step(measurements.RecordedParity, "Parity with recorded outputs", self.recorded),
            kept_step(measurements.TorchParity, "Parity with PyTorch", self.pytorch),
            kept_step(measurements.Quality, "Quality: built-in tasks in the sandbox", self.quality),
        ]

    @cached_property
    def engine(self) -> DiffuCoderInference:
        """The model, loaded by the first step that needs it."""
        return DiffuCoderInference(self.settings.model, dtype=self.settings.dtype, verbose=False)

    @property
    def dtype(self) -> str:
        """How the weights are kept."""
        return INT8 if self.engine.is_int8 else self.engine.dtype

    def run_on_cpu(self, backend: Literal["jax", "pytorch"], **what: Any) -> tuple[WorkerResult, dict[str, np.ndarray]]:
        """Have a backend measured in a process that sees no accelerator."""
        request = WorkerRequest(backend=backend, folder=str(self.folder), dtype=self.dtype, repeats=1, **what)
        return run_worker(request, environment=comparison.ON_CPU, limit=self.settings.timeout)

    def decode(self, prompts: Sequence[str], tokens: int, temperature: float = 0.0) -> DecodedBatch:
        """Decode answers of full length, so that every batch is the same work."""
        options = GenerationOptions(max_new_tokens=tokens, temperature=temperature, early_stop=False)
        return self.engine.decode([Template.completion(prompt, tokens) for prompt in prompts], options)

    def environment(self, found: Measurements) -> measurements.Environment:
        """Describe devices and versions, and measure the machine's limits."""
        return measured_environment("bfloat16" if self.settings.dtype == INT8 else self.settings.dtype or "float32")

    def verification(self, found: Measurements) -> measurements.Verification:
        """Verify the checkpoint."""
        checks = tuple(verify(self.folder))
        return measurements.Verification(checks=checks, passed=all(check.passed for check in checks))

    def loading(self, found: Measurements) -> measurements.Loading:
        """Load the model."""
        engine = self.engine
        return measurements.Loading(
            seconds=engine.load_seconds,
            described=engine.describe(),
            parameters=engine.parameter_count,
            dtype=self.dtype,
            mesh=str(engine.mesh_shape),
            weights_bytes=device_bytes(engine.config, engine.job(batch=1, canvas=1), engine.mesh_shape),
            peak_bytes=PeakMemory().read(),
        )

    def single(self, found: Measurements) -> measurements.SinglePrompt:
        """Complete one prompt with the published settings, again and again."""
        tokens, texts = self.settings.new_tokens, []

        def complete() -> DecodedBatch:
            answer = self.decode(PROMPTS[:1], tokens, PUBLISHED_TEMPERATURE)
            texts.append(answer.rows[0].text)
            return answer

        with without_stored_compilations():
            timing = time_call(complete, self.settings.repeats)
        return measurements.SinglePrompt(
            prompt=PROMPTS[0],
            text=texts[0],
            same_text=len(set(texts)) == 1,
            new_tokens=tokens,
            first_seconds=timing.first_seconds,
            seconds=timing.seconds,
            tokens_per_second=tokens / timing.seconds,
            forwards=timing.result.forwards,
            recompilations=timing.recompilations,
            peak_bytes=PeakMemory().read(),
        )

    def forward(self, found: Measurements) -> measurements.ForwardPasses:
        """Time forward passes with the logits of every position, beside the roofline of the measured limits."""
        width = min(FORWARD_TOKENS, self.engine.config.max_position_embeddings)
        rows: list[measurements.ForwardBatch] = []
        for batch in self.settings.batch_sizes:
            rows.append(self.forward_batch(batch, width, found.get(measurements.Environment)))
            if rows[-1].out_of_memory:
                break
        return measurements.ForwardPasses(width=width, rows=tuple(rows))

    def forward_batch(
        self, batch: int, width: int, environment: measurements.Environment | None
    ) -> measurements.ForwardBatch:
        """Time forward passes of one batch size; memory that ends is a result."""
        engine = self.engine
        try:
            with explained(engine.config, engine.job(batch=batch, canvas=width), engine.mesh_shape):
                [figures] = engine.benchmark_inference((batch,), width, 3 * self.settings.repeats).values()
        except OutOfMemoryError as error:
            return measurements.ForwardBatch(batch=batch, out_of_memory=str(error))
        seconds = figures["avg_time_seconds"]
        time = measurements.ForwardBatch(batch=batch, seconds=seconds, tokens_per_second=batch * width / seconds)
        if environment is None:
            return time
        cost = forward_cost(engine.config, self.dtype, batch=batch, rows=width, canvas=width, head_rows=width)
        reached = cost.seconds(environment.limits) / seconds / engine.mesh_shape.size
        return replace(time, roofline=reached, limit=cost.limit(environment.limits))

    def batch(self, found: Measurements) -> measurements.FourPrompts:
        """Decode four prompts together and one by one, greedily: the answers must be the same."""
        tokens = self.settings.new_tokens
        together = time_call(lambda: self.decode(PROMPTS, tokens), 1)
        alone = [time_call(partial(self.decode, [prompt], tokens), 1) for prompt in PROMPTS]
        texts = [row.text for row in together.result.rows]
        return measurements.FourPrompts(
            seconds=together.seconds,
            tokens_per_second=len(PROMPTS) * tokens / together.seconds,
            alone_seconds=sum(timing.seconds for timing in alone),
            equal=sum(timing.result.rows[0].text == text for timing, text in zip(alone, texts, strict=True)),
            texts=dict(zip(PROMPTS, texts, strict=True)),
        )

    def stress(self, size: int, found: Measurements) -> measurements.Stress:
        """Decode so many rows; memory that ends is a result, and larger batches are left out."""
        before = found.get(measurements.Stress, f"stress {size // 2}")
        if size > 1 and not (before and before.fits):
            raise LeftOut(f"batch {size // 2} did not run")
        prompts = [PROMPTS[row % len(PROMPTS)] for row in range(size)]
        try:
            seconds = time_call(lambda: self.decode(prompts, STRESS_TOKENS), 1).seconds
        except OutOfMemoryError as error:
            return measurements.Stress(size=size, fits=False, reason=str(error))
        rate, peak = size * STRESS_TOKENS / seconds, PeakMemory().read()
        return measurements.Stress(size=size, fits=True, seconds=seconds, tokens_per_second=rate, peak_bytes=peak)

    def cpu(self, found: Measurements) -> measurements.CpuComparison:
        """Time a short generation here, and in a process that sees no accelerator."""
        if jax.default_backend() == "cpu":
            raise LeftOut("the device is the CPU")
        backend = JaxBackend(self.engine.sampler)
        here = time_generation(backend, CPU_CELL, self.settings.repeats, with_forward=True)
        result, _ = self.run_on_cpu("jax", cells=(CPU_CELL,))
        [there] = result.cells
        return measurements.CpuComparison(here=here, cpu=there, ratio=there.seconds / here.seconds)

    def recorded(self, found: Measurements) -> measurements.RecordedParity:
        """Check recorded outputs on this device."""
        if self.settings.recorded is None:
            raise LeftOut("no folder with recorded outputs was given (--recorded)")
        return measurements.RecordedParity(findings=tuple(check_parity(self.settings.recorded, tolerance=TOLERANCE)))

    def pytorch(self, found: Measurements) -> measurements.TorchParity:
        """Compare every module's output and greedy tokens with those of PyTorch on the CPU."""
        if lacking := comparison.missing_packages():
            raise LeftOut(f"{' and '.join(lacking)} not installed: {comparison.EXTRA}")
        if self.engine.is_int8:
            raise LeftOut("int8 kernels differ from PyTorch's on purpose; --recorded has bounds for them")
        theirs, outputs = self.run_on_cpu("pytorch", numbers=comparison.NUMBERS)
        ours, greedy = compared_outputs(JaxBackend(self.engine.sampler), comparison.NUMBERS)
        return measurements.TorchParity(
            differences=comparison.find_differences(ours, outputs),
            tolerance=comparison.TOLERANCES[self.dtype],
            greedy_agreement=comparison.equal_share(greedy, theirs.greedy),
            torch=theirs.packages["torch"],
        )

    def quality(self, found: Measurements) -> measurements.Quality:
        """Execute small functions that the model writes, decoded greedily."""
        try:
            tier = choose_tier("auto")
        except SandboxUnavailableError as error:
            raise LeftOut(str(error)) from error
        options = GenerationOptions(max_new_tokens=TASK_TOKENS, temperature=0.0)
        problems = held_out_problems(self.settings.tasks)
        size = min(TASK_BATCH, len(problems))
        evaluator = Evaluator(engine=self.engine, executor=Local(tier), options=options, batch_size=size)
        attempts = list(evaluator.attempts(problems))
        return measurements.Quality(
            tasks=len(attempts),
            passed=sum(attempt.passed for attempt in attempts),
            tier=tier,
            attempts=tuple(
                measurements.TaskAttempt(
                    name=each.problem.name, outcome=each.outcome, program=each.program, detail=each.detail
                )
                for each in attempts
            ),
        )

"""The steps of the accelerator experiment: each measures one thing and returns a row.

Entry command: `diffucoder experiment`. `experiment_report` makes the report. `reports.steps`
resumes a run that was killed, and continues after a failed step.
"""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import jax

from jax_lm.benchmark import comparison
from jax_lm.benchmark.backend import JaxBackend
from jax_lm.benchmark.machine import PeakMemory, about, machine_limits
from jax_lm.benchmark.parity import check_parity
from jax_lm.benchmark.settings import TOLERANCE, Cell, ExperimentSettings
from jax_lm.benchmark.speed import time_generation
from jax_lm.benchmark.timer import time_call, without_stored_compilations
from jax_lm.benchmark.worker import Measured, WorkerRequest, outputs_to_compare, run_worker
from jax_lm.conversion.verify import verify
from jax_lm.evaluation.attempts import Evaluator
from jax_lm.evaluation.problems import load_held_out_problems
from jax_lm.host.memory import device_memory
from jax_lm.inference import DiffuCoderInference, fitting_dtype
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.planning.memory import (
    OutOfMemoryError,
    device_bytes,
    explain_out_of_memory,
    forward_cost,
    parameter_count,
)
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.steps import LeftOut, Rows, Step
from jax_lm.reports.tables import Row
from jax_lm.results import DecodedBatch
from jax_lm.templates import Template
from untrusted import Local
from untrusted.runner import choose_tier
from untrusted.tiers import SandboxUnavailableError

PROMPTS = (
    "def fibonacci(n):",
    "def is_prime(n):",
    "def reverse_string(text):",
    "def largest(values):",
)
# Sampling temperature of the published settings.
PUBLISHED_TEMPERATURE = 0.2
# Tokens of a row of the forward passes, of an answer of the stress test, and of a built-in task.
FORWARD_TOKENS = 128
STRESS_TOKENS = 32
TASK_TOKENS = 144
# Built-in tasks decoded together.
TASK_BATCH = 10
# What the row of a step keeps of each attempt.
ATTEMPT_VALUES = ("name", "outcome", "program", "detail")
# The generation that is also timed on the CPU; short, because a large model is slow there.
CPU_CELL = Cell(batch=1, prompt_tokens=32, new_tokens=8)


def measure_environment(dtype: str) -> Row:
    """Describe devices and versions, and measure the machine's limits with operands of `dtype`."""
    return {
        "about": about(),
        "device_bytes": device_memory().get("bytes_limit"),
        "limits": asdict(machine_limits(dtype)),
        "limits_dtype": dtype,
        "peak_memory": PeakMemory().source,
    }


@contextmanager
def note_out_of_memory(row: Row) -> Iterator[None]:
    """If something does not fit into memory, record the reason as `out_of_memory` of the row."""
    try:
        yield
    except OutOfMemoryError as error:
        row["out_of_memory"] = str(error)


@dataclass
class ExperimentSteps:
    """The steps, on one checkpoint in the Hugging Face or Orbax layout."""

    folder: Path
    settings: ExperimentSettings

    def steps(self) -> list[Step]:
        """Return all steps in their order."""
        # largest_batch = 32 -> 1, 2, 4, 8, 16, 32
        sizes = [2**power for power in range(self.settings.largest_batch.bit_length())]
        return [
            Step("environment", "Environment and devices", self.environment),
            Step("checkpoint", "Checkpoint present and verified", self.checkpoint),
            Step("loading", "Loading", self.loading),
            Step("single", "One prompt, first and later calls", self.single),
            Step("forward", "Forward passes by batch", self.forward),
            Step("batch", "Four prompts together", self.batch),
            *(
                Step(f"stress {size}", f"Stress: batch {size}", partial(self.stress, size))
                for size in sizes
            ),
            Step("cpu", "The same on the CPU", self.cpu),
            Step("recorded", "Parity with recorded outputs", self.recorded),
            Step("pytorch", "Parity with PyTorch", self.pytorch),
            Step("quality", "Quality: built-in tasks in the sandbox", self.quality),
        ]

    @cached_property
    def engine(self) -> DiffuCoderInference:
        """The model, loaded by the first step that needs it."""
        return DiffuCoderInference(self.settings.model, dtype=self.settings.dtype, verbose=False)

    def run_on_cpu(self, backend: Literal["jax", "pytorch"], **what) -> Measured:
        """Measure a backend in a process without an accelerator, on weights of the same dtype."""
        what |= {"dtype": self.engine.precision, "platform": "cpu", "repeats": 1}
        return run_worker(
            WorkerRequest(backend=backend, folder=self.folder, **what), limit=self.settings.timeout
        )

    def decode(self, prompts: Sequence[str], tokens: int, temperature: float = 0.0) -> DecodedBatch:
        """Decode answers of full length, so that equal batches are the same amount of work."""
        return self.engine.decode(
            [Template.completion(prompt, tokens) for prompt in prompts],
            GenerationOptions(max_new_tokens=tokens, temperature=temperature, early_stop=False),
        )

    def environment(self, done: Rows) -> Row:
        """Describe devices and versions, and measure the machine's limits."""
        count = parameter_count(DreamForCausalLM.read_config(self.folder))
        dtype = self.settings.dtype or fitting_dtype(count)
        return measure_environment("bfloat16" if dtype == "int8" else dtype)

    def checkpoint(self, done: Rows) -> Row:
        """Verify the checkpoint, as `diffucoder verify` does."""
        checks = [asdict(check) for check in verify(self.folder)]
        return {"checks": checks, "passed": all(check["passed"] for check in checks)}

    def loading(self, done: Rows) -> Row:
        """Load the model; measure time and memory."""
        engine = self.engine
        return {
            "seconds": engine.load_seconds,
            "described": engine.describe(),
            "parameters": engine.parameter_count,
            "dtype": engine.precision,
            "mesh": str(engine.planned.mesh),
            "weights_bytes": device_bytes(engine.planned),
            "peak_bytes": PeakMemory().read(),
        }

    def single(self, done: Rows) -> Row:
        """Complete one prompt several times with the published settings.

        The first call compiles, later ones must not.
        """
        tokens = self.settings.new_tokens
        texts = []

        def complete():
            answer = self.decode(PROMPTS[:1], tokens, PUBLISHED_TEMPERATURE)
            texts.append(answer.rows[0].text)
            return answer

        # The first call should show the time of compilation, so it must not use the disk cache.
        with without_stored_compilations():
            timing = time_call(complete, self.settings.repeats)
        return {
            "prompt": PROMPTS[0],
            "text": texts[0],
            "same_text": len(set(texts)) == 1,
            "new_tokens": tokens,
            **timing.row,
            "tokens_per_second": tokens / timing.seconds,
            "forwards": timing.result.forwards,
            "peak_bytes": PeakMemory().read(),
        }

    def forward(self, done: Rows) -> Row:
        """Time forward passes with the logits of every position, by batch size.

        `roofline` is the share of the measured limits that they reach, if the limits are known.
        """
        engine = self.engine
        rows = []
        width = min(FORWARD_TOKENS, engine.config.max_position_embeddings)
        for batch in sorted(set(self.settings.batch_sizes)):
            row: Row = {"batch": batch}
            rows.append(row)
            planned = engine.job(batch=batch, canvas=width)
            with note_out_of_memory(row), explain_out_of_memory(planned):
                [figures] = engine.benchmark_inference(
                    (batch,), width, 3 * self.settings.repeats
                ).values()
                row["seconds"] = figures["avg_time_seconds"]
                row["tokens_per_second"] = figures["throughput_tokens_per_second"]
            # A larger batch would not fit either.
            if "out_of_memory" in row:
                break
            if "environment" in done:
                limits = MachineLimits(**done["environment"]["limits"])
                cost = forward_cost(
                    engine.config,
                    engine.precision,
                    batch=batch,
                    rows=width,
                    canvas=width,
                    head_rows=width,
                )
                # The limits are those of one device, the work is shared by all of the mesh.
                row["roofline"] = cost.seconds(limits) / row["seconds"] / engine.planned.mesh.size
                row["limit"] = cost.limit(limits)
        return {"width": width, "rows": rows}

    def batch(self, done: Rows) -> Row:
        """Decode four prompts together and one by one, greedily; the answers must be the same."""
        tokens = self.settings.new_tokens
        together = time_call(lambda: self.decode(PROMPTS, tokens), 1)
        alone = [time_call(partial(self.decode, [prompt], tokens), 1) for prompt in PROMPTS]
        texts = [row.text for row in together.result.rows]
        alone_texts = [timing.result.rows[0].text for timing in alone]
        return {
            "seconds": together.seconds,
            "tokens_per_second": len(PROMPTS) * tokens / together.seconds,
            "alone_seconds": sum(timing.seconds for timing in alone),
            "equal": sum(map(operator.eq, texts, alone_texts)),
            "texts": dict(zip(PROMPTS, texts, strict=True)),
        }

    def stress(self, size: int, done: Rows) -> Row:
        """Decode a batch of this size.

        Running out of memory is a result; larger batches are then skipped.
        """
        # Only if half of this size has run.
        if size > 1 and "seconds" not in done.get(f"stress {size // 2}", {}):
            raise LeftOut(f"batch {size // 2} did not run")
        prompts = [PROMPTS[index % len(PROMPTS)] for index in range(size)]
        row: Row = {"size": size}
        with note_out_of_memory(row):
            row["seconds"] = time_call(lambda: self.decode(prompts, STRESS_TOKENS), 1).seconds
            row["tokens_per_second"] = size * STRESS_TOKENS / row["seconds"]
            row["peak_bytes"] = PeakMemory().read()
        return row

    def cpu(self, done: Rows) -> Row:
        """Time a short generation here, and in a process without an accelerator.

        `ratio` is the CPU's time over the time here.
        """
        if jax.default_backend() == "cpu":
            raise LeftOut("the device is the CPU")
        here = time_generation(
            JaxBackend(self.engine.sampler), CPU_CELL, self.settings.repeats, with_forward=True
        )
        result, _ = self.run_on_cpu("jax", cells=(CPU_CELL,))
        [there] = result["cells"]
        return {"here": here, "cpu": there, "ratio": there["seconds"] / here["seconds"]}

    def recorded(self, done: Rows) -> Row:
        """Repeat the recorded computations on this device, and compare the outputs."""
        if self.settings.recorded is None:
            raise LeftOut("no folder with recorded outputs was given (--recorded)")
        return {
            "findings": [
                asdict(each) for each in check_parity(self.settings.recorded, tolerance=TOLERANCE)
            ]
        }

    def pytorch(self, done: Rows) -> Row:
        """Compare the outputs of every module, and greedy tokens, with PyTorch's on the CPU."""
        if lacking := comparison.missing_packages():
            raise LeftOut(f"{' and '.join(lacking)} not installed: {comparison.EXTRA}")
        engine = self.engine
        if engine.quantization:
            raise LeftOut(
                "int8 kernels differ from PyTorch's on purpose; --recorded has bounds for them"
            )
        try:
            comparison.require_dream(engine.config)
        except ValueError as error:
            raise LeftOut(str(error)) from error
        theirs, outputs = self.run_on_cpu("pytorch", compares=True)
        # Loaded again: on a GPU, the engine has joined the layers whose outputs are compared.
        ours, greedy = outputs_to_compare(JaxBackend.load(self.folder, engine.precision))
        return {
            "differences": comparison.find_differences(ours, outputs),
            "tolerance": comparison.TOLERANCES[engine.precision],
            "greedy_agreement": comparison.equal_share(greedy, theirs["greedy"]),
            "torch": theirs["packages"]["torch"],
        }

    def quality(self, done: Rows) -> Row:
        """Run, in the sandbox, small functions that the model writes (greedy decoding)."""
        try:
            tier = choose_tier("auto")
        except SandboxUnavailableError as error:
            raise LeftOut(str(error)) from error
        options = GenerationOptions(max_new_tokens=TASK_TOKENS, temperature=0.0)
        problems = load_held_out_problems(self.settings.tasks)
        evaluator = Evaluator(
            engine=self.engine,
            executor=Local(tier),
            options=options,
            batch_size=min(TASK_BATCH, len(problems)),
        )
        attempts = list(evaluator.attempts(problems))
        return {
            "tasks": len(attempts),
            "passed": sum(attempt.passed for attempt in attempts),
            "tier": tier,
            "attempts": [
                {name: attempt.record()[name] for name in ATTEMPT_VALUES} for attempt in attempts
            ],
        }

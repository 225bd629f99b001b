"""Measure this machine at full size, on random weights.

    python experiments/full_size.py --out full
    python experiments/full_size.py --random-shape small --rows 1 4 --clients 1 4 --out small

Times decoding by preset and batch, forward passes next to their bound, training updates, sequences
in the server's slots, and PyTorch. Speed does not depend on the values of the weights, except with
commits by probability. The report is that of `diffucoder experiment`, with criteria of its own. No
step begins after `--minutes`: those that are left out then are run by the same command, repeated.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from operator import le
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jaxtyping import Array

from jax_lm.benchmark import comparison
from jax_lm.benchmark.backend import JaxBackend, random_canvas, random_model, random_prompts
from jax_lm.benchmark.experiment import measure_environment, note_out_of_memory
from jax_lm.benchmark.experiment_report import (
    DEFECT,
    ON_ACCELERATOR,
    Criterion,
    Sections,
    chart_section,
    judge_memory,
    judge_value,
)
from jax_lm.benchmark.machine import PeakMemory
from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.speed import time_and_memory, time_forwards
from jax_lm.benchmark.timer import time_call
from jax_lm.benchmark.worker import WorkerRequest, run_worker
from jax_lm.cli.commands.benchmark import run_steps
from jax_lm.compilation.programs import StepProgram, step_programs
from jax_lm.config import SHAPES
from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import run_main
from jax_lm.models.joined import join_on_gpu
from jax_lm.options import (
    BLOCK_LENGTH,
    PRESETS,
    Decoding,
    GenerationOptions,
    require_above_zero,
    require_sizes,
)
from jax_lm.planning.memory import PlannedStep, device_bytes, explain_out_of_memory, parameter_count
from jax_lm.planning.roofline import MachineLimits
from jax_lm.reports.steps import LeftOut, Rows, Step
from jax_lm.reports.tables import Row, table_section
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots
from jax_lm.serving.worker import STEPS_PER_CALL
from jax_lm.sharding import MeshShape
from jax_lm.training.rollout_source import PolicyBatch

LORA_RANK = 16
# Training updates: of all weights, of adapters, and of adapters on int8 kernels.
UPDATES: dict[str, dict[str, Any]] = {
    "sft": {"kind": "sft"},
    "sft-lora": {"kind": "sft", "lora_rank": LORA_RANK},
    "sft-qlora": {"kind": "sft", "lora_rank": LORA_RANK, "precision": "int8"},
    "grpo": {"kind": "grpo"},
    "grpo-lora": {"kind": "grpo", "lora_rank": LORA_RANK},
}

# Requests of each client, sent one after the other.
EACH_CLIENT = 2
# Share of the roofline that counts as near: 12 ms where 512 rows of 7B take 8.9 ms at least, 4.4 ms
# where a block takes 3.3.
NEAR = 0.75


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the machine at full size with random weights.

    Attributes:
        out: folder for steps.jsonl, results.json, report.md, report.html and the charts.
        random_shape: shape of the weights: 7b (the published shape) or small (its vocabulary, 8
            layers of width 512).
        dtype: dtype of the weights.
        canvas: tokens of a row, prompt and answer.
        new_tokens: length of the answers.
        rows: batch sizes: rows decoded together.
        clients: numbers of clients of the server, each with one request at a time.
        training_rows: rows of a training update.
        repeats: timed calls per measurement.
        timeout: seconds that PyTorch may take.
        minutes: time after which no step begins.
    """

    out: Path
    random_shape: Literal["small", "7b"] = "7b"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    canvas: int = 512
    new_tokens: int = 64
    rows: tuple[int, ...] = (1, 4, 16, 64)
    clients: tuple[int, ...] = (1, 16, 64)
    training_rows: int = 8
    repeats: int = 3
    timeout: float = 600.0
    minutes: float = 8.0

    def __post_init__(self) -> None:
        require_sizes(self, "canvas", "new_tokens", "rows", "clients", "training_rows", "repeats")
        require_above_zero(self, "timeout")
        if not self.new_tokens < self.canvas:
            raise ValueError(
                f"new_tokens={self.new_tokens}: must be less than canvas={self.canvas}"
            )
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes:g}: must be positive")


class FullSizeSteps:
    """The steps, on random weights."""

    def __init__(self, settings: Arguments) -> None:
        self.settings, self.config = settings, SHAPES[settings.random_shape]
        self.dtype, self.new_tokens = settings.dtype, settings.new_tokens
        self.begun: float | None = None
        self.mesh_shape = MeshShape.for_generation(self.config, len(jax.devices()))

    def steps(self) -> list[Step]:
        """Return all steps, the most wanted first."""
        # The last steps may not run: none begins after the time of the run has passed.
        sizes, clients = self.settings.rows, self.settings.clients
        decoded = itertools.product(sizes, PRESETS)
        all_steps: list[tuple[str, str, Callable[[Rows], Row]]] = [
            ("environment", "Environment and devices", self.environment),
            ("weights", "Random weights", self.weights),
            *((f"passes {size}", f"Forward passes, batch {size}", partial(self.passes, size)) for size in sizes),
            *(
                (f"decoding {preset} {size}", f"Decoding, {preset}, batch {size}",
                 partial(self.decoding, preset, size))
                for size, preset in decoded
            ),
            *((f"serving {count}", f"Serving, {count} clients", partial(self.serving, count)) for count in clients),
            ("torch", "PyTorch on this device", self.torch),
            *((f"training {name}", f"Training, {name}", partial(self.training, name)) for name in UPDATES),
        ]  # fmt: skip
        return [
            Step(name, title, partial(self.within_minutes, action))
            for name, title, action in all_steps
        ]

    def within_minutes(self, action: Callable[[Rows], Row], done: Rows) -> Row:
        """Run the action of a step, unless the time of this run has passed.

        At least one step runs, or repeating a run of no time would never end.
        """
        if self.begun is None:
            self.begun = time.perf_counter()
        elif time.perf_counter() - self.begun > 60 * self.settings.minutes:
            raise LeftOut("no time was left: the same command runs it")
        return action(done)

    def planned(self, **others: Any) -> PlannedStep:
        """Return a planned step of this size, of one row unless `others` has a batch."""
        size = {
            "precision": self.dtype,
            "canvas": self.settings.canvas,
            "new_tokens": self.new_tokens,
            "mesh": self.mesh_shape,
        }
        return PlannedStep(self.config, **size | others)

    def cell(self, preset: str, batch: int) -> Cell:
        """Return a generation of this size."""
        prompt_tokens = self.settings.canvas - self.new_tokens
        return Cell(
            preset=preset, batch=batch, prompt_tokens=prompt_tokens, new_tokens=self.new_tokens
        )

    @cached_property
    def sampler(self) -> Sampler:
        """The model; the first step that needs it builds it."""
        mesh = self.mesh_shape.mesh() if self.mesh_shape.size > 1 else None
        sampler = Sampler(join_on_gpu(random_model(self.config, self.dtype, mesh=mesh)))
        jax.block_until_ready(sampler.params)
        return sampler

    @contextmanager
    def note_out_of_memory(self, row: Row, planned: PlannedStep) -> Iterator[None]:
        """Write to the row why a planned step does not fit, if it does not."""
        with note_out_of_memory(row), explain_out_of_memory(planned):
            yield

    def environment(self, done: Rows) -> Row:
        """Describe devices and versions, and measure the machine's limits."""
        return measure_environment(self.dtype)

    def weights(self, done: Rows) -> Row:
        """Build the weights, and measure their time and memory."""
        start = time.perf_counter()
        # The first access builds the model.
        assert self.sampler
        return {
            "shape": self.settings.random_shape,
            "parameters": parameter_count(self.config),
            "dtype": self.dtype,
            "mesh": str(self.mesh_shape),
            "seconds": time.perf_counter() - start,
            "weights_bytes": device_bytes(self.planned()),
            "peak_bytes": PeakMemory().read(),
        }

    def passes(self, batch: int, done: Rows) -> Row:
        """Time a forward pass and a step, by the rows that they recompute.

        They stand next to the bound that follows from the measured limits.
        """
        if "environment" not in done:
            raise LeftOut("the machine's limits are not known")
        limits = MachineLimits(**done["environment"]["limits"])
        row: Row = {"batch": batch}
        canvas = random_canvas(self.config, self.cell("exact", batch), seed=0)
        with self.note_out_of_memory(row, self.planned(batch=batch)):
            row["rows"] = time_forwards(self.sampler, canvas, limits, repeats=self.settings.repeats)
        return row

    def decoding(self, preset: str, batch: int, done: Rows) -> Row:
        """Decode with the published settings of a preset."""
        row: Row = {"preset": preset, "batch": batch}
        with self.note_out_of_memory(row, self.planned(batch=batch)):
            row |= time_and_memory(
                JaxBackend(self.sampler), self.cell(preset, batch), self.settings.repeats
            )
            row["seconds_per_forward"] = row["seconds"] / row["forwards"]
        return row

    def serving(self, clients: int, done: Rows) -> Row:
        """Serve clients that send a request as soon as their last one is answered.

        This is the engine's work without texts and HTTP.
        """
        row: Row = {"clients": clients}
        # The slots are one block wider than the canvas.
        width, count = self.settings.canvas + BLOCK_LENGTH, EACH_CLIENT * clients
        with self.note_out_of_memory(row, self.planned(batch=clients)):
            slots = Slots(
                self.sampler, width, is_cached=True, count=clients, sizes=(clients,), stop_ids=()
            )
            # One request first, which compiles.
            answer(slots, [self.request(0)])
            start = time.perf_counter()
            seconds = answer(slots, [self.request(number + 1) for number in range(count)])
            row |= {
                "requests": count,
                "tokens_per_second": count * self.new_tokens / (time.perf_counter() - start),
                "median_seconds": float(np.median(seconds)),
                "longest_seconds": max(seconds),
            }
        return row

    def request(self, number: int) -> Sequence:
        """Return a request with a random prompt of its own."""
        canvas, new_tokens = self.settings.canvas, self.new_tokens
        prompt = random_prompts(self.config, 1, canvas - new_tokens, seed=number)[0]
        return Sequence(
            # The prompt, then a hole of new tokens.
            tokens=np.concatenate([prompt, np.zeros(new_tokens, np.int32)]),
            hole=Block(canvas - new_tokens, canvas),
            options=GenerationOptions(
                max_new_tokens=new_tokens, decoding=Decoding(preset="fast"), early_stop=False
            ),
            stop_ids=(),
            key=np.asarray(jax.random.key_data(jax.random.key(number))),
        )

    def torch(self, done: Rows) -> Row:
        """Decode one row with PyTorch on the same kind of device, with the same weights.

        PyTorch runs in its own process. `exact` is compared with the published loop, `fast` with
        Fast-dLLM's dual cache.
        """
        if lacking := comparison.missing_packages():
            raise LeftOut(f"{' and '.join(lacking)} not installed: {comparison.EXTRA}")
        platform = jax.default_backend()
        if platform not in ("cpu", "gpu") or self.mesh_shape.size > 1:
            raise LeftOut("PyTorch is run on a CPU or on one GPU")
        cells = (self.cell("exact", 1), self.cell("fast", 1))
        with tempfile.TemporaryDirectory() as folder:
            random_model(self.config, self.dtype).save_pretrained(folder)
            request = WorkerRequest(
                backend="pytorch",
                folder=Path(folder),
                dtype=self.dtype,
                device="cuda" if platform == "gpu" else "cpu",
                platform="cpu",
                # Decodes as published, and like Fast-dLLM if the preset has a cache.
                torch_backend="experiments.fast_dllm:TorchLoops",
                cells=cells,
                repeats=1,
            )
            result, _ = run_worker(request, limit=self.settings.timeout)
        rows = []
        for theirs in result["cells"]:
            row = {"preset": theirs["preset"], "torch_seconds": theirs["seconds"]}
            if ours := done.get(f"decoding {theirs['preset']} 1", {}).get("seconds"):
                row |= {"seconds": ours, "times": theirs["seconds"] / ours}
            rows.append(row)
        return {"torch": result["packages"]["torch"], "device": result["device"], "rows": rows}

    def training(self, name: str, done: Rows) -> Row:
        """Take training updates on all devices."""
        # Drop the sampler's model: two models would not fit where one does.
        self.__dict__.pop("sampler", None)
        planned = self.planned(batch=self.settings.training_rows, **UPDATES[name])
        mesh = planned.default_mesh(self.config, len(jax.devices()))
        row: Row = {"name": name, "rows": planned.batch, "mesh": str(mesh)}
        memory = PeakMemory()
        memory.start()
        with self.note_out_of_memory(row, replace(planned, mesh=mesh)):
            [program] = step_programs(planned, mesh.mesh(), GenerationOptions()).values()
            timing = time_call(update_call(program, self.config.vocab_size), self.settings.repeats)
            row |= {
                "first_seconds": timing.row["first_seconds"],
                "seconds": timing.seconds,
                "tokens_per_second": planned.batch * planned.canvas / timing.seconds,
                "peak_bytes": memory.read(),
            }
        return row


def answer(slots: Slots, requests: list[Sequence]) -> list[float]:
    """Answer requests, as many at a time as there are slots; returns the seconds of each."""
    # `begun`: starting time of each sequence in a slot.
    waiting, begun, seconds = requests[::-1], {}, []
    while waiting or begun:
        # Fill free slots, advance all by some steps, remove what is done.
        while waiting and slots.has_room:
            sequence = waiting.pop()
            begun[sequence] = time.perf_counter()
            slots.join(sequence)
        slots.advance(STEPS_PER_CALL)
        for sequence in [each for each in begun if each.is_done]:
            slots.leave(sequence)
            seconds.append(time.perf_counter() - begun.pop(sequence))
    return seconds


def update_call(program: StepProgram, vocabulary: int) -> Callable[[], Any]:
    """Return a function that takes an update from where the last one ended.

    The first one starts from random weights.
    """
    # The program holds only shapes: arrays are made like them.
    params, optimizer, frozen, step, batch = program.arguments
    # A batch of coupled-GRPO holds its rows beside their scores; one of fine-tuning is its rows.
    is_grpo = isinstance(batch, PolicyBatch)
    shape = (batch.rows if is_grpo else batch).tokens
    ids = np.random.default_rng(0).integers(0, vocabulary, shape.shape, dtype=np.int32)
    tokens = jax.device_put(ids, shape.sharding)
    batch = jax.tree.map(partial(constant, value=1), batch)
    rows = (batch.rows if is_grpo else batch)._replace(tokens=tokens)
    batch = batch._replace(rows=rows) if is_grpo else rows
    frozen, step = jax.tree.map(small_noise, frozen), constant(step, value=1)
    # Weights are small noise, optimizer moments 0.
    state = jax.tree.map(small_noise, params), jax.tree.map(partial(constant, value=0), optimizer)

    def call() -> Any:
        nonlocal state
        params, optimizer, metrics = program.function(*state, frozen, step, batch)
        state = params, optimizer
        return metrics

    return call


def constant(leaf: jax.ShapeDtypeStruct, *, value: int) -> Array:
    """Return an array of one value with the shape, dtype and sharding of a leaf."""
    return constant_program(leaf.shape, leaf.dtype, leaf.sharding, value)()


@cache
def constant_program(
    shape: tuple[int, ...], dtype: jnp.dtype, sharding: Sharding | None, value: int
) -> Callable[[], Array]:
    """Return the program of `constant`, which is compiled once for all layers."""
    return jax.jit(lambda: jnp.full(shape, value, dtype), out_shardings=sharding)


def small_noise(leaf: jax.ShapeDtypeStruct) -> Array:
    """Return an array of small random numbers with the shape, dtype and sharding of a leaf.

    int8 kernels get all of their values, -127 to 127.
    """
    return noise_program(leaf.shape, leaf.dtype, leaf.sharding)()


@cache
def noise_program(
    shape: tuple[int, ...], dtype: jnp.dtype, sharding: Sharding | None
) -> Callable[[], Array]:
    """Return the program of `small_noise`, which is compiled once for all layers."""

    def draw() -> Array:
        key = jax.random.key(0, impl="rbg")
        if jnp.issubdtype(dtype, jnp.integer):
            return jax.random.randint(key, shape, -127, 128, dtype)
        return (0.02 * jax.random.normal(key, shape, jnp.float32)).astype(dtype)

    return jax.jit(draw, out_shardings=sharding)


judge_update = partial(judge_memory, "{seconds:.3g} s, {tokens_per_second:,.0f} tokens/s")


def judge_passes(window: str, row: Row) -> tuple[str, bool]:
    """Judge whether a forward pass over the rows of `window` comes near the machine's limits."""
    if "rows" not in row:
        return row["out_of_memory"], False
    # One row per window: canvas, refresh, window
    [timed] = [each for each in row["rows"] if each["window"] == window]
    return f"{timed['roofline']:.0%}, {1e3 * timed['seconds']:.3g} ms", timed["roofline"] >= NEAR


def judge_torch(row: Row) -> tuple[str, bool]:
    """Compare each preset with its reference in PyTorch."""
    compared = [each for each in row["rows"] if each.get("times") is not None]
    measured = ", ".join("{preset} {times:.2f} times".format_map(each) for each in compared)
    return measured or "nothing to compare with", bool(compared) and min(
        each["times"] for each in compared
    ) >= 1


AT_THE_BOUND = "`experiments/explain_plan.py` says what the compiled step reads beyond the weights; profile the rest."
NEAR_THE_BOUND = f"{NEAR:.0%} of the roofline"
CRITERIA: tuple[Criterion, ...] = (
    ON_ACCELERATOR,
    Criterion("a pass over the whole canvas", NEAR_THE_BOUND, "passes 1", partial(judge_passes, "canvas"),
              AT_THE_BOUND),
    Criterion("a pass over a block, from the cache", NEAR_THE_BOUND, "passes 1", partial(judge_passes, "window"),
              AT_THE_BOUND),
    Criterion("the same, batch 16", NEAR_THE_BOUND, "passes 16", partial(judge_passes, "window"), AT_THE_BOUND),
    Criterion("later calls compile nothing", "0 compilations", "decoding exact 1",
              judge_value("recompilations", le, 0, "{recompilations}"), DEFECT),
    Criterion("an update of adapters", "fits", "training sft-lora", judge_update,
              "`diffucoder plan --step sft --lora-rank 16` says what fits."),
    Criterion("a coupled-GRPO update of adapters", "fits", "training grpo-lora", judge_update,
              "`diffucoder plan --step grpo --lora-rank 16` says what fits."),
    Criterion("generation compared with PyTorch", "at least as fast", "torch", judge_torch,
              "Report it with steps.jsonl."),
)  # fmt: skip

# Sections of the report, by the first word of the names of the steps that they show.
SECTIONS: Sections = {
    "passes": lambda rows: table_section(
        "Forward passes",
        [each for row in rows for each in row.get("rows", [row])],
        text="Every position of the block is masked. The bound is the roofline of the limits measured here.",
    ),
    "decoding": partial(chart_section, "Decoding", "batch", "Tokens per second", "preset"),
    "serving": partial(chart_section, "Serving", "clients", "Tokens per second, served", ""),
    "torch": lambda rows: table_section(
        "PyTorch {torch} ({device}) on this device".format_map(rows[0]), rows[0]["rows"]
    ),
    "training": partial(table_section, "Training"),
}


def main(settings: Arguments) -> int:
    """Run the steps that are left, and write the report; returns 1 if a step failed."""
    # Runs of different lengths share a folder.
    own = ("out", "minutes", "timeout")
    identity = {name: value for name, value in asdict(settings).items() if name not in own}
    return run_steps(
        FullSizeSteps(settings).steps(),
        settings.out,
        identity,
        f"random weights of the shape {settings.random_shape}",
        CRITERIA,
        SECTIONS,
    )


if __name__ == "__main__":
    raise SystemExit(main(run_main(Arguments)))

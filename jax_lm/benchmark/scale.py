"""The steps of `diffucoder experiment --full`: what this machine does at full size, on random weights.

Decoding by preset and batch, forward passes beside their bound, updates of training, sequences in the slots of the
server, PyTorch beside it. Speed does not depend on what the weights are, but for commits by probability.
"""

import itertools
import tempfile
import time
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jax_lm.benchmark import comparison, measurements
from jax_lm.benchmark.backend import JaxBackend, random_canvas, random_model, random_prompts
from jax_lm.benchmark.experiment import kept_step, measured_environment
from jax_lm.benchmark.machine import PeakMemory
from jax_lm.benchmark.measurements import Measurements
from jax_lm.benchmark.settings import Cell, ExperimentSettings, ScaleSettings
from jax_lm.benchmark.speed import time_forwards, time_generation
from jax_lm.benchmark.timer import time_call
from jax_lm.benchmark.worker import WorkerRequest, run_worker
from jax_lm.compilation.programs import StepProgram, step_programs
from jax_lm.config import SHAPES
from jax_lm.diffusion.canvas import Block
from jax_lm.diffusion.sampler import Sampler
from jax_lm.options import BLOCK_LENGTH, PRESETS, Decoding, GenerationOptions
from jax_lm.planning.memory import OutOfMemoryError, PlannedStep, device_bytes, explained, parameter_count
from jax_lm.reports.steps import LeftOut, Step
from jax_lm.serving.engine import STEPS_PER_CALL
from jax_lm.serving.sequence import Sequence
from jax_lm.serving.slots import Slots

LORA_RANK = 16
UPDATES: dict[str, dict[str, Any]] = {
    "sft": {"kind": "sft"},
    "sft-lora": {"kind": "sft", "lora_rank": LORA_RANK},
    "sft-qlora": {"kind": "sft", "lora_rank": LORA_RANK, "precision": "int8"},
    "grpo": {"kind": "grpo"},
    "grpo-lora": {"kind": "grpo", "lora_rank": LORA_RANK},
}
"""Updates of training: of all weights, of adapters, and of adapters over int8 kernels."""

EACH_CLIENT = 2
"""Requests of each client, one after the other."""


class ScaleSteps:
    """The steps, on weights that are made here."""

    def __init__(self, settings: ExperimentSettings, scale: ScaleSettings) -> None:
        self.settings, self.scale, self.config = settings, scale, SHAPES[scale.random_shape]
        self.dtype = settings.dtype or "bfloat16"
        self.mesh_shape = self.planned().default_mesh(self.config, len(jax.devices()))

    def steps(self) -> list[Step]:
        """List all of them: what is wanted first comes first."""
        sizes, clients = self.scale.rows, self.scale.clients
        return [
            kept_step(measurements.Environment, "Environment and devices", self.environment),
            kept_step(measurements.RandomWeights, "Random weights", self.weights),
            *(kept_step(measurements.StepPasses, f"Forward passes, batch {size}", self.passes, size) for size in sizes),
            *(
                kept_step(measurements.PresetTime, f"Decoding, {preset}, batch {size}", self.decoding, preset, size)
                for size, preset in itertools.product(sizes, PRESETS)
            ),
            *(kept_step(measurements.Served, f"Serving, {count} clients", self.served, count) for count in clients),
            kept_step(measurements.TorchSpeed, "PyTorch beside it", self.pytorch),
            *(kept_step(measurements.UpdateTime, f"Training, {name}", self.update, name) for name in UPDATES),
        ]

    def planned(self, **others: Any) -> PlannedStep:
        """A step of this size, to plan with."""
        sizes: dict[str, Any] = {"canvas": self.scale.canvas, "new_tokens": self.settings.new_tokens}
        return PlannedStep(**{"precision": self.dtype, "batch": 1} | sizes | others)

    def cell(self, preset: str, batch: int) -> Cell:
        """A generation of this size."""
        new_tokens = self.settings.new_tokens
        return Cell(preset=preset, batch=batch, prompt_tokens=self.scale.canvas - new_tokens, new_tokens=new_tokens)

    @cached_property
    def sampler(self) -> Sampler:
        """The model, made by the first step that needs it."""
        mesh = self.mesh_shape.mesh() if self.mesh_shape.size > 1 else None
        sampler = Sampler(random_model(self.config, self.dtype, mesh=mesh))
        jax.block_until_ready(sampler.params)
        return sampler

    def environment(self, found: Measurements) -> measurements.Environment:
        """Describe devices and versions, and measure the machine's limits."""
        return measured_environment(self.dtype)

    def weights(self, found: Measurements) -> measurements.RandomWeights:
        """Make the weights."""
        start = time.perf_counter()
        assert self.sampler
        return measurements.RandomWeights(
            shape=self.scale.random_shape,
            parameters=parameter_count(self.config),
            dtype=self.dtype,
            mesh=str(self.mesh_shape),
            seconds=time.perf_counter() - start,
            weights_bytes=device_bytes(self.config, self.planned(), self.mesh_shape),
            peak_bytes=PeakMemory().read(),
        )

    def passes(self, batch: int, found: Measurements) -> measurements.StepPasses:
        """Time a forward pass and a step by the rows they recompute, beside the bound of the measured limits."""
        if (environment := found.get(measurements.Environment)) is None:
            raise LeftOut("the machine's limits are not known")
        canvas = random_canvas(self.config, self.cell("exact", batch), seed=0)
        try:
            with explained(self.config, self.planned(batch=batch), self.mesh_shape):
                times = time_forwards(self.sampler, canvas, environment.limits, repeats=self.settings.repeats)
        except OutOfMemoryError as error:
            return measurements.StepPasses(batch=batch, out_of_memory=str(error))
        return measurements.StepPasses(batch=batch, rows=tuple(times))

    def decoding(self, preset: str, batch: int, found: Measurements) -> measurements.PresetTime:
        """Decode with the published settings."""
        memory, cell, backend = PeakMemory(), self.cell(preset, batch), JaxBackend(self.sampler)
        memory.start()
        try:
            with explained(self.config, self.planned(batch=batch), self.mesh_shape):
                timing = time_generation(backend, cell, self.settings.repeats)
        except OutOfMemoryError as error:
            return measurements.PresetTime(preset=preset, batch=batch, out_of_memory=str(error))
        return measurements.PresetTime(
            preset=preset,
            batch=batch,
            seconds=timing.seconds,
            first_seconds=timing.first_seconds,
            tokens_per_second=timing.tokens_per_second,
            forwards=timing.forwards,
            seconds_per_forward=timing.seconds / timing.forwards,
            recompilations=timing.recompilations,
            peak_bytes=memory.read(),
        )

    def served(self, clients: int, found: Measurements) -> measurements.Served:
        """Let so many clients ask, each again when it is answered; as the engine does, without texts and HTTP."""
        canvas, new_tokens = self.scale.canvas, self.settings.new_tokens
        options = GenerationOptions(max_new_tokens=new_tokens, decoding=Decoding(preset="fast"), early_stop=False)
        slots = Slots(self.sampler, canvas + BLOCK_LENGTH, is_cached=True, count=clients, sizes=(clients,), stop_ids=())
        numbers = itertools.count()

        def asked() -> Sequence:
            number = next(numbers)
            prompt = random_prompts(self.config, 1, canvas - new_tokens, seed=number)[0]
            tokens = np.concatenate([prompt, np.zeros(new_tokens, np.int32)])
            hole = Block(canvas - new_tokens, canvas)
            key = np.asarray(jax.random.key_data(jax.random.key(number)))
            return Sequence(tokens=tokens, hole=hole, options=options, stop_ids=(), key=key)

        def answered(count: int) -> list[float]:
            """Answer so many requests in all; the seconds that each took."""
            waiting, begun, seconds = count, {}, []
            while waiting or begun:
                while waiting and slots.has_room:
                    begun[sequence := asked()] = time.perf_counter()
                    slots.join(sequence)
                    waiting -= 1
                slots.advance(STEPS_PER_CALL)
                for sequence in [each for each in begun if each.is_done]:
                    slots.leave(sequence)
                    seconds.append(time.perf_counter() - begun.pop(sequence))
            return seconds

        try:
            with explained(self.config, self.planned(batch=clients), self.mesh_shape):
                answered(1)
                start = time.perf_counter()
                seconds = answered(EACH_CLIENT * clients)
        except OutOfMemoryError as error:
            return measurements.Served(clients=clients, out_of_memory=str(error))
        return measurements.Served(
            clients=clients,
            requests=len(seconds),
            tokens_per_second=len(seconds) * new_tokens / (time.perf_counter() - start),
            median_seconds=float(np.median(seconds)),
            longest_seconds=max(seconds),
        )

    def pytorch(self, found: Measurements) -> measurements.TorchSpeed:
        """Have PyTorch decode with the same weights, on the same kind of device, in a process of its own."""
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
                folder=folder,
                dtype=self.dtype,
                device="cuda" if platform == "gpu" else "cpu",
                cells=cells,
                repeats=1,
            )
            result, _ = run_worker(request, limit=self.settings.timeout)
        rows = []
        for theirs in result.cells:
            ours = found.get(measurements.PresetTime, f"{measurements.PresetTime.step} {theirs.preset} {theirs.batch}")
            rows.append(
                measurements.BesideTorch(
                    preset=theirs.preset,
                    torch_seconds=theirs.seconds,
                    seconds=None if ours is None else ours.seconds,
                    times=None if ours is None or ours.seconds is None else theirs.seconds / ours.seconds,
                )
            )
        return measurements.TorchSpeed(torch=result.packages["torch"], device=result.device, rows=tuple(rows))

    def update(self, name: str, found: Measurements) -> measurements.UpdateTime:
        """Take updates of training, on as many devices as there are."""
        # Two models at once would not fit where one does.
        self.__dict__.pop("sampler", None)
        planned = self.planned(batch=self.scale.training_rows, **UPDATES[name])
        shape = planned.default_mesh(self.config, len(jax.devices()))
        memory = PeakMemory()
        memory.start()
        try:
            with explained(self.config, planned, shape):
                [program] = step_programs(self.config, planned, shape.mesh(), GenerationOptions()).values()
                timing = time_call(updating(program, self.config.vocab_size), self.settings.repeats)
        except OutOfMemoryError as error:
            return measurements.UpdateTime(name=name, rows=planned.batch, mesh=str(shape), out_of_memory=str(error))
        return measurements.UpdateTime(
            name=name,
            rows=planned.batch,
            mesh=str(shape),
            first_seconds=timing.first_seconds,
            seconds=timing.seconds,
            tokens_per_second=planned.batch * planned.canvas / timing.seconds,
            peak_bytes=memory.read(),
        )


def updating(program: StepProgram, vocabulary: int) -> Any:
    """Make a call that takes an update from where the last one ended, beginning with random weights."""
    params, optimizer, frozen, step, batch = program.arguments
    tokens = np.random.default_rng(0).integers(0, vocabulary, batch.tokens.shape, dtype=np.int32)
    rest = jax.tree.map(partial(constant, value=1), batch._replace(tokens=None))
    batch = rest._replace(tokens=jax.device_put(tokens, batch.tokens.sharding))
    frozen, step = jax.tree.map(small_noise, frozen), constant(step, value=1)
    state = jax.tree.map(small_noise, params), jax.tree.map(partial(constant, value=0), optimizer)

    def call() -> Any:
        nonlocal state
        params, optimizer, metrics = program.function(*state, frozen, step, batch)
        state = params, optimizer
        return metrics

    return call


def constant(leaf: jax.ShapeDtypeStruct, *, value: int) -> Array:
    """Make an array of one value where a shape belongs."""
    return jax.jit(lambda: jnp.full(leaf.shape, value, leaf.dtype), out_shardings=leaf.sharding)()


def small_noise(leaf: jax.ShapeDtypeStruct) -> Array:
    """Make an array of small random numbers where a shape belongs; int8 kernels of all their values."""

    def drawn() -> Array:
        key = jax.random.key(0, impl="rbg")
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jax.random.randint(key, leaf.shape, -127, 128, leaf.dtype)
        return (0.02 * jax.random.normal(key, leaf.shape, jnp.float32)).astype(leaf.dtype)

    return jax.jit(drawn, out_shardings=leaf.sharding)()

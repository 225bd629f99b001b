"""Measure a backend, JAX or PyTorch, in a separate process.

Memory and time of one backend then do not include imports and allocations of the other.
`run_worker` starts the process and returns its result. PyTorch's backend is in `torch_reference`.
"""

import multiprocessing
import os
import pkgutil
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Literal

import jax

from jax_lm.benchmark.backend import (
    Backend,
    JaxBackend,
    greedy_options,
    output_names,
    random_prompts,
)
from jax_lm.benchmark.machine import about, largest_resident_bytes, resident_bytes
from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.speed import time_generation
from jax_lm.benchmark.timer import without_stored_compilations
from jax_lm.checkpoints.stored import HostArrays
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.reports.tables import Row

# The greedy generation that is compared, and rows and tokens of the random input whose outputs are.
GREEDY = Cell(batch=2, prompt_tokens=16, new_tokens=32)
COMPARED_SHAPE = (2, 24)
TORCH_PACKAGES = ("torch", "transformers")

# The row of a backend, and the outputs of its modules by name; none unless they are compared.
Measured = tuple[Row, HostArrays]


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """Request to a worker.

    Attributes:
        torch_backend: module and class of PyTorch's backend, which only its process imports.
        device: where PyTorch computes, "cpu" or "cuda".
        platform: where JAX computes; it takes its default if None. PyTorch's process needs the
            CPU, so that JAX does not reserve the accelerator's memory there.
        cells: generations to time.
        repeats: timed calls per cell; their median counts.
        compares: whether to keep the outputs of every module, for random input.
    """

    backend: Literal["jax", "pytorch"]
    folder: Path
    dtype: str
    torch_backend: str = "jax_lm.benchmark.torch_reference:TorchBackend"
    device: str = "cpu"
    platform: str | None = None
    cells: tuple[Cell, ...] = ()
    repeats: int = 3
    compares: bool = False


def outputs_to_compare(backend: Backend) -> tuple[HostArrays, list[list[int]]]:
    """Return the outputs of every module by name, and greedy tokens [b, n].

    The generation is `GREEDY`, shortened if the context is shorter.
    """
    config = backend.config
    new_tokens = min(GREEDY.new_tokens, config.max_position_embeddings - GREEDY.prompt_tokens)
    prompts = random_prompts(config, GREEDY.batch, GREEDY.prompt_tokens, seed=2)
    ids = random_prompts(config, *COMPARED_SHAPE, seed=1)
    outputs = backend.module_outputs(ids, output_names(config))
    return outputs, backend.generate(prompts, greedy_options(new_tokens)).tokens.tolist()


def measure_backend(request: WorkerRequest) -> Measured:
    """Load and time a backend in this process, and keep its outputs if they are compared.

    In the row, `packages` are the versions of PyTorch's packages. `load_bytes` and `peak_bytes` are
    the peak memory after loading and at the end; `memory` says whose. `greedy` are the greedy
    tokens [b, n] if outputs are compared.
    """
    is_torch = request.backend == "pytorch"
    # Start what a process starts once, which must not count as loading.
    if is_torch:
        backend_class = pkgutil.resolve_name(request.torch_backend)
        backend_class.warm_up(request.device)
        config = DreamForCausalLM.read_config(request.folder)
        load = partial(backend_class, request.folder, config, request.dtype, device=request.device)
    else:
        jax.devices()
        load = partial(JaxBackend.load, request.folder, request.dtype)
    # Load
    before = resident_bytes()
    start = perf_counter()
    backend = load()
    load_seconds = perf_counter() - start
    is_on_device = backend.device_peak() is not None

    def peak():
        return backend.device_peak() or largest_resident_bytes() - before

    load_bytes = peak()
    machine = about()
    # Time
    with without_stored_compilations():
        cells = [
            time_generation(backend, cell, request.repeats, with_forward=True)
            for cell in request.cells
        ]
    row = {
        "backend": request.backend,
        "about": machine,
        "dtype": request.dtype,
        "device": request.device if is_torch else machine["device"],
        "packages": {name: version(name) for name in TORCH_PACKAGES} if is_torch else {},
        "load_seconds": load_seconds,
        "memory": "device" if is_on_device else "process, above what it had before loading",
        "load_bytes": load_bytes,
        "peak_bytes": peak(),
        "cells": cells,
    }
    # Compare
    outputs = {}
    if request.compares:
        outputs, row["greedy"] = outputs_to_compare(backend)
    return row, outputs


def run_worker(request: WorkerRequest, *, limit: float | None = None) -> Measured:
    """Measure a backend in its own process.

    Raises:
        ValueError: the process failed or took more than `limit` seconds; the message ends with its
            error.
    """
    # Spawned, not forked: a fork would share our memory, and JAX's threads would be missing in it.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=send_measurement, args=(request, sender), daemon=True)
    worker.start()
    # Closed here, so that reading ends when the worker ends.
    sender.close()
    backend = f"the {request.backend} backend"
    try:
        if not receiver.poll(limit):
            raise ValueError(f"{backend} took more than {limit:g} s")
        result = receiver.recv()
    except EOFError as error:
        worker.join()
        why = f"exit code {worker.exitcode}; perhaps the system killed it for its memory"
        raise ValueError(f"{backend} ended with {why}") from error
    finally:
        worker.kill()
        worker.join()
    if isinstance(result, str):
        raise ValueError(f"{backend} ended: {result}")
    return result


def send_measurement(request: WorkerRequest, sender: Connection):
    """Measure in the worker, and send the result or, as a text, the error."""
    # What its libraries print would disturb the progress bar of the command.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if request.platform:
        jax.config.update("jax_platforms", request.platform)
    try:
        sender.send(measure_backend(request))
    except Exception as error:  # the command reports it in one line
        sender.send(" ".join(f"{type(error).__name__}: {error}".split()))

"""Measure a backend, JAX or PyTorch, in a process of its own.

So neither is charged for what the other imports and allocates. `run_worker` starts that process and
returns its result, a row. The process runs

    python -m jax_lm.benchmark.worker FOLDER

with request.json in the folder. PyTorch's backends are in `torch_reference` and `fast_dllm`.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jaxtyping import Int
from safetensors.numpy import load_file, save_file

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
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.reports.tables import Row

REQUEST, RESULT, OUTPUTS = "request.json", "result.json", "outputs.safetensors"
# The greedy generation that is compared.
GREEDY = Cell(batch=2, prompt_tokens=16, new_tokens=32)

TORCH_PACKAGES = ("torch", "transformers")
# Characters of a worker's error that are reported.
ERROR_WIDTH = 300


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """Request to a worker.

    Attributes:
        device: where PyTorch computes, "cpu" or "cuda"; JAX takes its default.
        cells: generations to time.
        repeats: timed calls per cell, of which the median counts.
        compared_shape: rows and tokens of random input for which the outputs of every module are
            kept; none by default.
    """

    backend: Literal["jax", "pytorch"]
    folder: str
    dtype: str
    device: str = "cpu"
    cells: tuple[Cell, ...] = ()
    repeats: int = 3
    compared_shape: tuple[int, int] | None = None


def comparison_ids(config: DreamConfig, shape: tuple[int, int]) -> Int[np.ndarray, "b t"]:
    """Draw the random rows for which outputs are compared."""
    return random_prompts(config, *shape, seed=1)


def outputs_to_compare(
    backend: Backend, shape: tuple[int, int]
) -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """Return the outputs of every module by name, and greedy tokens [b, n].

    The generation is `GREEDY`, shortened if the context is shorter.
    """
    config = backend.config
    new_tokens = min(GREEDY.new_tokens, config.max_position_embeddings - GREEDY.prompt_tokens)
    prompts = random_prompts(config, GREEDY.batch, GREEDY.prompt_tokens, seed=2)
    outputs = backend.module_outputs(comparison_ids(config, shape), output_names(config))
    return outputs, backend.generate(prompts, greedy_options(new_tokens)).tokens.tolist()


def measure_backend(request: WorkerRequest, outputs: Path) -> Row:
    """Load and time a backend in this process, and save its outputs if they are compared.

    Returns:
        A row. `packages` are the versions of PyTorch's packages. `load_bytes` and `peak_bytes` are
        the peak memory after loading and at the end; `memory` says whose. `greedy` are the greedy
        tokens [b, n] if outputs are compared.
    """
    load, is_torch = backend_loader(request), request.backend == "pytorch"
    # Load
    before, start = resident_bytes(), time.perf_counter()
    backend = load()
    load_seconds = time.perf_counter() - start

    def peak() -> int:
        on_device = backend.device_peak()
        return largest_resident_bytes() - before if on_device is None else on_device

    load_bytes, machine = peak(), about()
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
        "memory": "process, above what it had before loading"
        if backend.device_peak() is None
        else "device",
        "load_bytes": load_bytes,
        "peak_bytes": peak(),
        "cells": cells,
    }
    # Compare
    if request.compared_shape:
        tensors, row["greedy"] = outputs_to_compare(backend, request.compared_shape)
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, outputs)
    return row


def backend_loader(request: WorkerRequest) -> Callable[[], Backend]:
    """Return a function that loads the backend; what happens once per process is done here."""
    folder = Path(request.folder)
    config = DreamForCausalLM.read_config(folder)
    if request.backend == "jax":
        # Starts the platform, which must not count as loading.
        jax.devices()
        return lambda: JaxBackend.load(folder, request.dtype)
    from jax_lm.benchmark.fast_dllm import TorchLoops

    TorchLoops.warm_up(request.device)
    return lambda: TorchLoops(folder, config, request.dtype, device=request.device)


def run_worker(
    request: WorkerRequest,
    *,
    environment: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> tuple[Row, dict[str, np.ndarray]]:
    """Measure a backend in its own process; returns its row, and outputs by module name.

    Raises:
        ValueError: the process failed or took more than `limit` seconds; the message ends with its
            error.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")
        command = [sys.executable, "-m", "jax_lm.benchmark.worker", temporary]
        variables = os.environ | (environment or {})
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"the {request.backend} backend took more than {limit:g} s") from error
        if done.returncode:
            killed = (
                f" by signal {-done.returncode}, perhaps for its memory"
                if done.returncode < 0
                else ""
            )
            raise ValueError(
                f"the {request.backend} backend ended{killed}: {last_error(done.stderr)}"
            )
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return result, load_file(folder / OUTPUTS) if request.compared_shape else {}


def last_error(output: str) -> str:
    """Return in one line the error at the end of a traceback, else the last line of the output."""
    lines = output.strip().splitlines() or ["it wrote nothing"]
    # After the last frame come its source line, indented, and then the error.
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    ending = [line for line in lines[frames[-1] :] if not line.startswith("  ")] if frames else []
    return textwrap.shorten(" ".join(ending or lines[-1:]), ERROR_WIDTH, placeholder=" ...")


def main(folder: Path) -> None:
    """Read the request, measure, write the result."""
    data = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    request = WorkerRequest(**data | {"cells": tuple(Cell(**cell) for cell in data["cells"])})
    row = measure_backend(request, folder / OUTPUTS)
    (folder / RESULT).write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

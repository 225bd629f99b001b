"""A backend, JAX or PyTorch, measured in a process of its own: so neither pays for the other.

`run_worker` starts that process and waits; what comes back is a typed record. Entry of the process:

    python -m jax_lm.benchmark.worker FOLDER

with request.json in the folder. PyTorch's backend is `torch_reference`, and `torch_blocks`.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from jaxtyping import Int
from safetensors.numpy import load_file, save_file

from jax_lm.benchmark.backend import Backend, JaxBackend, greedy_options, output_names, random_prompts
from jax_lm.benchmark.machine import Machine, largest_resident_bytes, resident_bytes
from jax_lm.benchmark.records import plain_data, read_record
from jax_lm.benchmark.settings import Cell
from jax_lm.benchmark.speed import GenerationTime, time_generation
from jax_lm.benchmark.timer import without_stored_compilations
from jax_lm.models.dream import DreamConfig, DreamForCausalLM

REQUEST, RESULT, OUTPUTS = "request.json", "result.json", "outputs.safetensors"
GREEDY = Cell(batch=2, prompt_tokens=16, new_tokens=32)
"""The greedy answers that are compared."""

TORCH_PACKAGES = ("torch", "transformers")
ERROR_WIDTH = 300
"""Characters of an error that are passed on."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What a worker is to do.

    Attributes:
        device: where PyTorch computes, "cpu" or "cuda"; JAX takes its default.
        repeats: timed calls per cell, of which the median counts.
        numbers: rows and tokens of random input for which the outputs of every module are kept; None is none.
    """

    backend: Literal["jax", "pytorch"]
    folder: str
    dtype: str
    device: str = "cpu"
    cells: tuple[Cell, ...] = ()
    repeats: int = 3
    numbers: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """What a worker measured.

    Attributes:
        backend: jax or pytorch.
        packages: versions of what PyTorch's backend needs; empty for JAX.
        memory: what the bytes are of, in words.
        load_bytes, peak_bytes: largest memory after loading, and at the end.
        greedy: greedy tokens [b, n], where outputs are kept.
    """

    backend: str
    about: Machine
    dtype: str
    device: str
    packages: dict[str, str] = field(default_factory=dict)
    load_seconds: float
    memory: str
    load_bytes: int
    peak_bytes: int
    cells: tuple[GenerationTime, ...]
    greedy: tuple[tuple[int, ...], ...] = ()


def comparison_ids(config: DreamConfig, shape: tuple[int, int]) -> Int[np.ndarray, "b t"]:
    """Draw the random rows [b, t] for which outputs are compared."""
    return random_prompts(config, *shape, seed=1)


def compared_outputs(
    backend: Backend, shape: tuple[int, int]
) -> tuple[dict[str, np.ndarray], tuple[tuple[int, ...], ...]]:
    """Compute what backends are compared by: outputs of every module, and greedy tokens [b, n].

    The tokens are all of `GREEDY` where the context is long enough.
    """
    config = backend.config
    new_tokens = min(GREEDY.new_tokens, config.max_position_embeddings - GREEDY.prompt_tokens)
    prompts = random_prompts(config, GREEDY.batch, GREEDY.prompt_tokens, seed=2)
    outputs = backend.module_outputs(comparison_ids(config, shape), output_names(config))
    return outputs, tuple(map(tuple, backend.generate(prompts, greedy_options(new_tokens)).tokens.tolist()))


def measure_backend(request: WorkerRequest, outputs: Path) -> WorkerResult:
    """Load, time, and keep outputs in a file. Runs in the process of the backend."""
    load, is_torch = backend_loader(request), request.backend == "pytorch"
    before, start = resident_bytes(), time.perf_counter()
    backend = load()
    load_seconds = time.perf_counter() - start

    def peak() -> int:
        on_device = backend.device_peak()
        return largest_resident_bytes() - before if on_device is None else on_device

    load_bytes, about = peak(), Machine.here()
    with without_stored_compilations():
        cells = tuple(time_generation(backend, cell, request.repeats, with_forward=True) for cell in request.cells)
    peak_bytes, greedy = peak(), ()
    if request.numbers:
        found, greedy = compared_outputs(backend, request.numbers)
        save_file({name: np.ascontiguousarray(value) for name, value in found.items()}, outputs)
    return WorkerResult(
        backend=request.backend,
        about=about,
        dtype=request.dtype,
        device=request.device if is_torch else about.device,
        packages={name: version(name) for name in TORCH_PACKAGES} if is_torch else {},
        load_seconds=load_seconds,
        memory="process, above what it had before loading" if backend.device_peak() is None else "device",
        load_bytes=load_bytes,
        peak_bytes=peak_bytes,
        cells=cells,
        greedy=greedy,
    )


def backend_loader(request: WorkerRequest) -> Callable[[], Backend]:
    """Return what loads the backend; what happens once per process has then happened."""
    folder = Path(request.folder)
    config = DreamForCausalLM.read_config(folder)
    if request.backend == "jax":
        jax.devices()
        return lambda: JaxBackend.load(folder, request.dtype)
    from jax_lm.benchmark.torch_blocks import TorchLoops

    TorchLoops.warm_up(request.device)
    return lambda: TorchLoops(folder, config, request.dtype, device=request.device)


def run_worker(
    request: WorkerRequest, *, environment: Mapping[str, str] | None = None, limit: float | None = None
) -> tuple[WorkerResult, dict[str, np.ndarray]]:
    """Have a backend measured in its own process, in `limit` seconds: what it measured, and outputs by module.

    Raises:
        ValueError: it failed, or took too long; the message ends with its error.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / REQUEST).write_text(json.dumps(plain_data(request)), encoding="utf-8")
        command = [sys.executable, "-m", "jax_lm.benchmark.worker", temporary]
        variables = os.environ | (environment or {})
        try:
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"the {request.backend} side took more than {limit:g} s") from error
        if done.returncode:
            killed = f" by signal {-done.returncode}, perhaps for its memory" if done.returncode < 0 else ""
            raise ValueError(f"the {request.backend} side ended{killed}: {last_error(done.stderr)}")
        result = read_record(WorkerResult, json.loads((folder / RESULT).read_text(encoding="utf-8")))
        return result, load_file(folder / OUTPUTS) if request.numbers else {}


def last_error(said: str) -> str:
    """Return in one line the error that a traceback ends with; of anything else the last line."""
    lines = said.strip().splitlines() or ["it wrote nothing"]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    ending = [line for line in lines[frames[-1] :] if not line.startswith("  ")] if frames else []
    return textwrap.shorten(" ".join(ending or lines[-1:]), ERROR_WIDTH, placeholder=" ...")


def main(folder: Path) -> None:
    """Read the request, measure, write the result."""
    request = read_record(WorkerRequest, json.loads((folder / REQUEST).read_text(encoding="utf-8")))
    result = measure_backend(request, folder / OUTPUTS)
    (folder / RESULT).write_text(json.dumps(plain_data(result)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

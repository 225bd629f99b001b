"""One side of a comparison, JAX or PyTorch, measured in a process of its own: so neither pays for the other.

`ask` starts that process and waits; what comes back is plain data. Entry of the process:

    python -m jax_lm.benchmark.worker FOLDER

with request.json in the folder. PyTorch's side is `evaluation.reference`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from safetensors.numpy import load_file, save_file

from jax_lm.benchmark.machine import (
    PeakMemory,
    about,
    largest_resident_bytes,
    resident_bytes,
    without_stored_compilations,
)
from jax_lm.benchmark.workload import padded_canvas, random_prompts
from jax_lm.diffusion.sampler import Sampler
from jax_lm.models.dream import DreamConfig, DreamForCausalLM
from jax_lm.options import GenerationOptions
from jax_lm.reports.run_folder import Record

SETTINGS: dict[str, dict[str, Any]] = {
    "readme": {"temperature": 0.2, "top_p": 0.95, "top_k": 50},
    "greedy": {"temperature": 0.0, "top_p": None, "top_k": 50},
}
"""`readme`: what a user of the model card gets, its hidden top_k of 50 included."""

REQUEST, RESULT, OUTPUTS = "request.json", "result.json", "outputs.safetensors"
GREEDY_SHAPE = (2, 16, 32)
"""Rows, prompt and new tokens of the greedy answers that are compared."""

LAYER_OUTPUTS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp",
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a side is to do.

    Attributes:
        folder: the checkpoint.
        device: where PyTorch computes, "cpu" or "cuda"; JAX takes its default.
        cells: batch, prompt tokens and new tokens of each timed generation.
        repeats: timed calls per cell, of which the median counts.
        numbers: rows and tokens of random input for which the outputs of every module are kept; None is none.
    """

    side: Literal["jax", "pytorch"]
    folder: str
    dtype: str
    device: str = "cpu"
    cells: tuple[tuple[int, int, int], ...] = ()
    repeats: int = 3
    numbers: tuple[int, int] | None = None


@runtime_checkable
class Side(Protocol):
    """What both can do; prompts and ids are [b, t]."""

    def forward(self, ids: np.ndarray) -> None: ...

    def generate(self, prompt: np.ndarray, settings: dict[str, Any], new_tokens: int, steps: int) -> np.ndarray: ...

    def outputs(self, ids: np.ndarray, names: list[str]) -> dict[str, np.ndarray]: ...

    def device_peak(self) -> int | None: ...


class Tap:
    """Stands in a model in place of one of its modules, and keeps what that puts out."""

    def __init__(self, module: Any, name: str, seen: dict[str, Array]) -> None:
        self.module, self.name, self.seen = module, name, seen

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.seen[self.name] = output = self.module(*arguments, **keywords)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


class Ours:
    """The JAX side."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    @classmethod
    def load(cls, folder: Path, dtype: str) -> "Ours":
        model = DreamForCausalLM.from_pretrained(folder, dtype=None if dtype == "int8" else dtype, int8=dtype == "int8")
        sampler = Sampler(model)
        jax.block_until_ready(sampler.params)
        return cls(sampler)

    def forward(self, ids: Int[np.ndarray, "b t"]) -> None:
        self.sampler.forward(jnp.asarray(ids)).block_until_ready()

    def generate(
        self, prompt: Int[np.ndarray, "b t"], settings: dict[str, Any], new_tokens: int, steps: int
    ) -> Int[np.ndarray, "b n"]:
        """The new tokens. Early stop is off, so that all work is equal."""
        options = GenerationOptions(max_new_tokens=new_tokens, num_steps=steps, **settings)
        state = self.sampler.generate(padded_canvas(prompt, new_tokens), options, seed=0)
        return np.asarray(state.tokens)[:, -new_tokens:]

    def outputs(self, ids: Int[np.ndarray, "b t"], names: list[str]) -> dict[str, Float[np.ndarray, "b t _"]]:
        """What the named modules put out, and the logits, in float32."""

        @jax.jit
        def tapped(params: dict, ids: Array) -> dict[str, Array]:
            # A model of this trace alone: nobody else sees what is put into it.
            model = nnx.merge(self.sampler.graph, params)
            seen: dict[str, Array] = {}
            for name in names:
                *path, last = name.split(".")
                owner: Any = model
                for part in path:
                    owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
                vars(owner)[last] = Tap(getattr(owner, last), name, seen)
            logits = model(ids)
            return {name: value.astype(jnp.float32) for name, value in (seen | {"logits": logits}).items()}

        return {name: np.asarray(value) for name, value in tapped(self.sampler.params, jnp.asarray(ids)).items()}

    def device_peak(self) -> int | None:
        """Largest memory of the device in use so far, in bytes; None on a CPU."""
        memory = PeakMemory()
        return memory.read() if memory.on_device else None


def output_names(config: DreamConfig) -> list[str]:
    """Modules whose outputs are compared, named as in the checkpoint."""
    layers = [f"model.layers.{i}.{name}" for i in range(config.num_hidden_layers) for name in LAYER_OUTPUTS]
    return ["model.embed_tokens", *layers, "model.norm"]


def numbers_input(config: DreamConfig, shape: tuple[int, int]) -> Int[np.ndarray, "b t"]:
    """Random rows for which outputs are compared."""
    rows, tokens = shape
    return random_prompts(config, rows, tokens, seed=1)


def greedy_answers(side: Side, config: DreamConfig) -> Int[np.ndarray, "b n"]:
    """Greedy tokens after random prompts; all of it where the context is long enough."""
    rows, tokens, new_tokens = GREEDY_SHAPE
    new_tokens = min(new_tokens, config.max_position_embeddings - tokens)
    return side.generate(random_prompts(config, rows, tokens, seed=2), SETTINGS["greedy"], new_tokens, new_tokens)


def measure(request: Request, outputs: Path) -> Record:
    """Load, time, and keep outputs. Runs in the process of the side."""
    config = DreamForCausalLM.read_config(Path(request.folder))
    load = loader(request, config)
    before, start = resident_bytes(), time.perf_counter()
    side = load()
    result: Record = {"about": about(), "dtype": request.dtype, "load_seconds": time.perf_counter() - start}

    def peak() -> int:
        on_device = side.device_peak()
        return largest_resident_bytes() - before if on_device is None else on_device

    result["memory"] = "process, above what it had before loading" if side.device_peak() is None else "device"
    result["load_bytes"] = peak()
    with without_stored_compilations():
        result["cells"] = [timed(side, config, cell, request.repeats) for cell in request.cells]
    result["peak_bytes"] = peak()
    if request.side == "pytorch":
        result["about"] |= {name: version(name) for name in ("torch", "transformers")} | {"device": request.device}
    if request.numbers:
        found = side.outputs(numbers_input(config, request.numbers), output_names(config))
        save_file({name: np.ascontiguousarray(value) for name, value in found.items()}, outputs)
        result["greedy"] = greedy_answers(side, config).tolist()
    return result


def loader(request: Request, config: DreamConfig) -> Any:
    """Loads the side; what is imported and started once per process is imported and started before."""
    folder = Path(request.folder)
    if request.side == "jax":
        jax.devices()
        return lambda: Ours.load(folder, request.dtype)
    from jax_lm.benchmark.torch_reference import Reference, start

    start(request.device)
    return lambda: Reference(folder, config, request.dtype, device=request.device)


def timed(side: Side, config: DreamConfig, cell: tuple[int, int, int], repeats: int) -> Record:
    """One generation with the published settings, and one forward pass over as many tokens."""
    batch, prompt_tokens, new_tokens = cell
    prompts = random_prompts(config, batch, prompt_tokens, seed=0)
    ids = random_prompts(config, batch, prompt_tokens + new_tokens, seed=0)

    def seconds(call: Any) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def generate() -> None:
        side.generate(prompts, SETTINGS["readme"], new_tokens, new_tokens)

    first = seconds(generate)
    later = [seconds(generate) for _ in range(repeats)]
    side.forward(ids)
    return {
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "first_seconds": first,
        "seconds": statistics.median(later),
        "all_seconds": later,
        "tokens_per_second": batch * new_tokens / statistics.median(later),
        "forward_seconds": statistics.median(seconds(lambda: side.forward(ids)) for _ in range(repeats)),
    }


def ask(
    request: Request, *, environment: Mapping[str, str] | None = None, limit: float | None = None
) -> tuple[Record, dict[str, np.ndarray]]:
    """Have a side measured in its own process.

    Args:
        environment: variables that it has besides ours.
        limit: seconds that it may take.

    Returns:
        What it measured, and the outputs of its modules by name.

    Raises:
        ValueError: it failed, or took too long; the message ends with the last line that it wrote.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (place / REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")
        command = [sys.executable, "-m", "jax_lm.benchmark.worker", temporary]
        try:
            done = subprocess.run(
                command,
                env=os.environ | (environment or {}),
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"the {request.side} side took more than {limit:g} s") from error
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it wrote nothing"]
            killed = f" by signal {-done.returncode}, perhaps for its memory" if done.returncode < 0 else ""
            raise ValueError(f"the {request.side} side ended{killed}: {said[-1]}")
        result = json.loads((place / RESULT).read_text(encoding="utf-8"))
        return result, load_file(place / OUTPUTS) if request.numbers else {}


def main(folder: Path) -> None:
    """Read the request, measure, write the result."""
    fields = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    fields["cells"] = tuple(tuple(cell) for cell in fields["cells"])
    result = measure(Request(**fields), folder / OUTPUTS)
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

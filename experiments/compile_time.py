"""Compile time and temporary memory of the full-size forward pass: a list of layers against a scan.

    python experiments/compile_time.py --dtype bfloat16 --out docs/results/measurements/compile_time.json

Takes shapes only, no weights: it runs where the 7B model does not fit. The scan stacks each
parameter over the layers; numbers are the median of `repeats` compilations with the compilation
cache off.
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from jax_lm.benchmark.machine import about
from jax_lm.config import DIFFUCODER_7B
from jax_lm.host.declared import run_main
from jax_lm.models.dream import DreamForCausalLM, default_positions


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to compile.

    Attributes:
        dtype: of the weights.
        canvas: tokens of the one row.
        repeats: compilations of each form.
        out: JSON file for the result.
    """

    dtype: str = "bfloat16"
    canvas: int = 512
    repeats: int = 3
    out: Path | None = None


def listed(dtype: str) -> tuple[Callable, dict]:
    """The model as it is: one set of arrays per layer."""
    graph, state = nnx.split(DreamForCausalLM.abstract(DIFFUCODER_7B, dtype))
    return lambda params, ids: nnx.merge(graph, params)(ids), nnx.to_pure_dict(state)


def scanned(dtype: str) -> tuple[Callable, dict]:
    """The same function with the layers stacked and scanned over."""
    model = DreamForCausalLM.abstract(DIFFUCODER_7B, dtype)
    layer_graph, _ = nnx.split(model.model.layers[0])
    shallow = DreamForCausalLM.abstract(
        dataclasses.replace(DIFFUCODER_7B, num_hidden_layers=1), dtype
    )
    graph, state = nnx.split(shallow)
    params = nnx.to_pure_dict(state)
    layers = params["model"]["layers"].pop(0)
    stacked = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (DIFFUCODER_7B.num_hidden_layers, *leaf.shape), leaf.dtype
        ),
        layers,
    )

    def forward(params: dict, ids: jax.Array) -> jax.Array:
        rest, layers = params["rest"], params["layers"]
        first = jax.tree.map(lambda leaf: leaf[0], layers)
        model = nnx.merge(graph, rest | {"model": rest["model"] | {"layers": {0: first}}})
        rotary = model.model.rotary_emb(default_positions(ids, None))

        def layer(x: jax.Array, weights: dict) -> tuple[jax.Array, None]:
            return nnx.merge(layer_graph, weights)(x, rotary, None)[0], None

        x, _ = jax.lax.scan(layer, model.model.embed_tokens(ids), layers)
        return model.logits(model.model.norm(x))

    return forward, {"rest": params, "layers": stacked}


def measure(function: Callable, params: dict, canvas: int, repeats: int) -> dict[str, float]:
    """Median seconds of lowering and compiling, and the temporary memory that XLA plans."""
    ids = jax.ShapeDtypeStruct((1, canvas), jnp.int32)
    lowering, compiling, temporary = [], [], 0
    for _ in range(repeats):
        jax.clear_caches()
        start = time.perf_counter()
        lowered = jax.jit(lambda params, ids: function(params, ids)).lower(params, ids)
        lowering.append(time.perf_counter() - start)
        start = time.perf_counter()
        memory = lowered.compile().memory_analysis()
        compiling.append(time.perf_counter() - start)
        assert memory
        temporary = memory.temp_size_in_bytes
    return {
        "lower_seconds": statistics.median(lowering),
        "compile_seconds": statistics.median(compiling),
        "temporary_gib": temporary / 2**30,
    }


def main(arguments: Arguments) -> None:
    """Compile both forms and print the table."""
    jax.config.update("jax_enable_compilation_cache", False)
    results = {
        name: measure(*form(arguments.dtype), arguments.canvas, arguments.repeats)
        for name, form in (("list of layers", listed), ("scan over layers", scanned))
    }
    for name, figures in results.items():
        print(f"{name:18}", "  ".join(f"{key} {value:.2f}" for key, value in figures.items()))
    if arguments.out:
        asked = {"dtype": arguments.dtype, "canvas": arguments.canvas, "repeats": arguments.repeats}
        arguments.out.write_text(
            json.dumps(about() | asked | {"results": results}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main(run_main(Arguments))

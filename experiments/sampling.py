"""Time of generations and of their sampling by filters: how much it costs to look at the whole
vocabulary.

    python experiments/sampling.py --out docs/results/measurements/sampling.json

Random weights of the shape `small` (186M parameters, the published vocabulary). With the head as it
is drawn, logits have a standard deviation of 0.45, which at temperature 0.2 is a flat distribution;
with a head of ten times the size it is peaked. Contestants take turns, so that a busy machine slows
all; medians after a warm-up. The load is recorded.
"""

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from experiments.turns import time_in_turns
from jax_lm.benchmark.backend import JaxBackend, model_card_options, random_model, random_prompts
from jax_lm.benchmark.machine import about
from jax_lm.config import SHAPES
from jax_lm.diffusion.candidates import SamplingParams, confidence, draw, filtered
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import run_main
from jax_lm.options import GenerationOptions
from jax_lm.reports.document import table
from jax_lm.reports.tables import Row, table_section

HEADS = {"flat": 1.0, "peaked": 10.0}
SPREAD = 0.45
"""Standard deviation of the logits of random weights: 0.02 * sqrt(512)."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to time.

    Attributes:
        dtypes: of the weights.
        presets: of the generations.
        prompt_tokens: of the prompt.
        new_tokens: one per step.
        rows: positions whose sampling is timed alone.
        repeats: timed rounds after a warm-up.
        out: JSON file for the result.
    """

    dtypes: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
    presets: tuple[str, ...] = ("exact", "fast")
    prompt_tokens: int = 64
    new_tokens: int = 64
    rows: int = 64
    repeats: int = 3
    out: Path | None = None


COLUMNS = {
    "what": "{what}",
    "dtype": "{dtype}",
    "logits": "{logits}",
    "filters": "{filters}",
    "seconds": "{seconds:.3f}",
    "of top_k 50": "{ratio:.2f}",
}


def settings(new_tokens: int, preset: str) -> dict[str, GenerationOptions]:
    """The settings that are compared; the first is what the others are compared with."""
    published = model_card_options(new_tokens, preset)
    greedy = replace(published, temperature=0.0, top_p=None, top_k=None)
    return {
        "top_k 50, top_p 0.95": published,
        "top_p 0.95": replace(published, top_k=None),
        "greedy, none": greedy,
    }


def time_sampling(arguments: Arguments, logits: str) -> list[Row]:
    """Time what a step does with the logits of some rows: filter, draw, score."""
    shape = (1, arguments.rows, SHAPES["small"].vocab_size)
    values = jax.random.normal(jax.random.key(0), shape) * SPREAD * HEADS[logits]
    positions = jnp.arange(arguments.rows, dtype=jnp.int32)[None]
    number = jax.random.uniform(jax.random.key(1), positions.shape)

    @partial(jax.jit, static_argnames="top_k")
    def sampled(
        values: jax.Array, params: SamplingParams, top_k: int | None
    ) -> tuple[jax.Array, ...]:
        candidates = filtered(
            values, params, top_k=top_k, excluded_id=SHAPES["small"].mask_token_id
        )
        tokens, probability = draw(number, candidates, params.temperature)
        return tokens, confidence(number, candidates, probability, positions, params.alg)

    cases = settings(arguments.new_tokens, "exact")
    calls = []
    for options in cases.values():
        params = jax.tree.map(
            jnp.asarray, SamplingParams.of(options, arguments.new_tokens, arguments.new_tokens)
        )
        calls.append(partial(sampled, values, params, options.top_k))
    seconds = [timing.seconds for timing in time_in_turns(calls, arguments.repeats)]
    return rows_of(f"sampling of {arguments.rows} rows", "float32", logits, list(cases), seconds)


def time_generations(arguments: Arguments, dtype: str, logits: str) -> list[Row]:
    """Time whole generations of one prompt."""
    config = SHAPES["small"]
    model = random_model(config, dtype)
    assert model.lm_head is not None
    model.lm_head.weight[...] = model.lm_head.weight[...] * jnp.asarray(HEADS[logits], dtype)
    backend = JaxBackend(Sampler(model))
    prompts = random_prompts(config, 1, arguments.prompt_tokens, seed=0)
    rows: list[Row] = []
    for preset in arguments.presets:
        cases = settings(arguments.new_tokens, preset)
        calls = [partial(backend.generate, prompts, options) for options in cases.values()]
        seconds = [timing.seconds for timing in time_in_turns(calls, arguments.repeats)]
        rows += rows_of(preset, dtype, logits, list(cases), seconds)
    return rows


def rows_of(
    what: str, dtype: str, logits: str, names: list[str], seconds: list[float]
) -> list[Row]:
    """Return the median seconds of each setting, and their ratio to those of the first one."""
    case = {"what": what, "dtype": dtype, "logits": logits}
    return [
        case | {"filters": name, "seconds": each, "ratio": each / seconds[0]}
        for name, each in zip(names, seconds, strict=True)
    ]


def main(arguments: Arguments) -> None:
    """Time everything and print the table."""
    load = os.getloadavg()[0]
    rows = [row for logits in HEADS for row in time_sampling(arguments, logits)]
    for dtype in arguments.dtypes:
        for logits in HEADS:
            rows += time_generations(arguments, dtype, logits)
    section = table_section("Sampling", rows, COLUMNS)
    print(*table(section.columns, section.rows), sep="\n")
    print(f"load before: {load:.1f} on {os.cpu_count()} cores")
    if arguments.out:
        result = about() | {"load": load, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(run_main(Arguments))

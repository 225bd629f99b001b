"""Time a step in bfloat16, in int8, and in int8 with widened kernels, in turns.

    python experiments/int8_step.py --rows 1 8 33 128                           # needs 4 GB
    python experiments/int8_step.py --rows --layers 4 --new-tokens 64           # needs 9 GB

Layers of the published width with random weights, and a small vocabulary. With `--new-tokens`, whole
answers with the published vocabulary: `fast`, greedy, not ended early, after 64 tokens. As random
weights are never sure of a token, a step decides 8 by schedule.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.turns import time_in_turns
from jax_lm.benchmark.backend import greedy_options, pad_canvas, random_prompts
from jax_lm.config import DIFFUCODER_7B
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import run_main
from jax_lm.models import products
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.models.graph import split_model
from jax_lm.options import Decoding

VOCABULARY = 512


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to time.

    Attributes:
        rows: of the steps, each of one sequence.
        layers: of the model.
        repeats: timed rounds after a warm-up.
        new_tokens: length of the answers that are timed too; 0 times none.
    """

    rows: tuple[int, ...] = (1, 8, 33, 128)
    layers: int = 2
    repeats: int = 8
    new_tokens: int = 0


def random_layers(layers: int, vocabulary: int, *, int8: bool) -> DreamForCausalLM:
    """Build a model whose kernels have a standard deviation of 0.02."""
    config = replace(
        DIFFUCODER_7B, num_hidden_layers=layers, vocab_size=vocabulary, mask_token_id=vocabulary - 1
    )
    graph, template = split_model(
        DreamForCausalLM.abstract(config, jnp.bfloat16, quantization="int8" if int8 else None)
    )
    rng = np.random.default_rng(0)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.dtype == jnp.int8:
            return jnp.asarray(rng.integers(-127, 128, leaf.shape, np.int8))
        if leaf.dtype == jnp.float32:
            # Integers up to 127, uniformly distributed, have a standard deviation of 73.3.
            return jnp.full(leaf.shape, 0.02 / 73.3, leaf.dtype)
        scale = jnp.asarray(0.02, leaf.dtype)
        return jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype) * scale

    return graph.merge(jax.tree.map(draw, template))


def time_answers(asked: Arguments) -> None:
    """Print the seconds of whole answers."""
    vocabulary = DIFFUCODER_7B.vocab_size
    calls = []
    for int8 in (False, True):
        sampler = Sampler(random_layers(asked.layers, vocabulary, int8=int8))
        canvas = pad_canvas(random_prompts(sampler.config, 1, 64, seed=0), asked.new_tokens)
        options = replace(
            greedy_options(asked.new_tokens, "fast"),
            early_stop=False,
            decoding=Decoding(preset="fast", commit="steps"),
            num_steps=-(-asked.new_tokens // 8),
        )
        calls.append(partial(sampler.generate, canvas, options))
    times = [timing.row["seconds"] for timing in time_in_turns(calls, asked.repeats)]
    found = (f"{name} {each:.2f} s" for name, each in zip(("bfloat16", "int8"), times, strict=True))
    print(f"answers of {asked.new_tokens} tokens: {', '.join(found)}", flush=True)


def main(asked: Arguments) -> int:
    """Print the seconds of each step."""
    if asked.new_tokens:
        time_answers(asked)
    models = [random_layers(asked.layers, VOCABULARY, int8=int8) for int8 in (False, True)]
    limit = products.INT8_ROWS
    for rows in asked.rows:
        ids = jnp.arange(rows)[None] % (VOCABULARY - 1)
        steps = []
        for model, most in zip((*models, models[1]), (limit, limit, 0), strict=True):
            # Read while the step is compiled: with 0, every kernel is widened.
            products.INT8_ROWS = most
            graph, params = split_model(model)
            # A function of its own, so that no earlier program is used again.
            step = jax.jit(lambda params, ids, graph=graph: graph.merge(params)(ids))
            steps.append(partial(step.lower(params, ids).compile(), params, ids))
        products.INT8_ROWS = limit
        times = [timing.row["seconds"] for timing in time_in_turns(steps, asked.repeats)]
        names = ("bfloat16", "int8", "int8, widened")
        found = (f"{name} {each:.3f} s" for name, each in zip(names, times, strict=True))
        print(f"{rows} rows: {', '.join(found)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(run_main(Arguments)))

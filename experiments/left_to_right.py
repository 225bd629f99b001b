"""Time greedy decoding from left to right, in bfloat16: one backend per process, to run in turns.

    python experiments/left_to_right.py jax MODEL
    python experiments/left_to_right.py transformers MODEL

Prints tokens per second of batches of one and eight equal prompts: 64 new tokens, the median of three
runs after a warm-up. `transformers` needs torch and transformers (extra `parity`).
"""

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

PROMPT = "def is_prime(n):\n    # Return whether n is a prime number.\n"
NEW, RUNS, BATCHES = 64, 3, (1, 8)


def ours(model: str) -> Callable[[int], None]:
    """Return a function that decodes a batch with this library."""
    from jax_lm.inference import DiffuCoderInference
    from jax_lm.options import GenerationOptions
    from jax_lm.templates import Template

    engine = DiffuCoderInference(model, dtype="bfloat16", verbose=False)
    options = GenerationOptions(max_new_tokens=NEW, temperature=0.0, early_stop=False)

    def decode(batch):
        engine.decode([Template.completion(PROMPT, NEW)] * batch, options)

    return decode


def theirs(model: str) -> Callable[[int], None]:
    """Return a function that decodes a batch with transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    length = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}

    def decode(batch):
        with torch.no_grad():
            weights.generate(ids.repeat(batch, 1), **length)

    return decode


def main(backend: str, model: str) -> None:
    """Print the speeds of a backend as a line of JSON."""
    decode = ours(model) if backend == "jax" else theirs(model)
    speeds = {}
    for batch in BATCHES:
        decode(batch)
        times = []
        for _ in range(RUNS):
            start = perf_counter()
            decode(batch)
            times.append(perf_counter() - start)
        speeds[f"batch {batch}"] = round(NEW * batch / median(times), 1)
    print(json.dumps({"backend": backend, **speeds}))


if __name__ == "__main__":
    main(*sys.argv[1:])

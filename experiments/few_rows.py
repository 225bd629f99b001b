"""Time the layers of a model without its head, for a few rows: one backend per process, to run in turns.

    python experiments/few_rows.py jax MODEL bfloat16       # or int8, float32
    python experiments/few_rows.py llama.cpp MODEL.gguf     # and "unpacked": weights as in the file

Prints milliseconds of steps of 1, 8, 32 and 512 tokens, the median of nine runs after two to warm up. Both
attend causally to a cache that already has 64 tokens. llama.cpp computes no logits and, as none are
asked for, leaves out most of the last layer. `llama.cpp` needs llama-cpp-python, built for this CPU;
GGUF files are made by `diffucoder convert MODEL MODEL.gguf --dtype bfloat16` and `--quantize int8`.
"""

import json
import os
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

PAST, ROWS, RUNS = 64, (1, 8, 32, 512), 9
KEPT = []


def ours(model: str, dtype: str) -> Callable[[int], Callable[[], object]]:
    """Return a function that returns the step for a number of rows."""
    import jax
    import jax.numpy as jnp

    from jax_lm.inference import DiffuCoderInference
    from jax_lm.models.graph import ModelFunction

    sampler = DiffuCoderInference(model, dtype=dtype, verbose=False).sampler
    body = sampler.graph.merge(sampler.params).model

    def compute(graph, params, cache, ids):
        count = ids.shape[1]
        columns = jnp.arange(cache[0].keys.shape[2])
        positions = PAST + jnp.arange(count)[None]
        attends = columns[None, None] <= positions[..., None]
        return graph.merge(params).model.recompute(ids, attends, positions, cache, jnp.int32(PAST))[
            0
        ]

    function = ModelFunction(compute, static_argnums=0)

    def step(rows):
        cache = body.empty_cache(1, PAST + rows)
        ids = jnp.arange(100, 100 + rows)[None]
        return lambda: jax.block_until_ready(function(sampler.graph, sampler.params, cache, ids))

    return step


def theirs(path: str, mode: str) -> Callable[[int], Callable[[], object]]:
    """Return a function that returns llama.cpp's step for a number of rows."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    loading = llama_cpp.llama_model_default_params()
    # Where AMX is announced and not allowed, weights that are packed for it end the process.
    loading.use_extra_bufts = mode != "unpacked"
    model = llama_cpp.llama_model_load_from_file(path.encode(), loading)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 1024, 512, 512
    settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, settings)
    memory = llama_cpp.llama_get_memory(context)

    def decode(start, count):
        batch = llama_cpp.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for index in range(count):
            batch.token[index] = 100 + index
            batch.pos[index] = start + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 0
        if status := llama_cpp.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(context)
        llama_cpp.llama_batch_free(batch)

    def step(rows):
        def run():
            llama_cpp.llama_memory_seq_rm(memory, 0, PAST, -1)
            decode(PAST, rows)

        return run

    decode(0, PAST)
    # llama.cpp goes on using the callback.
    KEPT.append(silent)
    return step


def main(backend: str, model: str, mode: str = "") -> None:
    """Print the times of a backend as a line of JSON."""
    step = ours(model, mode) if backend == "jax" else theirs(model, mode)
    times = {}
    for rows in ROWS:
        run, seconds = step(rows), []
        for _ in range(2 + RUNS):
            start = perf_counter()
            run()
            seconds.append(perf_counter() - start)
        times[f"{rows} rows, ms"] = round(1000 * median(seconds[2:]), 1)
    print(json.dumps({"backend": backend, "model": os.path.basename(model), "mode": mode} | times))


if __name__ == "__main__":
    main(*sys.argv[1:])

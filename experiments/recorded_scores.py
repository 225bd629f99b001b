"""Are the scores of sampled tokens the probabilities that the sampler recorded?

    python experiments/recorded_scores.py

Completions of the built-in model on four-step pipelines (preset fast, 12 steps, T 1), scored along
their decoding: through the sampler's cache, without a cache, and with steps merged to four segments
without a cache, as `--estimator trace` did before. The sampler records a probability after top_p
0.95, which is higher than the model's by at most a factor of 1 / 0.95.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.one_step import SAMPLING, WHOLE, Task, merged
from jax_lm.diffusion.trace import decoded_blocks, trace_log_probs
from jax_lm.host.declared import run_main
from jax_lm.options import Decoding, GenerationOptions


def main(prompts: Path = Path("experiments/pipelines"), count: int = 64) -> None:
    """Sample, score in four ways, and print a table.

    Args:
        prompts: folder of builtin_model.pipelines.
        count: completions, each of another prompt; a multiple of 16.
    """
    task = Task(prompts, count)
    rows: Any = task.complete(task.sampler.params, task.held_out, 0, 0)[0]
    counted, steps = rows.completion_mask, rows.commit_step
    recorded = np.log(rows.confidence[counted])
    model, mask_id = task.model, task.sampler.mask_id

    def scores(tokens: np.ndarray, steps: np.ndarray, options: GenerationOptions) -> np.ndarray:
        blocks = decoded_blocks(tokens.shape[1], options, model.config)
        score = jax.jit(partial(trace_log_probs, model, blocks=blocks, mask_id=mask_id))
        return np.asarray(score(tokens, rows.attention_mask, jnp.asarray(steps)))[counted]

    plain = replace(SAMPLING, decoding=Decoding(block_length=32))
    four = np.array([merged(row) for row in steps])
    table = {
        "recorded by the sampler": recorded,
        "along the decoding, through its cache": scores(rows.sampled, steps, SAMPLING),
        "the same, padding after the stop token": scores(rows.tokens, steps, SAMPLING),
        "along the decoding, without a cache": scores(rows.sampled, steps, plain),
        "four segments, without a cache": scores(rows.tokens, four, WHOLE),
    }
    print(f"{count} completions, {rows.lengths.mean():.1f} tokens on average\n")
    print("| score | mean | under 0.1 | under 0.001 | largest difference |\n|---|---|---|---|---|")
    for name, found in table.items():
        shares = (f"{np.mean(found < np.log(bound)):.2%}" for bound in (0.1, 0.001))
        largest = np.abs(found - recorded).max()
        print(f"| {name} | {found.mean():.4f} | {' | '.join(shares)} | {largest:.3f} |")


if __name__ == "__main__":
    run_main(main)

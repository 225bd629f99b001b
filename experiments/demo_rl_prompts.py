"""Prompts of experiments/demo_rl.sh: tasks of the corpus' training side that the built-in model
solves sometimes.

    python experiments/demo_rl_prompts.py out/demo_rl/prompts.jsonl

A group of completions that all pass, or all fail, has no advantages. The paper keeps hard problems
for the same reason.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jax_lm.data.prompts import builtin_prompts
from jax_lm.diffusion.sampler import Sampler
from jax_lm.host.declared import Positional, run_main
from jax_lm.inference import BUILTIN_MODEL
from jax_lm.models.dream import DreamForCausalLM
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.rewards import weighted_sum
from jax_lm.tokenizer import DiffuCoderTokenizer
from jax_lm.training.prompt_set import PromptSet
from jax_lm.training.rollouts import reward_completions, sample_completions, sample_keys

MAX_PROMPT, NEW_TOKENS, TEMPERATURE = 64, 96, 1.0
"""As in recipes/grpo_builtin.yaml."""
SAMPLES = 8
LEAST, MOST = 0.1, 0.8
"""Mean rewards between which a prompt is kept: rarely solved, and not nearly always."""
TOGETHER = 16
"""Prompts sampled and judged at once."""
BATCH_SIZE = 16
"""Completions sampled at once: a batch waits for its slowest row, and on a CPU a large one is hardly faster a row."""


def main(
    out: Positional[Path],
    tasks: int = 4000,
    model: Path = BUILTIN_MODEL,
    preset: str = "fast",
    num_steps: int | None = 12,
) -> None:
    """Try tasks, and keep those that are solved sometimes.

    Args:
        out: JSONL file to write.
        tasks: how many are tried.
        model: the checkpoint that training starts from.
        preset: of decoding, as in training.
        num_steps: of decoding, as in training; None is as many as the preset takes.
    """
    sampling = GenerationOptions(
        max_new_tokens=NEW_TOKENS,
        temperature=TEMPERATURE,
        num_steps=num_steps,
        decoding=Decoding(preset=preset),
    )
    tokenizer = DiffuCoderTokenizer.from_pretrained(model)
    sampler = Sampler(DreamForCausalLM.from_pretrained(model, dtype=jnp.float32))
    rewards = weighted_sum({"completed_code": 1.0})
    prompts = PromptSet.of(builtin_prompts(tasks), tokenizer, MAX_PROMPT)
    kept, passed = [], 0
    for first in range(0, len(prompts.prompts) - TOGETHER + 1, TOGETHER):
        group = prompts.prompts[first : first + TOGETHER]
        rows = [prompt for prompt in group for _ in range(SAMPLES)]
        keys = sample_keys(0, first, 0, jnp.arange(len(rows)))
        completions = sample_completions(
            sampler,
            tokenizer,
            rows,
            sampling,
            keys=keys,
            width=prompts.width,
            batch_size=BATCH_SIZE,
        )
        totals = np.array(reward_completions(rewards, rows, completions).totals, np.float32)
        means = totals.reshape(-1, SAMPLES).mean(axis=1)
        kept += [prompt for prompt, mean in zip(group, means, strict=True) if LEAST < mean < MOST]
        passed += int(np.sum(means == 1))
        print(
            f"{first + TOGETHER} tried, {passed} always solved, {len(kept)} sometimes", flush=True
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"prompt": prompt.content, **prompt.columns}) + "\n" for prompt in kept]
    out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
